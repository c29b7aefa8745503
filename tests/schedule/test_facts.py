"""Passes over a plan know its nodes from one place."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "dynet_cy"
# Which passes measure a range of node numbers for a map: facts for planned nodes; before there are batches, plan and
# rewrite for nodes that are wanted, and speculation for those that may be.
MEASURED = {"schedule/facts.pyx", "schedule/plan.pyx", "schedule/rewrite.pyx", "schedule/speculation.pyx"}


def test_no_pass_keeps_a_map_of_nodes_of_its_own() -> None:
    passes = [p for folder in ("schedule", "execute", "gpu") for p in sorted((ROOT / folder).glob("*.pyx"))]
    maps = {str(p.relative_to(ROOT)) for p in passes if re.search(r"highest - ", p.read_text(encoding="utf-8"))}
    assert len(passes) > 30
    assert maps <= MEASURED
