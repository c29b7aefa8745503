"""Sums of products of activations, such as `cmult(logistic(a), tanh(b)) + cmult(logistic(f), c)`: one node, not six.

They are the gates of recurrent cells.  One op computes such a sum block by block: what the activations and products
return stays in the first-level cache, and neither they nor their gradients take memory.  Backward computes the
activations once more, which takes less time than to write them and read them again.  A sum is changed where its value
is planned, and only if nothing else uses its parts.  These then have no value of their own; one that is asked for later
is computed as ever, and so is its gradient.
"""

from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport Graph, Node

cdef enum:
    MOST_PRODUCTS = 4               # of a sum: each has an attribute, for its two activations

    # Bits of `multiplies_activations` of a graph:
    MAYBE = 1                       # the program has multiplied elementwise
    FOUND = 2                       # and a factor of a product that was wanted is an activation

cdef uint32_t mul_op
# The ops by number: an elementwise product, a sum, and a sum of products of activations.
cdef void set_gate_ops(uint32_t mul, uint32_t add, uint32_t gates) noexcept nogil
# An op of one argument that may be an activation: number `function`, from 1 on, to the op for sums.
cdef void set_activation(uint32_t op, uint32_t function) noexcept nogil
# Whether a factor of a product is an activation: plans look for sums in graphs that have such a node.
cdef bint is_gate(const Graph* g, const Node* product) noexcept nogil
# Let sums that are wanted take in products and activations; returns how many nodes are no longer wanted for that.
cdef uint32_t take_in_gates(Graph* g, const uint32_t* targets, uint32_t n, int strategy, uint32_t lowest,
                            uint32_t highest) noexcept nogil
