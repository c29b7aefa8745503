/* How random ops identify their draws.  Shared by CPU and GPU. */
#ifndef DYNET_CY_DRAWS_H
#define DYNET_CY_DRAWS_H

#include <stdint.h>

/* For each batch element, the items of a random op hold the number of the draw, and a key to be mixed into the seed,
 * which is 0 except in items of a batched map. */
#define DY_DRAW_WORDS 3

/* An item of a batched map has random draws of its own. */
typedef struct {
    uint64_t key;               /* mixed into the seed */
    uint64_t draws;             /* draws taken so far */
    int inside;                 /* 0: no item is running, and the other fields are unused */
} dy_drawing_item;

#endif
