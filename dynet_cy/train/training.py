"""The frame of a training loop: progress bar, a line for each epoch, curves, early stopping, the best model."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from dynet_cy import loggers as _loggers
from dynet_cy.files.checkpoint import save_safetensors
from dynet_cy.files.reading import FileName
from dynet_cy.hints.equivalents import KnownArguments
from dynet_cy.model import ParameterCollection
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.parallel.data import progress
from dynet_cy.train.stopping import EarlyStopping
from dynet_cy.train.trainer import updates_made

T = TypeVar("T")


class Training(KnownArguments, Generic[T]):
    """The epochs of a training loop, with progress bar, messages, curves, early stopping and the best model.

    Each epoch shows a progress bar (with tqdm, if it is installed), and prints a line with loss, speed and scores. The
    last of the scores decides which epoch is the best one: its parameters are kept, in a file if there is a path. The
    loop ends after all epochs, or when `patience` epochs in a row were no better; then the best score is printed. As
    long as no epoch has a score that is a number, the file has the parameters after the last one.

    Args:
        collection: the model
        data: the batches of an epoch, such as `data.batches` makes, or a list; iterated once for each epoch
        epochs: how many epochs there are at most
        patience: after how many epochs without a better score to stop; None: never
        mode: "max" if the greatest score is the best one, "min" for losses and perplexities
        path: a file for the best model, as `save_safetensors` writes it; its folder is made if there is none. None: the
            best parameters are kept in memory, see `EarlyStopping.reload` of `stopping`
        extra: further data for the file, from which `load_network` builds the network again
        unit: what is counted, such as "words": the loss is a mean over it, and the speed is in it
        total: how many of these an epoch has; `done` then counts them. None: it counts batches
        scored: what the scores are measured on, as the line of text says it
        shown: how a score is written, as in a format string
        picture: a file for a plot of the curves, see `loggers.Curves`
        tensorboard: a folder for TensorBoard
        loggers: further places for the numbers of each epoch, see `loggers.Logger`: files, W&B, MLflow, a page that
            shows the curves meanwhile. They also get the path of the best model, and are closed when the training ends,
            even by an exception

    Attributes:
        curves: the `loggers.Curves`, for further numbers and histograms
        stopping: the `EarlyStopping`
        done: the share of the training that is over, from 0 to 1, for learning rates

    Raises:
        ImportError: a picture or a folder for TensorBoard needs a package that is not installed
        OSError: the file for the best model or the picture cannot be written
        TypeError: `data` is a generator or another iterator, which has the batches of one epoch only; a logger is none;
            or JSON cannot represent `extra`
        ValueError: `patience`, `mode` or the ending of the picture is wrong

    Example:
        >>> W, trainer = model.add_parameters(1, init=0.0), dy.SimpleSGDTrainer(model)
        >>> examples = dy.data.batches([1.0, 2.0, 3.0, 2.0], 2)
        >>> training = dy.Training(model, examples, epochs=2, mode="min", shown=".2f")
        >>> for epoch in training:
        ...     for batch in epoch:
        ...         graph = dy.renew_cg()
        ...         loss = dy.average([dy.square(W - x) for x in batch])
        ...         epoch.add(loss.value(), len(batch))
        ...         loss.backward()
        ...         trainer.update()
        ...     better = epoch.report(error=abs(W.as_array()[0] - 2))
        epoch 1: loss 3.7950, ... s, ... items/s, dev error 1.26
        epoch 2: loss 1.8316, ... s, ... items/s, dev error 0.79
        best dev error 0.79 after epoch 2
    """

    def __init__(
        self,
        collection: CollectionOrLayer,
        data: Iterable[T],
        epochs: int,
        *,
        patience: int | None = None,
        mode: str = "max",
        path: FileName | None = None,
        extra: dict[str, Any] | None = None,
        unit: str = "items",
        total: float | None = None,
        scored: str = "dev",
        shown: str = ".2%",
        picture: FileName | None = None,
        tensorboard: FileName | None = None,
        loggers: Sequence[_loggers.Logger] = (),
    ) -> None:
        if isinstance(data, Iterator):
            raise TypeError(f"Training: data is iterated once for each epoch; a {type(data).__name__} has one only")
        save_safetensors(os.devnull, ParameterCollection(), extra=extra)  # its errors come before the training
        if path is not None:
            os.makedirs(os.path.dirname(os.fspath(path)) or ".", exist_ok=True)
        self.stopping = EarlyStopping(collection, sys.maxsize if patience is None else patience, mode, path=path)
        for logger in loggers:
            if not isinstance(logger, _loggers.Logger):
                raise TypeError(f"Training: a logger is a dynet_cy.loggers.Logger, not {type(logger).__name__}")
        self.curves = _loggers.Curves(picture, tensorboard, step="epoch")
        self._loggers = [self.curves, *loggers]
        self.done = 0.0
        self._data, self._epochs, self._patience = data, epochs, patience
        self._path, self._extra = path, extra
        self._unit, self._total, self._scored, self._shown = unit, total, scored, shown
        self._best = ""  # the scores of the best epoch, as text
        self._saved = ""  # the path, once the file is written
        self._begun = updates_made()
        self._due: dict[int, int] = {}  # of each number that `every` was asked for, how often it was due

    def __repr__(self) -> str:
        best = f", best {self._best} after epoch {self.stopping.best_at}" if self._best else ""
        return f"<Training: {self.done:.0%} of {self._epochs} epochs{best}>"

    def every(self, updates: int) -> bool:
        """Whether so many updates have passed since the last time, for a checkpoint for example.

        A training that ends between two such times has made updates since the last one: do the same at its end.

        In training by several processes the answer is the same on all of them, as they make all updates together
        (except with ``--mode async``), unlike that of a count of items or batches. So a checkpoint, which needs all
        processes, can depend on it.

        Args:
            updates: how many, at least 1

        Returns:
            True if the updates of all trainers since the training was made have reached or passed a multiple of that
            since the last True.

        Raises:
            ValueError: `updates` is less than 1

        Example:
            >>> W, trainer = model.add_parameters(1, init=0.0), dy.SimpleSGDTrainer(model)
            >>> run = dy.Training(model, [[1.0]] * 6, epochs=1)
            >>> for epoch in run:
            ...     for batch in epoch:
            ...         graph = dy.renew_cg()
            ...         dy.square(W - batch[0]).backward()
            ...         trainer.update()
            ...         if run.every(2):
            ...             dy.parallel.save_checkpoint("run.safetensors", model, trainer)
            ...             print(f"saved after {trainer.updates} updates")
            saved after 2 updates
            saved after 4 updates
            saved after 6 updates
        """
        if updates < 1:
            raise ValueError(f"Training.every: updates must be at least 1, not {updates!r}")
        times = (updates_made() - self._begun) // updates
        due = times > self._due.get(updates, 0)
        self._due[updates] = times
        return due

    def __iter__(self) -> Iterator[Epoch[T]]:
        """The epochs, until the training ends."""
        with contextlib.ExitStack() as closing:
            for logger in self._loggers:
                closing.enter_context(logger)
            for number in range(1, self._epochs + 1):
                epoch = Epoch(self, number)
                try:
                    yield epoch
                except GeneratorExit:  # the loop was left
                    self._keep_last(epoch, whole=epoch._over)
                    raise
                self._keep_last(epoch, whole=True)
                if self.stopping.stopped:
                    print(f"no better for {self._patience} epochs: stopping")
                    break
            if self._saved:
                for logger in self._loggers:
                    logger.log_artefact(self._saved)
        saved = f", model saved in {self._saved}" if self._saved else ""
        if self._best:
            print(f"best {self._best} after epoch {self.stopping.best_at}{saved}", flush=True)
        elif saved:
            print(f"no score that is a number{saved} after epoch {number}", flush=True)

    def _keep_last(self, epoch: Epoch[T], whole: bool) -> None:
        """Write the parameters after an epoch without a report, as long as none are the best ones."""
        if self._path is None or self._best or epoch._reported:
            return
        if whole or not os.path.exists(self._path):  # what an earlier training wrote is worth more than a part
            self.stopping._write(self._extra)
            self._saved = os.fspath(self._path)


class Epoch(Generic[T]):
    """An epoch of a `Training`; iterating it yields its batches.

    Attributes:
        number: counted from 1

    Example:
        >>> training = dy.Training(model, [["a", "b"], ["c"]], epochs=1, unit="letters")
        >>> for epoch in training:
        ...     for batch in epoch:
        ...         epoch.add(0.5, len(batch))
        ...     better = epoch.report(precision=0.5, recall=1.0, F1=2 / 3)
        epoch 1: loss 0.5000, ... s, ... letters/s, dev precision 50.00%, recall 100.00%, F1 66.67%
        best dev precision 50.00%, recall 100.00%, F1 66.67% after epoch 1
    """

    def __init__(self, training: Training[T], number: int) -> None:
        self.number = number
        self._training = training
        self._summed = self._units = self._seconds = 0.0
        self._over = self._reported = False

    def __repr__(self) -> str:
        training = self._training
        loss = f"loss {self._summed / self._units:.4f}, " if self._units else ""
        return f"<Epoch {self.number} of {training._epochs}: {loss}{self._units:g} {training._unit}>"

    def __iter__(self) -> Iterator[T]:
        """The batches, with a progress bar; the time that the loop takes is the time of the epoch."""
        training = self._training
        start = time.perf_counter()
        data: Any = training._data
        shown = progress(data, desc=f"epoch {self.number}", unit=" batches", leave=False, disable=None)
        try:
            for number, batch in enumerate(shown, start=1):
                yield batch
                within = number / len(data) if training._total is None else self._units / training._total
                training.done = (self.number - 1 + within) / training._epochs
            self._over = True
        finally:  # the loop may break
            self._seconds = time.perf_counter() - start

    def add(self, loss: float, units: float = 1) -> None:
        """Record the loss of a batch.

        Args:
            loss: the mean over its units
            units: how many it has

        Example:
            >>> for epoch in dy.Training(model, [[1, 2]], epochs=1):
            ...     for batch in epoch:
            ...         epoch.add(0.25, len(batch))
            ...     better = epoch.report(accuracy=0.5)
            epoch 1: loss 0.2500, ... s, ... items/s, dev accuracy 50.00%
            best dev accuracy 50.00% after epoch 1
        """
        self._summed += loss * units
        self._units += units

    def report(self, **scores: float) -> bool:
        """Print the line of the epoch, add its numbers to the curves, and keep the model if it is the best so far.

        Args:
            scores: by name, an underscore for a blank; the last one decides. The mean of the losses that `add` recorded
                is called "loss" already

        Returns:
            Whether it is.

        Raises:
            OSError: the file of the best model, or the one for TensorBoard, cannot be written
            ValueError: there is no score, or one is called "loss"

        Example:
            >>> for epoch in dy.Training(model, [[1, 2]], epochs=1):
            ...     for batch in epoch:
            ...         epoch.add(0.25, len(batch))
            ...     better = epoch.report(UAS=0.5, LAS=0.25)
            epoch 1: loss 0.2500, ... s, ... items/s, dev UAS 50.00%, LAS 25.00%
            best dev UAS 50.00%, LAS 25.00% after epoch 1
            >>> better
            True
        """
        training = self._training
        if not scores:
            raise ValueError("Epoch.report: pass a score, as in report(accuracy=0.5)")
        if "loss" in scores:
            raise ValueError('Epoch.report: "loss" is that of training; another name is needed, as in dev_loss=0.5')
        loss = self._summed / max(self._units, 1)
        text = ", ".join(f"{name.replace('_', ' ')} {value:{training._shown}}" for name, value in scores.items())
        speed = f"{self._seconds:.1f} s, {self._units / max(self._seconds, 1e-9):.0f} {training._unit}/s"
        print(f"epoch {self.number}: loss {loss:.4f}, {speed}, {training._scored} {text}", flush=True)
        training.curves.formats.update(dict.fromkeys(scores, training._shown))
        for logger in training._loggers:
            logger.log({"loss": loss, **scores}, self.number)
        better = training.stopping.report(list(scores.values())[-1], extra=training._extra)
        self._reported = True
        training._saved = "" if training._path is None else os.fspath(training._path)
        if better:
            training._best = f"{training._scored} {text}"
        return better
