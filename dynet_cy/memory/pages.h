/* Pages of memory from the system, and why an allocation was refused. */
#ifndef DYNET_CY_PAGES_H
#define DYNET_CY_PAGES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <string.h>
#include <sys/mman.h>
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

/* Why an allocation was refused. */
enum { DY_LIMIT, DY_PART, DY_MACHINE, DY_SYSTEM };

typedef struct {
    int why;
    size_t needed, left, limit;
} dy_memory_refusal;

static _Thread_local dy_memory_refusal dy_memory_refused;
static inline dy_memory_refusal *dy_last_refusal(void) { return &dy_memory_refused; }

/* A mapping of another size, perhaps at another address; MAP_FAILED if there is no memory. */
static inline void *dy_remap(void *p, size_t had, size_t bytes) {
#ifdef MREMAP_MAYMOVE
    return mremap(p, had, bytes, MREMAP_MAYMOVE);
#else
    void *q = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (q != MAP_FAILED) {
        memcpy(q, p, had < bytes ? had : bytes);
        munmap(p, had);
    }
    return q;
#endif
}

/* Request huge pages, a hint that may have no effect. */
static inline void dy_prefer_huge_pages(void *p, size_t bytes) {
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE);
#else
    (void)p, (void)bytes;
#endif
}

/* Give memory to whole pages at once, which takes half as long as their first touches, one by one; a hint. */
static inline void dy_populate(void *p, size_t bytes) {
#ifdef __linux__
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23          /* since Linux 5.14 */
#endif
    madvise(p, bytes, MADV_POPULATE_WRITE);
#else
    (void)p, (void)bytes;
#endif
}

/* Free the memory of whole pages but keep their addresses. Their contents are undefined afterwards. */
static inline void dy_release(void *p, size_t bytes) {
#ifdef __linux__
    madvise(p, bytes, MADV_DONTNEED);
#else
    /* On other systems madvise is only a hint that keeps the pages: map new ones in their place. */
    mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_FIXED | MAP_NORESERVE, -1, 0);
#endif
}

#endif
