"""Programs written for DyNet, unchanged: `import dynet` gives dynet_cy.

From the command line, in place of ``python``::

    python -m dynet_cy.compat SCRIPT ARGUMENTS
    python -m dynet_cy.compat -m MODULE ARGUMENTS

or from Python, before the first ``import dynet``::

    import dynet_cy.compat
    dynet_cy.compat.install()

``dynet`` and ``_dynet`` then have all names of dynet_cy, ``dynet_config`` those of `dynet_cy.config` and ``dynet_viz``
those of `dynet_cy.viz`; their ``from ... import *`` gives DyNet's names and no others. Functions and classes that DyNet
has pickle as ``_dynet.X``, so that either library reads them.

In such a process NumPy's arrays hold expressions, all threads share the implicit graph, parameters that are loaded
keep their names, and a graph keeps the values of parameters that it has read, as in DyNet. Options that the program
puts into `sys.argv` before its first ``import dynet`` count. Where it asks for a GPU and there is none, it goes on on
the CPU, with a RuntimeWarning.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import dynet_cy
from dynet_cy import config
from dynet_cy.compat import names
from dynet_cy.core.threads import follow_dynet
from dynet_cy.files.places import name_by
from dynet_cy.graph.expressions import keep_values_read
from dynet_cy.graph.table import share_implicit_graph

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
        _check(name)
    _follow()


def _check(name: str) -> None:
    """Raise ImportError if the module of that name is another package's: it was imported, or would be."""
    module = sys.modules.get(name)
    if module is not None:
        if module.__name__.partition(".")[0] == "dynet_cy":
            return
        state, where = "is imported already", getattr(module, "__file__", None)
    else:
        spec = importlib.util.find_spec(name) if _FOLDER in sys.path else None
        if spec is None or Path(spec.origin or "").parent == Path(_FOLDER):
            return
        state, where = "would be imported", spec.origin
    raise ImportError(
        f"dynet_cy.compat: {name} {state}, from {where or 'no file'}; install() comes before the first import of "
        "DyNet, and no other module may have that name",
        name=name,
        path=where,
    )


def _follow() -> None:
    follow_dynet()
    share_implicit_graph()
    keep_values_read()
    name_by("_dynet", {name: getattr(dynet_cy, name) for name in names.NAMES})
    name_by("dynet", {"print_graphviz": dynet_cy.print_graphviz})


_begun = False


def follow_once() -> None:
    """Follow DyNet's rules, and read the command line again, which the program may have changed since this package was
    imported. Only the first call, by the first ``import dynet`` of a process, has an effect."""
    global _begun
    if not _begun:
        _begun = True
        _follow()
        config.read_again()
