/* Memory of the gradients of nodes.
 *
 * The gradients of a batch lie side by side, as its values do.  They get memory with their first contribution.  Once
 * the batch has run backward they are not read again, and the memory is reused for gradients of other batches, unless
 * an expression refers to a node of the batch, so that the program can ask for its gradient.  Views have no gradients of their
 * own: theirs are inside those of their arguments.
 *
 * A call that reads values of several batches in place writes their gradients in place too.  The gradients of such
 * batches are joint: one piece of memory, with the same layout as the values.
 *
 * Values that are dropped and computed again (dropping.h) may lie elsewhere then.  Their gradients stay where they are.
 *
 * When a batch has run backward, the rest of the pass does not read its values either: all batches that read them have run
 * backward before.  In large graphs their memory is then used for gradients: the values are donated.  They lie between
 * others, so their memory is listed apart from that of gradients, and no gradients that outlast the pass lie there.  The
 * values of a batch may even be donated earlier, when the first batch that reads them runs backward: their gradients may
 * be written over them.  execute/rematerialize computes donated values again, in their old places, if a later pass needs
 * them.
 */
#ifndef DYNET_CY_GRADIENTS_H
#define DYNET_CY_GRADIENTS_H

#include "dropping.h"

/* In dy_batch.joint: its gradients follow those of the batch before it, or precede those of the next one. */
enum { DY_FOLLOWS = 1, DY_PRECEDES = 2 };

/* In dy_graph.donates: batches run backward from the last one to the first, or in another order that honours arguments. */
enum { DY_IN_ANY_ORDER = 1, DY_IN_ORDER = 2 };

/* The most pieces of memory of values that are listed: they are looked through for each gradient. */
#define DY_MOST_PIECES 128

/* ---- expressions that refer to nodes ---- */

/* The count of references saturates: a node with this many is taken to be referred to for ever. */
#define DY_MOST_HELD UINT8_MAX

static inline uint8_t *dy_held(const dy_graph *g) { return (uint8_t *)g->held.base; }

/* An expression refers to node i, which is not in a forward-only graph. */
static inline void dy_hold_node(dy_graph *g, uint32_t i) {
    uint8_t *held = &dy_held(g)[i];
    if (*held != DY_MOST_HELD)
        ++*held;
}

/* One expression less refers to it.  A parameter's expression moves from node to node, and does not count. */
static inline void dy_let_node_go(dy_graph *g, uint32_t i) {
    uint8_t *held = &dy_held(g)[i];
    if (*held != DY_MOST_HELD && *held)
        --*held;
}

/* ---- where gradients are ---- */

/* The number of the batch whose values contain that of a node: its own, or that of its argument; DY_NO_BATCH: none. */
static inline uint32_t dy_home(const dy_graph *g, const dy_node *x) {
    if (x->batch != DY_NO_BATCH && dy_batches(g)[x->batch].form == DY_VIEWS)
        x = &dy_nodes(g)[*dy_args(g, x)];
    return x->batch;
}

/* The gradient of a node that has memory for one.  That of a view is found by the places of values: it must have one. */
static inline float *dy_gradient(const dy_graph *g, const dy_node *x) {
    uint32_t home = dy_home(g, x);
    if (home == DY_NO_BATCH)                    /* an input: only if all gradients are kept */
        return (float *)((uintptr_t)x->val + (uintptr_t)dy_segment_of(&g->values, x->val)->gradient);
    const dy_batch *batch = &dy_batches(g)[home];
    return batch->dy + (x->val - batch->y);
}

/* Whether the gradient of a node was dropped after its batch had run backward. */
static inline int dy_is_gradient_gone(const dy_graph *g, const dy_node *x) {
    uint32_t home = dy_home(g, x);
    return home != DY_NO_BATCH && !dy_batches(g)[home].dy;
}

/* Let the gradients of some batches, whose values are adjacent, be joint.
 *
 * `begun`: backward has begun.  Then they stay apart if some of them have memory already. */
static inline void dy_join_gradients(dy_graph *g, uint32_t first, uint32_t last, int begun) {
    dy_batch *batches = dy_batches(g);
    for (uint32_t b = first; b <= last; b++) {
        if (begun && batches[b].dy)
            return;
        /* An input may lie between them. */
        if (b < last && (char *)batches[b].y + dy_round_up(batches[b].bytes, DY_ALIGN) != (char *)batches[b + 1].y)
            return;
    }
    for (uint32_t b = first; b < last; b++) {
        batches[b].joint |= DY_PRECEDES;
        batches[b + 1].joint |= DY_FOLLOWS;
    }
}

/* The values of a batch have moved, perhaps away from those before and after it. */
static inline void dy_part_gradients(dy_graph *g, uint32_t b) {
    dy_batch *batch = &dy_batches(g)[b];
    if (batch->joint & DY_FOLLOWS)
        batch[-1].joint &= (uint8_t)~DY_PRECEDES;
    if (batch->joint & DY_PRECEDES)
        batch[1].joint &= (uint8_t)~DY_FOLLOWS;
    batch->joint = 0;
}

/* Whether the gradients of two batches and of all between them are joint. */
static inline int dy_are_joint(const dy_graph *g, uint32_t first, uint32_t last) {
    if (first == last || g->whole_gradients)
        return 1;
    if (first > last || last == DY_NO_BATCH)
        return 0;
    for (; first < last; first++)
        if (!(dy_batches(g)[first].joint & DY_PRECEDES))
            return 0;
    return 1;
}

/* ---- a pass ---- */

/* Keep the gradients of the batch in which the value of node i is. */
static inline void dy_keep_gradient(dy_graph *g, uint32_t i) {
    uint32_t home = dy_home(g, &dy_nodes(g)[i]);
    if (home != DY_NO_BATCH)
        dy_batches(g)[home].keeps = DY_KEEPS_ASKED;
}

/* Keep those of all nodes to which an expression refers. */
static inline void dy_keep_held_gradients(dy_graph *g) {
    const uint8_t *held = dy_held(g);
    uint32_t i = 0;
    while (i < g->n_nodes) {
        uint64_t next = 1;                      /* few nodes are referred to, so look at eight at a time */
        if (i + 8 <= g->n_nodes)
            memcpy(&next, held + i, 8);
        if (!next) {
            i += 8;
            continue;
        }
        if (held[i])
            dy_keep_gradient(g, i);
        i++;
    }
}

/* A batch gets memory for its values. */
static inline void dy_begin_gradients(dy_batch *batch) {
    batch->joint = batch->keeps = 0;
    batch->lifetime &= DY_MAY_DONATE | DY_IN_STRETCH | DY_CUT | DY_RESIDENT;
    batch->dy = NULL;
}

/* Begin a pass.  `whole`: all gradients are kept.  Those of a segment then lie as its values do, except in graphs with
 * dropped values, where several share memory.  Returns 0 if there is no memory. */
static inline int dy_open_gradients(dy_graph *g, int whole) {
    dy_arena *values = &g->values;
    g->whole_gradients = whole && !g->has_dropped;
    dy_arena_rewind(&g->grads, g->room.bytes ? dy_end_of_room(g) : 0);
    dy_array_rewind(&g->free_gradients, 0);
    dy_array_rewind(&g->free_values, 0);
    if (g->room.bytes) {
        char *after = g->room.p + g->room.reserved;
        dy_add_hole(&g->grads, &g->free_gradients, g->room.block, (size_t)(g->room.p - g->room.block));
        dy_add_hole(&g->grads, &g->free_gradients, after, (size_t)(g->room.block + g->room.bytes - after));
        g->room.begun = 1;
    }
    for (uint32_t i = 0; whole && values->n && i <= values->now; i++) {
        dy_segment *s = &values->segments[i];
        size_t end = i < values->now ? values->segments[i + 1].from : values->top;
        char *p = (char *)dy_arena_alloc(&g->grads, end - s->from);
        if (!p)
            return 0;
        s->gradient = (ptrdiff_t)((uintptr_t)p - (uintptr_t)s->p);
    }
    for (uint32_t b = 0; (whole || g->stale_gradients) && b < g->n_batches; b++) {
        dy_batch *batch = &dy_batches(g)[b];
        if (b && !(batch->joint & DY_FOLLOWS))  /* another batch was there before a revert */
            batch[-1].joint &= (uint8_t)~DY_PRECEDES;
        if (b + 1 == g->n_batches)
            batch->joint &= (uint8_t)~DY_PRECEDES;
        batch->keeps = whole ? DY_KEEPS_ASKED : 0;
        batch->dy = NULL;
        const dy_segment *s = g->whole_gradients ? dy_segment_of(values, batch->y) : NULL;
        if (s)                                  /* memory for copies of views lies elsewhere */
            batch->dy = (float *)((uintptr_t)batch->y + (uintptr_t)s->gradient);
    }
    g->stale_gradients = 1;
    return 1;
}

/* Memory that was freed last, for gradients of the same size: a chain of single nodes needs no list. */
typedef struct {
    char *p;
    size_t bytes;               /* 0: none */
} dy_spare;

/* Give it to the gradients of a batch; 0 if it does not fit. */
static inline int dy_take_spare(dy_batch *batch, dy_spare *spare) {
    if (batch->joint || batch->keeps || !batch->bytes || dy_round_up(batch->bytes, DY_ALIGN) != spare->bytes)
        return 0;
    batch->dy = (float *)spare->p;
    batch->live = 1;
    spare->bytes = 0;
    return 1;
}

/* Take the memory of the gradients of a batch that has run backward; 0 if they need more than that. */
static inline int dy_leave_spare(const dy_graph *g, dy_batch *batch, dy_spare *spare) {
    if (batch->joint || spare->bytes || g->grads.poison)
        return 0;
    spare->p = (char *)batch->dy;
    spare->bytes = dy_round_up(batch->bytes, DY_ALIGN);
    batch->dy = NULL;
    return 1;
}

/* The first and the last of the batches whose gradients are joint with those of a batch. */
static inline dy_batch *dy_first_joint(dy_batch *batch) {
    while (batch->joint & DY_FOLLOWS)
        batch--;
    return batch;
}

static inline dy_batch *dy_last_joint(dy_batch *batch) {
    while (batch->joint & DY_PRECEDES)
        batch++;
    return batch;
}

/* The bytes of the gradients from the first batch to the last one, which are joint: as far apart as the values when they
 * were adjacent. */
static inline size_t dy_gradient_bytes(const dy_batch *first, const dy_batch *last) {
    size_t n = 0;
    for (; first < last; first++)
        n += dy_round_up(first->bytes, DY_ALIGN);
    return n + last->bytes;
}

/* Memory for the rest of a backward pass, or for longer; NULL if there is none.
 *
 * In graphs with stretches it shares holes with values that are computed again, which go one stretch after the other, while
 * gradients stay longer: these take the lowest holes, values the highest ones, so that free memory between them stays in one
 * piece. */
static inline void *dy_claim_memory(dy_graph *g, size_t bytes, int lasting) {
    bytes = dy_round_up(bytes, DY_ALIGN);
    void *p = dy_n_stretches(g) ? dy_take_outermost_hole(&g->free_gradients, bytes, 0)
                                : dy_take_hole(&g->free_gradients, bytes);
    if (!p && g->donates && !lasting)
        p = dy_take_hole(&g->free_values, bytes);
    return p ? p : dy_arena_alloc(&g->grads, bytes);
}

/* Memory for values that are computed again in backward over stretches; NULL if there is none. */
static inline void *dy_claim_again(dy_graph *g, size_t bytes) {
    void *p = dy_take_outermost_hole(&g->free_gradients, bytes, 1);
    return p ? p : dy_arena_alloc(&g->grads, bytes);
}

/* Values that stayed after the pass have gone: what was reserved behind them follows. */
static inline void dy_free_reserved(dy_graph *g) {
    if (g->room.bytes)
        dy_add_hole(&g->grads, &g->free_gradients, g->room.p + g->room.used, g->room.reserved - g->room.used);
    g->room.reserved = g->room.used;
}

/* Free such memory. */
static inline void dy_free_memory(dy_graph *g, void *p, size_t bytes) {
    if (g->donates && dy_segment_of(&g->values, p))
        dy_add_hole(&g->values, &g->free_values, p, bytes);
    else
        dy_make_hole(&g->grads, &g->free_gradients, p, bytes);
}

static inline int dy_outlasts_pass(const dy_batch *first, const dy_batch *last) {
    for (; first <= last; first++)
        if (first->keeps)
            return 1;
    return 0;
}

/* Give memory to the gradients of a batch, which have none, and to those that are joint with them.  Returns 0 if there
 * is no memory. */
static inline int dy_claim_gradients(dy_graph *g, dy_batch *batch) {
    dy_batch *first = dy_first_joint(batch), *last = dy_last_joint(batch);
    char *p = (char *)dy_claim_memory(g, dy_gradient_bytes(first, last), dy_outlasts_pass(first, last));
    if (!p)
        return 0;
    for (dy_batch *b = first; b <= last; b++) {
        b->dy = (float *)p;
        p += dy_round_up(b->bytes, DY_ALIGN);
    }
    first->live = (uint32_t)(last - first) + 1; /* how many of them have not run backward yet */
    return 1;
}

/* A batch has run backward.  Returns the first of the batches whose gradients can be freed, or NULL. */
static inline dy_batch *dy_done_with(dy_batch *batch) {
    dy_batch *first = dy_first_joint(batch);
    return --first->live ? NULL : first;
}

/* ---- donated values ---- */

static inline int dy_is_donatable(const dy_batch *batch) {
    return (batch->lifetime & (DY_MAY_DONATE | DY_DONATED | DY_SPARED)) == DY_MAY_DONATE && !batch->keeps;
}

/* The values of a batch are not there any more, though its nodes keep the address. */
static inline void dy_donate(dy_graph *g, dy_batch *batch) {
    batch->lifetime |= DY_DONATED;
    g->has_donated = 1;
    dy_drop_values(g, batch);
}

/* Let the gradients of a batch, which have no memory yet, lie over its values. */
static inline void dy_lie_over(dy_graph *g, dy_batch *batch) {
    dy_donate(g, batch);
    batch->dy = batch->y;
    batch->live = 1;
}

#endif
