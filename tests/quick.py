"""Marks what `pytest -m quick` runs: a part of everything, in a minute of one core.

- of each file, the first test that is not slow, with its first case;
- of each op, the first row of the table, with the tests `OF_OPS` of test_ops.py;
- all tests of the files `WHOLE`.

Nothing is marked by hand: a new file or op is in it. `LEFT_OUT` are files whose first test takes seconds.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
OF_OPS = {"test_gradient", "test_batch_elements_are_as_alone", "test_autobatched"}
WHOLE = {
    "functions/test_functions.py",
    "memory/test_arena.py",
    "model/test_parameters.py",
    "files/test_textfile.py",
    "train/test_trainers.py",
}
# They start processes, compile, or train for seconds.
LEFT_OUT = (
    *("benchmarks/", "compat/", "examples/", "gpu/", "onnx/", "parallel/", "peer/", "projects/", "sweeps/", "typing/"),
    *("memory/test_address_space.py", "memory/test_faults.py", "memory/test_huge_pages.py", "memory/test_memory.py"),
    *("kernels/test_machine_code.py", "kernels/test_products.py", "nn/test_transformer_layers.py", "ops/test_conv.py"),
    *("test_build.py", "test_cannot_run.py", "test_custom_op_page.py", "test_data_prefetch.py"),
    *("test_debugging_page.py", "test_derived.py", "test_fuzz.py", "test_soak.py", "test_soak_serving.py"),
    "test_your_own_data.py",
)


def place(path: Path) -> str:
    """A path from the folder of the tests."""
    return path.relative_to(TESTS).as_posix() if TESTS in path.parents else str(path)


def of_each_op(tests: list[pytest.Item]) -> list[pytest.Item]:
    """The tests `OF_OPS` with the first row of each op."""
    found: dict[tuple[str, str], pytest.Item] = {}
    for test in tests:
        if isinstance(test, pytest.Function) and test.originalname in OF_OPS:
            op = test.callspec.params["case"].id.partition("-")[0]
            found.setdefault((test.originalname, op), test)
    return list(found.values())


def quick(file: str, tests: list[pytest.Item]) -> list[pytest.Item]:
    """The choice from the tests of a file."""
    if file.startswith(LEFT_OUT):
        return []
    tests = [test for test in tests if not any(test.get_closest_marker(kind) for kind in ("slow", "skip"))]
    if file == "ops/test_ops.py":
        return of_each_op(tests)
    return tests if file in WHOLE else tests[:1]


def mark(items: list[pytest.Item]) -> None:
    for file, tests in groupby(items, lambda item: place(item.path)):
        for test in quick(file, list(tests)):
            test.add_marker("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without such tests are not even read where only these are requested."""
    return True if config.option.markexpr == "quick" and f"{place(collection_path)}/".startswith(LEFT_OUT) else None
