/* SPDX-License-Identifier: Apache-2.0 */

#if defined(__linux__)
#define _GNU_SOURCE /* sched_getcpu, pthread_setaffinity_np */
#else
#define _POSIX_C_SOURCE 200809L
#endif
#include "pool.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
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
enum { LOOK_NS = 200000, LOOKS = 32 /* between looks at the clock */, CACHE_LINE = 64, NOWHERE = -1 };

/* Two cores that share a cache answer each other within 50 to 130 ns, two that do not in 400 (on Zen 5). A virtual machine
 * may move from one to the other at any time, so this is measured again and again. */
enum { FAR_NS = 250, TRIPS = 8, MOST_TRIP_NS = 5000, MEASURED_NS = 50000000, FAR_FOR_NS = 200000000 };

/* Number 0 is the owner of a job, the thread that has taken the pool; the others are ours. */
typedef struct {
    pthread_t thread;
    pthread_cond_t begun;       /* a job has begun, or threads are to end */
    int asleep;                 /* waits for that */
    atomic_int cpu;             /* where it looked for work, or NOWHERE */
} Thread;

static struct {
    pthread_mutex_t owned;      /* held by the owner of the job */
    pthread_mutex_t lock;       /* held by those who fall asleep and those who wake them */
    pthread_cond_t done;        /* all parts of the job are done */
    Thread threads[DY_MOST_THREADS];
    atomic_int n_threads;       /* how many there are, the owner included */
    atomic_int n_asleep;
    atomic_int ending;
    atomic_int waiting;         /* the owner waits for `done` */

    /* The job. It does not change while any part of it is not done, so those who have taken a part may read it. */
    _Alignas(CACHE_LINE) void (*run)(void *job, size_t part);
    void *job;
    size_t parts;
    uint64_t control;           /* the floating-point settings of the owner */
    atomic_int of;              /* threads with lower numbers may join */
    _Alignas(CACHE_LINE) atomic_size_t left; /* parts that no thread has claimed */
    _Alignas(CACHE_LINE) atomic_size_t finished; /* parts that are done */
} pool = {.owned = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER,
          .n_threads = 1};

_Atomic uint64_t dy_pool_jobs, dy_background_runs;

/* How far thread 1 is from those that own jobs. */
_Atomic uint64_t dy_pool_far_from = FAR_NS, dy_pool_measurements;
static struct {
    _Alignas(CACHE_LINE) atomic_uint ping; /* it answers by making pong the same */
    _Alignas(CACHE_LINE) atomic_uint pong;
    _Alignas(CACHE_LINE) _Atomic uint64_t took; /* nanoseconds for both */
    atomic_llong measured;      /* when; 0: never */
} distance;

/* Background work: work of one thread that another thread does besides its jobs. */
static struct {
    atomic_int claimed;         /* a thread has such work */
    atomic_int offered;         /* perhaps there is some to do */
    atomic_int inside;          /* a thread of ours does it */
    atomic_int paused;          /* none may begin, and the one inside is to leave */
    void (*run)(void *work);
    void *work;
    uint64_t control;
} background;

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

/* The floating-point settings of the thread, and their bits for denormal numbers: results and arguments. */
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
static inline uint64_t control(void) { return (uint64_t)fegetround(); }
static inline void set_control(uint64_t x) { fesetround((int)x); }
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

static int this_cpu(void) {
#if defined(__linux__)
    return sched_getcpu();
#else
    return NOWHERE;
#endif
}

/* Moves threads of a job away from the CPU of another one. The scheduler often wakes a thread on the CPU of the thread that
 * woke it, and may leave both there for seconds, each looking for work while the other one waits to run. */
static void spread(int threads) {
#if defined(__linux__)
    cpu_set_t used, others;
    CPU_ZERO(&used);
    CPU_SET(sched_getcpu(), &used);
    for (int i = 1; i < threads; i++) {
        Thread *t = &pool.threads[i];
        int cpu = atomic_load_explicit(&t->cpu, memory_order_relaxed);
        if (cpu == NOWHERE) continue;
        if (!CPU_ISSET(cpu, &used)) {
            CPU_SET(cpu, &used);
            continue;
        }
        atomic_store_explicit(&t->cpu, NOWHERE, memory_order_relaxed); /* until it looks for work again */
        if (sched_getaffinity(0, sizeof others, &others)) continue;
        for (int j = 0; j < CPU_SETSIZE; j++)
            if (CPU_ISSET(j, &used)) CPU_CLR(j, &others);
        if (CPU_COUNT(&others)) pthread_setaffinity_np(t->thread, sizeof others, &others);
    }
#else
    (void)threads;
#endif
}

static int is_background(void) {
    return atomic_load(&background.offered) && !atomic_load(&background.inside) && !atomic_load(&background.paused);
}

static int is_work(int number) {
    return (atomic_load(&pool.left) && number < atomic_load(&pool.of)) || is_background();
}

static int is_done(void) { return atomic_load(&pool.finished) == pool.parts; }

/* Looks for a while; then sleeps until there is work. */
static void wait_for_work(int number) {
    Thread *t = &pool.threads[number];
    int cpu = NOWHERE;
    if (atomic_load_explicit(&look, memory_order_relaxed))
        for (int64_t end = now() + LOOK_NS; now() < end;) {
            if (this_cpu() != cpu) atomic_store_explicit(&t->cpu, cpu = this_cpu(), memory_order_relaxed);
            for (int i = 0; i < LOOKS; i++, relax()) {
                if (is_work(number)) return;
                unsigned ping = atomic_load(&distance.ping);
                if (number == 1 && ping != atomic_load_explicit(&distance.pong, memory_order_relaxed))
                    atomic_store(&distance.pong, ping);
            }
        }
    pthread_mutex_lock(&pool.lock);
    t->asleep = 1;
    atomic_fetch_add(&pool.n_asleep, 1); /* before `left` is read: the owner writes that and then reads this */
    while (!is_work(number) && !atomic_load(&pool.ending)) pthread_cond_wait(&t->begun, &pool.lock);
    atomic_fetch_sub(&pool.n_asleep, 1);
    t->asleep = 0;
    pthread_mutex_unlock(&pool.lock);
}

static void wake(int threads) {
    pthread_mutex_lock(&pool.lock);
    for (int i = 1; i < threads; i++)
        if (pool.threads[i].asleep) pthread_cond_signal(&pool.threads[i].begun);
    pthread_mutex_unlock(&pool.lock);
}

static void wait_until_done(void) {
    if (atomic_load_explicit(&look, memory_order_relaxed))
        for (int64_t end = now() + LOOK_NS; now() < end;)
            for (int i = 0; i < LOOKS; i++, relax())
                if (is_done()) return;
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.waiting, 1); /* before `finished` is read: the last thread writes that and then reads this */
    while (!is_done()) pthread_cond_wait(&pool.done, &pool.lock);
    atomic_store(&pool.waiting, 0);
    pthread_mutex_unlock(&pool.lock);
}

/* Takes parts of the job, and does them, until none is left. */
static void do_parts(void) {
    size_t left = atomic_load(&pool.left), done = 0, parts = 0;
    for (;;) {
        while (left && !atomic_compare_exchange_weak(&pool.left, &left, left - 1)) {}
        if (!left) break;
        if (!done) {
            parts = pool.parts;
            set_control(pool.control);
        }
        pool.run(pool.job, parts - left);
        done++;
        left--;
    }
    if (done && atomic_fetch_add(&pool.finished, done) + done == parts && atomic_load(&pool.waiting)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_signal(&pool.done);
        pthread_mutex_unlock(&pool.lock);
    }
}

static void do_background(void) {
    int nobody = 0;
    if (!is_background() || !atomic_compare_exchange_strong(&background.inside, &nobody, 1)) return;
    while (!atomic_load(&background.paused) && atomic_exchange(&background.offered, 0)) {
        set_control(background.control);
        atomic_fetch_add(&dy_background_runs, 1);
        background.run(background.work);
    }
    atomic_store(&background.inside, 0);
}

static void *work(void *number) {
    while (!atomic_load(&pool.ending)) {
        wait_for_work((int)(intptr_t)number);
        do_parts();
        do_background();
    }
    return NULL;
}

/* Make threads until there are n with the owner. `taken` must be held. */
static void make_threads(int n) {
    static const pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    sigset_t all, before;
    int i = atomic_load(&pool.n_threads);
    if (i >= n) return;
    /* The threads of the program handle signals, not these. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; i < n; i++) {
        Thread *t = &pool.threads[i];
        t->begun = cond;
        t->asleep = 0;
        atomic_store(&t->cpu, NOWHERE);
        if (pthread_create(&t->thread, NULL, work, (void *)(intptr_t)i)) {
            atomic_store(&n_possible, i);
            break;
        }
        atomic_store(&pool.n_threads, i + 1);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* `taken` must be held. */
static void end_threads(void) {
    int n = atomic_load(&pool.n_threads);
    atomic_store(&pool.ending, 1);
    wake(n);
    for (int i = 1; i < n; i++) pthread_join(pool.threads[i].thread, NULL);
    atomic_store(&pool.n_threads, 1);
    atomic_store(&pool.ending, 0);
}

static void after_fork(void) {
    static const pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    pool.owned = pool.lock = mutex;
    pool.done = cond;
    atomic_store(&pool.n_threads, 1);
    atomic_store(&pool.n_asleep, 0);
    atomic_store(&pool.ending, 0);
    atomic_store(&pool.waiting, 0);
    atomic_store(&pool.left, 0);
    atomic_store(&background.claimed, 0);
    atomic_store(&background.offered, 0);
    atomic_store(&background.inside, 0);
    atomic_store(&background.paused, 0);
    atomic_store(&running, 0); /* the thread that forks does not compute */
}

int dy_pool_init(void) { return pthread_atfork(NULL, NULL, after_fork); }

void dy_pool_set_threads(int threads, int cpus) {
    pthread_mutex_lock(&pool.owned);
    if (threads < atomic_load(&pool.n_threads)) end_threads();
    atomic_store(&n_wanted, threads);
    atomic_store(&n_possible, DY_MOST_THREADS);
    atomic_store(&look, threads <= cpus);
    pthread_mutex_unlock(&pool.owned);
}

int dy_pool_threads(void) { return atomic_load(&n_wanted); }

void dy_pool_stop(void) {
    pthread_mutex_lock(&pool.owned);
    end_threads();
    pthread_mutex_unlock(&pool.owned);
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

int dy_pool_acquire(int most, int most_awake) {
    int n = atomic_load_explicit(&n_wanted, memory_order_relaxed);
    int possible = atomic_load_explicit(&n_possible, memory_order_relaxed);
    int others = atomic_load_explicit(&running, memory_order_relaxed) - 1;
    int awake = atomic_load_explicit(&pool.n_threads, memory_order_relaxed) -
                atomic_load_explicit(&pool.n_asleep, memory_order_relaxed) -
                atomic_load_explicit(&background.inside, memory_order_relaxed);
    if (n > possible) n = possible;
    others += atomic_load_explicit(&background.inside, memory_order_relaxed);
    if (others > 0) n -= others;
    if (n > most_awake) n = most_awake;
    if (n > most && n > awake) n = most > awake ? most : awake;
    return n > 1 && !pthread_mutex_trylock(&pool.owned) ? n : 1;
}

/* Measures the distance, unless thread 1 does not look for work now. `taken` must be held. */
static void measure_distance(void) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < TRIPS; i++) {
        int64_t begun = now(), took = 0;
        unsigned ping = atomic_fetch_add(&distance.ping, 1) + 1;
        while (atomic_load(&distance.pong) != ping)
            if (now() - begun > MOST_TRIP_NS) return;
        took = now() - begun;
        if (took < least) least = took;
    }
    atomic_store(&distance.took, least);
    atomic_store(&distance.measured, now());
    atomic_fetch_add(&dy_pool_measurements, 1);
}

int dy_pool_far(void) {
    uint64_t from = atomic_load_explicit(&dy_pool_far_from, memory_order_relaxed);
    return !from ||
           (atomic_load_explicit(&distance.took, memory_order_relaxed) >= from &&
            now() - atomic_load_explicit(&distance.measured, memory_order_relaxed) < FAR_FOR_NS);
}

void dy_pool_run(int threads, size_t parts, void (*run)(void *job, size_t part), void *job) {
    make_threads(threads);
    spread(threads);
    if (atomic_load_explicit(&look, memory_order_relaxed) &&
        now() - atomic_load_explicit(&distance.measured, memory_order_relaxed) > MEASURED_NS)
        measure_distance();
    pool.run = run;
    pool.job = job;
    pool.parts = parts;
    pool.control = control();
    atomic_store(&pool.of, threads);
    atomic_store(&pool.finished, 0);
    atomic_fetch_add(&dy_pool_jobs, 1);
    atomic_store(&pool.left, parts); /* last: threads that see it begin */
    if (atomic_load(&pool.n_asleep)) wake(threads);
    do_parts();
    wait_until_done();
    pthread_mutex_unlock(&pool.owned);
}

int dy_background_claim(void (*run)(void *work), void *work) {
    int nobody = 0;
    if (atomic_load(&n_wanted) < 2 || atomic_load(&pool.n_threads) < 2 || !atomic_load(&look) ||
        atomic_load(&running) > 1 || !atomic_compare_exchange_strong(&background.claimed, &nobody, 1))
        return 0;
    background.run = run;
    background.work = work;
    background.control = control();
    return 1;
}

void dy_background_offer(int wakes) {
    atomic_store(&background.offered, 1);
    if (wakes && atomic_load(&pool.n_asleep) && !atomic_load(&background.inside)) wake(2);
}

int dy_background_paused(void) { return atomic_load_explicit(&background.paused, memory_order_relaxed); }

void dy_background_pause(void) {
    atomic_store(&background.paused, 1);
    for (int i = 0; atomic_load(&background.inside); i++)
        if (i < 10000) relax();
        else sched_yield(); /* it may wait for a lock, or for a CPU */
}

void dy_background_resume(void) {
    atomic_store(&background.paused, 0);
    dy_background_offer(0);
}

void dy_background_release(void) {
    atomic_store(&background.offered, 0);
    atomic_store(&background.paused, 0);
    atomic_store(&background.claimed, 0);
}
