"""Where the compiled modules are missing, importing this module raises an ImportError that says what to do.

A clone of the repository has them only after a build in place.
"""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path


def _check(folder: Path) -> None:
    if importlib.machinery.PathFinder.find_spec("dynet_cy.fibers", [str(folder)]) is not None:
        return
    here = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    others = [file.name for file in folder.glob("fibers.*") if file.suffix in {".so", ".pyd"}]
    if others:
        raise ImportError(
            f"dynet_cy in {folder} was compiled for another Python ({others[0]}), and this is {here}: install it with "
            f"this one, '{sys.executable} -m pip install .' in the clone"
        )
    raise ImportError(
        f"dynet_cy in {folder} is a source tree without compiled modules, and it comes before an installed package. "
        "Start Python in another folder; or, to work on the source itself, compile it where it is: "
        f"'{sys.executable} -m pip install -e .' in {folder.parent}"
    )


_check(Path(__file__).resolve().parent)
