"""Runs a program in two libraries line by line, each in its own process."""

import contextlib
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WORKER = Path(__file__).with_name("program_worker.py")


class Died(Exception):
    """The process of a library has ended."""


class Worker:
    """A library in another process, which is restarted if it dies."""

    def __init__(self, module: str, *options: str) -> None:
        self.command = [sys.executable, str(WORKER), module, *options]
        self.process: subprocess.Popen | None = None
        self.begun: list[str | None] | None = None

    def begin(self, lines: list[str | None]) -> None:
        """Send lines; `ask` with the same lines waits for the results."""
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
        """The function that the line calls, for counting."""
        found = re.search(r"= (?:dy\.)?([a-z_]\w*)\(|= \w+(\.\w+|\[| \S+ )|\.(\w+)\(", self.line)
        return next((g for g in found.groups() if g), "?").strip() if found else "?"

    def __str__(self) -> str:
        with np.printoptions(threshold=24, precision=5):
            said = [re.sub(r"\s+", " ", str(x))[:300] for x in (self.theirs, self.ours)]
        where = f"program {self.program}: {self.kind}: {self.line}"
        return f"{where}\n    DyNet {said[0]}\n    here  {said[1]}\n    {self.shapes}"


def close_enough(a: Any, b: Any, slack: Any = 0.0) -> bool:
    """Equal up to rounding: 2e-5 of the greatest magnitude, plus the slack, how far noise moves each number."""
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
    """The program cannot continue."""


class Pair:
    """A program in both libraries."""

    def __init__(self, theirs: Worker, ours: Worker, number: int) -> None:
        self.theirs, self.ours, self.number = theirs, ours, number
        self.lines: list[str] = []
        self.differences: list[Difference] = []
        self.left_out: Counter[str] = Counter()  # counts of lines of WRONG, by their line of docs/differences.md
        self.lost = False  # DyNet has a NaN in the gradient of a parameter, we do not
        self.compared = 0
        self.spoilt = False  # the graphs must be made again
        self.numbers: list[tuple[int, Any, Any]] = []  # lines that differ: number, DyNet's and our result
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
        """Run the program so far from the start: an error can leave a node in DyNet's graph that breaks it."""
        for worker in (self.theirs, self.ours):
            worker.ask([None, *self.lines])

    def ask(self, worker: Worker, lines: list[str]) -> list[Any]:
        """The results of lines in a worker; if it dies, it runs them again one by one."""
        try:
            return worker.ask(lines)
        except Died:
            worker.ask([None, *self.lines])
            if len(lines) == 1:
                return [("died", "", "")]
            return [self.ask(worker, [line])[0] for line in lines]

    def run(self, line: str) -> Any:
        """The result of a line in both, or None if one of them refuses it: then it is not part of the program."""
        return self.look([line])[0]

    def look(self, lines: list[str]) -> list[Any]:
        """The same for lines that do not depend on each other."""
        for worker in (self.theirs, self.ours):
            with contextlib.suppress(Died):  # `ask` finds out
                worker.begin(lines)  # both work at the same time
        both = zip(lines, self.ask(self.theirs, lines), self.ask(self.ours, lines))
        self.compared += len(lines)
        told = [self.judge(line, theirs, ours) for line, theirs, ours in both]
        last = self.differences[-1] if self.differences else None
        if not self.eager and last and last.kind == "DyNet refuses" and READING.search(last.line):
            self.differences.pop()  # programs that read every value at once show which expression that was
            raise Over
        if self.spoilt:
            self.spoilt = False
            self.again()
        return told

    def judge(self, line: str, theirs: Any, ours: Any) -> Any:
        """Note how the results of both for a line differ."""
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
        """We refuse a line that DyNet accepts; DyNet may refuse it later, when it computes."""
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
        """Separate differences that rounding explains from others."""
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
