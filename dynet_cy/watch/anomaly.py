"""Finds the operation that makes a value or gradient NaN or infinite: `detect_anomaly`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dynet_cy.graph import origin as _origin
from dynet_cy.watch import instruments as _watch
from dynet_cy.watch.instruments import AnomalyError

__all__ = ["AnomalyError", "detect_anomaly"]


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """Check values and gradients for numbers that are not finite while the block runs, in the graphs of all threads.

    Each batch of nodes is checked after it has run, forward and backward. The first number that is NaN or infinite
    raises `AnomalyError`, which names the operation, the expression, what its arguments hold, the batch element, the
    parameters and the line of the program that made the expression. The line is known only if the graph is built
    within the block too::

        with dy.detect_anomaly():
            loss = network(example)
            loss.backward()

    ``--dynet-check`` and ``dynet_cy.config.set(check=True)`` do the same for the whole program. The checks change no
    result, but cost time, most of all on GPUs, where the host waits for each batch.

    An infinity in an input, as in an attention mask, is not an anomaly; nor is one that an operation returns by
    definition, as `log_softmax` with a restriction does. When backward raises, the gradients of parameters are
    restored. If another thread has added to the gradients meanwhile, or they are summed over MPI while backward runs,
    part of the failed pass may remain in them: call `zero_gradients`.

    The idea is from PyTorch's ``torch.autograd.detect_anomaly``, which checks for NaN in backward.

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
    """Start or stop the checks of `detect_anomaly`. Calls nest: the checks end when every start has had its stop."""
    _origin.switch(on)
    _watch.switch(on)
