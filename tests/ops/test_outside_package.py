"""The package of examples/custom_op, built against this library in another folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_op"

pytestmark = pytest.mark.slow

CHECK = """
    import numpy as np
    import dynet_cy as dy
    from dynet_cy.graph.expressions import set_autobatching
    from dynet_cy import profiling
    from dynet_cy.ops.registry import describe
    from rbf import compiled, in_python

    def in_ops(x, c, gamma=1.0):
        apart = x - c
        return dy.exp(-gamma * dy.transpose(dy.sum_dim(dy.square(apart), [0], False, keepdims=True)))

    rng = np.random.default_rng(1)
    model = dy.ParameterCollection()
    c = model.add_parameters((4, 3))
    for batch in (1, 3):
        data = [rng.normal(size=(4, batch)) for _ in range(5)]
        for strategy in (0, 1, 2):
            set_autobatching(strategy)
            found = []
            for op in (in_python.rbf, compiled.rbf):
                dy.renew_cg()
                model.zero_gradients()
                xs = [dy.inputTensor(x, batched=True) for x in data]
                loss = dy.sum_batches(dy.esum([dy.sum_elems(dy.square(op(x, c, gamma=0.3))) for x in xs]))
                found.append([loss.value()])
                loss.backward(full=True)
                found[-1] += [c.grad_as_array().copy(), *(x.gradient() for x in xs)]
            # float64
            C = c.as_array().astype(float)
            value, dc = 0, np.zeros((4, 3))
            for x, one, two in zip(data, found[0][2:], found[1][2:]):
                apart = x[:, None].astype(np.float32).astype(float) - C[:, :, None]
                y = np.exp(-0.3 * (apart**2).sum(0))
                value += (y**2).sum()
                dx = -2 * 0.3 * (2 * y * y * apart)
                dc -= dx.sum(-1)
                for got in (one, two):
                    np.testing.assert_allclose(got.reshape(dx.sum(1).shape), dx.sum(1), rtol=1e-4, atol=1e-6)
            for got in found:
                np.testing.assert_allclose(got[0], value, rtol=1e-5)
                np.testing.assert_allclose(got[1], dc, rtol=1e-4, atol=1e-6)

    set_autobatching(1)
    for op, name in ((in_python.rbf, "rbf"), (compiled.rbf, "rbf_compiled")):
        dy.renew_cg()
        with profiling.measure() as p:
            dy.forward([op(dy.inputVector([1, 2, 3, i]), c) for i in range(8)])
        (row,) = [r for r in p if r.op == name and not r.backward]
        assert row.calls == 1 and row.nodes == 8, row
        try:
            op(dy.inputVector([1, 2]), c)
            raise SystemExit("no error")
        except dy.DimensionError as error:
            assert name + ":" in str(error) and "must be a vector of as many elements" in str(error), error
    assert describe("rbf_compiled")["rules"][1] == "share"
    print("all right")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A copy of the package with its compiled module."""
    pytest.importorskip("Cython")
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("outside") / "package"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "build", "*.so"))
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def run(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_values_gradients_batches(built: Path) -> None:
    (built / "check.py").write_text(textwrap.dedent(CHECK), encoding="utf-8")
    assert run(built, "check.py") == "all right\n"


@pytest.mark.parametrize("options", [[], ["--python"]])
def test_program(built: Path, options) -> None:
    """It learns: each of the four lines shows the expected number."""
    printed = run(built, "train.py", *options).splitlines()
    assert len(printed) == 5
    for line in printed[1:]:
        wanted, found = line.split("=")[1].split(":")
        assert round(float(found)) == int(wanted)


def test_other_headers(built: Path, tmp_path: Path) -> None:
    """Importing a module that was compiled with headers of another version raises an error that says so."""
    folder = tmp_path / "package"
    shutil.copytree(built, folder, ignore=shutil.ignore_patterns("*.so", "build", "compiled.c"))
    include = tmp_path / "include"
    import dynet_cy as dy

    shutil.copytree(dy.get_include(), include)
    header = include / "dynet_cy" / "op.h"
    text = header.read_text(encoding="utf-8")
    assert "uint8_t truth;" in text
    header.write_text(text.replace("uint8_t truth;", "uint8_t truth; double more;"), encoding="utf-8")
    setup = folder / "setup.py"
    setup.write_text(
        setup.read_text(encoding="utf-8").replace("dy.get_include()", repr(str(include))), encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    done = subprocess.run([sys.executable, "-c", "import rbf.compiled"], cwd=folder, capture_output=True, text=True)
    assert done.returncode
    assert "compiled for another version of dynet_cy: build it again" in done.stderr
