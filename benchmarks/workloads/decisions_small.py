"""The same decisions with a small network, where every call counts."""

from __future__ import annotations

from workloads.common import Goal
from workloads.decisions import Decisions


class SmallDecisions(Decisions):
    title = "the same, hidden 128"
    goals = (
        Goal("one by one 1.1x of together", 0.909, "together", "step"),
        Goal("mapped 1.25x of lazy", 0.8, "lazy", "mapped"),
        Goal("mapped 1.4x PyTorch", 1.4, "peers", "mapped"),
    )
    sizes = {**Decisions.sizes, "hidden": 128}


WORKLOAD = SmallDecisions
