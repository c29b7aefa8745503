"""Tests of the GPU backend: they run on GPU:0 where there is one, or on the emulated driver (tests/devices.py).

Tests of single kernels under emulation need g++ alone, and run everywhere. What holds on every device is in the other
folders: tests with the fixture `on_each_device`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "tools" / "gpu"))
for folder in ("tests/derivatives", "tests/ops", "tests/rnn", "tests/nn", "tests/examples", "benchmarks"):
    sys.path.insert(0, str(ROOT / folder))
