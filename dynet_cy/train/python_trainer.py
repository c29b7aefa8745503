"""The base class of trainers written in Python."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynet_cy.model.collection import ParameterCollection
from dynet_cy.model.parameters import LookupParameters, Parameters
from dynet_cy.train.backends import PythonBackend, refuse_devices
from dynet_cy.train.interfaces import Backend, ParameterGroup
from dynet_cy.train.trainer import SimpleSGDTrainer, Trainer

Floats = NDArray[np.float32]

HOST_ONLY = "steps in Python need parameters in the memory of the host, and some are on a device"


class StepSettings(NamedTuple):
    """The settings of the parameters of a group in one update."""

    learning_rate: float
    """The step size, with the factor of the trainer's schedule."""
    update: int
    """The number of the update, from 1."""
    group: ParameterGroup | None
    """The group made by `Trainer.group` that the parameter is in; None: in no group."""


class StepParameter:
    """A parameter or lookup table in one update, as `PythonTrainer.step` gets it.

    Attributes:
        name: the full name.
        rows: None for a parameter, and for a table all of whose rows change. For a table with sparse updates (the
            default): the numbers of the rows that have a gradient, in ascending order; the arrays hold these rows only.
        value: the value before the update, and before weight decay: a copy.
        gradient: the gradient: averaged over processes, and clipped.
        state: for each of the `state_names`, an array, zero at first. Values that `step` writes into them, or puts in
            their place, are kept for the next update.
    """

    __slots__ = ("gradient", "name", "rows", "state", "value")

    def __init__(
        self, name: str, rows: NDArray[np.uint32] | None, value: Floats, gradient: Floats, state: dict[str, Any]
    ) -> None:
        self.name = name
        self.rows = rows
        self.value = value
        self.gradient = gradient
        self.state = state


class PythonTrainer(Trainer):
    """Base class of trainers that compute their steps in Python.

    A derived class has a method `step`, which computes how one parameter changes, with NumPy, and names the state that
    it keeps for each number of a parameter in `state_names`. All else is that of other trainers: clipping, groups,
    schedules, weight decay, sparse updates, frozen parameters, moving averages, checkpoints, pickles, and several
    processes, each of which computes all steps. See docs/training.md.

    All steps of an update are computed before any value is changed. If `step` raises an exception, or a signal handler
    does meanwhile, nothing changes, not even the gradients and the state.

    Attributes of the object are saved with it, so they must be plain data: numbers, strings, tuples of these.

    Args:
        m: the ParameterCollection to train. The parameters must be in the memory of the host, not on a GPU.
        learning_rate: step size.

    Raises:
        TypeError: it is the base class itself, or `state_names` are not different strings.
        RuntimeError: parameters live on a GPU; `update` raises it too. So does `dy.parallel.wrap` in asynchronous
            training.

    Example:
        >>> class Momentum(dy.PythonTrainer):
        ...     state_names = ("velocity",)
        ...
        ...     def __init__(self, m, learning_rate=0.01, momentum=0.9):
        ...         super().__init__(m, learning_rate)
        ...         self.momentum = momentum
        ...
        ...     def step(self, p, settings):
        ...         v = p.state["velocity"]
        ...         v *= self.momentum
        ...         v -= settings.learning_rate * p.gradient
        ...         return v
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = Momentum(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> w.npvalue().round(3)
        array([0.8, 0.8])
    """

    state_names: ClassVar[tuple[str, ...]] = ()

    # The engine adds the changes itself. The rule does not change rows without a gradient.
    _rule = SimpleSGDTrainer._rule

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        names = cls.state_names
        if not isinstance(names, tuple) or not all(isinstance(n, str) for n in names) or len(set(names)) != len(names):
            raise TypeError(f"{cls.__name__}: state_names must be a tuple of different strings, not {names!r}")

    def __init__(self, m: ParameterCollection, learning_rate: float = 0.1) -> None:
        if type(self).step is PythonTrainer.step:
            raise TypeError(f"{type(self).__name__}: derive a class from it, with a method step(self, p, settings)")
        super().__init__(m, learning_rate)
        refuse_devices(self, HOST_ONLY)

    def step(self, p: StepParameter, settings: StepSettings) -> Any:
        """Compute the change of one parameter in an update; a derived class has this method.

        It is called once in each update for each parameter that is updated; for a table with sparse updates, if a row
        has a gradient.

        Args:
            p: the parameter: `p.name`, `p.rows`, `p.value`, `p.gradient` and `p.state`, a dictionary of arrays.
                All arrays have the shape that `as_array` has, and may be written to.
            settings: those of its group: `settings.learning_rate`, `settings.update`, the number of the update from 1,
                and `settings.group`, or None.

        Returns:
            The array to add to the value, of the same shape, such as ``-settings.learning_rate * p.gradient``.
            With weight decay, the share of decoupled decay is taken off before that.

        Example:
            >>> class SignSGD(dy.PythonTrainer):
            ...     def step(self, p, settings):
            ...         return -settings.learning_rate * np.sign(p.gradient)
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = SignSGD(model, learning_rate=0.1)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
            >>> w.npvalue().round(3)
            array([0.9, 0.9])
        """
        raise NotImplementedError

    @property
    def _n_states(self) -> int:
        return len(self.state_names)

    @property
    def _backend(self) -> Backend:
        return PythonBackend(self)

    @_backend.setter
    def _backend(self, value: Backend) -> None:
        refuse_devices(self, HOST_ONLY)

    def _compute_update(self, chosen: set[int] | None, skip_nonfinite: bool) -> None:
        refuse_devices(self, HOST_ONLY)
        super()._compute_update(chosen, skip_nonfinite)

    def _step_settings(self) -> list[StepSettings]:
        """Of the parameters that are in no group, and of each group."""
        shared = StepSettings(self.learning_rate, self._steps + 1, None)
        rates = [(shared.learning_rate if x.learning_rate is None else x.learning_rate, x) for x in self._groups]
        return [shared, *(StepSettings(rate, shared.update, group) for rate, group in rates)]

    def _changes(
        self,
        stored: Parameters | LookupParameters,
        rows: NDArray[np.uint32] | None,
        value: Floats,
        gradient: Floats,
        states: list[Floats],
        settings: StepSettings,
    ) -> tuple[Floats, list[Floats]]:
        """Call `step` with arrays of rows, and return arrays of rows: the change, and the new states."""
        shape = tuple(stored.shape())
        if isinstance(stored, LookupParameters):
            shape = (len(value), *shape[1:])
        own = [shaped(array, shape, stored) for array in states]
        p = StepParameter(
            stored.name(),
            rows,
            shaped(value, shape, stored),
            shaped(gradient, shape, stored),
            dict(zip(self.state_names, own)),
        )
        change = self._rows_of(self.step(p, settings), shape, stored, "the step")
        if p.state.keys() != set(self.state_names):
            raise KeyError(f"{type(self).__name__}: {stored.name()} has the states {sorted(p.state)} after step")
        for k, name in enumerate(self.state_names):
            if p.state[name] is not own[k]:
                states[k] = self._rows_of(p.state[name], shape, stored, f"the state {name!r}")
        return change, states

    def _rows_of(self, rows: Any, shape: tuple[int, ...], stored: Parameters | LookupParameters, what: str) -> Floats:
        """A copy of what `step` has computed, as an array of rows."""
        array = np.asarray(rows)
        if array.shape != shape or array.dtype.kind not in "fiu":
            found = f"{rows!r:.60}" if array.ndim == 0 else f"an array of {array.dtype} and shape {array.shape}"
            raise ValueError(
                f"{type(self).__name__}: {what} of {stored.name()} must have shape {shape}, and is {found}"
            )
        if isinstance(stored, LookupParameters):
            return np.array(array.transpose(0, *range(array.ndim - 1, 0, -1)), np.float32, order="C").reshape(
                shape[0], -1
            )
        return np.array(array.T, np.float32, order="C").reshape(1, -1)


def shaped(array: Floats, shape: tuple[int, ...], stored: Parameters | LookupParameters) -> Floats:
    """A view of an array of rows with the shape that users see: rows and parameters are column-major."""
    if isinstance(stored, LookupParameters):
        return array.reshape(shape[0], *shape[:0:-1]).transpose(0, *range(len(shape) - 1, 0, -1))
    return array.reshape(shape[::-1]).T
