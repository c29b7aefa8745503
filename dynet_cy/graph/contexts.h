/* Contexts of Python, in which graphs are entered. */
#ifndef DYNET_CY_CONTEXTS_H
#define DYNET_CY_CONTEXTS_H

#include <Python.h>

/* The value of a context variable with a default of None.  This needs no memory. */
static PyObject *dy_context_value(PyObject *variable) {
    PyObject *value = NULL;
    PyContextVar_Get(variable, NULL, &value);
    return value;
}

/* Whether the current context was entered explicitly, as by a task of asyncio, rather than being the thread's or
 * greenlet's own: only the latter can be entered. */
static int dy_context_entered(void) {
    PyObject *context = PyThreadState_Get()->context;
    if (context == NULL)
        return 0;
    if (PyContext_Enter(context) == 0)
        return PyContext_Exit(context);
    PyErr_Clear();
    return 1;
}

#endif
