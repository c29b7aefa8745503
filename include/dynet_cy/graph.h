/* A graph: nodes and everything they own, in arenas.
 *
 * Nodes are numbered in the order of their making, so arguments always have
 * smaller numbers than the nodes that use them.
 */
#ifndef DYNET_CY_GRAPH_H
#define DYNET_CY_GRAPH_H

#include "arena.h"
#include "storage.h"
#include "tensor.h"

/* State of a node, one byte each, apart from the nodes: passes over all of a
 * graph read these alone. */
enum {
    DY_COMPUTED = 1,            /* its value stands */
    DY_WANTED = 2,              /* the schedule in the making needs it */
    DY_LIVE = 4,                /* backward: its gradient has been started */
    DY_NEEDS_GRAD = 8,          /* backward: a parameter lies behind it */
    DY_TRAINABLE = 16,          /* a leaf whose gradient goes to long-lived storage */
    DY_SHARED = 32,             /* a leaf that every batch element may share: a parameter */
    DY_DROPPED = 64,            /* graphs that only go forward: nobody can ask for it any more */
    DY_SENT = 128               /* a leaf whose numbers are on the device too, or a value of the device that is here too */
};

#define DY_NO_BATCH UINT32_MAX

typedef struct {
    uint16_t op;
    uint16_t item_count;        /* words of `items` per batch element */
    uint32_t nargs;
    uint32_t args;              /* where its arguments begin in graph.args */
    uint32_t items;             /* where its items begin in graph.items */
    dy_attr attrs[DY_ATTRS];
    dy_dim dim;
    uint32_t batch;             /* the executed batch that holds its value, or DY_NO_BATCH */
    float *val;                 /* its value, once placed; NULL for parameters */
    void *object;               /* long-lived object: parameter entry, lookup table */
} dy_node;

/* One argument of several nodes: side by side, or a list of where the batch elements lie; neither: they share it. */
typedef struct {
    float *v;
    float **list;
} dy_laid;

/* How the nodes of a batch run. */
enum {
    DY_STACKED,                 /* one call: arguments side by side along the batch */
    DY_FLATTENED,               /* one call: all shapes forgotten, an elementwise op on one long vector */
    DY_COLUMNS,                 /* one call: the columns of all nodes are one matrix */
    DY_EACH                     /* a call for each node, on arguments where they lie */
};

/* Nodes that were run together; needed again in backward. */
typedef struct {
    uint32_t first, count;      /* its nodes: a range of graph.order */
    uint32_t bd;                /* batch size of the call */
    uint32_t form;
    dy_laid *x;                 /* one call for several nodes: their arguments */
    uint32_t *items;
    float *y;
    float *saved;
    float **saved_of;           /* DY_EACH: `saved` of each node, if the op saves anything */
    size_t bytes;               /* of y */
    uint32_t live;              /* graphs that only go forward: its nodes whose values are needed */
} dy_batch;

#define DY_GRAPH_ARRAYS 10
#define DY_GRAPH_ARENAS 4

typedef struct {
    union {                     /* anonymous: by name, or all in turn */
        dy_array arrays[DY_GRAPH_ARRAYS];
        struct {
            dy_array nodes, args, items, state; /* by node number, or offset in a node */
            dy_array order;     /* uint32: node numbers in the order of execution */
            dy_array batches;   /* dy_batch */
            dy_array uses, holes; /* graphs that only go forward: see liveness.h */
            dy_array devices;   /* on several: uint8 by node number, where it runs */
            dy_array origins;   /* uint32 by node number, as far as they are recorded: see graph/origin.pxd */
        };
    };
    union {
        dy_arena arenas[DY_GRAPH_ARENAS];
        struct {
            dy_arena values, grads;
            dy_arena scratch;   /* gathered arguments, saved and temporary floats */
            dy_arena tables;    /* on a device: items, and lists of what lies where */
        };
    };
    uint32_t n_nodes, n_batches, n_order;
    uint32_t slot;              /* where the graph is in the table of graphs */
    uint64_t version;           /* renewal and revert, unique over all graphs; ~0 while running */
    uint64_t renewal;           /* the version, also while running */
    uint64_t stream;            /* random stream of this graph and renewal */
    uint32_t draws;             /* random draws taken since the renewal, or by the item of a batched map */
    uint64_t draw_key;          /* mixed into the seed of draws: differs from item to item; 0 outside of maps */
    uint32_t stream_number;     /* of the graph, in order of making */
    uint32_t n_renewals;
    uint32_t n_forgets;         /* times that all values were dropped since the renewal */
    int strategy;               /* how its nodes are scheduled */
    uint8_t immediate;          /* compute each node when it is made */
    uint8_t check_validity;     /* computed values must be finite */
    uint8_t forward_only;       /* no backward will follow: values that nobody needs are dropped */
    uint8_t aside;              /* backward adds to other gradients than the parameters' own: nobody waits for them */
    uint32_t compact_at;        /* and so are their nodes, when there are this many */
    int backward_from;          /* node of the last backward, or -1 */
    uint32_t forward_ms;        /* how long it has run forward since the renewal */
    int device;                 /* where it runs: 0 the CPU, 1 + n GPU number n */
    uint8_t multi_device;       /* its nodes run on several; where `devices` does not say, on that one */
    void *device_graphs;        /* what the backend of devices keeps for it */
    uint64_t shortages;         /* that the process has had when its memory was given back last */
    void *plans;                /* the cache of schedule/plan_cache; NULL: none yet */
    void *beside;               /* what is known of values that are asked for one by one; NULL: none was yet */
    uint32_t early;             /* values that were computed beside others, and not asked for yet */
} dy_graph;

static inline dy_node *dy_nodes(const dy_graph *g) { return (dy_node *)g->nodes.base; }
static inline uint8_t *dy_state(const dy_graph *g) { return (uint8_t *)g->state.base; }
static inline uint32_t *dy_order(const dy_graph *g) { return (uint32_t *)g->order.base; }
static inline dy_batch *dy_batches(const dy_graph *g) { return (dy_batch *)g->batches.base; }

/* In `devices`: an input for which no device was asked; it runs where it is used first. */
#define DY_MOVABLE 128

/* Where a node runs. */
static inline int dy_device(const dy_graph *g, uint32_t node) {
    return g->multi_device ? (uint8_t)g->devices.base[node] & ~DY_MOVABLE : g->device;
}

static inline uint32_t *dy_args(const dy_graph *g, const dy_node *x) {
    return (uint32_t *)g->args.base + x->args;
}

static inline uint32_t *dy_items(const dy_graph *g, const dy_node *x) {
    return (uint32_t *)g->items.base + x->items;
}

/* The line of the program that made a node, as a number of graph/origin; 0 where none is recorded. */
static inline uint32_t dy_origin(const dy_graph *g, uint32_t node) {
    return (node + (size_t)1) * sizeof(uint32_t) <= g->origins.top ? ((uint32_t *)g->origins.base)[node] : 0;
}

/* Where a node's value lies.  Storage may move, so parameters are asked anew. */
static inline float *dy_value(const dy_node *x) {
    return x->val ? x->val : ((const dy_param *)x->object)->value;
}

/* Room for gradients: those of a segment of values lie side by side as its values do.  0 when there is none. */
static inline int dy_open_gradients(dy_graph *g) {
    dy_arena *values = &g->values;
    dy_arena_rewind(&g->grads, 0);
    for (uint32_t i = 0; values->n && i <= values->now; i++) {
        dy_segment *s = &values->segments[i];
        size_t end = i < values->now ? values->segments[i + 1].from : values->top;
        char *p = (char *)dy_arena_alloc(&g->grads, end - s->from);
        if (!p)
            return 0;
        s->gradient = (ptrdiff_t)((uintptr_t)p - (uintptr_t)s->p);
    }
    return 1;
}

/* Where the gradient of the value at `v` lies. */
static inline float *dy_gradient(const dy_graph *g, const float *v) {
    return (float *)((uintptr_t)v + (uintptr_t)dy_segment_of(&g->values, v)->gradient);
}

#endif
