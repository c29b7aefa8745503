"""Every public name of DyNet exists here, with the same arguments, order and defaults.

surface.json has DyNet's names and signatures, so most tests run without DyNet; record_surface.py writes it, and a test
that needs DyNet checks that it is up to date.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
try:
    import record_surface as record
finally:
    sys.path.pop(0)

SURFACE = json.loads((HERE / "surface.json").read_text(encoding="utf-8"))
OURS = {"dynet": "dynet_cy", "dynet_config": "dynet_cy.config"}

# Names that DyNet has by accident, and why they are not part of its API.
ACCIDENTAL = {
    "dynet.np": "an imported module",
    "dynet.os": "an imported module",
    "dynet.sys": "an imported module",
    "dynet.pickle": "an imported module",
    "dynet.dynet_config": "an imported module",
    "dynet.print_function": "from __future__",
    "dynet.ERRMSG": "the text of one of its errors",
    "dynet.inputTensorTranspose": "a class, whose constructor alone counts: a function here",
}
# Arguments that differ intentionally: ours, and why.
DIFFERENT = {
    "dynet_config.set": (
        [
            *["mem=None", "random_seed=None", "autobatch=None", "profiling=None", "weight_decay=None"],
            *["shared_parameters=None", "requested_gpus=None", "gpu_mask=None", "threads=None"],
            *["flush_denormals=None", "check=None", "batch_requests=None", "precision=None", "strict=None"],
        ],
        "settings that are not given keep their values, and can be changed at any time; the last six are new",
    ),
    "dynet.Trainer": (["m"], "the documentation of an attribute, taken for an argument"),
}
# Methods that are callable attributes here: W.shape is a tuple, and W.shape() returns the same one.
ATTRIBUTES = ("dynet.Parameters.shape", "dynet.LookupParameters.shape")


def same_default(have: str, want: str) -> bool:
    """Whether two defaults, as text, are the same value."""
    try:
        mine, theirs = ast.literal_eval(have), ast.literal_eval(want)
    except (ValueError, SyntaxError):
        return have == want
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return list(mine) == list(theirs)
    return bool(mine == theirs)


def fits(have: list[str], want: list[str]) -> bool:
    """Whether all calls that `want` allows mean the same with `have`, which may add arguments with defaults."""
    if want and want[-1].startswith("*"):
        return all(mine.startswith("*") or "=" in mine for mine in have[len(want) - 1 :])
    if len(have) < len(want) or not all("=" in more for more in have[len(want) :]):
        return False
    for mine, theirs in zip(have, want):
        (my_name, _, my_default), (name, equals, default) = mine.partition("="), theirs.partition("=")
        if my_name != name or (equals and not same_default(my_default, default)):
            return False
    return True


def all_names() -> list[tuple[str, Any]]:
    """Every name of surface.json, as "dynet.Class.method", with its arguments."""
    found: list[tuple[str, Any]] = []
    for module, content in SURFACE.items():
        found += [(f"{module}.{name}", arguments) for name, arguments in content["functions"].items()]
        for cls, what in content["classes"].items():
            found.append((f"{module}.{cls}", None))
            found += [(f"{module}.{cls}.{name}", arguments) for name, arguments in what["members"].items()]
    return found


def in_list(name: str, names: Iterable[str]) -> bool:
    """Whether a name, or the module or class it belongs to, is in a list."""
    return any(name == listed or name.startswith(listed + ".") for listed in names)


NAMES = [(name, arguments) for name, arguments in all_names() if not in_list(name, ACCIDENTAL)]


def ours(name: str) -> Any:
    """The object with this name in dynet_cy."""
    module, *rest = name.split(".")
    value: Any = importlib.import_module(OURS[module])
    for part in rest:
        # Attributes of instances are annotated in the class.
        annotated = isinstance(value, type) and any(part in getattr(c, "__annotations__", {}) for c in value.__mro__)
        value = getattr(value, part, None) if annotated else getattr(value, part)
    return value


@pytest.mark.parametrize(("name", "arguments"), NAMES, ids=[name for name, _ in NAMES])
def test_name(name: str, arguments: list[str] | None) -> None:
    value = ours(name)
    method = name.rpartition(".")[2]
    if arguments is None or method.startswith("__"):
        return
    if name in ATTRIBUTES:
        assert inspect.isdatadescriptor(value)
        return
    have = record.signature_of(value)
    assert have is not None, f"{name} has no signature"
    if name in DIFFERENT:
        assert have == DIFFERENT[name][0]
        assert not fits(have, arguments), f"{name} needs no exception any more"
    else:
        assert fits(have, arguments), f"{name}({', '.join(have)}) here, ({', '.join(arguments)}) in DyNet"


CONSTRUCTORS = [
    (f"{module}.{cls}", what["constructor"])
    for module, content in SURFACE.items()
    for cls, what in content["classes"].items()
    if what["constructor"] and not in_list(f"{module}.{cls}", ACCIDENTAL)
]


@pytest.mark.parametrize(("name", "arguments"), CONSTRUCTORS, ids=[name for name, _ in CONSTRUCTORS])
def test_constructor(name: str, arguments: list[str]) -> None:
    have = record.signature_of(ours(name))
    assert have is not None, f"{name} has no signature"
    want = DIFFERENT.get(name, (arguments, ""))[0]
    assert [h.partition("=")[0] for h in have][: len(want)] == [w.partition("=")[0] for w in want]


def test_lists_name_what_there_is() -> None:
    """The lists of exceptions contain only names that DyNet has."""
    known = {name for name, _ in all_names()}
    assert not [name for name in (*ACCIDENTAL, *DIFFERENT) if name not in known]


@pytest.mark.parametrize(
    ("have", "want", "answer"),
    [
        (["x"], ["x"], True),
        (["x", "more=1"], ["x"], True),
        (["x", "more"], ["x"], False),
        (["y"], ["x"], False),
        (["x=1"], ["x=1.0"], True),
        (["x=1"], ["x=2"], False),
        (["x=1"], ["x"], True),
        (["x"], ["x=1"], False),
        (["x"], ["x", "y"], False),
        (["*ps"], ["*args"], True),
        (["p"], ["*args"], False),
        (["x=(1, 0)"], ["x=[1, 0]"], True),
        (["y", "x"], ["x", "y"], False),
    ],
)
def test_fits(have: list[str], want: list[str], answer: bool) -> None:
    assert fits(have, want) is answer


@pytest.mark.peer
def test_record_is_up_to_date() -> None:
    pytest.importorskip("dynet")
    assert record.as_text(record.all_modules()) == (HERE / "surface.json").read_text(encoding="utf-8")
