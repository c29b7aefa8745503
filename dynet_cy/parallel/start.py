"""What a worker runs before its program, as a file of its own, without dynet_cy: ``start.py PARENT PYTHON ARGS...``.

The worker ends with its launcher (Linux), obeys Ctrl-C, and knows its own number. Then Python begins anew with ARGS.
"""

import contextlib
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Prepare the process and begin the program."""
    parent, python, *args = sys.argv[1:]
    if sys.platform.startswith("linux"):
        # At once; what ends the worker's children, and workers elsewhere, is guard.py.
        with contextlib.suppress(ImportError):
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["DYNET_CY_LAUNCH"] += f" pid={os.getpid()}"
    os.execv(python, [python, *args])


if __name__ == "__main__":
    main()
