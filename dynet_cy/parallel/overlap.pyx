"""Gradients that are summed over all processes while the rest of backward runs.

MPI requires all ranks to start the sums in the same order. So parameters are put into buckets, in the order in which
their gradients were complete in the first backward of rank 0. A bucket is sent when all gradients in it are complete
and all buckets before it have been sent. A parameter that the graph of a rank does not use counts as complete from the
start. The update sends the buckets that are left. If a gradient has changed after it was sent (by a second backward,
or because the program scaled it or set it to zero), all gradients are sent again. So the result never depends on what
was sent early.

A backward on a GPU sends nothing early: its gradients are complete only at its end.

MPI transfers data only while it is called, so it is called between the batches of backward.

Buckets in a fixed order: Li et al. (PyTorch Distributed: experiences on accelerating data parallel training, VLDB
2020).
"""

import os
import threading
import weakref

import numpy as np

cimport cython
from libc.stdint cimport uint32_t
from libc.string cimport memcmp, memcpy

from dynet_cy.core.unlocked cimport Unlocked, drop, take
from dynet_cy.execute.accumulation cimport gradient_hooks
from dynet_cy.execute.profile cimport now
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.buffers cimport memory_of
from dynet_cy.memory.storage cimport Param, note_gradient
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.parallel.allreduce cimport AllreduceReducer
from dynet_cy.train.host cimport squared_norm, sum_table
from dynet_cy.train.interfaces cimport Backend
from dynet_cy.train.plan cimport MOVES, Update

from dynet_cy.parallel.allreduce import adopt
from dynet_cy.parallel.collective import ADDED_ON_DEVICE

# Smaller messages cost more in latency than they gain by being sent earlier.
DEFAULT_BUCKET = 1 << 18

# Nanoseconds between two calls of MPI in backward.
cdef enum:
    PAUSE = 100000

cdef extern from *:
    size_t atomic_add "__atomic_add_fetch"(size_t* p, size_t n, int order) nogil
    size_t atomic_sub "__atomic_sub_fetch"(size_t* p, size_t n, int order) nogil
    size_t atomic_load "__atomic_load_n"(const size_t* p, int order) nogil
    void atomic_store "__atomic_store_n"(size_t* p, size_t n, int order) nogil
    int RELAXED "__ATOMIC_RELAXED"

cdef list listeners = []            # weak references to Overlaps
cdef Unlocked listeners_lock
cdef size_t n_open = 0              # sums under way
cdef size_t last_call = 0


def _stop_in_child():
    """Prevent sums in this process, which was forked from a rank."""
    global n_open
    n_open = 0
    listeners.clear()
    remove_hooks()


os.register_at_fork(after_in_child=_stop_in_child)


cdef int remove_hooks() except -1:
    gradient_hooks().begin = NULL
    gradient_hooks().complete = NULL
    gradient_hooks().progress = NULL
    return 0


cdef class Overlap:
    """Sums the gradients of the parameters of a collection, but not of its lookup tables.

    Args:
        collection: with all its parameters.
        communicator: with the methods `start_sum(send, receive)`, which returns a request; `progress(requests)`;
            `wait(requests, what)`; `start_any(flag)`, which starts an in-place sum of an array of one number; and
            `broadcast`.
        bucket_bytes: a bucket is closed when it holds at least this many bytes.

    Attributes:
        early: whether sums start during backward; becomes False if gradients change after they were sent.
        started_early: number of buckets sent during backward since the last update.
        n_buckets: number of buckets.
    """

    cdef object __weakref__
    cdef object communicator, error, lock
    cdef list stored, offsets, requests, ends, completed
    cdef size_t bucket_bytes, size
    cdef Py_ssize_t n_sent
    cdef object send, receive
    cdef float* sending
    cdef float* received
    cdef dict places                # number of a parameter -> its place in the order
    cdef set open                   # places that are not complete
    cdef bint ordered
    cdef public bint early
    cdef readonly Py_ssize_t started_early

    def __init__(self, collection, communicator, bucket_bytes=DEFAULT_BUCKET):
        self.lock = threading.RLock()
        self.communicator = communicator
        self.bucket_bytes = bucket_bytes
        self.early = True
        # A guess until the order is known: the parameter made last is often used last, so its gradient completes first.
        self.arrange(collection.parameters_list()[::-1])
        take(&listeners_lock)
        try:
            listeners.append(weakref.ref(self, listeners.remove))
            gradient_hooks().begin = begins
            gradient_hooks().complete = complete
            gradient_hooks().progress = advance
        finally:
            drop(&listeners_lock)

    def close(self):
        """Stop listening to backward passes."""
        take(&listeners_lock)
        try:
            listeners[:] = [of for of in listeners if of() is not self]
            if not listeners:
                remove_hooks()
        finally:
            drop(&listeners_lock)
        if self.requests:
            self.communicator.wait(self.requests, "sum of gradients")
            atomic_sub(&n_open, len(self.requests), RELAXED)
            self.requests = []

    @property
    def n_buckets(self):
        return len(self.ends)

    cdef arrange(self, list stored):
        """Divide the parameters, in this order, into buckets."""
        cdef _Stored x
        cdef size_t begun = 0
        self.stored = stored
        self.places = {}
        self.offsets = []
        self.ends = []
        self.size = 0
        for place, x in enumerate(stored):
            self.places[x.p.number] = place
            self.offsets.append(self.size)
            self.size += x.p.size
            if (self.size - begun) * sizeof(float) >= self.bucket_bytes or place == len(stored) - 1:
                self.ends.append((place + 1, self.size))
                begun = self.size
        self.send = np.empty(self.size, np.float32)
        self.receive = np.empty(self.size, np.float32)
        if self.size:
            self.sending = <float*>memory_of(self.send, True)
            self.received = <float*>memory_of(self.receive, True)
        self.begin()

    cdef begin(self):
        """Prepare for the next update."""
        self.requests = []
        self.completed = []
        self.open = set()
        self.n_sent = 0
        self.started_early = 0
        self.error = None

    cdef bint holds(self, Param* p):
        place = self.places.get(p.number)
        return place is not None and (<_Stored>self.stored[place]).p == p

    cdef push(self, bint early):
        """Send buckets in order: while `early`, only those that are complete."""
        cdef size_t start, end, at
        cdef Py_ssize_t first
        cdef _Stored x
        while self.n_sent < len(self.ends):
            first, start = self.ends[self.n_sent - 1] if self.n_sent else (0, 0)
            last, end = self.ends[self.n_sent]
            if early and not self.open.isdisjoint(range(first, last)):
                break
            at = start
            for x in self.stored[first:last]:
                memcpy(self.sending + at, x.p.grad, x.p.size * sizeof(float))
                at += x.p.size
            self.requests.append(self.communicator.start_sum(self.send[start:end], self.receive[start:end]))
            atomic_add(&n_open, 1, RELAXED)
            self.n_sent += 1
            self.started_early += early

    cdef finish(self):
        """Have the sums over all ranks in `received`, until `begin`."""
        cdef _Stored x
        cdef size_t at = 0
        cdef bint differs = False
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if not self.size:
            return
        sent_early = self.ends[self.n_sent - 1][0] if self.n_sent else 0
        self.push(False)
        for x in self.stored[:sent_early]:
            if memcmp(self.sending + at, x.p.grad, x.p.size * sizeof(float)):
                differs = True
                break
            at += x.p.size
        if differs:
            self.early = False      # in the next updates it would probably differ again
        changed = np.array([differs], np.float32)
        flag = self.communicator.start_any(changed)
        self.communicator.wait([*self.requests, flag], "sum of gradients")
        atomic_sub(&n_open, len(self.requests), RELAXED)
        self.requests = []
        if changed[0]:
            self.send_again()

    cdef next(self):
        """Called when the sums have been used."""
        completed = self.completed
        self.begin()
        if not self.ordered:
            self.ordered = True
            self.reorder(completed)

    cdef float* sums_of(self, Param* p) except NULL:
        """Where the sums of a parameter are, between `finish` and `next`."""
        return self.received + <size_t>self.offsets[self.places[p.number]]

    def make_sums(self):
        """Replace the gradients on all ranks by their sums over all ranks."""
        cdef _Stored x
        self.finish()
        for x in self.stored:
            memcpy(x.p.grad, self.sums_of(x.p), x.p.size * sizeof(float))
            note_gradient(x.p)
        self.next()

    cdef send_again(self):
        """Sum the gradients as they are now.  Sending differences would not work if the sent values are not finite."""
        cdef _Stored x
        cdef size_t at = 0
        for x in self.stored:
            memcpy(self.sending + at, x.p.grad, x.p.size * sizeof(float))
            at += x.p.size
        self.communicator.wait([self.communicator.start_sum(self.send, self.receive)], "sum of gradients")

    cdef reorder(self, list completed):
        """Adopt the order in which gradients became complete on rank 0; parameters that it did not use come first."""
        cdef _Stored x
        numbers = self.communicator.broadcast(completed)
        by_number = {}
        for x in self.stored:
            by_number[x.p.number] = x
        last = [by_number[number] for number in dict.fromkeys(numbers)]
        unused = [by_number[number] for number in by_number.keys() - set(numbers)]
        self.arrange(sorted(unused, key=lambda x: x.name()) + last)


@cython.final
cdef class OverlapReducer(AllreduceReducer):
    """Updates over a communicator that can sum gradients while backward runs.  See `overlapped`."""

    cdef Overlap overlap

    def __cinit__(self, *args):
        self.host_only = ADDED_ON_DEVICE

    cdef int sum_all(self, Backend backend, Update* u) except -1:
        cdef Py_ssize_t i
        cdef Param* p
        with self.overlap.lock:
            self.overlap.finish()
        self.sent["dense_bytes"] += self.overlap.size * sizeof(float)
        for i in range(self.n):
            p = u.entries[i]
            if not self.any[i]:
                continue
            if p.rows:
                sum_table(self, u, i)
            elif u.roles[i] == MOVES:
                memcpy(p.grad, self.overlap.sums_of(p), p.size * sizeof(float))
                p.has_gradient = 1
            elif u.measures:
                u.squares[i] = K.sumsq(p.size, self.overlap.sums_of(p))
        with self.overlap.lock:
            self.overlap.next()
        for i in range(self.n if u.measures else 0):
            if u.roles[i] == MOVES:
                u.squares[i] = squared_norm(u.entries[i])
        return 0


def overlapped(communicator, trainer, reduction, bucket_bytes=DEFAULT_BUCKET):
    """The reducer of a trainer whose gradients are summed while backward runs.  Collective: all parameters and the
    trainer's state are copied from rank 0.

    Args:
        communicator: see `Overlap`.
        trainer: the trainer.
        reduction: "mean" or "sum".
        bucket_bytes: see `Overlap`.
    """
    adopt(communicator, trainer)
    reducer = OverlapReducer(communicator, len(trainer.collection._below()), reduction == "mean")
    (<OverlapReducer>reducer).overlap = Overlap(trainer.collection, communicator, bucket_bytes)
    return reducer


cdef list listening():
    return [overlap for overlap in [of() for of in listeners[:]] if overlap is not None]


# Several threads may run backward on graphs of the same parameters: each of these has the Overlap to itself meanwhile.

cdef void begins(Param* const* coming, uint32_t n) noexcept nogil:
    with gil:
        for overlap in listening():
            begins_for(overlap, coming, n)


cdef begins_for(Overlap overlap, Param* const* coming, uint32_t n):
    cdef uint32_t i
    with overlap.lock:
        if overlap.n_sent or not overlap.early or overlap.error is not None:
            return
        try:
            overlap.open.clear()
            for i in range(n):
                if overlap.holds(coming[i]):
                    overlap.open.add(overlap.places[coming[i].number])
            if overlap.open:                # else it is the backward of another model
                overlap.push(True)
        except BaseException as error:      # there is nobody here to raise it to
            overlap.error = error


cdef void complete(Param* p) noexcept nogil:
    with gil:
        for overlap in listening():
            complete_for(overlap, p)


cdef complete_for(Overlap overlap, Param* p):
    with overlap.lock:
        if not overlap.holds(p) or overlap.error is not None:
            return
        if not overlap.ordered:
            overlap.completed.append(p.number)
        place = overlap.places[p.number]
        if place not in overlap.open:       # sent already, or nothing is sent early
            return
        overlap.open.discard(place)
        try:
            overlap.push(True)
        except BaseException as error:
            overlap.error = error


cdef void advance() noexcept nogil:
    if atomic_load(&n_open, RELAXED) == 0 or now() - atomic_load(&last_call, RELAXED) < PAUSE:
        return
    atomic_store(&last_call, now(), RELAXED)
    with gil:
        for overlap in listening():
            goes_on_for(overlap)


cdef goes_on_for(Overlap overlap):
    with overlap.lock:
        try:
            if overlap.requests and overlap.error is None:
                overlap.communicator.progress(overlap.requests)
        except BaseException as error:
            overlap.error = error
