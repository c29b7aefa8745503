"""Random programs over the whole API, line by line in both libraries: see random_programs.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from libraries import counts
from random_programs import Comparison

pytestmark = pytest.mark.peer

QUICK = 60  # for more: python tests/peer/random_programs.py --programs 5000


@pytest.fixture(scope="module")
def comparison() -> Iterator[Comparison]:
    comparison = Comparison()
    yield comparison
    comparison.close()


def compare(comparison: Comparison, programs: range) -> None:
    for number in programs:
        program, found = comparison.run(number)
        assert not found, "\n".join([*map(str, found), "", *program.lines])
    counts["lines of random programs compared"] = comparison.compared


def test_programs(comparison: Comparison) -> None:
    compare(comparison, range(QUICK))


def test_a_difference_is_found(comparison: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the list of intended differences, some are reported: the comparison works."""
    monkeypatch.setattr("random_programs.MEANT", [])
    assert any(comparison.run(number)[1] for number in range(QUICK))
