"""Settings and state of trainers as plain data: for checkpoints, pickles and copies."""

import numpy as np

from dynet_cy.memory.changes cimport see_whole
from dynet_cy.memory.storage cimport Plane
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.train.devices cimport wait_for_updates
from dynet_cy.train.groups cimport restored_groups
from dynet_cy.train.interfaces cimport Reducer


class Restorable:
    """The part of trainers that saves and restores their state."""

    def _settings(self):
        """All attributes, as plain data, except the collection, the state of the rule, backend and reducer."""
        wait_for_updates(self)
        settings = {k: v for k, v in self.__dict__.items() if k not in (
            "_collection", "_states", "_backend", "_reducer", "_norm", "_pace")}
        settings["_groups"] = [group._state() for group in self._groups]
        if self._pace is not None:
            settings["_schedule"] = self._pace.state()
        if self._average is not None:
            settings["_average"] = dict(self._average)
        return settings

    def _n_planes(self, settings):
        """How many planes of state belong to these settings."""
        return (self._n_states + (settings["_average"] is not None)
                + (settings["_swapped"] == "kept"))

    def _settle_rows(self):
        """Bring all rows of tables up to date, before the state of the rule is set."""
        (<Reducer>self._reducer).settle(self._collection)

    def _restore(self, settings, arrays):
        """Restore what `_settings` and `_state_arrays` returned."""
        settings = dict(settings)
        pace = settings.pop("_schedule", None)
        self._settle_rows()
        n = self._n_planes(settings)
        planes = self.__dict__.get("_states", [])       # keep them: they may be memory shared with other processes
        for plane in planes[n:]:
            self._collection.storage.drop_plane(plane)
        planes = planes[:n] + [self._collection.storage.new_plane() for _ in range(n - len(planes))]
        own = list(self._groups)
        self.__dict__.update(settings)
        self._states = planes
        self._groups = restored_groups(own, settings["_groups"]) if "_groups" in settings else own
        self._follow(None if pace is None else self._pace.restored(pace, self._steps))
        for x, own in zip(self._collection._below(), arrays):
            for k, plane in enumerate(planes):
                if own is None and is_zero(x, plane):
                    continue
                array = np.zeros(x.shape(), np.float32) if own is None else own[k]
                (<_Stored>x).fill(array, (<Plane>plane).on((<_Stored>x).p.device))

    def _state_arrays(self):
        """The state of the rule: for each parameter and table of the collection, one new array of its shape
        per plane of state; None for a frozen one that has never been trained."""
        catch_up_tables(self._collection)
        return [None if not x.is_updated() and all(is_zero(x, plane) for plane in self._states)
                else [(<_Stored>x).array((<Plane>plane).on((<_Stored>x).p.device)) for plane in self._states]
                for x in self._collection._below()]

    def __getstate__(self):
        return self._collection, self._settings(), self._state_arrays(), self._pace

    def __setstate__(self, state):
        self._collection, settings, arrays, *pace = state
        self._pace = pace[0] if pace else None              # pickles of earlier versions do not have it
        self._restore(settings, arrays)


cdef int catch_up_tables(collection) except -1:
    see_whole()
    collection._catch_up()
    return 0


cdef bint is_zero(_Stored x, Plane plane) except -1:
    """Whether all numbers of a parameter are zero in a plane.  Reading pages that were never written allocates no
    memory."""
    cdef Plane own = plane.on(x.p.device)
    cdef float* v = own.at(x.p.offset)
    cdef size_t i
    own.pull(x.p.offset, x.p.size)
    for i in range(x.p.size):
        if v[i] != 0:
            return False
    return True
