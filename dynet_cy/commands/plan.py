"""Run a program, and print the plan of a pass of it: its batches, and how long each value and gradient lives.

The program runs as `python PROGRAM ARGUMENTS` would, up to the end of that pass; what it prints goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import traceback

from dynet_cy import profiling
from dynet_cy.profiling.plans import PassPlan
from dynet_cy.watch import lifetimes


class _Enough(BaseException):
    """The pass has run: the program ends."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, the program and its arguments."""
    parser.add_argument(
        "--pass",
        type=_positive,
        default=1,
        metavar="N",
        dest="number",
        help="the plan of the pass whose backward is the Nth that the program runs (default: 1)",
    )
    parser.add_argument("--all", action="store_true", help="all batches, whole columns, and lines of the program")
    parser.add_argument("program", help="a Python file; options of this command stand before it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the program")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("passes are counted from 1")
    return number


def run(args: argparse.Namespace) -> None:
    """Run the program until the pass has run, and print its plan."""
    with open(args.program, "rb"):  # so that a file that is missing is no error of the program
        pass
    status: object = 0
    with profiling.measure(lines=args.all):
        lifetimes.record(args.number, _stop)
        try:
            _run_program(args.program, args.arguments)
        except _Enough:
            pass
        except SystemExit as end:
            status = end.code
        finally:
            lifetimes.stop()
    recorded = lifetimes.recorded_plan()
    if recorded is None:
        if status not in (None, 0):
            raise SystemExit(status)
        seen = lifetimes.passes_seen()
        passes = "no backward pass" if seen == 0 else f"{seen} backward pass{'es' if seen > 1 else ''} only"
        raise SystemExit(f"python -m dynet_cy plan: {args.program} has run {passes}: there is no pass {args.number}")
    print(PassPlan(recorded).text(all=args.all))


def _stop() -> None:
    raise _Enough


def _run_program(program: str, arguments: list[str]) -> None:
    """Run a program as a script; its errors are shown as Python shows them."""
    argv, path = sys.argv[:], sys.path[:]
    sys.argv[:] = [program, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            runpy.run_path(program, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != program:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        raise SystemExit(1) from None
    finally:
        sys.argv[:], sys.path[:] = argv, path
