/* The batch whose products a thread computes. */
#ifndef DYNET_CY_CALLERS_H
#define DYNET_CY_CALLERS_H

#include "dynet_cy/storage.h"

/* Whose products this thread computes.  What is computed again must use the packed form of a parameter where it did
 * so before, and count as no further product; those that came first, and used none, are listed. */
typedef struct {
    uint64_t number;
    int again, narrow, n;
    const void *first[16];
} dy_caller;
static _Thread_local dy_caller dy_calling;
static inline dy_caller *dy_caller_here(void) { return &dy_calling; }

/* Whether the caller's next product with a matrix was the first one with it. */
static inline int dy_came_first(dy_caller *c, const dy_packed *x) {
    if (!c->again || !c->number || x->asker != c->number)
        return 0;
    for (int i = 0; i < c->n; i++)
        if (c->first[i] == x)
            return 0;
    if (c->n < 16)
        c->first[c->n++] = x;
    return 1;
}

#endif
