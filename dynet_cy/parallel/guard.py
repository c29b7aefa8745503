"""Ends what workers leave running when the launcher is killed; a file of its own, without dynet_cy.

Its standard input, which only the launcher writes, has a line for each worker that begins or ends: "+" or "-" and its
number, which is that of its process group. The launcher kills this process before it ends. So when the input ends, the
launcher was killed.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Wait for the end of the input, then end the groups of all workers that have not ended."""
    groups = set()
    for line in sys.stdin.buffer:
        number = int(line[1:])
        if line.startswith(b"+"):
            groups.add(number)
        else:
            groups.discard(number)
    for number in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(number, signal.SIGKILL)


if __name__ == "__main__":
    main()
