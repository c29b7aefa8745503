"""The declarations that compiled ops in other packages cimport, and how to register an op.

The structs are those of include/dynet_cy/op.h and tensor.h; docs/custom-op.md has an example from the first line to the
last.
"""

from dynet_cy.core.tensor cimport (
    Attr, Call, Dim, Tensor, axis_of, cols_of, element, rows_of, same_shape, size_of, total_of,
)
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.making cimport apply, apply1, apply1x, apply2, apply2x
from dynet_cy.graph.structs cimport Extra
from dynet_cy.kernels.kernels cimport K
from dynet_cy.ops.custom cimport add_cuda, check_headers
from dynet_cy.ops.registry cimport (
    ALONE, BATCH, FLAT, LIST, SHARE, STACK, Backward, DimRule, Forward, Op, Shapes, register as register_here,
    same_dim,
)


cdef inline Op* register(const char* name, const char* args, DimRule dim, Forward forward,
                         Backward backward) except NULL:
    """Register an op, as the library's own are.  Set its other properties on the result, before its first use.

    Raises ImportError where the module was compiled with the headers of another version.
    """
    check_headers(sizeof(Op), sizeof(Call), sizeof(Extra))
    return register_here(name, args, dim, forward, backward)
