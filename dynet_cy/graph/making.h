/* What makes nodes, below Cython. */
#ifndef DYNET_CY_MAKING_H
#define DYNET_CY_MAKING_H

#include <Python.h>

#include "dynet_cy/graph.h"

/* 1 if an axis, the batch or the number of all elements is too large; notes a node without elements. */
static inline int dy_too_large(dy_graph *g, const dy_dim *x) {
    uint64_t n = x->bd, longest = n;
    for (uint32_t i = 0; i < x->nd; i++) {
        longest |= x->d[i];
        if (__builtin_mul_overflow(n, (uint64_t)x->d[i], &n))
            return 1;
    }
    if (n == 0)
        __atomic_store_n(&g->has_empty, 1, __ATOMIC_RELAXED);      /* another thread may run nodes it has made */
    return (longest >> 31 | n >> 44) != 0;
}

/* Take the exception that is set, and clear it. */
static PyObject *dy_fetch_error(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

#endif
