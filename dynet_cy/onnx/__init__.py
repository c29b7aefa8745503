"""Export of functions to ONNX files. See docs/onnx.md.

Bottom up: sizes (how sizes depend on named axes), recurrences (recurrent networks in a graph), folding (loops over
positions), tracing (running the function at several sizes), writer (the graph under construction), converters (their
table), then a module of converters for each kind of operation, and exporting.
"""

from dynet_cy.files.places import name_all
from dynet_cy.onnx import (  # noqa: F401 - they fill the table
    attention,
    convolutions,
    elementwise,
    products,
    reductions,
    selections,
)
from dynet_cy.onnx.errors import ExportError
from dynet_cy.onnx.exporting import export
from dynet_cy.onnx.inputs import Each, Floats, Indices

__all__ = ["Each", "ExportError", "Floats", "Indices", "export"]

name_all(__name__)
