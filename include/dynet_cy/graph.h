/* A graph: nodes and everything they own, in arenas.
 *
 * Nodes are numbered in the order in which they are made, so arguments always have smaller numbers than the nodes that
 * use them.
 */
#ifndef DYNET_CY_GRAPH_H
#define DYNET_CY_GRAPH_H

#include <stdatomic.h>

#include "arena.h"
#include "storage.h"
#include "tensor.h"

/* The state of a node, one byte each, stored apart from the nodes: passes over a whole graph read only these. */
enum {
    DY_COMPUTED = 1,            /* it has a value */
    DY_WANTED = 2,              /* the schedule that is being made needs it */
    DY_LIVE = 4,                /* backward: its gradient has had its first contribution */
    DY_NEEDS_GRAD = 8,          /* backward: it depends on a parameter */
    DY_TRAINABLE = 16,          /* a leaf whose gradient goes to long-lived storage */
    DY_SHARED = 32,             /* a leaf that all batch elements may share: a parameter */
    DY_DROPPED = 64,            /* forward-only graphs: nothing can request its value any more */
    DY_SENT = 128               /* a leaf that has been copied to the device, or a value that has been copied from it */
};

#define DY_NO_BATCH UINT32_MAX

/* The version of a graph while it runs without the GIL; no expression has this version. */
#define DY_GRAPH_RUNNING UINT64_MAX

/* The low bits of a version count the reverts and renumberings since the renewal. */
#define DY_REVERT_BITS 28

/* The value of a node is there; it is not, or not any more.  Nothing else says so. */
static inline void dy_value_arrives(uint8_t *state) { *state = (uint8_t)((*state | DY_COMPUTED) & ~DY_WANTED); }
static inline void dy_value_leaves(uint8_t *state) { *state &= (uint8_t)~(DY_COMPUTED | DY_SENT); }

static inline int dy_same_renewal(uint64_t a, uint64_t b) { return a >> DY_REVERT_BITS == b >> DY_REVERT_BITS; }

typedef struct {
    uint32_t op : 10;
    uint32_t item_count : 22;   /* words of `items` per batch element */
    uint32_t nargs;
    uint32_t args;              /* index of its first argument in graph.args */
    uint32_t items;             /* index of its first item in graph.items */
    dy_attr attrs[DY_ATTRS];
    dy_dim dim;
    uint32_t batch;             /* the executed batch that holds its value, or DY_NO_BATCH */
    float *val;                 /* its value, once it has one; NULL for parameters */
    void *object;               /* long-lived object: parameter entry, lookup table */
} dy_node;

/* One argument of several nodes: side by side, or a list of pointers to the batch elements; neither: they share it. */
typedef struct {
    float *v;
    float **list;
    size_t bytes;               /* of v if it is a copy; without v, the copy is gone and backward makes another one */
    float *aside;               /* of a shared parameter that is part of transient values: a copy of its value */
} dy_laid;

/* How the nodes of a batch run: its form, which the plan chooses.  Executors have a function for each, forward and
 * backward. */
enum {
    DY_ONE,                     /* a single node: one call, with arguments in place */
    DY_STACKED,                 /* one call: arguments concatenated along the batch */
    DY_FLATTENED,               /* one call: an elementwise op on one long vector, without shapes */
    DY_COLUMNS,                 /* one call: the columns of all nodes are one matrix */
    DY_EACH,                    /* a call for each node, with arguments in place */
    DY_PIECES,                  /* a call for each run of nodes that are adjacent in all arguments: elementwise ops */
    DY_TILES,                   /* the same, in tiles, together with neighbours of this form */
    DY_VIEWS,                   /* no call: the results are parts of their arguments in memory */
    DY_COPIES,                  /* no call: the results are copies of their arguments: see gpu/copies */
    DY_IN_CELL,                 /* no call: the results are computed by the batch of form DY_CELL that follows */
    DY_CELL,                    /* one call for the elementwise steps of a recurrent cell: see gpu/cells */
    DY_IN_FUSION,               /* no call: the results are computed by the next batch of form DY_FUSION */
    DY_FUSION,                  /* one call for it and the batches of form DY_IN_FUSION before it: see gpu/fusion */
    DY_FORMS
};

/* In `keeps`, bits: the gradients stay until the next pass, since the program can ask for them; until the factors of
 * weight gradients are multiplied. */
enum { DY_KEEPS_ASKED = 1, DY_KEEPS_FACTORS = 2 };

/* In dy_batch.lifetime, bits of what becomes of its values, and of what its call needs in backward:
 *
 * - backward may use the memory of the values for gradients once it has read them; it has; not in this pass, since an
 *   expression outside it reads the values;
 * - they are to be computed again; for now only, since others are;
 * - it is in a stretch (dropping.h); it is the first batch of the innermost one; what its call needs in backward is gone;
 *   its values stay after the pass, since backward begins with them. */
enum {
    DY_MAY_DONATE = 1, DY_DONATED = 2, DY_SPARED = 4, DY_AGAIN = 8, DY_FOR_NOW = 16,
    DY_IN_STRETCH = 32, DY_CUT = 64, DY_STRIPPED = 128, DY_RESIDENT = 256
};

/* In dy_batch.why, bits of why the values of a batch are kept: the program refers to them; its own backward reads them;
 * they could not be computed again, or are too small to pay; the backward of batch `reader` reads them (0: they are
 * copied on the device); they are requested, or a node outside the plan reads them; a batch may read them in place
 * together with those beside them.  0: they are not kept, or this was not looked for. */
enum {
    DY_WHY_HELD = 1, DY_WHY_RESULT = 2, DY_WHY_ONCE = 4, DY_WHY_SMALL = 8, DY_WHY_READ = 16, DY_WHY_REQUESTED = 32,
    DY_WHY_BESIDE = 64, DY_WHY_VIEW = 128
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
    uint32_t cell;              /* 1 + the number of the batch that completes its values (DY_CELL), or 0 */
    uint32_t live;              /* forward-only graphs: how many of its values are still needed; others: gradients.h */
    uint8_t level;              /* 0: its values live as long as the graph.  Others go once the plan has read them, and
                                 * computed again, they stay for backward over the stretch of this depth around it;
                                 * DY_TRANSIENT: backward does not read them, see dropping.h */
    uint8_t planned;            /* the level that was planned; `level` is 0 once its values were asked for */
    uint8_t joint;              /* gradients.h */
    uint8_t keeps;              /* backward: why its gradients stay where they are: DY_KEEPS_... */
    uint16_t lifetime;          /* what becomes of its values: DY_MAY_DONATE and so on */
    uint8_t why;                /* why its values are kept: DY_WHY_..., for those who read the plan (watch/lifetimes) */
    uint32_t reader;            /* 1 + the first batch whose backward reads its values, among those planned with it; 0: none */
    uint32_t last;              /* unless `level` is 0: the last batch of the plan that reads its values */
    uint32_t again;             /* how often its values were computed again */
    uint32_t parts;             /* of the forms DY_IN_FUSION and DY_FUSION: how many of its nodes belong together */
    float *dy;                  /* the gradients of y; NULL: there is no memory for them yet, or not any more */
} dy_batch;

/* A product, an activation, or a sum that a larger sum has absorbed: it has no value, unless one is requested, and the
 * gradient of the sum is its own too, times the value of the other factor where it is a factor of a product. */
typedef struct {
    uint32_t part, sum;         /* nodes */
    uint32_t factor;            /* a node, or DY_NO_NODE */
} dy_absorbed;

#define DY_NO_NODE UINT32_MAX

/* The nodes that one call of `checkpoint` made: a range of numbers.  Regions are nested or disjoint. */
typedef struct {
    uint32_t first, end;
} dy_region;

/* The random numbers that ops draw. */
typedef struct {
    uint64_t seed, stream;
} dy_draws;

/* Consecutive batches of a plan: values that only they read are dropped, and computed again together; see dropping.h. */
typedef struct {
    uint32_t first, end;        /* batches */
    uint32_t depth;             /* 1, or one more than that of the stretch around it */
    uint8_t resident;           /* its values stay after the pass: it is the last one, in the last one around it */
    size_t scratch, scratch_end; /* of an innermost resident one: the range of the scratch arena that its calls took */
    dy_draws draws;
} dy_stretch;

#define DY_TRANSIENT UINT8_MAX

#define DY_MOST_DEPTH 8         /* of stretches; regions further inside belong to the one around them */

/* The block of the last pass if some of its values stay, until they have run backward; no bytes: there are none. */
typedef struct {
    char *block;
    size_t bytes;
    char *p;                    /* the part in which they lie */
    size_t used;                /* its bytes */
    size_t reserved;            /* the same with what waits behind it for them to go: for values of other stretches */
    uint8_t begun;              /* a backward pass has begun: gradients may be in other parts */
} dy_room;

/* The changes of a storage when a stretch first read parameters of it. */
typedef struct {
    const dy_changes *changes;
    dy_changes before;
} dy_read;

/* What is assumed of the passes of a graph within a limit of memory, since the renewal: see schedule/budget. */
typedef struct {
    double margin;              /* bytes that a pass takes for each byte that is known of it */
    uint32_t columns;           /* of the factors of a weight matrix's gradient that are collected, by the last plan */
    uint8_t keeps_least;        /* that plan keeps as little as it can */
} dy_assumed;

#define DY_GRAPH_ARRAYS 15
#define DY_GRAPH_ARENAS 4

typedef struct {
    union {                     /* by name, or as an array */
        dy_array arrays[DY_GRAPH_ARRAYS];
        struct {
            dy_array nodes, args, items, state; /* by node number, or offset in a node */
            dy_array order;     /* uint32: node numbers in the order of execution */
            dy_array batches;   /* dy_batch */
            union {
                dy_array uses;  /* forward-only graphs: see liveness.h */
                dy_array held;  /* all others: uint8 by node number, how many expressions refer to it: gradients.h */
            };
            dy_array absorbed;  /* dy_absorbed */
            dy_array devices;   /* multi-device graphs: uint8 by node number, where it runs */
            dy_array origins;   /* uint32 by node number, as far as recorded: see graph/origin.pxd */
            dy_array regions;   /* dy_region, by `first`; a region stands before those within it */
            dy_array stretches; /* dy_stretch: of each plan, one stands before those within it */
            dy_array reads;     /* dy_read */
            /* Free memory below the top of `values`, in backward for gradients, and of `grads`: dy_hole, liveness.h. */
            dy_array free_values, free_gradients;
        };
    };
    union {
        dy_arena arenas[DY_GRAPH_ARENAS];
        struct {
            dy_arena values, grads;
            dy_arena scratch;   /* gathered arguments, saved and temporary floats */
            dy_arena tables;    /* for devices: items, and lists of pointers; on the CPU: for copies of views */
        };
    };
    dy_memory memory;           /* of its arrays and arenas: the limit of this graph */
    uint32_t n_nodes, n_batches, n_order;
    uint32_t slot;              /* its index in the table of graphs */
    _Atomic uint64_t version;   /* renewal and revert, unique over all graphs; ~0 while running; threads ask at any time */
    uint64_t renewal;           /* the version, also while running */
    uint64_t stream;            /* random stream of this graph and renewal */
    uint32_t draws;             /* random draws taken since the renewal, or by the item of a batched map */
    uint64_t draw_key;          /* combined with the seed of draws: differs between items of a map; 0 outside */
    uint32_t stream_number;     /* of the graph, in order of making */
    uint32_t n_renewals;
    uint32_t n_forgets;         /* times that all values were dropped since the renewal */
    int strategy;               /* how its nodes are scheduled */
    uint8_t immediate;          /* compute each node when it is made */
    uint8_t check_validity;     /* computed values must be finite */
    uint8_t forward_only;       /* no backward will follow: values that are no longer needed are dropped */
    uint8_t aside;              /* backward adds to other arrays than the parameters' gradients: no hooks */
    uint32_t compact_at;        /* their nodes are also dropped when there are this many */
    int backward_from;          /* node of the last backward, or -1 */
    uint32_t forward_ms;        /* milliseconds of forward since the renewal */
    uint32_t n_passes;          /* forward passes that have computed something since the renewal */
    int device;                 /* where it runs: 0 for the CPU, 1 + n for GPU number n */
    uint8_t finishes;           /* the device's own passes over a plan are kept with it: see schedule/plan */
    uint8_t multi_device;       /* its nodes run on several devices, as `devices` says */
    uint8_t whole_gradients;    /* the last backward has kept all gradients, and those of a segment lie as its values do */
    uint8_t stale_gradients;    /* `dy`, `keeps` and `joint` of batches are those of an earlier pass, or before a revert */
    uint8_t has_empty;          /* a node of it has no elements: kernels and BLAS are not called for such */
    uint8_t may_raise;          /* a node of it runs Python code, forward and backward, or reads indices */
    uint8_t referred_to;        /* a garbage collection has left it: see `set_seed` */
    void *device_graphs;        /* what the backend of devices keeps for it */
    uint64_t shortages;         /* the process's count of shortages when the graph last freed memory */
    void *plans;                /* the cache of schedule/plan; NULL: none yet */
    void *speculation;             /* statistics of schedule/speculation; NULL: none yet */
    uint32_t early;             /* number of values that were computed early and not requested yet */
    uint32_t n_kept;            /* nodes at the last checkpoint: those stay as they were made */
    uint8_t has_dropped;        /* batches have a level that is not 0, or had one */
    uint32_t keeps_for;         /* renewals that are left for which it has no transient values */
    uint8_t may_donate;         /* some of its batches have the bit DY_MAY_DONATE */
    uint8_t has_donated;        /* some have the bit DY_DONATED, or had it */
    uint8_t donates;            /* this backward pass uses memory of values: DY_IN_ANY_ORDER or DY_IN_ORDER */
    uint32_t spares_for;        /* renewals that are left for which it does not */
    dy_room room;
    uint8_t is_torn;            /* backward has failed within a stretch: what it has computed again is to be dropped */
    uint64_t again_ns;          /* nanoseconds that computing values again has taken since the renewal */
    size_t missing;             /* bytes by which memory fell short of keeping all values, at most, since then */
    dy_assumed assumed;
} dy_graph;

static inline dy_node *dy_nodes(const dy_graph *g) { return (dy_node *)g->nodes.base; }
static inline uint8_t *dy_state(const dy_graph *g) { return (uint8_t *)g->state.base; }
static inline uint32_t *dy_order(const dy_graph *g) { return (uint32_t *)g->order.base; }
static inline dy_batch *dy_batches(const dy_graph *g) { return (dy_batch *)g->batches.base; }

/* In `devices`: an input without a device of its own; it is placed where it is first used. */
#define DY_MOVABLE 128

/* The device that a node runs on. */
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

/* The value of a node.  Storage may move, so the pointer of a parameter is read each time. */
static inline float *dy_value(const dy_node *x) {
    return x->val ? x->val : ((const dy_param *)x->object)->value;
}

#endif
