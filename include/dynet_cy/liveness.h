/* Memory of forward-only graphs: which nodes are still needed, and reuse of the memory of the others.
 *
 * A node is needed while an expression refers to it (its holder) or while a node that takes it as an argument has not
 * been computed.  After that its value can never be requested again, and its memory is reused for other values.
 */
#ifndef DYNET_CY_LIVENESS_H
#define DYNET_CY_LIVENESS_H

#include <string.h>

#include "graph.h"

/* ---- holes: free memory below the top of an arena ---- */

typedef struct {
    char *at;
    size_t bytes;
} dy_hole;

/* Take `bytes` of the smallest of n holes that fits; NULL if there is none. */
static inline char *dy_take_of(dy_hole *hole, size_t *n, size_t bytes) {
    dy_hole *best = NULL;
    for (size_t k = 0; k < *n; k++)
        if (hole[k].bytes >= bytes && (!best || hole[k].bytes < best->bytes))
            best = &hole[k];
    if (!best)
        return NULL;
    char *at = best->at;
    best->at += bytes;
    best->bytes -= bytes;
    if (!best->bytes)
        memmove(best, best + 1, (char *)(hole + --*n) - (char *)best);
    return at;
}

/* The first of n holes at or after p; they are in order, and apart from each other. */
static inline size_t dy_hole_from(const dy_hole *hole, size_t n, const char *p) {
    size_t low = 0;
    while (low < n) {
        size_t middle = (low + n) / 2;
        if (hole[middle].at < p)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

/* Add a range to n holes; without `room` for one more it is lost, unless it joins another one. */
static inline void dy_give_to(dy_hole *hole, size_t *n, int room, char *at, size_t bytes) {
    size_t k = dy_hole_from(hole, *n, at);
    int joins_last = k > 0 && hole[k - 1].at + hole[k - 1].bytes == at;
    int joins_next = k < *n && at + bytes == hole[k].at;
    if (joins_last) {
        hole[k - 1].bytes += bytes + (joins_next ? hole[k].bytes : 0);
        if (joins_next)
            memmove(hole + k, hole + k + 1, (--*n - k) * sizeof(dy_hole));
    } else if (joins_next) {
        hole[k].at = at;
        hole[k].bytes += bytes;
    } else if (room) {
        memmove(hole + k + 1, hole + k, ((*n)++ - k) * sizeof(dy_hole));
        hole[k].at = at;
        hole[k].bytes = bytes;
    }
}

static inline size_t dy_n_holes(const dy_array *holes) { return holes->top / sizeof(dy_hole); }

/* Allocate `bytes`, a multiple of DY_ALIGN, in the smallest hole that fits; NULL if there is none. */
static inline void *dy_take_hole(dy_array *holes, size_t bytes) {
    size_t n = dy_n_holes(holes);
    char *at = dy_take_of((dy_hole *)holes->base, &n, bytes);
    holes->top = n * sizeof(dy_hole);
    return at;
}

/* The same in the lowest hole that fits, or at the end of the highest one. */
static inline void *dy_take_outermost_hole(dy_array *holes, size_t bytes, int highest) {
    dy_hole *hole = (dy_hole *)holes->base;
    size_t n = dy_n_holes(holes), k = highest ? n - 1 : 0;  /* below 0: beyond n */
    while (k < n && hole[k].bytes < bytes)
        k += highest ? (size_t)-1 : 1;
    if (k >= n)
        return NULL;
    char *at = highest ? hole[k].at + hole[k].bytes - bytes : hole[k].at;
    hole[k].at += highest ? 0 : bytes;
    hole[k].bytes -= bytes;
    if (!hole[k].bytes) {
        memmove(hole + k, hole + k + 1, (n - 1 - k) * sizeof(dy_hole));
        holes->top -= sizeof(dy_hole);
    }
    return at;
}

/* Allocate `bytes` in the smallest hole that fits, else at the top; NULL when full. */
static inline void *dy_fill_hole(dy_arena *arena, dy_array *holes, size_t bytes) {
    bytes = dy_round_up(bytes, DY_ALIGN);       /* as it is freed: what is in use ends below the top of the arena */
    void *p = dy_take_hole(holes, bytes);
    return p ? p : dy_arena_alloc(arena, bytes);
}

/* Lower the top of the arena if holes end there. */
static inline void dy_drop_top_holes(dy_arena *arena, dy_array *holes) {
    for (;;) {
        dy_hole *hole = (dy_hole *)holes->base;
        char *top = (char *)(arena->origin + arena->top);
        size_t n = dy_n_holes(holes), k = dy_hole_from(hole, n, top);
        if (k == 0 || hole[k - 1].at + hole[k - 1].bytes != top)
            return;
        dy_arena_rewind(arena, (size_t)((uintptr_t)hole[k - 1].at - arena->origin));
        memmove(hole + k - 1, hole + k, (n - k) * sizeof(dy_hole));
        holes->top -= sizeof(dy_hole);
    }
}

/* Note that memory of an arena is free; if there is no memory for the note, it is freed when the graph is renewed. */
static inline void dy_add_hole(const dy_arena *arena, dy_array *holes, void *p, size_t bytes) {
    if (!bytes)
        return;
    bytes = dy_round_up(bytes, DY_ALIGN);
    if (arena->poison)
        memset(p, 0xFF, bytes);
    int room = dy_array_push(holes, sizeof(dy_hole)) != NULL;
    size_t n = dy_n_holes(holes) - room;
    dy_give_to((dy_hole *)holes->base, &n, room, (char *)p, bytes);
    holes->top = n * sizeof(dy_hole);
}

/* Free memory that `dy_fill_hole` has allocated, with the same size. */
static inline void dy_make_hole(dy_arena *arena, dy_array *holes, void *p, size_t bytes) {
    dy_add_hole(arena, holes, p, bytes);
    if (bytes)
        dy_drop_top_holes(arena, holes);
}

/* Allocate memory for values of a graph; NULL when full. */
static inline void *dy_claim_values(dy_graph *g, size_t bytes) {
    return g->forward_only ? dy_fill_hole(&g->values, &g->free_values, bytes) : dy_arena_alloc(&g->values, bytes);
}

/* Undo the last `dy_claim_values`, which found the top at `top`. */
static inline void dy_unclaim_values(dy_graph *g, void *p, size_t bytes, size_t top) {
    if (g->forward_only)
        dy_make_hole(&g->values, &g->free_values, p, bytes);
    else
        dy_arena_rewind(&g->values, top);
}

/* ---- which nodes are needed ---- */

typedef struct {
    void *holder;               /* the expression that refers to the node, borrowed; NULL: none.  Any thread may drop
                                 * the reference while another one runs the graph: use the two functions below */
    uint32_t consumers;         /* the number of uncomputed uses of this node as an argument */
} dy_use;

static inline dy_use *dy_uses(const dy_graph *g) { return (dy_use *)g->uses.base; }

static inline void *dy_holder(const dy_use *use) { return __atomic_load_n(&use->holder, __ATOMIC_RELAXED); }

static inline void dy_set_holder(dy_use *use, void *x) { __atomic_store_n(&use->holder, x, __ATOMIC_RELAXED); }

/* Free the value of a node. */
static inline void dy_free_value(dy_graph *g, dy_node *x) {
    if (x->batch != DY_NO_BATCH) {
        dy_batch *batch = &dy_batches(g)[x->batch];
        if (--batch->live == 0)
            dy_make_hole(&g->values, &g->free_values, batch->y, batch->bytes);
    } else if (x->val) {
        size_t n = dy_total(&x->dim);
        dy_make_hole(&g->values, &g->free_values, x->val, (n ? n : 1) * sizeof(float));
    }
    x->val = NULL;
}

/* Drop node i if it is not needed, and then nodes that only it needed. */
static inline void dy_drop_unneeded(dy_graph *g, uint32_t i) {
    dy_use *uses = dy_uses(g);
    uint8_t *state = dy_state(g);
    uint32_t waiting = DY_NO_BATCH;             /* nodes to drop, linked through `batch` */
    for (;;) {
        if (!uses[i].consumers && !dy_holder(&uses[i]) && !(state[i] & (DY_DROPPED | DY_SHARED))) {
            dy_node *x = &dy_nodes(g)[i];
            int computed = state[i] & DY_COMPUTED;
            dy_free_value(g, x);
            state[i] |= DY_DROPPED;
            x->batch = DY_NO_BATCH;
            if (!computed && x->nargs) {
                x->batch = waiting;
                waiting = i;
            }
        }
        /* The next argument of a dropped node; its argument count decreases with each. */
        for (;;) {
            if (waiting == DY_NO_BATCH)
                return;
            dy_node *x = &dy_nodes(g)[waiting];
            if (x->nargs) {
                i = dy_args(g, x)[--x->nargs];
                uses[i].consumers--;
                break;
            }
            uint32_t next = x->batch;
            x->batch = DY_NO_BATCH;
            waiting = next;
        }
    }
}

/* The nodes of a batch have been computed and no longer need their arguments. */
static inline void dy_release_arguments(dy_graph *g, const dy_batch *batch) {
    for (uint32_t j = 0; j < batch->count; j++) {
        const dy_node *x = &dy_nodes(g)[dy_order(g)[batch->first + j]];
        for (uint32_t k = 0; k < x->nargs; k++) {
            uint32_t arg = dy_args(g, x)[k];
            dy_uses(g)[arg].consumers--;
            dy_drop_unneeded(g, arg);
        }
    }
}

#endif
