"""The attributes of attention nodes, shared with the GPU code."""

# Attributes.
cdef enum:
    ATTENTION_HEADS
    ATTENTION_CAUSAL
    ATTENTION_RATE                              # dropout rate of the weights
    ATTENTION_SCALE

# Values of ATTENTION_CAUSAL; larger ones are ATTENTION_FROM + the number of keys before the first query.
cdef enum:
    ATTENTION_NOT_CAUSAL
    ATTENTION_FROM_FIRST                        # the first query is at the position of the first key
    ATTENTION_TO_LAST                           # the last query is at the position of the last key
    ATTENTION_FROM
