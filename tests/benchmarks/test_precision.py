"""benchmarks/precision.py trains the same program in both precisions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynet_cy import config
from dynet_cy.kernels import kernels

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import precision

sys.path.pop(0)


@pytest.mark.skipif(bool(kernels.bf16_missing()), reason=kernels.bf16_missing())
def test_both_precisions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["precision.py", "mlp", "--tiny", "--seconds", "0.01"])
    precision.main()
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == sum(name == "mlp" for name, _, _ in precision.ROWS)
    assert all(" / " in row for row in rows)
    assert config.get()["precision"] == "float32"
