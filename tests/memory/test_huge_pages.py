"""Large segments of graphs request huge pages; those of parameters do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_process import run_python

MAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(
    not (MAPS.exists() and Path("/sys/kernel/mm/transparent_hugepage").exists()), reason="no huge pages here"
)


# In a process of its own: in that of the tests, what earlier ones have freed would be counted too.
BEGIN = """
from pathlib import Path
import numpy as np
import dynet_cy as dy

def asked():
    found = size = 0
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if line.startswith("Size:"):
            size = int(line.split()[1])
        elif line.startswith("VmFlags:") and "hg" in line.split():
            found += size
    return found

before = asked()
"""


def asked(folder: Path, program: str) -> int:
    """The size of the mappings for which a program requests huge pages, in KiB."""
    done = run_python(folder, f"{BEGIN}{program}print(asked() - before)")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_values_and_gradients_of_a_large_graph(tmp_path: Path) -> None:
    program = """
x = dy.inputTensor(np.ones((1024, 1024), np.float32))
w = dy.ParameterCollection().add_parameters(1, init=1)
for _ in range(8):
    x = dy.cmult(dy.tanh(x), w)
dy.sum_elems(x).backward(full=True)
"""
    assert asked(tmp_path, program) >= 2 * 32 * 1024


def test_address_space_that_is_not_used(tmp_path: Path) -> None:
    """Segments have more addresses than graphs use, which may be less than one huge page."""
    program = """
for _ in range(3):
    dy.renew_cg()
    dy.sum_elems(dy.tanh(dy.tanh(dy.inputTensor(np.ones((256, 256), np.float32))))).backward()
"""
    assert asked(tmp_path, program) == 0


def test_tables_of_which_few_rows_are_used(tmp_path: Path) -> None:
    program = """
model = dy.ParameterCollection()
table = model.add_lookup_parameters((20_000, 128), init=0)
trainer = dy.AdamTrainer(model)
dy.sum_elems(table[7]).backward()
trainer.update()
"""
    assert asked(tmp_path, program) == 0
