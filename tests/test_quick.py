"""All names in quick.py exist, so that `-m quick` loses no test when a file or a test gets another name."""

from __future__ import annotations

import re

import quick


def test_files_exist() -> None:
    assert not [name for name in (*quick.WHOLE, *quick.LEFT_OUT) if not (quick.TESTS / name).exists()]


def test_tests_of_ops_exist() -> None:
    text = (quick.TESTS / "ops" / "test_ops.py").read_text(encoding="utf-8")
    assert set(re.findall(r"^def (test_\w+)\(case: Case", text, re.MULTILINE)) >= quick.OF_OPS
