"""Runs the examples in the docstrings of a module: `doctest` leaves out what says that it is of another one."""

from __future__ import annotations

import doctest
from types import ModuleType
from typing import Any


def run_examples(module: ModuleType, options: int = 0, **names: Any) -> doctest.TestResults:
    """Run the examples of all public names of a module, with further names."""
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=options)
    for name in module.__all__:
        for test in finder.find(getattr(module, name), name, module=False, globs={**vars(module), **names}):
            runner.run(test)
    return runner.summarize()
