"""Updates of a large table in several processes: those of most rows are deferred, and all results are the same.

All ranks have the same bits, and agree with float64 updates of whole tables. Over MPI: test_mpi.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from parallel import jobs
from parallel.lazy_reference import check
from parallel.programs import lazy


@pytest.mark.parametrize(("n", "kind"), [(2, "AllreduceReducer"), (3, "SharedReducer")])
def test_cases(tmp_path: Path, n: int, kind: str) -> None:
    general = ["--general"] if kind == "AllreduceReducer" else []
    result = jobs.launch(tmp_path, "lazy.py", tmp_path, *general, n=n, timeout=600)
    assert result.code == 0, result.err
    assert result.out.count(kind) == n
    check(tmp_path, kind, n, list(lazy.cases(n)))
