"""Copies of values from one device to another."""


from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.making cimport apply1x, claim_current, release_current
from dynet_cy.graph.placing cimport asked_device
from dynet_cy.graph.structs cimport Extra, Graph, device_of, no_extra
from dynet_cy.ops.registry cimport FLAT, register, same_dim

from dynet_cy.graph.hooks import operators


TO_DEVICE = register(b"to_device", b"e", same_dim, NULL, NULL)
TO_DEVICE.batching = FLAT
TO_DEVICE.role = TRANSFERS
TO_DEVICE.no_gradient_because = b"the executor of multi-device graphs copies values, and gradients back"


def to_device(e, device_str):
    """An expression with the value of `e` on a device; its gradient goes back to where `e` is.

    Args:
        e: of any shape.
        device_str: "CPU", or "GPU:0" and so on; "" for the default device.

    Returns:
        Expression with the shape of `e`; a copy, even on the same device.

    Raises:
        TypeError: `e` is not an Expression, or `device_str` not a string.
        RuntimeError: there is no such device.
        StaleExpressionError: the graph of `e` was renewed.

    Example:
        >>> dy.to_device(dy.inputVector([1, 2]), "CPU").npvalue()
        array([1., 2.])
    """
    cdef Extra extra = no_extra()
    cdef int asked, source
    cdef uint32_t number
    cdef Graph* g
    if not isinstance(e, Expression):
        raise TypeError(f"to_device: e must be an Expression, not {type(e).__name__}")
    asked = asked_device(device_str, "to_device")
    g = claim_current()
    try:
        number = (<Expression>e).enter()
        if not asked:
            asked = 1 + g.device
        source = device_of(g, number)
        if asked - 1 == source:
            return operators["copy"](e)
        extra.device = asked
        extra.attrs[0].i = source                   # nodes with different sources do not run together
        return apply1x(TO_DEVICE, e, &extra)
    finally:
        release_current(g)
