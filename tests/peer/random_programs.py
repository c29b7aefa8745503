"""Random programs over the whole surface of DyNet, line by line in DyNet and here.

A program is Python text: a model, inputs, ops with random arguments (shapes that fit mostly, not always), builders,
several graphs, backward passes and updates. After every line both libraries must tell the same: shapes, types and
numbers of values, errors, gradients of all expressions and parameters. Each library has a process of its own, since
DyNet changes the arithmetic of its process and some errors end it.  Lines whose numbers are known to be wrong in
DyNet (`WRONG`) are left out, since all that is computed from them would differ.

``python random_programs.py --programs 5000`` runs many and prints what differs; ``--first N --programs 1 --verbose``
prints program N. What is meant to differ is in `MEANT`, each with its line of docs/differences.md.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WORKER = Path(__file__).with_name("program_worker.py")


class Died(Exception):
    """The process of a library ended."""


class Worker:
    """A library in a process of its own, which starts again when it has died."""

    def __init__(self, module: str, *options: str) -> None:
        self.command = [sys.executable, str(WORKER), module, *options]
        self.process: subprocess.Popen | None = None
        self.begun: list[str | None] | None = None

    def begin(self, lines: list[str | None]) -> None:
        """Send lines; `ask` with the same lines waits for what they give."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        assert self.process.stdin is not None
        self.begun = lines
        try:
            pickle.dump(lines, self.process.stdin)
            self.process.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise Died from None

    def ask(self, lines: list[str | None]) -> list[Any]:
        if self.begun is not lines:
            self.begin(lines)
        self.begun = None
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            return pickle.load(self.process.stdout)
        except (EOFError, pickle.UnpicklingError):
            self.close()
            raise Died from None

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@dataclass(frozen=True)
class Entry:
    """An expression of the program."""

    name: str
    shape: tuple[int, ...]
    batch: int

    def axis(self, k: int) -> int:
        return self.shape[k] if k < len(self.shape) else 1


@dataclass
class Difference:
    program: int
    line: str
    kind: str
    theirs: Any
    ours: Any
    shapes: str = ""
    lines: list[str] = field(default_factory=list, repr=False)

    def function(self) -> str:
        """What the line calls, for counting."""
        found = re.search(r"= (?:dy\.)?([a-z_]\w*)\(|= \w+(\.\w+|\[| \S+ )|\.(\w+)\(", self.line)
        return next((g for g in found.groups() if g), "?").strip() if found else "?"

    def __str__(self) -> str:
        with np.printoptions(threshold=24, precision=5):
            said = [re.sub(r"\s+", " ", str(x))[:300] for x in (self.theirs, self.ours)]
        where = f"program {self.program}: {self.kind}: {self.line}"
        return f"{where}\n    DyNet {said[0]}\n    here  {said[1]}\n    {self.shapes}"


def close_enough(a: Any, b: Any, slack: Any = 0.0) -> bool:
    """Numbers that rounding explains: 2e-5 of the greatest, and the slack, how far noise moves each."""
    with np.errstate(all="ignore"):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        finite = np.isfinite(a)
        scale = max(1.0, float(np.abs(a[finite]).max(initial=0)))
        far = np.abs(a - b) > 2e-5 * scale + 30 * np.nan_to_num(slack, nan=0.0, posinf=0.0)
        return bool(np.all(~far & (finite == np.isfinite(b)) | (np.isnan(a) & np.isnan(b)) | (a == b)))


def arrays_of(told: Any) -> Iterator[np.ndarray]:
    """The numbers in a description, in order."""
    if told[0] in ("list", "tuple"):
        for part in told[1]:
            yield from arrays_of(part)
    elif told[0] == "array":
        yield told[2]
    elif told[0] == "float":
        yield np.array(told[1])


def both_arrays(theirs: Any, ours: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return zip(arrays_of(theirs), arrays_of(ours))


def form_of(told: Any) -> Any:
    """A description without its numbers."""
    if told[0] in ("list", "tuple"):
        forms = [form_of(part) for part in told[1]]
        return told[0], len(forms), forms[0] if forms and all(f == forms[0] for f in forms) else forms
    if told[0] == "array":
        return told[:2]
    return told[0] if told[0] == "float" else told


READING = re.compile(r"\.(value|npvalue|vec_value|scalar_value|forward)\(")


class Over(Exception):
    """The program cannot go on."""


class Pair:
    """A program in both libraries."""

    def __init__(self, theirs: Worker, ours: Worker, number: int) -> None:
        self.theirs, self.ours, self.number = theirs, ours, number
        self.lines: list[str] = []
        self.differences: list[Difference] = []
        self.left_out: Counter[str] = Counter()  # lines of WRONG, by the line of docs/differences.md
        self.lost = False  # DyNet has NaN as the gradient of a parameter, where there is none here
        self.compared = 0
        self.spoilt = False  # the graphs are to be made again
        self.numbers: list[tuple[int, Any, Any]] = []  # line, DyNet's and our description: not close enough
        for worker in (theirs, ours):
            worker.ask([None])

    def note(self, line: str, kind: str, theirs: Any, ours: Any) -> None:
        self.differences.append(Difference(self.number, line, kind, theirs, ours, self.shapes(line), list(self.lines)))

    def shapes(self, line: str) -> str:
        return ", ".join(
            f"{e.name} {e.shape}x{e.batch}" for n, e in self.entries.items() if re.search(rf"\b{n}\b", line)
        )

    entries: dict[str, Entry] = {}

    def again(self) -> None:
        """The program so far from the start: an error can leave a node behind with which DyNet cannot go on."""
        for worker in (self.theirs, self.ours):
            worker.ask([None, *self.lines])

    def ask(self, worker: Worker, lines: list[str]) -> list[Any]:
        """What a worker tells of lines; one that dies of them is asked again for each."""
        try:
            return worker.ask(lines)
        except Died:
            worker.ask([None, *self.lines])
            if len(lines) == 1:
                return [("died", "", "")]
            return [self.ask(worker, [line])[0] for line in lines]

    def run(self, line: str) -> Any:
        """What both tell of the line, or None where one of them refuses it: it is no part of the program then."""
        return self.look([line])[0]

    def look(self, lines: list[str]) -> list[Any]:
        """The same for lines of which none needs those before it."""
        for worker in (self.theirs, self.ours):
            with contextlib.suppress(Died):  # `ask` finds out
                worker.begin(lines)  # both work at the same time
        both = zip(lines, self.ask(self.theirs, lines), self.ask(self.ours, lines))
        self.compared += len(lines)
        told = [self.judge(line, theirs, ours) for line, theirs, ours in both]
        last = self.differences[-1] if self.differences else None
        if not self.eager and last and last.kind == "DyNet refuses" and READING.search(last.line):
            self.differences.pop()  # programs that look at every value at once tell of which expression that was
            raise Over
        if self.spoilt:
            self.spoilt = False
            self.again()
        return told

    def judge(self, line: str, theirs: Any, ours: Any) -> Any:
        """Note what differs in what both tell of a line."""
        if theirs[0] == ours[0] == "ok":
            if form_of(theirs[1]) == form_of(ours[1]):
                self.lines.append(line)
                self.compare(theirs[1], ours[1])
                return ours[1]
            self.note(line, "shape or type", form_of(theirs[1]), form_of(ours[1]))
            self.spoilt = True
            return None
        self.spoilt |= not line.endswith("gradient()")
        if ours[0] == "died":
            self.note(line, "dies here", theirs[:3], "")
        elif theirs[0] == "died":
            self.note(line, "DyNet dies", "", ours[:3] if ours[0] == "error" else form_of(ours[1]))
        elif theirs[0] == "error" and ours[0] == "ok":
            self.note(line, "DyNet refuses", theirs[1:], form_of(ours[1]))
        elif ours[0] == "error" and theirs[0] == "ok":
            self.refused(line, theirs[1], ours)
        elif ours[1] not in (theirs[1], "TypeError", "ValueError", "IndexError", "DimensionError", "RuntimeError"):
            self.note(line, "kind of error", theirs[1:], ours[1:])
        return None

    def refused(self, line: str, theirs: Any, ours: Any) -> None:
        """We refuse a line that DyNet takes: it may do so later, when it computes."""
        if theirs[0] == "expression":
            name = line.partition(" = ")[0]
            late = self.ask(self.theirs, [f"{name}.npvalue()"])[0]
            if late[0] == "error":
                self.note(line, "DyNet refuses late", late[1:], ours[1:])
                return
            if late[0] == "died":
                self.note(line, "DyNet dies late", "", ours[1:])
                return
            theirs = *theirs, late[1][2].ravel()[:6]
        self.note(line, "refused here", theirs, ours[1:])

    def compare(self, theirs: Any, ours: Any) -> None:
        if not all(close_enough(a, b) for a, b in both_arrays(theirs, ours)):
            if "grad_as_array" in self.lines[-1]:
                self.lost |= any(np.isnan(a).any() and not np.isnan(b).any() for a, b in both_arrays(theirs, ours))
            self.numbers.append((len(self.lines) - 1, theirs, ours))

    def settle(self, noisy: list[Worker]) -> None:
        """Sort numbers that differ into those that rounding explains and others."""
        if not self.numbers:
            return
        plain = self.ours.ask([None, *self.lines])[1:]
        moved = [worker.ask([None, *self.lines])[1:] for worker in noisy]
        for k, theirs, ours in self.numbers:
            for j, (a, b) in enumerate(both_arrays(theirs, ours)):
                slack: Any = 0.0
                for told in moved:
                    if told[k][0] == "ok" and form_of(told[k][1]) == form_of(ours):
                        here = list(arrays_of(plain[k][1]))[j]
                        slack = np.maximum(slack, np.abs(list(arrays_of(told[k][1]))[j] - here).max(initial=0))
                if not close_enough(a, b, slack):
                    self.note(self.lines[k], "numbers", a, b)
                    self.differences[-1].lines = self.lines[: k + 1]
                    break


TRAINERS = [
    "SimpleSGDTrainer(m, 0.05)",
    "CyclicalSGDTrainer(m, 0.01, 0.1)",
    "MomentumSGDTrainer(m, 0.02, 0.8)",
    "AdagradTrainer(m, 0.05)",
    "AdadeltaTrainer(m)",
    "RMSPropTrainer(m, 0.01)",
    "AdamTrainer(m, 0.01)",
    "AmsgradTrainer(m, 0.01)",
]
BUILDERS = ["SimpleRNNBuilder", "GRUBuilder", "LSTMBuilder", "VanillaLSTMBuilder", "CompactVanillaLSTMBuilder"]
BUILDERS += ["CoupledLSTMBuilder", "FastLSTMBuilder"]


class Program(Pair):
    """A random program while it is being made."""

    def __init__(self, theirs: Worker, ours: Worker, number: int) -> None:
        super().__init__(theirs, ours, number)
        self.rng = np.random.default_rng(number)
        self.entries = {}
        self.count = 0
        self.B = int(self.rng.integers(2, 4))
        self.eager = self.chance(0.7)  # values are computed as soon as there is an expression

    # What random arguments are made of.

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one(self, things: Any) -> Any:
        return list(things)[self.below(len(list(things)))]

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def A(self, shape: tuple[int, ...], low: float = -1.0, high: float = 1.0) -> str:
        """Numbers as text."""
        self.count += 1
        return f"A({1000 * self.number + self.count}, {shape}{'' if (low, high) == (-1, 1) else f', {low}, {high}'})"

    def shape(self) -> tuple[int, ...]:
        axes = self.one([1, 1, 1, 2, 2, 2, 3, 4])
        return tuple(self.one([1, 2, 3, 3, 4, 5] if axes < 3 else [1, 2, 3]) for _ in range(axes))

    def size(self) -> int:
        return self.one([1, 1, self.B])

    def add(self, source: str, letter: str = "e") -> Entry | None:
        """An expression, if both libraries make it."""
        wrong = next((w for w in WRONG if w.covers(source, self.entries_in(source))), None)
        if wrong:
            self.left_out[wrong.document] += 1
            return None
        name = self.name(letter)
        told = self.run(f"{name} = {source}")
        if told is None or told[0] != "expression":
            return None
        entry = Entry(name, tuple(told[1][0]), told[1][1])
        self.entries[name] = entry
        if self.eager and self.run(f"{name}.npvalue()") is None:
            self.drop(entry)
            return None
        return entry

    def entries_in(self, text: str) -> list[Entry]:
        return [self.entries[name] for name in re.findall(r"\b[a-z]\d+\b", text) if name in self.entries]

    def drop(self, e: Entry) -> None:
        """Take out an expression whose value one of them refuses: DyNet's graph is spoilt by it."""
        late = self.differences[-1] if self.differences else None
        line = next(line for line in self.lines if line.startswith(f"{e.name} = "))
        if late and late.line == f"{e.name}.npvalue()":
            late.line = line
            late.kind += " late"
        kept = [k for k, other in enumerate(self.lines) if not re.search(rf"\b{e.name}\b", other)]
        self.numbers = [(kept.index(k), *told) for k, *told in self.numbers if k in kept]
        self.lines = [self.lines[k] for k in kept]
        late.shapes = self.shapes(line) if late else ""
        del self.entries[e.name]
        self.again()

    def make(self, shape: tuple[int, ...] | None = None, batch: int | None = None, low=-1.0, high=1.0) -> Entry:
        """An input of that shape."""
        shape = self.shape() if shape is None else shape
        batch = self.size() if batch is None else batch
        full = shape if batch == 1 else (*shape, batch)
        array = self.A(full, low, high)
        kind = self.below(4)
        if kind == 0 and batch == 1 and len(shape) == 1:
            source = f"dy.inputVector({array}{self.one(['', '.tolist()'])})"
        elif kind == 1 and batch == 1:
            source = f"dy.inputTensor({array}.tolist())"
        else:
            source = f"dy.inputTensor({array}{', batched=True' if batch > 1 else ''})"
        made = self.add(source, "x")
        if made is None:
            raise Over
        return made

    def any(self, fits: Callable[[Entry], bool] = lambda e: True) -> Entry | None:
        found = [e for e in self.entries.values() if fits(e)]
        # Recent ones more often, so that graphs are deep.
        return found[-1 - min(self.below(len(found)), self.below(len(found)))] if found else None

    def get(self, shape: tuple[int, ...] | None = None, batch: int | None = None) -> Entry:
        """Something of that shape (and batch size), or an input; now and then of another shape."""
        if shape is None or self.chance(0.02):
            return self.any() or self.make()
        found = None
        if self.chance(0.8):
            found = self.any(lambda e: e.shape == shape and (batch is None or e.batch == batch))
        return found or self.make(shape, batch)

    def axes(self, nd: int) -> tuple[int, ...]:
        e = self.any(lambda e: len(e.shape) == nd)
        if e is not None and self.chance(0.8):
            return e.shape
        return tuple(self.one([1, 2, 3, 4, 5] if nd < 3 else [1, 2, 3]) for _ in range(nd))

    def vector(self) -> Entry:
        return self.get(self.axes(1))

    def matrix(self) -> Entry:
        return self.get(self.axes(2))

    def within(self, e: Entry | None = None, low: float = -0.9, high: float = 0.9) -> str:
        """An expression as text, squeezed into an interval."""
        e = e or self.get()
        middle, half = (low + high) / 2, (high - low) / 2
        return f"(dy.tanh({e.name}) * {half:.4g} + {middle:.4g})"

    def axis(self, e: Entry) -> int:
        return self.below(max(1, len(e.shape)) + (1 if self.chance(0.04) else 0))

    def some_axes(self, e: Entry, most: int) -> list[int]:
        n = len(e.shape)
        return [int(k) for k in self.rng.permutation(n)[: 1 + self.below(min(n, most))]]

    def index(self, n: int) -> int:
        return self.below(n)

    def indices(self, n: int, count: int) -> list[int]:
        return [self.index(n) for _ in range(count)]

    def number_text(self) -> str:
        return self.one(["2", "0.5", "-1.5", "3.0", "1", "0.25"])


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
    """Two expressions of which one may lack axes of the other."""
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
def acosh(p):
    return f"dy.acosh({p.within(None, 1.2, 3.0)})"


@op
def softsign(p):
    return f"dy.softsign({p.vector().name})"


@op
def elu_alpha(p):
    return f"dy.elu({p.get().name}, {p.one(['0.3', 'alpha=0.7'])})"


@op
def silu_beta(p):
    return f"dy.silu({p.get().name}, beta=1.0)"


@op
def scale_gradient(p):
    return f"dy.scale_gradient({p.get().name}, {p.one(['0.5', '-2.0', 'lambd=3.0'])})"


@op
def rounding(p):
    rounded = f"dy.{p.one(['floor', 'ceil', 'round'])}({p.get().name} * 3.0, gradient_mode='straight_through_gradient')"
    return f"dy.nobackprop({rounded})"


@op
def number(p):
    e, n = p.get().name, p.number_text()
    return p.one(
        [f"{e} + {n}", f"{n} + {e}", f"{e} - {n}", f"{n} - {e}", f"{e} * {n}", f"{n} * {e}", f"{e} / {n}", f"-{e}"]
    )


@op
def power_number(p):
    return f"{p.within(None, 0.3, 1.7)} ** {p.one(['2', '3.0', '0.5', '-1.5'])}"


@op
def power(p):
    return f"dy.pow({p.within(None, 0.3, 1.7)}, {p.within(p.get((1,)), 0.5, 2.0)})"


@op
def plus(p):
    a, b = broadcast(p)
    return f"{a} {p.one('+-')} {b}"


@op
def cmult_broadcast(p):
    return "dy.cmult({}, {})".format(*broadcast(p))


@op
def cdiv(p):
    a, b = broadcast(p)
    return f"dy.cdiv({a}, {p.within(p.entries[b], 0.6, 1.9)})"


@op
def over(p):
    a, b = broadcast(p)
    return f"{a} / {p.within(p.entries[b], 0.6, 1.9)}"


@op
def colwise_add(p):
    m = p.matrix()
    return f"dy.colwise_add({m.name}, {p.get((m.shape[0],)).name})"


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


@op
def losses(p):
    a, b = pair(p).split(", ")
    return p.one(
        [
            f"dy.binary_log_loss(dy.logistic({a}), dy.nobackprop(dy.logistic({b})))",
            f"dy.huber_distance({a}, {b})",
            f"dy.huber_distance({a}, {b}, c=0.4)",
            f"dy.pairwise_rank_loss({a}, {b})",
            f"dy.pairwise_rank_loss({a}, {b}, m=0.3)",
            f"dy.trace_of_product({a}, {b})",
        ]
    )


@op
def poisson_loss(p):
    x = p.make((1,))
    del p.entries[x.name]  # DyNet's gradient of it is wrong
    return f"dy.poisson_loss({x.name}, {p.below(5)})"


@op
def circular(p):
    return f"dy.{p.one(['circ_conv', 'circ_corr'])}({pair(p)})"


def names_like(p: Program, e: Entry, most: int = 4) -> str:
    names = [e.name] + [p.get(e.shape, e.batch if p.chance(0.7) else None).name for _ in range(p.below(most))]
    return p.one(["[{}]", "[{}]", "[{}]", "({},)"]).format(", ".join(names))


for _name in ("esum", "average", "emax", "logsumexp", "concatenate_to_batch"):
    OPS[_name] = lambda p, name=_name: f"dy.{name}({names_like(p, p.get())})"  # type: ignore[misc]


@op
def concatenate_cols(p):
    e = p.vector() if p.chance(0.7) else p.get()
    return f"dy.concatenate_cols({names_like(p, e)})"


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
def mean_dim(p):
    e = p.get()
    n = p.one(["", "", ", 0", ", n=3"])
    return f"dy.{p.one(['mean_dim', 'std_dim'])}({e.name}, {p.some_axes(e, 2)}, {p.one(['False', 'True'])}{n})"


@op
def moment(p):
    e, r = p.get(), p.one([1, 2, 3])
    axes, b = p.some_axes(e, 2), p.one(["False", "True"])
    return p.one(
        [
            f"dy.moment_elems({e.name}, {r})",
            f"dy.moment_batches({e.name}, {r})",
            f"dy.moment_dim({e.name}, {axes}, {r}, {b})",
        ]
    )


@op
def along(p):
    e = p.get()
    name = p.one(["max_dim", "min_dim", "logsumexp_dim", "cumsum"])
    return f"dy.{name}({e.name}{p.one(['', f', {p.axis(e)}', f', d={p.axis(e)}'])})"


@op
def argmax(p):
    mode = p.one(["zero_gradient", "straight_through_gradient"])
    return f"dy.argmax({p.vector().name}, gradient_mode='{mode}')"


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
def select(p):
    e = p.get()
    if p.chance(0.5):
        return f"dy.select_rows({e.name}, {p.indices(e.axis(0), 1 + p.below(3))})"
    e = p.matrix()
    return f"dy.select_cols({e.name}, {p.indices(e.axis(1), 1 + p.below(3))})"


@op
def strided_select(p):
    e = p.get()
    n = 1 + p.below(len(e.shape))
    strides = [p.one([1, 1, 2]) for _ in range(n)]
    start = [p.below(e.shape[k]) for k in range(n)]
    stop = [start[k] + 1 + p.below(e.shape[k] - start[k]) for k in range(n)]
    return p.one(
        [
            f"dy.strided_select({e.name}, {strides}, {start}, {stop})",
            f"dy.strided_select({e.name}, {strides})",
            f"dy.strided_select({e.name}, {strides}, {start})",
            f"dy.strided_select({e.name}, strides={strides}, range_from={start}, range_to={stop})",
        ]
    )


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
def log_softmax(p):
    e = p.one([p.vector, p.vector, p.matrix])()
    chosen = sorted({p.below(e.axis(0)) for _ in range(3)})
    return f"dy.log_softmax({e.name})" if p.chance(0.7) else f"dy.exp(dy.log_softmax({e.name}, {chosen}))"


@op
def sparsemax(p):
    return f"dy.sparsemax({p.vector().name})"


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
def hinge_dim(p):
    e = p.matrix()
    return f"dy.hinge_dim({e.name}, {p.indices(e.axis(0), e.axis(1))}{p.one(['', ', m=0.3', ', d=0'])})"


@op
def constrained_softmax(p):
    e = p.get(p.axes(1), 1)
    return f"dy.constrained_softmax({e.name}, {p.within(p.get(e.shape, 1), 0.5, 0.9)})"


@op
def conv2d(p):
    batch = p.size()
    x = p.get((p.one([3, 4, 5]), p.one([3, 4]), p.one([1, 2])), batch)
    f = p.get((p.one([1, 2, 3]), p.one([1, 2, 3]), x.axis(2), p.one([1, 2, 3])), 1)
    stride = [p.one([1, 1, 2]), p.one([1, 1, 2])]
    valid = p.one(["", ", is_valid=True", ", is_valid=False", ", False"])
    if p.chance(0.5):
        return f"dy.conv2d({x.name}, {f.name}, {stride}{valid})"
    return f"dy.conv2d_bias({x.name}, {f.name}, {p.get((f.axis(3),), 1).name}, {stride}{valid})"


@op
def maxpooling2d(p):
    x = p.get((p.one([3, 4, 5]), p.one([3, 4]), p.one([1, 2])))
    valid = p.one(["", ", is_valid=True", ", is_valid=False", ", False"])
    return f"dy.maxpooling2d({x.name}, {[p.one([1, 2, 3]), p.one([1, 2])]}, {[p.one([1, 2]), p.one([1, 2])]}{valid})"


@op
def rows_and_columns(p):
    e = p.matrix()
    return p.one(
        [
            f"dy.fold_rows({e.name}, {p.one([d for d in (1, 2, 3, 4) if e.axis(0) % d == 0])})",
            f"dy.kmax_pooling({e.name}, {1 + p.below(e.axis(1))}{p.one(['', ', d=1', ', 1'])})",
            f"dy.kmh_ngram({e.name}, {1 + p.below(e.axis(1))})",
            f"dy.filter1d_narrow({e.name}, {p.get((e.axis(0), 1 + p.below(e.axis(1)))).name})",
        ]
    )


@op
def contract(p):
    x = p.get(p.axes(3), 1)
    b, c = p.get((x.axis(2),), 1), p.get((x.axis(1),), 1)
    d, bias = p.get((x.axis(0),), 1), p.get((x.axis(0), x.axis(1)), 1)
    return p.one(
        [
            f"dy.contract3d_1d_1d({x.name}, {b.name}, {c.name})",
            f"dy.contract3d_1d_1d_bias({x.name}, {b.name}, {c.name}, {d.name})",
            f"dy.contract3d_1d_bias({x.name}, {b.name}, {bias.name})",
        ]
    )


@op
def inverse(p):
    n = p.one([1, 2, 3])
    e = p.within(p.get((n, n), 1), -0.3, 0.3)
    eye = p.add(f"dy.inputTensor(np.eye({n}) * 2)", "x")
    return f"dy.{p.one(['inverse', 'logdet'])}({e} + {eye.name})" if eye else None


@op
def normalisation(p):
    if p.chance(0.5):
        x = p.get(p.one([(3,), (4,), (5,)]))
        return f"dy.layer_norm({x.name}, {p.get(x.shape, 1).name}, {p.get(x.shape, 1).name})"
    w = p.get(None)
    return f"dy.weight_norm({w.name}, {p.get((1,), 1).name})"


@op
def no_dropout(p):
    e = p.get()
    return p.one(
        [
            f"dy.dropout({e.name}, 0.0)",
            f"dy.dropout({e.name}, 0)",
            f"dy.noise({e.name}, 0.0)",
            f"dy.dropout_dim({e.name}, {p.axis(e)}, 0.0)",
            f"dy.dropout_batch({e.name}, 0.0)",
            f"dy.block_dropout({e.name}, 0.0)",
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


OFTEN = [
    "parameter",
    "lookup",
    "product",
    "affine",
    "plus",
    "number",
    "concatenate",
    "reshape",
    "index",
    "pick",
    "tanh",
]
UNBOUNDED = re.compile(
    r"square|cube|exp|sinh|cosh|\*|affine|sum|norm|tan\(|poisson|distance|conv|logdet|inverse|contract|circ"
)


class RandomProgram(Program):
    parameters: list[str]
    tables: list[str]

    def build(self) -> None:
        self.model()
        try:
            for _ in range(self.one([1, 1, 2])):
                self.graph()
        except Over:
            pass

    def model(self) -> None:
        self.parameters, self.tables, self.builders = [], [], []
        self.run("m = dy.ParameterCollection()")
        for _ in range(2 + self.below(3)):
            name, shape = self.name("p"), self.shape()
            made = self.one(["m.add_parameters({0}, init={1})", "m.parameters_from_numpy({1})"])
            self.run(f"{name} = {made.format(shape, self.A(shape))}")
            self.parameters.append(name)
        for _ in range(1 + self.below(2)):
            name, shape = self.name("t"), self.one([(3,), (2,), (4,), (3, 1), (1, 2), (1,)])
            array = self.A((5, *shape))
            made = self.one(["m.add_lookup_parameters({0}, init={1})", "m.lookup_parameters_from_numpy({1})"])
            self.run(f"{name} = {made.format((5, *shape), array)}")
            self.tables.append(name)
        if self.chance(0.4):
            name, inner, hidden, layers = self.name("b"), self.one([2, 3]), self.one([2, 3]), self.one([1, 1, 2])
            self.run(f"{name} = dy.{self.one(BUILDERS)}({layers}, {inner}, {hidden}, m)")
            self.builders.append((name, inner, hidden, layers))
        seed = self.below(10**6)
        self.run(f"[p.set_value(A({seed} + i, p.shape(), -0.7, 0.7)) for i, p in enumerate(m.parameters_list())]")
        self.run(f"trainer = dy.{self.one(TRAINERS)}")
        if self.chance(0.3):
            self.run(f"trainer.set_clip_threshold({self.one(['0.5', '-1.0', '0'])})")
        if self.chance(0.2):
            self.run("trainer.set_sparse_updates(False)")
        if self.chance(0.15):
            self.run(f"{self.one(self.parameters)}.set_updated(True)")

    def graph(self) -> None:
        self.entries = {}
        self.run("dy.renew_cg()")
        for _ in range(2):
            self.make()
        for part in range(self.one([1, 1, 2])):
            for _ in range(4 + self.below(10)):
                self.step()
            if self.builders and self.chance(0.7):
                self.network()
            if self.chance(0.2):
                self.read(self.get())
            if self.chance(0.25):
                self.settings()
            self.train(last=part)

    def step(self) -> None:
        name = self.one(OFTEN) if self.chance(0.3) else self.one(OPS)
        source = OPS[name](self)
        if source is None:
            return
        e = self.add(source)
        if e is not None and UNBOUNDED.search(source):
            del self.entries[e.name]
            self.add(f"dy.tanh({e.name})")
            self.entries[e.name] = e
            self.entries = {k: self.entries[k] for k in [e.name, *[n for n in self.entries if n != e.name]]}

    def network(self) -> None:
        """Steps of a builder."""
        name, inner, hidden, layers = self.one(self.builders)
        batch = self.size()
        s = self.name("s")
        states = 1 if self.run(f"type({name}).__name__ in ('SimpleRNNBuilder', 'GRUBuilder')")[1] else 2
        start = ""
        if self.chance(0.4):
            start = "[" + ", ".join(self.get((hidden,), batch).name for _ in range(states * layers)) + "]"
        xs = [self.get((inner,), batch).name for _ in range(1 + self.below(4))]
        if self.chance(0.3):
            outs = self.name("o")
            self.run(
                f"{outs} = {name}.initial_state({start}).{self.one(['transduce', 'add_inputs'])}([{', '.join(xs)}])"
            )
            self.add(f"{outs}[-1] if isinstance({outs}[-1], dy.Expression) else {outs}[-1].output()")
            return
        self.run(f"{s} = {name}.initial_state({start})")
        for x in xs:
            self.run(f"{s} = {s}.add_input({x})")
            if self.chance(0.5):
                self.add(f"{s}.{self.one(['output()', 'output()', 'h()[0]', 's()[0]', 's()[-1]'])}")
            if self.chance(0.1) and layers == 1:
                self.run(f"{s} = {s}.set_h([{self.get((hidden,), batch).name}])")
            if self.chance(0.1):
                values = ", ".join(self.get((hidden,), batch).name for _ in range(states * layers))
                self.run(f"{s} = {s}.set_s([{values}])")
            if self.chance(0.1):
                self.run(f"{s}.prev() is None")
        self.add(f"{s}.output()")

    def settings(self) -> None:
        """Inputs and rows that are set to something else, and everything computed again."""
        inputs = []
        for line in self.lines[len(self.lines) - self.lines[::-1].index("dy.renew_cg()") :]:
            target, _, source = line.partition(" = ")
            if target in self.entries and re.match(
                r"t\d+\[|dy\.lookup|t\d+\.batch|dy\.(inputVector|vecInput|scalarInput)", source
            ):
                inputs.append((target, source))
        if not inputs:
            return
        target, source = self.one(inputs)
        e = self.entries[target]
        if re.match(r"t\d+\[|dy\.lookup\(", source):
            self.run(f"{target}.set({self.below(5)})")
        elif re.match(r"t\d+\.batch|dy\.lookup_batch", source):
            self.run(f"{target}.set({self.indices(5, e.batch)})")
        elif source.startswith("dy.scalarInput"):
            self.run(f"{target}.set({self.number_text()})")
        else:
            self.run(f"{target}.set({self.A(e.shape)}{self.one(['', '.tolist()'])})")
        last = self.add(f"dy.sum_elems({target})")
        if last:
            self.run(f"{last.name}.npvalue(recalculate=True)")

    def read(self, e: Entry) -> None:
        self.run(f"{e.name}.{self.one(['value()', 'npvalue()', 'vec_value()', 'forward()'])}")

    def train(self, last: int) -> None:
        """A loss of some expressions, backward, all gradients, an update."""
        names = list(self.entries)
        # DyNet moves a whole table that the loss does not depend on: see `differences.md`.
        chosen = [self.entries[n] for n in names if self.chance(0.6) or self.is_table(n)] or [self.entries[names[-1]]]
        terms = []
        for e in chosen:
            weights = self.name("w")
            array = self.A((*e.shape, e.batch) if e.batch > 1 else e.shape)
            self.run(f"{weights} = dy.inputTensor({array}{', batched=True' if e.batch > 1 else ''})")
            term = self.name("l")
            if self.run(f"{term} = dy.sum_batches(dy.sum_elems(dy.cmult({e.name}, {weights})))") is not None:
                terms.append(term)
        loss = self.name("L")
        if not terms or self.run(f"{loss} = dy.esum([{', '.join(terms)}])") is None:
            return
        if self.run(f"{loss}.{self.one(['value()', 'scalar_value()', 'forward()', 'npvalue()'])}") is None:
            raise Over
        self.look([f"{e.name}.{form}()" for e in self.entries.values() for form in self.forms(e)])
        after = self.add(f"{self.get().name} * 2.0") if self.chance(0.2) else None
        self.run(f"{loss}.backward({self.one(['', '', 'full=True', 'full=False', 'True'])})")
        made_before = [name for name in [*self.entries, loss, *terms[:2]] if after is None or name != after.name]
        self.look([f"{name}.gradient()" for name in [*made_before, *self.parameters]])
        self.of_parameters("grad_as_array()")
        if self.lost:
            raise Over
        if self.chance(0.7):
            self.run("trainer.update()")
            self.of_parameters("as_array()")
            self.of_parameters("grad_as_array()")
            self.look([f"{name}.gradient()" for name in [*made_before, *self.parameters][::2]])
            self.entries = {}
            self.run("dy.renew_cg()")
            self.make()
            self.make()

    def is_table(self, name: str) -> bool:
        line = next(line for line in self.lines if line.startswith(f"{name} = "))
        return bool(re.search(r"= (dy\.parameter\(t\d+\)|t\d+\.expr\(\)|t\d+ \* )", line))

    def forms(self, e: Entry) -> list[str]:
        """Ways to read a value."""
        forms = ["npvalue", "value", "vec_value"] if self.chance(0.3) else ["npvalue"]
        return [*forms, "scalar_value"] if int(np.prod(e.shape)) * e.batch == 1 and self.chance(0.5) else forms

    def of_parameters(self, what: str) -> None:
        lines = [f"{name}.{what}" for name in [*self.parameters, *self.tables]]
        self.look([*lines, f"[p.{what} for p in m.parameters_list()]"] if self.builders else lines)


@dataclass(frozen=True)
class Meant:
    """Lines on which the libraries differ on purpose.

    Attributes:
        document: first cell of the line in docs/differences.md.
        kinds: what may differ, a regular expression.
        line: what the line looks like, a regular expression.
        says: what DyNet says, a regular expression.
        shapes: what shapes of its expressions look like, a regular expression.
        ours: what is said here, a regular expression.
        also: what else holds.
    """

    document: str
    kinds: str
    line: str
    says: str = ""
    shapes: str = ""
    ours: str = ""
    also: Callable[[Difference], bool] = lambda d: True

    def covers(self, d: Difference) -> bool:
        return bool(
            re.fullmatch(self.kinds, d.kind)
            and re.search(self.line, d.line)
            and re.search(self.says, str(d.theirs))
            and re.search(self.shapes, d.shapes)
            and re.search(self.ours, str(d.ours))
            and self.also(d)
        )


def left_out(d: Difference) -> bool:
    """Whether DyNet tells 0 for a gradient that its last backward was not to compute."""
    backward = next(line for line in reversed(d.lines) if ".backward(" in line)
    return "True" not in backward and not np.any(d.theirs)


def refuses(document: str, line: str, says: str = "") -> Meant:
    """DyNet refuses, when the node is made or later."""
    return Meant(document, "DyNet refuses( late)?", line, says)


def of_several_constants(d: Difference) -> bool:
    """Whether the expression is a constant of a parameter of which the graph has others."""
    graph = d.lines[len(d.lines) - d.lines[::-1].index("dy.renew_cg()") :]
    made = dict(line.split(" = ", 1) for line in graph if " = " in line)
    constant = r"dy\.const_parameter\((\w+)\)|(\w+)\.expr\((?:False)?\)"
    of = {name: "".join(found.groups("")) for name, text in made.items() if (found := re.fullmatch(constant, text))}
    name = d.line.partition(".")[0]
    return Counter(of.values())[of.get(name)] > 1


@dataclass(frozen=True)
class Wrong:
    """Expressions whose numbers or gradients are wrong in DyNet.

    Attributes:
        document: first cell of the line in docs/differences.md.
        source: what the text of the expression looks like, a regular expression.
        where: which of them, by the expressions in it.
    """

    document: str
    source: str
    where: Callable[[list[Entry]], bool] = lambda entries: True

    def covers(self, source: str, entries: list[Entry]) -> bool:
        return bool(re.search(self.source, source)) and self.where(entries)


def broadcast_axes(a: Entry, b: Entry) -> int:
    """Along how many axes, the batch counted, one of the two is broadcast."""
    axes = range(max(len(a.shape), len(b.shape)))
    return sum(a.axis(k) != b.axis(k) for k in axes) + (a.batch != b.batch)


WRONG = [
    Wrong("`average`", r"dy\.average\(", lambda entries: len({e.batch for e in entries}) > 1),
    Wrong("`concatenate` along the fifth axis", r"dy\.concatenate\(.*(, |d=)4\)"),
    Wrong("`logsumexp_dim`", r"logsumexp_dim\(\w+, (d=)?1\)", lambda entries: entries[0].axis(0) > entries[0].axis(1)),
    Wrong(
        "`cdiv`",
        r"^dy\.cdiv\(|^\w+ / \(",
        lambda entries: len(entries) > 1 and len(entries[0].shape) < len(entries[1].shape),
    ),
    Wrong(
        "broadcasting along five axes and more",
        r"^\w+ [-+] \w+$|^dy\.(cmult|cdiv)\(|^\w+ / \(",
        lambda entries: len(entries) > 1 and broadcast_axes(*entries) > 4,
    ),
]

LAYER_NORM = "`layer_norm` of a matrix with a gain and bias of one column"
CONSTANTS = "`gradient()` of several constants of one parameter (`const_parameter(p)`, `p.expr(False)`)"
PLAIN_GRADIENT = "`gradient()` of what no parameter lies behind"
LATE_GRADIENT = "`gradient()` of a parameter's expression after an update"
BATCHES_IN = (
    "batches in `inverse`, `logdet`, `trace_of_product`, `constrained_softmax`, `kmh_ngram`, `circ_conv`, "
    "`circ_corr`, `contract3d_1d_1d`"
)
MEANT: list[Meant] = [
    Meant(PLAIN_GRADIENT, "numbers", r"\.gradient\(\)", also=left_out),
    Meant(CONSTANTS, "numbers", r"\.gradient\(\)", also=of_several_constants),
    Meant(LATE_GRADIENT, "refused here", r"\.gradient\(\)", ours="have changed since backward"),
    Meant("`gradient()` of `reshape` and other ops in place", "DyNet refuses", r"\.gradient\(\)", "inplaced operation"),
    refuses("lists and tuples", r"", "got tuple|expected tuple"),
    refuses("operators", r"= -?[\d.]+ [-+*/] ", "unsupported operand"),
    refuses("operators", r" / \(", "NotImplementedError"),
    refuses("operators", r"= \w+ (/|\*) "),
    refuses(
        "batches in many ops",
        r"sparsemax|block_dropout|poisson_loss|l1_distance|huber_distance|binary_log_loss|weight_norm|log_softmax|pickneg"
        r"|hinge|pairwise_rank_loss|vanilla_lstm",
        "batch|Bad input dim|Bad arg|X\\d",
    ),
    refuses(
        BATCHES_IN, "inverse|logdet|trace_of_product|constrained_softmax|kmh_ngram|circ_co|contract3d", "batch|Bad|X\\d"
    ),
    Meant(BATCHES_IN, "shape or type", "kmh_ngram"),
    Meant("batches in `fold_rows`, `filter1d_narrow`", "shape or type", "fold_rows|filter1d_narrow"),
    refuses("reductions", r"(sum|mean|std|moment)_(dim|elems|batches)", "implemented up to"),
    refuses("`bmin`, `bmax`, `emax`", r"dy\.(bmin|bmax|emax)", "Bad arguments"),
    refuses("`cdiv`", r"dy\.cdiv", "CwiseQuotient"),
    refuses("`affine_transform`", "affine_transform", "AffineTransform"),
    refuses("`pow`", r"dy\.pow", "Bad input|scalar"),
    refuses(
        "three axes and more",
        r"pick|\[|max_dim|min_dim|cumsum|softmax|logsumexp|select|layer_norm|transpose",
        "or more dim|or fewer|Dimensions passed to transpose|up to tensors",
    ),
    refuses("`sparsemax`", "sparsemax"),
    refuses("`softsign`, `argmax`", "softsign"),
    refuses("`softsign`, `argmax`", "argmax", "only supports vectors"),
    refuses("fewer axes", "conv2d|maxpooling2d|circ_co|colwise_add", "Bad input dim"),
    Meant(LAYER_NORM, "refused here|DyNet refuses( late)?", r"dy\.layer_norm"),
    refuses("fewer axes", "add_input|transduce|lstm_gates|vanilla_lstm_[ch]", "to be a vector"),
    refuses("fewer axes", "filter1d_narrow", "Bad input dimensions in Filter1DNarrow"),
    refuses("indices", r"\[-", "negative value"),
    refuses("indices", r"= e\d+\[.*:", "an integer is required"),
    refuses("`dot_product`", r"dy\.dot_product", "Bad arguments to DotProduct"),
    refuses("`affine_transform`", "add_input|transduce", "Bad dimensions for AffineTransform"),
    refuses("batches in many ops", "vanilla_lstm_[ch]|add_input|transduce", "expected 4 times as big as c_t"),
    refuses("three axes and more", "dropout_dim", "up to order 3"),
    Meant("unchecked arguments", "refused here|DyNet refuses late", "", ours=r"batch sizes \d+ and \d+ differ"),
    Meant("unchecked arguments", "refused here", "set_s|set_h|initial_state|constrained_softmax|inverse|contract3d"),
    Meant("unchecked arguments", "refused here", "add_input|transduce", ours="must be matrices or vectors"),
    Meant("ends the process", "DyNet dies late", "affine_transform", ours="DimensionError"),
    Meant("indices", "DyNet refuses late", "", ours="IndexError"),
    Meant("`pow`", "shape or type", r"dy\.pow", shapes=r"x([2-9]|[1-9][0-9])"),
    Meant("gradient of a deviation or a norm of 0", "numbers", r"grad", "nan"),
]


class Comparison:
    """Workers that run one program after the other."""

    def __init__(self) -> None:
        self.theirs, self.ours = Worker("dynet"), Worker("dynet_cy")
        self.noisy = [Worker("dynet_cy", str(seed)) for seed in (1, 2)]
        self.compared = 0
        self.meant: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()

    def run(self, number: int) -> tuple[RandomProgram, list[Difference]]:
        """A program, and its differences that are not meant."""
        program = RandomProgram(self.theirs, self.ours, number)
        program.build()
        program.settle(self.noisy)
        self.compared += program.compared
        self.left_out += program.left_out
        found = []
        for difference in program.differences:
            meant = next((m for m in MEANT if m.covers(difference)), None)
            if meant:
                self.meant[meant.document] += 1
            else:
                found.append(difference)
        return program, found

    def close(self) -> None:
        for worker in (self.theirs, self.ours, *self.noisy):
            worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print the programs")
    parser.add_argument("--save", type=Path, help="pickle the differences there")
    options = parser.parse_args()
    comparison, everything, start = Comparison(), [], time.time()
    for number in range(options.first, options.first + options.programs):
        program, found = comparison.run(number)
        everything += found
        if options.verbose:
            print("\n".join(program.lines))
        for difference in found:
            print(difference, flush=True)
    comparison.close()
    print(f"{options.programs} programs, {comparison.compared} lines compared, {time.time() - start:.0f} s")
    print(f"{len(everything)} differences that are not meant, {sum(comparison.meant.values())} that are:")
    for document, count in comparison.meant.most_common():
        print(f"{count:8} {document}")
    for document, count in comparison.left_out.most_common():
        print(f"{count:8} left out: {document}")
    for what, count in Counter(f"{d.kind}: {d.function()}" for d in everything).most_common():
        print(f"{count:8} NOT MEANT {what}")
    if options.save:
        options.save.write_bytes(pickle.dumps(everything))
    sys.exit(bool(everything))


if __name__ == "__main__":
    main()
