"""Functions as ONNX files, which other programs run: `export`. See docs/onnx.md.

Bottom up: sizes (what sizes are of named axes), tracing (running the function at several of them), writer (the graph in
the making), converters (the table of them), then a module of converters for each kind of operation, and exporting.
"""

from dynet_cy.onnx import convolutions, elementwise, products, reductions, selections  # noqa: F401 - fill the table
from dynet_cy.onnx.errors import ExportError
from dynet_cy.onnx.exporting import export
from dynet_cy.onnx.inputs import Floats, Indices

__all__ = ["ExportError", "Floats", "Indices", "export"]
