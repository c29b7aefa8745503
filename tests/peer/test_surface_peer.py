"""Every public name of DyNet is here, with its arguments, their order and defaults.

surface.json holds DyNet's names and signatures, so most of this runs where DyNet is not installed; record_surface.py
makes it, and a test that needs DyNet checks that it is up to date.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
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

# ---- EXPECTED GAPS: names of DyNet that are not here yet. Delete each when it is done.
NOT_YET: tuple[str, ...] = ()
# ---- end of the expected gaps

# Names that DyNet has by accident, and why they are none of its interface.
ACCIDENTAL = {
    "dynet.np": "an imported module",
    "dynet.os": "an imported module",
    "dynet.sys": "an imported module",
    "dynet.pickle": "an imported module",
    "dynet.dynet_config": "an imported module",
    "dynet.print_function": "from __future__",
    "dynet.ERRMSG": "the text of one of its errors",
}
# Arguments that differ on purpose: what ours has, and why.
DIFFERENT: dict[str, tuple[list[str], str]] = {}


def same_default(have: str, want: str) -> bool:
    """Whether two defaults, as text, are the same value."""
    try:
        return bool(ast.literal_eval(have) == ast.literal_eval(want))
    except ValueError:
        return have == want


def fits(have: list[str], want: list[str]) -> bool:
    """Whether all calls that `want` allows mean the same with `have`: more arguments may follow, with defaults."""
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


NAMES = [(name, arguments) for name, arguments in all_names() if name not in ACCIDENTAL]


def ours(name: str) -> Any:
    """What stands under that name in dynet_cy."""
    module, *rest = name.split(".")
    value: Any = importlib.import_module(OURS[module])
    for part in rest:
        value = getattr(value, part)
    return value


def is_gap(name: str) -> bool:
    return any(name == gap or name.startswith(gap + ".") for gap in NOT_YET)


@pytest.mark.parametrize(("name", "arguments"), NAMES, ids=[name for name, _ in NAMES])
def test_name(name: str, arguments: list[str] | None) -> None:
    if is_gap(name):
        with pytest.raises(AttributeError):
            ours(name)
        return
    value = ours(name)
    method = name.rpartition(".")[2]
    if arguments is None or method.startswith("__"):
        return
    have = record.signature_of(value)
    assert have is not None, f"{name} does not tell its arguments"
    if inspect.isfunction(value) and inspect.getattr_static(value, "__self__", None) is None and have[:1] == ["self"]:
        have = have[1:]
    if name in DIFFERENT:
        assert have == DIFFERENT[name][0]
        assert not fits(have, arguments), f"{name} needs no exception any more"
    else:
        assert fits(have, arguments), f"{name}({', '.join(have)}) here, ({', '.join(arguments)}) in DyNet"


CONSTRUCTORS = [
    (f"{module}.{cls}", what["constructor"])
    for module, content in SURFACE.items()
    for cls, what in content["classes"].items()
    if what["constructor"]
]


@pytest.mark.parametrize(("name", "arguments"), CONSTRUCTORS, ids=[name for name, _ in CONSTRUCTORS])
def test_constructor(name: str, arguments: list[str]) -> None:
    if is_gap(name):
        return
    have = record.signature_of(ours(name))
    assert have is not None, f"{name} does not tell its arguments"
    want = DIFFERENT.get(name, (arguments, ""))[0]
    assert [h.partition("=")[0] for h in have][: len(want)] == [w.partition("=")[0] for w in want]


def test_lists_name_what_there_is() -> None:
    """No exception is left over from a name that DyNet does not have."""
    known = {name for name, _ in all_names()}
    assert not [name for name in (*ACCIDENTAL, *DIFFERENT, *NOT_YET) if name not in known]


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
        (["y", "x"], ["x", "y"], False),
    ],
)
def test_fits(have: list[str], want: list[str], answer: bool) -> None:
    assert fits(have, want) is answer


@pytest.mark.peer
def test_record_is_up_to_date() -> None:
    pytest.importorskip("dynet")
    assert record.as_text(record.all_modules()) == (HERE / "surface.json").read_text(encoding="utf-8")
