"""Runs the examples in the docstrings of a module: `doctest` leaves out what says that it is of another one."""

from __future__ import annotations

import ast
import doctest
import inspect
from types import ModuleType
from typing import Any


def run_examples(module: ModuleType, options: int = 0, **names: Any) -> doctest.TestResults:
    """Run the examples of all public functions and classes that a module defines, with further names."""
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=options)
    defined = [x for x in ast.parse(inspect.getsource(module)).body if isinstance(x, (ast.ClassDef, ast.FunctionDef))]
    for name in [x.name for x in defined if not x.name.startswith("_")]:
        for test in finder.find(getattr(module, name), name, module=False, globs={**vars(module), **names}):
            runner.run(test)
    return runner.summarize()
