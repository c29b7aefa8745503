"""The table of what can be exported is whole; this needs no ONNX."""

from __future__ import annotations

from dynet_cy.onnx.converters import CONVERTERS, NOT_EXPORTABLE
from dynet_cy.ops.registry import describe


def test_every_op_is_exported_or_named() -> None:
    """A new operation gets a converter in dynet_cy/onnx, or a line in NOT_EXPORTABLE that says why it has none."""
    assert set(CONVERTERS).isdisjoint(NOT_EXPORTABLE)
    assert set(CONVERTERS) | set(NOT_EXPORTABLE) == {op["name"] for op in describe()}
