"""A sample of the soak test, tools/soak.py."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import dynet_cy as dy

FILE = Path(__file__).resolve().parent.parent / "tools" / "soak.py"


@pytest.fixture(scope="module")
def soak():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FILE.parent))
        module = importlib.import_module("soak")
    before = signal.signal(signal.SIGALRM, module._stop)
    yield module
    signal.signal(signal.SIGALRM, before)


def module_of(kind):
    """The module of a kind of rounds."""
    return sys.modules[kind.__module__]


@pytest.mark.parametrize("number", range(3))
def test_every_kind(soak, number):
    for kind, _ in soak.ROUNDS:
        if kind.__name__ not in ("fresh", "processes", "beside", "endings") or number == 0:
            kind(np.random.default_rng([5, number]))


def test_differences_are_found(soak, monkeypatch):
    """A wrong op is reported as a failure."""
    monkeypatch.setattr(module_of(soak.values_and_gradients).Numpy, "tanh", staticmethod(np.sin))
    with pytest.raises(AssertionError, match="value with autobatch 0"):
        [soak.values_and_gradients(np.random.default_rng(number)) for number in range(20)]


@pytest.mark.parametrize(
    ("kind", "where", "name", "wrong", "message"),
    [
        ("maps", "dy", "batched_map", lambda f, items, **_: [f(i) for i in reversed(items)], "values of a map"),
        ("anomalies", "dy", "detect_anomaly", contextlib.nullcontext, "an anomaly was not found"),
        ("training", "dy", "load_safetensors", lambda *_: None, "trained on from a file"),
        ("cached_plans", "engine", "stats", lambda *_, **__: {"made": 3}, "scheduled 3 times more"),
        ("frozen", "", "make_trainer", lambda *_: [mock.MagicMock()] * 2, "nothing was trained"),
        ("out_of_memory", "Numpy", "tanh", staticmethod(np.sin), "value after a lack of memory"),
        ("fresh", "", "repeat", lambda *_: "0", "bits of a fresh process"),
        ("changes", "Changing", "change", lambda *_: None, "value after set"),
        ("changing_maps", "Changing", "change", lambda *_: None, "value in an item of a map"),
        ("sharing", "Numpy", "tanh", staticmethod(np.sin), "in a thread that reads"),
        ("sizes", "", "OF_ANY_SIZE", [("mn", dy.transpose, lambda a: a.T + 1)], "value of mn"),
        ("offsets", "", "OF_ANY_OFFSET", [(dy.log_softmax, lambda x: x - x.max())], "value at offset"),
        ("calls", "Numpy", "tanh", staticmethod(np.sin), "value after calls of all kinds"),
        ("huge", "dy", "pick", lambda *_: dy.scalarInput(1), "pick of"),
        ("mixed_requests", "", "TOLERANCE", -1, "answer 0 of request 0"),
        ("shared_batches", "", "TOLERANCE", -1, "answer 0 of request 0"),
        ("builders_that_drop", "", "TOLERANCE", -1, "answer 0 of request 0"),
        ("beside", "", "FILE", "/none", "a process that saves beside another"),
        ("endings", "", "FILE", "/none", "a fresh process"),
    ],
)
def test_faults_of_other_kinds_are_found(soak, monkeypatch, kind, where, name, wrong, message):
    module = module_of(getattr(soak, kind))
    monkeypatch.setattr(getattr(module, where) if where else module, name, wrong)
    with pytest.raises(AssertionError, match=message):
        [getattr(soak, kind)(np.random.default_rng(number)) for number in range(20)]


def set_clock(monkeypatch: pytest.MonkeyPatch, soak: ModuleType, seconds: float) -> None:
    """Let each look at the clock take so long, so that there are several rounds however busy the machine is."""
    ticks = itertools.count()
    monkeypatch.setattr(soak, "time", SimpleNamespace(monotonic=lambda: seconds * next(ticks)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_crashes_are_found(soak, monkeypatch, capsys):
    """A round that ends its process by a signal is a failure as any other, and rounds go on."""
    crash = lambda rng: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    crash.__name__ = "crash"
    monkeypatch.setattr(soak, "ROUNDS", [(soak.builders, 1), (crash, 1)])
    set_clock(monkeypatch, soak, 0.3)
    assert soak.soak(0.05, 1, apart=True) > 0
    captured = capsys.readouterr()
    assert "the process was ended by signal 9" in captured.err
    assert "failed: crash " in captured.out
    assert "builders " in captured.out


def test_growing_memory_is_found(soak, monkeypatch, capsys):
    sizes = iter(range(10**6))
    monkeypatch.setattr(soak, "memory", lambda: next(sizes) << 20)
    monkeypatch.setattr(soak, "run_round", lambda seed, number: "nothing")
    set_clock(monkeypatch, soak, 0.002)
    assert soak.soak(0.02, 1) == 1
    assert "memory has grown" in capsys.readouterr().out


@pytest.mark.fibers
def test_command():
    done = subprocess.run(
        [sys.executable, str(FILE), "--minutes", "0.03", "--seed", "7"], capture_output=True, text=True, check=False
    )
    # The exit status is not checked: memory has no time to become flat.
    assert ", 0 failures;" in done.stdout, done.stdout + done.stderr
    assert "seed 7:" in done.stdout
    assert "100.0 %" in done.stderr
