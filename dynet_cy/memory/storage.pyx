"""Flat storage of parameters, its mirrors on devices, and changes that appear atomic to readers."""

import os
from typing import NamedTuple

cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport Py_INCREF
from libc.stdint cimport SIZE_MAX, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from dynet_cy.core.mutex cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_trylock,
    pthread_mutex_unlock,
)
from dynet_cy.core.tensor cimport Dim, size_of
from dynet_cy.core.threads cimport (
    ACQUIRE, RELAXED, Flag, Setting, Unlocked, acquire_lock, atomic_add, atomic_load, begin_interrupts, dy_this_thread,
    fegetenv, fesetenv, raise_interrupt, release_lock, runs_handlers,
)
from dynet_cy.memory.arena cimport (
    arena_alloc, arena_at, arena_close, arena_lend, arena_open, arena_rewind, arena_trim, check_memory, out_of_memory,
    process_memory,
)


# ==== mirror ======================================================================================
#
# Memory of devices that mirrors memory of the host.

cdef Mirrors the_mirrors
cdef Setting the_default = 0


cdef Mirrors* mirrors() noexcept:
    return &the_mirrors


cdef int default_device() noexcept nogil:
    return the_default


def get_default_device() -> int:
    """The device of new graphs and collections: 0 the CPU, 1 + n GPU number n."""
    return the_default


def set_default_device(int device):
    """Set the device of new graphs and collections.

    Raises:
        RuntimeError: it is a GPU, and none has been opened.
    """
    global the_default
    if device < 0 or (device and the_mirrors.open == NULL):
        raise RuntimeError(f"set_default_device: device {device} is not open")
    the_default = device


# ==== changes =====================================================================================
#
# Long changes of parameters that appear atomic to every reader.

cdef Flag unfinished = False

# Changes in the order in which they were requested.  Only those of the thread that runs handlers are listed, because no
# other thread can be stopped midway.
cdef list changes = []
# Held by the thread that makes or finishes changes.
cdef pthread_mutex_t busy
cdef uintptr_t runner = 0
cdef Interrupts kept                # the exception of a handler in `make_change`
pthread_mutex_init(&busy, NULL)
begin_interrupts(&kept)


def _begin_anew():
    """In a newly forked child, no other thread continues a change."""
    global runner
    pthread_mutex_init(&busy, NULL)
    runner = 0


os.register_at_fork(after_in_child=_begin_anew)


cdef class Change:
    cdef bint go_on(self, Interrupts* s) noexcept nogil:
        return True


cdef int make_change(Change change) except -1:
    global unfinished
    cdef Interrupts s
    cdef bint waits = kept.raised != NULL
    if not runs_handlers():
        see_whole()
        keep_read()
        begin_interrupts(&s)
        with nogil:
            change.go_on(&s)
        return 0
    if readers.keep != NULL:
        waits = True
    elif not waits:
        see_whole()
    fegetenv(&change.arithmetic)
    changes.append(change)
    unfinished = True
    if not waits:
        run(&kept, True)
    return 0


cdef int raise_kept() except -1:
    return raise_interrupt(&kept) if runs_handlers() else 0


cdef int keep_raised(object error) except -1:
    if kept.raised == NULL:
        Py_INCREF(error)
        kept.raised = <void*>error
    return 0


def waiting() -> int:
    """The number of changes that were interrupted and are not finished yet."""
    return len(changes)


cdef int finish_changes() except -1:
    global unfinished
    cdef Interrupts s
    if readers.keep != NULL:
        unfinished = False                  # passes that this runs read the values as they are
        try:
            readers.keep()
        finally:
            unfinished = True
    begin_interrupts(&s)
    run(&s, False)
    return raise_interrupt(&s)


cdef int run(Interrupts* s, bint asked) except -1:
    """Continue all changes until a handler raises.  In a handler that runs between two pieces of a change, finish it.

    With `asked`, this thread has just asked for the change, so its floating-point environment is already the right one.
    """
    global unfinished, runner
    cdef bint inside = runner == dy_this_thread()
    cdef Change change
    cdef bint done = True
    cdef fenv_t own
    if not inside:
        if pthread_mutex_trylock(&busy):
            with nogil:
                pthread_mutex_lock(&busy)
        runner = dy_this_thread()
    begin_interrupts(s)
    if not asked:
        fegetenv(&own)
    while done and changes:
        change = changes[0]
        if not asked:
            fesetenv(&change.arithmetic)
        with nogil:
            done = change.go_on(s)
        if not asked:
            fesetenv(&own)
        if done and changes and changes[0] is change:       # a handler may have finished it
            changes.pop(0)
    unfinished = len(changes) > 0
    if not inside:
        runner = 0
        pthread_mutex_unlock(&busy)
    return 0


# ==== storage =====================================================================================
#
# Flat, long-lived storage of parameters.

# Names of parameters by the ids of their entries, for messages.
parameter_names: dict[int, str] = {}

cdef list free_ids = []
cdef uint32_t n_ids = 0
cdef Unlocked ids_lock              # of names and ids

# Entries begin on 64-byte boundaries.
cdef size_t STEP = 16
# Numbers on a page of memory.
cdef size_t PAGE = 1024

# All storages, as a list of borrowed pointers; read and changed under the lock.
cdef void* first_storage = NULL
cdef pthread_mutex_t list_lock
pthread_mutex_init(&list_lock, NULL)


def _unlock():
    """In a newly forked child: a thread that the child does not have may have held the lock."""
    pthread_mutex_init(&list_lock, NULL)


os.register_at_fork(after_in_child=_unlock)


cdef void give_back_panels() noexcept:
    cdef void* x
    pthread_mutex_lock(&list_lock)
    x = first_storage
    while x != NULL:
        (<Storage>x).drop_panels()
        x = (<Storage>x).following
    pthread_mutex_unlock(&list_lock)


class StorageUsage(NamedTuple):
    """Memory usage of the parameters of one collection on one device, in bytes.

    Attributes:
        device: 0: the CPU; 1 + n: GPU number n. The bytes are those of the device.
        values: the parameters.
        gradients: their gradients.
        states: the states of trainers, such as moments and moving averages.
        packed: weights in the order in which products read them fast.
    """

    device: int
    values: int
    gradients: int
    states: int
    packed: int


def storage_usage() -> list[StorageUsage]:
    """Memory usage of all collections of the process, as a list of StorageUsage."""
    cdef Sizes* all
    cdef void* x
    cdef size_t n = 0, i = 0
    # Creating objects may free a storage, which takes the lock: the sizes are collected without any.
    pthread_mutex_lock(&list_lock)
    x = first_storage
    while x != NULL:
        n += 1
        x = (<Storage>x).following
    all = <Sizes*>malloc((n + 1) * sizeof(Sizes))
    x = first_storage if all != NULL else NULL
    while x != NULL:
        all[i] = (<Storage>x).sizes()
        i += 1
        x = (<Storage>x).following
    pthread_mutex_unlock(&list_lock)
    if all == NULL:
        raise MemoryError("the list of collections")
    try:
        return [StorageUsage(all[i].device, all[i].values, all[i].gradients, all[i].states, all[i].packed)
                for i in range(n)]
    finally:
        free(all)


cdef size_t held_by(const Arena* a) noexcept:
    cdef size_t held = 0
    cdef uint32_t k
    for k in range(a.n):
        held += a.segments[k].bytes if a.foreign else a.segments[k].charged
    return held


cdef enum:
    NAMED = 8           # parameters that the error names


cdef object bad_gradients(double norm, list names, updates):
    left = "Nothing was updated" if updates == 1 else f"This update and {updates - 1} after it were not made"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    of = ", ".join(names[:NAMED]) + more or "parameters that have been set to zero since"
    return RuntimeError(
        f"Magnitude of gradient is bad: {norm}; the gradients of {of} are not finite.  {left}.  The line where "
        "the first such number began: run the program with the option --dynet-check, with DYNET_CY_CHECK=1 in the "
        "environment, or in `with dy.detect_anomaly():`")


@cython.final
@cython.no_gc           # the collector would clear a memoryview in a cycle while its memory is in use
cdef class Held:
    """A writable buffer of another object, held until this object is freed."""

    def __cinit__(self, mapping: Buffer) -> None:
        PyObject_GetBuffer(mapping, &self.view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


@cython.final
@cython.no_gc_clear     # its memory is used until it is freed
cdef class Plane:
    """The floats of all entries, each a contiguous range, in the plane's own memory or in a mapping of the caller's."""

    def __cinit__(self):
        arena_open(&self.arena, False, process_memory())
        self.arena.zeroed = True
        self.other_devices = {}

    def __dealloc__(self):
        arena_close(&self.arena)
        if self.mirror != NULL:
            mirrors().close(self.mirror)

    cdef Plane on(self, int device):
        """The corresponding plane in the storage of a device."""
        return self if device == self.device else self.other_devices[device]

    cdef float* at(self, size_t place) noexcept:
        return <float*>arena_at(&self.arena, place * sizeof(float))

    cdef Arena* memory(self) noexcept:
        return &self.arena

    cdef float* device_base(self) noexcept:
        return mirrors().base(self.mirror) if self.device else NULL

    cdef int extend(self, size_t floats) except -1:
        """Grow to a total number of floats.  New ones are zero."""
        cdef size_t needed = floats * sizeof(float), had
        if self.held is not None:
            if needed > <size_t>self.held.view.len:
                raise MemoryError(
                    f"parameters need {needed:,} bytes but the mapping they live in has "
                    f"{self.held.view.len:,}; supply a larger one")
            return 0
        had = self.arena.top // sizeof(float)
        if floats <= had:
            return 0
        if self.device:
            mirrors().extend(self.mirror, needed, "parameters")
        if arena_alloc(&self.arena, needed - self.arena.top) == NULL:
            out_of_memory("parameters")
        return self.clear(had, floats - had)

    cdef int shrink(self, size_t floats) except -1:
        """Free the memory of the last entries, which have not been written."""
        if self.held is None and self.arena.top > floats * sizeof(float):
            arena_rewind(&self.arena, floats * sizeof(float))
            arena_trim(&self.arena, SIZE_MAX)
        return 0

    cdef int place_on(self, int device) except -1:
        """Move the plane, which must be empty, to a device or back to the CPU."""
        cdef void* mirror = mirrors().open(device) if device else NULL
        if self.mirror != NULL:
            mirrors().close(self.mirror)
        self.mirror = mirror
        self.device = device
        return 0

    cdef int pull(self, size_t at, size_t n) except -1:
        if self.device and n:
            mirrors().fetch(self.device, self.device_base() + at, self.at(at), n)
        return 0

    cdef int push(self, size_t at, size_t n) except -1:
        if self.device and n:
            mirrors().send(self.device, self.at(at), self.device_base() + at, n)
        return 0

    cdef int clear(self, size_t at, size_t n) except -1:
        """Set floats on the device to zero; those of the host are not touched."""
        if self.device and n:
            mirrors().clear(self.device, self.device_base() + at, n)
        return 0

    cdef int move(self, object mapping, Storage storage, bint copy) except -1:
        """Move to the caller's writable buffer, with all entries of the storage."""
        cdef size_t floats = storage.top
        cdef Param* p
        cdef uint32_t i
        cdef Held held = Held(mapping)
        if <size_t>held.view.len < floats * sizeof(float) or <size_t>held.view.buf % 64:
            raise ValueError(
                f"the mapping must begin on a 64-byte boundary and hold at least "
                f"{floats * sizeof(float):,} bytes; it has {held.view.len:,}")
        for i in range(storage.n_entries if copy else 0):
            p = storage.entries[i]
            if p.size:
                memmove(<float*>held.view.buf + p.offset, self.at(p.offset), p.size * sizeof(float))
        arena_lend(&self.arena, held.view.buf, held.view.len)
        self.held = held
        return 0


cdef void copy_numbers(Plane source, Plane target, const Param* p, size_t begin) noexcept:
    """Copy the numbers of an entry to a place further up, in a plane of zeros.  Pages that were never written need no
    memory there either."""
    cdef const float* v = source.at(p.offset)
    cdef size_t i, n
    for i in range(0, p.size, PAGE):
        n = min(PAGE, p.size - i)
        if v[i] != 0 or memcmp(v + i, v + i + 1, (n - 1) * sizeof(float)):
            memcpy(target.at(begin + p.offset) + i, v + i, n * sizeof(float))


@cython.final
@cython.no_gc_clear
cdef class Lent:
    """A part of a plane as a buffer for other libraries; while it exists, the memory does not move."""

    def __dealloc__(self):
        if self.plane is not None:
            atomic_add(&self.plane.lent, -1, RELAXED)

    def __getbuffer__(self, Py_buffer* view, int flags):
        if not flags & PyBUF_STRIDES == PyBUF_STRIDES:
            raise BufferError("the values of a parameter are column-major; ask for strides")
        view.buf = self.v
        view.obj = self
        view.itemsize = sizeof(float)
        view.len = sizeof(float)
        for i in range(self.axes):
            view.len *= self.sizes[i]
        view.readonly = False
        view.ndim = self.axes
        view.format = b"f"
        view.shape = self.sizes
        view.strides = self.steps
        view.suboffsets = NULL
        view.internal = NULL


cdef Lent lend(Storage storage, Plane plane, Param* p, tuple shape, tuple steps):
    """The values of an entry in a plane of the CPU, as a buffer with that shape and with strides in floats."""
    cdef Lent x = Lent.__new__(Lent)
    cdef int i
    x.storage = storage
    x.v = plane.at(p.offset)
    x.axes = len(shape)
    for i in range(x.axes):
        x.sizes[i] = shape[i]
        x.steps[i] = <Py_ssize_t>steps[i] * sizeof(float)
    x.plane = plane
    atomic_add(&plane.lent, 1, RELAXED)
    return x


@cython.final
cdef class Storage:
    """All parameters of one root collection that are on one device.

    Args:
        device: 1 + n for GPU number n, which is open; 0 for the CPU.
    """

    def __cinit__(self, int device=0) -> None:
        self.other_devices = {}
        self.values = Plane()
        self.grads = Plane()
        self.planes = [self.values, self.grads]
        self.changes.n = 1
        arena_open(&self.panels, False, process_memory())
        self.panels.quiet = True                # no reclaim: it grows while `pack_lock` is held
        pthread_mutex_init(&self.pack_lock, NULL)
        self.enlist()
        self.place_on(device)
        if guard.users:
            guard.made(self)

    def __dealloc__(self):
        cdef uint32_t i
        self.unlist()
        for i in range(self.n_entries):
            try:
                acquire_lock(&ids_lock)
                try:
                    if parameter_names is not None:     # it is when Python ends
                        parameter_names.pop(self.entries[i].id, None)
                    free_ids.append(self.entries[i].id)
                finally:
                    release_lock(&ids_lock)
            except MemoryError:
                pass                            # the id is lost, and not used again
            free(self.entries[i].is_touched)
            free(self.entries[i].touched)
            if self.entries[i].lazy != NULL:
                self.entries[i].lazy.close(self.entries[i].lazy)
            pthread_mutex_destroy(&self.entries[i].lock)
            free(self.entries[i])
        free(self.entries)
        arena_close(&self.panels)
        pthread_mutex_destroy(&self.pack_lock)

    cdef void enlist(self) noexcept:
        global first_storage
        pthread_mutex_lock(&list_lock)
        self.following = first_storage
        if first_storage != NULL:
            (<Storage>first_storage).previous = <void*>self
        first_storage = <void*>self
        pthread_mutex_unlock(&list_lock)

    cdef void unlist(self) noexcept:
        global first_storage
        pthread_mutex_lock(&list_lock)
        if self.previous != NULL:
            (<Storage>self.previous).following = self.following
        elif first_storage == <void*>self:
            first_storage = self.following
        if self.following != NULL:
            (<Storage>self.following).previous = self.previous
        pthread_mutex_unlock(&list_lock)

    cdef Sizes sizes(self) noexcept:
        cdef Sizes found
        cdef size_t i, size
        memset(&found, 0, sizeof(Sizes))
        found.device = self.device
        found.packed = held_by(&self.panels)
        for i in range(<size_t>len(self.planes)):
            # On a device, a plane has memory for all numbers.
            size = self.top * sizeof(float) if self.device else held_by(&(<Plane>self.planes[i]).arena)
            if i == 0:
                found.values = size
            elif i == 1:
                found.gradients = size
            else:
                found.states += size
        return found

    cdef void drop_panels(self) noexcept:
        cdef Param* p
        cdef uint32_t i, k
        pthread_mutex_lock(&self.pack_lock)
        if atomic_load(&self.panel_users, ACQUIRE) == 0:
            for i in range(self.n_entries):
                p = self.entries[i]
                for k in range(4):
                    p.pack.of[k].panels = NULL
                    p.pack.of[k].made = 0
            arena_rewind(&self.panels, 0)
            arena_trim(&self.panels, SIZE_MAX)
        pthread_mutex_unlock(&self.pack_lock)

    cdef Param* add(self, const Dim* dim, uint32_t rows, str name) except NULL:
        """A new entry of zeros: a parameter, or a table of that many rows."""
        cdef size_t size = size_of(dim) * (rows if rows else 1)
        # Entries without elements take a step too: each has an address of its own.
        cdef size_t top = self.top + max(size + STEP - 1, STEP) // STEP * STEP
        cdef Param* p
        try:
            for plane in self.planes:
                (<Plane>plane).extend(top)
            p = self.new_entry(rows, name)
        except BaseException:
            for plane in self.planes:
                (<Plane>plane).shrink(self.top)
            raise
        p.dim = dim[0]
        p.rows = rows
        p.number = self.n_entries
        p.offset = self.top
        p.size = size
        pthread_mutex_init(&p.lock, NULL)
        p.updated = 1
        p.factor = 1
        p.in_place = rows == 0
        pthread_mutex_lock(&self.pack_lock)     # `drop_panels` goes through them
        self.n_entries += 1
        pthread_mutex_unlock(&self.pack_lock)
        self.top = top
        self.adopt(p)
        return p

    cdef Param* new_entry(self, uint32_t rows, str name) except NULL:
        """An empty entry after the others, with an id; it is not counted yet."""
        global n_ids
        cdef Param* p
        cdef Param** entries
        pthread_mutex_lock(&self.pack_lock)
        entries = <Param**>realloc(self.entries, (self.n_entries + 1) * sizeof(Param*))
        if entries != NULL:
            self.entries = entries
        pthread_mutex_unlock(&self.pack_lock)
        if entries == NULL:
            raise MemoryError("the list of parameters")
        p = <Param*>calloc(1, sizeof(Param))
        if p != NULL and rows:
            p.is_touched = <uint8_t*>calloc(rows, 1)
            p.touched = <uint32_t*>malloc(rows * sizeof(uint32_t))
        if p == NULL or (rows and (p.is_touched == NULL or p.touched == NULL)):
            if p != NULL:
                free(p.is_touched)
                free(p.touched)
                free(p)
            raise MemoryError(f"an entry for parameter {name}")
        try:
            acquire_lock(&ids_lock)
            try:
                if free_ids:
                    p.id = free_ids[len(free_ids) - 1]
                    parameter_names[p.id] = name
                    free_ids.pop()
                else:
                    p.id = n_ids
                    parameter_names[p.id] = name
                    n_ids += 1
            finally:
                release_lock(&ids_lock)
        except BaseException:
            free(p.is_touched)
            free(p.touched)
            free(p)
            raise
        self.entries[self.n_entries] = p
        return p

    cdef void place(self, Param* p) noexcept:
        """Set the pointers of an entry to its numbers."""
        p.value = self.values.at(p.offset)
        p.grad = self.grads.at(p.offset)
        p.device_value = self.values.device_base() + p.offset if self.device else NULL
        p.device_grad = self.grads.device_base() + p.offset if self.device else NULL

    def check_memory(self, str what, size_t size, bint drawn=True):
        """Raise MemoryError if new entries of `size` numbers do not fit into the limit, or, together with the array in
        which their values are `drawn`, into the machine's memory."""
        cdef size_t n = size * sizeof(float)
        check_memory(what, n * len(self.planes), 2 * n if drawn else n)

    def place_on(self, int device):
        """Move all planes, which must be empty, to a device.

        Args:
            device: 1 + n for GPU number n, which is open; 0 for the CPU.

        Raises:
            ValueError: there are parameters already, or a plane lives in memory of the caller's.
        """
        if device == self.device:
            return
        if self.n_entries:
            raise ValueError("parameters cannot move to another device")
        if any((<Plane>plane).held is not None for plane in self.planes):
            raise ValueError("parameters in memory of the caller cannot be moved to a device")
        for plane in self.planes:
            (<Plane>plane).place_on(device)
        self.device = device

    def on(self, int device) -> Storage:
        """The storage of the same collection for a device; it is created if there is none.

        An empty storage moves to the device instead.
        """
        cdef Storage other
        cdef Plane plane
        if device == self.device:
            return self
        if not self.n_entries and not self.other_devices:
            self.place_on(device)
            return self
        if device not in self.other_devices:
            other = Storage(device)
            for plane in self.planes:
                if plane is self.values:
                    plane.other_devices[device] = other.values
                elif plane is self.grads:
                    plane.other_devices[device] = other.grads
                else:
                    plane.other_devices[device] = other.new_plane()
            self.other_devices[device] = other
        return self.other_devices[device]

    def everywhere(self) -> list[Storage]:
        """This storage and those of the same collection on other devices, as a list."""
        return [self, *self.other_devices.values()]

    def new_plane(self) -> Plane:
        """A new plane of zeros, for the state of a trainer; the collection's other storages get one too."""
        cdef Plane plane = Plane()
        if self.device:
            plane.place_on(self.device)
        plane.extend(self.top)
        self.planes.append(plane)
        try:
            for device, other in self.other_devices.items():
                plane.other_devices[device] = other.new_plane()
        except BaseException:
            self.drop_plane(plane)
            raise
        return plane

    def drop_plane(self, Plane plane not None):
        """Free a plane made by `new_plane`."""
        for device, other in plane.other_devices.items():
            (<Storage>self.other_devices[device]).drop_plane(other)
        self.planes = [p for p in self.planes if p is not plane]

    cdef int zero(self, Plane plane) except -1:
        """Set all numbers of a plane to zero, and those of the corresponding planes on other devices."""
        cdef uint32_t i
        see_whole()
        for i in range(self.n_entries):
            if self.entries[i].size:
                memset(plane.at(self.entries[i].offset), 0, self.entries[i].size * sizeof(float))
        plane.clear(0, self.top)
        for device, other in plane.other_devices.items():
            (<Storage>self.other_devices[device]).zero(other)
        return 0

    def n_bytes(self) -> int:
        """Bytes of each plane."""
        return self.top * sizeof(float)

    def move(self, Plane plane not None, mapping: Buffer, copy=True):
        """Move a plane to memory provided by the caller, such as a shared mapping.

        The contents of the plane are copied there.  No graph may be running.

        Args:
            plane: `values`, `grads`, or a plane of `new_plane`.
            mapping: a writable contiguous buffer on a 64-byte boundary, at least
                `n_bytes()` long; a larger one has memory for more parameters.
            copy: if False, the contents of the mapping replace those of the plane; call
                `changed` if these are values.

        Raises:
            ValueError: the mapping is too small or not on a boundary, or the plane is
                another storage's.
            BufferError: arrays of others share the memory of the plane.
        """
        if not any(p is plane for p in self.planes):
            raise ValueError("the plane belongs to another storage")
        if self.device:
            raise ValueError("parameters on a device cannot live in memory of the caller's")
        if plane.lent:
            raise BufferError("the values of parameters cannot move while arrays of others share them (DLPack); "
                              "delete these arrays first")
        cdef uint32_t i
        see_whole()
        plane.move(mapping, self, copy)
        for i in range(self.n_entries):
            self.place(self.entries[i])

    def take_over(self, Storage other not None):
        """Move all entries of another storage, and the planes of its trainers, to this one.  No graph may be running.

        Expressions still refer to what they did.  The former values are freed with the graphs that read them.

        Raises:
            BufferError: arrays of others share the memory of the other storage.
            RuntimeError: one of both is on a device, or in memory of the caller's.
        """
        cdef Param* p
        cdef Param** entries
        cdef Plane plane, grown
        cdef uint32_t i
        cdef size_t begin = self.top, top = self.top + other.top
        cdef list states = other.planes[2:], new = []
        see_whole()
        self.check_free()
        other.check_free()
        if any([(<Plane>own).lent for own in other.planes]):
            raise BufferError("the values of parameters cannot move while arrays of others share them (DLPack); "
                              "delete these arrays first")
        try:
            for plane in self.planes:
                plane.extend(top)
            for _ in states:
                grown = Plane()
                grown.extend(top)
                new.append(grown)
            pthread_mutex_lock(&self.pack_lock)
            entries = <Param**>realloc(self.entries, (self.n_entries + other.n_entries + 1) * sizeof(Param*))
            self.entries = entries if entries != NULL else self.entries
            pthread_mutex_unlock(&self.pack_lock)
            if entries == NULL:
                raise MemoryError("the list of parameters")
        except BaseException:
            for plane in self.planes:
                plane.shrink(self.top)
            raise
        other.drop_panels()
        for i in range(other.n_entries):
            p = other.entries[i]
            copy_numbers(other.values, self.values, p, begin)
            if p.has_gradient:
                copy_numbers(other.grads, self.grads, p, begin)
            for plane, grown in zip(states, new):
                copy_numbers(plane, grown, p, begin)
            p.offset += begin
            p.number = self.n_entries + i
        for plane, grown in zip(states, new):
            plane.arena, grown.arena = grown.arena, plane.arena
        pthread_mutex_lock(&self.pack_lock)
        for i in range(other.n_entries):
            self.entries[self.n_entries] = other.entries[i]
            self.n_entries += 1
        pthread_mutex_unlock(&self.pack_lock)
        self.top = top
        self.planes = self.planes + states
        for i in range(other.n_entries):
            self.adopt(other.entries[i])
        pthread_mutex_lock(&other.pack_lock)
        other.n_entries = 0
        pthread_mutex_unlock(&other.pack_lock)
        other.top = 0
        other.planes = other.planes[:2]
        other.follower = self

    cdef int check_free(self) except -1:
        """Raise an error if these parameters cannot be held together with others."""
        if self.device or self.other_devices:
            raise RuntimeError("parameters on devices cannot be held together with those of another model: make "
                               "both in one ParameterCollection")
        if any([(<Plane>own).held is not None for own in self.planes]):
            raise RuntimeError("parameters that processes share cannot be held together with those of another "
                               "model: join the layers before training begins")
        return 0

    cdef void adopt(self, Param* p) noexcept:
        """Let an entry refer to this storage."""
        p.pack.changes = &self.changes
        p.pack.arena = &self.panels
        p.pack.lock = &self.pack_lock
        p.pack.users = &self.panel_users
        p.device = self.device
        self.place(p)

    @property
    def times_changed(self) -> int:
        """How many times values have changed."""
        return self.changes.n

    def changed(self):
        """Note that values have been written from outside, into the mapping that holds them."""
        for storage in self.everywhere():
            (<Storage>storage).changes.n += 1
