"""What to look at when a program of PyTorch, TensorFlow or DyNet is ported: ``python -m dynet_cy.port FILE...``

For a program of PyTorch or TensorFlow, it lists the places that would go on here with other numbers, with what they
mean there and here and what to write (the table of `dynet_cy.strict`), and the names that are called otherwise here.
For a program of DyNet, it lists the places that the known differences concern (docs/differences.md). The program is
read, not run, so the shapes of its tensors are not known: places are listed where they may matter.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import dynet_cy
from dynet_cy.core.equivalents import advice
from dynet_cy.differences import DIFFERENCES
from dynet_cy.readings import READINGS, Reading, has_sizes_apart

__all__ = ["Finding", "findings", "main"]

# Modules by the library that they belong to.
_LIBRARIES = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "TensorFlow",
    **dict.fromkeys(("dynet", "_dynet", "dynet_config"), "DyNet"),
}
_OPERATORS = {ast.Mult: "*", ast.Add: "+", ast.Eq: "==", ast.NotEq: "!="}
_NUMERIC_FUNCTIONS = frozenset(
    ["len", "int", "float", "bool", "str", "range", "min", "max", "round", "sum", "math", "time", "os", "random"]
)
_NUMERIC_METHODS = frozenset(["size", "item", "numel", "nelement", "dim", "ndimension", "shape", "ndim"])
_TENSOR_METHODS = frozenset(["argmax", "view", "permute", "squeeze", "unsqueeze", "cuda", "detach"])
_NUMERIC_TYPES = frozenset(["int", "float", "bool", "str"])


class Finding(NamedTuple):
    """A place of a program."""

    line: int
    """The number of the line; the first one is 1."""
    code: str
    """What it has written there."""
    says: tuple[tuple[str, str], ...]
    """What to know, as pairs of a label ("PyTorch", "dynet_cy", "write") and a text."""


class _Program(ast.NodeVisitor):
    """The modules and names of a program, and what its names are as far as that can be seen."""

    def __init__(self, tree: ast.AST) -> None:
        self.names: dict[str, str] = {}  # what an imported name is, as a dotted name
        self.kinds: dict[str, set[str]] = {}  # of variables and attributes, by name
        self.statements: set[ast.AST] = set()  # calls whose result is dropped
        for _ in range(3):  # names that are made of names
            self.visit(tree)

    @property
    def library(self) -> str:
        """The library that it is written for, or nothing."""
        tops = {_LIBRARIES.get(name.partition(".")[0], "") for name in self.names.values()}
        return next((library for library in ("DyNet", "PyTorch", "TensorFlow") if library in tops), "")

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            top = name.name.partition(".")[0]
            self.names[name.asname or top] = name.name if name.asname else top

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for name in node.names:
            self.names[name.asname or name.name] = f"{node.module or ''}.{name.name}"

    def visit_Expr(self, node: ast.Expr) -> None:
        self.statements.add(node.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.note(target, node.value)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        numbers = isinstance(node.iter, ast.Call) and self.dotted(node.iter.func) == "range"
        if numbers and isinstance(node.target, ast.Name):
            self.kinds.setdefault(node.target.id, set()).add("number")
        self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> None:
        every = [*node.posonlyargs, *node.args, *node.kwonlyargs]
        defaults: dict[str, ast.expr | None] = dict(zip([a.arg for a in node.kwonlyargs], node.kw_defaults))
        defaults.update(
            zip([a.arg for a in every[: len(node.posonlyargs) + len(node.args)]][::-1], node.defaults[::-1])
        )
        for argument in every:
            annotation = self.dotted(argument.annotation) if argument.annotation else ""
            default = defaults.get(argument.arg)
            number = annotation in _NUMERIC_TYPES or (default is not None and self.kind(default) == "number")
            self.kinds.setdefault(argument.arg, set()).add("number" if number else "")
        self.generic_visit(node)

    def note(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for part, of in zip(target.elts, value.elts):
                self.note(part, of)
        elif isinstance(target, ast.Tuple):
            for part in target.elts:  # n, m = x.shape
                self.note(part, value)
        elif isinstance(target, (ast.Name, ast.Attribute)):
            self.kinds.setdefault(_last(target), set()).add(self.kind(value))

    def dotted(self, node: ast.AST | None) -> str:
        """A name such as torch.nn.functional.softmax, with the names of imports in place; "" for other expressions."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before}.{node.attr}" if before else ""
        return ""

    def kind(self, node: ast.expr) -> str:
        """ "tensor", "number" (or anything else that is no tensor), or "" where it cannot be seen."""
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.Lambda)):
            return "number"
        if isinstance(node, ast.UnaryOp):
            return self.kind(node.operand)
        if isinstance(node, ast.BinOp):
            kinds = {self.kind(node.left), self.kind(node.right)}
            return "tensor" if "tensor" in kinds else "" if "" in kinds else "number"
        if isinstance(node, ast.Subscript):
            return self.kind(node.value)
        if isinstance(node, ast.Call):
            return self.kind_of_call(node)
        if isinstance(node, ast.Attribute) and node.attr in _NUMERIC_METHODS:
            return "number"
        if isinstance(node, (ast.Name, ast.Attribute)):
            if self.dotted(node).partition(".")[0] in ("math", "np", "numpy"):
                return "number"
            kinds = self.kinds.get(_last(node), {""})
            return next(iter(kinds)) if len(kinds) == 1 else "tensor" if "tensor" in kinds else ""
        return ""

    def kind_of_call(self, node: ast.Call) -> str:
        name = self.dotted(node.func)
        if name.partition(".")[0] in ("torch", "tensorflow"):
            return "tensor"
        if name.partition(".")[0] in _NUMERIC_FUNCTIONS or _last(node.func) in _NUMERIC_METHODS:
            return "number"
        if _last(node.func) in _TENSOR_METHODS:
            return "tensor"
        if isinstance(node.func, ast.Attribute):
            return "tensor" if self.kind(node.func.value) == "tensor" else ""
        return ""

    def belongs(self, node: ast.expr) -> bool:
        """Whether a function or method may be one of the library: not of another module, nor of what is no tensor."""
        top = self.dotted(node).partition(".")[0]
        if top in _LIBRARIES:
            return True
        if isinstance(node, ast.Attribute):
            return top not in self.names.values() and self.kind(node.value) != "number"
        return isinstance(node, ast.Name) and self.names.get("*", "").partition(".")[0] in _LIBRARIES


def _last(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_bias(node: ast.expr) -> bool:
    return bool(re.fullmatch(r"b|bias|b\d|(?:\w+_)?bias|(?:\w+_)b", _last(node)))


# ---- programs of PyTorch and TensorFlow


def _is_read_otherwise(row: Reading, node: ast.AST, program: _Program) -> bool:
    names = row.torch.split()
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        symbol = _OPERATORS.get(type(node.op), "")
        operands = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.target, node.value]
        if symbol not in names or "number" in map(program.kind, operands):
            return False
        return symbol == "*" or any(map(_is_bias, operands))
    if isinstance(node, ast.Compare):
        symbols = [_OPERATORS.get(type(op), "") for op in node.ops]
        return any(symbol in names for symbol in symbols) and "tensor" in map(
            program.kind, [node.left, *node.comparators]
        )
    if isinstance(node, ast.Call):
        dotted = program.dotted(node.func)
        if any(f"{keyword.arg}=" in names for keyword in node.keywords) and program.belongs(node.func):
            return True
        if any(name.endswith(".") and f".{name}" in dotted for name in names):
            return True
        if _last(node.func) == "sort" and node in program.statements:  # of a list
            return False
        if row.differs is has_sizes_apart and len(node.args) < 2:
            return False
        return _last(node.func) in names and program.belongs(node.func)
    return False


def _name_here(node: ast.AST, program: _Program) -> str:
    """What an error of this library would say of a name, from the tables of equivalents."""
    if isinstance(node, ast.keyword) and node.arg:
        return advice("keyword", node.arg)
    if not isinstance(node, (ast.Attribute, ast.Name)) or not isinstance(getattr(node, "ctx", None), ast.Load):
        return ""
    dotted, name = program.dotted(node), _last(node)
    top = dotted.partition(".")[0]
    if top in _LIBRARIES and "." in dotted:
        columns = ("nn", "dy", "trainer") if ".nn." in dotted else ("dy", "nn")
        return next(filter(None, (advice(column, name) for column in columns)), "")
    if isinstance(node, ast.Attribute) and program.belongs(node):
        return next(filter(None, (advice(column, name) for column in ("x", "trainer", "model"))), "")
    return ""


Found = Iterator[tuple[ast.AST, tuple[tuple[str, str], ...]]]


def _of_another_library(tree: ast.AST, program: _Program, library: str) -> Found:
    inner: set[ast.AST] = set()  # parts of names that have been found
    for node in ast.walk(tree):
        for row in READINGS:
            if row.torch and _is_read_otherwise(row, node, program):
                yield node, ((library, row.there), ("dynet_cy", row.here), ("write", row.write))
        said = _name_here(node, program)
        if said and node not in inner:
            yield node, (("write", said.replace("; write ", "")),)
            inner.add(getattr(node, "value", node))


# ---- programs of DyNet

# What a program that a difference concerns has written, by the first cell of its row: names of functions and methods,
# keywords (with "="), parts of strings (quoted) or modules (with "import "). Of other rows these are the names in it.
_SIGNS = {
    "`--dynet-autobatch`": "import dynet",
    "`concatenate` along the fifth axis": "",
    "`backward` of a batch": "",
    "`--dynet-mem MB`": "'dynet-mem 'dynet_mem set_mem mem=",
    "`axis` and `eps` of `layer_norm`": "",
    "`dilation` and `groups` of `conv2d`, `conv2d_bias`": "",
    "`set` with too few or too many numbers": "",
    "`set` of `inputTensor`": "",
    "`set` of a `sparse_inputTensor`": "sparse_inputTensor",
    "holders (`FloatValue` and others)": "FloatValue FloatVectorValue UnsignedValue UnsignedVectorValue",
    "modules that DyNet imports (`dynet.np`, `dynet.os`, ...)": "dynet.np dynet.os dynet.sys",
    "methods of expressions": "",
    "`d` and `mask` of `softmax` and `log_softmax`": "",
    "`dynet_cy.functions`": "",
    "negative axes; -1 in `reshape`": "",
    "`shape` of parameters": "",
    "`len`, `[]`, iteration of a collection": "",
    "arrays beside an expression (`e + array`, `array * e`), lists, masks and None as indices, `@`, comparisons": "",
    "`forward([])`, `values([])`": "",
    "saving": "save save_all",
    "`conv2d` and `conv2d_bias` of stride 1 and many channels": "conv2d conv2d_bias",
    "after `log_softmax` with `restrict`": "restrict=",
    "`min`, `max`, `binary_log_loss`, `poisson_loss`, masks of LSTM gates": "min_dim max_dim bmin bmax emax "
    "binary_log_loss poisson_loss",
    "`weightnoise_std`": "weightnoise_std=",
    "`dropout(x, 1)`": "",
    "random numbers": "'dynet-seed 'dynet_seed random_seed= set_random_seed reset_random_seed",
    "`dy.load` of a `.meta` file": "dynet.load dynet.load_generator",
    "names after `dy.load`, `load_param`": "dynet.load load_param load_lookup_param",
    "weight decay: `as_array`, `set_value`, `populate`": "set_weight_decay set_weight_decay_lambda weight_decay= "
    "'dynet-weight-decay 'dynet_weight_decay",
    "parameters that are not updated (`set_updated(False)`)": "set_updated",
    "pickling models and trainers": "import pickle",
    "names of functions and classes in pickles": "import pickle",
    "strides and windows of more than two numbers": "",
    "`gradient()` of several constants of one parameter (`const_parameter(p)`, `p.expr(False)`)": "const_parameter",
    "momentum of a table, or rows of it, in a graph that the loss does not depend on": "MomentumSGDTrainer",
    "tables of matrices made from an array": "lookup_parameters_from_numpy",
    "`np.asarray(e)`, `np.array([e, f])`, `np.sum(losses)`": "numpy.asarray numpy.array numpy.sum numpy.mean "
    "numpy.stack",
    "`float(e)`, `int(e)`": "",
    "`if e:`, `not e`, `e == 0`": "",
    "threads": "import threading import concurrent",
    "`shared_parameters`": "shared_parameters= set_shared_parameters import multiprocessing",
    "`dynet_config.set`": "dynet_config.set",
    "`--dynet-profiling 1`": "'dynet-profiling 'dynet_profiling",
    "asking for a GPU that is not there": "'dynet-gpu 'dynet_gpu 'dynet-devices set_gpu requested_gpus=",
    "`Tensor.topk`, `argmax`, `categorical_sample_log_prob`": "tensor_value topk categorical_sample_log_prob",
    "device names": "available_devices get_device_info",
    "`ClassFactoredSoftmaxBuilder.full_logits`, `full_log_distribution`": "ClassFactoredSoftmaxBuilder "
    "full_log_distribution full_logits",
    "`update=False` of softmax builders": "ClassFactoredSoftmaxBuilder StandardSoftmaxBuilder",
    "inputs without `device=`": "",
    "reductions": "mean_dim sum_dim std_dim moment_dim",
    "lists and tuples": "",
    "three axes and more": "",
    "fewer axes": "",
    "wrong types": "",
    "stale expressions": "",
}


def _signs(what: str) -> list[str]:
    """What to look for; "import name" is one sign."""
    text = _SIGNS.get(what)
    if text is None:  # whole names in backticks, and those of functions with arguments
        return re.findall(r"`(?:dy\.)?(\w{3,})(?:\([^`]*\))?`", what)
    return re.findall(r"import \w+|\S+", text)


def _has_sign(signs: Iterable[str], node: ast.AST, program: _Program) -> bool:
    if isinstance(node, ast.Call):
        dotted = program.dotted(node.func).replace("_dynet.", "dynet.")
        keywords = [f"{keyword.arg}=" for keyword in node.keywords]
        own = program.belongs(node.func) and _last(node.func) in signs
        return dotted in signs or own or any(keyword in signs for keyword in keywords)
    if isinstance(node, ast.Attribute):
        return program.dotted(node).replace("_dynet.", "dynet.") in signs
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return any(sign[1:] in node.value for sign in signs if sign.startswith("'"))
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
        return any(f"import {module.partition('.')[0].lstrip('_')}" in signs for module in modules)
    return False


def _of_dynet(tree: ast.AST, program: _Program) -> Found:
    rows = [(row, _signs(row.what)) for row in DIFFERENCES]
    for node in ast.walk(tree):
        for row, signs in rows:
            if signs and _has_sign(signs, node, program):
                says = (("difference", row.what), ("DyNet", row.there), ("dynet_cy", row.here), ("see", row.why))
                yield node, tuple((label, text) for label, text in says if text)


# ---- the command


def findings(text: str, library: str = "") -> list[Finding]:
    """The places of a program to look at, in the order of its lines.

    Args:
        text: the source.
        library: "PyTorch", "TensorFlow" or "DyNet", for a program that imports none of them.

    Raises:
        SyntaxError: it is not a program of Python 3.

    Example:
        >>> from dynet_cy import port
        >>> for line, code, says in port.findings("import torch\\ny = torch.ones(2, 2) * torch.ones(2, 2)"):
        ...     if says[-1][1].startswith("`x @ y`"):
        ...         print(line, code)
        2 torch.ones(2, 2) * torch.ones(2, 2)
    """
    tree = ast.parse(text)
    program = _Program(tree)
    library = program.library or library
    if library == "DyNet":
        found = _of_dynet(tree, program)
    elif library:
        found = _of_another_library(tree, program, library)
    else:
        return []
    lines = text.split("\n")  # as Python counts them: not at a form feed
    places = {(node.lineno, node.col_offset, says): node for node, says in found}  # type: ignore[attr-defined]
    return [Finding(key[0], _code(text, lines, places[key]), key[2]) for key in sorted(places)]


def _code(text: str, lines: Sequence[str], node: ast.AST) -> str:
    """The source of a node, if it is one line; else its first line."""
    code = ast.get_source_segment(text, node) or ""
    return code if code and "\n" not in code else lines[node.lineno - 1].strip()  # type: ignore[attr-defined]


def _sources(names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        path = Path(name)
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _show(path: Path, found: Sequence[Finding]) -> None:
    """Print the places of a file, each text once, with its lines below it."""
    texts = dict.fromkeys(finding.says for finding in found)
    for says in texts:
        print(f"\n{path}")
        for label, text in says:
            print(f"  {label + ':':<12}{text}")
        for line, code, own in found:
            if own == says:
                print(f"  {line:>6}  {code}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit status: 0, or 1 if a file cannot be read.
    """
    description, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m dynet_cy.port",
        description=description.partition(":")[0],
        epilog=rest,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a program, or a folder of programs")
    parser.add_argument("--version", action="version", version=dynet_cy.__version__)
    status, count, library = 0, 0, ""
    programs = {}
    for path in _sources(parser.parse_args(argv).files):
        try:
            with tokenize.open(path) as file:  # a mark, or a comment in the first lines, may say the encoding
                programs[path] = file.read()
            library = library or _Program(ast.parse(programs[path])).library
        except SyntaxError as error:
            programs.pop(path, None)
            print(f"{path}:{error.lineno or 1}: not a program of Python 3: {error.msg}", file=sys.stderr)
            status = 1
        except (OSError, UnicodeDecodeError) as error:
            print(f"{path}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
            status = 1
    for path, text in programs.items():
        found = findings(text, library)
        count += len(found)
        _show(path, found)
    if programs and not library:
        print("no program imports torch, tensorflow or dynet", file=sys.stderr)
    elif programs:
        print(f"\n{count} places in {len(programs)} files of {library}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
