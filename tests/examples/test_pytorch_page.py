"""The programs of docs/dynet-cy-for-pytorch-users.md run and learn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "dynet-cy-for-pytorch-users.md"

DATA = """
import random
rng = random.Random(1)
WORDS, TAGS = 20, 3
sentences = []
for _ in range(160):
    words = [rng.randrange(WORDS) for _ in range(rng.randint(2, 9))]
    sentences.append((words, [(a + b) % TAGS for a, b in zip(words, [0, *[w % 2 for w in words]])]))
"""


@pytest.mark.parametrize("library", ["dynet_cy", "PyTorch"])
def test_programs_learn(library: str, tmp_path: Path) -> None:
    if library == "PyTorch":
        pytest.importorskip("torch", reason="compares with PyTorch, which is optional")
    blocks = re.findall(rf"^```python\n# {library}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 2
    program = tmp_path / "program.py"
    program.write_text(DATA + "\n".join(blocks), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"^epoch \d: ([\d.]+)$", done.stdout, re.M)]
    assert len(losses) == 5
    assert losses[-1] < 0.65 * losses[0]
    assert re.search(r"^\[[\d, ]+\] \[[\d, ]+\]$", done.stdout, re.M)
