"""The results of clipping on devices: whether gradients were finite, their norms, how often they were clipped.

Clipping runs on the device, so the host does not wait for an update.  The result is stored in a record on the device,
and copied to page-locked memory after each update: a `Clipping`.  Code that has waited for the device, for a value for
example, calls `check_updates`.  It raises an error if updates were left out.  Once an update is left out, so are all
later ones, until the error has been raised.  Trainers see the result at their next call, when `poll_errors` reads the
record.
"""

cimport cython
from libc.math cimport isfinite
from libc.stdint cimport uintptr_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.unlocked cimport Unlocked, drop, let_be_revived, revived, take
from dynet_cy.gpu.driver cimport (
    MOST_GPUS, enter, fetch_bytes, fill, gpu_at, leave, pthread_mutex_lock, pthread_mutex_unlock, raise_error, wait,
    wait_for,
)
from dynet_cy.memory.storage cimport Param, bad_gradients, touch
from dynet_cy.model.parameters cimport _Stored

cdef enum:
    PAGE = 4096

# For each device: addresses of free records, on the device and in page-locked memory.
cdef dict spare = {}

# The Clippings of each device that exist, as borrowed references.
cdef struct Open:
    void** all
    uint32_t n
    uint32_t room

cdef Open[MOST_GPUS] opened
cdef Unlocked opened_lock, places_lock
memset(opened, 0, sizeof(opened))


cdef int more_places(Gpu* gpu, list places) except -1:
    """Allocate a page of records."""
    cdef Address device_ptr = 0
    cdef void* page = NULL
    cdef int error
    cdef size_t at
    enter(gpu)
    error = gpu.driver.cuMemAlloc_v2(&device_ptr, PAGE)
    if not error:
        error = gpu.driver.cuMemHostAlloc(&page, PAGE, 0)
    leave(gpu)
    if error:
        raise MemoryError(f"out of memory of GPU:{gpu.number} for clipping")
    for at in range(0, PAGE - sizeof(Clip) + 1, sizeof(Clip)):
        places.append((device_ptr + at, <uintptr_t>page + at))
    return 0


cdef int list_opened(Clipping x) except -1:
    cdef Open* o = &opened[x.gpu.number]
    cdef void** larger
    cdef bint has_room
    let_be_revived(x)
    take(&opened_lock)
    if o.n == o.room:
        larger = <void**>realloc(o.all, (o.room + 8) * sizeof(void*))
        if larger != NULL:
            o.all = larger
            o.room += 8
    has_room = o.n < o.room
    if has_room:
        o.all[o.n] = <void*>x
        o.n += 1
    drop(&opened_lock)
    if not has_room:
        raise MemoryError("the list of records of updates")
    return 0


cdef void unlist_opened(Clipping x) noexcept:
    cdef Open* o = &opened[x.gpu.number]
    cdef uint32_t i
    take(&opened_lock)
    for i in range(o.n):
        if o.all[i] == <void*>x:
            o.n -= 1
            o.all[i] = o.all[o.n]
            break
    drop(&opened_lock)


cdef list all_opened(int device):
    """The records of a device that are alive."""
    cdef const Open* o = &opened[device]
    cdef uint32_t i = o.n
    found = []
    while i:                                        # from the end, since the last one takes the place of one that goes
        i -= 1
        take(&opened_lock)
        x = revived(o.all[i] if i < o.n else NULL)
        drop(&opened_lock)
        if x is not None:
            found.append(x)
    return found


@cython.final
@cython.no_gc_clear
cdef class Clipping:
    """The record of the updates of one trainer on a device.

    Args:
        device: number of the GPU.
    """

    def __cinit__(self, int device):
        cdef int error
        self.gpu = gpu_at(device)
        self.stored = []
        places = spare.setdefault(device, [])
        take(&places_lock)
        try:
            if not places:
                more_places(self.gpu, places)
            self.device_ptr, at = places.pop()
        finally:
            drop(&places_lock)
        self.host_ptr = <Clip*><uintptr_t>at
        memset(self.host_ptr, 0, sizeof(Clip))
        with nogil:
            if not enter(self.gpu):
                fill(self.gpu, sizeof(Clip) // sizeof(float), 0, <void*><uintptr_t>self.device_ptr)
            error = leave(self.gpu)
        if error:
            raise_error(self.gpu, error)
        list_opened(self)

    def __dealloc__(self):
        if self.host_ptr != NULL:
            unlist_opened(self)
            spare[self.gpu.number].append((self.device_ptr, <uintptr_t>self.host_ptr))

    def wait(self, bint polls=True):
        """Wait until all updates are done, so that the record is up to date.

        Args:
            polls: whether signal handlers may run meanwhile, and interrupt the wait.
        """
        cdef int error
        if polls:
            wait_for(self.gpu)
        with nogil:
            if not enter(self.gpu):
                wait(self.gpu)
            error = leave(self.gpu)
        if error:
            raise_error(self.gpu, error)
        self.under_way = False

    def check(self):
        """Check whether a finished update was left out.

        Raises:
            RuntimeError: an update was left out, and so were all later ones; the gradients are still on the device.
        """
        if self.host_ptr.skipped:
            self.report()

    cdef int report(self) except -1:
        cdef Clip found
        cdef int error
        memset(&found, 0, sizeof(Clip))
        with nogil:
            if not enter(self.gpu) and not wait(self.gpu):
                found = self.host_ptr[0]
                if found.skipped:                   # otherwise another thread has reported it
                    self.n_clips += found.clips - self.counted
                    self.n_dropped += found.dropped - self.known
                    self.n_left_out += found.skipped
                    self.asked = self.counted = self.known = 0
                    memset(self.host_ptr, 0, sizeof(Clip))
                    self.host_ptr.norm = found.norm
                    fill(self.gpu, sizeof(Clip) // sizeof(float), 0, <void*><uintptr_t>self.device_ptr)
            error = leave(self.gpu)
        if error:
            raise_error(self.gpu, error)
        if not found.skipped:
            return 0
        raise bad_gradients(found.norm, self.note_gradients(), found.skipped)

    cdef list note_gradients(self):
        """Copy the gradients to the host and mark parameters that have one; returns the names of those not finite."""
        cdef _Stored x
        cdef Param* p
        cdef size_t i, n
        cdef int error = 0
        cdef bint finite
        cdef list stored = self.stored
        for x in stored:
            with nogil:
                if not enter(self.gpu):
                    fetch_bytes(self.gpu, x.p.grad, <Address><uintptr_t>x.p.device_grad, x.p.size * sizeof(float))
                    wait(self.gpu)
                error = leave(self.gpu)
            if error:
                raise_error(self.gpu, error)
        names = []
        for x in stored:
            p = x.p
            n = size_of(&p.dim)
            finite = True
            with nogil:
                pthread_mutex_lock(&p.lock)
                for i in range(p.size):
                    if p.grad[i] != 0:
                        finite = finite and isfinite(p.grad[i])
                        p.has_gradient = 1
                        if p.rows:
                            touch(p, i // n)
                pthread_mutex_unlock(&p.lock)
            if not finite:
                names.append(x.full_name)
        return names

    def left_out(self):
        """The number of updates that were left out since the last call, as far as errors have reported them."""
        found, self.n_left_out = self.n_left_out, 0
        return found

    def clips(self):
        """The number of updates that were clipped since the last call."""
        cdef uint32_t now = self.host_ptr.clips, before = self.counted
        found, self.n_clips = self.n_clips + now - before, 0
        self.counted = now
        return found

    def dropped(self):
        """The number of updates that were dropped since the last call, as far as the host knows."""
        cdef uint32_t now = <uint32_t>(done_dropped(self.host_ptr) >> 32), before = self.known
        found, self.n_dropped = self.n_dropped + now - before, 0
        self.known = now
        return found

    def coming(self):
        """The number of updates that the device may have dropped without `dropped` having counted them yet."""
        cdef uint64_t both = done_dropped(self.host_ptr)
        return self.asked - <uint32_t>both + <uint32_t>(both >> 32) - self.known

    def catch_up(self):
        """Wait if too many updates are under way."""
        if self.asked - <uint32_t>done_dropped(self.host_ptr) > MOST_COMING:
            self.wait()

    @property
    def norm(self):
        """The norm of the last update or, after updates were left out, of the first of these."""
        return self.host_ptr.norm


cdef int check_updates(Gpu* gpu) except -1:
    cdef Clipping x
    if opened[gpu.number].n:
        for x in all_opened(gpu.number):
            if x.host_ptr.skipped:
                return x.report()
    return 0


def settle_others(list stored not None, Clipping own=None):
    """Wait for updates of these parameters by other trainers, and raise an error if they were left out.

    In that case the gradients that are not finite are still on the device, but the parameters are not marked as having
    a gradient.
    """
    cdef Clipping other
    cdef _Stored x
    cdef int device
    for device in range(MOST_GPUS):
        for other in all_opened(device):
            if other is own or not other.under_way:
                continue
            mine = {<uintptr_t>(<_Stored>y).p for y in stored}
            if any([<uintptr_t>x.p in mine for x in other.stored]):
                other.wait()
                other.check()
