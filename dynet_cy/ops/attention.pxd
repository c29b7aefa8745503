"""How attention is told in the attributes of its nodes, for the GPU's half."""

# Attributes.
cdef enum:
    ATTENTION_HEADS
    ATTENTION_CAUSAL
    ATTENTION_RATE                              # of dropout of the weights
    ATTENTION_SCALE

# Values of ATTENTION_CAUSAL; what is more is ATTENTION_FROM + the number of keys before the first query.
cdef enum:
    ATTENTION_NOT_CAUSAL
    ATTENTION_FROM_FIRST                        # the first query stands at the first key
    ATTENTION_TO_LAST                           # the last one at the last key
    ATTENTION_FROM
