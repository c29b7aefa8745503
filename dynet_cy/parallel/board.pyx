"""Shared memory and a barrier for the processes of one machine.

The memory has no name: the launcher makes it, and its workers inherit the descriptor.  So it is freed when the last of
them has ended, however they end.  It begins with a page for all processes, a page for each process, and a message box
for each process; further regions are added at the end.
"""

import mmap
import os
import weakref

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, strlen, strncmp

from dynet_cy.memory.bridge cimport memory_of

from dynet_cy.parallel.communicator import LEFT, ParallelError, only_some
from dynet_cy.parallel.start import cores


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
