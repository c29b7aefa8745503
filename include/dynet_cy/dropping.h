/* Values that are dropped when a stretch of batches has run, and computed again in backward.
 *
 * A value of a stretch that no batch outside it reads lies in the room of its depth, which the next stretch of that depth
 * uses again.  A batch is dropped as a whole.  The nodes of a dropped batch are not computed, but they still have the
 * number of their batch: that is how they differ from nodes that have not run yet.  `schedule/dropping` plans stretches,
 * `execute/recompute` runs them.
 */
#ifndef DYNET_CY_DROPPING_H
#define DYNET_CY_DROPPING_H

#include "graph.h"

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

/* Allocate the values of a batch that is dropped later; NULL if its room is too small. */
static inline void *dy_take_room(dy_graph *g, uint32_t level, size_t bytes) {
    dy_room *room = &g->rooms[level - 1];
    size_t at = dy_round_up(room->used, DY_ALIGN);
    if (at > room->bytes || bytes > room->bytes - at)
        return NULL;
    room->used = at + bytes;
    return room->p + at;
}

/* Whether a batch follows values of another level.  Then a gap does what other values between them would do: tensors are
 * side by side where they would be if nothing was dropped, since sums depend on it. */
static inline int dy_changes_level(const dy_graph *g, const dy_batch *batch) {
    return batch > dy_batches(g) && batch[-1].level != batch->level;
}

/* Allocate the values of a planned batch, in a graph with stretches or transient values, which have memory already. */
static inline void *dy_claim_level(dy_graph *g, const dy_batch *batch) {
    if (batch->level == DY_TRANSIENT)
        return batch->y;
    if (batch->level == 0) {
        if (dy_changes_level(g, batch) && !dy_arena_alloc(&g->values, DY_ALIGN))
            return NULL;
        return dy_arena_alloc(&g->values, batch->bytes);
    }
    if (dy_changes_level(g, batch))
        g->rooms[batch->level - 1].used += DY_ALIGN;
    return dy_take_room(g, batch->level, batch->bytes);
}

/* Drop the values of a stretch. */
static inline void dy_drop_stretch(dy_graph *g, uint32_t number) {
    dy_stretch *s = &dy_stretches(g)[number];
    for (uint32_t b = s->first; b < s->end; b++) {
        dy_batch *batch = &dy_batches(g)[b];
        batch->x = NULL;
        batch->items = NULL;
        batch->saved = NULL;
        batch->saved_of = NULL;
        if (batch->level < s->depth)
            continue;
        for (uint32_t j = 0; j < batch->count; j++) {
            uint32_t id = dy_order(g)[batch->first + j];
            dy_state(g)[id] &= (uint8_t)~(DY_COMPUTED | DY_SENT);
            dy_nodes(g)[id].val = NULL;
        }
    }
    for (uint32_t i = number; i < dy_n_stretches(g) && dy_stretches(g)[i].first < s->end; i++)
        dy_stretches(g)[i].resident = 0;
    for (uint32_t level = s->depth; level <= DY_MOST_DEPTH; level++) {
        dy_room *room = &g->rooms[level - 1];
        if (g->values.poison && room->used)
            memset(room->p, 0xFF, room->used < room->bytes ? room->used : room->bytes);
        room->used = 0;
    }
}

/* Drop a stretch that stayed when its pass ended, if its values are still there. */
static inline void dy_evict(dy_graph *g, uint32_t number) {
    if (number == DY_NO_STRETCH || !dy_stretches(g)[number].resident)
        return;
    dy_drop_stretch(g, number);
    dy_stretch *s = &dy_stretches(g)[number];
    if (g->scratch.top == s->scratch_end)       /* else something else was allocated since */
        dy_arena_rewind(&g->scratch, s->scratch);
}

/* A graph without values has no stretches, and no transient values. */
static inline void dy_forget_stretches(dy_graph *g) {
    dy_array_rewind(&g->stretches, 0);
    dy_array_rewind(&g->reads, 0);
    memset(g->rooms, 0, sizeof(g->rooms));
    g->last_stretch = DY_NO_STRETCH;
    g->has_transient = g->may_donate = g->has_donated = 0;
}

/* Drop the stretches from batch `n_batches` on, of passes that are forgotten; memory of values beyond `values_top` will
 * be freed. */
static inline void dy_cut_stretches(dy_graph *g, uint32_t n_batches, size_t values_top) {
    uint32_t n = dy_n_stretches(g);
    if (!n && !g->has_transient)
        return;
    dy_evict(g, g->last_stretch);
    while (n > 0 && dy_stretches(g)[n - 1].first >= n_batches)
        n--;
    while (g->last_stretch != DY_NO_STRETCH && g->last_stretch >= n)
        g->last_stretch = dy_stretches(g)[g->last_stretch].before;
    dy_array_rewind(&g->stretches, n * sizeof(dy_stretch));
    if (g->last_stretch != DY_NO_STRETCH)
        dy_stretches(g)[g->last_stretch].next = DY_NO_STRETCH;
    for (int level = 0; level < DY_MOST_DEPTH; level++)
        if (g->rooms[level].p && dy_arena_offset(&g->values, g->rooms[level].p) >= values_top) {
            g->rooms[level].p = NULL;
            g->rooms[level].bytes = 0;
        }
    for (uint32_t b = 0; b < n_batches; b++) {
        /* Values that were computed again for nodes that are dropped now. */
        dy_batch *batch = &dy_batches(g)[b];
        if (batch->level == batch->planned || dy_arena_offset(&g->values, batch->y) < values_top)
            continue;
        batch->level = batch->planned;
        for (uint32_t j = 0; j < batch->count; j++) {
            uint32_t id = dy_order(g)[batch->first + j];
            dy_state(g)[id] &= (uint8_t)~(DY_COMPUTED | DY_SENT);
            if (batch->level != DY_TRANSIENT)
                dy_nodes(g)[id].val = NULL;
        }
    }
}

#endif
