/* Bump allocators that grow when needed.
 *
 * An arena holds what pointers refer to, so it never moves.  An arena is a chain of segments, each at least as large as
 * all those before it together.  An allocation is within one segment; if it does not fit, it starts the next one.
 * Positions are offsets, which continue from segment to segment, so a bump pointer, a checkpoint and the copy of an
 * arena on a device are one number or one range each.  A large segment has more address space than was asked for: memory
 * comes with the first touch, and what is in few segments leaves few ends unused.
 *
 * An array holds elements that are found by index.  An array is one contiguous range, which moves when it grows, so no
 * pointer into it may be held while it grows.
 *
 * Rewinding moves the bump pointer and keeps the pages: touching them again takes a fortieth of the time of the first
 * touch.  A large allocation leaves the end of a segment unused, and skips smaller segments.  So an empty arena of several
 * segments in the memory of the host is replaced by one with room for all of them.  All arenas and arrays count against
 * one limit; memory above bump pointers is freed when it is needed elsewhere.
 */
#ifndef DYNET_CY_ARENA_H
#define DYNET_CY_ARENA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DY_ALIGN 64

typedef struct dy_arena dy_arena;
typedef struct dy_array dy_array;

typedef struct dy_memory dy_memory;

/* Memory accounting of the process, or of a part of it; the numbers are read and changed atomically.  The functions, in
 * dynet_cy/memory/arena.pyx, are the slow paths of those below. */
struct dy_memory {
    size_t limit;               /* the user's limit in bytes; 0: no limit */
    size_t used;                /* bytes that arenas and arrays hold */
    void *(*grow)(dy_arena *a, size_t bytes);
    void *(*extend)(dy_arena *a, void *p, size_t had, size_t more);
    int (*widen)(dy_array *a, size_t top);
    void (*rewind)(dy_arena *a, size_t top);
    dy_memory *around;          /* what it is a part of, whose limit holds too; NULL: that of the process */
};

typedef struct {
    char *p;
    size_t bytes;               /* a multiple of DY_ALIGN */
    size_t from;                /* the offset of its first byte */
    size_t charged;             /* bytes of it that count against the limit */
    size_t huge;                /* bytes from its beginning for which huge pages were requested, or never will be */
    ptrdiff_t gradient;         /* in a segment of values: the distance to their gradients */
} dy_segment;

struct dy_arena {
    uintptr_t origin;           /* the address that offset 0 would have in the segment in use */
    size_t top;                 /* the bump pointer: bytes in use */
    size_t end;                 /* the offset up to which the segment in use is charged */
    size_t from;                /* the offset where the segment in use begins */
    size_t first;               /* the least size of the first segment */
    dy_segment *segments;
    uint32_t n, now;            /* segments, and the one in use */
    uint32_t capacity;          /* capacity of the list of segments */
    uint8_t poison;             /* fill what a reset or rewind frees with NaN */
    uint8_t zeroed;             /* new segments are zero */
    uint8_t quiet;              /* may grow while locks are held, so growing it does not reclaim memory elsewhere */
    uint8_t mirrored;           /* work that a device has yet to do may be in empty segments, so growing keeps them */
    uint8_t foreign;            /* its only segment belongs to the caller */
    dy_memory *memory;          /* NULL: not open */
};

struct dy_array {
    char *base;
    size_t top;                 /* bytes in use */
    size_t capacity;            /* capacity in bytes, all of which counts against the limit */
    dy_memory *memory;          /* NULL: not open */
    uint8_t poison;
};

static inline size_t dy_round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

/* Allocate `bytes` on a 64-byte boundary; NULL if there is no memory. */
static inline void *dy_arena_alloc(dy_arena *a, size_t bytes) {
    size_t at = (a->top + DY_ALIGN - 1) & ~(size_t)(DY_ALIGN - 1);
    /* Without a segment not even an allocation of 0 bytes has an address. */
    if (at > a->end || bytes > a->end - at || !a->n)
        return a->memory->grow(a, bytes);
    a->top = at + bytes;
    return (void *)(a->origin + at);
}

/* Allocate `bytes` directly after the last allocation, or further up if they do not fit; NULL if there is no memory. */
static inline void *dy_arena_push(dy_arena *a, size_t bytes) {
    if (bytes > a->end - a->top || !a->n)
        return a->memory->grow(a, bytes);
    void *p = (void *)(a->origin + a->top);
    a->top += bytes;
    return p;
}

/* Extend the last allocation, `had` bytes at p, by `more` bytes.  It may move; NULL if there is no memory. */
static inline void *dy_arena_extend(dy_arena *a, void *p, size_t had, size_t more) {
    if (more > a->end - a->top)
        return a->memory->extend(a, p, had, more);
    a->top += more;
    return p;
}

/* Move the bump pointer back to `top`. */
static inline void dy_arena_rewind(dy_arena *a, size_t top) {
    if (a->poison || (a->now && top <= a->from))
        a->memory->rewind(a, top);
    else
        a->top = top;
}

/* The segment that has an offset, and the one that p points into; NULL: none. */
static inline const dy_segment *dy_segment_at(const dy_arena *a, size_t offset) {
    if (a->n)
        for (uint32_t i = a->now + 1; i-- > 0;)
            if (offset >= a->segments[i].from)
                return &a->segments[i];
    return NULL;
}

static inline const dy_segment *dy_segment_of(const dy_arena *a, const void *p) {
    if (a->n)
        for (uint32_t i = a->now + 1; i-- > 0;)
            /* An empty allocation may lie at its end; the gap after it belongs to no segment. */
            if ((uintptr_t)p - (uintptr_t)a->segments[i].p <= a->segments[i].bytes)
                return &a->segments[i];
    return NULL;
}

/* The address of an offset; NULL without a segment. */
static inline void *dy_arena_at(const dy_arena *a, size_t offset) {
    const dy_segment *s = dy_segment_at(a, offset);
    return s ? s->p + (offset - s->from) : NULL;
}

/* The offset of an address in the arena. */
static inline size_t dy_arena_offset(const dy_arena *a, const void *p) {
    const dy_segment *s = dy_segment_of(a, p);
    return s->from + (size_t)((const char *)p - s->p);
}

/* Append `bytes`; NULL if there is no memory. */
static inline void *dy_array_push(dy_array *a, size_t bytes) {
    size_t top = a->top + bytes;
    if (top > a->capacity || !a->capacity) {
        if (top < bytes || !a->memory->widen(a, top))
            return NULL;
    }
    void *p = a->base + a->top;
    a->top = top;
    return p;
}

/* Shorten the array to `top` bytes. */
static inline void dy_array_rewind(dy_array *a, size_t top) {
    if (a->poison && a->top > top)
        memset(a->base + top, 0xFF, a->top - top);
    a->top = top;
}

#endif
