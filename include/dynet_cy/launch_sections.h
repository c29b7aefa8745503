/* SPDX-License-Identifier: Apache-2.0
 *
 * Sections of recorded launches: the calls of members that do not depend on each other, such as the nodes of a batch with
 * a call for each. When a section ends, the first launches of all its members run together, then their second ones, and so
 * on: launches of one kernel as one launch of its group kernel (cuda/groups.cu), small products as one launch too. The
 * launches of a member stay in their order. A launch of products also makes the copies right before and after it. */
#ifndef DYNET_CY_LAUNCH_SECTIONS_H
#define DYNET_CY_LAUNCH_SECTIONS_H

#include "gpu.h"
#include "gpu_axes.h"
#include "gpu_group.h"
#include "group_copies.h"

/* Larger products fill a device alone, and cuBLAS computes them faster; this many multiplications. */
#define DY_MOST_GROUPED ((double)(1 << 18))

typedef struct {
    const uint16_t *grouped;    /* by number of a kernel: that of its group kernel, or 0 */
    int multiply;               /* number of the kernel of products */
    size_t from, last;          /* where the records of the section begin, and the last record before it */
    uint32_t count;             /* records before it */
    size_t n, capacity;
    size_t *at;                 /* by member: where its next record is; then one past its last one */
    char *records;              /* a copy of the records of the section */
    size_t bytes;
    const dy_move *moves;       /* of the last launch of moves, on the host; NULL: there was none */
    size_t n_moves;
    size_t moves_at;            /* where its record begins */
} dy_section;

static inline void dy_begin_section(dy_gpu *gpu, dy_section *s) {
    s->from = gpu->records->bytes;
    s->last = gpu->records->last;
    s->count = gpu->records->count;
    s->n = 0;
    gpu->apart = 1;
}

/* The records that follow are those of the next member. */
static inline void dy_begin_member(dy_gpu *gpu, dy_section *s) {
    if (2 * s->n + 2 > s->capacity) {
        size_t capacity = 2 * s->capacity + 64;
        size_t *at = (size_t *)realloc(s->at, capacity * sizeof(size_t));
        if (!at) {
            dy_gpu_failed(gpu, DY_LOG_FULL, -1);
            return;
        }
        s->at = at;
        s->capacity = capacity;
    }
    s->at[2 * s->n] = gpu->records->bytes - s->from;
    s->n++;
}

static inline const dy_record *dy_next_of(const dy_section *s, size_t member) {
    return s->at[2 * member] < s->at[2 * member + 1] ? (const dy_record *)(s->records + s->at[2 * member]) : NULL;
}

static inline int dy_is_small(const dy_record *r) {
    const dy_product *p = (const dy_product *)r;
    return r->kind == DY_RECORD_PRODUCT && p->count == 0 && (double)p->m * p->n * p->k <= DY_MOST_GROUPED;
}

/* The group kernel of a record, or -1. */
static inline int dy_group_kernel(const dy_gpu *gpu, const dy_section *s, const dy_record *r) {
    int kernel = dy_is_small(r) ? s->multiply
                 : r->kind == DY_RECORD_LAUNCH && !((const dy_launch *)r)->beginning
                     ? s->grouped[((const dy_launch *)r)->kernel]
                     : 0;
    return kernel && gpu->functions[kernel] ? kernel : -1;
}

/* Record it again, as it is. */
static inline void dy_record_again(dy_gpu *gpu, const dy_record *r) {
    if (r->kind == DY_RECORD_PRODUCT) {
        dy_multiply(gpu, 0, *(const dy_product *)r); /* which may be joined with the one before */
        return;
    }
    dy_record *to = (dy_record *)dy_add_record(gpu, r->kind, r->bytes);
    if (to)
        memcpy(to, r, r->bytes);
}

/* A group that is being filled. */
typedef struct {
    dy_group group;
    size_t words;
    uint32_t count, gx, gy, block, shared;
    const dy_record *only;      /* the first one */
} dy_filling;

static inline void dy_empty_group(dy_filling *f) {
    f->words = 0;
    f->count = f->gx = f->gy = f->block = f->shared = 0;
}

static inline void dy_record_members(dy_gpu *gpu, int multiply, const dy_members *g, unsigned gx) {
    dy_group group;
    void *parameter = &group;
    unsigned for_copies = dy_blocks(gpu, (g->longest + 1023) / 1024);
    memcpy(group.words, g->p, g->n * sizeof *g->p);
    dy_record_launch(gpu, multiply, gx > for_copies ? gx : for_copies, 1, (unsigned)g->n, DY_THREADS, 0, &parameter,
                     g->n * sizeof *g->p);
}

static inline void dy_take_members(dy_members *g, const void *from, size_t n) {
    memcpy(g->p, from, n * sizeof *g->p);
    g->n = n;
    g->longest = 0;
}

/* Record a group of products; if the last record is a launch of moves, together with these. */
static inline void dy_launch_products(dy_gpu *gpu, dy_section *s, dy_filling *f) {
    dy_members g;
    void *parameter = &f->group;
    if (s->moves && gpu->records->count && s->moves_at == gpu->records->last) {
        dy_take_members(&g, f->group.words, f->count);
        if (dy_copy_before(&g, s->moves, s->n_moves)) {
            dy_drop_record(gpu);
            s->moves = NULL;
            dy_record_members(gpu, s->multiply, &g, f->gx);
            return;
        }
    }
    dy_record_launch(gpu, s->multiply, f->gx, f->gy, f->count, f->block, f->shared, &parameter, 8 * f->words);
}

/* Let the last record make some copies if it is a group of products. Returns whether it does. */
static inline int dy_join_moves(dy_gpu *gpu, const dy_section *s, const dy_move *moves, size_t count) {
    const dy_launch *l = (const dy_launch *)(gpu->records->p + gpu->records->last);
    dy_members g;
    unsigned gx;
    if (!gpu->records->count || l->record.kind != DY_RECORD_LAUNCH || l->kernel != (uint32_t)s->multiply)
        return 0;
    gx = l->gx;
    dy_take_members(&g, l + 1, l->gz);
    if (!dy_copy_after(&g, moves, count))
        return 0;
    dy_drop_record(gpu);
    dy_record_members(gpu, s->multiply, &g, gx);
    return 1;
}

/* Note that the last record is a launch of these moves; NULL: a pass begins, and there is no such record. */
static inline void dy_note_moves(const dy_gpu *gpu, dy_section *s, const dy_move *moves, size_t count) {
    s->moves = moves;
    s->n_moves = count;
    s->moves_at = gpu->records->last;
}

static inline void dy_launch_group(dy_gpu *gpu, dy_section *s, int kernel, dy_filling *f) {
    void *parameter = &f->group;
    if (f->count == 1)
        dy_record_again(gpu, f->only);
    else if (f->count && kernel == s->multiply)
        dy_launch_products(gpu, s, f);
    else if (f->count)
        dy_record_launch(gpu, kernel, f->gx, f->gy, f->count, f->block, f->shared, &parameter, 8 * f->words);
    dy_empty_group(f);
}

/* Write the parameters of a launch as a group has them, which takes at most as many words; returns how many. */
static inline size_t dy_write_call(const dy_gpu *gpu, const dy_launch *l, uint64_t *to) {
    const char *from = (const char *)(l + 1);
    uint64_t *at = to;
    for (uint32_t i = 0; i < l->n; i++) {
        size_t bytes = gpu->parameter_bytes[l->kernel][i];
        const dy_axes *x = (const dy_axes *)from;
        if (bytes != sizeof *x) {
            memcpy(at, from, dy_whole_words(bytes));
            at += dy_whole_words(bytes) / 8;
        } else {
            *at++ = x->n;
            for (uint32_t k = 0; k < x->n; k++) {
                *at++ = x->size[k];
                for (uint32_t j = 0; j < DY_ARRAYS; j++)
                    *at++ = x->stride[j][k];
            }
        }
        from += dy_whole_words(bytes);
    }
    return (size_t)(at - to);
}

static inline uint32_t dy_larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

static inline void dy_add_to_group(dy_gpu *gpu, dy_section *s, int kernel, dy_filling *f, const dy_record *r) {
    const dy_launch *l = (const dy_launch *)r;
    const dy_product *p = (const dy_product *)r;
    dy_group_product product;
    uint64_t call[DY_MOST_PARAMETER_BYTES / 8];
    const void *data = &product;
    size_t words = sizeof product / 8;
    dy_group_head *head = (dy_group_head *)f->group.words;
    int is_call = r->kind == DY_RECORD_LAUNCH;
    if (is_call) {
        data = call;
        words = dy_write_call(gpu, l, call);
    }
    if (f->words + words > DY_GROUP_WORDS || (is_call && f->count == DY_GROUP_CALLS))
        dy_launch_group(gpu, s, kernel, f);
    if (f->count == 0)
        f->only = r;
    if (is_call) {
        if (f->count == 0) {
            memset(head, 0, sizeof *head);
            f->words = sizeof *head / 8;
        }
        head->first[f->count] = (uint16_t)f->words;
        f->gx = dy_larger(f->gx, l->gx);
        f->gy = dy_larger(f->gy, l->gy);
        f->block = dy_larger(f->block, l->block);
        f->shared = dy_larger(f->shared, l->shared);
    } else {
        product = (dy_group_product){.a = p->a, .b = p->b, .c = p->c, .m = (uint32_t)p->m, .n = (uint32_t)p->n,
                                     .k = (uint32_t)p->k, .lda = (uint32_t)p->lda, .ldb = (uint32_t)p->ldb,
                                     .ldc = (uint32_t)p->ldc, .alpha = p->alpha, .beta = p->beta,
                                     .ta = (uint32_t)p->ta, .tb = (uint32_t)p->tb};
        f->gx = dy_larger(f->gx, dy_blocks(gpu, ((size_t)p->m + 31) / 32 * (((size_t)p->n + 31) / 32)));
        f->gy = 1;
        f->block = DY_THREADS;
    }
    memcpy(f->group.words + f->words, data, 8 * words);
    f->words += words;
    f->count++;
}

/* Record the next launch of a member, together with those of all later members that have the same group kernel. */
static inline void dy_record_together(dy_gpu *gpu, dy_section *s, size_t member, uint8_t *done) {
    const dy_record *r = dy_next_of(s, member);
    int kernel = dy_group_kernel(gpu, s, r);
    dy_filling f;
    done[member] = 1;
    if (kernel < 0) {
        dy_record_again(gpu, r);
        return;
    }
    dy_empty_group(&f);
    dy_add_to_group(gpu, s, kernel, &f, r);
    for (size_t j = member + 1; j < s->n; j++) {
        const dy_record *other = dy_next_of(s, j);
        if (done[j] || !other || dy_group_kernel(gpu, s, other) != kernel)
            continue;
        dy_add_to_group(gpu, s, kernel, &f, other);
        done[j] = 1;
    }
    dy_launch_group(gpu, s, kernel, &f);
}

static inline int dy_keep_records(dy_gpu *gpu, dy_section *s) {
    dy_records *r = gpu->records;
    size_t bytes = r->bytes - s->from, all = bytes + s->n; /* and a mark for each member */
    if (all > s->bytes) {
        char *p = (char *)realloc(s->records, all);
        if (!p)
            return 0;
        s->records = p;
        s->bytes = all;
    }
    memcpy(s->records, r->p + s->from, bytes);
    for (size_t j = 0; j < s->n; j++)
        s->at[2 * j + 1] = j + 1 < s->n ? s->at[2 * j + 2] : bytes;
    r->bytes = s->from;
    r->last = s->last;
    r->count = s->count;
    return 1;
}

/* Record what the members have recorded in fewer launches. If there is no memory, they stay as they are. */
static inline void dy_end_section(dy_gpu *gpu, dy_section *s) {
    size_t bytes = gpu->records->bytes - s->from;
    int more = 1;
    gpu->apart = 0;
    if (gpu->error || s->n < 2 || !dy_keep_records(gpu, s))
        return;
    uint8_t *done = (uint8_t *)s->records + bytes;
    while (more && !gpu->error) {
        more = 0;
        for (size_t j = 0; j < s->n; j++)
            done[j] = !dy_next_of(s, j);
        for (size_t j = 0; j < s->n; j++)
            if (!done[j])
                dy_record_together(gpu, s, j, done);
        for (size_t j = 0; j < s->n; j++) {
            const dy_record *r = dy_next_of(s, j);
            if (r) {
                s->at[2 * j] += r->bytes;
                more = 1;
            }
        }
    }
}

#endif
