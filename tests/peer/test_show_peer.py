"""Tensors, graphs as text, devices and initialization, compared with DyNet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from libraries import Alike, Library, assert_alike, both

pytestmark = pytest.mark.peer
alike = Alike()


@alike
def tensors(dy: Library) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    seen = {}
    for shape, batched in [((5,), False), ((4, 3), False), ((3, 1), False), ((4, 3), True), ((4, 3, 2), True)]:
        dy.renew_cg()
        t = dy.inputTensor(rng.normal(size=shape), batched=batched).tensor_value()
        shape = shape[:-1] if batched else shape
        name = f"{shape}{', batched' if batched else ''}"
        seen[name] = t.as_numpy().tolist()
        for axis in range(2):
            seen[f"{name} argmax {axis}"] = t.argmax(axis).as_numpy().tolist()
            size = shape[axis] if axis < len(shape) else 1
            for num in range(1, size + 1):  # DyNet's argmax ends the process above 1
                values, places = t.topk(axis, num)
                # DyNet's results are not sorted.
                found = [
                    np.sort(x.as_numpy(), axis=axis).tolist() if size > 1 else x.as_numpy().tolist()
                    for x in (values, places)
                ]
                seen[f"{name} topk {axis} {num}"] = found
            drawn = t.categorical_sample_log_prob(axis).as_numpy()
            seen[f"{name} draws {axis}"] = [drawn.shape, bool((drawn < size).all())]
    return seen


@alike
def certain_draws(dy: Library) -> dict[str, Any]:
    """Draws where one element of each column has all the probability."""
    dy.renew_cg()
    scores = np.full((4, 3), -100.0)
    scores[[2, 0, 3], [0, 1, 2]] = 0
    t = dy.inputTensor(scores).tensor_value()
    return {"drawn": t.categorical_sample_log_prob(0).as_numpy().tolist()}


@alike
def starting(dy: Library) -> dict[str, Any]:
    params = dy.DynetParams()
    params.from_args()
    params.init()
    dy.init_from_params(params)
    dy.init()
    # DyNet's wheel has no CUDA; here it depends on whether PyCUDA is installed.
    return {"cuda": type(dy.HAVE_CUDA), "devices": len(dy.available_devices())}


@alike
def devices(dy: Library) -> dict[str, Any]:
    info = dy.get_device_info("CPU")
    dy.renew_cg()
    moved = dy.to_device(dy.inputVector([1.0, 2.0]), "CPU")
    return {"id": info.id, "type": info.type, "dim": moved.dim()}


@pytest.mark.parametrize("name", alike.functions)
def test_alike(name: str) -> None:
    alike.check(name)


def build(dy: Library) -> Any:
    """A graph with the same nodes in both libraries."""
    dy.renew_cg()
    model = dy.ParameterCollection()
    w = model.add_parameters((2, 3), init=np.arange(6.0).reshape(2, 3))
    x = dy.inputVector([0.5, 0.25, 0.125])
    e = dy.sum_elems(dy.tanh(w * x))
    e.forward()
    dy.kept.append(model)
    return e


def arrows(text: str) -> tuple[int, set[tuple[str, str]]]:
    return len(re.findall(r"^  N\d+ \[", text, re.MULTILINE)), set(re.findall(r"N(\d+) -> N(\d+)", text))


def test_graphs_as_text(capfd: pytest.CaptureFixture[str]) -> None:
    """The same nodes and arrows, on standard error; DyNet has other names for ops."""
    found = []
    for dy in both():
        build(dy)
        capfd.readouterr()
        dy.print_text_graphviz()
        out, err = capfd.readouterr()
        assert not out
        found.append(arrows(err))
    assert found[0] == found[1] == (5, {("0", "2"), ("1", "2"), ("2", "3"), ("3", "4")})


def test_dumps(tmp_path: Path) -> None:
    """The same blocks of numbers in the same format; DyNet omits the last node."""
    found = []
    for name, dy in zip(("theirs", "ours"), both()):
        build(dy)
        dy.dump_cg(str(tmp_path / name), True, False, False)
        text = (tmp_path / name).read_text(encoding="ascii")
        lines = text.partition("Node 4")[0].splitlines()
        numbers = [[float(n) for n in re.findall(r"-?\d[\d.e-]*", line)] for line in lines]
        found.append({"words": [line for line in lines if re.search("[A-Z]", line)], "numbers": numbers})
    assert_alike(found[0], found[1], "dump_cg", 1e-5)
