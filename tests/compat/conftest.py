"""Programs of their own, in a folder of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from own_process import environment


@pytest.fixture
def run(tmp_path: Path):
    """Run Python in a folder; `program` is the text of program.py there."""

    def run(*arguments: str, program: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        if program:
            (tmp_path / "program.py").write_text(textwrap.dedent(program), encoding="utf-8")
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment(**variables),
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run
