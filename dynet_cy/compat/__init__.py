"""Programs written for DyNet, unchanged: `import dynet` gives dynet_cy.

From the command line, in place of ``python``::

    python -m dynet_cy.compat SCRIPT ARGUMENTS
    python -m dynet_cy.compat -m MODULE ARGUMENTS

or from Python, before the first ``import dynet``::

    import dynet_cy.compat
    dynet_cy.compat.install()

``dynet`` and ``_dynet`` are then the module dynet_cy itself, ``dynet_config`` is `dynet_cy.config` and ``dynet_viz`` is
`dynet_cy.viz`. Pickles that name ``_dynet.X`` find dynet_cy's X.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

__all__ = ["NAMES", "install"]

# DyNet's modules. For each, the folder `modules` has a file of that name that substitutes ours.
NAMES = ("dynet", "_dynet", "dynet_config", "dynet_viz")

_FOLDER = str(Path(__file__).resolve().parent / "modules")


def install() -> None:
    """Make ``import dynet``, ``_dynet``, ``dynet_config`` and ``dynet_viz`` give this package, for the whole process.

    A folder with modules of these names is put into `sys.path`, after its first entry, which is the program's own
    folder. So processes started by `multiprocessing` find them too, whatever the start method: `sys.path` is handed on
    to them. Calling this again changes nothing.

    Raises:
        ImportError: one of these modules exists already and is not this package's: DyNet itself has been imported,
            or the program's folder has a module of that name.
    """
    for name in NAMES:
        _check(name)
    if _FOLDER not in sys.path:
        sys.path.insert(1, _FOLDER)
        importlib.invalidate_caches()
    for name in NAMES:
        importlib.import_module(name)
        _check(name)


def _check(name: str) -> None:
    """Raise ImportError if the module of that name was imported and is another package's."""
    module = sys.modules.get(name)
    if module is not None and module.__name__.partition(".")[0] != "dynet_cy":
        where = getattr(module, "__file__", None) or "no file"
        raise ImportError(
            f"dynet_cy.compat: {name} is imported already, from {where}; install() comes before the first import of "
            "DyNet, and no other module may have that name",
            name=name,
            path=getattr(module, "__file__", None),
        )
