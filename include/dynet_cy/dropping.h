/* Values that do not live as long as the graph, and are computed again if something reads them later.
 *
 * A batch is dropped as a whole.  It has memory until the last batch of its plan has read it: a part of one block in the
 * arena of gradients, which has no other use during forward.  The nodes of a dropped batch are not computed, but they keep
 * the number of their batch, which is how they differ from nodes that have not run yet, and the address of their values:
 * backward finds their gradients by the distance from the address of the batch.
 *
 * Values that no backward reads are transient (`schedule/transient`).  Others are dropped if memory is short, or by
 * `checkpoint`: `schedule/dropping` divides the plan into stretches, and backward computes the values of a stretch again
 * before it goes back over it.  What the calls of a stretch need in backward is dropped with it.  Values of the last
 * stretch stay in a part of the block: backward begins with it.  `execute/rematerialize` runs all that.
 */
#ifndef DYNET_CY_DROPPING_H
#define DYNET_CY_DROPPING_H

#include <string.h>

#include "graph.h"
#include "liveness.h"

static inline dy_region *dy_regions(const dy_graph *g) { return (dy_region *)g->regions.base; }
static inline uint32_t dy_n_regions(const dy_graph *g) { return (uint32_t)(g->regions.top / sizeof(dy_region)); }
static inline dy_stretch *dy_stretches(const dy_graph *g) { return (dy_stretch *)g->stretches.base; }
static inline uint32_t dy_n_stretches(const dy_graph *g) { return (uint32_t)(g->stretches.top / sizeof(dy_stretch)); }

/* Whether the value of a node was dropped. */
static inline int dy_is_dropped(const dy_graph *g, uint32_t node) {
    return dy_nodes(g)[node].batch != DY_NO_BATCH && !(dy_state(g)[node] & DY_COMPUTED);
}

/* Note that the nodes from `first` to before `end` were made by one call.  Returns 0 if there is no memory.
 *
 * Regions of a thread end in the reverse order of their beginnings.  Those of the items of a batched map may overlap
 * otherwise: then the one that ends later has the rest. */
static inline int dy_add_region(dy_graph *g, uint32_t first, uint32_t end) {
    uint32_t n = dy_n_regions(g), at = n;
    const dy_region *r = dy_regions(g);
    for (uint32_t i = n; i-- > 0 && r[i].end > first;)
        if (r[i].first < first)
            first = r[i].end;
    if (first >= end)
        return 1;
    if (!dy_array_push(&g->regions, sizeof(dy_region)))
        return 0;
    while (at > 0 && dy_regions(g)[at - 1].first >= first)
        at--;
    memmove(dy_regions(g) + at + 1, dy_regions(g) + at, (n - at) * sizeof(dy_region));
    dy_regions(g)[at].first = first;
    dy_regions(g)[at].end = end;
    return 1;
}

/* Drop the regions of nodes beyond the last one. */
static inline void dy_cut_regions(dy_graph *g) {
    uint32_t n = dy_n_regions(g);
    dy_region *r = dy_regions(g);
    while (n > 0 && r[n - 1].first >= g->n_nodes)
        n--;
    dy_array_rewind(&g->regions, n * sizeof(dy_region));
    while (n-- > 0)
        if (r[n].end > g->n_nodes)
            r[n].end = g->n_nodes;
}

/* ---- the block ---- */

/* Free ranges of a block that does not exist yet, so `at` counts from its beginning, which is 1, since NULL is no place;
 * the array has room for one hole more than there are batches. */
typedef struct {
    dy_hole *holes;             /* in order, apart from each other */
    size_t n;
    size_t end;                 /* of what is used so far: the size of the block */
} dy_block;

/* What a dropped batch takes: a gap follows, since values of different batches must not be adjacent. */
static inline size_t dy_block_bytes(size_t bytes) { return dy_round_up(bytes, DY_ALIGN) + DY_ALIGN; }

/* Note that a range is free. */
static inline void dy_give_to_block(dy_block *block, size_t at, size_t bytes) {
    dy_give_to(block->holes, &block->n, 1, (char *)(at + 1), bytes);
}

/* Find room in a block: the smallest hole that is large enough, else at its end, where the last hole may be. */
static inline size_t dy_take_in_block(dy_block *block, size_t bytes) {
    char *p = dy_take_of(block->holes, &block->n, bytes);
    if (p)
        return (size_t)p - 1;
    const dy_hole *last = block->n ? &block->holes[block->n - 1] : NULL;
    size_t at = block->end;
    if (last && (size_t)last->at - 1 + last->bytes == at) {
        at = (size_t)last->at - 1;
        block->n--;
    }
    block->end = at + bytes;
    return at;
}

/* ---- dropping ---- */

/* Allocate the values of a planned batch; those that are dropped have a place already.  A gap does what dropped values
 * between others would do: tensors are side by side where they would be if nothing was dropped, since sums depend on
 * it. */
static inline void *dy_claim_kept(dy_graph *g, const dy_batch *batch) {
    if (batch->level)
        return batch->y;
    if (batch > dy_batches(g) && batch[-1].level && !dy_arena_alloc(&g->values, DY_ALIGN))
        return NULL;
    return dy_arena_alloc(&g->values, batch->bytes);
}

/* The values of a batch are not there any more. */
static inline void dy_drop_values(dy_graph *g, const dy_batch *batch) {
    for (uint32_t j = 0; j < batch->count; j++)
        dy_value_leaves(&dy_state(g)[dy_order(g)[batch->first + j]]);
}

/* What the call of a batch needs in backward is not there any more. */
static inline void dy_strip(dy_batch *batch) {
    batch->x = NULL;
    batch->items = NULL;
    batch->saved = NULL;
    batch->saved_of = NULL;
    batch->lifetime |= DY_STRIPPED;
}

/* Where the block ends in the arena of gradients of which values stay. */
static inline size_t dy_end_of_room(const dy_graph *g) {
    return dy_arena_offset(&g->grads, g->room.block) + g->room.bytes;
}

/* Drop all that the first n stretches have, and what a pass that has failed has computed again. */
static inline void dy_drop_stretches(dy_graph *g, uint32_t n) {
    if (g->room.bytes && !g->room.begun && g->grads.top == dy_end_of_room(g))
        dy_arena_rewind(&g->grads, dy_arena_offset(&g->grads, g->room.block));
    g->room.bytes = 0;
    g->is_torn = 0;
    for (uint32_t i = 0; i < n; i++) {
        dy_stretch *s = &dy_stretches(g)[i];
        for (uint32_t b = s->first; s->depth == 1 && b < s->end; b++) {
            if (dy_batches(g)[b].level)
                dy_drop_values(g, &dy_batches(g)[b]);
            dy_strip(&dy_batches(g)[b]);
            dy_batches(g)[b].lifetime &= (uint16_t)~DY_RESIDENT;
        }
    }
}

/* A graph without values has no stretches, and nothing dropped. */
static inline void dy_forget_stretches(dy_graph *g) {
    dy_array_rewind(&g->stretches, 0);
    dy_array_rewind(&g->reads, 0);
    g->room.bytes = 0;
    g->has_dropped = g->is_torn = g->may_donate = g->has_donated = 0;
}

/* Forget the stretches from batch `n_batches` on, of passes that are forgotten; memory of values beyond `values_top` will
 * be freed. */
static inline void dy_cut_stretches(dy_graph *g, uint32_t n_batches, size_t values_top) {
    if (!g->has_dropped && !dy_n_stretches(g))
        return;
    uint32_t n = dy_n_stretches(g);
    dy_drop_stretches(g, n);
    while (n > 0 && dy_stretches(g)[n - 1].first >= n_batches)
        n--;
    dy_array_rewind(&g->stretches, n * sizeof(dy_stretch));
    for (uint32_t i = 0; i < n; i++)
        if (dy_stretches(g)[i].end > n_batches)
            dy_stretches(g)[i].end = n_batches;
    for (uint32_t b = 0; b < n_batches; b++) {
        /* Values that were computed again for nodes that are dropped now. */
        dy_batch *batch = &dy_batches(g)[b];
        if (batch->level == batch->planned || dy_arena_offset(&g->values, batch->y) < values_top)
            continue;
        batch->level = batch->planned;
        dy_drop_values(g, batch);
    }
}

#endif
