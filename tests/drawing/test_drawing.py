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
from dynet_cy.drawing.layered import place
from dynet_cy.drawing.merging import merge
from dynet_cy.graph.nodes import GraphNode, nodes

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
            x = -x  # in no scope: too many for a picture, so they are one box
        assert dy.draw(x, collapse=True).svg.count("<g") == 310
        assert dy.draw(x).svg.count("<g") == 11
        assert "300 x (negate)" in graph._repr_svg_()


def counts(drawing: dy.Drawing) -> dict[str, str]:
    """The lower line of text of nodes and boxes by their upper one, which must differ."""
    found = {}
    for group in ET.fromstring(drawing.svg).iter(f"{SVG}g"):
        label, below = (text.text for text in group.iter(f"{SVG}text"))
        assert label not in found
        found[label] = below
    return found


def test_nodes_at_one_depth_are_a_box_where_scopes_are_not_enough() -> None:
    with dy.ComputationGraph():
        model = dy.ParameterCollection()
        W, E = model.add_parameters((3, 3), name="W"), model.add_lookup_parameters((5, 3), name="E")
        sums = []
        for k in range(400):
            x = dy.tanh(W * (E[k % 5] if k % 2 else dy.zeros(3)))
            sums.append(dy.sum_elems(dy.sin(x) if k % 4 else dy.cos(x)))
        drawing = dy.draw(dy.esum(sums), names={sums[7]: "seventh"})
        assert counts(drawing) == {
            "esum": "{1}",
            "seventh = sum": "400 nodes",
            "sin": "300 nodes",
            "cos": "100 nodes",
            "tanh": "400 nodes",
            "matmul W": "400 nodes",
            "E[...]": "200 nodes",
            "input": "200 nodes",
        }
        assert "400 nodes, not computed" in tooltips(dy.draw(dy.esum(sums)))
        dy.forward(sums)
        assert "400 nodes in 1 call" in tooltips(dy.draw(dy.esum(sums)))


def test_repeated_parts_are_a_box() -> None:
    with dy.ComputationGraph():
        x = dy.inputVector([1, 2])
        for k in range(3000):
            x = dy.tanh(x) if k % 2 else -x
        assert counts(dy.draw(dy.sum_elems(x))) == {
            "input": "{2}",
            "1,500 x (negate, tanh)": "3000 nodes",
            "sum": "{1}",
        }


def test_ranges_of_depths_are_a_box_where_nothing_repeats() -> None:
    ops = [dy.tanh, dy.sin, dy.cos, dy.exp, dy.logistic, dy.rectify, dy.square, dy.cube]
    rng = random.Random(1)
    with dy.ComputationGraph():
        x = dy.inputVector([1, 2])
        for _ in range(2500):
            x = rng.choice(ops)(x)
        found = texts(dy.draw(x))
        groups = ET.fromstring(dy.draw(x).svg).findall(f"{SVG}g")
    assert 100 < len(groups) <= 300
    assert any(label.startswith("depths 9 to 17 (") for label in found)


@pytest.mark.parametrize("seed", range(10))
def test_merged_graphs_are_small_complete_and_without_cycles(seed: int) -> None:
    rng = random.Random(seed)
    most = rng.choice([1, 2, 7, 40])
    count = rng.choice([1, 5, 60, 300])
    graph = [
        GraphNode(
            n,
            rng.choice("abc"),
            tuple(rng.sample(range(n), min(n, rng.choice([0, 1, 1, 2])))),
            (2,),
            1,
            None,
            (),
            False,
            rng.choice([None, 0, 1]),
            None,
            "",
        )
        for n in range(count)
    ]
    inside = {0: [graph[0]] * 3}
    merged = merge(graph, range(count), inside, {n: graph[n].op for n in range(count)}, {0: "name"}, most)
    assert len(merged.nodes) <= most or len(merged.nodes) == count
    assert all(arg < i for i, node in enumerate(merged.nodes) for arg in node.args)
    held = [node for i, node in enumerate(merged.nodes) for node in merged.boxes.get(i, [node])]
    assert sorted(node.number for node in held) == sorted([0, 0, *range(count)])
    assert list(merged.names.values()) == ["name"]


def tooltips(drawing: dy.Drawing) -> str:
    return "\n".join(title.text or "" for title in ET.fromstring(drawing.svg).iter(f"{SVG}title"))


def test_errors(losses, monkeypatch) -> None:
    with dy.ComputationGraph():
        other = dy.scalarInput(1)
        with pytest.raises(ValueError, match="draw: the expressions belong to several graphs"):
            dy.draw(losses[0], other)
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


def test_boxes_of_layers_that_opened_no_scope() -> None:
    """Their nodes are known by the names of parameters, and those between them belong to what is around."""
    model = dy.ParameterCollection()
    net = dy.nn.Sequential([(dy.nn.Linear, 3, 4), "relu", (dy.nn.Linear, 4, 2)], model)
    lstm = dy.LSTMBuilder(1, 3, 3, model)
    dy.renew_cg()
    x = lstm.initial_state().transduce([dy.inputVector([1, 2, 3])])[0]
    scores = net(x)
    loss = dy.pickneglogsoftmax(scores, 1)
    whole = texts(dy.draw(loss, collapse=True))
    assert {"sequential", "vanilla-lstm-builder", "pickneglogsoftmax"} <= whole
    assert "rectify" not in whole
    assert texts(dy.draw(loss, collapse=["0"])) >= {"0", "rectify"}
    assert "rectify" in texts(dy.draw(loss))
    with pytest.raises(ValueError, match="collapse names 'other'"):
        dy.draw(loss, collapse=["other"])
    dy.renew_cg()
    y = dy.inputVector([1, 2, 3])
    for _ in range(1500):
        y = lstm.initial_state().add_input(y).output()
    assert "vanilla-lstm-builder" in texts(dy.draw(dy.sum_elems(y)))  # more than 2,000 nodes


def texts(drawing: dy.Drawing) -> set[str]:
    return {text.text or "" for text in ET.fromstring(drawing.svg).iter(f"{SVG}text")}
