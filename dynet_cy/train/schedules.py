"""Learning rate schedules: factors of a trainer's learning rates, from update to update."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from dynet_cy.files.schema import COUNT, SHARE, Schema, check, maybe, record
from dynet_cy.hints.equivalents import KnownArguments


class Schedule:
    """The factor of a trainer's learning rates, as a function of the number of updates made.

    Assign it to `Trainer.schedule`; the trainer counts its updates by itself. To write your own, define a subclass with
    `factor`, and with a ``__repr__`` that includes its settings: checkpoints compare that.

    Example:
        >>> class InverseRoot(dy.Schedule):
        ...     def factor(self, updates):
        ...         return (updates + 1) ** -0.5
        ...     def __repr__(self):
        ...         return "InverseRoot()"
        >>> trainer = dy.AdamTrainer(model, alpha=0.01)
        >>> trainer.schedule = InverseRoot()
        >>> trainer.learning_rate
        0.01
    """

    def factor(self, updates: int) -> float:
        """The factor of the learning rate in the next update.

        Args:
            updates: how many updates were made since the schedule was set

        Example:
            >>> dy.LinearSchedule(10).factor(5)
            0.5
        """
        raise NotImplementedError(f"{type(self).__name__} has no method factor(updates)")

    def report(self, value: float) -> bool:
        """Report the score of the model to the schedule. Only `PlateauSchedule` uses it.

        Args:
            value: a loss or a score; with several processes it must be the same on all, see `parallel.average`

        Returns:
            Whether the factor has changed.

        Example:
            >>> dy.LinearSchedule(10).report(0.5)
            False
        """
        return False

    def _values(self) -> dict[str, Any]:
        """The state besides the number of updates, as data for JSON."""
        return {}

    def _set_values(self, values: dict[str, Any]) -> None:
        """Restore a result of `_values`."""


class LinearSchedule(KnownArguments, Schedule):
    """From 1 to `end` in a straight line, and `end` from then on.

    Args:
        updates: how many updates it takes
        end: the factor at the end (default: 0)

    Raises:
        TypeError: `updates` is not a whole number, or `end` is not a number
        ValueError: `updates` is less than 1, or `end` is negative or not finite

    Example:
        >>> schedule = dy.LinearSchedule(4, end=0.2)
        >>> [round(schedule.factor(n), 3) for n in range(6)]
        [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
    """

    def __init__(self, updates: int, end: float = 0.0) -> None:
        self.updates = _count(updates, self, "updates")
        self.end = _factor(end, self, "end")

    def factor(self, updates: int) -> float:
        """See `Schedule.factor`.

        Args:
            updates: how many updates were made, 0 or more.

        Example:
            >>> dy.LinearSchedule(10).factor(5)
            0.5
        """
        return 1 + (self.end - 1) * min(updates / self.updates, 1)

    def __repr__(self) -> str:
        return f"LinearSchedule({self.updates}, end={self.end})"


class CosineSchedule(KnownArguments, Schedule):
    """From 1 to `end` along half a cosine, and `end` from then on (Loshchilov and Hutter 2017, SGDR).

    Args:
        updates: how many updates it takes
        end: the factor at the end (default: 0)

    Raises:
        TypeError: `updates` is not a whole number, or `end` is not a number
        ValueError: `updates` is less than 1, or `end` is negative or not finite

    Example:
        >>> schedule = dy.CosineSchedule(4)
        >>> [round(schedule.factor(n), 3) for n in range(6)]
        [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """

    def __init__(self, updates: int, end: float = 0.0) -> None:
        self.updates = _count(updates, self, "updates")
        self.end = _factor(end, self, "end")

    def factor(self, updates: int) -> float:
        """See `Schedule.factor`.

        Args:
            updates: how many updates were made, 0 or more.

        Example:
            >>> dy.CosineSchedule(10, end=0.5).factor(10)
            0.5
        """
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * min(updates / self.updates, 1))) / 2

    def __repr__(self) -> str:
        return f"CosineSchedule({self.updates}, end={self.end})"


class StepSchedule(KnownArguments, Schedule):
    """Multiplied by `by` every n updates, or after given numbers of updates.

    Args:
        at: the number of updates between two steps, or a list of the numbers of updates after which there is one
        by: what each step multiplies the learning rate by (default: 0.1)

    Raises:
        TypeError: `at` is neither a whole number nor a list of these, or `by` is not a number
        ValueError: a number of `at` is less than 1, the list does not rise, or `by` is negative or not finite

    Example:
        >>> schedule = dy.StepSchedule(2, by=0.5)
        >>> [schedule.factor(n) for n in range(5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
        >>> schedule = dy.StepSchedule([1, 4], by=0.5)
        >>> [schedule.factor(n) for n in range(5)]
        [1.0, 0.5, 0.5, 0.5, 0.25]
    """

    def __init__(self, at: int | Sequence[int], by: float = 0.1) -> None:
        self.at: int | tuple[int, ...]
        if isinstance(at, (list, tuple)):
            self.at = tuple(_count(n, self, "each number of at") for n in at)
            if list(self.at) != sorted(set(self.at)):
                raise ValueError(f"StepSchedule: the numbers of at must rise, not be {list(self.at)}")
        else:
            self.at = _count(at, self, "at")
        self.by = _factor(by, self, "by")

    def factor(self, updates: int) -> float:
        """See `Schedule.factor`.

        Args:
            updates: how many updates were made, 0 or more.

        Example:
            >>> dy.StepSchedule(10, by=0.5).factor(25)
            0.25
        """
        if isinstance(self.at, int):
            return self.by ** (updates // self.at)
        return self.by ** sum(updates >= n for n in self.at)

    def __repr__(self) -> str:
        return f"StepSchedule({list(self.at) if isinstance(self.at, tuple) else self.at}, by={self.by})"


class PlateauSchedule(KnownArguments, Schedule):
    """Multiplied by `by` each time `patience` values in a row, passed to `report`, were no better than the best one.

    Args:
        patience: the number of values in a row without improvement that make a step (default: 2)
        by: what each step multiplies the learning rate by (default: 0.5)
        mode: "min" if the least value is the best one, as for losses; "max" for scores
        min_delta: by how much a value must be better than the best one to count as better (default: 0)
        least: the lowest factor (default: 0)

    Raises:
        TypeError: a setting is not a number
        ValueError: `patience` is less than 1, a factor or `min_delta` negative or not finite, or there is no such mode

    Example:
        >>> schedule = dy.PlateauSchedule(patience=2, by=0.5)
        >>> [schedule.report(loss) for loss in (3.0, 2.0, 2.5, 2.1, 1.5)]
        [False, False, False, True, False]
        >>> schedule.factor(100)
        0.5
    """

    def __init__(
        self, patience: int = 2, by: float = 0.5, mode: str = "min", min_delta: float = 0.0, least: float = 0.0
    ) -> None:
        self.by = _factor(by, self, "by")
        self.least = _factor(least, self, "least")
        self.record = Record(patience, mode, min_delta, type(self).__name__)
        self._factor = 1.0

    def factor(self, updates: int) -> float:
        """See `Schedule.factor`; it does not depend on the number of updates.

        Example:
            >>> dy.PlateauSchedule().factor(100)
            1.0
        """
        return self._factor

    def report(self, value: float) -> bool:
        """Report the score of the model to the schedule; NaN is never better.

        Args:
            value: a loss or a score; with several processes it must be the same on all, see `parallel.average`

        Returns:
            Whether the factor has changed.

        Raises:
            TypeError: the value is not a number

        Example:
            >>> dy.PlateauSchedule().report(3.0)
            False
        """
        self.record.add(value, "PlateauSchedule.report")
        if self.record.waited < self.record.patience:
            return False
        self.record.waited = 0
        before, self._factor = self._factor, max(self._factor * self.by, self.least)
        return self._factor != before

    def _values(self) -> dict[str, Any]:
        return {"factor": self._factor, **self.record.state()}

    def _set_values(self, values: dict[str, Any]) -> None:
        check(values, record({"factor": SHARE}), "the state of PlateauSchedule")
        self.record.restore(values)
        self._factor = float(values["factor"])

    def __repr__(self) -> str:
        return f"PlateauSchedule({self.record.settings()}, by={self.by}, least={self.least})"


class WarmupSchedule(KnownArguments, Schedule):
    """Up to 1 in a straight line, then another schedule, which begins there (Goyal et al. 2017, Accurate, large
    minibatch SGD).

    Args:
        updates: how many updates the warm-up takes: the n-th one has the factor
            ``start + (1 - start) * n / updates``, so the last one has 1
        then: the schedule of the updates after these; the factor stays 1 if there is none
        start: the factor at which the line begins, before the first update (default: 0)

    Raises:
        TypeError: `updates` is not a whole number, `start` not a number, or `then` not a schedule
        ValueError: `updates` is less than 1, or `start` is negative or not finite

    Example:
        >>> schedule = dy.WarmupSchedule(4, then=dy.LinearSchedule(2))
        >>> [schedule.factor(n) for n in range(7)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.0]
    """

    def __init__(self, updates: int, then: Schedule | None = None, start: float = 0.0) -> None:
        self.updates = _count(updates, self, "updates")
        self.start = _factor(start, self, "start")
        if then is not None and not isinstance(then, Schedule):
            raise TypeError(f"WarmupSchedule: then must be a Schedule, not {type(then).__name__}")
        self.then = then

    def factor(self, updates: int) -> float:
        """See `Schedule.factor`.

        Args:
            updates: how many updates were made, 0 or more.

        Example:
            >>> dy.WarmupSchedule(4).factor(1)
            0.5
        """
        if updates < self.updates:
            return self.start + (1 - self.start) * (updates + 1) / self.updates
        return 1.0 if self.then is None else self.then.factor(updates - self.updates)

    def report(self, value: float) -> bool:
        """Report the score to the schedule after the warmup; see `PlateauSchedule.report`.

        Args:
            value: a loss or a score.

        Example:
            >>> dy.WarmupSchedule(4).report(3.0)
            False
        """
        return self.then is not None and self.then.report(value)

    def _values(self) -> dict[str, Any]:
        return {} if self.then is None else self.then._values()

    def _set_values(self, values: dict[str, Any]) -> None:
        if self.then is not None:
            self.then._set_values(values)

    def __repr__(self) -> str:
        return f"WarmupSchedule({self.updates}, then={self.then!r}, start={self.start})"


class Record:
    """The best value so far, and how many have followed it.

    Args:
        patience: the number of values in a row without improvement that are too many
        mode: "min" or "max": which value is the best one
        min_delta: by how much a value must be better
        owner: the name of the user, for errors
    """

    def __init__(self, patience: int, mode: str, min_delta: float, owner: str) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"{owner}: mode must be 'min' or 'max', not {mode!r}")
        self.patience = _count(patience, owner, "patience")
        self.mode = mode
        self.min_delta = _factor(min_delta, owner, "min_delta")
        self.best: float | None = None
        self.seen = 0
        self.best_at = 0  # the number of the best value, from 1 on
        self.waited = 0

    def add(self, value: float, function: str) -> bool:
        """Add a value; returns whether it is better than all before."""
        value = _number(value, function, "value")
        self.seen += 1
        self.waited += 1
        if math.isnan(value):
            return False
        if self.best is not None:
            better = value - self.best if self.mode == "max" else self.best - value
            if not better > self.min_delta:  # NaN if both values are infinite
                return False
        self.best, self.best_at, self.waited = value, self.seen, 0
        return True

    def state(self) -> dict[str, Any]:
        """Plain data."""
        return {"best": self.best, "best_at": self.best_at, "seen": self.seen, "waited": self.waited}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a result of `state`."""
        number = Schema("a number", lambda x, _: type(x) in (int, float))
        check(state, record({"best": maybe(number), "best_at": COUNT, "seen": COUNT, "waited": COUNT}), "the state")
        self.best = None if state["best"] is None else float(state["best"])
        self.best_at, self.seen, self.waited = state["best_at"], state["seen"], state["waited"]

    def settings(self) -> str:
        """The settings, in words."""
        return f"patience={self.patience}, mode={self.mode!r}, min_delta={self.min_delta}"


class Pace:
    """The position of a trainer in its schedule, shared by the trainer and its groups.

    Args:
        schedule: the schedule, which starts now
        updates: how many updates the trainer has made
    """

    def __init__(self, schedule: Schedule, updates: int) -> None:
        if not isinstance(schedule, Schedule):
            raise TypeError(f"Trainer.schedule must be a Schedule or None, not {type(schedule).__name__}")
        self.schedule = schedule
        self.begun = self.updates = updates
        self.scaled(1.0)  # report errors of user-defined schedules now

    def scaled(self, rate: float, back: int = 0) -> float:
        """A learning rate in the next update, if the last `back` updates were not made."""
        factor = self.schedule.factor(max(self.updates - back - self.begun, 0))
        if not (isinstance(factor, (int, float)) and 0 <= factor < math.inf):
            raise ValueError(f"{self.schedule!r}: the factor is {factor!r}, not a finite number of at least 0")
        return rate * factor

    def state(self) -> dict[str, Any]:
        """Plain data."""
        return {"schedule": repr(self.schedule), "begun": self.begun, "values": self.schedule._values()}

    def restored(self, state: dict[str, Any], updates: int) -> Pace:
        """Restore a result of `state`, for a trainer that has made so many updates."""
        self.schedule._set_values(state["values"])
        self.begun, self.updates = state["begun"], updates
        return self


def _number(value: Any, function: Any, name: str) -> float:
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{_who(function)}: {name} must be a number, not {value!r:.100}")


def _factor(value: Any, function: Any, name: str) -> float:
    number = _number(value, function, name)
    if not 0 <= number < math.inf:
        raise ValueError(f"{_who(function)}: {name} must be a finite number of at least 0, not {value!r:.100}")
    return number


def _count(value: Any, function: Any, name: str) -> int:
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except TypeError:
        raise TypeError(f"{_who(function)}: {name} must be a whole number, not {value!r:.100}") from None
    if number < 1:
        raise ValueError(f"{_who(function)}: {name} must be at least 1, not {number}")
    return number


def _who(function: Any) -> str:
    return function if isinstance(function, str) else type(function).__name__
