"""Early stopping: ends training when the model no longer improves, and keeps the best parameters."""

from __future__ import annotations

import os
import warnings
from typing import Any, Union

import numpy as np

from dynet_cy.files.checkpoint import load_safetensors, save_safetensors
from dynet_cy.files.reading import FileName
from dynet_cy.files.replacing import ready
from dynet_cy.hints.equivalents import KnownArguments
from dynet_cy.model import LookupParameters, Parameters
from dynet_cy.model.given import collection_of
from dynet_cy.model.parameters import set_array, settled_array
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.parallel.resume import everywhere, together
from dynet_cy.parallel.runtime import current
from dynet_cy.train.schedules import Record

Stored = Union[Parameters, LookupParameters]


class EarlyStopping(KnownArguments):
    """Decides when to stop training, and keeps the parameters that gave the best value (Prechelt 1998, Early stopping,
    but when?).

    With several processes, all must report the same values (`parallel.average`); rank 0 writes the file.

    Args:
        collection: the model, or a layer of `dy.nn`
        patience: the number of values in a row without improvement after which to stop (default: 3)
        mode: "max" if the greatest value is the best one, as of scores; "min" for losses
        min_delta: by how much a value must be better than the best one to count as better (default: 0)
        path: a file for the best parameters, as `save_safetensors` writes it; None keeps them in memory

    Raises:
        OSError: the file cannot be written
        TypeError: it is not a ParameterCollection or layer, or a setting is not a number
        ValueError: `patience` is less than 1, `min_delta` negative or not finite, or there is no such mode

    Example:
        >>> W = model.add_parameters(2, init=0.0)
        >>> stopping = dy.EarlyStopping(model, patience=2)
        >>> for score in (0.5, 0.75, 0.6, 0.65, 0.9):
        ...     W.set_value([score, score])
        ...     better = stopping.report(score)
        ...     if stopping.stopped:
        ...         break
        >>> stopping.best, stopping.best_at
        (0.75, 2)
        >>> stopping.reload()
        >>> W.as_array().tolist()
        [0.75, 0.75]
    """

    def __init__(
        self,
        collection: CollectionOrLayer,
        patience: int = 3,
        mode: str = "max",
        min_delta: float = 0.0,
        path: FileName | None = None,
    ) -> None:
        self._collection = collection_of(collection, "EarlyStopping", "collection")
        self._record = Record(patience, mode, min_delta, "EarlyStopping")
        self._path = None if path is None else os.fspath(path)
        if self._path is not None and current().rank == 0:
            ready(self._path)
        self._kept: dict[Stored, np.ndarray[Any, Any]] = {}

    def report(self, value: float, extra: dict[str, Any] | None = None) -> bool:
        """Report the score of the model; the parameters of the best one are kept.

        Args:
            value: a score or a loss; NaN is never better. As long as all values were NaN, the file gets the parameters
                all the same, so that they are not lost, and a warning says so
            extra: further data for the file, see `save_safetensors`

        Returns:
            Whether the value is better than all before.

        Raises:
            OSError: the file cannot be written; then the best value is still that of the file
            TypeError: the value is not a number, or JSON cannot represent `extra`

        Example:
            >>> stopping = dy.EarlyStopping(model, mode="min")
            >>> stopping.report(3.0), stopping.report(3.5)
            (True, False)
        """
        before = self._record.state()
        better = self._record.add(value, "EarlyStopping.report")
        if better and self._path is None:
            self._kept = {x: settled_array(x) for x in self._collection._below()}
        elif better:
            try:
                self._write(extra)
            except BaseException:
                self._record.restore(before)
                raise
        elif not self.best_at and self._path is not None:
            self._write(extra)
            warnings.warn(
                f"EarlyStopping.report: the value is {value}, so no parameters are the best ones; "
                f"{self._path} has the last ones until a value is a number",
                stacklevel=2,
            )
        return better

    def _write(self, extra: dict[str, Any] | None) -> None:
        """Write the parameters as they are to the file."""
        if self._path is not None and current().rank == 0:
            save_safetensors(self._path, self._collection, extra=extra)

    @property
    def stopped(self) -> bool:
        """Whether the last `patience` values brought no improvement.

        Example:
            >>> stopping = dy.EarlyStopping(model, patience=1)
            >>> stopping.report(0.5), stopping.report(0.25)
            (True, False)
            >>> stopping.stopped
            True
        """
        return self._record.waited >= self._record.patience

    @property
    def best(self) -> float | None:
        """The best value so far; None before the first one.

        Example:
            >>> stopping = dy.EarlyStopping(model, patience=1)
            >>> stopping.report(0.5), stopping.report(0.25)
            (True, False)
            >>> stopping.best
            0.5
        """
        return self._record.best

    @property
    def best_at(self) -> int:
        """The number of the best value, counted from 1; 0 before the first value.

        Example:
            >>> stopping = dy.EarlyStopping(model, patience=1)
            >>> stopping.report(0.5), stopping.report(0.25)
            (True, False)
            >>> stopping.best_at
            1
        """
        return self._record.best_at

    def reload(self) -> None:
        """Restore the parameters of the best value. With a file and several processes, all ranks call it.

        Raises:
            ModelFileError: the file has been changed
            RuntimeError: no value has been reported yet, or parameters were added since the best one

        Example:
            >>> stopping = dy.EarlyStopping(model)
            >>> better = stopping.report(0.5)
            >>> stopping.reload()
        """
        if not self._record.best_at:
            raise RuntimeError("EarlyStopping.reload: no number has been reported yet")
        if self._path is not None:
            communicator = current()
            with together(communicator), everywhere(self._path, communicator) as own:
                load_safetensors(own, self._collection)
            return
        stored = self._collection._full_names()
        added = [name for name, x in stored.items() if x not in self._kept]
        if added:
            raise RuntimeError(f"EarlyStopping.reload: {added[0]} was added since the best value")
        for x in stored.values():
            set_array(x, self._kept[x])

    def state(self) -> dict[str, Any]:
        """The values so far as plain data, for the `extra` of a checkpoint.

        Raises:
            RuntimeError: the best parameters are in memory, and would be lost

        Example:
            >>> stopping = dy.EarlyStopping(model, path="best.safetensors")
            >>> better = stopping.report(0.5)
            >>> dy.save_safetensors("checkpoint", model, extra={"stopping": stopping.state()})
            >>> extra = dy.load_safetensors("checkpoint", model)
            >>> stopping.restore(extra["stopping"])
            >>> stopping.best
            0.5
        """
        if self._path is None:
            raise RuntimeError(
                "EarlyStopping.state: the best parameters are in memory and would be lost; give it a path"
            )
        return self._record.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a result of `state`.

        Raises:
            ValueError: it is not one

        Example:
            >>> stopping = dy.EarlyStopping(model, path="best.safetensors")
            >>> stopping.restore({"best": 0.5, "best_at": 1, "seen": 3, "waited": 2})
            >>> stopping.best
            0.5
        """
        self._record.restore(state)

    def __repr__(self) -> str:
        return f"<EarlyStopping: {self._record.settings()}, best {self.best} of {self._record.seen}>"
