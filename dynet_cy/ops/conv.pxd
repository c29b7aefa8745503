"""Shape checks and arguments, for other ops on images."""

from dynet_cy.core.tensor cimport Dim
from dynet_cy.graph.structs cimport Extra
from dynet_cy.kernels.kernels cimport dy_window

cdef int check_image(const Dim* x, const dy_window* w, bint valid, str what) except -1
cdef int set_pair(Extra* extra, int at, object values, str op, str name) except -1
