/* What random ops draw.  Shared by CPU and GPU. */
#ifndef DYNET_CY_DRAWS_H
#define DYNET_CY_DRAWS_H

#include <stdint.h>

/* Of each batch element of a random op, its items say: the number of the draw, and what is mixed into the seed, 0 but
 * in the items of a batched map. */
#define DY_DRAW_WORDS 3

/* An item of a batched map draws by itself. */
typedef struct {
    uint64_t key;               /* mixed into the seed */
    uint64_t draws;             /* so many it has had */
    int inside;                 /* 0: no item runs, and the rest means nothing */
} dy_drawing_item;

#endif
