"""The table of exportable ops is complete; this needs no ONNX."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from dynet_cy.onnx.converters import CONVERTERS, NOT_EXPORTABLE


def test_every_op_is_exported_or_named(tmp_path: Path) -> None:
    """A new op needs a converter in dynet_cy/onnx, or a line in NOT_EXPORTABLE that says why it has none."""
    # In another process, without the ops that other tests register.
    program = (
        "import json, dynet_cy\n"
        "from dynet_cy.ops.registry import describe\n"
        "print(json.dumps([op['name'] for op in describe()]))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert set(CONVERTERS).isdisjoint(NOT_EXPORTABLE)
    assert set(CONVERTERS) | set(NOT_EXPORTABLE) >= set(json.loads(done.stdout))
