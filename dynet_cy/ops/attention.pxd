"""How the attributes of its nodes encode attention, shared with the GPU's code."""

# Attributes.
cdef enum:
    ATTENTION_HEADS
    ATTENTION_CAUSAL
    ATTENTION_RATE                              # of dropout of the weights
    ATTENTION_SCALE

# Values of ATTENTION_CAUSAL; greater ones are ATTENTION_FROM + the number of keys before the first query.
cdef enum:
    ATTENTION_NOT_CAUSAL
    ATTENTION_FROM_FIRST                        # the first query is at the position of the first key
    ATTENTION_TO_LAST                           # the last one at the last key
    ATTENTION_FROM
