"""Arenas: reserved address ranges with a bump pointer.

An arena belongs to the graph (or storage) that opened it and is closed by it;
whoever allocates from it never frees.
"""

cdef extern from "dynet_cy/arena.h" nogil:
    int ALIGN "DY_ALIGN"

    ctypedef struct Budget "dy_budget":
        pass

    ctypedef struct Arena "dy_arena":
        char* base
        size_t top
        size_t charged
        size_t reserved
        Budget* budget
        int poison

    size_t budget_limit "dy_budget_limit"(const Budget* b)
    size_t budget_used "dy_budget_used"(const Budget* b)
    void budget_set_limit "dy_budget_set_limit"(Budget* b, size_t n)

    void* arena_push "dy_arena_push"(Arena* a, size_t bytes)
    void* arena_alloc "dy_arena_alloc"(Arena* a, size_t bytes)
    void arena_discharge "dy_arena_discharge"(Arena* a)

cdef int arena_open(Arena* a, bint poison) except -1
cdef void arena_close(Arena* a) noexcept nogil
cdef void arena_rewind(Arena* a, size_t top) noexcept nogil
cdef int out_of_memory(const Arena* a, str what, size_t needed) except -1
