/* An op is data: a name, a shape rule, a forward, a backward, and how its nodes
 * batch.  The graph, the schedules and the executors know ops only by this. */
#ifndef DYNET_CY_OP_H
#define DYNET_CY_OP_H

#include "tensor.h"

/* How one argument of many nodes becomes one argument of a batched call. */
enum {
    DY_STACK,                   /* laid side by side along the batch */
    DY_LIST,                    /* read where they lie: the op uses `dy_element` only; it adds gradients, or obeys accumulate */
    DY_SHARE                    /* the same node for all of them */
};

/* How the nodes of an op batch. */
enum {
    DY_BATCH,                   /* by the rule of each argument; shapes equal */
    DY_FLAT,                    /* element by element: shapes do not matter */
    DY_ALONE                    /* not at all: `alone_because` says why */
};

/* What a shape rule sees: the shapes of the arguments and the parameters. */
typedef struct {
    uint32_t n;
    const dy_dim *const *x;
    dy_attr *attrs;             /* the rule may bring them into normal form */
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
/* How much of what an op lays side by side is argument i's: so that each finds its place without looking at all others. */
typedef size_t (*dy_part)(const dy_call *c, uint32_t i);

/* Before the backward of a call: the gradients of all its arguments, into c->work, which has op.prepared() floats and is
 * there until the backward of the last one.  Such an op has no `work`.  It may take the GIL, as forward may; backward may
 * not, since locks are held. */
typedef void (*dy_prepare)(const dy_call *c);
/* The exception of the last forward or prepare of this thread, a new reference to a Python object; NULL if there was none. */
typedef void *(*dy_raised)(void);

/* A gradient of shape rows x cols as a product L R': L is rows x n, R cols x n, both contiguous. */
typedef struct {
    const float *left, *right;
    size_t rows, cols, n;
} dy_factors;

/* The gradient of argument i as a product, where the call allows it; else it leaves n as it is, 0.  The executor
 * collects the factors of many calls and multiplies once. */
typedef void (*dy_factors_of)(const dy_call *c, uint32_t i, dy_factors *f);

typedef struct dy_op {
    const char *name;
    const char *args;           /* names of the arguments: "a b", "xs..." */
    uint32_t id;
    dy_dim_rule dim;
    dy_forward forward;
    dy_backward backward;       /* NULL: the op has no gradient */
    dy_saved saved;             /* NULL: none */
    dy_work work;               /* NULL: none */
    dy_factors_of factors;      /* NULL: gradients are no products */
    dy_part part;               /* NULL: backward needs no c->before */
    dy_prepare prepare;         /* NULL: none */
    dy_saved prepared;
    dy_raised raised;           /* NULL: forward and prepare cannot fail */
    uint8_t batching;
    uint8_t rule[3];            /* of argument 0, of 1, 3, 5..., of 2, 4, 6... */
    uint8_t columns;            /* works column by column: of how many nodes they are does not matter */
    uint8_t one_column[3];      /* with `columns`, by rule: one vector may serve for the columns of all nodes */
    uint8_t ragged;             /* nodes that differ in sizes run together too, a call for each */
    uint8_t assigns;            /* backward obeys c->accumulate; else it adds */
    uint8_t any_batch;          /* arguments may differ in batch size; the shape rule sees s->bd 1 */
    uint8_t random;             /* its items say what it draws: draws.h */
    uint8_t infinite;           /* gives infinities of finite numbers on purpose: no anomaly */
    uint8_t truth;              /* gives 0 or 1, which is what `if` asks of one element */
    const char *alone_because;
    const char *no_gradient_because;
} dy_op;

/* Where argument i stands in `rule` and its like. */
static inline int dy_rule_index(uint32_t i) { return i == 0 ? 0 : 2 - (int)(i & 1); }

static inline int dy_rule(const dy_op *op, uint32_t i) { return op->rule[dy_rule_index(i)]; }

#endif
