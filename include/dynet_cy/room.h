/* SPDX-License-Identifier: Apache-2.0
 *
 * Working memory of a thread for products, into which it packs parts of matrices. */
#ifndef DYNET_CY_ROOM_H
#define DYNET_CY_ROOM_H

#include <pthread.h>
#include <stdlib.h>

/* Floats for a panel and for columns (panels.inl): 352 KiB, allocated at the first product and kept while the thread
 * lives. */
enum { DY_ROOM_PANEL = 48 * 512, DY_ROOM_COLUMNS = 128 * 512, DY_ROOM = DY_ROOM_PANEL + DY_ROOM_COLUMNS };

static _Thread_local float *dy_room_of_thread;
static pthread_key_t dy_room_key;
static pthread_once_t dy_room_once = PTHREAD_ONCE_INIT;

static inline void dy_room_free(void *room) {
    dy_room_of_thread = NULL;
    free(room);
}
static inline void dy_room_begin(void) { pthread_key_create(&dy_room_key, dy_room_free); }

/* NULL: there is no memory. */
static inline float *dy_room(void) {
    if (!dy_room_of_thread) {
        pthread_once(&dy_room_once, dy_room_begin);
        float *room = malloc(DY_ROOM * sizeof *room);
        if (room && pthread_setspecific(dy_room_key, room)) {
            free(room);
            room = NULL;
        }
        dy_room_of_thread = room;
    }
    return dy_room_of_thread;
}

#endif
