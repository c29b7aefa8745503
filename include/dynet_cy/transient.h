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

/* Free ranges of a block that does not exist yet, so `at` counts from its beginning, which is 1, since NULL is no place;
 * the array has room for one hole more than there are batches. */
typedef struct {
    dy_hole *holes;             /* in order, apart from each other */
    size_t n;
    size_t end;                 /* of what is used so far: the size of the block */
} dy_block;

/* What a batch takes of a block: a gap follows, since values of different batches must not be adjacent. */
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

/* The values of a transient batch have been read for the last time. */
static inline void dy_drop_transient(dy_graph *g, const dy_batch *batch) {
    for (uint32_t j = 0; j < batch->count; j++)
        dy_state(g)[dy_order(g)[batch->first + j]] &= (uint8_t)~(DY_COMPUTED | DY_SENT);
}

#endif
