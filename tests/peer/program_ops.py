"""Lines of random programs: a function for each op, with random arguments that mostly fit.

These are ops that programs are made of. All ops are compared alone, from the table of ops, in test_ops_peer.py.
"""

from collections.abc import Callable

import numpy as np
from program_pair import Entry
from program_text import Program

Op = Callable[[Program], "str | None"]
OPS: dict[str, Op] = {}


def op(function: Op) -> Op:
    OPS[function.__name__] = function
    return function


PLAIN = (
    "tanh logistic rectify erf sin cos atan elu selu silu abs log_sigmoid asinh square cube nobackprop flip_gradient"
)
WIDE = "exp sinh cosh tan asin acos atanh"
POSITIVE = "log sqrt lgamma"

for _name in PLAIN.split():
    OPS[_name] = lambda p, name=_name: f"dy.{name}({p.get().name})"  # type: ignore[misc]
for _name in WIDE.split():
    OPS[_name] = lambda p, name=_name: f"dy.{name}({p.within()})"  # type: ignore[misc]
for _name in POSITIVE.split():
    OPS[_name] = lambda p, name=_name: f"dy.{name}({p.within(None, 0.3, 2.5)})"  # type: ignore[misc]
for _name in ("squared_norm", "l2_norm", "sum_elems", "mean_elems", "std_elems"):
    OPS[_name] = lambda p, name=_name: f"dy.{name}({p.get().name})"  # type: ignore[misc]
for _name in ("sum_batches", "mean_batches", "std_batches"):
    OPS[_name] = lambda p, name=_name: f"dy.{name}({p.get().name})"  # type: ignore[misc]
for _name in ("squared_distance", "l1_distance", "dot_product", "cmult", "bmin", "bmax"):
    OPS[_name] = lambda p, name=_name: f"dy.{name}({pair(p)})"  # type: ignore[misc]


def pair(p: Program) -> str:
    a = p.get()
    return f"{a.name}, {p.get(a.shape).name}"


def broadcast(p: Program) -> tuple[str, str]:
    """Two expressions; one may lack axes of the other."""
    a = p.get()
    kind = p.below(5)
    shape = a.shape
    if kind == 0:
        shape = tuple(1 if p.chance(0.5) else n for n in a.shape)
    elif kind == 1:
        shape = a.shape[: 1 + p.below(max(1, len(a.shape)))]
    elif kind == 2:
        shape = (1,)
    b = p.get(shape)
    return (a.name, b.name) if p.chance(0.7) else (b.name, a.name)


@op
def number(p):
    e, n = p.get().name, p.number_text()
    return p.one(
        [f"{e} + {n}", f"{n} + {e}", f"{e} - {n}", f"{n} - {e}", f"{e} * {n}", f"{n} * {e}", f"{e} / {n}", f"-{e}"]
    )


@op
def plus(p):
    a, b = broadcast(p)
    return f"{a} {p.one('+-')} {b}"


@op
def cmult_broadcast(p):
    return "dy.cmult({}, {})".format(*broadcast(p))


@op
def product(p):
    a = p.one([p.vector, p.matrix])() if p.chance(0.85) else p.get()
    columns = a.axis(1)
    b = p.get(p.one([(columns,), (columns, p.one([1, 2, 3])), (columns, 1)])) if p.chance(0.9) else p.get()
    return f"{a.name} * {b.name}"


@op
def affine(p):
    rows = p.axes(1)[0]
    columns = p.one([0, 0, 1, 2, 3])
    bias = p.get((rows, columns) if columns and p.chance(0.5) else (rows,))
    terms = [bias.name]
    for _ in range(1 + p.below(3)):
        inner = p.axes(1)[0]
        terms += [p.get((rows, inner)).name, p.get((inner, columns) if columns else (inner,)).name]
    return f"dy.affine_transform({p.one(['[{}]', '[{}]', '({})']).format(', '.join(terms))})"


def names_like(p: Program, e: Entry, most: int = 4) -> str:
    names = [e.name] + [p.get(e.shape, e.batch if p.chance(0.7) else None).name for _ in range(p.below(most))]
    return p.one(["[{}]", "[{}]", "[{}]", "({},)"]).format(", ".join(names))


for _name in ("esum", "average", "emax", "logsumexp", "concatenate_to_batch"):
    OPS[_name] = lambda p, name=_name: f"dy.{name}({names_like(p, p.get())})"  # type: ignore[misc]


@op
def concatenate(p):
    e = p.get()
    d = p.below(len(e.shape) + 1) if p.chance(0.4) else 0
    names = [e.name]
    for _ in range(p.below(4)):
        shape = list(e.shape)
        if d < len(shape):
            shape[d] = p.one([1, 2, 3])
        names.append(p.get(tuple(shape), e.batch if p.chance(0.8) else None).name)
    return f"dy.concatenate([{', '.join(names)}]{p.one([f', {d}', f', d={d}']) if d or p.chance(0.2) else ''})"


@op
def sum_dim(p):
    e = p.get()
    return f"dy.sum_dim({e.name}, {p.some_axes(e, 2)}{p.one(['', ', b=True', ', b=False'])})"


@op
def reshape(p):
    e = p.get()
    n = int(np.prod(e.shape))
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    a = p.one(divisors)
    b = p.one([d for d in divisors if (n // a) % d == 0])
    shape = p.one([(n,), (a, n // a), (a, b, n // a // b), (n, 1), (1, n)])
    if p.chance(0.2):
        total = n * e.batch
        return p.one(
            [
                f"dy.reshape({e.name}, ({total},), batch_size=1)",
                f"dy.reshape({e.name}, (1,), batch_size={total})",
                f"dy.reshape({e.name}, {shape}, {e.batch})",
            ]
        )
    return f"dy.reshape({e.name}, {shape})"


@op
def transpose(p):
    if p.chance(0.6):
        return f"dy.transpose({p.one([p.vector, p.matrix])().name})"
    e = p.get()
    return f"dy.transpose({e.name}, {[int(k) for k in p.rng.permutation(max(len(e.shape), p.one([1, 2])))]})"


@op
def pick(p):
    e = p.get()
    d = p.axis(e)
    n = e.axis(d)
    if p.chance(0.4):
        return f"dy.pick_batch({e.name}, {p.indices(n, e.batch)}{p.one(['', f', {d}', f', dim={d}']) if d else ''})"
    return f"dy.pick({e.name}, {p.index(n)}{p.one([f', {d}', f', dim={d}']) if d or p.chance(0.2) else ''})"


@op
def pick_range(p):
    e = p.get()
    d = p.axis(e)
    s = p.below(e.axis(d))
    t = s + 1 + p.below(e.axis(d) - s)
    return p.one(
        [f"dy.pick_range({e.name}, {s}, {t}, {d})", f"dy.pick_range({e.name}, {s}, {t}, d={d})"]
        if d
        else [f"dy.pick_range({e.name}, {s}, {t})", f"dy.pickrange({e.name}, {s}, {t})"]
    )


@op
def pick_batch_elem(p):
    e = p.get()
    if p.chance(0.5):
        return f"dy.pick_batch_elem({e.name}, {p.index(e.batch)})"
    return f"dy.pick_batch_elems({e.name}, {p.indices(e.batch, 1 + p.below(3))})"


@op
def index(p):
    e = p.get()
    n = e.axis(0)
    i = p.below(n)
    j = i + 1 + p.below(n - i)
    keys = [f"{i}", f"-{n - i}", f"{i}:{j}", f":{j}", f"{i}:", f"{i}:{j}:2", f"{i}:{j}, 0:{e.axis(1)}"]
    return f"{e.name}[{p.one(keys)}]"


@op
def softmax(p):
    e = p.get() if p.chance(0.2) else p.one([p.vector, p.matrix])()
    return f"dy.softmax({e.name}{p.one(['', '', f', {p.axis(e)}', f', d={p.axis(e)}'])})"


@op
def classification(p):
    e = p.vector()
    n = e.axis(0)
    i, many = p.index(n), p.indices(n, e.batch)
    return p.one(
        [
            f"dy.pickneglogsoftmax({e.name}, {i})",
            f"dy.pickneglogsoftmax_batch({e.name}, {many})",
            f"dy.hinge({e.name}, {i})",
            f"dy.hinge({e.name}, {i}, m=0.4)",
            f"dy.hinge_batch({e.name}, {many})",
            f"dy.hinge_batch({e.name}, {many}, 0.4)",
        ]
    )


@op
def lstm(p):
    h, i, batch = p.one([1, 2, 3]), p.one([2, 3]), p.size()
    x, before = p.get((i,), batch), p.get((h,), batch)
    wx, wh, b = p.get((4 * h, i), 1), p.get((4 * h, h), 1), p.get((4 * h,), 1)
    what = p.below(5)
    if what == 0:
        return f"dy.vanilla_lstm_c({before.name}, {p.get((4 * h,), batch).name})"
    if what == 1:
        return f"dy.vanilla_lstm_h({before.name}, {p.get((4 * h,), batch).name})"
    if what == 2:
        return f"dy.vanilla_lstm_gates_concat([{x.name}], {before.name}, {wx.name}, {wh.name}, {b.name})"
    return f"dy.vanilla_lstm_gates({x.name}, {before.name}, {wx.name}, {wh.name}, {b.name})"


@op
def leaf(p):
    n, batch = p.one([1, 2, 3, 4]), p.size()
    shape = p.one([f"{n}", f"({n},)", f"({n}, 2)", f"({n}, 1)", f"({n}, 2, 1)"])
    size = p.one(["", f", batch_size={batch}", f", {batch}"])
    sparse = p.one(["", ", batched=True", ", defval=-0.5"])
    return p.one(
        [
            f"dy.zeros({shape}{size})",
            f"dy.zeroes({shape}{size})",
            f"dy.ones({shape}{size})",
            f"dy.constant({shape}, 0.75{size})",
            f"dy.one_hot({n}, {p.index(n)})",
            f"dy.one_hot({n}, {p.indices(n, 2)})",
            f"dy.scalarInput({p.number_text()})",
            f"dy.vecInput({n})",
            f"dy.inputVector(np.arange({n}))",
            f"dy.inputVector(list(range({n})))",
            f"dy.inputTensor([1, 2, {n}])",
            f"dy.inputTensor(np.arange({2 * n}).reshape(2, {n}).T)",
            f"dy.inputTensor(np.arange({2 * n}, dtype=np.float32).reshape({n}, 2), batched=True)",
            f"dy.sparse_inputTensor([[0, 1], [1, 0]], [2.0, {n}], (2, {n + 1}){sparse})",
        ]
    )


@op
def parameter(p):
    w = p.one(p.parameters)
    return p.one(
        [
            w,
            f"dy.parameter({w})",
            f"dy.parameter({w}) * 1.0",
            f"dy.const_parameter({w})",
            f"{w}.expr()",
            f"{w}.expr(update=True)",
            f"{w}.expr(False)",
            f"{w} * 1.0",
            f"{w} + {w}",
            f"dy.tanh({w})",
        ]
    )


@op
def lookup(p):
    t = p.one(p.tables)
    i, many = p.below(5), p.indices(5, p.one([1, p.B, p.B]))
    return p.one(
        [
            f"{t}[{i}]",
            f"{t}[{i}]",
            f"dy.lookup({t}, {i})",
            f"dy.lookup({t}, {i}, update=False)",
            f"dy.lookup({t}, {i}, False)",
            f"dy.lookup({t}, index={i}, update=True)",
            f"{t}.batch({many})",
            f"dy.lookup_batch({t}, {many})",
            f"dy.lookup_batch({t}, {many}, update=False)",
            f"{t}.expr()",
            f"dy.parameter({t})",
            f"{t} * 1.0",
        ]
    )
