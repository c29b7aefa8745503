"""Lists places to check when you port a program from PyTorch, TensorFlow or DyNet: ``python -m dynet_cy.port FILE...``

For a program of PyTorch or TensorFlow, it lists the places that would go on here with other numbers, with what they
mean there and here and what to write (the table of `dynet_cy.strict`), and the names that are called otherwise here.
For a program of DyNet, it lists the places that the known differences concern (docs/differences.md). The program is
read, not run, so the shapes of its tensors are not known: places are listed where they may matter.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import dynet_cy
from dynet_cy.hints.bindings import LIBRARIES, Program, last
from dynet_cy.hints.differences import DIFFERENCES
from dynet_cy.hints.equivalents import advice
from dynet_cy.hints.readings import READINGS, Reading, has_sizes_apart

_OPERATORS = {ast.Mult: "*", ast.Add: "+", ast.Eq: "==", ast.NotEq: "!="}
# The tables that have the names of what is of some kind; see `Program`.
_COLUMNS = {
    "tensor": ("x",),
    "trainer": ("trainer",),
    "layer": ("layer", "model"),
    "self layer": ("layer", "model"),
    "": ("x", "trainer", "model"),
}
# Names that objects of other kinds have too.
_ANYWHERE = frozenset(["data", "device", "type", "array", "rank", "hidden", "values", "indices"])


class Finding(NamedTuple):
    """A place of a program."""

    line: int
    """The number of the line; the first one is 1."""
    code: str
    """The program's text there."""
    says: tuple[tuple[str, str], ...]
    """The explanation, as pairs of a label ("PyTorch", "dynet_cy", "write") and a text."""


def _is_bias(node: ast.expr) -> bool:
    return bool(re.fullmatch(r"b|bias|b\d|(?:\w+_)?bias|(?:\w+_)b", last(node)))


# ---- programs of PyTorch and TensorFlow


def _is_read_otherwise(row: Reading, node: ast.AST, program: Program) -> bool:
    names = row.torch.split()
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        symbol = _OPERATORS.get(type(node.op), "")
        operands = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.target, node.value]
        if symbol not in names or not {"tensor", ""}.issuperset(map(program.kind, operands)):
            return False
        return symbol == "*" or any(map(_is_bias, operands))
    if isinstance(node, ast.Compare):
        symbols = [_OPERATORS.get(type(op), "") for op in node.ops]
        return any(symbol in names for symbol in symbols) and "tensor" in map(
            program.kind, [node.left, *node.comparators]
        )
    if isinstance(node, ast.Call):
        dotted = program.dotted(node.func)
        if any(f"{name}=" in names for name, _ in _keywords_apart(node)) and program.belongs(node.func):
            return True
        if any(name.endswith(".") and dotted.rpartition(".")[0].endswith(f".{name[:-1]}") for name in names):
            return True
        if last(node.func) == "sort" and node in program.statements:  # of a list
            return False
        if row.differs is has_sizes_apart and len(node.args) < 2:
            return False
        return last(node.func) in names and program.belongs(node.func)
    return False


def _name_here(node: ast.AST, program: Program) -> str:
    """Advice for a name, from the tables of equivalents."""
    if not isinstance(node, (ast.Attribute, ast.Name)) or not isinstance(getattr(node, "ctx", None), ast.Load):
        return ""
    dotted, name = program.dotted(node), last(node)
    top = dotted.partition(".")[0]
    if top in LIBRARIES and "." in dotted:
        columns = ("nn", "dy", "trainer", "torch") if ".nn." in dotted else ("dy", "nn", "torch")
        return _first(columns, name)
    if not isinstance(node, ast.Attribute) or top in program.names.values() or program.is_own(node):
        return ""
    kind = program.kind(node.value)
    if kind == "scheduler" or not kind and "sched" in last(node.value).lower():
        return advice("dy", "lr_scheduler") if name == "step" else ""
    if not kind and (node not in program.called or name in _ANYWHERE) and not name.startswith(("grad", "requires_")):
        return ""
    has_it = kind.endswith("layer") and name != "parameters" and hasattr(dynet_cy.nn.Layer, name)
    return "" if has_it else _first(_COLUMNS.get(kind, ()), name)


def _first(columns: Iterable[str], name: str) -> str:
    return next(filter(None, (advice(column, name) for column in columns)), "")


def _keywords_apart(node: ast.Call) -> Iterator[tuple[str, ast.keyword]]:
    """The named arguments of a call, without those that a trainer or layer of this library takes by the same name."""
    name = last(node.func)
    ours = getattr(dynet_cy, f"{name}Trainer", None) or getattr(dynet_cy.nn, name, None)
    own = inspect.signature(ours).parameters if isinstance(ours, type) else {}
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in own:
            yield keyword.arg, keyword


def _keywords_here(node: ast.AST, program: Program) -> Iterator[tuple[ast.AST, str]]:
    """Advice for the arguments of a trainer's or layer's constructor, and of a tokenizer."""
    if not isinstance(node, ast.Call):
        return
    theirs = program.dotted(node.func).partition(".")[0] in LIBRARIES
    column = {"trainer": "keyword", "layer": "argument" if theirs else ""}.get(program.kind(node), "")
    for name, keyword in _keywords_apart(node):
        yield keyword, advice("text" if name == "return_tensors" else column, name)


def _inside(place: ast.AST, program: Program) -> Iterator[ast.AST]:
    """The parts of a place of which nothing more is said: its value, and the modules of a name."""
    value = getattr(place, "value", place)
    yield value
    while isinstance(value, ast.Attribute) and program.dotted(value).partition(".")[0] in LIBRARIES:
        value = value.value
        yield value


Found = Iterator[tuple[ast.AST, tuple[tuple[str, str], ...]]]


def _of_another_library(tree: ast.AST, program: Program, library: str) -> Found:
    inner: set[ast.AST] = set()  # parts of names that have been found
    for node in ast.walk(tree):
        for row in READINGS:
            if row.torch and _is_read_otherwise(row, node, program):
                yield node, ((library, row.there), ("dynet_cy", row.here), ("write", row.write))
        for place, said in [(node, _name_here(node, program)), *_keywords_here(node, program)]:
            if said and place not in inner:
                yield place, (("write", said.replace("; write ", "")),)
                inner.update(_inside(place, program))


# ---- programs of DyNet

# What a program that a difference concerns has written, by the first cell of its row: names of functions and methods,
# keywords (with "="), parts of strings (quoted) or modules (with "import "). Of other rows these are the names in it.
_SIGNS = {
    "`--dynet-autobatch`": "import dynet",
    "`concatenate` along the fifth axis": "",
    "`backward` of a batch": "",
    "`--dynet-mem MB`": "'dynet-mem 'dynet_mem set_mem mem=",
    "`axis` and `eps` of `layer_norm`": "",
    "`dilation`, `groups` and `padding` of `conv2d`, `conv2d_bias`, `padding` of `maxpooling2d`": "",
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


def _has_sign(signs: Iterable[str], node: ast.AST, program: Program) -> bool:
    if isinstance(node, ast.Call):
        dotted = program.dotted(node.func).replace("_dynet.", "dynet.")
        keywords = [f"{keyword.arg}=" for keyword in node.keywords]
        own = program.belongs(node.func) and last(node.func) in signs
        return dotted in signs or own or any(keyword in signs for keyword in keywords)
    if isinstance(node, ast.Attribute):
        return program.dotted(node).replace("_dynet.", "dynet.") in signs
    if isinstance(node, ast.Constant) and isinstance(node.value, str):  # an option by itself, and no text that has it
        option = node.value.partition("=")[0]
        return any(option == f"--{sign[1:]}" for sign in signs if sign.startswith("'"))
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
        return any(f"import {module.partition('.')[0].lstrip('_')}" in signs for module in modules)
    return False


def _of_dynet(tree: ast.AST, program: Program) -> Found:
    rows = [(row, _signs(row.what)) for row in DIFFERENCES]
    for node in ast.walk(tree):
        for row, signs in rows:
            if signs and _has_sign(signs, node, program):
                says = (("difference", row.what), ("DyNet", row.there), ("dynet_cy", row.here), ("see", row.why))
                yield node, tuple((label, text) for label, text in says if text)


# ---- the command


def findings(text: str, library: str = "") -> list[Finding]:
    """Places of a program to check, in the order of its lines.

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
    program = Program(tree)
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
    if texts:
        print(f"\n{path}")
    for i, says in enumerate(texts):
        if i:
            print()
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
            library = library or Program(ast.parse(programs[path])).library
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
        print(f"\n{count} places in {len(programs)} {'file' if len(programs) == 1 else 'files'} of {library}")
    return status
