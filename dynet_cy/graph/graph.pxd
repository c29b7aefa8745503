"""Graphs and expressions.

A ComputationGraph owns the C graph and all that is in it.  An Expression owns
nothing: it is the number of a node and the renewal of the graph that the node
belongs to, checked on each use.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from dynet_cy.core.tensor cimport Attr, Dim, Tensor
from dynet_cy.memory.arena cimport Arena, Array
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Op


cdef extern from "dynet_cy/graph.h" nogil:
    int COMPUTED "DY_COMPUTED"
    int WANTED "DY_WANTED"
    int LIVE "DY_LIVE"
    int NEEDS_GRAD "DY_NEEDS_GRAD"
    int TRAINABLE "DY_TRAINABLE"
    int SHARED "DY_SHARED"
    int DROPPED "DY_DROPPED"
    uint32_t NO_BATCH "DY_NO_BATCH"
    int SENT "DY_SENT"

    int STACKED "DY_STACKED"
    int FLATTENED "DY_FLATTENED"
    int COLUMNS "DY_COLUMNS"
    int EACH "DY_EACH"

    ctypedef struct Node "dy_node":
        uint16_t op
        uint16_t item_count
        uint32_t nargs
        uint32_t args
        uint32_t items
        Attr attrs[4]
        Dim dim
        uint32_t batch
        float* val
        void* object

    ctypedef struct Laid "dy_laid":
        float* v
        float** list

    ctypedef struct Batch "dy_batch":
        uint32_t first
        uint32_t count
        uint32_t bd
        uint32_t form
        Laid* x
        uint32_t* items
        float* y
        float* saved
        float** saved_of
        size_t bytes
        uint32_t live

    int GRAPH_ARENAS "DY_GRAPH_ARENAS"
    int GRAPH_ARRAYS "DY_GRAPH_ARRAYS"

    ctypedef struct Graph "dy_graph":
        Array arrays[10]
        Array nodes
        Array args
        Array items
        Array state
        Array order
        Array batches
        Array uses
        Array holes
        Array devices
        Array origins
        Arena arenas[4]
        Arena values
        Arena grads
        Arena scratch
        Arena tables
        uint64_t shortages
        uint32_t n_nodes
        uint32_t n_batches
        uint32_t n_order
        uint32_t slot
        uint64_t version
        uint64_t renewal
        uint64_t stream
        uint32_t draws
        uint64_t draw_key
        uint32_t stream_number
        uint32_t n_renewals
        uint32_t n_forgets
        int strategy
        uint8_t immediate
        uint8_t check_validity
        uint8_t forward_only
        uint8_t aside
        uint32_t compact_at
        int backward_from
        uint32_t forward_ms
        int device
        uint8_t multi_device
        void* device_graphs
        void* plans
        void* beside
        uint32_t early

    Node* nodes_of "dy_nodes"(const Graph* g)
    uint8_t* state_of "dy_state"(const Graph* g)
    uint32_t* order_of "dy_order"(const Graph* g)
    Batch* batches_of "dy_batches"(const Graph* g)
    int MOVABLE "DY_MOVABLE"
    int device_of "dy_device"(const Graph* g, uint32_t node)
    uint32_t* args_of "dy_args"(const Graph* g, const Node* x)
    uint32_t* items_of "dy_items"(const Graph* g, const Node* x)
    uint32_t origin_of "dy_origin"(const Graph* g, uint32_t node)
    bint open_gradients "dy_open_gradients"(Graph* g)
    float* gradient_at "dy_gradient"(const Graph* g, const float* v)
    float* value_of "dy_value"(const Node* x)


cdef extern from "dynet_cy/liveness.h" nogil:
    ctypedef struct Use "dy_use":
        void* holder
        uint32_t consumers

    Use* uses_of "dy_uses"(const Graph* g)
    void* take_values "dy_take_values"(Graph* g, size_t bytes)
    void untake_values "dy_untake_values"(Graph* g, void* p, size_t bytes, size_t top)
    void free_value "dy_free_value"(Graph* g, Node* x)
    void drop_unneeded "dy_drop_unneeded"(Graph* g, uint32_t i)
    void release_arguments "dy_release_arguments"(Graph* g, const Batch* batch)


cdef class Expression:
    cdef uint64_t version
    cdef uint32_t slot
    cdef uint32_t index

    # Bring `version`, `slot` and `index` to a node of the current graph, or raise.
    cdef int enter(self) except -1
    cdef Graph* graph(self) except NULL


# Who collects requests for values: `fibers` does.
cdef class Requests:
    # Let the running item wait until an expression, or each of a list, is computed; False where no item is running.
    cdef bint wait_for(self, object wanted) except -1
    # Whether an item is running, and nobody else who uses its graph.
    cdef bint inside(self) except -1


cdef class ComputationGraph:
    cdef Graph g
    cdef dict keep                  # storages of its parameters: number of changes at the last backward, or None
    cdef tuple given                # what given.pyx has found out about the last backward, once asked for
    cdef uint32_t n_at_backward     # nodes at the last backward; 0: there was none
    cdef bint warned                # of growth across updates
    cdef dict leaves                # (id of a parameter, trainable): number of its node
    cdef list checkpoints
    cdef list reverts               # (revert number, nodes left), rising in both
    cdef Requests requests          # who collects requests for values, while a batched map runs; else None

    cdef int warn_of_growth(self) except -1
    cdef int note_values(self) except -1
    cdef bint values_changed(self) except -1

# The parameters of a node beside its arguments.  All zero but what an op sets.
cdef struct Extra:
    Attr attrs[4]
    const uint32_t* items
    uint32_t n_items
    uint32_t item_count
    void* object
    uint8_t state
    float* val
    int device                      # 1 + the number of the device that was asked for; 0: none was

cdef uint32_t add_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n,
                       Extra* extra) except? 0xFFFFFFFF
cdef Expression wrap(Graph* g, uint32_t index)


cdef inline uint32_t number_in(Graph* g, Expression x) except? 0xFFFFFFFF:
    """The number of an expression in the current graph `g`."""
    if x.version != g.version:
        x.enter()
    return x.index


cdef Expression apply1(const Op* op, object x)
cdef Expression apply2(const Op* op, object a, object b)
cdef Expression apply1x(const Op* op, object x, Extra* extra)
cdef Expression apply2x(const Op* op, object a, object b, Extra* extra)
cdef Expression apply(const Op* op, object xs, Extra* extra)
cdef Expression expression(object x, str function, str name)
cdef list sequence(object xs, const char* function)
cdef Expression leaf(const Op* op, const Dim* dim, Extra* extra)
cdef uint32_t leaf_index(const Op* op, const Dim* dim, Extra* extra) except? 0xFFFFFFFF
cdef Graph* current_graph() except NULL
cdef ComputationGraph current()
cdef const Dim* dim_of(Expression x) except NULL
cdef tuple shape_of(const Dim* d)
cdef tuple full_shape(const Dim* d)
cdef object doubles_of(const float* v, tuple shape)
# Compute expressions of one graph together; `op` is for messages.
cdef list compute_all(object expressions, str op, bint recalculate)
cdef object gradient_of(Graph* g, uint32_t index, uint8_t state)
cdef float* parameter_here(Param* p, bint gradient) except? NULL
cdef float* place(size_t n) except NULL
# The value of a computed node, after it was fetched where it is on a device.
cdef float* value_here(Graph* g, Node* x) except? NULL
cdef float* parameter_here(Param* p, bint gradient) except? NULL
cdef int forget(Graph* g) except -1
cdef str describe_dim(const Dim* d)

# What an argument of an op is called, and where a node comes from: its op, or the name of the parameter.
cdef list argument_names(const Op* op, uint32_t n)
cdef str source_of_node(const Graph* g, uint32_t index)
# ", made at train.py:17 in loss", where that is recorded, or ""; also "" for parameters.
cdef str made_at(const Graph* g, uint32_t index)

# Operators on expressions: filled by the family of each.
ctypedef object (*OperatorHook)(object a, object b)

cdef enum:
    OPERATOR_ADD
    OPERATOR_SUB
    OPERATOR_MUL
    OPERATOR_DIV
    OPERATOR_POW
    OPERATOR_NEG
    OPERATOR_MATMUL
    OPERATOR_LESS
    OPERATOR_LESS_EQUAL
    OPERATOR_GREATER
    OPERATOR_GREATER_EQUAL
    OPERATOR_COUNT

cdef int set_operator(int which, OperatorHook hook) except -1
cdef int lock_graph(Graph* g) except -1
cdef void unlock_graph(Graph* g) noexcept nogil

# How values are computed: filled by executors, so that graphs need none.
cdef struct Engine:
    int (*forward)(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1
    int (*backward)(Graph* g, uint32_t target, bint full) except -1
    # For graphs with nodes on a device: n floats at v, in an arena of the graph, as they are there.
    int (*fetch)(Graph* g, int device, float* v, size_t n) except -1
    void (*close)(Graph* g) noexcept
    void (*closed)(Graph* g) noexcept nogil     # frees what was kept for the graph

cdef enum:
    ENGINE_CPU
    ENGINE_GPU
    ENGINE_MULTI_DEVICE             # nodes on several devices
    ENGINE_COUNT

cdef Engine* engine(int kind) noexcept
cdef Engine* engine_of(const Graph* g) noexcept

# Which values are computed beside the one that is asked for: filled by schedule/beside, which says how.
cdef struct Beside:
    # The targets of a pass for one value that is not computed; it is the first of them.
    uint32_t (*ask)(Graph* g, const uint32_t* target, const uint32_t** targets) noexcept nogil
    # A value that is computed was asked for, where g.early is not 0.
    void (*asked)(Graph* g, uint32_t node) noexcept nogil
    # A pass for several values has failed, and the first one will be computed alone.
    void (*failed)(Graph* g) noexcept nogil
    # Nodes from this number on, or their values, are gone; what is learned goes too if that is said.
    void (*cut)(Graph* g, uint32_t n_nodes, bint forget) noexcept nogil
    # Nodes have new numbers, or 0xFFFFFFFF.
    void (*renumber)(Graph* g, const uint32_t* numbers) noexcept nogil

cdef Beside* beside_hooks() noexcept

# Called around each pass while profiling is on: filled by execute/profile.
cdef struct PassHooks:
    bint on
    uint64_t (*begin)() noexcept nogil
    # A pass ran for so many values, perhaps of the items of a batched map, and computed so many nodes.
    void (*end)(Graph* g, uint32_t targets, uint32_t nodes, bint of_map, uint64_t begun) noexcept

cdef PassHooks* pass_hooks() noexcept

# 1 + the number of the device of that name, 0 for "": what Extra has.
cdef int asked_device(object name, str where) except -1
