"""The commands of ``python -m dynet_cy``: info, inspect, convert, bench, plan."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dynet_cy._version import __version__
from dynet_cy.commands import bench, convert, info, inspect, plan
from dynet_cy.files.textfile import ModelFileError

__all__ = ["main"]

_COMMANDS = {"info": info, "inspect": inspect, "convert": convert, "bench": bench, "plan": plan}


def parser() -> argparse.ArgumentParser:
    """The argument parser; each module of this package adds the arguments of its command."""
    made = argparse.ArgumentParser(
        prog="python -m dynet_cy",
        description="Information about this installation, about files and about programs.",
        epilog="Training with several processes has a command of its own: python -m dynet_cy.launch --help",
    )
    made.add_argument("--version", action="version", version=f"dynet_cy {__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        first = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        command = commands.add_parser(name, help=first[0].lower() + first[1:], description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0, or 1 if a file cannot be used. Wrong arguments exit with 2, as argparse does.
    """
    args = parser().parse_args(argv)
    try:
        args.run(args)
    except (ModelFileError, OSError) as error:
        print(f"python -m dynet_cy {args.command}: {error}", file=sys.stderr)
        return 1
    return 0
