/* SPDX-License-Identifier: Apache-2.0
 *
 * The launch of a table of LSTM cells, together with the product that was recorded before it, if that computes the sums of
 * their gates or the gradients of their outputs (cuda/steps.cu). */
#ifndef DYNET_CY_CELL_STEPS_H
#define DYNET_CY_CELL_STEPS_H

#include "gpu.h"
#include "gpu_cells.h"

/* A table of n cells with h numbers, as the host has it. */
typedef struct {
    const void *lines;          /* dy_lstm_cell or, if `back`, dy_lstm_cell_back */
    size_t n, h;
    int back;
} dy_cell_table;

/* Where a product would have to put its column for a cell; NULL: the cell needs none. */
static inline const float *dy_column_of_cell(const dy_cell_table *t, size_t line) {
    const dy_lstm_cell *x = (const dy_lstm_cell *)t->lines + line;
    if (t->back)
        return ((const dy_lstm_cell_back *)t->lines)[line].dy;
    return x->bias ? x->gates : NULL;
}

/* Whether the product reads some of n floats. */
static inline int dy_product_reads(const dy_product *p, size_t count, const float *x, size_t n) {
    size_t a = (size_t)p->lda * (size_t)(p->ta ? p->m : p->k), b = (size_t)p->ldb * (size_t)p->n;
    for (int64_t z = 0; z < (int64_t)count; z++)    /* other memory may lie between them */
        if (dy_share(p->a + z * p->stride_a, a, x, n) || dy_share(p->b + z * p->stride_b, b, x, n))
            return 1;
    return 0;
}

/* Whether a cell writes what the product reads: memory of its factors may have been given to gradients of the cell. */
static inline int dy_cell_overwrites(const dy_cell_table *t, size_t line, const dy_product *p, size_t count) {
    size_t h = t->h;
    if (t->back) {
        const dy_lstm_cell_back *x = (const dy_lstm_cell_back *)t->lines + line;
        return dy_product_reads(p, count, x->dc, h) || dy_product_reads(p, count, x->dgates, 4 * h) ||
               (x->dbefore && dy_product_reads(p, count, x->dbefore, h));
    }
    const dy_lstm_cell *x = (const dy_lstm_cell *)t->lines + line;
    return dy_product_reads(p, count, x->c, h) || dy_product_reads(p, count, x->y, h) ||
           (x->bias && dy_product_reads(p, count, x->gates, 4 * h));
}

/* The line of the cell that n columns from c on belong to, those of the next lines following; t->n: there is none. */
static inline size_t dy_line_of_columns(const dy_cell_table *t, const float *c, size_t ldc, size_t n) {
    size_t line = 0, j = 0;
    while (line < t->n && dy_column_of_cell(t, line) != c)
        line++;
    if (t->n - line < n)
        return t->n;
    while (j < n && dy_column_of_cell(t, line + j) == c + j * ldc)
        j++;
    return j == n ? line : t->n;
}

/* Backward, sums are longer, and a block takes longer than cuBLAS beyond so many numbers, as measured on an H100. */
#define DY_LONGEST_SUM_BACK 1024

/* Whether the last record is a product of at most `most` multiplications that the launch of the cells can compute; `found`
 * then describes it. */
static inline int dy_product_of_cells(const dy_gpu *gpu, const dy_cell_table *t, double most, dy_cell_products *found) {
    const dy_product *p = (const dy_product *)(gpu->records->p + gpu->records->last);
    size_t count, first[DY_CELL_PRODUCTS] = {0, 0};
    if (!gpu->records->count || p->record.kind != DY_RECORD_PRODUCT)
        return 0;
    count = p->count > 1 ? (size_t)p->count : 1;
    if (count > DY_CELL_PRODUCTS || p->ta != t->back || p->tb || (size_t)p->m != (t->back ? 1 : 4) * t->h ||
        (t->back && p->k > DY_LONGEST_SUM_BACK) || p->alpha != 1 || (p->beta != 0 && p->beta != 1) || p->compute != DY_COMPUTE_FLOAT32 ||
        (double)p->m * p->n * p->k * (double)count > most)
        return 0;
    for (size_t z = 0; z < count; z++) {
        first[z] = dy_line_of_columns(t, p->c + (int64_t)z * p->stride_c, (size_t)p->ldc, (size_t)p->n);
        if (first[z] == t->n)
            return 0;
    }
    for (size_t line = 0; line < t->n; line++)
        if (dy_cell_overwrites(t, line, p, count))
            return 0;
    *found = (dy_cell_products){.a = p->a, .b = p->b, .stride_a = p->stride_a, .stride_b = p->stride_b,
                                .lda = (uint32_t)p->lda, .ldb = (uint32_t)p->ldb, .k = (uint32_t)p->k,
                                .n = (uint32_t)p->n, .count = (uint32_t)count, .acc = p->beta == 1,
                                .first = {(uint32_t)first[0], (uint32_t)first[1]}};
    return 1;
}

/* How many blocks the launch needs. */
static inline unsigned dy_blocks_of_cells(const dy_gpu *gpu, const dy_cell_table *t, const dy_cell_products *p) {
    size_t columns = p->n > 16 ? 32 : p->n > 8 ? 16 : p->n > 4 ? 8 : 4;
    size_t rest = (size_t)p->count * p->n < t->n ? (t->n * t->h + DY_THREADS - 1) / DY_THREADS : 0;
    return dy_blocks(gpu, (t->h + 7) / 8 * ((p->n + columns - 1) / columns) * p->count + rest);
}

#endif
