"""Fused kernels for several elementwise ops, compiled when they pay off; see fused.pyx."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.gpu.commands cimport Pass

# What a node of a signature is: a row of a .def file, a part of another value, a sum.
cdef enum:
    UNARY_ROW = 1
    BINARY_ROW
    COPY
    SUM

cdef enum:
    MOST_NODES = 24
    MOST_TERMS = 4                  # arguments of a sum
    MOST_WORDS = MOST_NODES * (MOST_TERMS + 1)
    OUTSIDE = 0xFFFFFFFF            # an argument that is not one of the nodes

# The nodes of one instance, each as a word, made by `node_word`, and a word for each argument: the number of a node, or
# OUTSIDE.  `grads`, backward only: bits of the nodes that may have a gradient from elsewhere, or are asked for it.
cdef struct Signature:
    uint32_t n_words
    uint32_t[MOST_WORDS] words
    bint backward
    uint32_t grads

cdef struct Fused:
    Signature signature
    int kernel                      # its number; -1: it has not been compiled
    int few                         # that of the kernel for small tables
    uint64_t devices                # bits of the devices that have loaded it
    uint64_t saved                  # launches that it has saved, or would have


cdef inline uint32_t node_word(uint32_t kind, uint32_t row, uint32_t n_args) noexcept nogil:
    return kind | row << 8 | n_args << 24


# Whether kernels are compiled at all: no, if that has failed, or is switched off.
cdef bint may_fuse() noexcept nogil
# Find the kernel for a signature, or one with more `grads`; NULL: there is none yet.  `saves`: the launches that it
# saves now.  -1: an exception of a signal handler, in the failure of the walk.
cdef int fused_kernel(Pass* s, const Signature* signature, uint32_t saves, const Fused** found) noexcept nogil
