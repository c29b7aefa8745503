"""The lists of what can be exported agree; this needs no ONNX."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from dynet_cy.onnx.converters import CONVERTERS, NOT_EXPORTABLE

ROOT = Path(__file__).resolve().parent.parent.parent


def test_ops_without_a_converter_are_listed(tmp_path: Path) -> None:
    """Every op has a converter, a reason in NOT_EXPORTABLE, or is named as missing in docs/onnx.md."""
    # In another process, without the ops that other tests register.
    program = (
        "import json, dynet_cy\n"
        "from dynet_cy.ops.registry import describe\n"
        "print(json.dumps([op['name'] for op in describe()]))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True)
    ops = set(json.loads(done.stdout))
    page = (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(\w+)`", page.partition("derived: unwritten")[2].partition("end of unwritten")[0]))
    assert set(CONVERTERS).isdisjoint(NOT_EXPORTABLE)
    assert ops - set(CONVERTERS) - set(NOT_EXPORTABLE) == listed
