"""Benchmark programs: one file each, with the same source for DyNet and dynet_cy, and two forms for PyTorch."""

from __future__ import annotations

import importlib

from workloads.common import Workload

# In the order of the table.
NAMES = [
    "chain",
    "mlp",
    "tagger",
    "tagger_letters",
    "tree_lstm",
    "parser",
    "language_model",
    "seq2seq",
    "mnist_cnn",
    "latency",
    "decisions",
    "decisions_small",
    "dynamic_parser",
    "early_exit",
    "scheduled_sampling",
    "beam_search",
    "beam_search_small",
    "translation_beam",
    "constrained",
    "rnng",
    "reinforce",
    "dqn",
    "transformer_tagger",
    "transformer_tagger_buckets",
    "transformer_decoding",
]


def load(name: str, tiny: bool = False, **sizes: int) -> Workload:
    """Make a workload, at its full size or at a tiny one for tests; `sizes` replace single ones of it."""
    if name not in NAMES:
        raise ValueError(f"no workload {name!r}: there are {', '.join(NAMES)}")
    return importlib.import_module(f"workloads.{name}").WORKLOAD(tiny, **sizes)
