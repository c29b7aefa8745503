"""Run a program in which `import dynet` gives dynet_cy: see `dynet_cy.compat`."""

from __future__ import annotations

import builtins
import importlib.util
import os
import pkgutil
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from dynet_cy.compat import install

_USAGE = """usage: python -m dynet_cy.compat SCRIPT [ARGUMENTS]
       python -m dynet_cy.compat -m MODULE [ARGUMENTS]

Runs a program as plain python does, with `import dynet` giving dynet_cy.
"""


_OWN_GLOBALS = globals()


class _CannotRun(Exception):
    """The program does not exist. Arguments: the message to print without a traceback, the exit code (default: 1)."""


def _script(path: str) -> tuple[ModuleType, CodeType]:
    """`__main__` and the code of a script, or of a folder or archive with a `__main__.py`."""
    if pkgutil.get_importer(path) is not None:  # only folders and archives have one
        sys.path[0] = os.path.abspath(path)
        spec = PathFinder.find_spec("__main__", sys.path[:1])
        if spec is None:
            raise _CannotRun(f"can't find '__main__' module in {path!r}")
        return _from_spec(spec)
    if not getattr(sys.flags, "safe_path", False):  # in safe mode there is no entry for the program's folder
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    file = os.path.abspath(path)
    try:
        with open(file, "rb") as stream:
            source = stream.read()
    except OSError as error:
        raise _CannotRun(f"can't open file {file!r}: [Errno {error.errno}] {error.strerror}", 2) from None
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=file,
        __loader__=SourceFileLoader("__main__", file),
        __package__=None,
        __cached__=None,
        __builtins__=builtins,
    )
    return main, compile(source, file, "exec", dont_inherit=True)


def _module(name: str) -> tuple[ModuleType, CodeType]:
    """`__main__` and the code of a module, or of the `__main__` of a package."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        spec = None
    if spec is None:
        raise _CannotRun(f"No module named {name}")
    sys.argv[0] = spec.origin or sys.argv[0]
    return _from_spec(spec)


def _from_spec(spec: ModuleSpec) -> tuple[ModuleType, CodeType]:
    get_code = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(spec.name)
    if code is None:
        raise _CannotRun(f"No code object available for {spec.name}")
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=spec.origin,
        __loader__=spec.loader,
        __package__=spec.parent,
        __cached__=spec.cached,
        __spec__=spec,
        __builtins__=builtins,
    )
    return main, code


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the program."""
    last = None
    entry = traceback
    while entry is not None:
        if entry.tb_frame.f_globals is _OWN_GLOBALS:
            last = entry
        entry = entry.tb_next
    return traceback if last is None else last.tb_next


def main(arguments: list[str]) -> None:
    """Run the program that the command line names.

    Exceptions propagate to the interpreter, which prints them and sets the exit code as for any program; only the
    frames of this runner are removed from the traceback.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE, end="")
        return
    as_module = arguments[:1] == ["-m"]
    if len(arguments) < (2 if as_module else 1) or (arguments[0].startswith("-") and not as_module):
        _exit(_USAGE, 2)
    sys.argv[:] = arguments[1:] if as_module else arguments
    install()
    try:
        program, code = _module(arguments[1]) if as_module else _script(arguments[0])
        sys.modules["__main__"] = program
        exec(code, program.__dict__)
    except _CannotRun as error:
        message, *status = error.args
        _exit(f"{sys.executable}: {message}\n", *status)
    except SystemExit:
        raise
    except BaseException:
        hook = sys.excepthook  # the program may have set its own

        def excepthook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
            own = _without_our_frames(traceback)
            hook(kind, value.with_traceback(own), own)

        sys.excepthook = excepthook
        raise


def _exit(message: str, status: int = 1) -> NoReturn:
    sys.stderr.write(message)
    raise SystemExit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
