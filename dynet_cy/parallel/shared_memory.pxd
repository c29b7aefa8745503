"""Memory that the processes of one machine share."""

from libc.stdint cimport uint32_t, uint64_t


cdef extern from "board.h" nogil:
    # derived: constants of DY_PAGE, DY_WHAT, DY_RUNNING, DY_WAITING, DY_ENDED
    int DY_PAGE
    int DY_WHAT
    int DY_RUNNING
    int DY_WAITING
    int DY_ENDED
    # end of constants
    # derived: structs of dy_board, dy_seat
    ctypedef struct dy_board:
        uint64_t magic
        uint64_t top
        uint32_t size
        uint32_t arrived
        uint32_t generation
        uint32_t sleepers

    ctypedef struct dy_seat:
        uint32_t arrivals
        uint32_t state
        double since
        uint32_t left
        uint32_t raised
        char what[2][48]
        char file[3968]
    # end of structs
    # derived: functions of dy_now, bint dy_arrive, bint dy_await, dy_count_up, dy_write_to_copy
    double dy_now()
    bint dy_arrive(dy_board* b, dy_seat* seat, uint32_t k, const char* what)
    bint dy_await(dy_board* b, dy_seat* seat, uint32_t k, double spin, double seconds, int round)
    uint64_t dy_count_up(uint64_t* counter, uint64_t own)
    int dy_write_to_copy(void* at, size_t size, int fd, uint64_t start)
    # end of functions


cdef class Board:
    cdef object control                 # the mapping of the first pages
    cdef dy_board* b
    cdef dy_seat* seats
    cdef char* boxes
    cdef uint32_t passed                # barriers
    cdef double spin                    # seconds
    cdef readonly int fd
    cdef readonly int size
    cdef readonly int rank              # -1: the launcher
    cdef readonly object parent         # type: int
    cdef object pid

    cdef list regions                   # [place in the file, bytes, weak reference to the mapping; None: free]

    cdef int free_regions(self, str purpose) except -1
    cdef int wait(self, const char* what, bint holds=*) except -1
