"""Ends the workers and their children when the launcher is killed; a program of its own, without dynet_cy.

The launcher writes a line to its standard input for each worker that begins or ends: "+" or "-" and the worker's
process id, which is also that of its process group. Before the launcher ends, it kills this process. So if the input
ends, the launcher was killed.
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
