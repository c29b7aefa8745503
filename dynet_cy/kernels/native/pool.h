/* SPDX-License-Identifier: Apache-2.0
 *
 * One pool of threads for the process, for jobs that consist of independent parts. A job belongs to the thread that
 * starts it, which works on it too. There is one job at a time; a thread that finds the pool in use does not wait, but
 * works alone. Threads are made when first needed. A forked process has none of them and makes its own. On Linux,
 * threads that share a CPU are moved apart. */
#ifndef DYNET_CY_POOL_H
#define DYNET_CY_POOL_H

#include <stddef.h>
#include <stdint.h>

enum { DY_MOST_THREADS = 1024 };

/* Call this once, before all others: it prepares for fork(). Returns 0, or an errno value. */
int dy_pool_init(void);

/* How many threads work on a job, at least 1, and how many run at once on this machine. */
void dy_pool_set_threads(int threads, int cpus);
int dy_pool_threads(void);

/* The number of jobs so far. */
extern _Atomic uint64_t dy_pool_jobs;

/* Ends the threads; they are made again when needed. */
void dy_pool_stop(void);

/* Between these calls the calling thread computes, with the engine's floating-point settings. Each further thread that
 * computes leaves one thread less for jobs. */
void dy_pool_enter(void);
void dy_pool_leave(void);

/* Between these calls the calling thread treats denormal numbers as 0, in arguments and results, because they take about
 * a hundred times as long as others. Afterwards its setting is restored. The calls may be nested; the threads of a job
 * use the settings of its owner. */
void dy_arithmetic_begin(void);
void dy_arithmetic_end(void);

/* Sets whether threads flush denormal numbers, from the next begin on; if not, the caller's own setting applies. */
void dy_flush_denormals(int on);
int dy_flushes_denormals(void);

/* Ends the threads and waits until no thread computes. Threads other than the caller that try to compute later sleep
 * forever. For the end of the process, when the memory that they use is freed. */
void dy_pool_end(void);

/* Takes the pool for the calling thread. Returns the number of threads for a job: at most `most_awake` if they are
 * already looking for work, at most `most` if some must be woken first. 1: the pool has not been taken. Otherwise
 * dy_pool_run must follow, which releases it. */
int dy_pool_acquire(int most, int most_awake);

/* Whether threads are on cores that share no cache, as measured lately: to move data between them takes five times as long,
 * so that only large jobs gain. */
int dy_pool_far(void);

/* From how many nanoseconds for a message and its answer on they count as such; 0: they always do. */
extern _Atomic uint64_t dy_pool_far_from;

/* How often these have been measured: jobs do when the other thread looks for work meanwhile. */
extern _Atomic uint64_t dy_pool_measurements;

/* Calls run(job, 0) ... run(job, parts - 1) on that many threads, in any order, and returns when all have returned. */
void dy_pool_run(int threads, size_t parts, void (*run)(void *job, size_t part), void *job);

/* Background work: results that a thread needs at the end only, and that a thread of the pool may compute meanwhile.
 * One thread at a time has such work. dy_background_claim returns whether it may: not if there is only one thread, if
 * other threads compute, or if there are more threads than CPUs. run(work) is called by one thread of ours at a time,
 * some time after dy_background_offer, and returns when nothing is left to do or dy_background_paused. With `wakes`, a
 * sleeping thread is woken for it. After dy_background_pause no thread is in it until dy_background_resume.
 * dy_background_release follows a pause. */
int dy_background_claim(void (*run)(void *work), void *work);
void dy_background_offer(int wakes);
int dy_background_paused(void);
void dy_background_pause(void);
void dy_background_resume(void);
void dy_background_release(void);

/* How often a thread of ours has called `run`. */
extern _Atomic uint64_t dy_background_runs;

#endif
