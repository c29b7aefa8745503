"""The results of clipping on devices; see clips.pyx."""

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


# A trainer that drops updates with gradients that are not finite waits if it has more updates than this under way.
cdef enum:
    MOST_COMING = 64


cdef class Clipping:
    cdef Gpu* gpu
    cdef Address device_ptr             # the record, on the device
    cdef Clip* host_ptr                 # a copy of the record as of the last finished update
    cdef uint32_t asked                 # number of updates that were requested
    cdef uint32_t counted               # clips in the record that have been reported
    cdef uint32_t known                 # dropped updates in the record that have been reported
    # Counts from before the record was last reset that have not been reported yet.
    cdef uint32_t n_clips
    cdef uint32_t n_dropped
    cdef uint32_t n_left_out
    cdef bint under_way                 # whether updates have been asked for since `wait`
    cdef list stored                    # parameters and tables of the last update

    cdef int report(self) except -1
    cdef list note_gradients(self)


# Raise an error if an update was left out because its gradients are not finite.  To be called after each wait for the
# device.
cdef int check_updates(Gpu* gpu) except -1
