"""Memory that the processes of one machine share: a barrier and messages, and the models that they update there,
together, each rank its part, or each when it likes, without locks."""

import mmap
import os
import weakref

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.math cimport isfinite
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strlen, strncmp

from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.threads cimport Unlocked, acquire_lock, release_lock
from dynet_cy.kernels.kernels cimport K, dy_optim, squares_of
from dynet_cy.kernels.lazy_rows cimport (
    can_defer, catch_up_all, catch_up_shared, clear_deferred_shared, defer_update, mark_moved,
)
from dynet_cy.memory.bridge cimport memory_of
from dynet_cy.memory.storage cimport Param, Storage, forget_gradient, see_whole, touch
from dynet_cy.model.parameters cimport _Stored, settle as settle_factor
from dynet_cy.parallel.collective cimport CollectiveReducer, Entry, StepHeader, entries_of, header_bytes_of
from dynet_cy.train.backends cimport apply_weight_decay, lock_gradient, step_part, unlock_gradient
from dynet_cy.train.interfaces cimport (
    CATCH_UP, FOREIGN, FROZEN, MOST_SPANS, MOVES, PART, SHARED, STEP, Backend, GroupSettings, Plan, Reducer, Span,
    States, Update, plan_entry,
)

from dynet_cy.parallel.collective import ADDED_ON_DEVICE
from dynet_cy.parallel.communicator import LEFT, ParallelError, only_some
from dynet_cy.parallel.start import cores
from dynet_cy.train.backends import refuse_devices


# ==== board =======================================================================================
#
# A barrier and messages.
#
# The memory has no name: the launcher makes it, and its workers inherit the descriptor.  So it is freed when the last
# of them has ended, however they end.  It begins with a page for all processes, a page for each process, and a message
# box for each process; further regions are added at the end.

cdef uint64_t MAGIC = 0x79645F79636E7964

# Bytes of the box in which a process leaves messages.
cdef size_t BOX = 1 << 16

# The greatest number of seconds to wait without sleeping: about the time that sleeping and waking take.
cdef double SPIN = 40e-6

# Seconds of sleep after which a waiting process checks for signals, and whether the launcher is still running.
cdef double NAP = 0.25


def anonymous_memory() -> int:
    """A descriptor of shared memory without a name, of size 0 so far.  The caller closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dynet_cy")
    import tempfile

    with tempfile.TemporaryFile() as file:              # has no name either
        return os.dup(file.fileno())


# Regions that forked children get as copies of their own: their descriptors and where they begin.
_own = weakref.WeakKeyDictionary()


def _copy_in_child():
    """Give this newly forked process its own copy: when it changes gradients, the ranks, which may be in the middle of
    an update, must not see that."""
    for region, (fd, start) in list(_own.items()):
        if dy_write_to_copy(memory_of(region, True), len(region), fd, start):
            raise MemoryError("no memory for what a child of a process that trains with others may change")
    _own.clear()                # the copy is private memory, which fork copies again


os.register_at_fork(after_in_child=_copy_in_child)


@cython.no_gc_clear     # its memory is used until it is freed
cdef class Board:
    """The shared memory of the processes of one machine.

    Args:
        fd: descriptor of the memory.
        size: number of processes.
        rank: which of them this is; -1 for the launcher, which only looks on.
        parent: process id of the launcher; a waiting process ends if it is gone.  0: do not check.
        create: whether to initialize the memory.
    """

    def __cinit__(self, int fd, int size, int rank=-1, parent=0, bint create=False) -> None:
        cdef size_t needed = <size_t>DY_PAGE * (1 + size) + BOX * size
        needed = (needed + mmap.ALLOCATIONGRANULARITY - 1) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        if create:
            os.ftruncate(fd, needed)
        self.control = mmap.mmap(fd, needed)
        self.b = <dy_board*>memory_of(self.control, True)
        self.seats = <dy_seat*>(<char*>self.b + DY_PAGE)
        self.boxes = <char*>self.b + DY_PAGE * (1 + size)
        self.fd = fd
        self.size = size
        self.rank = rank
        self.parent = parent
        self.pid = os.getpid()
        self.passed = 0
        self.regions = []
        # If processes share a core, spinning would keep the others from arriving.
        self.spin = SPIN if size <= cores() else 0
        if create:
            self.b.magic = MAGIC
            self.b.size = size
            self.b.top = needed
        elif self.b.magic != MAGIC or self.b.size != <uint32_t>size:
            raise ParallelError(f"descriptor {fd} is not the shared memory of {size} processes")

    cdef int wait(self, const char* what, bint holds=False) except -1:
        """Wait for all processes.  After it, each can read what the others wrote before it.

        If it `holds`, signal handlers run after it: they must not see parameters in the middle of an update.
        """
        cdef uint32_t k
        cdef dy_seat* seat = &self.seats[self.rank]
        cdef bint done
        cdef int r, round = 0
        if seat.left:
            raise ParallelError(LEFT % "this rank")
        if self.pid != os.getpid():
            raise ParallelError(
                f"{what.decode()}: this is a child of rank {self.rank}, not the process that the launcher has "
                "started; only that one can do what needs all ranks")
        self.passed += 1
        k = self.passed
        with nogil:
            done = dy_arrive(self.b, seat, k, what)
        while not done:
            with nogil:
                done = dy_await(self.b, seat, k, self.spin, NAP, round)
            round += 1
            if not done:
                if not holds:
                    try:
                        PyErr_CheckSignals()
                    except BaseException:
                        self.leave()
                        raise
                for r in range(self.size):
                    if self.seats[r].left:
                        self.leave()
                        raise ParallelError(LEFT % f"rank {r}")
                if self.parent and os.getppid() != self.parent:
                    os._exit(1)
        for r in range(self.size):
            if strncmp(self.seats[r].what[k & 1], seat.what[k & 1], DY_WHAT):
                raise only_some(r, self.seats[r].what[k & 1].decode(), self.rank, what.decode())
        return 0

    def leave(self):
        """Note that an exception has ended a collective call of this process: all later ones are errors."""
        if self.pid == os.getpid():
            self.seats[self.rank].left = 1

    def barrier(self, str what="barrier"):
        """Wait for all processes."""
        self.wait(what.encode()[:DY_WHAT - 1])

    def gather(self, bytes data, str what="gather") -> list[bytes]:
        """The bytes of all processes."""
        cdef bytes purpose = what.encode()[:DY_WHAT - 1]
        cdef size_t part = BOX - sizeof(uint64_t)
        cdef size_t at = 0, n, longest = 1
        cdef uint64_t length
        cdef int r
        found = [[] for _ in range(self.size)]
        while at < longest:
            length = len(data)
            memcpy(self.boxes + BOX * self.rank, &length, sizeof(uint64_t))
            if at < length:
                memcpy(self.boxes + BOX * self.rank + sizeof(uint64_t), <const char*>data + at, min(part, length - at))
            self.wait(purpose)
            for r in range(self.size):
                memcpy(&length, self.boxes + BOX * r, sizeof(uint64_t))
                longest = max(longest, <size_t>length)
                n = min(part, length - at) if at < length else 0
                found[r].append((self.boxes + BOX * r + sizeof(uint64_t))[:n])
            self.wait(purpose)
            at += part
        return [b"".join(parts) for parts in found]

    def region(self, size_t size, bint with_children=False) -> Buffer:
        """A part of the memory, filled with zeros, that all processes map; collective.

        The memory is freed some time after the last use of the result.  Pages are allocated when they are touched, so
        spare memory costs nothing.

        Args:
            size: the least number of bytes.
            with_children: whether a process forked from this one shares it.  Otherwise the child gets its own copy,
                as of all other memory.
        """
        cdef size_t step = max(mmap.ALLOCATIONGRANULARITY, mmap.PAGESIZE)
        cdef size_t at = self.b.top, rounded = (size + step - 1) // step * step
        cdef str purpose = f"making shared memory of {size:,} bytes"     # ranks compare it
        self.free_regions(purpose)
        fits = [r for r in self.regions if r[2] is None and rounded <= r[1] <= 2 * rounded]
        known = fits[0] if fits else [at, rounded, None]
        failure = ""
        if self.rank == 0 and not fits:
            try:
                os.ftruncate(self.fd, at + rounded)
                self.b.top = at + rounded
            except OSError as error:
                failure = str(error)
        failure = self.gather(failure.encode(), purpose)[0].decode()
        if failure:
            raise MemoryError(f"no shared memory of {rounded:,} bytes: {failure}")
        made = mmap.mmap(self.fd, known[1], offset=known[0])
        known[2] = weakref.ref(made)
        if not with_children:
            _own[made] = self.fd, known[0]
        if not fits:
            self.regions.append(known)
        self.barrier(purpose)
        return made

    cdef int free_regions(self, str purpose) except -1:
        """Free the memory of regions that no process uses any more; collective."""
        own = bytes([r[2] is not None and r[2]() is None for r in self.regions])
        everyone = self.gather(own, purpose)
        for k, region in enumerate(self.regions):
            if all(dead[k] for dead in everyone):
                region[2] = None
                if self.rank == 0:
                    with mmap.mmap(self.fd, region[1], offset=region[0]) as memory:
                        try:
                            memory.madvise(mmap.MADV_REMOVE)
                        except (AttributeError, OSError):       # not everywhere
                            memory[:] = bytes(region[1])
        return 0

    def note_file(self, name: str):
        """Tell the launcher which temporary file is being written, to be removed should this process die.

        Args:
            name: its name; "" once it has been removed.
        """
        cdef bytes encoded = os.fsencode(name) + bytes(1)
        cdef char* file = self.seats[self.rank].file
        if <size_t>len(encoded) <= sizeof(self.seats[0].file):
            # The first byte is cleared first and written last, so that a reader never sees part of a name.
            file[0] = 0
            memcpy(file + 1, <const char*>encoded + 1, len(encoded) - 1)
            file[0] = encoded[0]

    def note_raised(self):
        """Tell the launcher that the program of this process has ended with an exception; does nothing in a child."""
        if self.pid == os.getpid():
            self.seats[self.rank].raised = 1

    # ---- for the launcher --------------------------------------------------------

    def file_of(self, int rank) -> str | None:
        """The temporary file that a process is writing, or None."""
        cdef char* file = self.seats[rank].file
        return os.fsdecode(file[:strlen(file)]) if file[0] else None

    def has_raised(self, int rank) -> bool:
        """Whether the program of a process has ended with an exception."""
        return bool(self.seats[rank].raised)

    def ended(self, int rank) -> str | None:
        """Note that a process has ended.

        Returns:
            The collective call in which it was waiting for others, or None.
        """
        cdef dy_seat* seat = &self.seats[rank]
        seat.state = DY_ENDED
        if <int>(seat.arrivals - self.b.generation) <= 0:
            return None
        return seat.what[seat.arrivals & 1].decode(errors="replace")

    def waiting(self) -> tuple[float, str, list[int]] | None:
        """The processes that have not arrived.

        Returns:
            None if no process waits, else (seconds of the longest wait, what it waits in, ranks that have not arrived).
        """
        cdef uint32_t k = self.b.generation + 1
        cdef int r, first = -1
        for r in range(self.size):
            if (self.seats[r].state == DY_WAITING and self.seats[r].arrivals == k
                    and (first < 0 or self.seats[r].since < self.seats[first].since)):
                first = r
        if first < 0 or self.b.generation + 1 != k:
            return None
        late = [r for r in range(self.size) if self.seats[r].arrivals != k]
        what = self.seats[first].what[k & 1]
        return dy_now() - self.seats[first].since, what.decode(errors="replace"), late


# ==== shared model ================================================================================
#
# Memory of models that the processes of one machine share.

cdef extern from * nogil:
    # Parts begin at multiples of this many floats: a cache line.
    const size_t LINE "((size_t)16)"

# Spare memory for parameters that are added later, in floats, in addition to the size of the present ones.
cdef size_t SPARE = 1 << 20


cdef object part_of(object region, size_t start, size_t size):
    return memoryview(region)[start:start + size]


class SharedModel:
    """The memory that ranks share for one root collection, whatever its trainers.  Collective.

    Args:
        communicator: the connection of the ranks.
        storage: the storage of the collection.
        n_bytes: the largest number of bytes of a plane of this storage on any rank.
        parts: the number of ranges of floats, each as large as a plane.
        with_children: see `Board.region`.
    """

    storage: Storage
    plane_bytes: int
    region: Buffer

    def __init__(
        self, communicator: SharedCommunicator, storage: Storage, n_bytes: int, parts: int, with_children: bool
    ) -> None:
        self.storage = storage
        capacity = (n_bytes // sizeof(float) * 2 + SPARE) // LINE * LINE
        self.plane_bytes = capacity * sizeof(float)
        self.region = communicator.board.region(self.plane_bytes * parts, with_children)

    def plane(self, part: int) -> Buffer:
        """The memory of one range."""
        return part_of(self.region, part * self.plane_bytes, self.plane_bytes)


# By the id of the storage, which the model keeps alive.
models = weakref.WeakValueDictionary()


cdef object model_of(communicator, Storage storage, list stored, parts, with_children=False):
    """The shared memory of a collection, a `SharedModel`; made at the first call.  Collective.

    Raises an error if these parameters and tables do not have the same places on all ranks.
    """
    cdef _Stored x
    known = models.get(id(storage))
    known = known if known is not None and known.plane_bytes >= storage.n_bytes() else None
    own = known is not None, storage.n_bytes(), [x.p.offset for x in stored]
    everyone = communicator.gather(own, "wrap")
    for r, (_, _, places) in enumerate(everyone):
        for x, place, first in zip(stored, places, everyone[0][2]):
            if place != first:
                raise ParallelError(
                    f"wrap: the ranks have different models: the parameters and tables made before {x.full_name}, in "
                    f"other collections or removed since, are not the same on rank 0 and rank {r}; ranks that share "
                    "memory need the same ones")
    if not all([is_known for is_known, *_ in everyone]):
        largest = max([n_bytes for _, n_bytes, _ in everyone])
        known = models[id(storage)] = SharedModel(communicator, storage, largest, parts, with_children)
    return known


cdef int send_values(communicator, Storage storage, list stored, float* through) except -1:
    """Copy all values from rank 0, through shared memory.  Collective."""
    cdef _Stored x
    for x in stored:
        settle_factor(x.p)
    if communicator.rank == 0:
        for x in stored:
            memcpy(through + x.p.offset, x.p.value, x.p.size * sizeof(float))
    communicator.barrier("wrap")
    if communicator.rank:
        for x in stored:
            memcpy(x.p.value, through + x.p.offset, x.p.size * sizeof(float))
    communicator.barrier("wrap")
    storage.changed()
    return 0


cdef int share_planes(communicator, Storage storage, list planes, region, size_t start, size_t plane_bytes) except -1:
    """Move planes to shared memory, with the numbers of rank 0.  Collective."""
    for turn in (True, False):
        if (communicator.rank == 0) == turn:
            for k, plane in enumerate(planes):
                storage.move(plane, part_of(region, start + k * plane_bytes, plane_bytes), turn)
        communicator.barrier("wrap")
    return 0


# ==== shared update ===============================================================================
#
# Synchronous updates of processes that share memory.
#
# The gradients of every rank live in shared memory. Each rank sums one part of them over all ranks, updates that part
# of the parameters, and publishes the new values, which the other ranks copy. So all ranks have the same parameters to
# the last bit, and no work is done twice. In a lookup table, only the rows that some rank has used take part. There is
# one copy of the state of the rule (momentum, moments), in shared memory.
#
# If the rule moves other rows too, their update is deferred (see kernels/lazy_rows): all ranks record it. Between
# updates no states change, so a rank may read lazy rows at any time. When states have to be brought up to date at last,
# all ranks read what they need for their own values first; then each moves the states of a part of the rows (`settle`).

# All reducers of this process, as a list of borrowed pointers; read and changed under the lock.
cdef void* first_reducer = NULL
cdef Unlocked reducers_lock


def _read_before_fork():
    """Bring values up to date: a child has a copy of them, but reads the states that the ranks go on to change.

    It makes no Python object, since there may be no memory.
    """
    cdef void* x
    acquire_lock(&reducers_lock)
    x = first_reducer
    while x != NULL:
        (<SharedReducer>x).read_tables()
        x = (<SharedReducer>x).following
    release_lock(&reducers_lock)


os.register_at_fork(before=_read_before_fork)


# What an update does to an entry, and the part of this rank.
cdef struct Part:
    Span[MOST_SPANS] spans
    int n_spans
    const Span* step            # of these; NULL if the entry makes none
    size_t at                   # the part that this rank sums and updates begins at this number; in a table, at this
    size_t end                  # place of the union
    uint32_t* union_            # of a table, in one piece with the next two: rows of which some rank has a gradient
    uint32_t n
    uint32_t* place             # for each row, its index in the union...
    uint32_t* round             # ... which is valid if it was set in this round


@cython.final
cdef class SharedReducer(CollectiveReducer):
    """Synchronous updates in shared memory.  See `shared`."""

    cdef Board board
    cdef object model, region
    cdef float** grads                  # of each rank
    cdef float* fresh                   # new values, from which all ranks copy
    cdef char* headers_at
    cdef uint32_t* lists_at
    cdef size_t list_length             # rows of all tables
    cdef uint32_t* first                # for each entry, where its rows begin in a list
    cdef Part* parts
    cdef float* work
    cdef uint32_t round
    cdef void* following               # in the list of all reducers

    def __cinit__(self, communicator, list stored, mean, model, region):
        global first_reducer
        cdef Py_ssize_t i, n = self.n
        cdef _Stored x
        cdef int r
        cdef char* base
        self.board = communicator.board
        self.host_only = ADDED_ON_DEVICE
        self.model = model
        self.region = region
        self.grads = <float**>calloc(self.size, sizeof(float*))
        self.first = <uint32_t*>calloc(n + 1, sizeof(uint32_t))
        self.parts = <Part*>calloc(n + 1, sizeof(Part))
        self.work = <float*>malloc(PART * sizeof(float))
        if self.grads == NULL or self.first == NULL or self.parts == NULL or self.work == NULL:
            raise MemoryError("what ranks share of gradients")
        base = <char*>memory_of(model.region, True)
        for r in range(self.size):
            self.grads[r] = <float*>(base + r * <size_t>model.plane_bytes)
        self.fresh = <float*>(base + self.size * <size_t>model.plane_bytes)
        for i in range(self.n):
            x = stored[i]
            self.first[i] = self.list_length
            self.list_length += x.p.rows
            if x.p.rows:
                self.parts[i].union_ = <uint32_t*>calloc(3 * x.p.rows, sizeof(uint32_t))
                if self.parts[i].union_ == NULL:
                    raise MemoryError(f"rows of {x.full_name}")
                self.parts[i].place = self.parts[i].union_ + x.p.rows
                self.parts[i].round = self.parts[i].place + x.p.rows
        self.headers_at = <char*>memory_of(region, True)
        self.lists_at = <uint32_t*>(self.headers_at + 2 * self.size * self.header_bytes)
        acquire_lock(&reducers_lock)
        self.following = first_reducer
        first_reducer = <void*>self
        release_lock(&reducers_lock)

    def __dealloc__(self):
        global first_reducer
        cdef Py_ssize_t i
        cdef void** x = &first_reducer
        acquire_lock(&reducers_lock)
        while x[0] != NULL and x[0] != <void*>self:
            x = &(<SharedReducer>x[0]).following
        if x[0] != NULL:
            x[0] = self.following
        release_lock(&reducers_lock)
        if self.parts != NULL:
            for i in range(self.n):
                free(self.parts[i].union_)
        free(self.grads)
        free(self.first)
        free(self.parts)
        free(self.work)

    # There are two sets of headers and lists, since a rank may still be reading those of the last update.

    cdef StepHeader* header_of(self, int r) noexcept nogil:
        return <StepHeader*>(self.headers_at + ((self.round & 1) * self.size + r) * self.header_bytes)

    cdef uint32_t* list_of(self, int r, Py_ssize_t i) noexcept nogil:
        return self.lists_at + ((self.round & 1) * self.size + r) * self.list_length + self.first[i]

    cdef int begin_update(self) except -1:
        self.round += 1
        self.own = self.header_of(self.rank)
        return 0

    cdef int swap(self, Update* u) except -1:
        cdef Py_ssize_t i
        cdef int r
        for i in range(self.n):
            if u.entries[i].n_touched:
                memcpy(self.list_of(self.rank, i), u.entries[i].touched, u.entries[i].n_touched * sizeof(uint32_t))
        for r in range(self.size):
            self.headers[r] = self.header_of(r)
        self.board.wait(self.what)
        return 0

    # ---- the part of each rank: a range of the floats of all parameters, and of the rows of each table ----

    cdef void divide(self, Update* u) noexcept nogil:
        """Find the part of this rank in each entry: the floats of all parameters are divided as if concatenated."""
        cdef size_t lines = 0, before = 0, low, high, start
        cdef Py_ssize_t i
        cdef Part* part
        for i in range(self.n):
            lines += self.lines_of(u, i)
        low = lines * self.rank // self.size
        high = lines * (self.rank + 1) // self.size
        for i in range(self.n):
            part = &self.parts[i]
            if u.entries[i].rows:
                part.n = 0
                if self.any[i]:
                    self.unite(u, i)
                self.share_of(part.n, &part.at, &part.end)
            else:
                start = before
                before += self.lines_of(u, i)
                part.at = min((max(low, start) - start) * LINE, u.entries[i].size)
                part.end = min((max(high, start) - start) * LINE, u.entries[i].size)

    cdef size_t lines_of(self, Update* u, Py_ssize_t i) noexcept nogil:
        """The lines of a parameter that takes part in this update."""
        if u.entries[i].rows or not (u.roles[i] == MOVES or self.any[i]):
            return 0
        return (u.entries[i].size + LINE - 1) // LINE

    cdef void share_of(self, size_t n, size_t* low, size_t* high) noexcept nogil:
        """The part of this rank in a table: of the n rows of the union, or of all n rows for those outside of it."""
        low[0] = n * self.rank // self.size
        high[0] = n * (self.rank + 1) // self.size

    cdef bint in_union(self, Py_ssize_t i, uint32_t row) noexcept nogil:
        return self.parts[i].round[row] == self.round

    cdef void unite(self, Update* u, Py_ssize_t i) noexcept nogil:
        """Find the rows of a table of which some rank has a gradient, in the same order on all ranks."""
        cdef Part* t = &self.parts[i]
        cdef uint32_t* rows
        cdef uint32_t k, n
        cdef int r
        for r in range(self.size):
            rows = self.list_of(r, i)
            n = entries_of(self.headers[r])[i].n_touched
            for k in range(n):
                if t.round[rows[k]] != self.round:
                    t.round[rows[k]] = self.round
                    t.place[rows[k]] = t.n
                    t.union_[t.n] = rows[k]
                    t.n += 1

    # ---- adding up ----

    cdef int sum_all(self, Backend backend, Update* u) except -1:
        cdef Py_ssize_t i
        cdef size_t floats = 0
        self.compare_deferred(u)
        with nogil:
            self.divide(u)
            for i in range(self.n):
                if not self.any[i]:
                    continue
                if u.entries[i].rows:
                    self.reduce_rows(u, i)
                else:
                    entries_of(self.own)[i].squares = self.reduce_range(u, i, self.parts[i].at, self.parts[i].end)
                    floats += u.entries[i].size
        self.sent["dense_bytes"] += floats * sizeof(float)
        for i in range(self.n):
            if u.entries[i].rows and self.any[i]:
                self.note_rows(u.entries[i], self.parts[i].n, u.entries[i].n_touched)
        if u.measures:
            self.sum_squares(u)
        return 0

    cdef double reduce_range(self, Update* u, Py_ssize_t i, size_t at, size_t end) noexcept nogil:
        """Add the other ranks' numbers to those of this rank; an entry that does not move keeps its gradient.

        Returns:
            The sum of squares of the sums, if the update needs it.
        """
        cdef Param* p = u.entries[i]
        cdef bint moves = u.roles[i] == MOVES
        cdef double squares = 0
        cdef float* total
        cdef size_t n
        cdef int r
        while at < end and (moves or u.measures):
            n = min(PART, end - at)
            total = p.grad + at if moves else self.work
            if not moves:
                memset(total, 0, n * sizeof(float))
            for r in range(self.size):
                if entries_of(self.headers[r])[i].has and not (moves and r == self.rank):
                    K.add(n, self.grads[r] + p.offset + at, total)
            if u.measures:
                squares += squares_of(n, total)
            at += n
        return squares

    cdef void reduce_rows(self, Update* u, Py_ssize_t i) noexcept nogil:
        cdef Param* p = u.entries[i]
        cdef Part* t = &self.parts[i]
        cdef size_t n = size_of(&p.dim), k
        cdef uint32_t* rows
        cdef int r
        if u.roles[i] != MOVES:
            for k in range(t.at, t.end):
                entries_of(self.own)[i].squares += self.reduce_range(u, i, t.union_[k] * n, (t.union_[k] + 1) * n)
            return
        for r in range(self.size):
            if r == self.rank:
                continue
            rows = self.list_of(r, i)
            for k in range(entries_of(self.headers[r])[i].n_touched):
                if t.at <= t.place[rows[k]] < t.end:
                    K.add(n, self.grads[r] + p.offset + rows[k] * n, p.grad + rows[k] * n)
        if u.measures:
            for k in range(t.at, t.end):
                entries_of(self.own)[i].squares += squares_of(n, p.grad + t.union_[k] * n)

    cdef int sum_squares(self, Update* u) except -1:
        """Add up the squares of the gradients over ranks; each rank knows those of its part."""
        cdef Py_ssize_t i
        cdef int r
        cdef bint finite = True
        self.board.wait(b"update, clipping", True)
        for i in range(self.n):
            for r in range(self.size):
                u.squares[i] += entries_of(self.headers[r])[i].squares
            finite = finite and isfinite(u.squares[i])
        if not finite:
            self.note_sums(u)
        return 0

    cdef int note_sums(self, Update* u) except -1:
        """Mark gradients to which those of other ranks were added as present, since this update will not use them."""
        cdef Py_ssize_t i
        cdef uint32_t k
        for i in range(self.n):
            if u.roles[i] == MOVES and self.any[i]:
                u.entries[i].has_gradient = 1
                for k in range(self.parts[i].n if u.entries[i].rows else 0):
                    touch(u.entries[i], self.parts[i].union_[k])
        return 0

    # ---- updating ----

    cdef int apply(self, Backend backend, Storage storage, Plan plan, list rates) except -1:
        cdef Update* u = &plan.u
        cdef bint behind
        with nogil:
            behind = self.begin_spans(u)
        if behind:
            self.settle_tables(self.stored)
        with nogil:
            self.update_parts(u)
        self.board.wait(b"update, values", True)
        with nogil:
            self.fetch_parts(u)
            storage.changes.n += 1
        return 0

    cdef bint begin_spans(self, Update* u) noexcept nogil:
        """Plan what is done to each entry, and do what comes before its step.

        Returns:
            Whether rows must catch up first.  All ranks decide the same.
        """
        cdef Py_ssize_t i
        cdef Part* part
        cdef bint behind = False
        cdef int k
        for i in range(self.n):
            part = &self.parts[i]
            part.step = NULL
            if u.roles[i] == FROZEN:
                continue
            lock_gradient(u.entries[i])
            part.n_spans = plan_entry(u, i, part.n, self.states_of(i), part.spans)
            for k in range(part.n_spans):
                if part.spans[k].kind == STEP:
                    part.step = &part.spans[k]
                    break
                behind |= part.spans[k].kind == CATCH_UP
                apply_weight_decay(u.entries[i], part.spans[k].before)
            unlock_gradient(u.entries[i])
        return behind

    cdef States states_of(self, Py_ssize_t i) noexcept nogil:
        """Whether rows of an entry, on any rank, are missing updates of other trainers, which have other states."""
        cdef Entry* one
        cdef int r
        for r in range(self.size):
            one = entries_of(self.headers[r]) + i
            if one.lazy > 0 and not one.behind:
                return FOREIGN
        return SHARED

    cdef void update_parts(self, Update* u) noexcept nogil:
        """Make this rank's part of the steps, and publish the values."""
        cdef Py_ssize_t i
        cdef Param* p
        cdef Part* part
        for i in range(self.n):
            p, part = u.entries[i], &self.parts[i]
            if part.step == NULL:
                continue
            lock_gradient(p)
            if part.step.lazy and can_defer(p, u.rule, &u.settings[u.group[i]].h, u.states):
                p.lazy.shared = p.lazy.moving = 1
            if p.rows:
                self.update_table(u, i)
            else:
                self.update_range(u, i, part.at, part.end, self.fresh + p.offset + part.at)
            unlock_gradient(p)

    cdef void fetch_parts(self, Update* u) noexcept nogil:
        """Copy what other ranks have updated, and do what comes after the steps."""
        cdef Py_ssize_t i
        cdef Param* p
        cdef Part* part
        cdef const Span* span
        for i in range(self.n):
            p, part = u.entries[i], &self.parts[i]
            if part.step == NULL:
                continue
            lock_gradient(p)
            if p.rows:
                self.fetch_table(u, i)
            else:
                self.fetch_range(p, 0, part.at)
                self.fetch_range(p, part.end, p.size)
            forget_gradient(p)
            span = part.step + 1
            while span < part.spans + part.n_spans:
                apply_weight_decay(p, span.before)
                span += 1
            unlock_gradient(p)

    cdef void update_range(self, Update* u, Py_ssize_t i, size_t at, size_t end, float* published) noexcept nogil:
        """Update a part of a parameter or table, and publish it."""
        cdef Param* p = u.entries[i]
        cdef GroupSettings s = u.settings[u.group[i]]
        cdef uint8_t has = p.has_gradient
        cdef size_t n
        s.h.step_scale = <float>(1 / p.factor)
        p.has_gradient = self.any[i]            # so that this part of the gradient is set to zero
        while at < end:
            n = min(PART, end - at)
            step_part(p, &s, u, self.parts[i].step, at, n)
            memcpy(published, p.value + at, n * sizeof(float))
            at += n
            published += n
        p.has_gradient = has

    cdef void update_table(self, Update* u, Py_ssize_t i) noexcept nogil:
        cdef Param* p = u.entries[i]
        cdef Part* t = &self.parts[i]
        cdef size_t n = size_of(&p.dim), low = 0, high = 0, k, row
        for k in range(t.at, t.end):
            row = t.union_[k]
            if t.step.lazy:
                catch_up_shared(p, row, row + 1)
            self.update_range(u, i, row * n, (row + 1) * n, self.row_of(u, i, k))
        if t.step.some:
            return
        self.share_of(p.rows, &low, &high)
        row = low
        while row < high:                       # rows next to each other at once
            k = row
            while k < high and not self.in_union(i, <uint32_t>k):
                k += 1
            self.update_range(u, i, row * n, k * n, self.fresh + p.offset + row * n)
            row = k + 1

    cdef float* row_of(self, Update* u, Py_ssize_t i, size_t k) noexcept nogil:
        """Where row k of the union is published: side by side if no others are, for it is faster to read."""
        cdef Param* p = u.entries[i]
        return self.fresh + p.offset + (k if self.parts[i].step.some else self.parts[i].union_[k]) * size_of(&p.dim)

    cdef void fetch_range(self, Param* p, size_t at, size_t end) noexcept nogil:
        """Copy what other ranks have updated."""
        memcpy(p.value + at, self.fresh + p.offset + at, (end - at) * sizeof(float))
        if p.has_gradient:
            memset(p.grad + at, 0, (end - at) * sizeof(float))

    cdef void fetch_table(self, Update* u, Py_ssize_t i) noexcept nogil:
        cdef Param* p = u.entries[i]
        cdef Part* t = &self.parts[i]
        cdef size_t n = size_of(&p.dim), low = 0, high = 0, k
        for k in range(t.n):
            if not t.at <= k < t.end:
                memcpy(p.value + t.union_[k] * n, self.row_of(u, i, k), n * sizeof(float))
        if t.step.lazy:
            self.note_table(u, i)
        elif not t.step.some:
            self.share_of(p.rows, &low, &high)
            memcpy(p.value, self.fresh + p.offset, low * n * sizeof(float))
            memcpy(p.value + high * n, self.fresh + p.offset + high * n, (p.rows - high) * n * sizeof(float))
        for k in range(p.n_touched):            # the step has set those of this rank's part to zero
            if not t.at <= t.place[p.touched[k]] < t.end:
                memset(p.grad + p.touched[k] * n, 0, n * sizeof(float))

    # ---- rows that have updates later ----

    cdef int compare_deferred(self, Update* u) except -1:
        """Check that the same updates are missing on all ranks, since they share the states that have not had them."""
        cdef Py_ssize_t i
        cdef int r
        cdef Entry* a
        cdef Entry* b
        for i in range(self.n):
            a = entries_of(self.headers[0]) + i
            for r in range(1, self.size):
                b = entries_of(self.headers[r]) + i
                if (a.behind or b.behind) and b.lazy != a.lazy:
                    raise ParallelError(
                        f"on rank 0, {a.lazy} updates have not reached all rows of {self.stored[i].name()}, and "
                        f"{b.lazy} on rank {r}: all ranks must set the state of a trainer (restart, load_safetensors)")
        return 0

    cdef int settle_tables(self, list stored) except -1:
        """Bring all rows, and the states that ranks share, up to date.  Collective."""
        cdef size_t low = 0, high = 0
        cdef Param* p
        cdef _Stored x
        for x in stored:
            p = x.p
            with nogil:
                catch_up_all(p)
        self.board.wait(b"update, rows", True)
        for x in stored:
            p = x.p
            if p.lazy != NULL and p.lazy.n:
                with nogil:
                    self.share_of(p.rows, &low, &high)
                    catch_up_shared(p, low, high)
        self.board.wait(b"update, states of rows", True)
        for x in stored:
            clear_deferred_shared(x.p)
        return 0

    cdef void note_table(self, Update* u, Py_ssize_t i) noexcept nogil:
        """Note that the rows of the union have had this update, and the others have not."""
        cdef Param* p = u.entries[i]
        cdef dy_optim h = u.settings[u.group[i]].h
        cdef uint32_t k
        for k in range(self.parts[i].n):
            mark_moved(p, self.parts[i].union_[k])
        h.step_scale = <float>(1 / p.factor)
        defer_update(p, &h)
        p.lazy.moving = 0

    cdef void read_tables(self) noexcept:
        cdef Py_ssize_t i
        if self.stored is None or self.together:        # together: another thread makes an update
            return
        for i in range(len(self.stored)):
            catch_up_all((<_Stored>self.stored[i]).p)

    cdef int settle(self, collection) except -1:
        cdef list stored = collection._below()
        cdef bint pending = False
        cdef _Stored x
        see_whole()
        collection._catch_up()
        for x in stored:
            pending = pending or (x.p.lazy != NULL and x.p.lazy.n)
        if pending:
            self.settle_tables(stored)
        return 0


def shared(communicator: SharedCommunicator, trainer: Trainer, reduction: str) -> SharedReducer:
    """The reducer for synchronous updates by processes on one machine.  Collective.

    Args:
        communicator: a SharedCommunicator.
        trainer: the trainer.  All its parameters and its state are copied from rank 0.
        reduction: "mean" or "sum".
    """
    cdef list stored = trainer.collection._below()
    cdef Storage storage = trainer.collection.storage
    cdef size_t n = len(stored), n_rows = 0, head
    cdef _Stored x
    cdef int size = communicator.size
    model = model_of(communicator, storage, stored, size + 1)
    storage.move(storage.grads, model.plane(communicator.rank))
    for x in stored:
        catch_up_all(x.p)           # with the states that it has now
    for x in stored:
        n_rows += x.p.rows
    head = 2 * size * (header_bytes_of(n) + n_rows * sizeof(uint32_t))
    head = (head + 4095) // 4096 * 4096
    region = communicator.board.region(head + trainer._n_states * <size_t>model.plane_bytes)
    share_planes(communicator, storage, trainer._states[:trainer._n_states], region, head, model.plane_bytes)
    reducer = SharedReducer(communicator, stored, reduction == "mean", model, region)
    send_values(communicator, storage, stored, (<SharedReducer>reducer).fresh)
    return reducer


# ==== lock free ===================================================================================
#
# Updates without locks: all ranks change one copy of parameters and state, each using its own gradients (Recht, Re,
# Wright and Niu 2011, Hogwild: a lock-free approach to parallelizing stochastic gradient descent).

ON_HOST: str = (
    "asynchronous training is for parameters in memory that all processes share, and these live on GPUs, where each "
    "process has its own: train with --mode sync, or on the CPU"
)


@cython.final
cdef class LockFreeReducer(Reducer):
    """Updates of one copy of the parameters by all ranks, without locks.  See `lock_free`."""

    cdef object model, region
    cdef uint64_t* counter

    def __cinit__(self, model, region):
        self.model = model
        self.region = region
        self.counter = <uint64_t*>memory_of(region, True)
        # Each time weight decay is applied, it takes a pass over all tables.
        self.least_decay = 2.0 ** -10
        self.alone = False
        self.host_only = ON_HOST

    cdef object count(self, object steps):
        """The number of this update, counting those of all ranks."""
        return dy_count_up(self.counter, steps)


def lock_free(communicator: SharedCommunicator, trainer: Trainer) -> LockFreeReducer:
    """Updates of one copy of parameters and state by all processes of a machine, without locks.  Collective.

    Args:
        communicator: a SharedCommunicator.
        trainer: the trainer.  All its parameters and its state are copied from rank 0.

    Raises:
        RuntimeError: some parameters live on devices.
    """
    refuse_devices(trainer, ON_HOST)
    cdef list stored = trainer.collection._below()
    cdef Storage storage = trainer.collection.storage
    cdef _Stored x
    model = model_of(communicator, storage, stored, 1, with_children=True)
    for x in stored:
        settle_factor(x.p)
        x.p.in_place = 1                # a factor could not change at the same moment as the rows
    share_planes(communicator, storage, [storage.values], model.region, 0, model.plane_bytes)
    storage.changed()
    region = communicator.board.region(4096 + trainer._n_states * <size_t>model.plane_bytes, with_children=True)
    share_planes(communicator, storage, trainer._states[:trainer._n_states], region, 4096, model.plane_bytes)
    return LockFreeReducer(model, region)
