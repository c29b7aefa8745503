/* A barrier in shared memory for the processes of one machine. A process that waits long sleeps. */
#ifndef DYNET_CY_BOARD_H
#define DYNET_CY_BOARD_H

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define DY_PAGE 4096
#define DY_WHAT 48

/* The first page of the shared memory. */
typedef struct {
    uint64_t magic;
    uint64_t top;               /* bytes of the file in use */
    uint32_t size;              /* processes */
    uint32_t arrived;           /* arrivals of all processes at barriers, modulo 2^32 */
    uint32_t generation;        /* barriers at which all have arrived; waiters sleep on it */
    uint32_t sleepers;
} dy_board;

enum { DY_RUNNING, DY_WAITING, DY_ENDED };

/* One page for each process. */
typedef struct {
    uint32_t arrivals;          /* barriers at which it has arrived */
    uint32_t state;
    double since;               /* when it began to wait, in seconds of the monotonic clock */
    uint32_t left;              /* whether an exception has ended a collective call, so that it makes no more of them */
    uint32_t raised;            /* whether its program has ended with an exception; the process may still be running */
    char what[2][DY_WHAT];      /* what it waits in, for barriers with even and odd numbers */
    char file[DY_PAGE - 128];   /* the temporary file that it is writing, for the launcher to remove if it dies */
} dy_seat;

static inline double dy_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void dy_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Sleep until the word may have changed, a signal arrives, or the time is over. */
static inline void dy_sleep_on(uint32_t *word, uint32_t value, double seconds, int round) {
    struct timespec t;
#ifdef __linux__
    (void)round;
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
#else
    /* Pauses that grow, from 10 microseconds to 1 millisecond. */
    (void)word;
    (void)value;
    (void)seconds;
    t.tv_sec = 0;
    t.tv_nsec = round < 100 ? 10000L * (round + 1) : 1000000L;
    nanosleep(&t, NULL);
#endif
}

static inline void dy_wake_all(uint32_t *word) {
#ifdef __linux__
    syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
#else
    (void)word;
#endif
}

/* Arrive at barrier number k, the last one's number plus 1.  1 if all have arrived. */
static inline int dy_arrive(dy_board *b, dy_seat *seat, uint32_t k, const char *what) {
    strncpy(seat->what[k & 1], what, DY_WHAT - 1);
    seat->since = dy_now();
    __atomic_store_n(&seat->arrivals, k, __ATOMIC_SEQ_CST);
    if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_SEQ_CST) != k * b->size)
        return 0;
    __atomic_store_n(&b->generation, k, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&b->sleepers, __ATOMIC_SEQ_CST))
        dy_wake_all(&b->generation);
    return 1;
}

static inline int dy_all_came(dy_board *b, uint32_t k) {
    return (int32_t)(__atomic_load_n(&b->generation, __ATOMIC_SEQ_CST) - k) >= 0;
}

/* Wait for barrier k: spin for a while, then sleep.  1 if all have arrived, 0 after `seconds` or a signal. */
static inline int dy_await(dy_board *b, dy_seat *seat, uint32_t k, double spin, double seconds, int round) {
    double begun = dy_now();
    if (!round)
        while (dy_now() - begun < spin)
            for (int i = 0; i < 32; i++) {
                if (dy_all_came(b, k))
                    return 1;
                dy_relax();
            }
    __atomic_store_n(&seat->state, DY_WAITING, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&b->sleepers, 1, __ATOMIC_SEQ_CST);
    uint32_t seen = __atomic_load_n(&b->generation, __ATOMIC_SEQ_CST);
    if ((int32_t)(seen - k) < 0)
        dy_sleep_on(&b->generation, seen, seconds, round);
    __atomic_sub_fetch(&b->sleepers, 1, __ATOMIC_SEQ_CST);
    if (!dy_all_came(b, k))
        return 0;
    __atomic_store_n(&seat->state, DY_RUNNING, __ATOMIC_SEQ_CST);
    return 1;
}

/* Set the counter to one more than the larger of the two numbers, and return it. */
static inline uint64_t dy_count_up(uint64_t *counter, uint64_t own) {
    uint64_t seen = __atomic_load_n(counter, __ATOMIC_SEQ_CST), next;
    do
        next = (seen > own ? seen : own) + 1;
    while (!__atomic_compare_exchange_n(counter, &seen, next, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return next;
}

/* Make a mapping of a file, from byte `start` on, private: from now on other processes do not see what this one writes.
 *
 * The mapping keeps its address and contents.  Returns 0, or -1 with errno. */
static inline int dy_write_to_copy(void *at, size_t size, int fd, uint64_t start) {
    void *made = mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, (off_t)start);
    return made == MAP_FAILED ? -1 : 0;
}

#endif
