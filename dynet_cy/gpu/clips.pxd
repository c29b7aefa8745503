"""What devices have found in the gradients of updates; see clips.pyx."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.gpu.driver cimport Address, Gpu


cdef extern from "dynet_cy/gpu_update.h" nogil:
    ctypedef struct Clip "dy_clip":
        double norm
        uint32_t done
        uint32_t dropped
        uint32_t clips
        uint32_t skipped

    uint64_t done_dropped "dy_clip_done_dropped"(const Clip* c)


# Updates under way, of a trainer that drops those that are not finite, after which it waits.
cdef enum:
    MOST_COMING = 64


cdef class Clipping:
    cdef Gpu* gpu
    cdef Address device_ptr             # the record, on the device
    cdef Clip* host_ptr                 # a copy of it after the last update that is done
    cdef uint32_t asked                 # updates
    cdef uint32_t counted               # clips that have been taken from the record
    cdef uint32_t known                 # updates that were dropped, likewise
    # Of records before this one, and not taken so far.
    cdef uint32_t n_clips
    cdef uint32_t n_dropped
    cdef uint32_t n_left_out
    cdef bint under_way                 # whether updates have been asked for since `wait`
    cdef list stored                    # parameters and tables of the last update

    cdef int report(self) except -1
    cdef list note_gradients(self)


# Raise if an update was left out since its gradients are not finite.  Whoever has waited for a device calls it.
cdef int check_updates(Gpu* gpu) except -1
