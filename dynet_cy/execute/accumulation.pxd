"""Gradients of parameters in backward: undo, another thread, and hooks.

**The journal** is a record of the gradients that a backward pass has changed, so that the pass can be undone.  A
gradient that was zero before the pass is set to zero again.  A gradient that was not zero must have been copied first.
Copies are made only when values are checked, when an op of the graph may raise an exception, and in passes that are
expected to be long enough to be interrupted.  Other passes are finished instead of being undone.

**In the background**, another thread computes weight gradients while the pass goes on.  The gradients of values form
a chain: each is needed for the one before.  The gradient of a weight is needed at the end of the pass only.  So a
thread of the pool computes these products, in the order in which the pass reaches them, so the results equal those of a
pass without that thread, to the last bit.  All threads together compute the products that are left at the end.

**Hooks** are called when a gradient is complete, to send it while the rest of backward runs.  Backward runs the batches
in reverse order.  So the gradient of a parameter is complete when backward has run the batch that was the first to use
the parameter in forward.  Lookup tables are left out: the rows that get a gradient are known only at the end.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from dynet_cy.core.threads cimport ACQUIRE, atomic_load
from dynet_cy.graph.structs cimport Graph
from dynet_cy.kernels.product cimport WeightGradient
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Factors

# ---- the journal -----------------------------------------------------------------------

cdef struct Before:
    Param* p
    float* numbers                  # the gradient before the pass (of a table: its touched rows); NULL: it was zero
    uint32_t* rows
    uint32_t n_rows

cdef struct Journal:
    uint64_t number                 # the number of the pass; later passes have higher numbers
    bint copies                     # gradients that are not zero are copied
    bint irrevocable                # other passes have added to the same gradients, so this one cannot be undone
    Before* before
    uint32_t n, capacity

cdef void begin_journal(Journal* j, bint copies) noexcept nogil
cdef void end_journal(Journal* j) noexcept nogil


cdef inline void note_before(Journal* j, Param* p) noexcept nogil:
    """The pass is about to add to the gradient of p, whose lock is held."""
    if p.pass_number != j.number:
        note_first(j, p)


cdef void note_first(Journal* j, Param* p) noexcept nogil
# Restore the gradients of before the pass; False, and nothing is changed, if that is not possible.
cdef bint roll_back(Journal* j) noexcept nogil


# ---- in the background -----------------------------------------------------------------

# A product that is added to the gradient of a parameter.
cdef struct Addition:
    Addition* next                  # in the order in which they are made
    Addition* before                # of the same parameter
    Param* p
    WeightGradient product
    size_t at                       # the number of computed parts
    float* left                     # copied factors; NULL: the factors are in other memory
    float* right
    uint8_t done

# The products of one pass.
cdef struct Background:
    Addition first                  # stands before all others
    Addition* made                  # the last addition that is done; only the computing thread may change it
    Addition* last
    size_t waking                   # multiplications for which no thread has been woken

# Multiplications; a larger product is quicker if all threads compute it together.
cdef enum:
    MOST_IN_BACKGROUND = 300000000

# Whether another thread may compute weight gradients of the pass; then `end_background` must follow.
cdef bint begin_background(Background* b) noexcept nogil
# Let dY X' be added to the gradient of p; `a` is in memory that lasts as long as the pass.
cdef void add_in_background(Background* b, Addition* a, Param* p, const Factors* f, Addition* before) noexcept nogil
# Make all additions.  The calling thread must hold no lock of a parameter.
cdef void finish_background(Background* b) noexcept nogil
cdef void end_background(Background* b) noexcept nogil


cdef inline bint is_made(const Addition* a) noexcept nogil:
    """Whether an addition, and so all earlier ones, is in the gradient, and its factors are no longer needed."""
    return atomic_load(&a.done, ACQUIRE)


# ---- hooks -----------------------------------------------------------------------------

# Called in the thread that runs backward, without the GIL; NULL if no hook is installed.
cdef struct GradientHooks:
    # A backward pass begins that will add to the gradients of these parameters.
    void (*begin_pass)(Param* const* coming, uint32_t n) noexcept nogil
    # The gradient of this parameter is complete.
    void (*complete)(Param* p) noexcept nogil
    # Called after each batch, to make progress with transfers under way.
    void (*progress)() noexcept nogil

cdef GradientHooks* gradient_hooks() noexcept nogil

# A parameter with a gradient in this pass, and the last batch that adds to the gradient.
cdef struct Use:
    Param* p
    uint32_t batch

cdef int list_uses(Graph* g, uint32_t target, Use** uses, uint32_t* n) noexcept nogil
