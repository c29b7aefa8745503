"""Looking for what makes values or gradients NaN or infinite: `detect_anomaly`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dynet_cy.execute import anomaly as _anomaly
from dynet_cy.execute.anomaly import AnomalyError
from dynet_cy.graph import origin as _origin

__all__ = ["AnomalyError", "detect_anomaly"]


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Check values and gradients for numbers that are not finite while the block runs, in the graphs of all threads.

    Each batch of nodes is looked at when it has run, forward and backward. The first number that is NaN or infinite
    raises `AnomalyError`, which names the operation, the expression, what its arguments hold, the batch element, the
    parameters and the line of the program that made the expression. So that there is a line, the graph has to be built
    within the block too::

        with dy.detect_anomaly():
            loss = network(example)
            loss.backward()

    ``--dynet-check`` and ``dynet_cy.config.set(check=True)`` do the same for the whole program. Numbers that are
    computed do not change. The block is slower than without, most of all on GPUs, where each batch is waited for.

    An infinity that came in with an input, as in the mask of an attention, is no anomaly; nor is what an operation
    gives on purpose, as `log_softmax` with a restriction does. When backward raises, gradients of parameters are what
    they were before it; where another thread has added to the same ones meanwhile, or they are summed over MPI while
    backward runs, a part of it may stay, and `zero_gradients` clears them.

    The idea is that of PyTorch's ``torch.autograd.detect_anomaly``, which looks for NaN in backward.

    Raises:
        AnomalyError: in the block, where a value or a gradient is not finite

    Example:
        >>> with dy.detect_anomaly():
        ...     dy.log(dy.inputVector([1, 2])).npvalue().round(3)
        array([0.   , 0.693])
    """
    switch(True)
    try:
        yield
    finally:
        switch(False)


def switch(on: bool) -> None:
    """Start or stop the checks of `detect_anomaly`; they stop when they were ended as often as started."""
    _origin.switch(on)
    _anomaly.switch(on)
