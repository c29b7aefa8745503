"""Drawings: their text, colours and layout."""

from __future__ import annotations

import importlib
import itertools
import random
import shutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import dynet_cy as dy
from dynet_cy.graph.layered import place
from dynet_cy.graph.nodes import nodes

SVG = "{http://www.w3.org/2000/svg}"
LAYOUTS = [False, pytest.param(True, marks=pytest.mark.skipif(not shutil.which("dot"), reason="needs Graphviz"))]


@pytest.fixture
def losses():
    """Two trees of different shapes, with values."""
    dy.renew_cg(autobatching=1)
    model = dy.ParameterCollection()
    leaf, W = model.add_lookup_parameters((3, 4), name="leaf"), model.add_parameters((4, 8), name="W")

    def read(tree):
        if isinstance(tree, int):
            return leaf[tree]
        return dy.tanh(W * dy.concatenate([read(part) for part in tree]))

    found = [dy.sum_elems(read(tree)) for tree in ((0, (1, 2)), ((0, 1), (2, 0)))]
    dy.forward(found)
    return found


def boxes(drawing: dy.Drawing) -> dict[int, tuple[list[str], str]]:
    """The lines of text and the colour of each node."""
    found = {}
    for group in ET.fromstring(drawing.svg).iter(f"{SVG}g"):
        tooltip = group.find(f"{SVG}title").text
        lines = [text.text for text in group.iter(f"{SVG}text")]
        found[int(tooltip.split(":")[0])] = (lines, group.find(f"{SVG}rect").get("fill"))
    return found


@pytest.mark.parametrize("graphviz", LAYOUTS)
def test_nodes_that_ran_together_have_one_colour(losses, graphviz: bool) -> None:
    found = boxes(dy.draw(*losses, graphviz=graphviz))
    graph = nodes(dy.cg())
    assert set(found) == {n.number for n in graph if n.op != "parameter"}
    calls: dict[int, set[int]] = {}
    for n in found:
        calls.setdefault(graph[n].batch, set()).add(n)
    for a, b in itertools.combinations(found, 2):
        if graph[a].batch == graph[b].batch:
            assert found[a][1] == found[b][1] != "#ffffff"
    several = {found[next(iter(c))][1] for c in calls.values() if len(c) > 1}
    assert len(several) == sum(len(c) > 1 for c in calls.values()) >= 4
    assert {found[n][1] for c in calls.values() if len(c) == 1 for n in c} <= {"#ffffff"}


def test_lists(losses) -> None:
    assert dy.draw(losses).svg == dy.draw(*losses).svg == dy.draw(losses[0], losses[1:]).svg
    with pytest.raises(TypeError, match="draw: expressions must be Expressions, not int"):
        dy.draw([1])
    with pytest.raises(TypeError, match="draw: expressions must be Expressions, not int"):
        dy.draw(1)
    with pytest.raises(ValueError, match="draw: there is no expression"):
        dy.draw([])


def test_labels(losses) -> None:
    graph = nodes(dy.cg())
    found = boxes(dy.draw(losses[0], names={losses[0]: "<&>"}))
    assert found[max(found)][0] == ["<&> = sum", "{1}"]
    assert sorted(lines[0] for n, (lines, _) in found.items() if graph[n].op == "lookup") == [
        "leaf[0]",
        "leaf[1]",
        "leaf[2]",
    ]
    assert {lines[0] for n, (lines, _) in found.items() if graph[n].op == "matmul"} == {"matmul W"}
    assert len(boxes(dy.draw(losses[0], parameters=True))) > len(found)
    dy.renew_cg()
    x = dy.inputTensor([[1, 2], [3, 4]], batched=True)
    assert boxes(dy.draw())[0] == (["input", "{2} x 2"], "#ffffff")
    assert "not computed" in dy.draw(dy.tanh(x)).svg


def test_rows_whose_numbers_are_values_of_the_graph() -> None:
    """The label names the table and the node of the index."""
    table = dy.ParameterCollection().add_lookup_parameters((3, 4), name="leaf")
    dy.renew_cg()
    found = boxes(dy.draw(table[dy.argmax(dy.inputVector([1, 3, 2]))]))
    assert [found[n][0][0] for n in sorted(found)] == ["input", "index_of_max", "leaf[1]"]


def test_lines_of_the_program() -> None:
    dy.renew_cg()
    with dy.record_lines():
        x = dy.tanh(dy.scalarInput(1))
    assert "test_drawing.py:" in dy.draw(x).svg
    assert "test_lines_of_the_program" in dy.draw(x).svg


def test_nothing_is_computed() -> None:
    dy.renew_cg()
    x = dy.tanh(dy.scalarInput(1))
    assert dy.draw(x)._repr_svg_() == dy.draw(x).svg
    assert not nodes(dy.cg())[1].computed
    assert boxes(dy.draw()).keys() == {0, 1}
    dy.renew_cg()
    assert not boxes(dy.draw()), "a graph without nodes"


def test_save(losses, tmp_path) -> None:
    drawing = dy.draw(*losses)
    drawing.save(tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").read_text(encoding="utf-8") == drawing.svg
    with pytest.raises(OSError, match="graph.svg"):
        drawing.save(tmp_path / "nowhere" / "graph.svg")
    with pytest.raises(ValueError, match=r"must end in .svg, .png or .pdf"):
        drawing.save(tmp_path / "graph.jpg")


def converter(folder: Path, name: str, body: str) -> None:
    program = folder / name
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}\n", encoding="utf-8")
    program.chmod(0o755)


def test_other_formats_are_made_by_a_program(losses, tmp_path, monkeypatch) -> None:
    drawing = dy.draw(*losses)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    for kind in ("png", "pdf"):
        with pytest.raises(FileNotFoundError, match=f"{kind.upper()} needs.*rsvg-convert.*cairosvg.*inkscape"):
            drawing.save(tmp_path / f"graph.{kind}")
        assert not (tmp_path / f"graph.{kind}").exists()
    # What it reads and its arguments are what it writes.
    echo = "print(sys.argv[1:], sys.stdin.read())"
    for name, argument in (("inkscape", "--export-type=pdf"), ("rsvg-convert", "'--format', 'pdf'")):
        converter(tmp_path, name, echo)
        drawing.save(tmp_path / "graph.pdf")
        made = (tmp_path / "graph.pdf").read_text(encoding="utf-8")
        assert argument in made
        assert made.endswith(drawing.svg + "\n")
    converter(tmp_path, "rsvg-convert", "sys.exit('no fonts')")
    with pytest.raises(RuntimeError, match="rsvg-convert has not made PNG: no fonts"):
        drawing.save(tmp_path / "graph.png")


def test_other_formats_are_made_by_cairosvg(losses, tmp_path, monkeypatch) -> None:
    try:
        importlib.import_module("cairosvg")
    except (ImportError, OSError):
        pytest.skip("needs cairosvg")
    monkeypatch.setenv("PATH", str(tmp_path))
    for kind, begin in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        dy.draw(*losses).save(tmp_path / f"graph.{kind.upper()}")
        assert (tmp_path / f"graph.{kind.upper()}").read_bytes().startswith(begin)


def test_large_graphs_are_drawn_by_scope() -> None:
    with dy.ComputationGraph() as graph:
        x = dy.scalarInput(1)
        for k in range(9):
            with dy.name_scope(f"layer{k}"):
                for _ in range(300):
                    x = -x
        drawing = dy.draw(x)
        assert drawing.svg.count("<g") == 10
        assert drawing.svg == dy.draw(x, collapse=True).svg == graph._repr_svg_()
        for _ in range(300):
            x = -x  # in no scope: too many for a notebook
        assert dy.draw(x).svg.count("<g") == 310
        assert graph._repr_svg_() is None


def test_errors(losses, monkeypatch) -> None:
    with dy.ComputationGraph():
        other = dy.scalarInput(1)
        with pytest.raises(ValueError, match="draw: the expressions belong to several graphs"):
            dy.draw(losses[0], other)
        x = other
        for _ in range(2000):
            x = -x
        with pytest.raises(ValueError, match="draw: there are 2,001 nodes, and at most 2,000 can be drawn"):
            dy.draw(x)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="Graphviz is not installed"):
        dy.draw(losses[0], graphviz=True)
    dy.renew_cg()
    with pytest.raises(dy.StaleExpressionError):
        dy.draw(losses[0])


@pytest.mark.parametrize("seed", range(20))
def test_own_layout(seed: int) -> None:
    """Nodes are above their arguments, nothing overlaps, and arrows go from edge to edge."""
    rng = random.Random(seed)
    n = rng.choice([1, 2, 10, 60])
    arguments = {i: rng.sample(range(i), min(i, rng.choice([0, 1, 1, 2, 3]))) for i in range(n)}
    sizes = {i: (rng.uniform(10, 90), 30.0) for i in range(n)}
    centres, curves = place(arguments, sizes, (5.0, 20.0))
    assert centres.keys() == arguments.keys()
    assert min(x - sizes[i][0] / 2 for i, (x, _) in centres.items()) >= -1e-9
    assert curves.keys() == {(arg, i) for i, args in arguments.items() for arg in args}
    for (arg, i), curve in curves.items():
        assert centres[arg][1] + 30 + 20 <= centres[i][1] + 1e-9
        assert len(curve) % 3 == 1
        assert curve[0] == pytest.approx((centres[arg][0], centres[arg][1] + 15))
        assert curve[-1] == pytest.approx((centres[i][0], centres[i][1] - 15))
    for a, b in itertools.combinations(centres, 2):
        apart = abs(centres[a][0] - centres[b][0]) >= (sizes[a][0] + sizes[b][0]) / 2 + 5 - 1e-6
        assert apart or abs(centres[a][1] - centres[b][1]) >= 30
