/* SPDX-License-Identifier: Apache-2.0 */

#define _POSIX_C_SOURCE 200809L
#include "pool.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* How long a thread looks for work, or for the end of a job, before it sleeps. To wake a thread costs 5 to 100 us, and the
 * products of a training follow each other within this time (docs/kernels.md). */
enum { LOOK_NS = 200000 };

static struct {
    pthread_mutex_t taken;      /* held by the thread that has taken the pool */
    pthread_mutex_t lock;       /* held while what follows is changed */
    pthread_cond_t begun;       /* a job has begun, or threads are to end */
    pthread_cond_t left;        /* the last thread has left the job */
    pthread_t threads[DY_MOST_THREADS];
    int n_threads;              /* how many of them there are */
    int ending;
    int asleep;                 /* threads that wait for `begun` */
    int waiting;                /* the owner of the job waits for `left` */
    int places;                 /* how many more threads may join the job */
    atomic_uint jobs;           /* counts the jobs */
    atomic_int looking;         /* threads that look for a job before they sleep */
    atomic_int inside;          /* threads that work on the job, its owner aside */
    atomic_size_t next;         /* its first part that nobody has taken */
    size_t parts;
    void (*run)(void *job, size_t part);
    void *job;
    fenv_t arithmetic;          /* the floating-point environment of the job's owner */
} pool = {.taken = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .begun = PTHREAD_COND_INITIALIZER,
          .left = PTHREAD_COND_INITIALIZER};

static atomic_int n_wanted = 1; /* threads for a job, as set */
static atomic_int n_possible = DY_MOST_THREADS; /* less if the system has refused to make more */
static atomic_int look = 0;     /* whether to look for work before sleeping: not if there are more threads than CPUs */
static atomic_int running = 0;  /* threads that compute */
static atomic_int ended = 0;    /* only `last` may begin to compute */
static pthread_t last;

static atomic_int flush = 1;    /* whether denormal numbers are treated as 0 */
static _Thread_local struct {
    int depth;                  /* nesting of begin and end */
    uint64_t before;            /* the bits of FLUSH at the first one */
} arithmetic;

/* The floating-point control register of the thread, and its bits for denormal numbers: results and arguments. */
#if defined(__x86_64__)
#define FLUSH 0x8040u
static inline uint64_t control(void) { return _mm_getcsr(); }
static inline void set_control(uint64_t x) { _mm_setcsr((unsigned)x); }
#elif defined(__aarch64__)
#define FLUSH (UINT64_C(1) << 24) /* both */
static inline uint64_t control(void) {
    uint64_t x;
    __asm__ volatile("mrs %0, fpcr" : "=r"(x));
    return x;
}
static inline void set_control(uint64_t x) { __asm__ volatile("msr fpcr, %0" : : "r"(x)); }
#else
#define FLUSH 0u
static inline uint64_t control(void) { return 0; }
static inline void set_control(uint64_t x) { (void)x; }
#endif

void dy_arithmetic_begin(void) {
    if (arithmetic.depth++) return;
    uint64_t now = control();
    arithmetic.before = now & FLUSH;
    if (atomic_load_explicit(&flush, memory_order_relaxed) && arithmetic.before != FLUSH) set_control(now | FLUSH);
}

void dy_arithmetic_end(void) {
    if (--arithmetic.depth) return;
    uint64_t now = control();
    if ((now & FLUSH) != arithmetic.before) set_control((now & ~(uint64_t)FLUSH) | arithmetic.before);
}

void dy_flush_denormals(int on) { atomic_store(&flush, on); }

int dy_flushes_denormals(void) { return atomic_load(&flush); }

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Looks until `x` is (or with `not`, is no longer) `value`, for a while. */
#define LOOK(x, is, value)                                                     \
    do {                                                                       \
        if (!atomic_load_explicit(&look, memory_order_relaxed)) break;         \
        int64_t end = now() + LOOK_NS;                                         \
        while (!(atomic_load_explicit(&(x), memory_order_acquire) is (value)) && now() < end) \
            for (int i = 0; i < 16; i++) relax();                              \
    } while (0)

static void do_parts(void (*run)(void *, size_t), void *job, size_t parts) {
    for (size_t i; (i = atomic_fetch_add_explicit(&pool.next, 1, memory_order_relaxed)) < parts;) run(job, i);
}

static void *work(void *jobs_seen) {
    unsigned seen = (unsigned)(uintptr_t)jobs_seen;
    pthread_mutex_lock(&pool.lock);
    while (!pool.ending) {
        if (atomic_load(&pool.jobs) == seen) {
            pthread_mutex_unlock(&pool.lock);
            atomic_fetch_add(&pool.looking, 1);
            LOOK(pool.jobs, !=, seen);
            atomic_fetch_sub(&pool.looking, 1);
            pthread_mutex_lock(&pool.lock);
            pool.asleep++;
            while (!pool.ending && atomic_load(&pool.jobs) == seen) pthread_cond_wait(&pool.begun, &pool.lock);
            pool.asleep--;
            continue;
        }
        seen = atomic_load(&pool.jobs);
        if (!pool.places) continue; /* woken too late */
        pool.places--;
        atomic_fetch_add(&pool.inside, 1);
        void (*run)(void *, size_t) = pool.run;
        void *job = pool.job;
        size_t parts = pool.parts;
        fenv_t arithmetic = pool.arithmetic;
        pthread_mutex_unlock(&pool.lock);
        fesetenv(&arithmetic);
        do_parts(run, job, parts);
        pthread_mutex_lock(&pool.lock);
        if (atomic_fetch_sub(&pool.inside, 1) == 1 && pool.waiting) pthread_cond_signal(&pool.left);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

/* Make threads until there are n. Both locks must be held. */
static void make_threads(int n) {
    sigset_t all, before;
    if (pool.n_threads >= n) return;
    /* The threads of the program handle signals, not these. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; pool.n_threads < n; pool.n_threads++)
        if (pthread_create(&pool.threads[pool.n_threads], NULL, work, (void *)(uintptr_t)atomic_load(&pool.jobs))) {
            atomic_store(&n_possible, pool.n_threads + 1);
            break;
        }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* `taken` must be held. */
static void end_threads(void) {
    pthread_mutex_lock(&pool.lock);
    pool.ending = 1;
    pthread_cond_broadcast(&pool.begun);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < pool.n_threads; i++) pthread_join(pool.threads[i], NULL);
    pool.n_threads = 0;
    pool.ending = 0;
}

static void after_fork(void) {
    static const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    pool.taken = pool.lock = mutex;
    pool.begun = pool.left = cond;
    pool.n_threads = pool.ending = pool.asleep = pool.waiting = pool.places = 0;
    atomic_store(&pool.looking, 0);
    atomic_store(&pool.inside, 0);
    atomic_store(&running, 0); /* the thread that forks does not compute */
}

int dy_pool_init(void) { return pthread_atfork(NULL, NULL, after_fork); }

void dy_pool_set_threads(int threads, int cpus) {
    pthread_mutex_lock(&pool.taken);
    if (threads - 1 < pool.n_threads) end_threads();
    atomic_store(&n_wanted, threads);
    atomic_store(&n_possible, DY_MOST_THREADS);
    atomic_store(&look, threads <= cpus);
    pthread_mutex_unlock(&pool.taken);
}

int dy_pool_threads(void) { return atomic_load(&n_wanted); }

unsigned dy_pool_jobs(void) { return atomic_load(&pool.jobs); }

void dy_pool_stop(void) {
    pthread_mutex_lock(&pool.taken);
    end_threads();
    pthread_mutex_unlock(&pool.taken);
}

void dy_pool_enter(void) {
    atomic_fetch_add(&running, 1);
    if (atomic_load(&ended) && !pthread_equal(pthread_self(), last)) {
        atomic_fetch_sub(&running, 1);
        for (;;) pause();
    }
    dy_arithmetic_begin();
}

void dy_pool_leave(void) {
    dy_arithmetic_end();
    atomic_fetch_sub(&running, 1);
}

void dy_pool_end(void) {
    last = pthread_self();
    atomic_store(&ended, 1);
    while (atomic_load(&running)) nanosleep(&(struct timespec){0, 1000000}, NULL);
    dy_pool_stop();
}

int dy_pool_take(int most, int most_awake) {
    int n = atomic_load_explicit(&n_wanted, memory_order_relaxed);
    int possible = atomic_load_explicit(&n_possible, memory_order_relaxed);
    int others = atomic_load_explicit(&running, memory_order_relaxed) - 1;
    int awake = 1 + atomic_load_explicit(&pool.looking, memory_order_relaxed);
    if (n > possible) n = possible;
    if (others > 0) n -= others;
    if (n > most_awake) n = most_awake;
    if (n > most && n > awake) n = most > awake ? most : awake;
    return n > 1 && !pthread_mutex_trylock(&pool.taken) ? n : 1;
}

void dy_pool_run(int threads, size_t parts, void (*run)(void *job, size_t part), void *job) {
    pthread_mutex_lock(&pool.lock);
    make_threads(threads - 1);
    pool.run = run;
    pool.job = job;
    pool.parts = parts;
    pool.places = threads - 1;
    fegetenv(&pool.arithmetic);
    atomic_store(&pool.next, 0);
    int wake = pool.asleep < threads - 1 ? pool.asleep : threads - 1;
    /* Last, because threads that see it then take the lock. */
    atomic_fetch_add(&pool.jobs, 1);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < wake; i++) pthread_cond_signal(&pool.begun);
    do_parts(run, job, parts);
    pthread_mutex_lock(&pool.lock);
    pool.places = 0; /* no more threads may join, so nobody has to wait for them */
    pthread_mutex_unlock(&pool.lock);
    LOOK(pool.inside, ==, 0);
    pthread_mutex_lock(&pool.lock);
    pool.waiting = 1;
    while (atomic_load(&pool.inside)) pthread_cond_wait(&pool.left, &pool.lock);
    pool.waiting = 0;
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.taken);
}
