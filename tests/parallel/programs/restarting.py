"""A training run that continues from its last checkpoint when it is restarted: arguments FOLDER FAULT...

A fault START:UPDATES:RANK:WAY makes a rank fail in a start after UPDATES updates, counting those before the checkpoint.
WAY is "kill", "raise" (ValueError), "hang", "save" (killed while it saves) or an exit code. START "*" is every start.
With the variable TEST_HOSTS, each rank claims to be on another host. At the end, FOLDER/end-RANK.npz has the results,
and FOLDER/starts-RANK.txt a line for each start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

if os.environ.get("TEST_HOSTS"):
    os.environ["DYNET_CY_HOST"] = f"host of {os.getpid()}"

import numpy as np
from resuming import EPOCHS, ITEMS, Training

import dynet_cy as dy

FOLDER, FAULTS = Path(sys.argv[1]), [text.split(":") for text in sys.argv[2:]]
START, RANK = dy.parallel.restart_count(), dy.parallel.rank()


def fail(updates: int) -> None:
    """Fail if a fault says so."""
    for start, after, rank, way in FAULTS:
        if start not in ("*", str(START)) or (int(after), int(rank)) != (updates, RANK):
            continue
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "raise":
            raise ValueError(f"bad luck at start {START}")
        if way == "hang":
            time.sleep(1000)
        if way == "save":
            os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
        elif way.isdigit():
            sys.exit(int(way))


with open(FOLDER / f"starts-{RANK}.txt", "a") as file:
    file.write(f"{START} {os.environ['DYNET_CY_RESTART_COUNT']} {hash('a')}\n")
print("this is start", START)
fail(-1)
training = Training(1)
path = FOLDER / "checkpoint"
if dy.parallel.broadcast(path.exists()):
    dy.parallel.load_checkpoint(path, training.m, training.t, **training.parts())
    print("goes on after", training.t._steps)
while training.data.epoch < EPOCHS:
    for item in training.data:
        fail(training.t._steps)
        training.update(item)
        # Never after the last update of an epoch, in which some ranks may have no item.
        if training.t._steps % -(-ITEMS // dy.parallel.size()) in (5, 10):
            dy.parallel.save_checkpoint(path, training.m, training.t, **training.parts())
found = training.results()
del found["seen"]
np.savez(FOLDER / f"end-{RANK}.npz", **found)
