"""benchmarks/kernels.py runs every kernel of its table in every instruction set of this CPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from dynet_cy.kernels import kernels

# Imported by path, because tests/kernels is also named "kernels".
spec = importlib.util.spec_from_file_location(
    "kernel_benchmark", Path(__file__).parents[2] / "benchmarks" / "kernels.py"
)
assert spec is not None
assert spec.loader is not None
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--seconds", "1e-4"])
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    isas = list(reversed(kernels.tables()))
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == len(benchmark.table()) > 35
    assert all(line.count("(") == len(isas) for line in rows)
