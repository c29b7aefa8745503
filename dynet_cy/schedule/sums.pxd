"""Sums of products, `W*x + U*h + b`: one affine map instead of a node for each product and each `+`.

An affine map begins with what is added and lets each product add to that, so that no product is written by itself
and read again, and backward multiplies by the gradient of the sum instead of a copy of it for each term.  A sum is
changed where its value is planned, and only if nothing else uses the products.  These then have no value of their own.
One that is asked for later is computed as ever, and their gradient is that of the sum.
"""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport size_of
from dynet_cy.graph.structs cimport Graph, Node, nodes_of
from dynet_cy.schedule.views cimport LONG

# The ops by number: a product of two, a sum of two, and a sum b + W1 x1 + W2 x2 + ...
cdef void set_sum_ops(uint32_t product, uint32_t add, uint32_t affine) noexcept nogil
# Let sums that are wanted take in products and other sums; returns how many nodes are no longer wanted for that.
cdef uint32_t take_in_products(Graph* g, const uint32_t* targets, uint32_t n, int strategy, uint32_t lowest,
                               uint32_t highest) noexcept nogil


cdef inline void note_addition(Graph* g, const uint32_t* args, uint32_t product) noexcept nogil:
    """Two nodes are about to be added: plans look for sums of products in graphs where one of them is such a product.

    Looking takes 5 ns a node, more than is gained in batches of short vectors.
    """
    cdef const Node* a = &nodes_of(g)[args[0]]
    cdef const Node* b = &nodes_of(g)[args[1]]
    if a.op == product or b.op == product:
        if g.strategy == 0 or size_of(&a.dim) >= LONG or size_of(&b.dim) >= LONG:
            g.adds_products = True
