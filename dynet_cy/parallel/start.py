"""The first program of the launcher's children, without dynet_cy: ``start.py PARENT SIGNAL PROGRAM ARGS...``.

The program arranges that the process gets this signal (KILL, TERM) when its launcher ends (on Linux), and reacts to
Ctrl-C. Then it replaces itself by the program.
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
        # The signal ends the worker at once; guard.py ends the worker's children, and workers on other systems.
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
