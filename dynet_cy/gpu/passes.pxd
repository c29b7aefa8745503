"""Passes over a graph on a device: commands that are listed first, and then run.

The first part of a pass lays out batches and lists what is to be done; tables
that the device reads (items, lists of places, moves of numbers) and inputs are
collected.  The second part sends these in one upload and runs the commands: it
launches kernels and waits for nothing.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from dynet_cy.core.tensor cimport Call, Tensor
from dynet_cy.execute.cpu cimport Failure
from dynet_cy.gpu.driver cimport Gpu
from dynet_cy.gpu.graphs cimport DeviceGraph
from dynet_cy.graph.graph cimport STACKED, Batch, Graph, Node
from dynet_cy.memory.arena cimport Arena
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors


cdef extern from "dynet_cy/gpu_move.h" nogil:
    ctypedef struct Move "dy_move":
        const float* source
        float* to
        size_t n
        uint32_t next
        float scale
        uint8_t acc
        uint8_t follower

cdef enum:
    MOVES                           # p: Moves, count of them, the longest has n numbers
    FILL                            # n numbers at p become x
    FORWARD
    BEGIN
    BACKWARD                        # of argument i
    PRODUCT                         # C += A B': call.x[0], call.x[1] and n

cdef struct Command:
    Command* next
    int kind
    uint32_t i
    uint32_t nodes                  # for the profile: how many ran
    uint32_t batch                  # number of the batch that it is part of, or NO_BATCH
    uint32_t first                  # of a call: where its nodes begin in graph.order, and how many there are
    uint32_t members
    uint16_t op
    float* p
    size_t n
    size_t rows
    size_t cols
    const float* left
    const float* right
    float x
    uint32_t count
    const uint32_t* items           # of the call, on the host
    Call call

# Factors of a parameter's gradient that wait for the end of the pass.
cdef struct Waiting:
    Waiting* next
    Param* p
    Waiting* more                   # of the same parameter
    Waiting* last
    Factors product
    size_t n                        # of all


# ---- backward ------------------------------------------------------------------------

# A pass in the making.
cdef struct Pass:
    Graph* g
    DeviceGraph* d
    Command* first
    Command** end
    uint64_t modules
    uint32_t missing                # number of an op that has no GPU op + 1
    bint missing_gradient
    size_t values_needed            # of the device, for the pass
    size_t scratch_needed
    size_t tables_from
    uint64_t* seeds                 # seed and stream of what is drawn, in the tables; NULL: nothing so far
    Move* moves                     # of the group that is being collected
    uint32_t n_moves
    size_t longest
    uint32_t group                  # where the numbers of its moves begin, among those of all groups
    bint handing_out                # the group stays open for further arguments of a call
    uint32_t* place                 # by number of a node: its last move, as one of all groups
    Waiting* waiting
    uint32_t batch                  # that commands are being listed for, or NO_BATCH
    Failure failure


cdef inline uint32_t uses_in(const Batch* batch, const Node* a, const Node* y) noexcept nogil:
    """How many times an argument is laid down for a node: once, or for each batch element that it serves."""
    return y.dim.bd if batch.form == STACKED and a.dim.bd == 1 else 1


cdef void begin_pass(Pass* s, Graph* g, DeviceGraph* d) noexcept nogil
cdef int run_pass(Pass* s, str what) except -1
# Load what all passes need.  That runs Python, and so perhaps handlers of signals: what can't be taken back comes
# after it.
cdef int load_moves(Gpu* gpu) except -1
cdef int raise_pass_failure(Pass* s, str what) except -1

# Room in an arena, NULL after a failure that is noted; `scratch` in that of working memory, which the device has too.
cdef void* room(Pass* s, Arena* a, size_t n) noexcept nogil
cdef void* scratch(Pass* s, size_t n) noexcept nogil

cdef Command* add_command(Pass* s, int kind) noexcept nogil
cdef int add_fill(Pass* s, float* p, size_t n, float x) noexcept nogil
cdef int add_call(Pass* s, int kind, const Call* call, Batch* batch, uint32_t i, uint32_t nodes) noexcept nogil
cdef int lay_items(Pass* s, Batch* batch) noexcept nogil
cdef int set_device_call(Pass* s, Batch* batch, Tensor* few, Call* c) noexcept nogil

# Moves are collected between `begin_moves` and `end_moves`; nothing else goes into the tables meanwhile.
cdef void begin_moves(Pass* s) noexcept nogil
cdef Move* add_move(Pass* s, const float* source, float* to, size_t n, bint acc) noexcept nogil
cdef Move* add_move_apart(Pass* s, const float* source, float* to, size_t n, bint acc) noexcept nogil
cdef int end_moves(Pass* s) noexcept nogil
