"""Arenas that are mirrored on a device keep their empty segments as they grow: copies that are under way read them."""

from __future__ import annotations

import pytest

from dynet_cy.memory import arena

pytestmark = pytest.mark.usefixtures("nothing_held")


@pytest.mark.parametrize("mirrored", [False, True])
def test_growing_keeps_empty_segments(mirrored: bool) -> None:
    # Others have more address space than was asked for.
    sizes = (1 << 18, 1 << 20, 1 << 22) if mirrored else (1 << 18, 1 << 26, 1 << 28)
    before, after, unchanged = arena.growth_when_empty(sizes, mirrored, 1 << 30)  # more than all that there is
    assert len(before) == 3
    if mirrored:
        assert after[:3] == before
        assert unchanged
    else:
        assert len(after) == 2
        assert after[0] == before[0]
    assert after[-1][1] >= 1 << 30
