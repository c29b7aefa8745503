"""Runs exported files, and compares them with the exported functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy

# A submodule, because this folder could be imported as the package `onnx`.
pytest.importorskip("onnx.checker", reason="files are written by onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="files are run by onnxruntime")


def session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def ours(function: Callable[..., Any], arguments: Sequence[Any]) -> list[np.ndarray]:
    """The values of a function for one example, in the order of the file."""
    with dy.ComputationGraph():
        result = function(*[a if isinstance(a, (int, list)) else dy.inputTensor(a) for a in arguments])
        values = (
            result.values() if isinstance(result, dict) else [result] if isinstance(result, dy.Expression) else result
        )
        found = []
        for y in values:
            shape, batch = y.dim()
            found.append(np.asarray(y.npvalue()).reshape((*shape, *([batch] if batch > 1 else [])), order="F").T)
        return found


def theirs(path: Path, inputs: Mapping[str, np.ndarray]) -> tuple[list[str], list[np.ndarray]]:
    """The names and values of the outputs of a file."""
    opened = session(path)
    read = {x.name for x in opened.get_inputs()}
    values = opened.run(None, {name: x for name, x in inputs.items() if name in read})
    return [x.name for x in opened.get_outputs()], values


def close(actual: np.ndarray, desired: np.ndarray, what: str = "", tol: float = 1e-5) -> None:
    # Some ops here return a vector for a matrix of one column; files keep the axis.
    assert np.squeeze(actual).shape == np.squeeze(desired).shape, what
    desired = desired.reshape(actual.shape)
    finite = np.abs(desired[np.isfinite(desired)])
    atol = tol * max(1.0, float(finite.max(initial=0)))
    np.testing.assert_allclose(actual, desired, rtol=tol, atol=atol, err_msg=what)


def check(
    function: Callable[..., Any],
    inputs: Mapping[str, Any],
    path: Path,
    batches: Sequence[Sequence[Any]],
    **options: Any,
) -> None:
    """Export a function; for each batch, a list of arguments for each example, the file must give the same values."""
    dy.onnx.export(function, inputs, path, **options)
    for examples in batches:
        fed = {}
        for k, (name, x) in enumerate(inputs.items()):
            kind = np.int64 if isinstance(x, dy.onnx.Indices) else np.float32
            fed[name] = np.stack([np.asarray(example[k], kind).T for example in examples])
        if options.get("batch", "batch") is None:
            fed = {name: np.asarray(x[0]) for name, x in fed.items()}
        names, results = theirs(path, fed)
        for e, example in enumerate(examples):
            for name, found, wanted in zip(names, results, ours(function, example)):
                close(found if options.get("batch", "batch") is None else found[e], wanted, what=name)
