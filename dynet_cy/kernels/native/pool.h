/* SPDX-License-Identifier: Apache-2.0
 *
 * One pool of threads for the process, for jobs that fall into independent parts. A job belongs to the thread that asks
 * for it, which works on it too; there is one at a time, and nobody waits for the pool: who finds it taken works alone.
 * Threads are made when first wanted. A process that comes of fork() has none of them and makes its own. */
#ifndef DYNET_CY_POOL_H
#define DYNET_CY_POOL_H

#include <stddef.h>

enum { DY_MOST_THREADS = 1024 };

/* Called once, before all others: what fork() needs. Returns 0, or a number of errno. */
int dy_pool_init(void);

/* How many threads work on a job, at least 1, and how many run at once on this machine. */
void dy_pool_set_threads(int threads, int cpus);
int dy_pool_threads(void);

/* How many jobs there have been. */
unsigned dy_pool_jobs(void);

/* Ends the threads; those that are wanted later are made again. */
void dy_pool_stop(void);

/* Between these calls the calling thread computes, with the arithmetic of the engine. Every further thread that does leaves
 * one thread less for jobs. */
void dy_pool_enter(void);
void dy_pool_leave(void);

/* Between these calls the calling thread takes denormal numbers for 0, as arguments and as results: they cost a hundred
 * times the time of others. Then its setting is again what it was before. The calls may be nested; the threads of a job
 * have the arithmetic of its owner. */
void dy_arithmetic_begin(void);
void dy_arithmetic_end(void);

/* Whether they do so, from the next begin on; without it, denormal numbers are as the caller has set them. */
void dy_flush_denormals(int on);
int dy_flushes_denormals(void);

/* Ends the threads and waits until nobody computes. Other threads than the caller that want to compute later sleep for
 * ever. For the end of the process: what they compute with is freed then. */
void dy_pool_end(void);

/* Takes the pool for the calling thread. Returns how many threads there are for a job: at most `most_awake` where they
 * look for work already, at most `most` where some must be woken first. 1: the pool is not taken. Otherwise dy_pool_run
 * must follow, which gives it back. */
int dy_pool_take(int most, int most_awake);

/* Calls run(job, 0) ... run(job, parts - 1) on that many threads, in any order, and returns when all have returned. */
void dy_pool_run(int threads, size_t parts, void (*run)(void *job, size_t part), void *job);

#endif
