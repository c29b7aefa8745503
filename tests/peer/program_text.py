"""The text of a random program: names, shapes, and choices among its expressions."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from program_meant import WRONG
from program_pair import Entry, Over, Pair, Worker


class Program(Pair):
    """A random program while it is being made."""

    def __init__(self, theirs: Worker, ours: Worker, number: int) -> None:
        super().__init__(theirs, ours, number)
        self.rng = np.random.default_rng(number)
        self.entries = {}
        self.count = 0
        self.B = int(self.rng.integers(2, 4))
        self.eager = self.chance(0.7)  # values are computed as soon as an expression is made

    # Parts of random arguments.

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
        """An array of random numbers, as text."""
        self.count += 1
        return f"A({1000 * self.number + self.count}, {shape}{'' if (low, high) == (-1, 1) else f', {low}, {high}'})"

    def shape(self) -> tuple[int, ...]:
        axes = self.one([1, 1, 1, 2, 2, 2, 3, 4])
        return tuple(self.one([1, 2, 3, 3, 4, 5] if axes < 3 else [1, 2, 3]) for _ in range(axes))

    def size(self) -> int:
        return self.one([1, 1, self.B])

    def add(self, source: str, letter: str = "e") -> Entry | None:
        """Add an expression, if both libraries accept it."""
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
        """Remove an expression whose value one library refuses to compute: it breaks DyNet's graph."""
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
        """An input of this shape."""
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
        # Prefers recent expressions, so that graphs are deep.
        return found[-1 - min(self.below(len(found)), self.below(len(found)))] if found else None

    def get(self, shape: tuple[int, ...] | None = None, batch: int | None = None) -> Entry:
        """An expression of this shape (and batch size), new or old; now and then one of another shape."""
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
        """An expression scaled into an interval, as text."""
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
