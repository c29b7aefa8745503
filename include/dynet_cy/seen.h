/* The current graph of a thread, as a module has last seen it. */
#ifndef DYNET_CY_SEEN_H
#define DYNET_CY_SEEN_H

#include <Python.h>

#include "atomics.h"
#include "graph.h"

/* A cache of the current graph of this thread, and what invalidates it: the version of the context, and the number
 * of times a graph was entered, left or closed.  Each module has its own cache, so that a lookup costs no call. */
typedef struct {
    dy_graph *graph;            /* NULL: none was made yet */
    uint64_t context_version, changes;
    const dy_number *counter;
} dy_seen;

static const dy_number dy_no_changes = 0;

static inline dy_seen *dy_seen_here(void) {
    static _Thread_local dy_seen seen = {NULL, 0, 1, &dy_no_changes};
    return &seen;
}

static inline uint64_t dy_context_version_now(void) { return PyThreadState_Get()->context_ver; }

#endif
