"""Moving averages of parameters, kept in a plane of the storage and brought up to date after updates."""

from dynet_cy.memory.changes cimport check_change, raise_kept
from dynet_cy.memory.storage cimport Plane, Storage, value_changed
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.train.devices cimport backend_of, wait_for_updates
from dynet_cy.train.groups cimport number
from dynet_cy.train.interfaces cimport Backend, Reducer


class MovingAverages:
    """The part of trainers that handles moving averages.

    The average is kept in the plane after those of the rule's state.  While the parameters are set to it, their own
    values are saved in the next plane.
    """

    _average = None             # plain data: beta, frequency, updates, values, parameters
    _swapped = ""               # while the parameters are set to the average: are their own values "kept" or "lost"?

    def exponential_moving_average(self, beta, update_freq=1):
        """Keep an average of the parameters in which older values count less and less.

        For values p_1, ..., p_n it is their mean with weights beta^(n-i): Polyak and
        Juditsky 1992 for averages of parameters, Kingma and Ba 2015 (section 7.2)
        for these weights.  It replaces an average that the trainer has kept so far.

        Each value added to the average costs a pass over all parameters and tables.

        Args:
            beta: at least 0 and less than 1; 0.999 looks back about a thousand values.
            update_freq: add the values to the average after every so many updates (default: 1).

        Raises:
            ValueError: beta or update_freq is out of range.
            RuntimeError: the parameters are set to their moving average, or training is asynchronous.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> trainer.exponential_moving_average(0.9)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
            >>> trainer.swap_params_to_moving_average()
            >>> trainer.swap_params_to_weights()
        """
        beta = number(beta, "beta")
        if not 0 <= beta < 1:
            raise ValueError(f"exponential_moving_average: beta must be from 0 to below 1, not {beta}")
        self._start_average(beta, update_freq)

    def cumulative_moving_average(self, update_freq=1):
        """Keep the mean of the values that the parameters have after each update from now on.

        See `exponential_moving_average`.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> trainer.cumulative_moving_average()
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
        """
        self._start_average(None, update_freq)

    def swap_params_to_moving_average(self, save_weights=True, bias_correction=True):
        """Set the parameters to their moving average, to evaluate or save a model.

        `update` is an error until `swap_params_to_weights` is called.

        Args:
            save_weights: keep the current values, for `swap_params_to_weights`.  If False,
                they are lost, and the trainer can make no more updates. Default: True.
            bias_correction: for an exponential average: scale its weights to sum up to 1.  If False,
                they are not scaled, as if there were zeros before the first value. Default: True.

        Raises:
            RuntimeError: there is no average yet, or the parameters are set to it already.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> trainer.exponential_moving_average(0.9)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
            >>> trainer.swap_params_to_moving_average()
            >>> trainer.swap_params_to_weights()
        """
        cdef _Stored x
        cdef Plane average, kept
        cdef float factor = 1
        cdef Plane values = (<Storage>self._collection.storage).values
        cdef Backend backend = backend_of(self)
        cdef list stored = self._collection._below()
        self._check_alone("swap_params_to_moving_average")
        check_change(self._collection.storage, "swap_params_to_moving_average")
        wait_for_updates(self)
        if self._average is None or not self._average["values"]:
            raise RuntimeError(
                "swap_params_to_moving_average: there is no average: call exponential_moving_average "
                "or cumulative_moving_average before training")
        if self._swapped:
            raise RuntimeError("swap_params_to_moving_average: the parameters are set to it already")
        if bias_correction and self._average["beta"] is not None:
            factor = 1 / (1 - self._average["beta"] ** self._average["values"])
        average = self._states[self._n_states]
        if save_weights:
            kept = self._collection.storage.new_plane()
            try:
                backend.axpby(stored, 0, 1, values, kept)
            except BaseException:
                self._collection.storage.drop_plane(kept)
                raise
            self._states.append(kept)
        backend.axpby(stored, 0, factor, average, values)
        for x in stored:
            value_changed(x.p)
        self._swapped = "kept" if save_weights else "lost"
        raise_kept()

    def swap_params_to_weights(self):
        """Set the parameters to the values that they had before `swap_params_to_moving_average`.

        Raises:
            RuntimeError: the parameters are not set to their average, or their own values were not saved.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> trainer.exponential_moving_average(0.9)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
            >>> trainer.swap_params_to_moving_average()
            >>> trainer.swap_params_to_weights()
        """
        cdef _Stored x
        cdef list stored = self._collection._below()
        check_change(self._collection.storage, "swap_params_to_weights")
        if not self._swapped:
            raise RuntimeError("swap_params_to_weights: the parameters are not set to their moving average")
        if self._swapped == "lost":
            raise RuntimeError("swap_params_to_weights: the weights were not saved: save_weights was False")
        backend_of(self).axpby(
            stored, 0, 1, self._states[self._n_states + 1], (<Storage>self._collection.storage).values)
        for x in stored:
            value_changed(x.p)
        self._collection.storage.drop_plane(self._states.pop())
        self._swapped = ""
        raise_kept()

    def _check_alone(self, what):
        if not (<Reducer>self._reducer).alone:
            raise RuntimeError(f"{what}: not in asynchronous training, where other processes use the parameters")

    def _start_average(self, beta, update_freq):
        self._check_alone("moving averages")
        wait_for_updates(self)
        if self._swapped:
            raise RuntimeError(
                "the parameters are set to their moving average; swap_params_to_weights comes "
                "before another average")
        if not update_freq == int(update_freq) or update_freq < 1:
            raise ValueError(f"update_freq must be a whole number of at least 1, not {update_freq}")
        for plane in self._states[self._n_states:]:
            self._collection.storage.drop_plane(plane)
        self._states[self._n_states:] = [self._collection.storage.new_plane()]
        self._average = {"beta": beta, "frequency": int(update_freq), "updates": 0, "values": 0,
                         "parameters": len(self._collection._below())}

    def _add_to_average(self):
        cdef list stored = self._collection._below()
        cdef double old
        average = self._average
        if len(stored) != average["parameters"]:
            raise RuntimeError(
                f"{type(self).__name__}: parameters were added since the moving average began; it "
                "would be wrong for them.  The update is made; begin the average anew")
        average["updates"] += 1
        if average["updates"] % average["frequency"]:
            return
        average["values"] += 1
        old = 1 - 1.0 / average["values"] if average["beta"] is None else average["beta"]
        backend_of(self).axpby(
            stored, <float>old, <float>(1 - old), (<Storage>self._collection.storage).values,
            self._states[self._n_states])
