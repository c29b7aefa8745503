"""A mutex in free-threaded Python; with a GIL it does nothing, since the GIL already protects the same data."""

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    typedef PyMutex dy_gil;
    static inline void dy_take_gil(dy_gil *m) { PyMutex_Lock(m); }
    static inline void dy_drop_gil(dy_gil *m) { PyMutex_Unlock(m); }
    #define DY_GIL 0
    #else
    typedef char dy_gil;
    static inline void dy_take_gil(dy_gil *m) { (void)m; }
    static inline void dy_drop_gil(dy_gil *m) { (void)m; }
    #define DY_GIL 1
    #endif
    """
    bint HAS_GIL "DY_GIL"

    # All zero means unlocked. Code that holds it must not call Python.
    ctypedef struct Unlocked "dy_gil":
        pass
    void take "dy_take_gil"(Unlocked* m)
    void drop "dy_drop_gil"(Unlocked* m)
