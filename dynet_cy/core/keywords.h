/* What functions do whose calls with keywords are watched. */
#ifndef DYNET_CY_KEYWORDS_H
#define DYNET_CY_KEYWORDS_H

#include <Python.h>

/* Python's own pointers, one for all functions and one for all methods that take keywords. */
static vectorcallfunc dy_function = NULL, dy_method = NULL;
static void (*dy_explain)(PyObject *, size_t, PyObject *);

static PyObject *dy_explained(PyObject *result, PyObject *called, size_t n, PyObject *names)
{
    if (!result && PyErr_ExceptionMatches(PyExc_TypeError))
        dy_explain(called, PyVectorcall_NARGS(n), names);
    return result;
}

static PyObject *dy_call_function(PyObject *called, PyObject *const *args, size_t n, PyObject *names)
{
    return dy_explained(dy_function(called, args, n, names), called, n, names);
}

static PyObject *dy_call_method(PyObject *called, PyObject *const *args, size_t n, PyObject *names)
{
    return dy_explained(dy_method(called, args, n, names), called, n, names);
}

static void dy_redirect(int flags, vectorcallfunc *pointer, vectorcallfunc *before, vectorcallfunc now)
{
    const int keywords = METH_FASTCALL | METH_KEYWORDS;
    if ((flags & keywords) == keywords && *pointer != now) {
        *before = *pointer;
        *pointer = now;
    }
}

static void dy_watch(PyObject *called, void (*explain)(PyObject *, size_t, PyObject *))
{
    dy_explain = explain;
    if (PyCFunction_CheckExact(called)) {
        PyCFunctionObject *f = (PyCFunctionObject *)called;
        dy_redirect(PyCFunction_GET_FLAGS(called), &f->vectorcall, &dy_function, dy_call_function);
    } else if (Py_TYPE(called) == &PyMethodDescr_Type) {
        PyMethodDescrObject *f = (PyMethodDescrObject *)called;
        dy_redirect(f->d_method->ml_flags, &f->vectorcall, &dy_method, dy_call_method);
    }
}

#endif
