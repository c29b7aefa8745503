"""The attributes of attention nodes, shared with the GPU code."""

from libc.stdint cimport SIZE_MAX, uint32_t

from dynet_cy.core.tensor cimport Attr

# Attributes.
cdef enum:
    ATTENTION_HEADS                             # with which keys a query may attend to: see below
    ATTENTION_PLACE
    ATTENTION_RATE                              # dropout rate of the weights
    ATTENTION_SCALE

# Parts of ATTENTION_HEADS: the number of heads, a bit, and 1 + the window, 0 without one.
cdef enum:
    ATTENTION_MOST_HEADS = (1 << 12) - 1
    ATTENTION_IS_CAUSAL = 1 << 12
    ATTENTION_WINDOW_AT = 13
    ATTENTION_MOST_WINDOW = (1 << 19) - 2

# Values of ATTENTION_PLACE; larger ones are ATTENTION_FROM + the number of keys before the first query.
cdef enum:
    ATTENTION_ANYWHERE                          # positions do not matter
    ATTENTION_FROM_FIRST                        # the first query is at the position of the first key
    ATTENTION_TO_LAST                           # the last query is at the position of the last key
    ATTENTION_FROM


cdef inline uint32_t heads_in(const Attr* attrs) noexcept nogil:
    """The number of heads."""
    return attrs[ATTENTION_HEADS].u & ATTENTION_MOST_HEADS


cdef inline size_t keys_before(const Attr* attrs) noexcept nogil:
    """How many keys before its own position a query may attend to."""
    cdef uint32_t window = attrs[ATTENTION_HEADS].u >> ATTENTION_WINDOW_AT
    return window - 1 if window else SIZE_MAX


cdef inline size_t keys_after(const Attr* attrs) noexcept nogil:
    """How many keys after its own position a query may attend to."""
    return 0 if attrs[ATTENTION_HEADS].u & ATTENTION_IS_CAUSAL else keys_before(attrs)


cdef inline size_t place_of_first(const Attr* attrs, size_t m, size_t n) noexcept nogil:
    """The position among n keys of the first of m queries."""
    if attrs[ATTENTION_PLACE].i == ATTENTION_TO_LAST:
        return n - m
    return attrs[ATTENTION_PLACE].i - ATTENTION_FROM if attrs[ATTENTION_PLACE].i >= ATTENTION_FROM else 0
