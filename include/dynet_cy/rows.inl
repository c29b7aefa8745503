/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that are read and added by index. The rows of a very frequent index are summed in blocks: a million equal float32 terms
 * in one running sum have a relative error of 0.01. */

/* Rows so many floats ahead are loaded into the cache, where they are far apart. */
#define DY_AHEAD 1024

/* The row that a loop over rows of n floats reaches after DY_AHEAD floats. */
DY_INLINE void DY_N(fetch)(size_t k, size_t count, size_t n, const uint32_t *items, const float *x) {
    size_t then = k + DY_AHEAD / n + 1;
    if (then >= count) return;
    const float *row = x + items[then] * n;
    for (size_t i = 0; i < n && i < DY_AHEAD; i += 16) __builtin_prefetch(row + i);
}

static void DY_N(take_rows)(size_t count, size_t n, const uint32_t *items, const float *x, float *y, int acc) {
    if (n == 1)
        for (size_t k = 0; k < count; k++) y[k] = acc ? y[k] + x[items[k]] : x[items[k]];
    else if (acc)
        for (size_t k = 0; k < count; k++) {
            DY_N(fetch)(k, count, n, items, x);
            DY_N(add)(n, x + items[k] * n, y + k * n);
        }
    else
        for (size_t k = 0; k < count; k++) {
            const float *row = x + items[k] * n;
            float *to = y + k * n;
            DY_N(fetch)(k, count, n, items, x);
            DY_EACH(S(to, L(row)););
        }
}

DY_INLINE void DY_N(add_row)(size_t n, const float *dy, float *x) {
    if (n == 1) *x += *dy;
    else DY_N(add)(n, dy, x);
}

/* Indices are counted by their low bits and by a hash: for a frequent index both counts are high, and for few others. */
#define DY_COUNTERS 4096
#define DY_COUNTER(i) ((i) % DY_COUNTERS)
#define DY_OTHER_COUNTER(i) ((uint32_t)((i) * 2654435761u) / (uint32_t)(0x100000000 / DY_COUNTERS))

/* The block of an index. */
typedef struct {
    uint32_t item, rows;
    int used;
} DY_N(row_block);

static DY_N(row_block) *DY_N(block_of)(DY_N(row_block) *blocks, size_t n, uint32_t item) {
    for (size_t k = 0; k < 8; k++) {
        DY_N(row_block) *b = blocks + (DY_OTHER_COUNTER(item) + k) % n;
        if (b->used && b->item != item) continue;
        b->used = 1;
        b->item = item;
        return b;
    }
    return NULL;
}

/* Whether an index may be very frequent, by its low bits, which are counted in `seen`. */
static int DY_N(may_be_frequent)(size_t count, const uint32_t *items, uint32_t *seen) {
    uint32_t most = 0;
    for (size_t k = 0; k < count; k++) {
        uint32_t now = ++seen[DY_COUNTER(items[k])];
        most = now > most ? now : most;
    }
    return most > DY_TERMS;
}

__attribute__((noinline)) static void DY_N(add_many_rows)(size_t count, size_t n, const uint32_t *items, const float *dy,
                                                          float *x) {
    uint32_t seen[DY_COUNTERS] = {0}, other[DY_COUNTERS] = {0};
    size_t capacity = 4 * (count / DY_TERMS) + 16;
    DY_N(row_block) *blocks = NULL;
    float *sums = NULL;
    int frequent = DY_N(may_be_frequent)(count, items, seen);
    for (size_t k = 0; frequent && k < count; k++) other[DY_OTHER_COUNTER(items[k])]++;
    /* Without memory for blocks there is one running sum, which is less accurate. */
    if (frequent) blocks = (DY_N(row_block) *)calloc(capacity, sizeof *blocks + n * sizeof *sums);
    if (blocks) sums = (float *)(blocks + capacity);
    for (size_t k = 0; k < count; k++) {
        uint32_t item = items[k];
        DY_N(row_block) *b = NULL;
        DY_N(fetch)(k, count, n, items, x);
        if (blocks && seen[DY_COUNTER(item)] > DY_TERMS && other[DY_OTHER_COUNTER(item)] > DY_TERMS)
            b = DY_N(block_of)(blocks, capacity, item);
        DY_N(add_row)(n, dy + k * n, b ? sums + (b - blocks) * n : x + item * n);
        if (b && ++b->rows == DY_TERMS) {
            DY_N(add_row)(n, sums + (b - blocks) * n, x + item * n);
            DY_N(fill)(n, 0, sums + (b - blocks) * n);
            b->rows = 0;
        }
    }
    for (size_t k = 0; blocks && k < capacity; k++)
        if (blocks[k].rows) DY_N(add_row)(n, sums + k * n, x + blocks[k].item * n);
    free(blocks);
}
#undef DY_AHEAD

static void DY_N(add_rows)(size_t count, size_t n, const uint32_t *items, const float *dy, float *x) {
    if (count > DY_TERMS) DY_N(add_many_rows)(count, n, items, dy, x);
    else
        for (size_t k = 0; k < count; k++) DY_N(add_row)(n, dy + k * n, x + items[k] * n);
}

/* Lines are rows of one float, over and over with the same indices: two at a time, so that indices are read half as often. */
static void DY_N(add_lines)(size_t lines, size_t count, size_t length, const uint32_t *items, const float *dy, float *x) {
    uint32_t seen[DY_COUNTERS] = {0};
    size_t line = 0;
    if (lines > 1 && !DY_N(may_be_frequent)(count, items, seen))
        for (; line + 2 <= lines; line += 2) {
            const float *from = dy + line * count;
            float *to = x + line * length;
            for (size_t k = 0; k < count; k++) {
                to[items[k]] += from[k];
                to[length + items[k]] += from[count + k];
            }
        }
    for (; line < lines; line++) DY_N(add_rows)(count, 1, items, dy + line * count, x + line * length);
}
#undef DY_COUNTERS
#undef DY_COUNTER
#undef DY_OTHER_COUNTER
