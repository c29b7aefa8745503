"""Custom ops with kernels in CUDA: their numbers are those of NumPy in float64, and errors name the line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.gpu import driver
from dynet_cy.gpu.driver import GpuError
from dynet_cy.graph.expressions import set_autobatching

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "custom-op.md"
EXAMPLE = ROOT / "examples" / "custom_op"
PROGRAM = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]
KERNELS = PROGRAM.partition('KERNELS = """')[2].partition('"""')[0]


def rbf_forward(x: Any, c: Any, *, gamma: float = 1.0) -> Any:
    return np.exp(-gamma * ((x[:, None] - c) ** 2).sum(axis=0))


def rbf_backward(dy: Any, y: Any, x: Any, c: Any, *, gamma: float = 1.0) -> Any:
    slope = -2 * gamma * dy * y * (x[:, None] - c)
    return slope.sum(axis=1), -slope


def scale_backward(dy: Any, y: Any, x: Any, w: Any, *, power: int = 2, shift: float = 0.5) -> Any:
    dx, dw = dy * power * x ** (power - 1) * w, dy * (x**power + shift)
    dw = dw.sum(axis=tuple(range(dw.ndim - w.ndim)))
    over = tuple(a for a, n in enumerate(w.shape[:-1]) if n == 1 < dw.shape[a])
    return dx, dw.sum(axis=over, keepdims=True)


# Rows by blocks, with the sum over a block, and a gradient that several threads add to.
SOFTMAX = """
__device__ float weight(In x, In w, size_t i, size_t b) { return expf(x(i, b)) * w(0, b); }

__global__ void forward(In x, In w, Out y) {
    __shared__ float part[32];
    for (ROWS(b, y.batch)) {
        float total = 0;
        for (LANES(i, x.size)) total += weight(x, w, i, b);
        total = block_sum(total, part);
        for (LANES(i, x.size)) y.element(b)[i] = weight(x, w, i, b) / (1 + total);
    }
}

__global__ void backward(In dy, In y, In x, In w, Out dx, Out dw) {
    __shared__ float part[32];
    for (ROWS(b, y.batch)) {
        float total = 0;
        for (LANES(i, x.size)) total += dy(i, b) * y(i, b);
        total = block_sum(total, part);
        for (LANES(i, x.size)) {
            float slope = y(i, b) * (dy(i, b) - total);
            dx(i, b) = slope;
            atomicAdd(&dw(0, b), slope / w(0, b));
        }
    }
}
"""


def weights(x: Any, w: Any) -> Any:
    e = np.exp(x) * w
    return e / (1 + e.sum(axis=0, keepdims=True))


def weights_backward(dy: Any, y: Any, x: Any, w: Any) -> Any:
    dx = y * (dy - (dy * y).sum(axis=0, keepdims=True))
    return dx, (dx / w).sum(axis=0, keepdims=True)


RBF = (rbf_forward, rbf_backward, lambda x, c, **_: (c[1],))
SCALED = (lambda x, w, *, power=2, shift=0.5: (x**power + shift) * w, scale_backward, None)
SCALE = {
    "y": "(powf(x, power) + shift) * w",
    "dx": "dy * power * powf(x, power - 1) * w",
    "dw": "dy * (powf(x, power) + shift)",
}


class Row(NamedTuple):
    """An op, the shapes of its arguments, and keyword arguments."""

    op: Callable[..., Any]
    functions: tuple[Any, ...]
    x: tuple[int, ...]
    w: tuple[int, ...]
    keywords: dict[str, Any]


rbf = dy.custom_op("rbf", *RBF, cuda=KERNELS)
scaled = dy.custom_op("scaled", *SCALED, cuda=SCALE)
OPS = {
    "kernels": Row(rbf, RBF, (4,), (4, 3), {"gamma": 0.3}),
    "a default": Row(rbf, RBF, (2,), (2, 70), {}),
    "blocks": Row(
        dy.custom_op("weights", weights, weights_backward, cuda=SOFTMAX), (weights, weights_backward), (40,), (1,), {}
    ),
    "expressions": Row(scaled, SCALED, (3, 2), (3, 2), {"power": 3}),
    "a repeated axis": Row(scaled, SCALED, (3, 2), (1, 2), {}),
    "fewer axes": Row(scaled, SCALED, (3, 2), (2,), {}),
    "a repeated scalar": Row(scaled, SCALED, (3, 2), (1, 1), {}),
}


def numbers_of(op: Callable[..., Any], xs: list[Any], w: Any, keywords: dict[str, Any]) -> list[Any]:
    """The loss, and the gradients of w, a parameter, and of the inputs."""
    model = dy.ParameterCollection()
    p = model.parameters_from_numpy(w)
    dy.renew_cg()
    inputs = [dy.inputTensor(x, batched=True) for x in xs]
    loss = dy.sum_batches(dy.esum([dy.sum_elems(dy.square(op(x, p, **keywords))) for x in inputs]))
    value = loss.value()
    loss.backward(full=True)
    return [value, p.grad_as_array().copy(), *[x.gradient() for x in inputs]]


def in_float64(row: Row, xs: list[Any], w: Any) -> list[Any]:
    forward, backward = row.functions[:2]
    value, dw, dxs = 0.0, np.zeros(w.shape), []
    for x in xs:
        x64, w64 = np.float64(np.float32(x)), np.float64(np.float32(w))[..., None]
        y = forward(x64, w64, **row.keywords)
        dx, grad = backward(2 * y, y, x64, w64, **row.keywords)
        value += (y**2).sum()
        dw += grad.sum(axis=-1)
        dxs.append(dx)
    return [value, dw, *dxs]


def made(name: str, rng: np.random.Generator, batch: int, n: int = 4) -> tuple[Row, list[Any], Any]:
    row = OPS[name]
    return row, [rng.uniform(0.1, 1, (*row.x, batch)) for _ in range(n)], rng.uniform(0.1, 1, row.w)


def assert_equal(found: list[Any], desired: list[Any]) -> None:
    for x, y in zip(found, desired):
        np.testing.assert_allclose(np.reshape(x, np.shape(y)), y, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", OPS)
def test_values_and_gradients(on_device: str, on_the_cpu_again: None, rng: np.random.Generator, name: str) -> None:
    """Alone, in minibatches, and batched by every schedule; again, with the plan and the launches of the first time."""
    for strategy in (0, 1, 2):
        set_autobatching(strategy)
        for batch in (1, 3):
            row, xs, w = made(name, rng, batch)
            for _ in range(3):
                assert_equal(numbers_of(row.op, xs, w, row.keywords), in_float64(row, xs, w))


def test_one_launch_for_all_nodes_and_no_copy(on_device: str, rng: np.random.Generator) -> None:
    """Nodes of equal keywords run as one launch, and nothing is fetched but the result."""
    row, xs, w = made("expressions", rng, 1, n=8)
    p = dy.ParameterCollection().parameters_from_numpy(w)
    counts = []
    for n in (2, 8):
        dy.renew_cg()
        ys = [dy.inputTensor(x, batched=True) for x in xs[:n]]
        total = dy.sum_elems(dy.esum([row.op(y, p) for y in ys]))
        before = engine.stats("gpu.0")
        total.value()
        after = engine.stats("gpu.0")
        counts.append((after["launches"] - before["launches"], after["fetches"] - before["fetches"]))
    assert counts[0] == counts[1]
    assert counts[0][1] == 1


def test_checkpoints(on_device: str, rng: np.random.Generator) -> None:
    for name in ("kernels", "expressions"):
        row, xs, w = made(name, rng, 3)

        def op(x: dy.Expression, p: dy.Expression, of: Row = row) -> dy.Expression:
            return dy.tanh(of.op(x, p, **of.keywords))

        found = numbers_of(lambda x, p, op=op: dy.checkpoint(op, x, p), xs, w, {})
        assert_equal(found, numbers_of(op, xs, w, {}))


def test_several_devices(device: str, on_the_cpu_again: None, rng: np.random.Generator) -> None:
    """The same op on the CPU and on both devices, in one graph."""
    if driver.device_count() < 2:
        pytest.skip("needs two devices")
    row, (x,), w = made("kernels", rng, 2, n=1)
    dy.renew_cg()
    e, p = dy.inputTensor(x, batched=True), dy.ParameterCollection().parameters_from_numpy(w)
    parts = [
        dy.to_device(row.op(dy.to_device(e, there), dy.to_device(p, there), **row.keywords), "CPU")
        for there in ("CPU", "GPU:0", "GPU:1")
    ]
    loss = dy.sum_batches(dy.sum_elems(dy.square(dy.esum(parts))))
    value, dw, dx = in_float64(row, [x], w)
    assert loss.value() == pytest.approx(9 * value, rel=1e-5)
    loss.backward(full=True)
    assert_equal([p.grad_as_array(), e.gradient()], [9 * dw, 9 * dx])


def test_training(on_device: str) -> None:
    """A pass that repeats becomes one launch, which sees new values of parameters and inputs."""
    losses: dict[str, list[float]] = {}
    for there in ("CPU", "GPU:0"):
        model = dy.ParameterCollection()
        start = np.arange(12).reshape(4, 3) / 10
        c = model.add_parameters((4, 3), init=dy.NumpyInitializer(start.astype(np.float32)), device=there)
        trainer = dy.SimpleSGDTrainer(model, 0.05)
        for step in range(6):
            dy.renew_cg()
            x = dy.inputVector([1, -1, 0.5, 0.1 * step], device=there)
            loss = dy.squared_norm(rbf(x, c, gamma=0.5) - dy.inputVector([0.1, 0.2, 0.3], device=there))
            losses.setdefault(there, []).append(loss.value())
            loss.backward()
            trainer.update()
    np.testing.assert_allclose(losses["GPU:0"], losses["CPU"], rtol=1e-4)


def test_numbers(on_device: str) -> None:
    """Kernels declare the types of keyword arguments; values may be any numbers."""
    kernel = "void forward(In x, Out y, double a, bool b, int c) { for (EACH(k, 2)) y.v[k] = x.v[k] * a + b + c; }"
    op = dy.custom_op("numbers", lambda x, *, a, b=True, c=1: x * a + b + c, cuda=kernel)
    dy.renew_cg()
    x = dy.inputVector([1, 2])
    for keywords in ({"a": 2}, {"a": 0.5, "b": False}, {"a": np.float32(3), "c": np.int64(7)}):
        desired = np.array([1, 2]) * keywords["a"] + keywords.get("b", True) + keywords.get("c", 1)
        np.testing.assert_array_equal(op(x, **keywords).npvalue(), desired)
    for wrong, message in (
        ({}, "numbers: .* get a as a number, which is not given"),
        ({"a": "no"}, "which 'no' is not"),
    ):
        with pytest.raises(TypeError, match=message):
            op(x, **wrong)


def test_without_a_gradient(on_device: str) -> None:
    """The gradient is an error where an op has none on the device; that of one argument may be zeros."""
    dy.renew_cg()
    a, b = dy.inputVector([1, 2]), dy.inputVector([3, 4])
    op = dy.custom_op("forward_only", lambda a, b: a * b, lambda dy, y, a, b: (b * dy, a * dy), cuda={"y": "a * b"})
    loss = dy.sum_elems(op(a, b))
    assert loss.value() == 11
    with pytest.raises(NotImplementedError, match="forward_only: its gradient is not .* GPU:0 yet; give custom_op its"):
        loss.backward(full=True)
    op = dy.custom_op(
        "one_gradient", lambda a, b: a * b, lambda dy, y, a, b: (None, a * dy), cuda={"y": "a * b", "db": "a * dy"}
    )
    loss = dy.sum_elems(op(a, b))
    loss.backward(full=True)
    np.testing.assert_array_equal([a.gradient(), b.gradient()], [[0, 0], [1, 2]])


@pytest.mark.parametrize(
    ("cuda", "message"),
    [
        ({"y": "x +\n nothing"}, r"wrong, cuda\['y'\]:2.*nothing"),
        ("void forward(In x, Out y) {\n x(0, 0) = 1; }", r"custom_op wrong:2.*read-only"),
        ("void forward(In x, Out y, int n) {}", r"custom_op wrong calls forward\(In x, Out y\)"),
        ("#include <nowhere.h>\nvoid forward(In x, Out y) {}", "custom_op wrong:1.*nowhere.h"),
    ],
)
def test_what_does_not_compile(on_device: str, cuda: Any, message: str) -> None:
    """The error names the op and the line; graph and process go on, and the op works with another source."""
    dy.renew_cg()
    x = dy.inputVector([1, 2])
    y = dy.custom_op("wrong", lambda x: x, lambda dy, y, x: dy, cuda=cuda)(dy.tanh(x))
    for _ in range(2 if isinstance(cuda, dict) else 1):
        with pytest.raises(GpuError, match=rf"(?s)kernels of wrong do not compile.*{message}"):
            y.value()
    right = dy.custom_op("wrong", lambda x: 2 * x, lambda dy, y, x: 2 * dy, cuda={"y": "2 * x", "dx": "2 * dy"})
    np.testing.assert_array_equal(right(x).npvalue(), [2, 4])


def test_shapes(on_device: str) -> None:
    op = dy.custom_op("added", lambda a, b: a + b, cuda={"y": "a + b"})
    dy.renew_cg()
    with pytest.raises(dy.DimensionError, match=r"added: an expression .* but argument b has shape \(3,\)"):
        op(dy.inputVector([1, 2]), dy.inputVector([1, 2, 3]))
    empty = dy.sum_elems(op(dy.zeros((0,)), dy.zeros((0,))))
    assert empty.value() == 0


def test_anomalies(on_device: str) -> None:
    op = dy.custom_op("root", np.sqrt, lambda dy, y, x: dy / (2 * y), cuda={"y": "sqrtf(x0)", "dx0": "dy / (2 * y)"})
    dy.renew_cg()
    with dy.detect_anomaly(), pytest.raises(dy.AnomalyError, match="root"):
        op(dy.inputVector([-1, 1])).value()
    assert op(dy.inputVector([4, 9])).value() == [2, 3]


def run(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_compiled(device: str, tmp_path: Path) -> None:
    """A compiled op in another package, whose attribute is a number of its kernels."""
    pytest.importorskip("Cython")
    pytest.importorskip("setuptools")
    folder = tmp_path / "package"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "build", "*.so"))
    printed = []
    for command in (["setup.py", "build_ext", "--inplace"], ["train.py"], ["train.py", "--dynet-gpu"]):
        printed.append(run(folder, *command))
    assert printed[1] == printed[2]


def test_program_of_the_page(device: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    printed = []
    for option in ([], ["--dynet-gpu"]):
        printed.append(run(tmp_path, "program.py", *option))
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 4
