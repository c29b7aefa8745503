/* Memory of transient values, which no backward reads and for which the program cannot ask.
 *
 * A transient batch has memory from its forward to that of the last batch that reads it: a part of one block in the arena
 * of gradients, which has no other use during forward.  Then its nodes have no value, as those of a stretch that was
 * dropped (dropping.h), but keep the address of it: backward finds their gradients by the distance from the address of
 * the batch.  `schedule/transient` says which batches are transient, `execute/rematerialize` computes their values again.
 */
#ifndef DYNET_CY_TRANSIENT_H
#define DYNET_CY_TRANSIENT_H

#include <string.h>

#include "graph.h"
#include "liveness.h"

/* Free ranges of a block that does not exist yet, so `at` counts from its beginning; the array has room for one hole more
 * than there are batches. */
typedef struct {
    dy_hole *holes;             /* in order, apart from each other */
    size_t n;
    size_t end;                 /* of what is used so far: the size of the block */
} dy_block;

/* What a batch takes of a block: a gap follows, since values of different batches must not be adjacent. */
static inline size_t dy_block_bytes(size_t bytes) { return dy_round_up(bytes, DY_ALIGN) + DY_ALIGN; }

/* Note that a range is free. */
static inline void dy_give_to_block(dy_block *block, size_t at, size_t bytes) {
    dy_hole *hole = block->holes;
    size_t low = 0, high = block->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((size_t)hole[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    int joins_last = low > 0 && (size_t)hole[low - 1].at + hole[low - 1].bytes == at;
    int joins_next = low < block->n && at + bytes == (size_t)hole[low].at;
    if (joins_last) {
        hole[low - 1].bytes += bytes + (joins_next ? hole[low].bytes : 0);
        if (joins_next)
            memmove(hole + low, hole + low + 1, (--block->n - low) * sizeof(dy_hole));
    } else if (joins_next) {
        hole[low].at = (char *)at;
        hole[low].bytes += bytes;
    } else {
        memmove(hole + low + 1, hole + low, (block->n++ - low) * sizeof(dy_hole));
        hole[low].at = (char *)at;
        hole[low].bytes = bytes;
    }
}

/* Find room in a block: the smallest hole that is large enough, else at its end. */
static inline size_t dy_take_in_block(dy_block *block, size_t bytes) {
    dy_hole *hole = block->holes, *best = NULL;
    size_t at = block->end;
    for (size_t k = 0; k < block->n; k++)
        if (hole[k].bytes >= bytes && (!best || hole[k].bytes < best->bytes))
            best = &hole[k];
    if (!best) {
        best = block->n ? &hole[block->n - 1] : NULL;       /* the last one may end where the block does */
        if (best && (size_t)best->at + best->bytes == at) {
            at = (size_t)best->at;
            block->n--;
        }
        block->end = at + bytes;
        return at;
    }
    at = (size_t)best->at;
    best->at += bytes;
    best->bytes -= bytes;
    if (!best->bytes) {
        memmove(best, best + 1, (size_t)((char *)(hole + block->n) - (char *)(best + 1)));
        block->n--;
    }
    return at;
}

/* The values of a transient batch have been read for the last time. */
static inline void dy_drop_transient(dy_graph *g, const dy_batch *batch) {
    for (uint32_t j = 0; j < batch->count; j++)
        dy_state(g)[dy_order(g)[batch->first + j]] &= (uint8_t)~(DY_COMPUTED | DY_SENT);
}

#endif
