/* An op is data: a name, a shape rule, forward and backward functions, and how its nodes are batched.  Graphs,
 * schedules and executors know ops only through this struct. */
#ifndef DYNET_CY_OP_H
#define DYNET_CY_OP_H

#include "tensor.h"

/* How one argument of many nodes becomes one argument of a batched call. */
enum {
    DY_STACK,                   /* concatenated along the batch */
    DY_LIST,                    /* read in place through `dy_element`; backward adds, or follows `accumulate` */
    DY_SHARE                    /* all nodes have the same argument */
};

/* How the nodes of an op batch. */
enum {
    DY_BATCH,                   /* by the rule of each argument; shapes must be equal */
    DY_FLAT,                    /* element by element: shapes do not matter */
    DY_ALONE                    /* never: `alone_because` says why */
};

/* The role of an op for passes over the nodes of a plan.  Rewrites know sums of products by their roles. */
enum {
    DY_NO_ROLE,
    DY_ADDS,                    /* adds two arguments */
    DY_MULTIPLIES,              /* multiplies two arguments, element by element */
    DY_PRODUCT,                 /* multiplies two matrices */
    DY_TRANSFERS                /* copies its argument to another device, which executors do themselves */
};

/* What the backward of an op does not read, besides dy: bits of `unread`.  For arguments, as in `rule`: 0; 1, 3, 5...; 2, 4,
 * 6...  That memory may hold other numbers by then. */
enum {
    DY_UNREAD_FIRST = 1,
    DY_UNREAD_ODD = 2,
    DY_UNREAD_EVEN = 4,
    DY_UNREAD_ARGUMENTS = 7,
    DY_UNREAD_RESULT = 8,
    DY_UNREAD = 15
};

/* Some arguments of an op, as bits of a number that stands for all of them in `integers` and `moves`.  For argument 0, as in
 * `rule`; for 1, 3, 5...; for 2, 4, 6... */
enum {
    DY_FIRST = 1,
    DY_SECOND = 2,
    DY_THIRD = 4,
    DY_ALL = 7
};

/* The input of a shape rule: the shapes of the arguments, attributes and items. */
typedef struct {
    uint32_t n;
    const dy_dim *const *x;
    dy_attr *attrs;             /* the rule may normalise them */
    const uint32_t *items;
    uint32_t n_items;
    uint32_t bd;                /* batch size that the arguments share */
    void *object;
} dy_shapes;

/* Writes the shape of the result; y->bd is already s->bd.  May raise. */
typedef int (*dy_dim_rule)(const dy_shapes *s, dy_dim *y);
typedef void (*dy_forward)(const dy_call *c);
/* Gradient of argument i into c->dx. */
typedef void (*dy_backward)(const dy_call *c, uint32_t i);
/* Number of floats that forward saves for backward. */
typedef size_t (*dy_saved)(const dy_call *c);
/* Floats of working memory, in forward (i = -1) or in the backward of argument i. */
typedef size_t (*dy_work)(const dy_call *c, int i);
/* The share of argument i in a concatenated result, so that its backward finds its position by itself. */
typedef size_t (*dy_part)(const dy_call *c, uint32_t i);

/* Runs before the backward of a call: computes what the gradients of all its arguments need into c->work, which has
 * op.prepared() floats and stays valid until the backward of the last argument.  Such an op has no `work` there.  Like forward, it
 * may take the GIL; backward may not, since locks are held. */
typedef void (*dy_prepare)(const dy_call *c);
/* The exception of the last forward or prepare of this thread, a new reference to a Python object; NULL if there was none. */
typedef void *(*dy_raised)(void);

/* The gradients of all arguments of a piece of a call: into dx[i], unless it is NULL, and added to it if adds[i]. */
typedef void (*dy_backward_all)(const dy_call *c, float *const *dx, const uint8_t *adds);

/* The offset of the result of an op of one argument in the argument, in floats; -1: the result is not one piece of the
 * argument. */
typedef ptrdiff_t (*dy_view_of)(const dy_dim *x, const dy_dim *y, const dy_attr *attrs, const uint32_t *items);

/* A gradient of shape rows x cols as a product L R': L is rows x n, R is cols x n, both contiguous. */
typedef struct {
    const float *left, *right;
    size_t rows, cols, n;
} dy_factors;

/* The gradient of argument i as a product, if the call allows it; otherwise n remains 0.  The executor collects the
 * factors of many calls and multiplies once. */
typedef void (*dy_factors_of)(const dy_call *c, uint32_t i, dy_factors *f);

/* The number of which the gradients of all arguments are dy times. */
typedef float (*dy_spread)(const dy_call *c);
/* Where the gradient of argument i already is, or NULL. */
typedef float *(*dy_same)(const dy_call *c, uint32_t i);
/* Whether y is its arguments, as they lie in memory, one after the other. */
typedef int (*dy_is_laid)(const dy_dim *y, const dy_attr *attrs);

/* The needs of an op before it is called, for the walk over batches. */
typedef struct {
    dy_saved saved;             /* NULL: none */
    dy_work work;               /* NULL: none */
    dy_factors_of factors;      /* NULL: gradients are not products */
    dy_spread spread;           /* NULL: gradients are not multiples of dy */
    dy_same same;               /* NULL: they are nowhere yet */
    dy_is_laid laid;            /* NULL: it never is */
    uint8_t assigns;            /* backward follows c->accumulate; else it always adds */
    uint8_t lists;              /* DY_LIST arguments are read as lists; else they are concatenated */
} dy_needs;

/* Kinds of devices: each has its own code for an op, and so its own needs. */
enum { DY_CPU, DY_GPU, DY_KINDS };

typedef struct dy_op {
    const char *name;
    const char *args;           /* names of the arguments: "a b", "xs..." */
    uint32_t id;
    dy_dim_rule dim;
    dy_forward forward;
    dy_backward backward;       /* NULL: the op has no gradient */
    dy_needs needs[DY_KINDS];
    dy_part part;               /* NULL: backward needs no c->before */
    dy_prepare prepare;         /* NULL: none */
    dy_saved prepared;
    uint8_t prepares_over;      /* c->work may be dy->v: as many floats, and no other backward of the call reads dy */
    uint8_t anywhere;           /* forward, prepare and backward run on every device: they launch products (ops/linalg) */
    dy_backward_all backward_all;   /* NULL, or: of an elementwise op, the gradients of all arguments at once */
    dy_view_of view;            /* NULL, or: the result may be a part of the argument in memory */
    dy_raised raised;           /* NULL: forward and prepare cannot fail */
    uint8_t batching;
    uint8_t role;
    uint8_t activation;         /* 0, or 1 + its number in unary.def: quick to compute, so backward may do it again */
    uint8_t rule[3];            /* of argument 0, of 1, 3, 5..., of 2, 4, 6... */
    uint8_t columns;            /* works column by column: columns of several nodes may form one matrix */
    uint8_t one_column[3];      /* with `columns`, as in `rule`: may be one vector for all columns */
    uint8_t ragged;             /* nodes of different sizes may form one batch, with a call for each */
    uint8_t in_place;           /* backward may write dx over dy, if they have the same size; 2: it is dy */
    uint8_t joins;              /* backward reads arguments and dy only: batches of several passes may run as one */
    uint8_t unread;             /* on the CPU: what backward does not read; 0: it may read all */
    uint8_t over;               /* arguments, as in `unread`, over which their gradients may be written: later backwards of the
                                 * call do not read them, and their own reads each number before it writes there, if at all */
    uint8_t any_batch;          /* arguments may differ in batch size; the shape rule sees s->bd 1 */
    uint8_t random;             /* its items identify its random draws: draws.h */
    uint8_t infinite;           /* may return infinities for finite numbers: not an anomaly */
    uint8_t truth;              /* returns 0 or 1, the truth value of a comparison of one element */
    /* Types.  An argument is floats, and so is the result, unless these say otherwise; integers in place of floats are
     * converted, by a node that is made for it. */
    uint8_t integers;           /* the arguments that may be either, such as an index */
    uint8_t moves;              /* the arguments that are copied bit by bit: the result has their type, which is the same */
    uint8_t result;             /* the type of the result, if it is that of no argument */
    const struct dy_op *of_integers;    /* NULL, or: the op in place of this one where all arguments are integers */
    const char *alone_because;
    const char *no_gradient_because;
} dy_op;

/* The index of argument i in `rule` and `one_column`. */
static inline int dy_rule_index(uint32_t i) { return i == 0 ? 0 : 2 - (int)(i & 1); }

static inline int dy_rule(const dy_op *op, uint32_t i) { return op->rule[dy_rule_index(i)]; }

/* Whether the backward of an op may read argument i, or its result. */
static inline int dy_reads(const dy_op *op, uint32_t i) {
    return op->backward != NULL && !(op->unread >> dy_rule_index(i) & 1);
}

/* Whether the gradient of argument i may be written over the argument, or a copy of it. */
static inline int dy_goes_over(const dy_op *op, uint32_t i) { return op->over >> dy_rule_index(i) & 1; }

static inline int dy_reads_result(const dy_op *op) {
    return op->backward != NULL && !(op->unread & DY_UNREAD_RESULT);
}

#endif
