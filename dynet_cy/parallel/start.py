"""The first program of the launcher's children, without dynet_cy: ``start.py PARENT SIGNAL PROGRAM ARGS...``.

The process ends with its launcher (Linux), by that signal (KILL, TERM), obeys Ctrl-C, and knows its own number. Then
the program takes its place.
"""

import contextlib
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Prepare the process and begin the program."""
    parent, name, *command = sys.argv[1:]
    if sys.platform.startswith("linux"):
        # At once; what ends the worker's children, and workers elsewhere, is guard.py.
        with contextlib.suppress(ImportError):
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.Signals[f"SIG{name}"]), 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "DYNET_CY_LAUNCH" in os.environ:
        os.environ["DYNET_CY_LAUNCH"] += f" pid={os.getpid()}"
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
