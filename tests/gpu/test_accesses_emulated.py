"""The emulated driver checks what kernels read and write, so that no table of addresses or offsets is wrong unseen."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from emulated_device import FLOATS, WORDS, Device, found, fused_tanh, needs_driver, run_jobs

pytestmark = needs_driver

GIVEN = """
#include "common.cuh"
extern "C" __global__ void each(float *x, size_t n) { for (EACH(i, n)) x[i] += 1.f; }
extern "C" __global__ void shifted(float *x, size_t n) { for (EACH(i, n)) x[i] = x[i + 1]; }
extern "C" __global__ void same(float *x) { x[0] = 1.f; }
extern "C" __global__ void turned(float *x, int waits) {
    float y = x[blockDim.x - 1 - threadIdx.x];
    if (waits) __syncthreads();
    x[threadIdx.x] = y;
}
extern "C" __global__ void lanes(float *x, int waits) {
    float y = x[threadIdx.x ^ 1];
    if (waits) __syncwarp();
    x[threadIdx.x] = y;
}
extern "C" __global__ void counted(float *x, int atomic) {
    if (atomic || blockIdx.x) atomicAdd(x, 1.f);
    else x[0] += 1.f;
}
extern "C" __global__ void read_by_all(const float *x, float *y) {
    y[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = x[0];
}
extern "C" __global__ void bytes(float *x) { reinterpret_cast<double *>(x)[threadIdx.x] = 0.; }
"""
FUSED = fused_tanh()


def pointer(at: int) -> bytes:
    return np.uint64(at).tobytes()


number = pointer  # of 8 bytes


def word(x: int) -> bytes:
    return np.uint32(x).tobytes()


def by_value(x: list[int]) -> bytes:
    """A `dy_group` of these words."""
    return np.array(x, np.uint64).tobytes().ljust(8 * WORDS, b"\0")


def given(d: Device, kernel: str, *parameters: bytes, blocks: int = 1, threads: int = 64) -> str:
    return d.launch(GIVEN, kernel, list(parameters), (blocks, 1, 1), threads)


def freed(d: Device) -> str:
    at = d.allocate(FLOATS)
    d.free(at)
    return given(d, "each", pointer(at), number(4))


def given_back(d: Device, *, again: bool = False) -> str:
    """Numbers that are filled with ones, as memory that is given back; `again`: then written by a kernel."""
    d.fill(d.base, 0xFFFFFFFF, 8)
    if again:
        assert given(d, "read_by_all", pointer(d.at(99)), pointer(d.base)) == ""
    return given(d, "each", pointer(d.base), number(8))


def grouped(d: Device, *rows: tuple[int, int]) -> str:
    """Calls of one kernel as one launch: y = 2 x for 40 numbers, at these places."""
    one = int(np.array([2], np.float32).view(np.uint32)[0])
    first = np.zeros(64, np.uint16)  # where calls begin (include/dynet_cy/gpu_group.h)
    first[: len(rows)] = [16 + 5 * k for k in range(len(rows))]
    words = [w for x, y in rows for w in (40, one, d.at(x), d.at(y), 0)]
    return d.launch(
        "groups", "grouped_scale_floats", [by_value([*first.view(np.uint64).tolist(), *words])], (1, 1, len(rows))
    )


def listed(d: Device, *places: int) -> str:
    """Copies of four numbers, from a list of addresses."""
    table = d.allocate(FLOATS)
    d.send(table, np.array([d.at(x) for x in places], np.uint64).tobytes())
    items = d.allocate(4)
    d.send(items, bytes(16))
    whole = struct.pack("4I30Q", 0, 1, 0, 0, len(places), 0, 1, 4, 1, 4, 4, *[0] * 7, 4, *[0] * 7, 1, *[0] * 7)
    parameters = [number(4), whole, pointer(items), pointer(0), number(0), pointer(table), pointer(d.at(512))]
    return d.launch("select", "select_read", parameters)


def rows(d: Device, item: int) -> str:
    """A row of a table of 10 rows of 4 numbers."""
    table, items = d.allocate(40), d.allocate(1)
    d.send(items, word(item))
    parameters = [number(1), number(4), pointer(table), pointer(items), pointer(d.base)]
    return d.launch("lookup", "lookup_forward", parameters)


def fused(d: Device, x: int, dx: int, dy: int) -> str:
    """Backward of the tanh of 40 numbers, all in one line of its table."""
    words = by_value([d.at(800), 0, d.at(x), d.at(dx), d.at(dy) + 1])
    return d.launch(FUSED, "few_fused", [number(40), number(40), words], (2, 1, 1))


NO_ORDER = "nothing says which is first"
NO_MEMORY = "which is no memory of the device"
# What a job does, and what the error says.
JOBS = {
    "each": (lambda d: given(d, "each", pointer(d.base), number(200), blocks=3), ""),
    "shifted": (lambda d: given(d, "shifted", pointer(d.base), number(200), blocks=3), NO_ORDER),
    "same": (lambda d: given(d, "same", pointer(d.base)), "writes too"),
    "same_of_blocks": (lambda d: given(d, "same", pointer(d.base), threads=1, blocks=2), "writes too"),
    "turned": (lambda d: given(d, "turned", pointer(d.base), word(1)), ""),
    "turned_at_once": (lambda d: given(d, "turned", pointer(d.base), word(0)), NO_ORDER),
    "lanes": (lambda d: given(d, "lanes", pointer(d.base), word(1)), ""),
    "lanes_at_once": (lambda d: given(d, "lanes", pointer(d.base), word(0)), NO_ORDER),
    "counted": (lambda d: given(d, "counted", pointer(d.base), word(1), blocks=3), ""),
    "counted_by_some": (lambda d: given(d, "counted", pointer(d.base), word(0), blocks=2, threads=1), NO_ORDER),
    "read_by_all": (lambda d: given(d, "read_by_all", pointer(d.at(999)), pointer(d.base), blocks=3), ""),
    "read_and_written": (lambda d: given(d, "read_by_all", pointer(d.at(9)), pointer(d.base), blocks=3), "reads"),
    "at_the_end": (lambda d: given(d, "each", pointer(d.at(FLOATS - 64)), number(64)), ""),
    "behind_the_end": (lambda d: given(d, "each", pointer(d.at(FLOATS - 64)), number(65)), NO_MEMORY),
    "across_the_end": (lambda d: given(d, "bytes", pointer(d.at(FLOATS - 1)), threads=1), "writes 8 bytes"),
    "before_the_beginning": (lambda d: given(d, "each", pointer(d.at(-1)), number(2)), NO_MEMORY),
    "behind_a_short_end": (lambda d: given(d, "each", pointer(d.allocate(3)), number(4)), NO_MEMORY),
    "nothing": (lambda d: given(d, "each", pointer(0), number(1)), NO_MEMORY),
    "freed": (freed, NO_MEMORY),
    "not_written": (
        lambda d: given(d, "each", pointer(d.allocate(8, zeros=False)), number(8)),
        "nothing has been written",
    ),
    "given_back": (given_back, "nothing has been written"),
    "written_again": (lambda d: given_back(d, again=True), ""),
    "groups": (lambda d: grouped(d, (0, 100), (40, 140), (0, 180)), ""),
    "groups_outside": (lambda d: grouped(d, (0, 100), (FLOATS - 30, 140)), "block (0,0,1)"),
    "groups_to_one_place": (lambda d: grouped(d, (0, 100), (40, 139)), "writes too"),
    "groups_in_turn": (lambda d: grouped(d, (0, 100), (110, 200)), NO_ORDER),
    "lists": (lambda d: listed(d, 0, 40, 0), ""),
    "lists_outside": (lambda d: listed(d, 0, 40, FLOATS - 2), NO_MEMORY),
    "lists_of_results": (lambda d: listed(d, 0, 40, 515), NO_ORDER),
    "rows": (lambda d: rows(d, 9), ""),
    "rows_outside": (lambda d: rows(d, 10), NO_MEMORY),
    "fused": (lambda d: fused(d, 0, 40, 80), ""),
    "fused_in_place": (lambda d: fused(d, 0, 80, 80), ""),
    "fused_shifted": (lambda d: fused(d, 0, 81, 80), NO_ORDER),
}


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    return found(__file__, EMU_ACCESSES="1")


@pytest.mark.parametrize("job", JOBS)
def test_accesses(errors: dict[str, str], job: str) -> None:
    expected = JOBS[job][1]
    assert expected in errors[job] if expected else errors[job] == ""


def test_accesses_are_checked_if_asked_for() -> None:
    assert found(__file__, "shifted", EMU_STRICT="1") == {"shifted": ""}
    assert NO_ORDER in found(__file__, "shifted", EMU_STRICT="1", EMU_ACCESSES="1")["shifted"]


if __name__ == "__main__":
    run_jobs({name: job for name, (job, _) in JOBS.items()})
