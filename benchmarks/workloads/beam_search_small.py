"""The same beam search with a small network, where choosing words and every call count."""

from __future__ import annotations

from workloads.beam_search import BeamSearch
from workloads.common import Goal


class SmallBeamSearch(BeamSearch):
    title = "the same, hidden 128"
    goals = (Goal("joined 1.5x the peers", 1.5, form="joined"),)
    sizes = {**BeamSearch.sizes, "hidden": 128}


WORKLOAD = SmallBeamSearch
