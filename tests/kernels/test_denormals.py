"""Denormal numbers count as 0 while the engine computes; the arithmetic of the caller does not change."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
import dynet_cy.config as config
from dynet_cy.core import engine

TINY = np.float32(1e-40)


def caller_has_denormals() -> bool:
    """Whether this thread computes with denormal numbers, as arguments and as results."""
    return bool(np.array([1e-40], np.float32) * np.float32(2) > 0) and bool(np.array([1e-38], np.float32) / 16 > 0)


@pytest.fixture(autouse=True)
def setting():
    """Switch denormal numbers on, as in a new process: libraries such as DyNet switch them off when imported."""
    libm, before = ctypes.CDLL("libm.so.6"), ctypes.create_string_buffer(256)
    libm.fegetenv(before)
    libm.fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV
    if not caller_has_denormals():
        pytest.skip("this CPU has no denormal numbers")
    yield
    config.set(flush_denormals=True, threads=0)
    libm.fesetenv(before)


def forward() -> float:
    dy.renew_cg()
    return float((dy.inputTensor(np.full(40, 1e-30, np.float32)) * 1e-10).npvalue()[7])


def backward() -> float:
    m = dy.ParameterCollection()
    p = m.add_parameters(40, init=1.0)
    dy.renew_cg()
    dy.sum_elems(p * 1e-30 * 1e-10).backward()
    return float(p.grad_as_array()[7])


def update() -> float:
    m = dy.ParameterCollection()
    p = m.add_parameters(40, init=0.0)
    trainer = dy.SimpleSGDTrainer(m, learning_rate=1e-10)
    trainer.set_clip_threshold(0)
    dy.renew_cg()
    (dy.sum_elems(p) * 1e-30).backward()
    trainer.update()
    return float(p.as_array()[7])


@pytest.mark.parametrize("compute", [forward, backward, update])
def test_denormal_results_are_zero(compute) -> None:
    assert compute() == 0
    assert caller_has_denormals()
    config.set(flush_denormals=False)
    assert abs(compute()) == pytest.approx(1e-40, rel=1e-3, abs=0)
    assert caller_has_denormals()


def test_denormal_arguments_are_zero() -> None:
    def product() -> float:
        dy.renew_cg()
        return float((dy.inputTensor(np.full(40, TINY)) * 1e10).npvalue()[7])

    assert product() == 0
    config.set(flush_denormals=False)
    assert product() == pytest.approx(1e-30, rel=1e-3, abs=0)


def test_values_are_handed_over_as_they_are() -> None:
    """Inputs and values that are only copied keep denormal numbers."""
    dy.renew_cg()
    assert dy.inputTensor(np.full(3, TINY)).npvalue()[1] == TINY


def test_errors_restore_the_arithmetic() -> None:
    m = dy.ParameterCollection()
    p = m.add_parameters(4, init=1.0)
    trainer = dy.SimpleSGDTrainer(m)
    dy.renew_cg()
    dy.sum_elems(dy.log(p - 1)).backward()
    with pytest.raises(RuntimeError, match="gradient"):
        trainer.update()
    assert caller_has_denormals()


def test_threads_of_the_pool_compute_as_their_owner() -> None:
    """Every part of a product treats denormal numbers alike: sums of 1e-20 times 1e-20."""
    a, b = np.full((600, 300), 1e-20, np.float32), np.full((300, 480), 1e-20, np.float32)

    def least_and_greatest() -> tuple[float, float]:
        dy.renew_cg()
        c = (dy.inputTensor(a) * dy.inputTensor(b)).npvalue()
        return float(c.min()), float(c.max())

    config.set(threads=4)
    jobs = engine.stats("kernels.pool")["jobs"]
    assert least_and_greatest() == (0, 0)
    assert engine.stats("kernels.pool")["jobs"] > jobs
    config.set(flush_denormals=False)
    least, greatest = least_and_greatest()
    assert least == greatest
    assert greatest == pytest.approx(300e-40, rel=1e-3, abs=0)


def test_every_thread_has_its_own_arithmetic() -> None:
    seen: list[tuple[float, bool]] = []

    def work() -> None:
        with dy.ComputationGraph():
            value = float((dy.inputTensor(np.full(40, 1e-30, np.float32)) * 1e-10).npvalue()[7])
        seen.append((value, caller_has_denormals()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(0, True)] * 4


def test_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.get()["flush_denormals"] is True
    params = config.DynetParams()
    params.set_flush_denormals(False)
    params.init()
    assert config.get()["flush_denormals"] is False
    monkeypatch.setattr("sys.argv", ["program", "--dynet-flush-denormals", "1"])
    params.from_args()
    params.init()
    assert config.get()["flush_denormals"] is True
    with pytest.raises(ValueError, match="flush_denormals must be 0 or 1, not 2"):
        config.set(flush_denormals=2)
