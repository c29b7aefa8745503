/* A reserved address range with a bump pointer.
 *
 * The range is reserved once, as large as the machine's memory, and pages come
 * into being when they are first touched; so an arena grows in place while
 * pointers into it live.  Rewinding or resetting moves the bump pointer and
 * keeps the pages: touching them again costs a fortieth of the first time.
 *
 * What arenas have ever used counts against one budget, the limit that the
 * user sets.
 */
#ifndef DYNET_CY_ARENA_H
#define DYNET_CY_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define DY_ALIGN 64
/* The budget is charged in steps, so that it costs nothing per allocation. */
#define DY_CHARGE_STEP ((size_t)1 << 20)

/* Of all arenas, in all threads: read and changed atomically. */
typedef struct {
    size_t limit;               /* bytes; 0: none but the machine's memory */
    size_t used;                /* bytes that arenas have charged */
} dy_budget;

static inline size_t dy_budget_limit(const dy_budget *b) { return __atomic_load_n(&b->limit, __ATOMIC_RELAXED); }
static inline size_t dy_budget_used(const dy_budget *b) { return __atomic_load_n(&b->used, __ATOMIC_RELAXED); }
static inline void dy_budget_set_limit(dy_budget *b, size_t n) { __atomic_store_n(&b->limit, n, __ATOMIC_RELAXED); }

typedef struct {
    char *base;
    size_t top;                 /* bytes in use */
    size_t charged;             /* bytes ever used: charged to the budget */
    size_t reserved;            /* bytes of address space */
    dy_budget *budget;
    int poison;                 /* fill what a reset or rewind frees with NaN */
} dy_arena;

static inline size_t dy_round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

/* Charge the budget up to `top`.  0 when the limit or the range is exceeded. */
static inline int dy_arena_charge(dy_arena *a, size_t top) {
    size_t want = dy_round_up(top, DY_CHARGE_STEP);
    if (want > a->reserved)
        want = a->reserved;
    if (top > want)
        return 0;
    size_t more = want - a->charged;
    size_t used = __atomic_add_fetch(&a->budget->used, more, __ATOMIC_RELAXED), limit = dy_budget_limit(a->budget);
    if (limit && used > limit) {
        __atomic_sub_fetch(&a->budget->used, more, __ATOMIC_RELAXED);
        return 0;
    }
    a->charged = want;
    return 1;
}

/* Give back to the budget all that the arena has charged. */
static inline void dy_arena_discharge(dy_arena *a) {
    __atomic_sub_fetch(&a->budget->used, a->charged, __ATOMIC_RELAXED);
    a->charged = 0;
}

/* Room for `bytes`, not aligned further than all before it; NULL when full. */
static inline void *dy_arena_push(dy_arena *a, size_t bytes) {
    size_t top = a->top + bytes;
    if (top > a->charged) {
        if (bytes > a->reserved || !dy_arena_charge(a, top))
            return NULL;
    }
    void *p = a->base + a->top;
    a->top = top;
    return p;
}

/* Room for `bytes` on a 64-byte boundary; NULL when full. */
static inline void *dy_arena_alloc(dy_arena *a, size_t bytes) {
    size_t gap = dy_round_up(a->top, DY_ALIGN) - a->top;
    char *p = dy_arena_push(a, gap + bytes);
    return p ? p + gap : NULL;
}

#endif
