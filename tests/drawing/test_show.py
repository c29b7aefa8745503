"""Graphs as text: drawings and dumps."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
import dynet_cy.viz


def drawn(text: str) -> tuple[dict[int, str], set[tuple[int, int]]]:
    """Labels and arrows of a drawing; every line must be valid Graphviz."""
    lines = text.splitlines()
    assert lines[0] == "digraph G {"
    assert lines[-1] == "}"
    labels, arrows = {}, set()
    for line in lines[1:-1]:
        label = re.fullmatch(r'  N(\d+) \[label="((?:[^"\\]|\\.)*)"(?:, shape=box)?\];', line)
        arrow = re.fullmatch(r"  N(\d+) -> N(\d+);", line)
        if label:
            labels[int(label[1])] = label[2]
        elif arrow:
            arrows.add((int(arrow[1]), int(arrow[2])))
        else:
            assert re.fullmatch(r"  (rankdir=\w+|nodesep=\.05);", line)
    return labels, arrows


def build() -> tuple[dy.ParameterCollection, dy.Expression]:
    dy.renew_cg()
    model = dy.ParameterCollection()
    w = model.add_parameters((2, 2), init=np.array([[1.0, 2.0], [3.0, 4.0]]), name="w")
    return model, dy.sum_elems(dy.tanh(w * dy.inputVector([1.0, 2.0])))


def test_print_graphviz(capsys: pytest.CaptureFixture[str]) -> None:
    model, z = build()
    dy.print_graphviz(expression_names={z: 'the "end"'})
    out, err = capsys.readouterr()
    labels, arrows = drawn(out)
    assert not err
    assert list(labels) == [0, 1, 2, 3, 4]
    assert {"v0 = input\\n{2}", "v1 = parameter /w\\n{2,2}", "v3 = tanh(v2)\\n{2}"} <= set(labels.values())
    assert labels[4] == 'the \\"end\\" = sum(v3)\\n{1}'
    assert arrows == {(0, 2), (1, 2), (2, 3), (3, 4)}
    dynet_cy.viz.print_graphviz(compact=True, show_dims=False)
    assert drawn(capsys.readouterr().out)[0][3] == "v3 = tanh"


def test_text_goes_to_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = build()
    dy.print_text_graphviz()
    out, err = capsys.readouterr()
    assert not out
    assert len(drawn(err)[0]) == 5
    dy.cg().print_graphviz()
    assert capsys.readouterr().err == err


def test_stale_name() -> None:
    model, z = build()
    dy.renew_cg()
    with pytest.raises(dy.StaleExpressionError):
        dy.print_graphviz(expression_names={z: "z"})


def test_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the format that DyNet writes."""
    model, z = build()
    dy.dump_cg(show_gradients=False)
    assert capsys.readouterr().out.splitlines()[:3] == ["Node 0", "Value: ", "1"]
    z.backward()
    dy.dump_cg(str(tmp_path / "dump"))
    text = (tmp_path / "dump").read_text(encoding="ascii")
    assert "Value: \n1 2\n3 4\nGradient: \n0.000181" in text
    assert "Value: \n 5\n11\n" in text
    assert [line for line in text.splitlines() if "Node" in line] == [f"Node {i}" for i in range(5)]
    dy.cg().dump("", False, True, False)
    assert "Value" not in capsys.readouterr().out
    dy.renew_cg()
    dy.inputVector([float("nan"), 1.0])
    dy.inputVector([0.0])
    dy.dump_cg(nan_check_only=True)
    assert capsys.readouterr().out == "Node 0\nValue: invalid\nNode 1\nValue: valid\n"
