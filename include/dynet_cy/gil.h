/* Locks, and references to objects that may just go, for Pythons with and without a global lock. */
#ifndef DYNET_CY_GIL_H
#define DYNET_CY_GIL_H

#include <Python.h>
#include <pthread.h>
#include <stdint.h>

/* The number that Python has for this thread: pthread_t is a number on some systems and a pointer on others. */
static inline uintptr_t dy_this_thread(void) { return (uintptr_t)pthread_self(); }

#ifdef Py_GIL_DISABLED
#define DY_GIL 0
typedef PyMutex dy_gil;
static inline void dy_acquire_gil(dy_gil *m) { PyMutex_Lock(m); }
static inline void dy_release_gil(dy_gil *m) { PyMutex_Unlock(m); }
/* As the fast path of PyMutex_Lock: its first bit is the lock. */
static inline int dy_try_acquire_gil(dy_gil *m) {
    uint8_t none = 0;
    return __atomic_compare_exchange_n(&m->_bits, &none, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

#if PY_VERSION_HEX >= 0x030E0000
static inline void dy_let_be_revived(PyObject *x) { PyUnstable_EnableTryIncRef(x); }
static inline int dy_try_incref(PyObject *x) { return PyUnstable_TryIncRef(x); }
#else
/* As Python 3.13 does it, which has these two among its internals only. */
static inline void dy_let_be_revived(PyObject *x) {
    Py_ssize_t shared = __atomic_load_n(&x->ob_ref_shared, __ATOMIC_RELAXED);
    while (!(shared & _Py_REF_SHARED_FLAG_MASK) &&
           !__atomic_compare_exchange_n(&x->ob_ref_shared, &shared, shared | _Py_REF_MAYBE_WEAKREF, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
}
static inline int dy_try_incref(PyObject *x) {
    uint32_t local = __atomic_load_n(&x->ob_ref_local, __ATOMIC_RELAXED);
    if (__atomic_load_n(&x->ob_tid, __ATOMIC_RELAXED) == _Py_ThreadId()) {
        __atomic_store_n(&x->ob_ref_local, local + 1, __ATOMIC_RELAXED);
        return 1;
    }
    Py_ssize_t shared = __atomic_load_n(&x->ob_ref_shared, __ATOMIC_RELAXED);
    do {
        if (shared == 0 || shared == _Py_REF_MERGED)
            return 0;
    } while (!__atomic_compare_exchange_n(&x->ob_ref_shared, &shared, shared + (1 << _Py_REF_SHARED_SHIFT), 0,
                                          __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    return 1;
}
#endif

#else
#define DY_GIL 1
typedef char dy_gil;
static inline void dy_acquire_gil(dy_gil *m) { (void)m; }
static inline void dy_release_gil(dy_gil *m) { (void)m; }
static inline int dy_try_acquire_gil(dy_gil *m) { (void)m; return 1; }
static inline void dy_let_be_revived(PyObject *x) { (void)x; }
static inline int dy_try_incref(PyObject *x) { Py_INCREF(x); return 1; }
#endif

static inline PyObject *dy_revived(void *x) {
    if (x && dy_try_incref((PyObject *)x)) return (PyObject *)x;
    Py_INCREF(Py_None);
    return Py_None;
}

#endif
