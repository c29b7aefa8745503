"""Products of weights in bfloat16: the kernels, the effect of the setting, and where it is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_process import run_python

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.kernels import kernels
from dynet_cy.memory import arena

needs_bf16 = pytest.mark.skipif(bool(kernels.bf16_missing()), reason=kernels.bf16_missing())


def rounded(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 numbers, as float64; ties round to even, and denormal numbers are 0."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32)
    half = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    near = ((bits + half) & np.uint32(0xFFFF0000)).view(np.float32)
    near = np.where(np.isfinite(x), near, x)
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, 0, near).astype(np.float64)


def test_the_reference_rounds_to_nearest_even() -> None:
    one = np.float32(1)
    for x, want in {
        1 + 2**-8: 1,  # a tie rounds to even
        1 + 3 * 2**-8: 1 + 2**-6,
        1 + 2**-8 + 2**-20: 1 + 2**-7,
        -1 - 2**-8: -1,
        3.4e38: np.inf,
        1e-40: 0,
        np.inf: np.inf,
    }.items():
        assert rounded(np.array([x * one]))[0] == want


# -- the kernels -----------------------------------------------------------------------------------


def as_bf16(t: bool, m: int, n: int, k: int, tb: bool, packed: bool, rng: Any, beta: float) -> tuple[np.ndarray, ...]:
    """A product of random matrices by the kernel, the expected product, and the sums of its terms' magnitudes."""
    P, I, Z, F = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_float  # noqa: E741
    found = kernels.bf16_kernels()
    pack = ctypes.CFUNCTYPE(None, I, Z, Z, P, Z, P)(found["pack"])
    gemm = ctypes.CFUNCTYPE(None, P, I, I, Z, Z, Z, P, Z, P, Z, F, P, Z)(found["gemm"])
    a = np.asfortranarray(rng.normal(size=(k, m) if t else (m, k)).astype(np.float32))
    b = np.asfortranarray(rng.normal(size=(n, k) if tb else (k, n)).astype(np.float32))
    c = np.full((m + 1, n), 7 if beta else np.nan, np.float32, order="F")  # the last row must not be written
    before = c[:m].astype(np.float64)
    panels = np.full((m + 15) // 16 * 16 * ((k + 1) // 2) + 16, 7, np.float32)
    if packed:
        pack(t, m, k, a.ctypes.data, len(a), panels.ctypes.data)
        assert (panels[-16:] == 7).all()
    at = panels.ctypes.data if packed else None
    gemm(at, t, tb, m, n, k, a.ctypes.data, len(a), b.ctypes.data, len(b), beta, c.ctypes.data, m + 1)
    assert np.array_equal(c[m], np.full(n, 7 if beta else np.nan), equal_nan=True)
    x, y = rounded(a.T if t else a), rounded(b.T if tb else b)
    return c[:m], x @ y + (beta * before if beta else 0), np.abs(x) @ np.abs(y) + abs(beta * 7)


@needs_bf16
@pytest.mark.parametrize("t", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_products(t: bool, tb: bool) -> None:
    """All shapes of tiles and remainders; the same bits with packed weights and without."""
    for m in (1, 16, 17, 49, 200):
        for n in (1, 3, 4, 9, 130):
            for k in (1, 31, 32, 33, 1025, 2049):
                results = []
                for packed in (False, True):
                    got, want, terms = as_bf16(t, m, n, k, tb, packed, np.random.default_rng(m + n + k), 0)
                    assert (np.abs(got - want) <= 3e-6 * terms).all(), (m, n, k)
                    results.append(got)
                assert np.array_equal(*results), (m, n, k)
    got, want, terms = as_bf16(t, 50, 20, 70, tb, False, np.random.default_rng(0), -1)
    assert (np.abs(got - want) <= 3e-6 * terms).all()


@needs_bf16
def test_numbers_that_are_not_ordinary() -> None:
    """Denormal numbers are 0, infinities and NaN stay, and numbers that are too large become infinite."""
    model = dy.ParameterCollection()
    w = model.parameters_from_numpy(np.ones((128, 128)))
    with precision("bf16"):
        for value, want in (
            (1e-40, 0.0),
            (np.inf, np.inf),
            (-np.inf, -np.inf),
            (np.nan, np.nan),
            (3.4e38, np.inf),
            (3.38e38, rounded(np.array([3.38e38]))[0]),
        ):
            x = np.zeros(128)
            x[37] = value
            got = (w * dy.inputVector(x)).npvalue()
            assert np.array_equal(got, np.full(128, want), equal_nan=True)


# -- the effect of the setting ------------------------------------------------------------------------


class precision:
    """A block that sets the precision of products of weights."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        config.set(precision=self.name)

    def __exit__(self, *error: object) -> None:
        config.set(precision="float32")


@pytest.fixture(autouse=True)
def renewed() -> Iterator[None]:
    yield
    config.set(precision="float32", threads=0, autobatch=1)
    dy.renew_cg()


ROWS, COLUMNS = 120, 99
RNG = np.random.default_rng(3)
W = RNG.normal(size=(ROWS, COLUMNS)).astype(np.float32)
X = RNG.normal(size=(COLUMNS, 40)).astype(np.float32)


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)


def run(w: dy.Parameters, x: dy.Parameters, op: str) -> np.ndarray:
    """A product; backward runs on the sum of its squares."""
    w.scale_gradient(0)
    x.scale_gradient(0)
    dy.renew_cg()
    if op == "matmul":
        y = w * x
    elif op == "tanh_affine":
        y = dy.tanh_affine([dy.zeros(ROWS), w, x])
    else:
        y = dy.affine_transform([dy.zeros(ROWS), w, x])
    value = y.npvalue()
    (0.5 * dy.squared_norm(y)).backward()
    return value


@needs_bf16
@pytest.mark.parametrize("op", ["matmul", "affine", "tanh_affine"])
def test_forward_and_both_gradients(op: str) -> None:
    """W x, W' dy and dy x' are products of rounded numbers."""
    model = dy.ParameterCollection()
    w, x = model.parameters_from_numpy(W), model.parameters_from_numpy(X)
    with precision("bf16"):
        value = run(w, x, op)
    sums = rounded(W) @ rounded(X)
    slope = value
    if op == "tanh_affine":
        sums, slope = np.tanh(sums), value * (1 - value * value)
    close(value, sums)
    close(x.grad_as_array() / 100, rounded(W).T @ rounded(slope) / 100)
    close(w.grad_as_array() / 100, rounded(slope) @ rounded(X).T / 100)
    assert np.array_equal(w.as_array(), W)


@needs_bf16
def test_gates_of_an_lstm() -> None:
    model = dy.ParameterCollection()
    wx, wh = model.add_parameters((256, 40)), model.add_parameters((256, 64))
    b, x, h = model.add_parameters(256), model.add_parameters(40), model.add_parameters(64)
    with precision("bf16"):
        dy.renew_cg()
        got = dy.vanilla_lstm_gates(x, h, wx, wh, b).npvalue()
    products = [rounded(w.as_array()) @ rounded(v.as_array()) for w, v in ((wx, x), (wh, h))]
    sums = products[0] + products[1] + b.as_array()
    want = 1 / (1 + np.exp(-sums - np.repeat([0, 1, 0, 0], 64)))
    want[192:] = np.tanh(sums[192:])
    close(got, want)


@needs_bf16
def test_gradient_of_collected_products() -> None:
    """The collected gradient of a weight is one product; with fewer than 32 columns it is computed in float32."""
    model = dy.ParameterCollection()
    w = model.parameters_from_numpy(W)
    for columns in (31, 40):
        w.scale_gradient(0)
        with precision("bf16"):
            dy.renew_cg()
            config.set(autobatch=0)
            ys = [w * dy.inputVector(X[:, j]) for j in range(columns)]
            (0.5 * dy.esum([dy.squared_norm(y) for y in ys])).backward()
        slope, x = rounded(W) @ rounded(X[:, :columns]), X[:, :columns].astype(np.float64)
        want = slope @ x.T if columns < 32 else rounded(slope) @ rounded(x).T
        close(w.grad_as_array() / 100, want / 100)


@needs_bf16
def test_what_stays_float32() -> None:
    """Small weights, and products without a weight on the left, have the same bits as without bfloat16."""
    model = dy.ParameterCollection()
    small, w, wide = (model.add_parameters(shape) for shape in ((64, 127), (127, 64), (64, 200)))

    def values() -> list[np.ndarray]:
        dy.renew_cg()
        x = dy.inputTensor(X[:64])
        turned = dy.transpose(w) * dy.inputTensor(np.ones((127, 3)))
        right = dy.transpose(x) * wide
        return [y.npvalue() for y in (small * dy.inputVector(np.ones(127)), turned, right, dy.transpose(x) * x)]

    exact = values()
    with precision("bf16"):
        for got, want in zip(values(), exact):
            assert np.array_equal(got, want)


def losses(w: dy.Parameters, v: dy.Parameters, batch: bool) -> tuple[float, np.ndarray, np.ndarray]:
    """The loss and gradients of a small recurrent network over sequences of different lengths."""
    w.scale_gradient(0)
    v.scale_gradient(0)
    dy.renew_cg()
    config.set(autobatch=int(batch))
    found = []
    for length in (3, 5, 2, 5, 7):
        h = dy.inputVector(X[:96, length])
        for t in range(length):
            h = dy.tanh(w * h + dy.inputVector(X[:96, t]))
            found.append(dy.pickneglogsoftmax(v * h, t))
    loss = dy.esum(found)
    value = loss.value()
    loss.backward()
    return value, w.grad_as_array(), v.grad_as_array()


@pytest.fixture
def recurrent() -> tuple[dy.ParameterCollection, dy.Parameters, dy.Parameters]:
    model = dy.ParameterCollection()
    rng = np.random.default_rng(8)
    w = model.parameters_from_numpy(rng.normal(size=(96, 96)) / 10)
    return model, w, model.parameters_from_numpy(rng.normal(size=(130, 96)) / 10)


@needs_bf16
def test_schedules(recurrent: Any) -> None:
    """Batched, node by node and with cached plans: the same up to the rounding of sums."""
    _, w, v = recurrent
    exact = losses(w, v, True)
    with precision("bf16"):
        plain = losses(w, v, False)
        batched = [losses(w, v, True) for _ in range(4)]
    for got in batched:
        for x, want in zip(got, batched[0]):
            assert np.array_equal(x, want)
        assert got[0] == pytest.approx(plain[0], rel=1e-3)
        for x, want in zip(got[1:], plain[1:]):
            assert np.abs(x - want).max() < 0.01 * np.abs(want).max()
        for x, want in zip(got[1:], exact[1:]):
            assert 1e-5 * np.abs(want).max() < np.abs(x - want).max() < 0.02 * np.abs(want).max()
    again = losses(w, v, True)
    assert again[0] == pytest.approx(exact[0], rel=1e-6)
    assert batched[0][0] != pytest.approx(exact[0], rel=1e-6)


@needs_bf16
def test_gradients_are_those_of_the_loss(recurrent: Any) -> None:
    """Gradients in bfloat16 agree with differences of the loss in float32."""
    _, w, v = recurrent
    with precision("bf16"):
        _, dw, dv = losses(w, v, True)
    for parameter, slope in ((w, dw), (v, dv)):
        step = 1e-2 * slope / np.linalg.norm(slope)
        before = parameter.as_array()
        parameter.set_value(before + step)
        above = losses(w, v, True)[0]
        parameter.set_value(before - step)
        below = losses(w, v, True)[0]
        parameter.set_value(before)
        assert (above - below) / 2e-2 == pytest.approx(np.linalg.norm(slope), rel=0.01)


@needs_bf16
@pytest.mark.parametrize("columns", [1, 40, 700])
def test_threads_do_not_change_bits(columns: int) -> None:
    rng = np.random.default_rng(1)
    model = dy.ParameterCollection()
    w = model.parameters_from_numpy(rng.normal(size=(1030, 515)))
    x = model.parameters_from_numpy(rng.normal(size=(515, columns)))
    found = []
    with precision("bf16"):
        for threads in (1, 2, 3, 7):
            config.set(threads=threads)
            found.append([run(w, x, "matmul"), w.grad_as_array(), x.grad_as_array()])
    for other in found[1:]:
        for got, want in zip(other, found[0]):
            assert np.array_equal(got, want)


@needs_bf16
def test_values_change(recurrent: Any, tmp_path: Path) -> None:
    """Updates are made in float32 on the unrounded values, and products and files use the new values."""
    model, w, v = recurrent
    trainer = dy.SimpleSGDTrainer(model, 1e-3)
    trainer.set_clip_threshold(0)
    x = X[:96]
    with precision("bf16"):
        for _ in range(3):
            before, (_, slope, _) = w.as_array(), losses(w, v, True)
            trainer.update()
            np.testing.assert_allclose(w.as_array(), before - np.float32(1e-3) * slope, rtol=1e-6, atol=1e-7)
            assert not np.array_equal(rounded(w.as_array()), w.as_array())
            dy.renew_cg()
            close((w * dy.inputTensor(x)).npvalue(), rounded(w.as_array()) @ rounded(x))
        model.save(str(tmp_path / "model"))
        values = w.as_array()
        w.zero()
        assert not (w * dy.inputTensor(x)).npvalue().any()
        model.populate(str(tmp_path / "model"))
        assert np.array_equal(w.as_array(), values)
        dy.renew_cg()
        close((w * dy.inputTensor(x)).npvalue(), rounded(values) @ rounded(x))


@needs_bf16
def test_values_that_others_write(recurrent: Any) -> None:
    """Another library may write to shared memory without notice, so no packed form is kept."""
    _, w, _ = recurrent
    x = X[:96]
    with precision("bf16"):
        dy.renew_cg()
        (w * dy.inputTensor(x)).value()
        lent = np.from_dlpack(w)
        address = lent.__array_interface__["data"][0]  # in some versions of NumPy, such an array is read-only
        memory = np.ctypeslib.as_array((ctypes.c_float * lent.size).from_address(address))
        for factor in (2, -1):
            memory *= factor
            dy.renew_cg()
            close((w * dy.inputTensor(x)).npvalue(), rounded(lent) @ rounded(x))


@pytest.mark.usefixtures("nothing_held")
@needs_bf16
def test_without_room_for_panels() -> None:
    """If memory is short, weights are packed for each product, with the same bits."""
    model = dy.ParameterCollection()
    w = model.add_parameters((1024, 1024))  # 2 MiB in panels
    x = np.random.default_rng(2).normal(size=1024)

    def product() -> np.ndarray:
        dy.renew_cg()
        return (w * dy.inputVector(x)).npvalue()

    with precision("bf16"):
        product()
        arena.give_back()
        arena.set_limit(arena.used_bytes() + 2**20)
        try:
            without = product()
            used = arena.used_bytes()
        finally:
            arena.set_limit(0)
        assert np.array_equal(product(), without)
        assert arena.used_bytes() >= used + 2**21


# -- the setting, and where it is refused ----------------------------------------------------------------


SHOW = "from dynet_cy import config; print(config.get()['precision'])"


@pytest.mark.parametrize("value", ["half", "BF16", "", 16, True])
def test_it_is_one_of_three(value: object) -> None:
    with pytest.raises(ValueError, match=rf"precision must be 'float32', 'bf16' or 'tf32', not {value!r}"):
        config.set(precision=value)  # type: ignore[arg-type]
    assert config.get()["precision"] == "float32"


@needs_bf16
def test_set_and_get(tmp_path: Path) -> None:
    params = dy.DynetParams()
    params.set_precision("bf16")
    params.init()
    assert config.get()["precision"] == "bf16"
    params.from_config({"precision": "float32"})
    params.init()
    assert config.get()["precision"] == "float32"
    environment = {"DYNET_CY_ISA": "avx512"}
    assert run_python(tmp_path, SHOW, "--dynet-precision", "bf16", **environment).stdout == "bf16\n"
    assert run_python(tmp_path, SHOW, DYNET_CY_PRECISION="bf16", **environment).stdout == "bf16\n"
    done = run_python(tmp_path, SHOW, "--dynet-precision=float32", DYNET_CY_PRECISION="bf16", **environment)
    assert done.stdout == "float32\n"


def test_tf32_is_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "count_gpus", lambda: 0)
    before = config.get()
    with pytest.raises(RuntimeError, match="precision='tf32': only GPUs have it, and there is none"):
        config.set(precision="tf32", threads=3)
    assert config.get() == before


REFUSED = """
import numpy as np
import dynet_cy as dy
from dynet_cy import config

before = config.get()
try:
    config.set(precision="bf16", threads=3, random_seed=7)
except RuntimeError as error:
    print(error)
assert config.get() == before
w = dy.ParameterCollection().parameters_from_numpy(np.full((100, 100), 1 + 2**-10))
assert (w * dy.inputVector(np.ones(100))).npvalue()[0] == 100 + 100 * 2**-10
config.set(precision="float32")
"""


def test_kernels_without_it_refuse(tmp_path: Path) -> None:
    """The error says what is missing, and no setting changes."""
    done = run_python(tmp_path, REFUSED, DYNET_CY_ISA="avx2")
    assert not done.returncode, done.stderr
    assert done.stdout.startswith("precision='bf16': ")
    assert "AVX-512" in done.stdout
    done = run_python(tmp_path, SHOW, "--dynet-precision", "bf16", DYNET_CY_ISA="baseline")
    assert done.returncode
    assert "RuntimeError: precision='bf16': " in done.stderr
