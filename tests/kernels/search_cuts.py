"""Searches for products of OpenBLAS whose bits change when they are cut for several threads.

Usage: python search_cuts.py SEED NUMBER. OpenBLAS uses the kernels that OPENBLAS_CORETYPE names, whatever dynet_cy
would choose. Prints their name, the number of products that were cut, and those that differ, one per line.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import scipy_openblas32

# Loaded before dynet_cy, which would otherwise choose the kernels.
BLAS = ctypes.CDLL(str(next(Path(scipy_openblas32.get_lib_dir()).glob("libscipy_openblas*"))))
BLAS.scipy_openblas_get_corename.restype = ctypes.c_char_p
I, F, P = ctypes.c_int, ctypes.c_float, ctypes.c_void_p  # noqa: E741
BLAS.scipy_cblas_sgemm.argtypes = [I, I, I, I, I, I, F, P, I, P, I, F, P, I]
BLAS.scipy_cblas_sgemm.restype = None
BLAS.scipy_openblas_set_num_threads(1)

from dynet_cy.kernels import product  # noqa: E402

COLUMN_MAJOR, PLAIN = 102, 111
LIBRARY = 4
MOST = 40_000_000  # multiplications of a product
SMALL = 1_000_000  # what OpenBLAS treats as a small product
NUMBERS = np.random.default_rng(1).standard_normal(4_000_000).astype(np.float32)


def sgemm(ta: int, tb: int, m: int, n: int, k: int, a: np.ndarray, b: int, ldb: int, beta: float, c: int) -> None:
    """C = op(A) op(B) + beta C; b and c are addresses."""
    BLAS.scipy_cblas_sgemm(
        COLUMN_MAJOR, PLAIN + ta, PLAIN + tb, m, n, k, 1.0, a.ctypes.data, k if ta else m, b, ldb, beta, c, m
    )


def differs(ta: int, tb: int, m: int, n: int, k: int, beta: float, firsts: list[int]) -> bool:
    """Whether parts that begin at these columns have other bits than the whole product."""
    a, b = NUMBERS[: m * k], NUMBERS[m * k :][: k * n]
    ldb = n if tb else k
    whole, parts = NUMBERS[-m * n :].copy(), NUMBERS[-m * n :].copy()
    sgemm(ta, tb, m, n, k, a, b.ctypes.data, ldb, beta, whole.ctypes.data)
    for j, end in zip(firsts, firsts[1:]):
        at = b.ctypes.data + 4 * (j if tb else j * ldb)
        sgemm(ta, tb, m, end - j, k, a, at, ldb, beta, parts.ctypes.data + 4 * j * m)
    return whole.tobytes() != parts.tobytes()


def shape(r: np.random.Generator) -> tuple[int, int, int]:
    """Rows, columns and inner dimension; in half the cases, small parts are about as large as small products."""
    m = int(np.exp(r.uniform(np.log(2), np.log(1500))))
    if r.integers(2):
        return m, int(r.integers(25, 400)), int(np.exp(r.uniform(np.log(2), np.log(1500))))
    columns = 24 * int(r.integers(1, 5))
    k = max(2, int(SMALL * r.uniform(0.7, 1.4) / (m * columns)))
    return m, columns * int(r.integers(2, 4)) + int(r.integers(24)), k


def main(seed: int, number: int) -> None:
    r = np.random.default_rng(seed)
    n_cut, found = 0, []
    while n_cut < number:
        m, n, k = shape(r)
        ta, tb, beta, threads = (int(x) for x in r.integers([2, 2, 2, 9]))
        if m * n * k > MOST or max(m * k + k * n, m * n) > len(NUMBERS):
            continue
        by_rows, firsts = product.cuts(LIBRARY, m, n, k, threads)
        assert not by_rows
        if len(firsts) == 2:
            continue
        n_cut += 1
        if differs(ta, tb, m, n, k, float(beta), firsts):
            found.append((ta, tb, m, n, k, beta, firsts))
    print(BLAS.scipy_openblas_get_corename().decode(), n_cut, *found, sep="\n")


if __name__ == "__main__":
    main(*(int(x) for x in sys.argv[1:]))
