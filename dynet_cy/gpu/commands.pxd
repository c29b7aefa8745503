"""Passes on a device: the commands of a pass, and the walk that lists them.

The walk over batches (execute/walk, execute/gradients) calls the functions of a GPU, which append commands to a pass.
Tables that the device reads (items, lists of pointers, moves) and inputs are collected.  Then `run_pass` of gpu/passes
sends these in one upload and runs the commands.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

from dynet_cy.core.tensor cimport Call
from dynet_cy.execute.walk cimport Form, Walk
from dynet_cy.gpu.graphs cimport ARENAS, DeviceGraph
from dynet_cy.graph.structs cimport Batch, Graph, Node, nodes_of, order_of
from dynet_cy.memory.arena cimport Arena


cdef extern from "dynet_cy/gpu_move.h" nogil:
    # derived: structs of Move
    ctypedef struct Move "dy_move":
        const float* source
        float* to
        size_t n
        uint32_t next
        float scale
        uint8_t acc
        uint8_t follower
        uint8_t unused[2]
        uint32_t period
    # end of structs

cdef enum:
    # p: an array of `count` Moves, the longest of which has n numbers; `table`: the same on the host; `cols` as below
    MOVES
    FILL                            # n numbers at p become x
    FORWARD
    SUMS_ONLY                       # the part of FORWARD that is not elementwise
    BEGIN
    BACKWARD                        # of argument i
    PRODUCT                         # C += A B': A and B are `left` and `right`
    # Kernel i over the table p of `rows` cells with n numbers.  `cols`: the bytes of p if it is a small table, which
    # stays on the host and is passed by value; otherwise 0.  `table`: of LSTM cells, the table on the host.
    CELLS

cdef struct Command:
    Command* next
    int kind
    uint32_t i
    uint32_t nodes                  # for the profile: how many nodes ran
    uint32_t batch                  # number of the batch that the command belongs to, or NO_BATCH
    uint32_t section                # as in the walk
    uint32_t member
    uint32_t first                  # for a call: where its nodes begin in graph.order, and how many there are
    uint32_t members
    uint16_t op
    float* p
    size_t n
    size_t rows
    size_t cols
    const float* left
    const float* right
    const void* table
    bint back
    float x
    uint32_t count
    const uint32_t* items           # of the call, on the host
    Call call

# A segment of an arena of the graph, on the host and on the device.
cdef struct Window:
    uintptr_t here
    size_t n
    uintptr_t there

cdef enum:
    MOST_WRITTEN = 64               # calls of a section that write gradients
    WINDOWS = 2 * ARENAS            # first the last one of each arena, then those before these

# How far the segment of an arena that is in use was noted to be needed on the device.
cdef struct Noted:
    uintptr_t origin                # of the arena, which differs between segments
    size_t top                      # 0: nothing was noted

# A move that runs at the beginning of a pass.
cdef struct EarlyMove:
    EarlyMove* next
    Move move

# A pass that is being listed.
cdef struct Pass:
    Walk walk                       # must be first: a pointer to it is also a pointer to the pass
    DeviceGraph* d
    Window[WINDOWS] windows         # the segments that were translated last
    Command* first
    Command** end
    uint64_t modules
    uint32_t missing                # 1 + the number of an op without a GPU op; 0: none
    bint missing_gradient
    size_t values_needed            # device memory that the pass needs
    size_t scratch_needed
    Noted scratch_noted
    Noted grads_noted
    size_t values_from              # where the arenas ended when it began
    size_t scratch_from
    size_t tables_from
    uint64_t* seeds                 # seed and stream of random ops, in the tables; NULL: none so far
    uint32_t n_moves                # of the group that is being collected
    uint32_t n_copied               # equal to it if the last move is a copy, which may be extended
    size_t longest
    size_t most_scratch             # so much working memory may pending additions hold
    uint32_t group                  # number of the group's first move; moves of all groups are numbered in one sequence
    size_t collected_bytes          # of gradients that are kept as factors
    size_t most_columns             # of one of the products that will be made of them
    EarlyMove* early                # the last one that was listed
    uint32_t n_early
    uint8_t* done                   # by number of a batch: this pass has computed it backward with others; NULL: none
    uint32_t* cell_of               # by number of a node: the last cell whose state before it is
    void* contributions             # by number of a node: what these do with its gradient
    uint32_t written_in             # the section whose calls have written the listed gradients
    uint32_t n_written
    uintptr_t[MOST_WRITTEN] written
    uint32_t* last_move             # by number of a node: the number of the last move to its gradient; 0: none


cdef inline Node* first_of(const Graph* g, const Batch* batch) noexcept nogil:
    """The first node of a batch."""
    return &nodes_of(g)[order_of(g)[batch.first]]


# End the list of commands: pending moves, and those that run first.
cdef int end_commands(Pass* s) noexcept nogil
# The table of forms, for modules that add forms.
cdef Form* device_forms() noexcept nogil
# For functions of forms.
# Copy n numbers on the device to the value of the running batch, a pointer on the host, before the next command that
# reads it.
cdef int copy_later(Pass* s, float* to, const float* source, size_t n) noexcept nogil
# Memory for a table of so many bytes, on the device or, if it is small, on the host; let it be that of a command.
cdef void* allocate_lines(Pass* s, size_t bytes) noexcept nogil
cdef void set_lines(Pass* s, Command* c, void* table, size_t bytes) noexcept nogil
# A table of so many bytes, all 0, in which a pass makes notes, unless there is one.
cdef int make_table(Pass* s, void** table, size_t bytes) noexcept nogil
# Batches that are computed with others: the form in which one runs alone; let it; what it does forward if another one
# computes it; note that another one has computed some backward.
cdef uint32_t form_alone(const Graph* g, const Batch* batch) noexcept nogil
cdef int forward_alone(Walk* w, Batch* batch) noexcept nogil
cdef int backward_alone(Walk* w, Batch* batch) noexcept nogil
cdef int waiting_forward(Walk* w, Batch* batch, uint32_t n) noexcept nogil
cdef int note_done(Pass* s, uint32_t first, uint32_t n) noexcept nogil
# Append a command; the device address for a pointer into an arena of the graph.
cdef Command* add_command(Pass* s, int kind) noexcept nogil
cdef float* on_device(Pass* s, const void* p) noexcept nogil
cdef void begin_pass(Pass* s, Graph* g, DeviceGraph* d) noexcept nogil
