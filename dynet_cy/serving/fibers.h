/* What fibers need of the stack and of the interpreter. */
#ifndef DYNET_CY_FIBERS_H
#define DYNET_CY_FIBERS_H

#include <Python.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
void __asan_handle_no_return(void);
#define dy_unpoison_stack() __asan_handle_no_return()
#else
#define dy_unpoison_stack() ((void)0)
#endif

/* Python ends a daemon thread that asks for the GIL after the interpreter has begun to finalize: pthread_exit
 * unwinds its stack.  A fiber's must not be unwound: below its first frame is other data of the thread
 * since, and the frames of greenlet drop references, without the GIL.  So the thread stops here until the process
 * has ended, as all such threads do from Python 3.14 on.  Files with this need -fexceptions. */
#include <unistd.h>
static void dy_stop_unwinding(int *inside) {
    while (*inside)
        pause();
}
static PyObject *dy_call_on_fiber(PyObject *(*loop)(PyObject *first), PyObject *first) {
    __attribute__((cleanup(dy_stop_unwinding))) int inside = 1;
    PyObject *result = loop(first);
    inside = 0;
    return result;
}

/* How many calls deep Python is in this greenlet, as it counts them for RecursionError. */
static int dy_recursion_depth(void) {
    PyThreadState *state = PyThreadState_Get();
#if PY_VERSION_HEX >= 0x030C0000
    return state->py_recursion_limit - state->py_recursion_remaining;
#elif PY_VERSION_HEX >= 0x030B0000
    return state->recursion_limit - state->recursion_remaining;
#else
    return state->recursion_depth;
#endif
}

#endif
