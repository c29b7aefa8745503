/* Shapes and values that Python asks for. */
#ifndef DYNET_CY_ASKED_H
#define DYNET_CY_ASKED_H

#include <Python.h>
#include <stdatomic.h>

#include "dynet_cy/tensor.h"

/* Room for a shape that `dim_of` has copied; it is used again when this thread has asked for as many others. */
#define DY_DIMS 32
static inline dy_dim *dy_new_dim(void) {
    static _Thread_local dy_dim dims[DY_DIMS];
    static _Thread_local unsigned next = 0;
    return &dims[next++ % DY_DIMS];
}

/* How many values NumPy has asked for without Python running on, which begins with a pending call. */
static atomic_int dy_asked = 0;
static int dy_runs_on(void *nothing) { (void)nothing; dy_asked = 0; return 0; }
static inline int dy_asked_before(void) { return dy_asked; }
static inline void dy_begin_call(int asked) {
    dy_asked = Py_AddPendingCall(dy_runs_on, NULL) == 0 ? asked : 0;
}

#endif
