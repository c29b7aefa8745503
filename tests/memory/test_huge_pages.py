"""Large segments of graphs request huge pages; those of parameters do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy

MAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(
    not (MAPS.exists() and Path("/sys/kernel/mm/transparent_hugepage").exists()), reason="no huge pages here"
)


def asked() -> int:
    """The size of the mappings that request huge pages, in KiB."""
    found = size = 0
    for line in MAPS.read_text(encoding="utf-8").splitlines():
        if line.startswith("Size:"):
            size = int(line.split()[1])
        elif line.startswith("VmFlags:") and "hg" in line.split():
            found += size
    return found


def test_values_and_gradients_of_a_large_graph() -> None:
    before = asked()
    g = dy.ComputationGraph()
    with g:
        x = dy.inputTensor(np.ones((1024, 1024), np.float32))
        w = dy.ParameterCollection().add_parameters(1, init=1)
        for _ in range(8):
            x = dy.cmult(dy.tanh(x), w)
        dy.sum_elems(x).backward(full=True)
    assert asked() - before >= 2 * 32 * 1024


def test_tables_of_which_few_rows_are_used() -> None:
    before = asked()
    model = dy.ParameterCollection()
    table = model.add_lookup_parameters((20_000, 128), init=0)
    trainer = dy.AdamTrainer(model)
    dy.renew_cg()
    dy.sum_elems(table[7]).backward()
    trainer.update()
    assert asked() == before
