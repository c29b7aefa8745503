/* Entries of long-lived parameter storage. */
#ifndef DYNET_CY_STORAGE_H
#define DYNET_CY_STORAGE_H

#include <pthread.h>

#include "arena.h"
#include "lazy.h"
#include "tensor.h"

/* A matrix in the order in which matrix products read it; see gemm.inl. */
typedef struct {
    float *panels;
    uint64_t asked, made;       /* dy_changes.n at the last product without panels, and when they were made */
    uint64_t asker;             /* that product, as kernels/product numbers it; 0: any */
} dy_packed;

/* How often values of a storage have changed: never 0, and how often those of a single parameter. */
typedef struct {
    uint64_t n, alone;
} dy_changes;

/* A parameter and its transpose, packed when products with the same values repeat. */
struct dy_pack {
    dy_changes *changes;        /* of the values */
    dy_arena *arena;            /* where panels live */
    pthread_mutex_t *lock;      /* held while this is read or changed */
    uint32_t *users;            /* products reading panels, incremented under the lock; freed at 0 only */
    dy_packed of[4];            /* the matrix, its transpose; both in bfloat16 */
    uint8_t shared;             /* other processes may write the values at any time: they are read in place, never packed */
};

/* One parameter, or one lookup table: `rows` rows of shape `dim`. */
typedef struct {
    dy_dim dim;
    uint32_t rows;              /* 0: a parameter, not a table */
    uint32_t id;                /* unique among all live entries of the process */
    uint32_t number;            /* its index among the entries of its storage */
    size_t offset, size;        /* floats, in every plane of the storage */
    float *value, *grad;
    int device;                 /* of the storage: 0 the CPU, 1 + n GPU number n */
    float *device_value, *device_grad;  /* on a device: pointers to value and gradient there */
    struct dy_pack pack;
    double factor;              /* of the numbers at `value`: 1 except for tables with weight decay */
    dy_lazy *lazy;              /* of a table whose updates may be deferred; NULL if they never may be */
    pthread_mutex_t lock;       /* held while the gradient is read or changed */
    uint8_t *is_touched;        /* tables: rows with a gradient, as a map and a list */
    uint32_t *touched;
    uint32_t n_touched;
    uint64_t changed_at;        /* pack.changes->n at the last change of these values alone */
    uint8_t updated;            /* it is trained; a constant otherwise */
    uint8_t in_place;           /* graphs read the numbers in place, so the factor must stay 1 */
    uint8_t has_gradient;       /* a graph has added to the gradient since the last update */
    uint64_t pass_number;       /* which backward pass did so last; see execute/accumulation.pxd */
} dy_param;

/* Note that values of the storage that p is in have changed. */
static inline void dy_value_changed(dy_param *p) {
    p->changed_at = ++p->pack.changes->n;
    p->pack.changes->alone++;
}

/* Note that row r of a table has a gradient. */
static inline void dy_touch(dy_param *p, uint32_t r) {
    if (!p->is_touched[r]) {
        p->is_touched[r] = 1;
        p->touched[p->n_touched++] = r;
    }
}

/* Note that a graph has added to all of the gradient. */
static inline void dy_note_gradient(dy_param *p) {
    p->has_gradient = 1;
    if (p->n_touched < p->rows)
        for (uint32_t r = 0; r < p->rows; r++)
            dy_touch(p, r);
}

/* Note that the gradient is zero. */
static inline void dy_forget_gradient(dy_param *p) {
    while (p->n_touched)
        p->is_touched[p->touched[--p->n_touched]] = 0;
    p->has_gradient = 0;
}

#endif
