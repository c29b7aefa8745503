"""Reads from a syntax tree which names of PyTorch, TensorFlow or DyNet a program uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Union

# Modules by the library that they belong to.
LIBRARIES = {
    **dict.fromkeys(("torch", "transformers", "peft"), "PyTorch"),
    "tensorflow": "TensorFlow",
    "keras": "TensorFlow",
    **dict.fromkeys(("dynet", "_dynet", "dynet_config"), "DyNet"),
}
_OTHER_MODULES = frozenset(
    ["argparse", "collections", "copy", "itertools", "json", "logging", "math", "np", "numpy", "os", "pathlib"]
    + ["pickle", "random", "re", "sys", "time", "tqdm", "yaml"]
)
_OTHER_FUNCTIONS = frozenset(
    ["len", "int", "float", "bool", "str", "range", "min", "max", "round", "sum", "open", "dict", "set", "vars"]
    + ["print"]
)
_NO_TENSORS = frozenset(  # methods and attributes that give none
    ["size", "item", "numel", "nelement", "dim", "ndimension", "shape", "ndim", "parse_args", "parse_known_args"]
    + ["state_dict", "parameters", "named_parameters"]
)
_TENSORS = frozenset(["argmax", "view", "permute", "squeeze", "unsqueeze", "detach", "backward"])
_SAME = frozenset(["to", "cuda", "cpu", "train", "eval", "float", "half"])  # of layers and tensors, which return such
# Parts of torch, the longest first, and what a call of something in them gives.
_PARTS = (
    ("torch.optim.lr_scheduler.", "scheduler"),
    ("torch.optim.", "trainer"),
    ("torch.nn.functional.", "tensor"),
    ("torch.nn.utils.rnn.", "tensor"),
    ("torch.nn.Parameter", "tensor"),
    ("torch.nn.utils.", "other"),
    ("torch.nn.init.", "other"),
    ("torch.nn.", "layer"),
    *((f"torch.{name}", "other") for name in ("utils.", "load", "save", "device", "cuda.", "manual_seed", "no_grad")),
    ("torch.", "tensor"),
    ("transformers.AutoModel", "layer"),
    ("peft.get_peft_model", "layer"),
    ("tensorflow.", "tensor"),
)
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Scope = tuple[str, ...]


class Program(ast.NodeVisitor):
    """The modules and names of a program, and the kinds of its names, if they are known.

    The kinds of values are "tensor", "layer", "trainer", "scheduler", "self" (an object of a class of the program that
    is no layer), "self layer", "other", and "" where nothing is known. Names belong to their function, attributes of
    `self` to their class.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.names: dict[str, str] = {}  # what an imported name is, as a dotted name
        self.statements: set[ast.AST] = set()  # calls whose result is dropped
        self.called: set[ast.AST] = set()  # the functions of calls
        self.functions: set[str] = set()  # that the program defines
        self._kinds: dict[tuple[Scope, str], set[str]] = {}
        self._before: dict[tuple[Scope, str], set[str]] = {}  # of the pass before, which also knows what comes below
        self._scopes: dict[ast.AST, Scope] = {}
        self._classes: dict[str, str] = {}  # "self layer" or "self"
        self._members: dict[str, set[str]] = {}  # of its classes
        self._calls: dict[str, set[ast.Call]] = {}
        self._scope: Scope = ()
        self._class = ""
        for _ in range(4):  # names that are made of names
            self._before, self._kinds = self._kinds, {}
            self.visit(tree)
        self._before = self._kinds

    @property
    def library(self) -> str:
        """The library that it is written for, or nothing."""
        tops = {LIBRARIES.get(name.partition(".")[0], "") for name in self.names.values()}
        return next((library for library in ("DyNet", "PyTorch", "TensorFlow") if library in tops), "")

    # ---- what is bound where

    def visit(self, node: ast.AST) -> None:
        self._scopes[node] = self._scope
        super().visit(node)

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

    def visit_Call(self, node: ast.Call) -> None:
        self.called.add(node.func)
        self._calls.setdefault(last(node.func), set()).add(node)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [self.dotted(base) for base in node.bases]
        layer = any(base.endswith("nn.Module") or self._classes.get(base) == "self layer" for base in bases)
        self._classes[node.name] = "self layer" if layer else "self"
        members = self._members.setdefault(node.name, set())
        members.update(part.name for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)))
        before, self._class = self._class, node.name
        self.generic_visit(node)
        self._class = before

    def visit_FunctionDef(self, node: Function) -> None:
        self.functions.add(node.name)
        before, self._scope = self._scope, (*self._scope, f"{self._class}.{node.name}")
        for argument, kinds in self._arguments(node):
            self._kinds.setdefault((self._scope, argument), set()).update(kinds)
        for part in node.body:
            self.visit(part)
        self._scope = before
        for outside in (node.args, *node.decorator_list):
            self.visit(outside)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._note(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        self._bind(node.target, self._annotated(node.annotation))

    def visit_For(self, node: ast.For) -> None:
        self.generic_visit(node)
        numbers = isinstance(node.iter, ast.Call) and self.dotted(node.iter.func) == "range"
        self._bind(node.target, "other" if numbers else "")

    def visit_With(self, node: ast.With) -> None:
        self.generic_visit(node)
        for item in node.items:
            if item.optional_vars is not None:
                self._bind(item.optional_vars, self.kind(item.context_expr))

    def _arguments(self, node: Function) -> Iterator[tuple[str, set[str]]]:
        """The arguments of a function with what they are: by annotations, defaults and the calls in the program."""
        positional = [*node.args.posonlyargs, *node.args.args]
        defaults = dict(zip([a.arg for a in positional[::-1]], node.args.defaults[::-1]))
        defaults.update({a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults) if d is not None})
        is_method = bool(self._class) and self._scope[-1] == f"{self._class}.{node.name}" and len(self._scope) == 1
        calls = self._calls.get(self._class if node.name == "__init__" else node.name, set())
        for at, argument in enumerate([*positional, *node.args.kwonlyargs]):
            if is_method and at == 0:
                yield argument.arg, {self._classes[self._class]}
                continue
            given = [
                value
                for call in calls
                for value in (
                    *call.args[at - is_method : at - is_method + 1],
                    *(k.value for k in call.keywords if k.arg == argument.arg),
                )
            ]
            default = defaults.get(argument.arg)
            is_number = default is not None and self.kind(default) == "other" and not _is_none(default)
            if argument.annotation is not None:
                yield argument.arg, {self._annotated(argument.annotation)}
            elif given:
                yield argument.arg, {self.kind(value) for value in given}
            else:
                yield argument.arg, {"other" if is_number else ""}

    def _annotated(self, annotation: ast.expr) -> str:
        """The kind of what has an annotation."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except SyntaxError:
                return ""
        parts = {self.dotted(part) for part in ast.walk(annotation) if isinstance(part, (ast.Name, ast.Attribute))}
        kinds = {"tensor" if part.endswith("Tensor") else self._made_by(part) for part in parts}
        for kind in ("tensor", "scheduler", "trainer", "layer", "self layer", "self"):
            if kind in kinds:
                return kind
        return "" if parts & {"Any", "typing.Any", "object"} else "other"

    def _note(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            apart = isinstance(value, (ast.Tuple, ast.List)) and len(target.elts) == len(value.elts)
            for part, of in zip(target.elts, value.elts if apart else [value] * len(target.elts)):  # type: ignore[attr-defined]
                self._note(part, of)
        else:
            self._bind(target, self.kind(value))

    def _bind(self, target: ast.expr, kind: str) -> None:
        for part in ast.walk(target):
            if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Store):
                key = self._key(part)
                if isinstance(part, ast.Attribute) and key[0]:
                    self._members.setdefault(key[0][0], set()).add(part.attr)
                self._kinds.setdefault(key, set()).add(kind)

    def _key(self, node: ast.Name | ast.Attribute) -> tuple[Scope, str]:
        """The scope of a name: its function, or for an attribute of `self` its class."""
        if isinstance(node, ast.Name):
            return self._scope, node.id
        own = self.kind(node.value).startswith("self")
        return ((self._class,) if own else ()), f".{node.attr}"

    # ---- what a node is

    def dotted(self, node: ast.AST | None) -> str:
        """A name such as torch.nn.functional.softmax, with the names of imports in place; "" for other expressions."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before}.{node.attr}" if before else ""
        return ""

    def kind(self, node: ast.expr) -> str:
        """The kind of a node: see the class."""
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.Lambda)):
            return "other"
        if isinstance(node, ast.UnaryOp):
            return self.kind(node.operand)
        if isinstance(node, ast.BinOp):
            kinds = {self.kind(node.left), self.kind(node.right)}
            return "tensor" if "tensor" in kinds else "other" if kinds == {"other"} else ""
        if isinstance(node, ast.Subscript):
            return self.kind(node.value)
        if isinstance(node, ast.Call):
            return self._kind_of_call(node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._kind_of_name(node)
        return ""

    def _kind_of_name(self, node: ast.Name | ast.Attribute) -> str:
        if isinstance(node, ast.Attribute):
            if node.attr in _NO_TENSORS or self.dotted(node).partition(".")[0] in _OTHER_MODULES:
                return "other"
            of = self.kind(node.value)
            if of == "other":
                return "other"
            owners = [(cls,) for cls in self._members] if of.startswith("self") else []
            return _only(set().union(*(self._known((owner, f".{node.attr}")) for owner in [*owners, ()])))
        scope = self._scopes.get(node, self._scope)
        for depth in range(len(scope), -1, -1):
            kinds = self._known((scope[:depth], node.id))
            if kinds:
                return _only(kinds)
        return ""

    def _known(self, key: tuple[Scope, str]) -> set[str]:
        return self._before.get(key) or self._kinds.get(key, set())

    def _kind_of_call(self, node: ast.Call) -> str:
        name, method = self.dotted(node.func), last(node.func)
        made = self._made_by(name)
        if made:
            return made
        if method in _NO_TENSORS:
            return "other"
        if method in _TENSORS:
            return "tensor"
        of = self.kind(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if method in _SAME or of == "tensor":
            return of
        called = self.kind(node.func)
        return "tensor" if called in ("layer", "self layer") else ""

    def _made_by(self, name: str) -> str:
        """The kind of the result of a function or class."""
        for beginning, kind in _PARTS:
            if name.startswith(beginning):
                return kind
        top = name.partition(".")[0]
        if name in self._classes:
            return self._classes[name].replace("self layer", "layer")
        if "schedule" in name.lower() and not {name, top}.isdisjoint(self.names.values()):
            return "scheduler"  # such as transformers.get_linear_schedule_with_warmup
        return "other" if top in _OTHER_MODULES or name in _OTHER_FUNCTIONS else ""

    def is_own(self, node: ast.Attribute) -> bool:
        """Whether an attribute is one that a class of the program has, by an assignment or a method."""
        known = self.kind(node.value)
        if known not in ("self", "self layer", "layer", ""):
            return False
        return any(node.attr in members for members in self._members.values())

    def belongs(self, node: ast.expr) -> bool:
        """Whether a function or method may belong to the library, not to another module or to no tensor."""
        top = self.dotted(node).partition(".")[0]
        if top in LIBRARIES:
            return True
        if isinstance(node, ast.Attribute):
            mine = top in self.names.values() or self.is_own(node)
            return not mine and self.kind(node.value) in ("tensor", "")
        starred = self.names.get("*", "").partition(".")[0] in LIBRARIES
        return isinstance(node, ast.Name) and starred and node.id not in self.functions


def last(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _only(kinds: set[str]) -> str:
    """The one kind of several, if there is one; a tensor where it may be one."""
    return next(iter(kinds)) if len(kinds) == 1 else "tensor" if "tensor" in kinds else ""
