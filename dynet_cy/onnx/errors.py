"""The exception that `export` raises."""

from __future__ import annotations


class ExportError(ValueError):
    """A function cannot be written as an ONNX graph; the message names the operation and says why.

    Example:
        >>> dy.onnx.export(lambda x: dy.dropout(x, 0.5), {"x": dy.onnx.Floats((3,))}, "model.onnx")
        Traceback (most recent call last):
            ...
        dynet_cy.onnx.errors.ExportError: export: dropout draws random numbers, which a file cannot repeat
    """
