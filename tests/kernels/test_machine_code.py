"""What the compiler made of the kernels."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess

import pytest

from dynet_cy.kernels import kernels


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """Name and operands of every instruction of the kernels."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the names of instructions are those of x86-64")
    tool = shutil.which("objdump") or shutil.which("llvm-objdump")
    if tool is None:
        pytest.skip("there is no objdump")
    text = subprocess.run(
        [tool, "-d", "--no-show-raw-insn", kernels.__file__], capture_output=True, text=True, check=True
    ).stdout
    return re.findall(r"^\s*[0-9a-f]+:\s+([a-z][a-z0-9]*)[ \t]+([^\n]*)", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "register"), [("sqrtps", "xmm"), ("vsqrtps", "ymm"), ("vsqrtps", "zmm")])
def test_square_roots_are_vectors(instructions: list[tuple[str, str]], name: str, register: str) -> None:
    # Element-wise, in the derivatives of five functions, in five optimisers and in normal numbers.
    assert sum(i == name and register in operands for i, operands in instructions) >= 12


def test_no_square_root_of_a_scalar(instructions: list[tuple[str, str]]) -> None:
    assert len(instructions) > 10_000
    assert not [operands for i, operands in instructions if i in ("sqrtss", "vsqrtss")]
