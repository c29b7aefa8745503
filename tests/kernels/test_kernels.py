"""Every kernel of every instruction set, compared with NumPy in float64, at lengths around the vector widths."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from ctypes import c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

import elementwise
import kernel_tables as tables
import numpy as np
import pytest
import trainer_reference
from elementwise import logistic

import dynet_cy as dy
from dynet_cy.kernels import kernels, product

TABLES = tables.tables()
STATES = kernels.optim_states()
RULES_FILE = Path(__file__).parents[2] / "include" / "dynet_cy" / "optim.def"
# For each rule, what several updates with a gradient of zero amount to.
KINDS = dict(re.findall(r"^OPTIM\((\w+),.*?(DY_[A-Z]+), \{", RULES_FILE.read_text(), re.MULTILINE | re.DOTALL))
LENGTHS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 131]
GUARD = 12345.0
MIXED = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1e-40, 3e38])

N, P, F, I = c_size_t, c_void_p, c_float, c_int  # noqa: E741
# For the members that are arrays; kernels.def has the types of the others.
SIGNATURES, RESULTS = tables.signatures()
SIGNATURES |= {
    "unary_fwd": (N, P, F, F, P),
    "unary_bwd": (N, P, P, P, F, F, P, I),
    "binary_fwd": (N, P, I, P, I, P),
    "binary_bwd_a": (N, P, I, P, I, P, P, P, I),
    "binary_bwd_b": (N, P, I, P, I, P, P, P, I),
    "optim": (N, P, P, P, P, P, P),
    "idle": (N, P, P, P, P, P, P),
    "rng": (c_uint64, c_uint32, c_uint64, N, N, F, F, P),
}


class Isa:
    """The kernels of one instruction set as Python callables; arrays are passed by address."""

    def __init__(self, name: str) -> None:
        self.addresses = TABLES[name]

    def __getitem__(self, name: str):
        kind = name.split(".")[0]
        function = ctypes.CFUNCTYPE(RESULTS.get(kind), *SIGNATURES[kind])(self.addresses[name])

        def call(*args):
            return function(*[a.ctypes.data if isinstance(a, np.ndarray) else a for a in args])

        return call

    def __getattr__(self, name: str):
        return self[name]


@pytest.fixture(params=sorted(TABLES))
def k(request: pytest.FixtureRequest) -> Isa:
    return Isa(request.param)


def floats(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).uniform(low, high, shape)
    return np.asfortranarray(values.astype(np.float32))


class Output:
    """A float array between guards that show writes outside it."""

    def __init__(self, *shape: int, value: np.ndarray | float = math.nan) -> None:
        size = math.prod(shape)
        self.memory = np.full(size + 32, GUARD, np.float32)
        self.array = self.memory[16 : 16 + size].reshape(shape, order="F")
        self.array[...] = value

    def checked(self) -> np.ndarray:
        assert (self.memory[:16] == GUARD).all()
        assert (self.memory[len(self.memory) - 16 :] == GUARD).all()
        return self.array.astype(np.float64)


def close(got, want, tolerance: float = 3e-6) -> None:
    np.testing.assert_allclose(np.asarray(got), want, rtol=tolerance, atol=tolerance)


UNARY = {row.name: row for row in elementwise.UNARY}
BINARY = {row.name: row.f for row in elementwise.BINARY}


def slope(function, x):
    return (function(x + 1e-6) - function(x - 1e-6)) / 2e-6


def test_kernels_for_tests_only() -> None:
    if not tables.compiler():
        pytest.skip("needs a C compiler")
    assert "scalar" in TABLES
    if "avx2" in TABLES and not tables.SANITIZED:
        assert len({"wide", "avx512"} & TABLES.keys()) == 1, "there must be one with 16 lanes"


def test_all_rows_are_tested() -> None:
    for names in TABLES.values():
        assert {n.split(".")[1] for n in names if n.startswith("unary_fwd.")} == set(UNARY)
        assert {n.split(".")[1] for n in names if n.startswith("binary_fwd.")} == set(BINARY)
        assert {n.split(".")[0] for n in names} == set(SIGNATURES)
    assert {"baseline", *tables.names()} <= set(TABLES)
    assert kernels.isa() in TABLES
    assert "OpenBLAS" in kernels.openblas_config()


@pytest.mark.parametrize("name", UNARY)
def test_unary(k: Isa, name: str) -> None:
    row = UNARY[name]
    low, high = row.low, row.high
    given = [float(np.float32(p)) for p in row.parameters]
    p, q = [*given, 0.0, 0.0][:2]
    for n in LENGTHS:
        x, dy = floats(n, seed=1, low=low, high=high), floats(n, seed=2)
        wide = x.astype(np.float64)
        y = Output(n)
        k["unary_fwd." + name](n, x, p, q, y.array)
        close(y.checked(), row.f(wide, *given))
        want = slope(lambda t: row.f(t, *given), wide) * dy
        for acc in (0, 1):
            dx = Output(n, value=0.25 if acc else math.nan)
            k["unary_bwd." + name](n, x, y.array, dy, p, q, dx.array, acc)
            close(dx.checked(), want + 0.25 * acc, 2e-5)


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    step = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    return np.abs(got.astype(np.float64) - want) / step


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("exp", -103, 88.7),
        ("expm1", -20, 88),
        ("tanh", -10, 10),
        ("logistic", -87, 30),
        ("log", 1e-30, 3e38),
        ("log", 0.5, 2),
    ],
)
def test_hot_functions_within_4_ulp(k: Isa, name: str, low: float, high: float) -> None:
    x = np.linspace(low, high, 200_001).astype(np.float32)
    x = np.concatenate([x, np.geomspace(1e-30, 1, 5000).astype(np.float32)]) if low < 0 else x
    y = np.empty_like(x)
    k["unary_fwd." + name](len(x), x, 0, 0, y)
    assert ulps(y, UNARY[name].f(x.astype(np.float64))).max() <= 4


# Functions that are vectorized for all arguments: the largest error in units in the last place, from -inf to inf.
WITHIN = {"erf": 2.0, "sin": 2.0, "cos": 2.0, "tan": 4.0, "asin": 2.0, "acos": 2.0, "atan": 2.0, "sinh": 2.5}
WITHIN |= {"cosh": 2.0, "asinh": 2.5, "acosh": 2.5, "atanh": 2.5, "pow_const": 1.5, "log1p": 2.0}


@pytest.mark.parametrize("name", WITHIN)
def test_errors_over_all_numbers(k: Isa, name: str) -> None:
    row, draws = UNARY[name], np.random.default_rng(0)
    anything = draws.integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    anything[np.isnan(anything)] = math.nan  # the signalling ones raised to 0 give nan
    usual = draws.uniform(row.low, row.high, 20_000).astype(np.float32)
    x = np.concatenate([anything, usual, MIXED.astype(np.float32), [np.float32(12000.0001), np.float32(-89.4)]])
    x = x.astype(np.float32)
    for p in (2.7, -37.0, 0.31, 3.0, 0.0) if name == "pow_const" else (0.0,):
        given = (float(np.float32(p)),) if row.parameters else ()
        y = np.empty_like(x)
        k["unary_fwd." + name](len(x), x, *given, *[0.0] * (2 - len(given)), y)
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            want = wide ** given[0] if given else row.f(wide)
            rounded = want.astype(np.float32)
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(y[~finite], rounded[~finite])
        assert ulps(y[finite], want[finite]).max() <= WITHIN[name]


@pytest.mark.parametrize("name", ["sin", "cos", "tan", "pow_const"])
def test_lanes_do_not_depend_on_their_neighbours(k: Isa, name: str) -> None:
    """Arguments that the C library takes over leave the others of a vector as they are."""
    x = floats(67, seed=3, low=0.1, high=2.0)
    mixed, y, z = x.copy(), np.empty_like(x), np.empty_like(x)
    mixed[1::2] = [-3e7, math.inf, 0.0] * 11
    k["unary_fwd." + name](len(x), x, 2.7, 0, y)
    k["unary_fwd." + name](len(x), mixed, 2.7, 0, z)
    np.testing.assert_array_equal(y[::2], z[::2])


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("exp", np.exp),
        ("expm1", np.expm1),
        ("tanh", np.tanh),
        ("logistic", logistic),
        ("log", np.log),
        ("log1p", np.log1p),
        ("sqrt", np.sqrt),
        ("softplus", lambda x: np.logaddexp(0, x)),
        ("log_sigmoid", lambda x: -np.logaddexp(0, -x)),
        ("rectify", lambda x: np.maximum(x, 0)),
        ("elu", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
        ("clip", lambda x: np.clip(x, 0.5, 0.75)),
    ],
)
def test_special_values(k: Isa, name: str, want) -> None:
    x = np.concatenate([MIXED, [89.0, 150.0, -104.0, -150.0, 88.5]]).astype(np.float32)
    y = np.empty_like(x)
    k["unary_fwd." + name](len(x), x, 0.5, 0.75, y)
    with np.errstate(all="ignore"):
        expected = want(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=2e-38)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("strides", [(1, 1), (0, 1), (1, 0), (0, 0)])
def test_binary(k: Isa, name: str, strides: tuple[int, int]) -> None:
    sa, sb = strides
    function = BINARY[name]
    for n in LENGTHS:
        a = floats(n if sa else 1, seed=1, low=0.1, high=0.9)
        b = floats(n if sb else 1, seed=2, low=0.1, high=0.9)
        dy = floats(n, seed=3)
        wa, wb = (np.broadcast_to(t, n).astype(np.float64) for t in (a, b))
        y = Output(n)
        k["binary_fwd." + name](n, a, sa, b, sb, y.array)
        close(y.checked(), function(wa, wb))
        da = slope(lambda t, wb=wb: function(t, wb), wa) * dy
        db = slope(lambda t, wa=wa: function(wa, t), wb) * dy
        for side, stride, want in (("a", sa, da), ("b", sb, db)):
            want = want if stride else want.sum(keepdims=True)
            for acc in (0, 1):
                dx = Output(len(want), value=0.25 if acc else math.nan)
                k[f"binary_bwd_{side}.{name}"](n, a, sa, b, sb, y.array, dy, dx.array, acc)
                close(dx.checked(), want + 0.25 * acc, 2e-5)


def test_binary_special_cases(k: Isa) -> None:
    a, b = np.array([1.0, 2.0, math.nan], np.float32), np.array([1.0, math.nan, 2.0], np.float32)
    one = np.ones(3, np.float32)
    for name in ("min", "max"):
        y, da, db = (np.empty(3, np.float32) for _ in range(3))
        k["binary_fwd." + name](3, a, 1, b, 1, y)
        np.testing.assert_array_equal(y, [1, math.nan, math.nan])
        k["binary_bwd_a." + name](3, a, 1, b, 1, y, one, da, 0)
        k["binary_bwd_b." + name](3, a, 1, b, 1, y, one, db, 0)
        assert (da[0], db[0]) == (0, 1)  # if the arguments are equal, the second
    a, b = np.array([0, 1, 1], np.float32), np.array([0, 1, 0], np.float32)
    k["binary_fwd.binary_log_loss"](3, a, 1, b, 1, y)
    k["binary_bwd_a.binary_log_loss"](3, a, 1, b, 1, y, one, da, 0)
    close(y, [0, 0, 87.33654])
    close(da, [0, 0, 8388608.0])


@pytest.mark.parametrize("n", LENGTHS)
def test_flat(k: Isa, n: int) -> None:
    x, z = floats(n, seed=1), floats(n, seed=2)
    wide = x.astype(np.float64)
    y = Output(n)
    k.fill(n, 1.5, y.array)
    close(y.checked(), np.full(n, 1.5))
    k.scale(n, -2.5, x, y.array)
    close(y.checked(), -2.5 * wide)
    k.axpy(n, 0.5, z, y.array)
    close(y.checked(), -2.5 * wide + 0.5 * z)
    k.add(n, x, y.array)
    close(y.checked(), -1.5 * wide + 0.5 * z)
    close(k.dot(n, x, z), wide @ z, 2e-5)
    close(k.sum(n, x), wide.sum(), 2e-5)
    close(k.sumsq(n, x), wide @ wide, 2e-5)
    assert k.all_finite(n, x)
    assert k.max(n, x) == (x.max() if n else -math.inf)
    assert k.argmax(n, x) == (x.argmax() if n else 0)
    for i in range(n):
        other = x - 5
        assert k.max(n, other) == other.max()
        for value in (math.nan, math.inf, -math.inf, 9.0):
            other[i] = value
            assert k.all_finite(n, other) == np.isfinite(value)
            np.testing.assert_equal(k.max(n, other), other.max())
            assert k.argmax(n, other) == other.argmax()
            for above, within in ((1, np.less_equal), (0, np.greater_equal)):
                for limit in (-9.0, float(other[n // 2]), 8.0):
                    found = np.flatnonzero(~within(other, np.float32(limit)))
                    assert k.next_beyond(n, other, limit, above) == (found[0] if len(found) else n)


@pytest.mark.parametrize("rows", [1, 3, 8, 13, 33])
@pytest.mark.parametrize("acc", [0, 1])
def test_columns(k: Isa, rows: int, acc: int) -> None:
    cols = 3
    x, dy, b = floats(rows, cols, seed=1, high=9), floats(rows, cols, seed=2), floats(rows, seed=3)
    wide = x.astype(np.float64)
    old = 0.25 * acc
    lse = np.log(np.exp(wide).sum(0))
    soft = np.exp(wide - lse)
    y = Output(rows, cols)
    dx = Output(rows, cols, value=old)
    k.repeat(rows, cols, b, y.array)
    close(y.checked(), np.repeat(b[:, None], cols, 1))
    k.bias_add(rows, cols, b, x, y.array)
    close(y.checked(), wide + b[:, None])
    db = Output(rows, value=old)
    k.bias_bwd(rows, cols, dy, db.array, acc)
    close(db.checked(), dy.sum(1) + old)
    k.softmax(rows, 1, cols, x, y.array, None)
    close(y.checked(), soft)
    k.softmax_bwd(rows, 1, cols, x, y.array, dy, dx.array, None, acc)
    close(dx.checked(), soft * (dy - (soft * dy).sum(0)) + old)
    dx.array[...] = old
    k.log_softmax(rows, 1, cols, x, y.array, None)
    close(y.checked(), wide - lse)
    k.log_softmax_bwd(rows, 1, cols, x, y.array, dy, dx.array, None, acc)
    close(dx.checked(), dy - soft * dy.sum(0) + old, 1e-5)
    pairs, dz = Output(2, cols), floats(cols, seed=4)
    dx.array[...] = old
    k.logsumexp(rows, 1, cols, x, pairs.array, None)
    top, total = pairs.checked()
    np.testing.assert_array_equal(top, x.max(0))
    close(top + np.log(total), lse)
    k.logsumexp_bwd(rows, 1, cols, x, pairs.array, dz, dx.array, None, acc)
    close(dx.checked(), soft * dz + old)


@pytest.mark.parametrize("length", [8, 9, 40, 1025])
@pytest.mark.parametrize("acc", [0, 1])
def test_softmax_of_lines_that_share_places_of_a_cache(k: Isa, length: int, acc: int) -> None:
    """Elements that are 2 KiB apart: the same bits as for lines at another distance."""
    found = []
    for n in (512, 520):
        x, dy, old = (np.zeros((n, length), np.float32, order="F") for _ in range(3))
        for i, array in enumerate((x, dy, old)):
            array[:512] = floats(512, length, seed=i)
        y, dx, work = Output(n, length), Output(n, length, value=old), Output(4 * 16 * length)
        k.softmax(length, n, n, x, y.array, work.array)
        k.softmax_bwd(length, n, n, x, y.array, dy, dx.array, work.array, acc)
        work.checked()
        found.append((y.checked()[:512].tobytes(), dx.checked()[:512].tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("offset", [0, 1e3, -1e4, 1e6, -1e7])
@pytest.mark.parametrize("rows", [1, 3, 17, 70])
def test_log_sums_of_large_scores(k: Isa, rows: int, offset: float) -> None:
    """Next to a large maximum, the logarithm of the sum of exponentials keeps its digits."""
    x = floats(rows, 3, seed=1, high=3) + np.float32(offset)
    wide, dy = x.astype(np.float64), floats(rows, 3, seed=2)
    top = wide.max(0)
    log_sum = np.log(np.exp(wide - top).sum(0))
    soft = np.exp(wide - top - log_sum)
    y, dx, pairs = Output(rows, 3), Output(rows, 3), Output(2, 3)
    k.log_softmax(rows, 1, 3, x, y.array, None)
    np.testing.assert_allclose(y.checked(), wide - top - log_sum, rtol=3e-7, atol=3e-7)
    k.log_softmax_bwd(rows, 1, 3, x, y.array, dy, dx.array, None, 0)
    np.testing.assert_allclose(dx.checked(), dy - soft * dy.sum(0, dtype=np.float64), rtol=1e-6, atol=1e-6)
    k.logsumexp(rows, 1, 3, x, pairs.array, None)
    np.testing.assert_allclose(np.log(pairs.checked()[1]), log_sum, rtol=3e-7, atol=3e-7)
    k.logsumexp_bwd(rows, 1, 3, x, pairs.array, np.ones(3, np.float32), dx.array, None, 0)
    np.testing.assert_allclose(dx.checked(), soft, atol=3e-7)
    k.exp_less(rows, 3, pairs.array, x)
    np.testing.assert_allclose(x, soft, atol=3e-7)


@pytest.mark.parametrize("cols", [1, 4, 5])
@pytest.mark.parametrize("rows", [1, 3, 17, 70])
def test_softmax_in_parts(k: Isa, rows: int, cols: int) -> None:
    x = floats(rows, cols, seed=1, high=90)
    x[rows // 2 :, 0] = -np.inf
    x[0, -1] = -np.inf
    top, total, factor = Output(cols, value=-np.inf), Output(cols, value=0), Output(cols)
    parts = np.array_split(x, min(rows, 3))
    made = []
    for part in parts:
        y = Output(*part.shape)
        y.array[...] = part
        k.softmax_part(*part.shape, y.array, top.array, total.array, factor.array)
        made = [old * factor.checked() for old in made] + [y.checked().copy()]
    wide = x.astype(np.float64)
    most = wide.max(0)
    terms = np.exp(wide - np.where(np.isinf(most), 0, most))
    close(top.checked(), most)
    close(total.checked(), terms.sum(0))
    close(np.concatenate(made), terms)
    z = floats(cols, seed=2, low=80, high=95)
    shares = floats(cols, seed=4, low=1, high=3)
    y = Output(rows, cols)
    y.array[...] = x
    k.exp_less(rows, cols, np.array([z, shares], order="F"), y.array)
    np.testing.assert_allclose(y.checked(), np.exp(wide - z) / shares, rtol=1e-5, atol=1e-35)
    slope = Output(rows, cols)
    slope.array[...] = before = floats(rows, cols, seed=3)
    weights = np.asfortranarray(terms, np.float32)
    k.softmax_part_bwd(rows, cols, weights, z, slope.array)
    close(slope.checked(), terms * (before.astype(np.float64) - z))


def test_logsumexp_of_infinities(k: Isa) -> None:
    inf = math.inf
    x = np.array([[-inf, -inf], [inf, 1], [1e4, -inf], [math.nan, 1]], np.float32).T.copy(order="F")
    pairs = np.empty((2, 4), np.float32, order="F")
    k.logsumexp(2, 1, 4, x, pairs, None)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(pairs[0] + np.log(pairs[1]), [-inf, inf, 1e4, math.nan])
    y, dx = np.empty((2, 4), np.float32, order="F"), np.empty((2, 4), np.float32, order="F")
    k.logsumexp_bwd(2, 1, 4, x, pairs, np.ones(4, np.float32), dx, None, 0)
    k.log_softmax(2, 1, 4, x, y, None)
    np.testing.assert_allclose(dx.T, [[0] * 2, [math.nan, 0], [1, 0], [math.nan] * 2])
    np.testing.assert_allclose(y.T, [[math.nan] * 2, [math.nan, -inf], [0, -inf], [math.nan] * 2])


@pytest.mark.parametrize("among", [700, 5, 1], ids=["rare", "frequent", "one"])
@pytest.mark.parametrize("lines", [1, 2, 5, 8])
def test_sums_by_index_in_lines(k: Isa, lines: int, among: int) -> None:
    """Each line adds its numbers at the same indices; those that are very frequent are added in blocks."""
    rng = np.random.default_rng([lines, among])
    for count, length in ((300, 700), (5000, 701)):
        items = rng.integers(0, among, count, dtype=np.uint32)
        dy = np.asfortranarray(rng.integers(-8, 9, (count, lines)).astype(np.float32))
        before = rng.integers(-8, 9, (length, lines)).astype(np.float32)
        x, want = Output(length, lines, value=before), before.astype(np.float64)
        np.add.at(want, items, dy)
        k.add_lines(lines, count, length, items, dy, x.array)
        np.testing.assert_array_equal(x.checked(), want)


@pytest.mark.parametrize("h", [1, 5, 8, 20, 33])
@pytest.mark.parametrize("acc", [0, 1])
def test_lstm(k: Isa, h: int, acc: int) -> None:
    cols, old = 3, 0.25 * acc
    pre, c_prev = floats(4 * h, cols, seed=1), floats(h, cols, seed=2)
    wide = pre.astype(np.float64)
    want = np.concatenate(
        [logistic(wide[:h]), logistic(wide[h : 2 * h] + 1), logistic(wide[2 * h : 3 * h]), np.tanh(wide[3 * h :])]
    )
    gates, c, y = Output(4 * h, cols), Output(h, cols), Output(h, cols)
    k.lstm_gates(h, cols, pre, 1.0, gates.array)
    close(gates.checked(), want)
    i, f, o, g = want.reshape(4, h, cols)
    k.lstm_c(h, cols, c_prev, gates.array, c.array)
    want_c = f * c_prev + i * g
    close(c.checked(), want_c)
    k.lstm_h(h, cols, gates.array, c.array, y.array)
    tanh_c = np.tanh(want_c)
    close(y.checked(), o * tanh_c)

    dy, zero = floats(h, cols, seed=3), np.zeros((h, cols))
    dgates, dc, dpre = Output(4 * h, cols, value=old), Output(h, cols, value=old), Output(4 * h, cols, value=old)
    k.lstm_h_bwd(h, cols, gates.array, c.array, dy, dgates.array, acc, dc.array, acc)
    close(dgates.checked(), np.concatenate([zero, zero, dy * tanh_c, zero]) + old)
    close(dc.checked(), dy * o * (1 - tanh_c**2) + old)
    only = Output(h, cols)
    k.lstm_h_bwd(h, cols, gates.array, c.array, dy, None, 0, only.array, 0)
    close(only.checked(), dy * o * (1 - tanh_c**2))
    dgates.array[...] = old
    dc.array[...] = old
    k.lstm_c_bwd(h, cols, c_prev, gates.array, dy, dc.array, acc, dgates.array, acc)
    close(dc.checked(), dy * f + old)
    want_dgates = np.concatenate([dy * g, dy * c_prev, zero, dy * i]) + old
    close(dgates.checked(), want_dgates)
    k.lstm_gates_bwd(h, cols, gates.array, dgates.array, dpre.array, acc)
    slopes = np.concatenate([want[: 3 * h] * (1 - want[: 3 * h]), 1 - want[3 * h :] ** 2])
    close(dpre.checked(), want_dgates * slopes + old)


class Optim(ctypes.Structure):
    _fields_ = [(n, c_float) for n in ("lr", "grad_scale", "step_scale", "b1", "b2", "eps", "eps_scale")]


def rules() -> dict[str, tuple[Callable, list[str]]]:
    """For each row of optim.def: the reference rule, with the constants of the test, and the names of its states."""
    constants = {"b1": 0.9, "b2": 0.99, "eps": 1e-3}
    found = {}
    for name, (make, states, _) in trainer_reference.RULES.items():
        trainer = getattr(dy, name)
        given = {attribute[1:]: constants[constant] for constant, attribute in trainer._constants.items()}
        found[list(STATES)[trainer._rule]] = make(**given), list(states)
    return found


RULES = rules()


def test_all_rules_are_tested() -> None:
    assert RULES.keys() == STATES.keys()


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 35])
def test_optimisers(k: Isa, name: str, n: int) -> None:
    hyper = Optim(0.1, 0.5, 0.75, 0.9, 0.99, 2e-3, 0.5)
    rule, names = RULES[name]
    assert len(names) == STATES[name]
    states = [Output(n, value=0) for _ in names]
    pointers = [s.array for s in states] + [None] * (3 - len(states))
    p = Output(n, value=floats(n, seed=1))
    want, want_states = p.checked(), {state: np.zeros(n) for state in names}
    for seed in range(3):
        g = floats(n, seed=seed)
        k["optim." + name](n, ctypes.addressof(hyper), g, p.array, *pointers)
        # After so many updates, the corrections of the learning rate, which kernels do not make, have vanished.
        want = want + 0.75 * rule(want_states, 0.5 * g.astype(np.float64), 10**9, 0.1)
    close(p.checked(), want, 1e-5)
    for state, expected in zip(states, want_states.values()):
        close(state.checked(), expected, 1e-5)


class Idle(ctypes.Structure):
    _fields_ = [
        *((n, c_float) for n in ("b1_power", "b2_power", "b1", "b2", "eps", "sum")),
        ("n", c_uint32), ("weights", c_void_p), ("fades", c_void_p), ("rates", c_void_p), ("keeps", c_int),
    ]  # fmt: skip


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 35])
def test_updates_without_gradients(k: Isa, name: str, n: int, keeps: bool) -> None:
    """Three updates in one call."""
    rule, names = RULES[name]
    states = [Output(n, value=np.abs(floats(n, seed=2 + j))) for j in range(len(names))]
    before = [s.checked().copy() for s in states]
    p, q = floats(n, seed=1), Output(n, value=0)
    want, want_states = p.astype(np.float64), {s: b.astype(np.float64) for s, b in zip(names, before)}
    rates, scales = (0.1, 0.3, 0.02), (0.75, 0.5, 2.0)
    for rate, scale in zip(rates, scales):
        want = want + scale * rule(want_states, np.zeros(n), 10**9, rate)
    rated = KINDS[name] in ("DY_RATED", "DY_FADING")
    fading = 1.0 if KINDS[name] == "DY_REPLAYED" else 0.9
    weights = np.array(
        [s * (r if rated else 1) * fading**j for j, (r, s) in enumerate(zip(rates, scales), 1)], np.float32
    )
    given = np.array(rates, np.float32)
    fades = np.sqrt(0.99 ** np.arange(1, 4) if KINDS[name] == "DY_FADING" else np.ones(3)).astype(np.float32)
    h = Idle(
        0.9**3,
        0.99**3,
        0.9,
        0.99,
        1e-3,
        weights.sum(),
        3,
        weights.ctypes.data,
        fades.ctypes.data,
        given.ctypes.data,
        keeps,
    )
    pointers = [s.array for s in states] + [None] * (3 - len(states))
    k["idle." + name](n, ctypes.addressof(h), p, q.array, *pointers)
    close(q.checked(), want, 1e-5)
    for state, expected, old in zip(states, want_states.values(), before):
        close(state.checked(), expected if keeps else old, 1e-5)


SIZES = [(1, 1, 1), (7, 1, 5), (1, 6, 9), (8, 2, 3), (33, 3, 17), (64, 4, 16), (40, 5, 1), (100, 6, 20), (50, 7, 33),
         (24, 8, 64), (17, 9, 8), (13, 20, 4), (65, 33, 8), (30, 40, 50), (130, 203, 300), (49, 150, 1100),
         (3, 1, 2049), (1, 3, 4097), (2, 2, 5000), (70, 3, 2050), (1100, 1, 4100), (1, 1100, 4100),
         (1100, 1, 30), (1, 1100, 30), (20, 1100, 60)]  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ta", [0, 1])
@pytest.mark.parametrize("tb", [0, 1])
def test_gemm(k: Isa, size: tuple[int, int, int], ta: int, tb: int) -> None:
    """ "scalar" calls OpenBLAS in parts, since its limit is 1,050: see native/scalar.c."""
    m, n, inner = size
    a = floats(*((inner, m) if ta else (m, inner)), seed=1)
    b = floats(*((n, inner) if tb else (inner, n)), seed=2)
    product = (a.T if ta else a).astype(np.float64) @ (b.T if tb else b)
    for alpha, beta, gap in ((1, 0, 0), (1, 1, 0), (0.5, -1.5, 3), (2, 0, 1), (0, 0, 2), (0, 2, 0)):
        lead = m + gap
        c = Output(lead, n, value=math.nan)
        if beta:
            c.array[:m] = floats(m, n, seed=3)
        want = alpha * product + (beta * c.array[:m] if beta else 0)
        k.sgemm(ta, tb, m, n, inner, alpha, a, len(a), b, len(b), beta, c.array, lead)
        got = c.checked()
        np.testing.assert_allclose(got[:m], want, 1e-5, 1e-5 * max(1.0, math.sqrt(inner)))
        assert np.isnan(got[m:]).all()


@pytest.mark.parametrize("m", [1, 3, 40])
@pytest.mark.parametrize("n", [1, 2, 40])
@pytest.mark.parametrize(("ta", "tb"), [(0, 0), (1, 0), (0, 1)])
def test_long_products(k: Isa, m: int, n: int, ta: int, tb: int) -> None:
    """Products with very many equal terms are accurate, whichever method sums them."""
    # Sums in one or eight lanes of float32 would be off by 1e-2 and 7e-4, or by 2e-3 and 4e-4.
    value, inner = (0.1, 1_000_000) if m * n < 40 else (0.17, 250_000)
    term = np.float32(value)
    a = np.full((inner, m) if ta else (m, inner), term, order="F")
    b = np.full((n, inner) if tb else (inner, n), term, order="F")
    c = Output(m, n)
    k.sgemm(ta, tb, m, n, inner, 1.0, a, len(a), b, len(b), 0.0, c.array, m)
    np.testing.assert_allclose(c.checked(), inner * float(term) ** 2, rtol=1e-4)


def test_gemm_of_nothing(k: Isa) -> None:
    c = np.full((2, 3), 2.0, np.float32, order="F")
    a = np.ones(6, np.float32)
    k.sgemm(0, 0, 2, 3, 0, 1.0, a, 2, a, 1, 0.5, c, 2)
    assert (c == 1).all()
    for m, n in ((0, 3), (2, 0)):
        k.sgemm(0, 0, m, n, 2, 1.0, a, 2, a, 2, 0.0, c, 2)
    assert (c == 1).all()
    k.sgemm(0, 0, 2, 3, 0, 1.0, a, 2, a, 1, 0.0, c, 2)
    assert (c == 0).all()


@pytest.mark.parametrize("ta", [0, 1])
@pytest.mark.parametrize("m", [1, 7, 16, 33, 48, 97, 130])
def test_packed_products(k: Isa, m: int, ta: int) -> None:
    for inner in (1, 3, 40, 300):
        a = floats(m, inner, seed=1)
        panels = Output((m + 15) // 16 * 16 * inner)
        k.pack(ta, m, inner, np.asfortranarray(a.T) if ta else a, inner if ta else m, panels.array)
        panels.checked()
        for n in (1, 2, 3, 4, 5, 7, 8, 9, 13, 24):
            b, old = floats(inner, n, seed=2), floats(m, n, seed=3)
            for beta in (0.0, 1.0, -0.5):
                c = Output(m, n, value=old if beta else math.nan)
                k.sgemm_packed(m, n, inner, panels.array, b, inner, beta, c.array, m, c.array, m)
                want = a.astype(np.float64) @ b + (beta * old if beta else 0)
                close(c.checked(), want, 1e-5 * math.sqrt(inner))
                apart = Output(m, n, value=math.nan)
                k.sgemm_packed(m, n, inner, panels.array, b, inner, beta, old, m, apart.array, m)
                assert np.array_equal(apart.checked(), c.checked())
            column = Output(m, n, value=math.nan)
            k.sgemm_packed(m, n, inner, panels.array, b, inner, 1.0, old, 0, column.array, m)
            close(column.checked(), a.astype(np.float64) @ b + old[:, :1], 1e-5 * math.sqrt(inner))


VECTOR, LIBRARY, PANELS = 3, 4, 5  # ways of sgemm; the others are kernels of dynet_cy
COLUMN_STEP = 24


@pytest.mark.parametrize(
    "size", [(130, 75, 7), (333, 21, 40), (100, 90, 150), (261, 131, 333), (97, 7, 200), (48, 300, 64)]
)
@pytest.mark.parametrize(("ta", "tb"), [(0, 0), (1, 0), (0, 1)])
def test_parts_of_products_have_the_same_bits(k: Isa, size: tuple[int, int, int], ta: int, tb: int) -> None:
    m, n, inner = size
    a = floats(*((inner, m) if ta else (m, inner)), seed=1)
    b = floats(*((n, inner) if tb else (inner, n)), seed=2)
    way = k.sgemm_way(ta, tb, m, n, inner)
    assert way != VECTOR
    # Parts of an OpenBLAS product must not be small products; test_products.py tests where it is cut.
    firsts = product.cuts(LIBRARY, m, n, inner, 3)[1] if way == LIBRARY else [*range(0, n, COLUMN_STEP), n]
    for beta in (0.0, 1.0):
        whole = floats(m, n, seed=3)
        k.sgemm(ta, tb, m, n, inner, 1.0, a, len(a), b, len(b), beta, whole, m)
        by_columns = floats(m, n, seed=3)
        for j, end in zip(firsts, firsts[1:]):
            part = b.ctypes.data + 4 * (j if tb else j * len(b))
            c = by_columns[:, j:end]
            k.sgemm_by(way, ta, tb, m, c.shape[1], inner, 1.0, a, len(a), part, len(b), beta, c.ctypes.data, m)
        assert by_columns.tobytes() == whole.tobytes()
        if way == LIBRARY:
            continue
        by_rows = floats(m, n, seed=3)
        for i in range(0, m, 32):
            part = a.ctypes.data + 4 * (i * len(a) if ta else i)
            c = by_rows[i : i + 32]
            k.sgemm_by(way, ta, tb, len(c), n, inner, 1.0, part, len(a), b, len(b), beta, c.ctypes.data, m)
        assert by_rows.tobytes() == whole.tobytes()


def test_products_of_medium_size_are_made_in_panels(k: Isa) -> None:
    """With or without transposes; OpenBLAS computes the largest, and all of them where vectors are short."""
    vectors = k.sgemm_way(0, 0, 64, 8, 64) != LIBRARY
    for ta, tb in ((0, 0), (1, 0), (0, 1), (1, 1)):
        assert k.sgemm_way(ta, tb, 800, 200, 256) == (PANELS if vectors else LIBRARY)
        assert k.sgemm_way(ta, tb, 1536, 1536, 1536) == LIBRARY


@pytest.mark.parametrize("size", [(130, 75, 7), (333, 21, 300), (261, 131, 333), (97, 1, 600)])
def test_parts_of_packed_products_have_the_same_bits(k: Isa, size: tuple[int, int, int]) -> None:
    m, n, inner = size
    a, b = floats(m, inner, seed=1), floats(inner, n, seed=2)
    panels = np.zeros((m + 15) // 16 * 16 * inner, np.float32)
    k.pack(0, m, inner, a, m, panels)
    whole, parts = floats(m, n, seed=3), floats(m, n, seed=3)
    k.sgemm_packed(m, n, inner, panels, b, inner, 1.0, whole, m, whole, m)
    for i in range(0, m, 48):  # a multiple of the height of a panel in all instruction sets
        for j in range(0, n, 10):
            c = parts[i : i + 48, j : j + 10]
            left = panels.ctypes.data + 4 * i * inner
            at = c.ctypes.data
            k.sgemm_packed(*c.shape, inner, left, b[:, j:].ctypes.data, inner, 1.0, at, m, at, m)
    assert parts.tobytes() == whole.tobytes()


def test_sums_of_a_million_terms(k: Isa) -> None:
    n, term = 1_000_000, np.float32(0.1)
    terms, ones, three = np.full(n, term, np.float32), np.ones(n, np.float32), np.full((3, n), term, np.float32, "F")
    assert k.sum(n, terms) == pytest.approx(n * float(term), rel=1e-5)
    assert k.dot(n, terms, ones) == pytest.approx(n * float(term), rel=1e-5)
    assert k.sumsq(n, terms) == pytest.approx(n * float(term) ** 2, rel=1e-5)
    of_columns, of_products = Output(3), Output(1)
    k.bias_bwd(3, n, three, of_columns.array, 0)
    close(of_columns.checked(), np.full(3, n * float(term)), 1e-5)
    k["binary_bwd_a.mul"](n, ones, 0, terms, 1, ones, ones, of_products.array, 0)
    close(of_products.checked(), np.full(1, n * float(term)), 1e-5)


@pytest.mark.parametrize("n", [1, 3, 8, 12])
def test_gemm_keeps_nan_and_infinity(k: Isa, n: int) -> None:
    a, b = floats(20, 9, seed=1), floats(9, n, seed=2)
    a[3, 2], a[5, 1] = math.nan, math.inf
    for ta in (0, 1):
        c = np.zeros((20, n), np.float32, order="F")
        k.sgemm(ta, 0, 20, n, 9, 1.0, np.asfortranarray(a.T) if ta else a, 9 if ta else 20, b, 9, 0.0, c, 20)
        assert np.isnan(c[3]).all()
        assert np.isinf(c[5]).all()
        assert np.isfinite(np.delete(c, [3, 5], 0)).all()


class Window(ctypes.Structure):
    _fields_ = [("inputs", N * 2), ("channels", N), ("size", N * 2), ("stride", N * 2), ("pad", N * 2), ("out", N * 2)]
    _fields_ += [("dilation", N * 2)]

    @staticmethod
    def of(
        shape: tuple[int, int],
        channels: int,
        size: tuple[int, int],
        stride: tuple[int, int],
        valid: bool,
        dilation: tuple[int, int] = (1, 1),
    ) -> Window:
        out, pad = [], []
        for i, n, t, d in zip(shape, size, stride, dilation):
            s = (n - 1) * d + 1
            out.append((i - s) // t + 1 if valid else -(-i // t))
            pad.append(0 if valid else max((out[-1] - 1) * t + s - i, 0) // 2)
        pair = N * 2
        return Window(pair(*shape), channels, pair(*size), pair(*stride), pair(*pad), pair(*out), pair(*dilation))


def under(w: Window, row: int, column: int) -> tuple[slice, slice]:
    """The rows and columns that a window covers, from its first row and column."""
    reach = [w.size[d] * w.dilation[d] for d in range(2)]
    return slice(row, row + reach[0], w.dilation[0]), slice(column, column + reach[1], w.dilation[1])


def patches(w: Window, x: np.ndarray, outside: float) -> np.ndarray:
    """The inputs in each window: out rows x out columns x size rows x size columns x channels."""
    big = np.full((64, 64, w.channels), outside, np.float64)
    big[16 : 16 + x.shape[0], 16 : 16 + x.shape[1]] = x
    result = np.empty((*w.out, *w.size, w.channels))
    for i in range(w.out[0]):
        for j in range(w.out[1]):
            r, c = 16 + i * w.stride[0] - w.pad[0], 16 + j * w.stride[1] - w.pad[1]
            result[i, j] = big[under(w, r, c)]
    return result


WINDOWS = [
    (shape, size, stride, valid)
    for shape in ((5, 6), (9, 4), (1, 7))
    for size in ((2, 3), (1, 1), (3, 2))
    for stride in ((1, 1), (2, 1), (3, 2))
    for valid in (True, False)
    if not valid or (shape[0] >= size[0] and shape[1] >= size[1])
]


def unpatched(w: Window, p: np.ndarray) -> np.ndarray:
    """The transpose of `patches`: adds all windows to the image."""
    big = np.zeros((64, 64, w.channels))
    for i, j in np.ndindex(*w.out):
        r, c = 16 + i * w.stride[0] - w.pad[0], 16 + j * w.stride[1] - w.pad[1]
        big[under(w, r, c)] += p[i, j]
    return big[16 : 16 + w.inputs[0], 16 : 16 + w.inputs[1]]


def check_convolution(k: Isa, w: Window, outputs: int, images: int, tolerance: float = 1e-5) -> None:
    """Compare all convolution kernels with sums over patches, for several images at once."""
    at = ctypes.addressof(w)
    shape, size, channels = tuple(w.inputs), tuple(w.size), w.channels
    x, bias = floats(*shape, channels, images, seed=1), floats(outputs)
    filters = floats(*size, channels, outputs, seed=2)
    unfolded = np.stack([patches(w, x[..., b], 0) for b in range(images)], 2)
    terms = channels * math.prod(size)
    work, y = Output(kernels.conv_work(at, outputs, images)), Output(*w.out, outputs, images)
    want = np.moveaxis(np.tensordot(unfolded, filters, 3), 2, 3)
    k.conv2d(at, outputs, images, x, filters, None, work.array, y.array)
    close(y.checked() / terms**0.5, want / terms**0.5, tolerance)
    k.conv2d(at, outputs, images, x, filters, bias, work.array, y.array)
    close(y.checked() / terms**0.5, (want + bias[:, None]) / terms**0.5, tolerance)
    dy = floats(*w.out, outputs, images, seed=3)
    scale = (math.prod(w.out) * images) ** 0.5
    for acc in (0, 1):
        dfilter = Output(*size, channels, outputs, value=0.25 * acc)
        k.conv2d_bwd_filter(at, outputs, images, x, dy, work.array, dfilter.array, acc)
        want = np.tensordot(unfolded, np.moveaxis(dy, 3, 2), ((0, 1, 2), (0, 1, 2))) + 0.25 * acc
        close(dfilter.checked() / scale, want / scale, tolerance)
    work.checked()
    work = Output(kernels.conv_work(at, outputs, images, back=True))
    folded = np.tensordot(dy.astype(np.float64), filters, (2, 3))
    want = np.stack([unpatched(w, folded[:, :, b]) for b in range(images)], -1)
    scale = (outputs * math.prod(size)) ** 0.5
    for acc in (0, 1):
        dx = Output(*shape, channels, images, value=0.25 * acc)
        k.conv2d_bwd_x(at, outputs, images, filters, dy, work.array, dx.array, acc)
        close(dx.checked() / scale, (want + 0.25 * acc) / scale, tolerance)
    work.checked()


@pytest.mark.parametrize("window", WINDOWS)
def test_convolution(k: Isa, window) -> None:
    shape, size, stride, valid = window
    check_convolution(k, Window.of(shape, 2, size, stride, valid), 3, 2)


@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("dilation", [(2, 1), (1, 3), (2, 2)])
def test_dilated_convolution(k: Isa, dilation, valid: bool, stride) -> None:
    check_convolution(k, Window.of((9, 11), 2, (3, 2), stride, valid, dilation), 3, 2)


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("dilation", [(2, 1), (1, 3), (2, 2)])
def test_dilated_convolution_of_many_channels(k: Isa, dilation, valid: bool) -> None:
    """Without the dilation, Winograd's method would be used."""
    check_convolution(k, Window.of((14, 14), 32, (3, 3), (1, 1), valid, dilation), 32, 5)


CHANNELS = [(16, 32), (35, 19), (48, 12)]
# Each filter with an image whose last tiles reach beyond its edge, padded and unpadded, with different numbers of
# channels: remainders of tiles and of channels are handled separately.
WINOGRAD = [
    (shape, size, valid, CHANNELS[(i + valid) % 3])
    for i, (shape, size) in enumerate(
        [
            ((14, 14), (5, 5)),
            ((12, 11), (3, 3)),
            ((9, 21), (4, 2)),
            ((24, 8), (2, 5)),
            ((13, 7), (3, 4)),
            ((10, 38), (2, 2)),
        ]
    )
    for valid in (True, False)
]


@pytest.mark.parametrize(("shape", "size", "valid", "channels"), WINOGRAD)
def test_winograd_convolution(k: Isa, shape, size, valid: bool, channels: tuple[int, int]) -> None:
    """Also with channels that do not fill a vector, and images in several parts."""
    w = Window.of(shape, channels[0], size, (1, 1), valid)
    check_convolution(k, w, channels[1], 5, 3e-5)
    assert kernels.winograd_gains(ctypes.addressof(w), channels[1], 5)


HALVING = [
    ((rows, cols), (2, 2), (2, 2), valid)
    for rows in (2, 6, 14, 16, 17, 28, 40)
    for cols in (2, 5)
    for valid in (True, False)
]


@pytest.mark.parametrize("window", WINDOWS + HALVING)
def test_max_pooling(k: Isa, window) -> None:
    shape, size, stride, valid = window
    w = Window.of(shape, 2, size, stride, valid)
    at = ctypes.addressof(w)
    x, dy = np.round(floats(*shape, 2, seed=1) * 4) / 4, floats(*w.out, 2, seed=2)  # some windows contain equal numbers
    y = Output(*w.out, 2)
    k.maxpool2d(at, x, y.array)
    want = patches(w, x, -math.inf).max((2, 3))
    close(y.checked(), want)
    seen, places = patches(w, x, -math.inf), patches(w, np.stack(np.indices(x.shape[:2]), -1), -1).astype(int)
    for acc in (0, 1):
        dx = Output(*shape, 2, value=0.25 * acc)
        work = Output(w.out[0])
        k.maxpool2d_bwd(at, x, y.array, dy, work.array, dx.array, acc)
        work.checked()
        expected = np.full(x.shape, 0.25 * acc)
        for i, j, c in np.ndindex(*want.shape):
            # The first maximum of the window, column by column.
            col, row = np.argwhere(want[i, j, c] == seen[i, j, :, :, c].T)[0]
            expected[(*places[i, j, row, col], c)] += dy[i, j, c]
        close(dx.checked(), expected)


def words(k: Isa, key: int, stream: int, draw: int, offset: int, n: int) -> list[int]:
    out = np.zeros(n, np.uint32)
    k.random_words(key, stream, draw, offset, n, out)
    return out.tolist()


def test_philox_known_answers(k: Isa) -> None:
    """The vectors of the Random123 distribution; a counter is (block, draw low, draw high, stream)."""
    assert words(k, 0, 0, 0, 0, 4) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 2**64 - 1
    assert words(k, ones, 2**32 - 1, ones, 4 * (2**32 - 1), 4) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = words(k, 0x299F31D0A4093822, 0x03707344, 0x13198A2E85A308D3, 4 * 0x243F6A88, 4)
    assert pi == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("name", ["uniform", "normal", "bernoulli", "gumbel"])
def test_fills(k: Isa, name: str) -> None:
    def fill(offset: int, n: int, p: float, q: float, draw: int = 7) -> np.ndarray:
        out = Output(n)
        k["rng." + name](123, 5, draw, offset, n, p, q, out.array)
        return out.checked()

    p, q = (0.25, 2.0) if name == "bernoulli" else (0.0, 1.0)
    whole = fill(0, 300, p, q)
    for offset, n in ((0, 1), (1, 1), (3, 2), (5, 64), (64, 64), (62, 131), (299, 1), (2, 0)):
        np.testing.assert_array_equal(fill(offset, n, p, q), whole[offset : offset + n])
    assert (fill(0, 300, p, q, draw=8) != whole).any()
    n = 200_000
    x = fill(0, n, p, q)
    mean, variance = {
        "uniform": (0.5, 1 / 12),
        "normal": (0.0, 1.0),
        "bernoulli": (0.5, 0.75),
        "gumbel": (0.5772157, math.pi**2 / 6),
    }[name]
    assert abs(x.mean() - mean) < 6 * math.sqrt(variance / n)
    assert abs(x.var() - variance) < 0.03 * variance
    assert np.isfinite(x).all()
    if name == "uniform":
        assert x.min() >= 0
        assert x.max() < 1
    if name == "normal":
        assert abs((x[::2] * x[1::2]).mean()) < 0.02
        assert abs((x**4).mean() - 3) < 0.15
    if name == "bernoulli":
        assert set(x) == {0.0, 2.0}
