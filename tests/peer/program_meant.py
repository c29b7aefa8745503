"""Intended differences between the libraries in random programs, with their lines of docs/differences.md."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from program_pair import Difference, Entry


@dataclass(frozen=True)
class Meant:
    """Lines on which the libraries differ intentionally.

    Attributes:
        document: first cell of the line in docs/differences.md.
        kinds: regular expression for the kinds of differences.
        line: regular expression for the line.
        says: regular expression for DyNet's error.
        ours: regular expression for our error.
        also: a further condition.
    """

    document: str
    kinds: str
    line: str
    says: str = ""
    ours: str = ""
    also: Callable[[Difference], bool] = lambda d: True

    def covers(self, d: Difference) -> bool:
        return bool(
            re.fullmatch(self.kinds, d.kind)
            and re.search(self.line, d.line)
            and re.search(self.says, str(d.theirs))
            and re.search(self.ours, str(d.ours))
            and self.also(d)
        )


def left_out(d: Difference) -> bool:
    """Whether DyNet returns 0 for a gradient that its last backward pass did not need."""
    return is_plain(d) and not np.any(d.theirs)


def is_plain(d: Difference) -> bool:
    """Whether the last backward pass was not a full one."""
    return "True" not in next(line for line in reversed(d.lines) if ".backward(" in line)


def refuses(document: str, line: str, says: str = "") -> Meant:
    """DyNet raises an error when the node is made or later."""
    return Meant(document, "DyNet refuses( late)?", line, says)


def of_several_constants(d: Difference) -> bool:
    """Whether the expression is a constant of a parameter that has several constants in the graph."""
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
        source: regular expression for the text of the expression.
        where: a condition on its arguments.
    """

    document: str
    source: str
    where: Callable[[list[Entry]], bool] = lambda entries: True

    def covers(self, source: str, entries: list[Entry]) -> bool:
        return bool(re.search(self.source, source)) and self.where(entries)


def broadcast_axes(a: Entry, b: Entry) -> int:
    """The number of axes, including the batch, along which one of the two is broadcast."""
    axes = range(max(len(a.shape), len(b.shape)))
    return sum(a.axis(k) != b.axis(k) for k in axes) + (a.batch != b.batch)


WRONG = [
    Wrong("`average`", r"dy\.average\(", lambda entries: len({e.batch for e in entries}) > 1),
    Wrong("`concatenate` along the fifth axis", r"dy\.concatenate\(.*(, |d=)4\)"),
    Wrong(
        "broadcasting along five axes and more",
        r"^\w+ [-+] \w+$|^dy\.cmult\(",
        lambda entries: len(entries) > 1 and broadcast_axes(*entries) > 4,
    ),
]

CONSTANTS = "`gradient()` of several constants of one parameter (`const_parameter(p)`, `p.expr(False)`)"
PLAIN_GRADIENT = "`gradient()` of an expression that depends on no parameter"
LAZY_GRADIENT = "`gradient()` of a parameter's expression after an update"
MEANT: list[Meant] = [
    Meant(PLAIN_GRADIENT, "numbers", r"\.gradient\(\)", also=left_out),
    Meant(CONSTANTS, "numbers", r"\.gradient\(\)", also=of_several_constants),
    Meant(LAZY_GRADIENT, "refused here", r"\.gradient\(\)", ours="have changed since backward", also=is_plain),
    Meant("`gradient()` of `reshape` and other ops in place", "DyNet refuses", r"\.gradient\(\)", "inplaced operation"),
    refuses("lists and tuples", r"", "got tuple|expected tuple"),
    refuses("operators", r"= -?[\d.]+ [-+*/] ", "unsupported operand"),
    refuses("operators", r"= \w+ (/|\*) "),
    refuses(
        "batches in many ops",
        r"l1_distance|pickneg|hinge|vanilla_lstm",
        "batch|Bad input dim|Bad arg|X\\d",
    ),
    refuses("reductions", r"(sum|mean|std)_(dim|elems|batches)", "implemented up to"),
    refuses("`bmin`, `bmax`, `emax`", r"dy\.(bmin|bmax|emax)", "Bad arguments"),
    refuses("`affine_transform`", "affine_transform", "AffineTransform"),
    refuses(
        "three axes and more",
        r"pick|\[|softmax|transpose",
        "or more dim|or fewer|Dimensions passed to transpose|up to tensors",
    ),
    refuses("fewer axes", "add_input|transduce|lstm_gates|vanilla_lstm_[ch]", "to be a vector"),
    refuses("indices", r"\[-", "negative value"),
    refuses("indices", r"= e\d+\[.*:", "an integer is required"),
    refuses("`dot_product`", r"dy\.dot_product", "Bad arguments to DotProduct"),
    refuses("`affine_transform`", "add_input|transduce", "Bad dimensions for AffineTransform"),
    refuses("batches in many ops", "vanilla_lstm_[ch]|add_input|transduce", "expected 4 times as big as c_t"),
    Meant("unchecked arguments", "refused here|DyNet refuses late", "", ours=r"batch sizes \d+ and \d+ differ"),
    Meant("unchecked arguments", "refused here", "set_s|set_h|initial_state"),
    Meant("unchecked arguments", "refused here", "add_input|transduce", ours="must be matrices or vectors"),
    Meant("ends the process", "DyNet dies late", "affine_transform", ours="DimensionError"),
    Meant("indices", "DyNet refuses late", "", ours="IndexError"),
    Meant("gradient of a deviation or a norm of 0", "numbers", r"grad", "nan"),
]
