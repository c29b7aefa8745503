"""The model of a device: its fit, and what it was fitted to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import device_model as model
import workloads

sys.path.pop(0)

TAGGER = ("tagger", "autobatch")


def made_rows(costs: dict[str, float], n: int = 300) -> list[dict[str, object]]:
    """Rows of programs that take exactly these costs."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(n):
        amounts = {part: float(10 ** rng.uniform(-1, 2)) / estimate for part, (estimate, _) in model.PARTS.items()}
        rows.append({"program": f"p{k % 7}", "amounts": amounts, "ms": model.predict(amounts, costs)})
    return rows


def test_costs_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {part: estimate * factor for (part, (estimate, _)), factor in zip(model.PARTS.items(), [2, 1, 0.5, 4] * 2)}
    rows = made_rows(costs)
    drawn = model.fit(rows)
    monkeypatch.setattr(model, "DOUBT", 1e4)  # estimates do not count
    assert model.fit(rows) == pytest.approx(costs, rel=1e-4)
    for part, (estimate, _) in model.PARTS.items():
        assert min(estimate, costs[part]) * 0.8 <= drawn[part] <= max(estimate, costs[part]) * 1.3
    costs["launch"] = 0.0
    assert model.fit(made_rows(costs))["launch"] < 1e-3 * model.PARTS["launch"][0]


def test_what_no_row_has_costs_its_estimate() -> None:
    amounts = {part: 10.0 if part == "host" else 0.0 for part in model.PARTS}
    found = model.fit([{"program": "p", "amounts": amounts, "ms": 30.0}] * 500)
    estimates = {part: estimate for part, (estimate, _) in model.PARTS.items()}
    assert found == pytest.approx({**estimates, "host": 3.0}, rel=0.1)


def test_least_squares_without_negative_numbers() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, 1.01], [0.0, 0.1]])
    assert np.linalg.lstsq(matrix, np.array([1.0, 0.9, 0.0]), rcond=None)[0][1] < 0
    found = model.nearest(matrix, np.array([1.0, 0.9, 0.0]))
    np.testing.assert_allclose(found, [0.95, 0])


def test_what_the_model_was_fitted_to() -> None:
    """Costs are positive, and no program that the model has not seen is off by more than 2.5 times.  Those that are off
    by more than twice ran kernels of which it does not know how long they take (see the lab notes): a slow norm of
    gradients, and steps of an LSTM with their products."""
    rows = model.measured()
    assert {row["program"] for row in rows} <= set(workloads.NAMES)
    assert min(model.fit(rows).values()) > 0
    found = np.array(model.errors(rows))
    assert np.sqrt((found[:, 1] ** 2).mean()) < 0.3
    assert np.sqrt((found[:, 2] ** 2).mean()) < 0.3
    factors = np.abs(np.log1p(found[:, 2]))
    assert factors.max() < np.log(2.5)
    assert {row["program"] for row, by in zip(rows, factors) if by > np.log(2)} <= {"language_model", "latency"}


def test_stored_counts_belong_to_the_programs() -> None:
    """Programs have the sizes that they had when their updates were counted."""
    for found in json.loads(model.ROWS.read_text(encoding="utf-8"))["programs"]:
        workload = workloads.load(found["program"])
        assert found["gflop"] == pytest.approx(workload.flops / 1e9, rel=1e-3, abs=1e-4)
        assert found["convolves"] == workload.convolves


def test_rows_keep_the_counts_of_their_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Counts of a later commit change nothing for rows that were measured before it."""
    stored = json.loads(model.ROWS.read_text(encoding="utf-8"))
    keys = [model.identity(found) for found in stored["programs"]]
    assert len(keys) == len(set(keys))
    first, *others = stored["programs"]
    row = next(row for row in stored["rows"] if model.identity(row) == model.identity(first) and row["graphs"])
    less = {**first, "counted": "later", "fresh": {**first["fresh"], "launches": 7, "fills": 0}}
    rows = [row, {**row, "counted": "later"}]
    monkeypatch.setattr(model, "ROWS", tmp_path / "rows.json")
    model.ROWS.write_text(json.dumps({"rows": rows, "programs": [less, first, *others]}), encoding="utf-8")
    before, after = (found["amounts"]["kernel"] for found in model.measured())
    assert (before, after) == (first["fresh"]["launches"] + first["fresh"]["fills"], 7)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    model.main()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| tagger |") for line in lines) == 8
    assert lines[-1].startswith("fitted without the program: median ")


def test_the_errors_of_a_program() -> None:
    rows = model.measured()
    found = [100 * e for row, (_, _, e) in zip(rows, model.errors(rows)) if (row["program"], row["form"]) == TAGGER]
    assert len(found) > 1
    assert model.ranges(rows)[TAGGER] == f"{min(found):+.0f} to {max(found):+.0f} %"


def test_another_machine_takes_another_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert model.yardstick() > 0
    stored = json.loads(model.ROWS.read_text(encoding="utf-8"))
    monkeypatch.setattr(model, "yardstick", lambda: stored["yardstick"] / 2)
    assert model.host_speed() == 2
    found = {**stored["programs"][0]}
    assert model.amounts(found, "fresh", 2)["host"] == 2 * found["host"]["fresh"]
