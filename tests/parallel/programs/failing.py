"""A training run in which rank 1 fails: arguments PHASE ("start", "batch", "exchange", "saving", "never") and WAY
("raise", "kill", "hang", "spin", "exit", "stop")."""

from __future__ import annotations

import os
import signal
import sys
import time

PHASE, WAY = sys.argv[1:3]


def fail() -> None:
    """Fail in the requested way."""
    print("failing", flush=True)
    if WAY == "raise":
        raise ValueError("bad luck")
    if WAY == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if WAY == "hang":
        time.sleep(1000)
    if WAY == "spin":
        while True:
            pass
    if WAY == "exit":
        sys.exit(0)
    if WAY == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)


IS_BAD = "rank=1" in os.environ.get("DYNET_CY_LAUNCH", "")
if IS_BAD and PHASE == "start":
    fail()

import dynet_cy as dy  # noqa: E402

m = dy.ParameterCollection()
W = m.add_parameters((20, 20))
trainer = dy.parallel.wrap(dy.AdamTrainer(m))
for number in dy.parallel.shard(range(20)):
    dy.renew_cg()
    dy.squared_norm(W).backward()
    if number == 5 and IS_BAD and PHASE == "batch":
        fail()
    if PHASE == "exchange" and number >= 4:
        if IS_BAD:
            # The signal comes while this rank waits for rank 0 in the exchange.
            signal.signal(signal.SIGALRM, lambda *_: fail())
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        else:
            time.sleep(1000)
    trainer.update()
if IS_BAD and PHASE == "saving":
    sync = os.fsync

    def fail_in_sync(fd: int) -> None:
        """Fail when the new file is complete, but has not replaced the old one."""
        os.fsync = sync
        fail()

    os.fsync = fail_in_sync
    m.save("model")
if PHASE == "saving":
    dy.parallel.barrier()
print("done")
