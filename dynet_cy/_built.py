"""Raises an ImportError with advice if the compiled modules cannot be imported.

A clone of the repository has them only after a build in place. They belong to the main interpreter of a process: an
import in another one would keep the main one from importing them.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys


def _check(folder: str) -> None:
    core = os.path.join(folder, "core")
    if importlib.machinery.PathFinder.find_spec("dynet_cy.core.threads", [core]) is not None:
        return
    from glob import glob  # with what it imports, it would add 0.5 ms to `import dynet_cy`

    here = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    others = [os.path.basename(file) for kind in ("so", "pyd") for file in glob(os.path.join(core, f"threads.*{kind}"))]
    if others:
        raise ImportError(
            f"dynet_cy in {folder} was compiled for another Python ({others[0]}), and this is {here}: install it with "
            f"this one, '{sys.executable} -m pip install .' in the clone"
        )
    raise ImportError(
        f"dynet_cy in {folder} is a source tree without compiled modules, and it comes before an installed package. "
        "Start Python in another folder; or, to work on the source itself, compile it where it is: "
        f"'{sys.executable} -m pip install -e .' in {os.path.dirname(folder)}"
    )


def _check_interpreter() -> None:
    try:  # the name from Python 3.13 on, and the one before
        interpreters = importlib.import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:  # there is only one interpreter then
        return
    if interpreters.get_current() != interpreters.get_main():
        raise ImportError(
            "dynet_cy works in the main interpreter of a process only, not in a subinterpreter: import it there, or in "
            "another process"
        )


_check(os.path.dirname(os.path.realpath(__file__)))
_check_interpreter()
