"""Collects tests that cannot run on this machine as one test for each file and reason, which is skipped.

Otherwise each of their cases would be made and skipped: thousands where there is no GPU or no DyNet. A test cannot run
if

- it uses a fixture of `NEEDED` that is not available, or is marked `gpu`, and there is no device;
- it is marked `peer`, or the case is, and DyNet is not installed;
- a `skipif` mark with a true condition is on it, its class or its module, or on the case.

A test that the command line names (`file::test`) is collected with all its cases: pytest would not find it otherwise.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

# Fixtures that some machines cannot provide; each function says what is missing, or "".
NEEDED: dict[str, Callable[[], str]] = {}
NO_DYNET = "" if importlib.util.find_spec("dynet") else "DyNet is not installed"

_seen = pytest.StashKey[set[str]]()


class CannotRun(pytest.Item):
    """Stands for all tests of a file that cannot run for one reason, which is its name."""

    def runtest(self) -> None:
        raise AssertionError("its mark skips it")

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name  # pytest needs a line


def why(test: pytest.Function) -> str:
    """Why a test or a case cannot run, or ""."""
    on_a_gpu = ["device"] if test.get_closest_marker("gpu") else []
    for name in (*test.fixturenames, *on_a_gpu):
        if name in NEEDED and (reason := NEEDED[name]()):
            return reason
    if NO_DYNET and test.get_closest_marker("peer"):
        return NO_DYNET
    for mark in test.iter_markers("skipif"):
        # Conditions that are text are left to pytest.
        if any(condition and not isinstance(condition, str) for condition in mark.args):
            return mark.kwargs["reason"]
    return ""


def standing_for(test: pytest.Function, reason: str) -> list[pytest.Item]:
    """The item that stands for a test; nothing if there is one already for another test of the same file."""
    module = test.getparent(pytest.Module)
    assert module is not None
    seen = module.stash.setdefault(_seen, set())
    if reason in seen:
        return []
    seen.add(reason)
    item = CannotRun.from_parent(module, name=reason)
    item.add_marker(pytest.mark.skip(reason=reason))
    for kind in ("peer", "gpu"):  # so that -m finds it
        if test.get_closest_marker(kind):
            item.add_marker(kind)
    return [item]


def _named_one_by_one(config: pytest.Config) -> bool:
    return any("::" in argument for argument in config.args)


# The hooks, which conftest.py imports.


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> Sequence[pytest.Item] | None:
    """Whole tests: their cases are not made."""
    if _named_one_by_one(collector.config) or not collector.istestfunction(obj, name):
        return None
    test = pytest.Function.from_parent(collector, name=name)
    reason = why(test)
    return standing_for(test, reason) if reason else None


@pytest.hookimpl(wrapper=True, specname="pytest_pycollect_makeitem")
def pytest_leave_out_cases(collector: Any) -> Generator[None, Any, Any]:
    """Cases with marks of their own."""
    made = yield
    if not isinstance(made, list) or _named_one_by_one(collector.config):
        return made
    kept: list[pytest.Item] = []
    for item in made:
        reason = why(item) if isinstance(item, pytest.Function) else ""
        kept += standing_for(item, reason) if reason else [item]
    return kept
