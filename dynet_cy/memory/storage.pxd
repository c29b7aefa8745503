"""Flat storage of parameters, its mirrors on devices, and changes that appear atomic to readers."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.core.mutex cimport pthread_mutex_t
from dynet_cy.core.tensor cimport Dim
from dynet_cy.core.threads cimport Flag, Interrupts, Number, fenv_t
from dynet_cy.memory.arena cimport Arena


# ==== mirror ======================================================================================
#
# Memory of devices that mirrors memory of the host.
#
# Data at an offset from the base of a range of the host has the same offset on the device.  The functions are filled by
# the backend of the device when it is loaded, so that storage and graphs need no backend.

cdef struct Mirrors:
    # An empty range of device addresses; extend() maps n bytes from its base on.
    void* (*open)(int device) except NULL
    int (*extend)(void* arena, size_t n, str what) except -1
    float* (*base)(void* arena) noexcept
    void (*close)(void* arena) noexcept
    # Copies of n floats, complete when the function returns; and zeros.
    int (*fetch)(int device, const float* device_ptr, float* host_ptr, size_t n) except -1
    int (*send)(int device, const float* host_ptr, float* device_ptr, size_t n) except -1
    int (*clear)(int device, float* device_ptr, size_t n) except -1

cdef Mirrors* mirrors() noexcept
# The device of new graphs and collections.  0: the CPU; 1 + n: GPU number n.
cdef int default_device() noexcept nogil


# ==== changes =====================================================================================
#
# Long changes of parameters that appear atomic to every reader, even if a signal interrupts them.
#
# A change that a signal handler has interrupted is finished before anything reads or changes a parameter, a gradient or
# a state of a trainer: all of these call `see_whole` first.

cdef class Change:
    cdef fenv_t arithmetic          # floating-point environment of the thread that asked for the change
    # Continue where it stopped, until it is finished or `interrupted`; True if it is finished.
    cdef bint go_on(self, Interrupts* s) noexcept nogil

# Whether a change is in progress or waiting to be finished.
cdef Flag unfinished

# Make a change.  If a handler raises an exception, the change stops there, and `raise_kept` raises the exception.
# Changes that are requested before that wait behind this one.
cdef int make_change(Change change) except -1
# Raise the exception that a handler has raised in `make_change`.
cdef int raise_kept() except -1
# Keep the exception of a handler where an update cannot stop, for `raise_kept`.
cdef int keep_raised(object error) except -1
cdef int finish_changes() except -1


# Keeps items of batched maps from changing parameters that others have begun to use: filled in by `fibers`.
cdef struct Guard:
    Number users                    # maps and servers; the functions are called if there are any
    int (*check)(object storage, str what) except -1
    int (*made)(object storage) except -1

cdef Guard guard


# In a program written for DyNet, graphs keep the values of parameters that they have read: filled in by
# `graph.expressions`, NULL in other programs.  A change that a trainer makes then waits until something reads or
# changes parameters, which most often is the next graph: a graph that ends at its update has nothing to keep.
cdef struct Readers:
    int (*keep)() except -1

cdef Readers readers


cdef inline int keep_read() except -1:
    """Let graphs keep the values that they have read, before values change at once."""
    return readers.keep() if readers.keep != NULL else 0


cdef inline int check_change(object storage, str what) except -1:
    """Raise if this thread runs items that may have used values of parameters, which are about to change."""
    return guard.check(storage, what) if guard.users else 0


cdef inline int see_whole() except -1:
    """Finish interrupted changes, before parameters, gradients or states are read or changed.

    If a handler raises an exception meanwhile, it is raised, and the change remains unfinished.
    """
    if unfinished:
        finish_changes()
    return 0


# ==== storage =====================================================================================
#
# Flat, long-lived storage of parameters.
#
# A Storage owns its entries and its planes; a plane is one contiguous range of
# floats in which every entry has the same place: one for values, one for
# gradients, and as many as trainers ask for.
#
# A storage may live on a device.  The planes of such a storage are in the memory of the device.
# The memory of the host holds a copy of the parts that are read or changed: `pull`
# copies them from the device, `push` copies them back after a change.
#
# A collection has one storage, and one more for each further device that it has
# parameters on.  Each plane has a corresponding plane in all of these.

cdef extern from "dynet_cy/storage.h" nogil:
    # derived: structs of Panels = dy_packed, Changes, Pack, Lazy, Param
    ctypedef struct Panels "dy_packed":
        float* panels
        uint64_t asked
        uint64_t made
        uint64_t asker

    ctypedef struct Changes "dy_changes":
        uint64_t n
        uint64_t alone

    ctypedef struct Pack "struct dy_pack":
        Changes* changes
        Arena* arena
        pthread_mutex_t* lock
        uint32_t* users
        Panels of[4]
        uint8_t shared

    ctypedef struct Lazy "dy_lazy":
        uint32_t n
        int rule
        float b1
        float b2
        float eps
        uint8_t each
        uint8_t shared
        uint8_t read
        uint8_t moving
        const Arena* states[3]
        float* rows[3]
        uint32_t* had
        Lazy* there
        void* memory
        void (*close)(Lazy* lazy) noexcept nogil
        double weights[512]
        float rates[512]
        float eps_scales[512]
        double moments[513][4]
        double kept[513]
        double fades[513]
        double b1_powers[513]

    ctypedef struct Param "dy_param":
        Dim dim
        uint32_t rows
        uint32_t id
        uint32_t number
        size_t offset
        size_t size
        float* value
        float* grad
        int device
        float* device_value
        float* device_grad
        Pack pack
        double factor
        Lazy* lazy
        pthread_mutex_t lock
        uint8_t* is_touched
        uint32_t* touched
        uint32_t n_touched
        uint64_t changed_at
        uint8_t updated
        uint8_t in_place
        uint8_t has_gradient
        uint64_t pass_number
    # end of structs

    # derived: constants of MOST_DEFERRED
    int MOST_DEFERRED "DY_MOST_DEFERRED"
    # end of constants
    # derived: functions of value_changed, touch, note_gradient, forget_gradient
    void value_changed "dy_value_changed"(Param* p)
    void touch "dy_touch"(Param* p, uint32_t r)
    void note_gradient "dy_note_gradient"(Param* p)
    void forget_gradient "dy_forget_gradient"(Param* p)
    # end of functions


cdef class Storage

# What the parameters of a storage take, in bytes.
cdef struct Sizes:
    int device
    size_t values
    size_t gradients
    size_t states
    size_t packed

# Free the packed parameters, except those that products of other threads are reading.
cdef void give_back_panels() noexcept
# The error for gradients that are not finite, because of which `updates` updates were not made.
cdef object bad_gradients(double norm, list names, updates)


cdef class Held:
    cdef Py_buffer view


cdef class Plane:
    cdef Arena arena
    cdef Held held                  # the mapping of the caller's that it is in; None if the memory is its own
    cdef int device
    cdef void* mirror               # on a device; NULL on the CPU
    cdef dict other_devices         # by device: the corresponding planes in the collection's other storages
    cdef Py_ssize_t lent            # how many arrays of other libraries share its memory, which may not move meanwhile
    cdef Plane on(self, int device)
    cdef float* at(self, size_t place) noexcept        # the address of the float at an offset
    cdef float* device_base(self) noexcept
    cdef Arena* memory(self) noexcept
    cdef int extend(self, size_t floats) except -1
    cdef int shrink(self, size_t floats) except -1
    cdef int move(self, object mapping, Storage storage, bint copy) except -1
    cdef int place_on(self, int device) except -1
    # Copy n floats from a position on, from the device to the host and back; nothing happens on the CPU.
    cdef int pull(self, size_t at, size_t n) except -1
    cdef int push(self, size_t at, size_t n) except -1
    cdef int clear(self, size_t at, size_t n) except -1


cdef class Lent:
    """A part of a plane as a buffer for other libraries; while it exists, the memory does not move."""
    cdef Storage storage
    cdef Plane plane
    cdef float* v
    cdef int axes
    cdef Py_ssize_t[8] sizes
    cdef Py_ssize_t[8] steps


cdef class Storage:
    cdef readonly Plane values
    cdef readonly Plane grads
    cdef list planes
    cdef pthread_mutex_t pack_lock
    cdef Arena panels               # of packed parameters
    cdef uint32_t panel_users       # products that read them
    cdef void* previous             # all storages form a linked list
    cdef void* following
    cdef Changes changes            # of values; code that writes values counts them
    cdef Param** entries
    cdef uint32_t n_entries
    cdef size_t top                 # floats in use in every plane
    cdef readonly int device        # 0: the CPU; 1 + n: GPU number n
    # By device: the collection's other storages; filled in its first storage only.
    cdef readonly dict other_devices  # type: dict[int, Storage]
    cdef Storage follower           # which has taken over the entries, that graphs may still refer to; None: no other

    cdef Param* add(self, const Dim* dim, uint32_t rows, str name) except NULL
    cdef Param* new_entry(self, uint32_t rows, str name) except NULL
    cdef void place(self, Param* p) noexcept
    cdef int check_free(self) except -1
    cdef void adopt(self, Param* p) noexcept
    cdef int zero(self, Plane plane) except -1
    cdef void enlist(self) noexcept
    cdef void unlist(self) noexcept
    cdef Sizes sizes(self) noexcept
    cdef void drop_panels(self) noexcept


cdef Lent lend(Storage storage, Plane plane, Param* p, tuple shape, tuple steps)
