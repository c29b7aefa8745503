"""Rewrites: sums of products that run as one op, instead of an op for each product and each sum."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.core.threads cimport Number
from dynet_cy.graph.structs cimport NO_NODE, Graph, Node
from dynet_cy.ops.registry cimport Op


# ==== rewrite =====================================================================================
#
# A rewrite is found in the nodes that a plan needs, before they are put into batches.  Its sum then computes what nodes
# below it did, which it has absorbed: they have no value of their own, unless one is requested, and the gradient of the
# sum is theirs too (`Absorbed` in graph.h).  A node is absorbed only if nothing else uses it.  Nodes made before the
# last checkpoint are not changed.
#
# The rows of the table stand in the modules of the resulting ops: a call of `add_rewrite` with the op and a pattern.
# Patterns know ops by their roles (op.h) only.

# Results with at least this many floats are long: elementwise ops may be called for the adjacent pieces of a batch
# instead of gathering them, since a call costs about as much as copying this many floats in and out.
cdef enum:
    LONG = 32

cdef enum:
    MOST_ROLES = 8
    MOST_PRODUCTS = 4               # of a sum of activations: each has an attribute, for its two activations

# The search of one plan.
cdef struct Search:
    Graph* g
    int strategy
    uint32_t lowest, highest        # the nodes that the plan needs are among these
    uint32_t first                  # nodes below this one stay as they were made
    uint32_t* users                 # the number of uses of a node, by its number minus `lowest`; for targets two more

cdef struct Pattern:
    uint8_t role                    # of nodes that may be part of such a sum
    # Whether graphs like this one are searched; NULL: all are.
    bint (*allowed)(const Graph* g, int strategy) noexcept nogil
    # Whether a node of this role shows that a search is worthwhile.  The rules are tried for each node until one
    # applies.
    bint (*shows)(const Graph* g, const Node* x, int strategy) noexcept nogil
    # Change the sums of this pattern.  Returns how many, and adds how many nodes they have absorbed.
    uint32_t (*change)(const Search* s, const Op* becomes, uint32_t* absorbed) noexcept nogil

# W1 x1 + W2 x2 + ... + b, with matrices that are parameters.
cdef const Pattern* sums_of_products
# f(a) g(b) + h(c) d + ... + e: elementwise products, with activations of their factors, or without.
cdef const Pattern* sums_of_activations

# A row of the table: sums of a pattern become nodes of an op.  `name` is that of its counts.
cdef int add_rewrite(str name, const Pattern* pattern, const Op* becomes) except -1

cdef struct Row:
    const Pattern* pattern
    const Op* becomes
    Number on                       # sums are changed, or run as they were made
    Number changed, absorbed        # sums that were changed, and nodes that they have absorbed

# The table: by the role of the pattern.  A set of rewrites has a bit for each.
cdef Row[MOST_ROLES] rewrites_at
# The rewrites that a plan should look for.
cdef uint32_t rewrites_of(const Graph* g, int strategy) noexcept nogil
# Change sums of a set of rewrites; returns how many nodes are no longer needed.
cdef uint32_t rewrite(Graph* g, const uint32_t* targets, uint32_t n, int strategy, uint32_t found, uint32_t lowest,
                      uint32_t highest) noexcept nogil


# How often nodes from `lowest` on, up to but without `end`, use each of them, by its number minus `lowest`, in the
# scratch arena; with `wanted`, only uses by nodes that the plan needs.  NULL: there is no memory.
cdef uint32_t* count_users(Graph* g, uint32_t lowest, uint32_t end, bint wanted) noexcept nogil
