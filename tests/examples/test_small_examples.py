"""The other examples, at a small size, each run as its user would run it."""

from __future__ import annotations

from pathlib import Path

from programs import numbers, output


def test_xor(tmp_path: Path) -> None:
    text = output("xor.py", cwd=tmp_path)
    outputs = numbers(r"^\d xor \d = ([\d.]+) ", text)
    assert [round(x) for x in outputs] == [0, 1, 1, 0]
    assert numbers(r"^step 2000: mean loss ([\d.]+)$", text)[0] < 0.1
