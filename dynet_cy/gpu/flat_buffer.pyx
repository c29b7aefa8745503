"""Numbers of parameters on a device, gathered in a flat buffer: one launch and one copy for all parameters."""

import numpy as np

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.gpu.driver cimport (
    MOST_GPUS, DeviceArena, Gpu, enter, fetch_bytes, gpu_at, launch, leave, raise_error, wait,
)
from dynet_cy.gpu.memory cimport Range, extend_arena, open_arena, out_of_device_memory, send_ranges
from dynet_cy.gpu.registry cimport kernel_at, load, loaded, module_at
from dynet_cy.memory.buffers cimport memory_of
from dynet_cy.memory.storage cimport Plane
from dynet_cy.model.parameters cimport _Stored


cdef extern from "dynet_cy/gpu_update.h" nogil:
    ctypedef struct GatherRange "dy_gather_range":       # `segments` has its words as columns
        size_t at
        size_t n
        size_t to

cdef int CU = module_at(b"optim")
cdef int GATHER = kernel_at(CU, b"gather_ranges")
cdef int SCATTER = kernel_at(CU, b"scatter_ranges")

# The buffer of each device: the table of segments, followed by the gathered numbers.
cdef DeviceArena[MOST_GPUS] arenas
memset(arenas, 0, sizeof(arenas))


cdef class FlatBuffer:
    """Parts of a plane, and a buffer in which they are laid side by side.

    Args:
        parts: a list of (parameter or table, None), for all of its numbers, or (table, row numbers as uint32).

    Attributes:
        size: the total number of floats.
        starts: where each part begins in the buffer.
    """

    cdef Gpu* gpu
    cdef object segments                # array; columns: offset in the plane, number of floats, offset in the buffer
    cdef uint64_t* table                # the address of its numbers
    cdef size_t height                  # number of segments
    cdef size_t longest
    cdef readonly size_t size
    cdef readonly list starts

    def __init__(self, list parts not None):
        cdef _Stored x
        cdef size_t n
        tables = [np.empty((0, 3), np.uint64)]
        self.starts = []
        for x, rows in parts:
            self.gpu = gpu_at(x.storage.device - 1)
            self.starts.append(self.size)
            n = x.p.size if rows is None else size_of(&x.p.dim)
            table = np.empty((1 if rows is None else len(rows), 3), np.uint64)
            table[:, 0] = x.p.offset
            if rows is not None:
                table[:, 0] += np.asarray(rows, np.uint64) * np.uint64(n)
            table[:, 1] = n
            table[:, 2] = self.size + n * np.arange(len(table), dtype=np.uint64)
            tables.append(table)
            self.size += n * <size_t>len(table)
            self.longest = max(self.longest, n if len(table) else 0)
        self.segments = np.concatenate(tables)
        self.table = <uint64_t*>memory_of(self.segments, True)
        self.height = len(self.segments)

    cdef int grid(self, unsigned* wide, unsigned* high) except -1:
        """The grid: blocks along a segment, and rows of blocks for different segments."""
        cdef size_t most = <size_t>16 * self.gpu.multiprocessors
        high[0] = <unsigned>min(self.height, most)
        wide[0] = <unsigned>min((self.longest + 255) // 256, max(most // high[0], <size_t>1))
        return 0

    cdef size_t ready(self) except? 0:
        """Load the kernels and allocate the buffer; returns where the numbers begin, after the table."""
        cdef DeviceArena* a = &arenas[self.gpu.number]
        cdef size_t begin = self.height * sizeof(GatherRange), n = begin + self.size * sizeof(float)
        cdef int error
        if not loaded(self.gpu)[0] >> CU & 1:
            load(self.gpu, <uint64_t>1 << CU)
        if a.base == 0:
            open_arena(self.gpu, a)
        enter(self.gpu)
        error = extend_arena(a, n)
        leave(self.gpu)
        if error:
            out_of_device_memory(self.gpu, error, n, "gradients for other processes")
        return begin

    def fetch(self, Plane plane not None):
        """The numbers, as a new float32 array."""
        cdef float* to
        cdef float* from_ = plane.device_base()
        cdef DeviceArena* a
        cdef size_t begin
        cdef unsigned wide = 0, high = 0
        cdef Range r
        cdef int error
        found = np.empty(self.size, np.float32)
        if self.size == 0:
            return found
        to = <float*>memory_of(found, True)
        begin = self.ready()
        self.grid(&wide, &high)
        a = &arenas[self.gpu.number]
        r.device_ptr = a.base
        r.host_ptr = self.table
        r.n = begin
        with nogil:
            if not enter(self.gpu) and not send_ranges(self.gpu, &r, 1):
                launch(self.gpu, GATHER, wide, high, 256, 0, <void*><uintptr_t>a.base, <uint32_t>self.height,
                       from_, <void*><uintptr_t>(a.base + begin))
                fetch_bytes(self.gpu, to, a.base + begin, self.size * sizeof(float))
                wait(self.gpu)
            error = leave(self.gpu)
        if error:
            raise_error(self.gpu, error)
        return found

    def send(self, Plane plane not None, numbers not None):
        """Write numbers, in the order of `fetch`, back to the plane.

        Raises:
            ValueError: the number of numbers is wrong.
        """
        cdef float* to = plane.device_base()
        cdef DeviceArena* a
        cdef size_t begin
        cdef unsigned wide = 0, high = 0
        cdef Range[2] r
        cdef int error
        numbers = np.ascontiguousarray(numbers, np.float32)
        if <size_t>numbers.size != self.size:
            raise ValueError(f"FlatBuffer.send: {self.size} numbers are needed, not {numbers.size}")
        if self.size == 0:
            return
        begin = self.ready()
        self.grid(&wide, &high)
        a = &arenas[self.gpu.number]
        r[0].device_ptr = a.base
        r[0].host_ptr = self.table
        r[0].n = begin
        r[1].device_ptr = a.base + begin
        r[1].host_ptr = memory_of(numbers)
        r[1].n = self.size * sizeof(float)
        with nogil:
            if not enter(self.gpu) and not send_ranges(self.gpu, r, 2):
                launch(self.gpu, SCATTER, wide, high, 256, 0, <void*><uintptr_t>a.base, <uint32_t>self.height,
                       <void*><uintptr_t>(a.base + begin), to)
            error = leave(self.gpu)
        if error:
            raise_error(self.gpu, error)
