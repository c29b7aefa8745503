from __future__ import annotations

import pytest

import dynet_cy as dy


@pytest.fixture(autouse=True)
def fresh_graph() -> None:
    """Begin with an empty graph."""
    dy.renew_cg()
