"""Large products that are cut for several threads have the same bits, whichever kernels OpenBLAS uses.

The rule: above a certain size, OpenBLAS sums in the same order in all products, in groups of columns whose number
divides 24. So parts begin at multiples of 24 columns, and the smallest part is above that size. CPUs without AVX-512
cannot run all kernels, but the rule is tested there too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dynet_cy.kernels as kernels
from dynet_cy.kernels import product

SEARCH = Path(__file__).with_name("search_cuts.py")
LIBRARY, STEP, SMALL = 4, 24, 1_000_000
NEEDED = {
    "Nehalem": {"sse4_2"},
    "Haswell": {"avx2", "fma"},
    "Zen": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512vl", "avx512dq", "avx512bw"},
    "Cooperlake": {"avx512f", "avx512vl", "avx512dq", "avx512bw", "avx512_bf16"},
    "SapphireRapids": {"avx512f", "avx512vl", "avx512dq", "avx512bw", "avx512_bf16", "avx512_fp16"},
}


@pytest.mark.parametrize("l2", [None, "512"])
@pytest.mark.parametrize("coretype", [None, *NEEDED])
def test_parts_have_the_bits_of_the_whole(coretype: str | None, l2: str | None) -> None:
    if coretype is not None and not kernels._cpu_flags() >= NEEDED[coretype]:
        pytest.skip(f"this CPU does not run the kernels for {coretype}")
    given = {"OPENBLAS_CORETYPE": coretype, "OPENBLAS_L2_SIZE": l2}
    env = {name: value for name, value in os.environ.items() if name not in given}
    env.update({name: value for name, value in given.items() if value is not None})
    done = subprocess.run(
        [sys.executable, SEARCH, "0", "300"], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert not done.returncode, done.stderr
    taken, number, *different = done.stdout.splitlines()
    assert int(number) == 300
    assert not different, f"{taken}: {different}"


@pytest.mark.parametrize("threads", [2, 3, 4, 7, 64])
def test_the_smallest_part_is_no_small_product(threads: int) -> None:
    n_cut = 0
    for m in (2, 17, 65, 300):
        for n in (25, 48, 70, 71, 72, 73, 100, 191, 192, 1000):
            for k in range(50, 40_000, 1237):
                by_rows, firsts = product.cuts(LIBRARY, m, n, k, threads)
                assert not by_rows
                assert firsts[0] == 0
                assert firsts[-1] == n
                assert len(firsts) - 1 <= threads
                assert all(first % STEP == 0 for first in firsts[:-1])
                if len(firsts) > 2:
                    n_cut += 1
                    assert min(b - a for a, b in zip(firsts, firsts[1:])) * m * k > SMALL
    assert n_cut > 200


@pytest.mark.parametrize(
    ("size", "parts"), [((300, 100, 300), 2), ((65, 72, 618), 1), ((48, 300, 64), 1), ((800, 64, 200), 2)]
)
def test_cuts_of_known_products(size: tuple[int, int, int], parts: int) -> None:
    """The second, of 2.9 million multiplications, must not be cut into 24 + 48 columns: 24 would be a small product."""
    assert len(product.cuts(LIBRARY, *size, 2)[1]) - 1 == parts
