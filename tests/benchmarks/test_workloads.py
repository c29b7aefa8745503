"""Benchmarks: every workload gives the same losses in all forms, at a tiny size; the driver and its tables."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import dynet_cy as dy
from dynet_cy import config

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import compare
import report
import worker
import workloads

sys.path.pop(0)


@pytest.fixture(autouse=True)
def batching() -> Iterator[None]:
    """Restore batching and threads, which workers set for the whole process."""
    before = config.get()
    yield
    config.set(autobatch=before["autobatch"], threads=before["threads"])
    dy.renew_cg()


def losses(library: str, form: str, name: str) -> list[float]:
    update = worker.make_update(library, form, workloads.load(name, tiny=True))
    return [update() for _ in range(3)]


@pytest.mark.parametrize("name", workloads.NAMES)
def test_forms_have_the_same_losses(name: str) -> None:
    workload = workloads.load(name, tiny=True)
    plain = losses("dynet_cy", "plain", name)
    assert all(map(math.isfinite, plain))
    assert (plain[0] > plain[1] > plain[2]) == (workload.mode == "train")
    for form in (*workload.dynet_forms[1:], *workload.own_forms):
        assert losses("dynet_cy", form, name) == pytest.approx(plain, rel=1e-5), form


@pytest.mark.parametrize("name", workloads.NAMES)
def test_torch_has_the_same_losses(name: str) -> None:
    pytest.importorskip("torch", reason="compares with PyTorch, which is optional")
    plain = losses("dynet_cy", "plain", name)
    for form in workloads.load(name, tiny=True).torch_forms:
        assert losses("torch", form, name) == pytest.approx(plain, rel=1e-5), form


@pytest.mark.parametrize("name", workloads.NAMES)
def test_torch_has_everything_on_one_device(name: str) -> None:
    """Uses the device "meta", which computes only shapes and refuses tensors of other devices, as a GPU does."""
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is optional")
    for form in workloads.load(name, tiny=True).torch_forms:
        loss = workloads.load(name, tiny=True).torch(torch, workloads.common.TorchWeights(torch, "meta"))
        with contextlib.suppress(NotImplementedError):  # programs that read values
            assert loss(form).device.type == "meta"


def test_workloads_are_declared() -> None:
    files = {path.stem for path in (Path(workloads.__file__).parent).glob("*.py")}
    assert files == {*workloads.NAMES, "common", "__init__"}
    for name in workloads.NAMES:
        workload = workloads.load(name)
        assert workload.goals, name
        assert workload.items > 0, name
        assert (workload.flops > 0) == (name != "chain")
    with pytest.raises(ValueError, match="no workload 'none'"):
        workloads.load("none")


def test_driver_measures() -> None:
    result = compare.measure("mlp", {"dynet_cy": sys.executable}, 1)
    assert [f["form"] for f in result["forms"]] == ["plain", "autobatch", "minibatch"]
    assert all(f["result"] > 0 and f["memory"] > 2**20 and 0 < f["share_of_peak"] < 2 for f in result["forms"])
    assert result["peak"] > 1e8


def test_driver_fails_loudly() -> None:
    def child(loss: float) -> SimpleNamespace:
        return SimpleNamespace(name=f"one with {loss}", rounds=[{"loss": loss}])

    compare.same_losses([child(2.0), child(2.0001)])
    with pytest.raises(RuntimeError, match=r"round 1:\n.*2\.0\n.*2\.001"):
        compare.same_losses([child(2.0), child(2.001)])
    with pytest.raises(RuntimeError, match="losses differ"):
        compare.same_losses([child(2.0), child(math.nan)])
    failing = compare.Child(sys.executable, "dynet_cy", "plain", "none")
    with pytest.raises(RuntimeError, match="dynet_cy plain none: exit status 1(.|\n)*no workload 'none'"):
        failing.round()
    failing.close()


@pytest.fixture
def result() -> dict:
    forms = [
        ("dynet_cy", "plain", 4.0),
        ("dynet_cy", "autobatch", 2.0),
        ("dynet", "plain", 9.0),
        ("torch", "eager", 5.0),
    ]
    goals = [
        workloads.common.Goal("twice", 2.0),
        workloads.common.Goal("half the peak", 0.5, "peak"),
        workloads.common.Goal("plain as autobatch", 0.9, "autobatch", "plain"),
    ]
    measured = {
        "workload": "some",
        "title": "Some",
        "unit": "items/s",
        "peak": 1e11,
        "goals": [goal._asdict() for goal in goals],
        "forms": [
            {
                "library": library,
                "form": form,
                "median": seconds,
                "seconds": [seconds, seconds * 1.5],
                "result": 100 / seconds,
                "share_of_peak": 1 / seconds,
                "memory": 2**20,
            }
            for library, form, seconds in forms
        ],
    }
    return {"date": "2026-01-02", "processor": "P", "rounds": 2, "workloads": [measured]}


def test_table(result: dict) -> None:
    lines = report.table(result, goals=True).splitlines()
    assert lines[0] == "2026-01-02, P, 2 rounds, peak 100 GFLOP/s"
    assert lines[4] == (
        "| Some | items/s | 50.0 (autobatch, 50 %) | 11.1 (plain, 11 %) | 20.0 (eager, 20 %) | 4.50 | 2.50 | 2.00 "
        "| twice; half the peak; plain as autobatch | 2.50 of 2.00; 0.500 of 0.500; **0.500** of 0.900 |"
    )
    assert lines[-1] == "| some | PyTorch | eager | 20.0 items/s | 20 % | 1 | 1.50 |"
    assert "goal" not in report.table(result)
    result["workloads"][0]["forms"] = result["workloads"][0]["forms"][:2]  # no peers
    assert "not measured of 2.00" in report.table(result, goals=True)


def test_table_with_a_gpu(result: dict) -> None:
    (workload,) = result["workloads"]
    by_hand = workloads.common.Goal("faster", 1.0, "torch_gpu", "autobatch")
    workload["goals"] = [by_hand._asdict()]
    assert "torch" not in report.table(result, goals=True).splitlines()[4], "not requested"
    for library, form, seconds in [("dynet_cy_gpu", "autobatch", 0.5), ("torch_gpu", "batched", 0.4)]:
        measured = {"median": seconds, "seconds": [seconds], "result": 100 / seconds, "share_of_peak": 0.0}
        workload["forms"].append({"library": library, "form": form, "memory": 2**20, **measured})
    lines = report.table({**result, "device": "G"}, goals=True).splitlines()
    assert lines[0] == "2026-01-02, P, G, 2 rounds, peak 100 GFLOP/s"
    assert lines[4].endswith("| 200 (autobatch) | 250 (batched) | 0.800 | faster | **0.800** of 1.00 |")
    assert lines[-1] == "| some | PyTorch, GPU | batched | 250 items/s |  | 1 | 1.00 |"


def test_plot(result: dict, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra [benchmarks]")
    report.plot(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
