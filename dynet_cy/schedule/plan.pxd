"""Plans: batches of nodes with equal signatures, and a cache of plans."""

from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.threads cimport Interrupts
from dynet_cy.graph.structs cimport Batch, Graph, Node, args_of, items_of, nodes_of, order_of
from dynet_cy.ops.registry cimport BATCH, SHARE, Op, op_at, rule_index, rule_of


# ==== hash ========================================================================================
#
# A hash of 32-bit words: of a few for signatures, of many for structures.

cdef extern from "dynet_cy/hash.h" nogil:
    # derived: functions of dy_hash
    uint64_t dy_hash(const uint32_t* w, size_t n)
    # end of functions


# ==== prefetch ====================================================================================
#
# Prefetches nodes and their arguments.  In a large graph they are not in the cache, and each access would stall.

cdef extern from *:
    """
    static inline void dy_prefetch_node(const dy_node *x) {
        __asm__ volatile("" : : "r"(x));        /* gcc drops a function that does nothing but prefetch */
        __builtin_prefetch(x);
        __builtin_prefetch((const char *)(x + 1) - 1);
    }
    """
    void prefetch "dy_prefetch_node"(const Node* x) nogil


cdef inline void fetch(const Graph* g, const uint32_t* ids, uint32_t n) noexcept nogil:
    cdef const Node* nodes = nodes_of(g)
    cdef const uint32_t* args
    cdef uint32_t i, j
    for j in range(n):
        prefetch(&nodes[ids[j]])
    for j in range(n):
        args = args_of(g, &nodes[ids[j]])
        for i in range(nodes[ids[j]].nargs):
            prefetch(&nodes[args[i]])


# ==== signature ===================================================================================
#
# Signatures: which nodes may run as one call.
#
# Two nodes have the same signature when their keys are equal, word for word; the
# hash only finds the key.  A key holds the op, its attributes, and for each
# argument either its shape or, if all nodes of a batch share it, its node number.
#
# Nodes of ragged ops that differ only in sizes have related signatures, of one
# `kin`.  Such nodes wait in one queue, so that sentences of different lengths stay in step.
#
# A parameter is shared by all nodes of a signature.  But a parameter in place of a value, such as the state of an empty
# stack, is copied next to the values, and its nodes run together with those that have a value there.

cdef struct Signatures:
    uint32_t n
    uint32_t* table                 # open addressing: number of a signature + 1, or 0
    uint32_t table_size             # a power of two
    uint32_t most                   # for which there is room
    Key* keys

cdef struct Key:
    uint32_t* words
    uint32_t n_words
    uint32_t hash
    uint32_t form                   # of a batch of such nodes
    uint32_t kin                    # the signature that ignores sizes too; the signature itself if there is none
    uint32_t of_values              # that of nodes with values in place of its parameters; the signature itself: none
    uint32_t n_nodes                # how many nodes have it
    uint32_t deepest                # depth of the node that was made last
    bint rising                     # each of its nodes is deeper than the one before
    bint by_node                    # its nodes share an argument that is not a parameter

cdef int signatures_open(Graph* g, Signatures* s, uint32_t most) noexcept nogil
cdef int signature_of(Graph* g, Signatures* s, uint32_t node, uint32_t depth,
                      uint32_t* out) noexcept nogil

cdef inline bint may_be_value(const Op* op, uint32_t i) noexcept nogil:
    """Whether a parameter that is argument i may be one of several values, instead of one argument for all nodes."""
    return op.batching == BATCH and rule_of(op, i) != SHARE and not op.one_column[rule_index(i)]


# When all nodes have a signature: decide which ones run with that `of_values`.
cdef void settle_values(Signatures* s) noexcept nogil


cdef inline uint32_t queue_of(const Signatures* s, uint32_t signature) noexcept nogil:
    """Number of the signature in whose queue the nodes of a signature wait.  Call it when all nodes have a signature.

    Nodes that share an argument, and several of which may be ready at once, gain more
    from running as one call than from staying in step with nodes of other sizes.
    """
    cdef const Key* key = &s.keys[signature]
    return signature if key.by_node and not key.rising else key.kin


# Whether an argument of a node is a parameter in place of a value.
cdef bint has_parameter_value(const Graph* g, const Node* x) noexcept nogil

# The key that the nodes of one queue share, as words, and the most words of a key.
cdef size_t most_words(const Node* x) noexcept nogil
cdef uint32_t write_queue(Graph* g, uint32_t node, uint32_t* w) noexcept nogil


# ==== plan cache ==================================================================================
#
# A cache of plans: a structure that was scheduled before is not scheduled again.

# The properties of a graph on which its schedule depends, as words in the scratch arena.
cdef struct Structure:
    uint32_t* words                 # NULL: there was no memory, and nothing is cached
    size_t n_words
    uint64_t hash
    uint32_t lowest
    uint32_t count                  # nodes that are wanted

cdef void describe_structure(Graph* g, uint32_t lowest, uint32_t highest, uint32_t count,
                             int strategy, Structure* s) noexcept nogil
cdef bint plan_from_cache(Graph* g, const Structure* s) noexcept nogil
cdef void cache_plan(Graph* g, const Structure* s) noexcept nogil
cdef void drop_plan_cache(Graph* g) noexcept nogil

# A device has passes of its own over a plan (`graph.finishes`).  Whether the present plan has been through them, as it
# came from the cache; to be called after them, so that an equal structure gets what they found.
cdef bint is_finished(const Graph* g) noexcept nogil
cdef void keep_finished(Graph* g) noexcept nogil


# ==== plan ========================================================================================
#
# Plans: the nodes that values need, put into batches.
#
# A plan is written after the batches that have run: node numbers into
# `graph.order`, and a Batch for each call into `graph.batches`, with `first`,
# `count` and `form` set.  This module does not run nodes.  All functions return 0, or -1 if
# an arena is full or a signal handler has raised; `plan` returns 1 if transient values are needed, which were dropped.

# Plan the values of the targets; `as_made`: each node runs as the program made it, so that it can be looked at.
cdef int plan(Graph* g, const uint32_t* targets, uint32_t n, int strategy, bint as_made,
              uint32_t* n_batches, Interrupts* s) noexcept nogil
cdef void drop_plan(Graph* g) noexcept nogil

# Mark the targets and their uncomputed ancestors, and reserve their places in `order`.
cdef int mark_wanted(Graph* g, const uint32_t* targets, uint32_t n, uint32_t* lowest, uint32_t* highest,
                     uint32_t* count, int strategy, uint32_t* rewrites) noexcept nogil


# ---- views: results that are parts of an argument ------------------------------------------
# For example, the result of `pick_range` along the last axis is a part of its argument in memory.  If only such picks
# use the argument, their gradients are parts of its gradient too, and nothing has to be computed, forward or backward.
# Within such a batch, the nodes with the same argument follow each other.

cdef inline ptrdiff_t view_at(const Graph* g, const Node* x) noexcept nogil:
    """The offset of a node's result in its argument, in floats; -1: the result is not one piece of the argument."""
    return op_at(x.op).view(&nodes_of(g)[args_of(g, x)[0]].dim, &x.dim, x.attrs, items_of(g, x))


cdef inline uint32_t argument_of(const Graph* g, uint32_t node) noexcept nogil:
    return args_of(g, &nodes_of(g)[node])[0]


cdef inline uint32_t end_of_run(const Graph* g, const Batch* batch, uint32_t first) noexcept nogil:
    """The end of the run of nodes, from `first` on, that have the same argument."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef uint32_t j = first + 1
    while j < batch.count and argument_of(g, ids[j]) == argument_of(g, ids[first]):
        j += 1
    return j


# How many nodes are prefetched at once.
cdef enum:
    AHEAD = 64


cdef inline void fetch_from(const Graph* g, const Batch* batch, uint32_t first, uint32_t* fetched) noexcept nogil:
    """Prefetch the next nodes if `first` has not been prefetched yet."""
    if first >= fetched[0]:
        fetched[0] = min(batch.count, first + AHEAD)
        fetch(g, order_of(g) + batch.first + first, fetched[0] - first)
