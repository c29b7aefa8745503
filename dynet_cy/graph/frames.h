/* The frames of Python that run in this thread, without making objects of them.
 *
 * From 3.11 on a frame has no object until someone asks for it, and making one
 * costs more than a node of a graph does.  So what these functions give is the
 * interpreter's own, borrowed, and good until Python runs again.
 */
#ifndef DYNET_CY_FRAMES_H
#define DYNET_CY_FRAMES_H

#include <Python.h>
#include <frameobject.h>
#include <opcode.h>

/* The hash of an instruction. */
static inline size_t dy_slot(const PyObject *code, int at) { return ((uintptr_t)code >> 4) * 31 + (size_t)at / 2 * 7; }

static inline int dy_line(PyObject *code, int at) { return PyCode_Addr2Line((PyCodeObject *)code, at); }

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000

#define Py_BUILD_CORE 1
#include "internal/pycore_frame.h"
#undef Py_BUILD_CORE

typedef _PyInterpreterFrame dy_frame;

/* The frame itself, or the first one around it that is a function's. */
static inline dy_frame *dy_whole_frame(dy_frame *f) {
    while (f && _PyFrame_IsIncomplete(f))
        f = f->previous;
    return f;
}

static inline dy_frame *dy_current_frame(void) {
#if PY_VERSION_HEX >= 0x030D0000
    return dy_whole_frame(PyThreadState_Get()->current_frame);
#else
    return dy_whole_frame(PyThreadState_Get()->cframe->current_frame);
#endif
}

static inline dy_frame *dy_caller(dy_frame *f) { return dy_whole_frame(f->previous); }

static inline PyCodeObject *dy_code(dy_frame *f) {
#if PY_VERSION_HEX >= 0x030D0000
    return _PyFrame_GetCode(f);
#else
    return f->f_code;
#endif
}

/* The offset of a frame in its code, in bytes. */
static inline int dy_instruction(dy_frame *f) {
    return (int)(_PyInterpreterFrame_LASTI(f) * sizeof(_Py_CODEUNIT));
}

/* Whether the innermost frame runs an operator (not one in place), as far as that is quick to see: if 0, it may do so. */
static inline int dy_at_operator(void) {
    dy_frame *f = dy_current_frame();
    _Py_CODEUNIT now;
    int code, argument;
    if (!f)
        return 0;
    now = _PyCode_CODE(dy_code(f))[_PyInterpreterFrame_LASTI(f)];
#if PY_VERSION_HEX >= 0x030C0000
    code = now.op.code, argument = now.op.arg;
#else
    code = _Py_OPCODE(now), argument = _Py_OPARG(now);
    if (code == BINARY_OP_ADAPTIVE)
        code = BINARY_OP;
    if (code == COMPARE_OP_ADAPTIVE)
        code = COMPARE_OP;
#endif
    return code == COMPARE_OP || (code == BINARY_OP && argument < NB_INPLACE_ADD);
}

#else

typedef PyFrameObject dy_frame;

static inline dy_frame *dy_current_frame(void) { return PyEval_GetFrame(); }

#if PY_VERSION_HEX < 0x030B0000

static inline dy_frame *dy_caller(dy_frame *f) { return f->f_back; }
static inline PyCodeObject *dy_code(dy_frame *f) { return f->f_code; }
static inline int dy_instruction(dy_frame *f) {
    return f->f_lasti * (PY_VERSION_HEX >= 0x030A0000 ? (int)sizeof(_Py_CODEUNIT) : 1);
}

static inline int dy_at_operator(void) {
    dy_frame *f = dy_current_frame();
    switch (f ? (unsigned char)PyBytes_AS_STRING(dy_code(f)->co_code)[dy_instruction(f)] : 0) {
    case BINARY_ADD:
    case BINARY_SUBTRACT:
    case BINARY_MULTIPLY:
    case BINARY_TRUE_DIVIDE:
    case BINARY_POWER:
    case BINARY_MATRIX_MULTIPLY:
    case COMPARE_OP:
        return 1;
    default:
        return 0;
    }
}

#else

/* The interpreter holds the running code, so no reference is needed. */
static inline dy_frame *dy_caller(dy_frame *f) {
    f = PyFrame_GetBack(f);
    Py_XDECREF(f);
    return f;
}

static inline PyCodeObject *dy_code(dy_frame *f) {
    PyCodeObject *code = PyFrame_GetCode(f);
    Py_DECREF(code);
    return code;
}

static inline int dy_instruction(dy_frame *f) { return PyFrame_GetLasti(f); }

static inline int dy_at_operator(void) {
    dy_frame *f = dy_current_frame();
    PyObject *bytes = f ? PyCode_GetCode(dy_code(f)) : NULL; /* the code keeps them */
    int answer = 0;
    if (bytes) {
        const unsigned char *now = (const unsigned char *)PyBytes_AS_STRING(bytes) + dy_instruction(f);
        answer = now[0] == COMPARE_OP || (now[0] == BINARY_OP && now[1] < NB_INPLACE_ADD);
        Py_DECREF(bytes);
    } else {
        PyErr_Clear();
    }
    return answer;
}

#endif
#endif

#endif
