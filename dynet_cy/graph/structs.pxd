"""C structs of a graph, and tables of functions that higher layers fill in, so that graphs need not import
executors, scheduler or profiler."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Attr, Dim
from dynet_cy.core.threads cimport Flag
from dynet_cy.memory.arena cimport Arena, Array, Memory
from dynet_cy.memory.storage cimport Changes


# ==== structs =====================================================================================
#
# The C structs of a graph: nodes, batches of nodes that ran together, and the graph that owns them.

cdef extern from "dynet_cy/graph.h" nogil:
    # derived: constants of COMPUTED, WANTED, LIVE, NEEDS_GRAD, TRAINABLE, SHARED, DROPPED, SENT, NO_BATCH, NO_NODE,
    #     REVERT_BITS, RUNNING = DY_GRAPH_RUNNING, ONE, STACKED, FLATTENED, COLUMNS, EACH, PIECES, TILES, VIEWS, COPIES,
    #     IN_CELL, CELL, IN_FUSION, FUSION, GRAPH_ARENAS, GRAPH_ARRAYS, TRANSIENT, MOVABLE, WHY_HELD,
    #     WHY_RESULT, WHY_ONCE, WHY_SMALL, WHY_READ, WHY_REQUESTED, WHY_BESIDE, WHY_VIEW
    int COMPUTED "DY_COMPUTED"
    int WANTED "DY_WANTED"
    int LIVE "DY_LIVE"
    int NEEDS_GRAD "DY_NEEDS_GRAD"
    int TRAINABLE "DY_TRAINABLE"
    int SHARED "DY_SHARED"
    int DROPPED "DY_DROPPED"
    int SENT "DY_SENT"
    uint32_t NO_BATCH "DY_NO_BATCH"
    uint32_t NO_NODE "DY_NO_NODE"
    int REVERT_BITS "DY_REVERT_BITS"
    uint64_t RUNNING "DY_GRAPH_RUNNING"
    int ONE "DY_ONE"
    int STACKED "DY_STACKED"
    int FLATTENED "DY_FLATTENED"
    int COLUMNS "DY_COLUMNS"
    int EACH "DY_EACH"
    int PIECES "DY_PIECES"
    int TILES "DY_TILES"
    int VIEWS "DY_VIEWS"
    int COPIES "DY_COPIES"
    int IN_CELL "DY_IN_CELL"
    int CELL "DY_CELL"
    int IN_FUSION "DY_IN_FUSION"
    int FUSION "DY_FUSION"
    int GRAPH_ARENAS "DY_GRAPH_ARENAS"
    int GRAPH_ARRAYS "DY_GRAPH_ARRAYS"
    int TRANSIENT "DY_TRANSIENT"
    int MOVABLE "DY_MOVABLE"
    int WHY_HELD "DY_WHY_HELD"
    int WHY_RESULT "DY_WHY_RESULT"
    int WHY_ONCE "DY_WHY_ONCE"
    int WHY_SMALL "DY_WHY_SMALL"
    int WHY_READ "DY_WHY_READ"
    int WHY_REQUESTED "DY_WHY_REQUESTED"
    int WHY_BESIDE "DY_WHY_BESIDE"
    int WHY_VIEW "DY_WHY_VIEW"
    # end of constants
    # derived: functions of bint same_renewal, value_arrives, value_leaves
    bint same_renewal "dy_same_renewal"(uint64_t a, uint64_t b)
    void value_arrives "dy_value_arrives"(uint8_t* state)
    void value_leaves "dy_value_leaves"(uint8_t* state)
    # end of functions
    enum:
        FORMS "DY_FORMS"                            # how many: the size of an array
    # derived: structs of Node, Laid, Batch, Absorbed, Region, Draws, Stretch, Room, Read, Assumed, Graph
    ctypedef struct Node "dy_node":
        uint32_t op
        uint32_t item_count
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
        size_t bytes
        float* aside

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
        uint32_t cell
        uint32_t live
        uint8_t level
        uint8_t planned
        uint8_t joint
        uint8_t keeps
        uint16_t lifetime
        uint8_t why
        uint32_t reader
        uint32_t last
        uint32_t again
        uint32_t parts
        float* dy

    ctypedef struct Absorbed "dy_absorbed":
        uint32_t part
        uint32_t sum
        uint32_t factor

    ctypedef struct Region "dy_region":
        uint32_t first
        uint32_t end

    ctypedef struct Draws "dy_draws":
        uint64_t seed
        uint64_t stream

    ctypedef struct Stretch "dy_stretch":
        uint32_t first
        uint32_t end
        uint32_t depth
        uint8_t resident
        size_t scratch
        size_t scratch_end
        Draws draws

    ctypedef struct Room "dy_room":
        char* block
        size_t bytes
        char* p
        size_t used
        size_t reserved
        uint8_t begun

    ctypedef struct Read "dy_read":
        const Changes* changes
        Changes before

    ctypedef struct Assumed "dy_assumed":
        double margin
        uint32_t columns
        uint8_t keeps_least

    ctypedef struct Graph "dy_graph":
        Array arrays[15]
        Array nodes
        Array args
        Array items
        Array state
        Array order
        Array batches
        Array uses
        Array held
        Array absorbed
        Array devices
        Array origins
        Array regions
        Array stretches
        Array reads
        Array free_values
        Array free_gradients
        Arena arenas[4]
        Arena values
        Arena grads
        Arena scratch
        Arena tables
        Memory memory
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
        uint32_t n_passes
        int device
        uint8_t finishes
        uint8_t multi_device
        uint8_t whole_gradients
        uint8_t stale_gradients
        uint8_t has_empty
        uint8_t may_raise
        uint8_t referred_to
        void* device_graphs
        uint64_t shortages
        void* plans
        void* speculation
        uint32_t early
        uint32_t n_kept
        uint8_t has_dropped
        uint32_t keeps_for
        uint8_t may_donate
        uint8_t has_donated
        uint8_t donates
        uint32_t spares_for
        Room room
        uint8_t is_torn
        uint64_t again_ns
        size_t missing
        Assumed assumed
    # end of structs

    # derived: constants of KEEPS_ASKED, KEEPS_FACTORS, MAY_DONATE, DONATED, SPARED, AGAIN, FOR_NOW, IN_STRETCH, CUT,
    #     STRIPPED, RESIDENT
    int KEEPS_ASKED "DY_KEEPS_ASKED"
    int KEEPS_FACTORS "DY_KEEPS_FACTORS"
    int MAY_DONATE "DY_MAY_DONATE"
    int DONATED "DY_DONATED"
    int SPARED "DY_SPARED"
    int AGAIN "DY_AGAIN"
    int FOR_NOW "DY_FOR_NOW"
    int IN_STRETCH "DY_IN_STRETCH"
    int CUT "DY_CUT"
    int STRIPPED "DY_STRIPPED"
    int RESIDENT "DY_RESIDENT"
    # end of constants
    # derived: constants of MOST_DEPTH
    int MOST_DEPTH "DY_MOST_DEPTH"
    # end of constants
    # derived: functions of nodes_of = dy_nodes, state_of = dy_state, order_of = dy_order, batches_of = dy_batches,
    #     device_of = dy_device, args_of = dy_args, items_of = dy_items, origin_of = dy_origin, value_of = dy_value
    Node* nodes_of "dy_nodes"(const Graph* g)
    uint8_t* state_of "dy_state"(const Graph* g)
    uint32_t* order_of "dy_order"(const Graph* g)
    Batch* batches_of "dy_batches"(const Graph* g)
    int device_of "dy_device"(const Graph* g, uint32_t node)
    uint32_t* args_of "dy_args"(const Graph* g, const Node* x)
    uint32_t* items_of "dy_items"(const Graph* g, const Node* x)
    uint32_t origin_of "dy_origin"(const Graph* g, uint32_t node)
    float* value_of "dy_value"(const Node* x)
    # end of functions


# The parameters of a node besides its arguments.  All zero, as from `no_extra`, except those that an op sets.
cdef struct Extra:
    Attr attrs[4]
    const uint32_t* items
    uint32_t n_items
    uint32_t item_count
    void* object
    uint8_t state
    float* val
    int device                      # 1 + the number of the device that was requested; 0: none was


cdef inline Extra no_extra() noexcept nogil:
    cdef Extra extra
    memset(&extra, 0, sizeof(Extra))
    return extra


cdef extern from "dynet_cy/liveness.h" nogil:
    # derived: structs of Use
    ctypedef struct Use "dy_use":
        void* holder
        uint32_t consumers
    # end of structs

    # derived: functions of uses_of = dy_uses, holder_in = dy_holder, set_holder, claim_values, unclaim_values,
    #     drop_unneeded, release_arguments, n_holes
    Use* uses_of "dy_uses"(const Graph* g)
    void* holder_in "dy_holder"(const Use* use)
    void set_holder "dy_set_holder"(Use* use, void* x)
    void* claim_values "dy_claim_values"(Graph* g, size_t bytes)
    void unclaim_values "dy_unclaim_values"(Graph* g, void* p, size_t bytes, size_t top)
    void drop_unneeded "dy_drop_unneeded"(Graph* g, uint32_t i)
    void release_arguments "dy_release_arguments"(Graph* g, const Batch* batch)
    size_t n_holes "dy_n_holes"(const Array* holes)
    # end of functions


cdef extern from "dynet_cy/gradients.h" nogil:
    # derived: functions of hold_node, let_node_go, held_of = dy_held, home_of = dy_home,
    #     gradient_of_node = dy_gradient, bint is_gradient_gone, join_gradients, part_gradients, bint are_joint,
    #     keep_gradient, keep_held_gradients, begin_gradients
    void hold_node "dy_hold_node"(Graph* g, uint32_t i)
    void let_node_go "dy_let_node_go"(Graph* g, uint32_t i)
    uint8_t* held_of "dy_held"(const Graph* g)
    uint32_t home_of "dy_home"(const Graph* g, const Node* x)
    float* gradient_of_node "dy_gradient"(const Graph* g, const Node* x)
    bint is_gradient_gone "dy_is_gradient_gone"(const Graph* g, const Node* x)
    void join_gradients "dy_join_gradients"(Graph* g, uint32_t first, uint32_t last, int begun)
    void part_gradients "dy_part_gradients"(Graph* g, uint32_t b)
    bint are_joint "dy_are_joint"(const Graph* g, uint32_t first, uint32_t last)
    void keep_gradient "dy_keep_gradient"(Graph* g, uint32_t i)
    void keep_held_gradients "dy_keep_held_gradients"(Graph* g)
    void begin_gradients "dy_begin_gradients"(Batch* batch)
    # end of functions
    # derived: structs of Spare
    ctypedef struct Spare "dy_spare":
        char* p
        size_t bytes
    # end of structs

    # derived: functions of bint take_spare, bint leave_spare, bint open_gradients, bint claim_gradients, claim_memory,
    #     claim_again, free_reserved, free_memory, done_with, first_joint, last_joint, gradient_bytes
    bint take_spare "dy_take_spare"(Batch* batch, Spare* spare)
    bint leave_spare "dy_leave_spare"(const Graph* g, Batch* batch, Spare* spare)
    bint open_gradients "dy_open_gradients"(Graph* g, int whole)
    bint claim_gradients "dy_claim_gradients"(Graph* g, Batch* batch)
    void* claim_memory "dy_claim_memory"(Graph* g, size_t bytes, int lasting)
    void* claim_again "dy_claim_again"(Graph* g, size_t bytes)
    void free_reserved "dy_free_reserved"(Graph* g)
    void free_memory "dy_free_memory"(Graph* g, void* p, size_t bytes)
    Batch* done_with "dy_done_with"(Batch* batch)
    Batch* first_joint "dy_first_joint"(Batch* batch)
    Batch* last_joint "dy_last_joint"(Batch* batch)
    size_t gradient_bytes "dy_gradient_bytes"(const Batch* first, const Batch* last)
    # end of functions
    # derived: constants of IN_ANY_ORDER, IN_ORDER, MOST_PIECES
    int IN_ANY_ORDER "DY_IN_ANY_ORDER"
    int IN_ORDER "DY_IN_ORDER"
    int MOST_PIECES "DY_MOST_PIECES"
    # end of constants
    # derived: functions of bint is_donatable, donate, lie_over
    bint is_donatable "dy_is_donatable"(const Batch* batch)
    void donate "dy_donate"(Graph* g, Batch* batch)
    void lie_over "dy_lie_over"(Graph* g, Batch* batch)
    # end of functions


cdef extern from "dynet_cy/dropping.h" nogil:
    # derived: functions of regions_of = dy_regions, n_regions, stretches_of = dy_stretches, n_stretches,
    #     bint is_dropped, bint add_region, cut_regions
    Region* regions_of "dy_regions"(const Graph* g)
    uint32_t n_regions "dy_n_regions"(const Graph* g)
    Stretch* stretches_of "dy_stretches"(const Graph* g)
    uint32_t n_stretches "dy_n_stretches"(const Graph* g)
    bint is_dropped "dy_is_dropped"(const Graph* g, uint32_t node)
    bint add_region "dy_add_region"(Graph* g, uint32_t first, uint32_t end)
    void cut_regions "dy_cut_regions"(Graph* g)
    # end of functions
    # derived: structs of Hole, Block
    ctypedef struct Hole "dy_hole":
        char* at
        size_t bytes

    ctypedef struct Block "dy_block":
        Hole* holes
        size_t n
        size_t end
    # end of structs

    # derived: functions of block_bytes, take_in_block, give_to_block, claim_kept, drop_values, strip, end_of_room,
    #     drop_stretches, forget_stretches, cut_stretches
    size_t block_bytes "dy_block_bytes"(size_t bytes)
    size_t take_in_block "dy_take_in_block"(Block* block, size_t bytes)
    void give_to_block "dy_give_to_block"(Block* block, size_t at, size_t bytes)
    void* claim_kept "dy_claim_kept"(Graph* g, const Batch* batch)
    void drop_values "dy_drop_values"(Graph* g, const Batch* batch)
    void strip "dy_strip"(Batch* batch)
    size_t end_of_room "dy_end_of_room"(const Graph* g)
    void drop_stretches "dy_drop_stretches"(Graph* g, uint32_t n)
    void forget_stretches "dy_forget_stretches"(Graph* g)
    void cut_stretches "dy_cut_stretches"(Graph* g, uint32_t n_batches, size_t values_top)
    # end of functions


# ==== hooks =======================================================================================
#
# Tables of functions that higher layers fill in, so that graphs need not import executors, scheduler or profiler.

# How values are computed: filled in by executors.
cdef struct Engine:
    int (*forward)(Graph* g, const uint32_t* targets, uint32_t n, int strategy) except -1
    int (*backward)(Graph* g, uint32_t target, bint full) except -1
    # For graphs with nodes on a device: copy n floats at v, in an arena of the graph, from the device.
    int (*fetch)(Graph* g, int device, float* v, size_t n) except -1
    void (*close)(Graph* g) noexcept
    void (*closed)(Graph* g) noexcept nogil     # frees the data kept for the graph

cdef Engine* engine() noexcept nogil

# Hooks that choose values to compute along with the requested one: schedule/speculation fills them in, and explains the
# choice.
cdef struct Speculation:
    # The targets of a pass for one requested value, which is the first of them.
    uint32_t (*ask)(Graph* g, const uint32_t* target, const uint32_t** targets) noexcept nogil
    # A computed value was requested; called if g.early is not 0.
    void (*asked)(Graph* g, uint32_t node) noexcept nogil
    # A pass for several values has failed, and the first one will be computed alone.
    void (*failed)(Graph* g) noexcept nogil
    # Nodes from this number on, or their values, were dropped; `forget`: drop the statistics of requests too.
    void (*cut)(Graph* g, uint32_t n_nodes, bint forget) noexcept nogil
    # Nodes have new numbers; 0xFFFFFFFF for a dropped one.
    void (*renumber)(Graph* g, const uint32_t* numbers) noexcept nogil

cdef Speculation* speculation_hooks() noexcept

# Called around each pass while profiling is on: filled in by watch/instruments.
cdef struct PassHooks:
    Flag on
    uint64_t (*begin_pass)() noexcept nogil
    # A pass for `targets` values, perhaps of the items of a batched map, computed this many nodes.
    void (*end)(Graph* g, uint32_t targets, uint32_t nodes, bint of_map, uint64_t begun) noexcept

cdef PassHooks* pass_hooks() noexcept
