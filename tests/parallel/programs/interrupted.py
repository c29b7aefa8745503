"""A signal handler ends an update on rank 1 while it waits for rank 0; argument WHERE: "values", "arrival", "sum".

Each rank prints the exception it got, and the sum of its parameters afterwards.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import dynet_cy as dy
from dynet_cy.parallel.communicator import Communicator
from dynet_cy.parallel.runtime import current, use
from dynet_cy.parallel.shared import SharedCommunicator

WHERE = sys.argv[1]
STOPPED = Path("stopped")  # made by the handler


class Stop(Exception):
    """The exception that the handler raises."""


def stop(number: int, frame: object) -> None:
    """The handler."""
    STOPPED.touch()
    raise Stop


def come_late() -> None:
    """Until the other rank has been stopped, however busy the machine is, and has had time to leave."""
    while not STOPPED.exists():
        time.sleep(0.01)
    time.sleep(0.3)


class General(SharedCommunicator):
    """Sums gradients as any communicator does, without shared memory."""

    reducer = Communicator.reducer

    def sum_floats(self, floats) -> None:
        """Rank 0 arrives late."""
        if self.rank == 0 and slow:
            come_late()
        super().sum_floats(floats)


class Lazy(dy.MomentumSGDTrainer):
    """A trainer whose part of the update is slow on rank 0, so that the others wait."""

    def _corrections(self, steps):
        if WHERE == "values" and dy.parallel.rank() == 0 and slow:
            time.sleep(1)  # handlers run when all is done
        return super()._corrections(steps)


slow = False
if WHERE == "sum":
    communicator = current()
    assert isinstance(communicator, SharedCommunicator)
    use(General(communicator.board))
rank = dy.parallel.rank()
m = dy.ParameterCollection()
W = m.add_parameters((30, 40), init=1.0)
E = m.add_lookup_parameters((30, 40), init=1.0)
trainer = dy.parallel.wrap(Lazy(m))
signal.signal(signal.SIGALRM, stop)


def step() -> None:
    """An update; the second one is stopped on rank 1."""
    dy.renew_cg()
    (dy.squared_norm(W) + dy.squared_norm(E[rank])).backward()
    trainer.update()


step()
slow = True
if rank == 1:
    signal.setitimer(signal.ITIMER_REAL, 0.5)
elif WHERE == "arrival":
    come_late()
for _ in range(2):
    try:
        step()
        got = "nothing"
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    slow = False
    print(got, float(W.as_array().sum()) + float(E.as_array().sum()), sep="|", flush=True)
