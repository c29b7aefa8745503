"""The machine code of the kernels: the compiler vectorized what it should."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections import Counter

import pytest

from dynet_cy.kernels import kernels

MACHINE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
optimized = pytest.mark.skipif(
    bool(kernels.build_flags()), reason="built with sanitizers or DYNET_CY_OPT: nothing is vectorized"
)


@pytest.fixture(scope="module")
def all_instructions() -> list[tuple[str, str]]:
    """The name and operands of every instruction of the kernels."""
    tool = shutil.which("objdump") or shutil.which("llvm-objdump")
    if tool is None:
        pytest.skip("needs objdump")
    text = subprocess.run(
        [tool, "-d", "--no-show-raw-insn", kernels.__file__], capture_output=True, text=True, check=True
    ).stdout
    return re.findall(r"^\s*[0-9a-f]+:\s+([a-z][a-z0-9]*)[ \t]+([^\n]*)", text, re.MULTILINE)


@pytest.fixture
def instructions(all_instructions: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if MACHINE != "x86_64":
        pytest.skip("needs x86-64")
    return all_instructions


@pytest.fixture
def arm_instructions(all_instructions: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if MACHINE != "aarch64":
        pytest.skip("needs 64-bit ARM")
    return all_instructions


@pytest.mark.parametrize(("name", "register"), [("sqrtps", "xmm"), ("vsqrtps", "ymm"), ("vsqrtps", "zmm")])
def test_square_roots_are_vectors(instructions: list[tuple[str, str]], name: str, register: str) -> None:
    # In sqrt, in the derivatives of five functions, in five optimizers and in normal random numbers.
    assert sum(i == name and register in operands for i, operands in instructions) >= 12


def test_no_square_root_of_a_scalar(instructions: list[tuple[str, str]]) -> None:
    assert len(instructions) > 10_000
    assert not [operands for i, operands in instructions if i in ("sqrtss", "vsqrtss")]


@optimized
def test_rounding_is_vectors(instructions: list[tuple[str, str]]) -> None:
    """Without the math flags in setup.py, numbers would be rounded one by one, some by a function call."""
    names = Counter(name for name, _ in instructions)
    for vectors, scalars in (("vroundps", "vroundss"), ("vrndscaleps", "vrndscaless")):
        assert names[vectors] >= 4
        assert names[scalars] <= names[vectors]
    called = {operands.rpartition("<")[2] for name, operands in instructions if name.startswith("call")}
    assert not called & {f"{f}{end}" for f in ("floorf", "ceilf", "roundf", "rintf", "sqrtf") for end in ("@plt>", ">")}


@optimized
@pytest.mark.parametrize("name", ["fsqrt", "frintm", "frintp", "frinta"])
def test_arm_takes_roots_and_rounds_vectors(arm_instructions: list[tuple[str, str]], name: str) -> None:
    operands = [given for found, given in arm_instructions if found == name]
    assert sum(".4s" in given for given in operands) >= 4
    called = {given.rpartition("<")[2] for found, given in arm_instructions if found == "bl"}
    assert not called & {f"{f}@plt>" for f in ("floorf", "ceilf", "roundf", "sqrtf")}


@optimized
def test_arm_multiplies_by_lanes(arm_instructions: list[tuple[str, str]]) -> None:
    """The products of panels: numbers of B are loaded as vectors, and each lane multiplies a vector of A."""
    lanes = Counter(given[-5:] for name, given in arm_instructions if name == "fmla")
    by_lane = [sum(count for end, count in lanes.items() if end.endswith(f".s[{lane}]")) for lane in range(1, 4)]
    assert min(by_lane) > 100
