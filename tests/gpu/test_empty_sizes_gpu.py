"""The table of sizes of 0, on the device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "sweeps"))

from sampling import ONE_IN
from sweep import failures


@pytest.mark.parametrize("part", ["rows", "fused", "functions"])
def test_sizes_of_0_on_the_device(device: str, tmp_path: Path, part: str) -> None:
    n, failed = failures(tmp_path, "empty_sizes", part, 1, one_in=ONE_IN, DYNET_CY_POISON="1")
    assert not failed, f"{len(failed)} of {n} calls:\n" + "\n".join(text[:600] for text in failed[:30])
