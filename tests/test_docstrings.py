"""Docstrings of public names have examples, and the examples print what they show.

The examples see `dy`, `np`, the modules `config`, `curves`, `loggers` and `profiling`, and `model`, a new collection.
"""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import commandline, config, curves, loggers, profiling
from dynet_cy.serving import web

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
FIBERS = {"Server", "ServerCall", "ServerClosed", "ServerStatistics", "batched_map", "beam_search"}  # switch stacks


def public() -> Iterator[tuple[str, Any]]:
    """All public functions and classes, with the names that programs use."""
    modules = {"profiling.": profiling, "curves.": curves, "loggers.": loggers, "config.": config}
    modules |= {"data.": dy.data, "metrics.": dy.metrics, "commandline.": commandline, "web.": web}
    for before, module in {"": dy, **modules}.items():
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not (before and hasattr(dy, name)):
                yield before + name, value


def members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, including those inherited from other classes of the package."""
    seen: set[str] = set()
    for base in value.__mro__ if isinstance(value, type) else ():
        for member, found in vars(base).items() if f"{base.__module__}.".startswith("dynet_cy.") else ():
            found = getattr(found, "__func__", found)  # a class method, whose docstring Python 3.9 hides
            described = inspect.getdoc(found) and (callable(found) or hasattr(found, "__get__"))
            if described and not member.startswith("_") and member not in seen:
                seen.add(member)
                yield f"{name}.{member}", found


def has_example(value: Any) -> bool:
    return ">>>" in (inspect.getdoc(value) or "")


def examples() -> Iterator[Any]:
    seen: set[str] = set()
    for name, value in public():
        for one, found in [(name, value), *members(name, value)]:
            text = inspect.getdoc(found) or ""
            if ">>>" in text and text not in seen:  # some have two names
                seen.add(text)
                marks = [pytest.mark.fibers] if name in FIBERS else []
                yield pytest.param(one, text, id=one, marks=marks)


def known() -> dict[str, Any]:
    """The names that examples see."""
    modules = {"config": config, "curves": curves, "loggers": loggers, "profiling": profiling}
    return {"dy": dy, "np": np, "model": dy.ParameterCollection(), **modules}


@contextmanager
def restored_settings() -> Iterator[None]:
    """Begins with a new graph, and ends with the settings from before."""
    before = config.get()
    dy.renew_cg()
    try:
        yield
    finally:
        changed = dy.DynetParams()
        changed.from_config({name: value for name, value in before.items() if config.get()[name] != value})
        changed.init()
        dy.renew_cg()


@pytest.mark.parametrize(("name", "text"), list(examples()))
def test_example(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program"])
    parsed = doctest.DocTestParser().get_doctest(text, known(), name, None, None)
    told: list[str] = []
    with restored_settings():
        dy.reset_random_seed(1)
        doctest.DocTestRunner(optionflags=OPTIONS).run(parsed, out=told.append)
    assert not told, "".join(told)


def test_every_public_name_has_an_example() -> None:
    # Named tuples that functions return are shown in the examples of these functions.
    without = [name for name, value in public() if not has_example(value) and not hasattr(value, "_fields")]
    assert without == []


def test_every_public_method_has_an_example() -> None:
    without = {
        one
        for name, value in public()
        for one, found in members(name, value)
        if not has_example(found) and not (inspect.getdoc(found) or "").startswith("Alias for field number")
    }
    assert without == set()


def test_help_shows_signatures_once() -> None:
    """Where a docstring begins with the signature, help() and the site show it a second time."""
    doubled = {
        f"{name}.{member}"
        for name, value in public()
        for base in (value.__mro__ if isinstance(value, type) else ())
        for member, found in vars(base).items()
        if f"{base.__module__}.".startswith("dynet_cy.") and "\n--\n" in (getattr(found, "__doc__", None) or "")
    }
    assert doubled == set()


def undescribed(value: Any) -> list[str]:
    """The parameters that a docstring does not mention outside its example."""
    try:
        names = list(inspect.signature(value).parameters)
    except (TypeError, ValueError):  # no signature, or none that Python can see
        return []
    text = re.sub(r"(>>>|\.\.\.).*", "", inspect.getdoc(value) or "")
    return [name for name in names if name not in ("self", "cls") and not re.search(rf"\b{name}\b", text)]


def test_every_parameter_is_described() -> None:
    without = {
        f"{one}({', '.join(missing)})"
        for name, value in public()
        for one, found in [(name, value), *members(name, value)]
        if not hasattr(found, "_fields") and (missing := undescribed(found))
    }
    # Others make these (`Server.submit`, `Training`, `data.batches`, `data.lines`): their arguments are not documented.
    made = {"Epoch", "ServerCall", "data.Batches", "data.Lines"}
    assert {described.partition("(")[0] for described in without} == made
