"""Sizes of matrix products that cuBLAS, which takes them as int, cannot be given. No device is needed."""

from __future__ import annotations

import ctypes
import shlex
import shutil
import subprocess
import sysconfig
from ctypes import c_int, c_size_t
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 2**31 - 1
SIZES = ("m", "n", "k", "lda", "ldb", "ldc", "count")

# Products are recorded, not computed: the record shows with which sizes cuBLAS would be called.
SOURCE = """
#include "dynet_cy/gpu.h"
int dy_recorded(size_t m, size_t n, size_t k, size_t lda, size_t ldb, size_t ldc, size_t count, int strided,
                int *sizes) {
    static dy_gpu gpu;
    dy_records records = {0};
    int error;
    memset(&gpu, 0, sizeof gpu);
    gpu.records = &records;
    if (strided)
        dy_gpu_gemm_strided(&gpu, 0, 0, m, n, k, 1, NULL, lda, 1, NULL, ldb, 1, 0, NULL, ldc, 1, count);
    else
        dy_gpu_gemm(&gpu, 0, 0, m, n, k, 1, NULL, lda, NULL, ldb, 0, NULL, ldc);
    error = gpu.error;
    if (records.count) {
        const dy_product *p = (const dy_product *)records.p;
        int found[] = {p->m, p->n, p->k, p->lda, p->ldb, p->ldc, p->count};
        memcpy(sizes, found, sizeof found);
    }
    free(records.p);
    return error == DY_PRODUCT_TOO_LARGE ? 1 : error;
}
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> ctypes._CFuncPtr:
    command = shlex.split(sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(command[0]):
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("products")
    (folder / "products.c").write_text(SOURCE)
    library = folder / "products.so"
    subprocess.run(
        [*command, "-shared", "-fPIC", f"-I{ROOT / 'include'}", str(folder / "products.c"), "-o", str(library)],
        check=True,
    )
    function = ctypes.CDLL(str(library)).dy_recorded
    function.argtypes = [c_size_t] * 7 + [c_int, ctypes.POINTER(c_int)]
    return function


@pytest.mark.parametrize(
    ("name", "strided"), [(name, strided) for name in SIZES for strided in (0, 1) if strided or name != "count"]
)
def test_a_size_that_is_no_int_is_refused(recorded: ctypes._CFuncPtr, name: str, strided: int) -> None:
    found = (c_int * 7)()
    for size in (1, 2**30, LIMIT):
        given = {**dict.fromkeys(SIZES, 2), name: size}
        assert recorded(*given.values(), strided, found) == 0
        assert list(found) == list(given.values())[: 7 if strided else 6] + [0] * (not strided)
    for size in (2**31, 2**32, 2**32 + 2, 2**63):
        given = {**dict.fromkeys(SIZES, 2), name: size}
        found = (c_int * 7)()
        assert recorded(*given.values(), strided, found) == 1
        assert not any(found)
