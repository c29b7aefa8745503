"""Scopes: which nodes they contain, and where they are shown."""

from __future__ import annotations

import re
import threading

import pytest

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.graph.nodes import nodes


def scopes_of(graph: dy.ComputationGraph) -> list[str]:
    return [node.scope for node in nodes(graph)]


def vector() -> dy.Expression:
    return dy.inputVector([1.0, 2.0])


def test_scopes_of_nodes() -> None:
    graph = dy.renew_cg()
    x = vector()
    with dy.name_scope("encoder"):
        h = dy.tanh(x)
        with dy.name_scope("attention"):
            h = dy.exp(h)
        h = dy.tanh(h)
    y = dy.exp(h)
    assert scopes_of(graph) == ["", "encoder", "encoder/attention", "encoder", ""]
    assert repr(h) == "<expression 3 tanh {2}, made in scope encoder>"
    assert "scope" not in repr(y)
    y.value()
    dy.renew_cg()


def test_nothing_is_noted_outside() -> None:
    graph = dy.renew_cg()
    vector()
    with dy.name_scope("s"):
        pass
    vector()
    assert scopes_of(graph) == ["", ""]


def test_exceptions_and_recursion() -> None:
    graph = dy.renew_cg()

    @dy.name_scope("tree")
    def build(depth: int) -> dy.Expression:
        return dy.tanh(build(depth - 1)) if depth else vector()

    build(2)
    with pytest.raises(KeyError), dy.name_scope("failing"):
        raise KeyError
    vector()
    scope = dy.name_scope("again")
    with scope:
        with scope:
            vector()
        vector()
    assert scopes_of(graph) == ["tree/tree/tree", "tree/tree", "tree", "", "again/again", "again"]


@pytest.mark.parametrize(("name", "error"), [(3, TypeError), ("", ValueError), ("a/b", ValueError)])
def test_bad_names(name: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="name_scope: the name must"):
        dy.name_scope(name)  # type: ignore[arg-type]


def test_threads_have_their_own() -> None:
    found: list[str] = []

    def other() -> None:
        with dy.ComputationGraph() as graph:
            vector()
            with dy.name_scope("there"):
                vector()
            found.extend(scopes_of(graph))

    with dy.name_scope("here"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == ["", "there"]


@pytest.mark.fibers
def test_calls_of_a_map_have_their_own() -> None:
    graph = dy.renew_cg()

    def item(i: int) -> None:
        with dy.name_scope(f"item{i}"):
            h = dy.tanh(vector())
            h.value()  # the other calls go on meanwhile
            h = dy.tanh(h)
            h.value()
        dy.exp(h)

    with dy.name_scope("map"):
        dy.batched_map(item, range(3))
        vector()
    found = scopes_of(graph)
    assert sorted(found) == sorted(["map"] * 4 + [f"map/item{i}" for i in range(3) for _ in range(3)])
    for node in nodes(graph):
        if node.op == "tanh":
            assert found[node.args[0]] == node.scope


@pytest.mark.parametrize("how", ["add_input", "add_inputs", "transduce"])
@pytest.mark.parametrize("builder", [dy.LSTMBuilder, dy.GRUBuilder, dy.CoupledLSTMBuilder])
def test_builders_are_scopes(builder: type, how: str) -> None:
    model = dy.ParameterCollection()
    rnn = builder(1, 2, 3, model)
    name = rnn.param_collection().name().strip("/")
    graph = dy.renew_cg()
    state = rnn.initial_state()
    before = len(graph)
    with dy.name_scope("encoder"):
        x = vector()
        if how == "add_input":
            state.add_input(x)
        else:
            getattr(state, how)([x, x])
        vector()
    found = scopes_of(graph)[before:]
    assert found[0] == found[-1] == "encoder"
    assert set(found[1:-1]) == {f"encoder/{name}"}
    with dy.record_lines():
        state.add_input(x)
    assert scopes_of(graph)[-1] == name


def test_trees_and_both_directions_are_scopes() -> None:
    model = dy.ParameterCollection()
    both = dy.BiRNNBuilder(1, 2, 4, model, dy.LSTMBuilder)
    tree = dy.NaryTreeLSTMBuilder(2, 2, 3, model)
    sums = dy.ChildSumTreeLSTMBuilder(2, 3, model)
    graph = dy.renew_cg()
    with dy.name_scope("s"):
        both.transduce([vector(), vector()])
        both.add_inputs([vector()])
        tree.add_input(vector(), [])
        sums.add_input(vector(), [sums.add_input(vector())])
    found = set(scopes_of(graph))
    assert {"s/nary-tree-lstm-builder", "s/child-sum-tree-lstm-builder"} <= found
    inner = [scope for scope in found if re.fullmatch(r"s/[^/]*birnn[^/]*/vanilla-lstm-builder(_1)?", scope)]
    assert len(inner) == 2


def test_errors_name_scopes() -> None:
    w = dy.ParameterCollection().add_parameters((2, 3), name="w")
    dy.renew_cg()
    with dy.name_scope("encoder"):
        x = vector()
    with pytest.raises(dy.DimensionError, match=r"b  \{2\}    input, made in scope encoder"):
        w * x
    with dy.detect_anomaly(), dy.name_scope("decoder"):
        dy.renew_cg()
        h = dy.log(vector() - 1.0)
        with pytest.raises(dy.AnomalyError, match=r"made at .*test_scopes.py:\d+ in \w+ in scope decoder"):
            h.value()
    dy.renew_cg()


def test_profiles_add_up_scopes() -> None:
    w = dy.ParameterCollection().add_parameters((2, 2))

    def step() -> None:
        dy.renew_cg()
        with dy.name_scope("encoder"):
            hs = [dy.tanh(w * vector()) for _ in range(4)]
        with dy.name_scope("loss"):
            loss = dy.esum([dy.squared_norm(h) for h in hs])
        loss.backward()

    with profiling.measure() as profile:
        step()
        step()
    found = {row.scope: row for row in profile.scopes}
    assert set(found) == {"encoder", "loss"}
    assert found["encoder"].nodes == 2 * (4 + 4)
    assert found["loss"].nodes == 2 * 5
    for row in profile.scopes:
        assert row.seconds == pytest.approx(row.forward + row.backward)
        assert row.backward > 0
    assert profile.lines == []
    assert re.search(r"scope\n.*(encoder|loss)\n.*(encoder|loss)\n", str(profile))
    with profiling.measure(lines=True) as profile:
        step()
    assert {row.scope for row in profile.lines} == {"encoder", "loss"}
    assert re.search(r"in step: forward esum \[loss\]", str(profile))


# ---- drawings -------------------------------------------------------------------------------------------------------


def boxes(svg: str) -> list[tuple[str, str]]:
    return re.findall(
        r'<rect class="c".*?</rect>|<rect class="c"[^>]*/><text[^>]*>(.*?)</text><text[^>]*>(.*?)</text>', svg
    )


def colours(svg: str) -> list[str]:
    return re.findall(r'<rect class="c"[^>]*fill="(.*?)"', svg)


def network(x: dy.Expression) -> dy.Expression:
    with dy.name_scope("encoder"):
        h = dy.tanh(x * 2.0)
        with dy.name_scope("attention"):
            h = dy.exp(h)
    return dy.squared_norm(h)


def test_drawings_collapse_scopes() -> None:
    dy.renew_cg()
    losses = [network(vector()) for _ in range(2)]
    loss = dy.esum([*losses, network(dy.inputVector([1.0] * 5))])
    svg = dy.draw(loss, collapse=True, graphviz=False).svg
    assert boxes(svg) == [("encoder", "3 nodes")] * 3
    assert "not computed" in svg
    assert "attention" not in svg
    loss.value()
    svg = dy.draw(loss, collapse=True, graphviz=False).svg
    first, second, third = colours(svg)
    assert first == second != "#ffffff"
    assert "1 cmult_constant" not in svg or third
    svg = dy.draw(loss, collapse=["attention"], graphviz=False).svg
    assert boxes(svg) == [("attention", "1 node")] * 3
    assert ">tanh<" in svg
    assert "in scope encoder" in svg
    assert 'class="c"' not in dy.draw(loss, graphviz=False).svg


def test_collapsed_scopes_make_no_circles() -> None:
    """A scope is drawn as two boxes if a node outside lies between its parts."""
    dy.renew_cg()
    with dy.name_scope("a"):
        x = dy.tanh(vector())
    y = dy.exp(x)
    with dy.name_scope("a"):
        z = dy.tanh(y) + x
    svg = dy.draw(z, collapse=True, graphviz=False, names={z: "z"}).svg
    assert boxes(svg) == [("a", "2 nodes"), ("z = a", "2 nodes")]


def test_bad_collapse() -> None:
    dy.renew_cg()
    x = network(vector())
    with pytest.raises(ValueError, match="draw: collapse names 'decoder', and no node"):
        dy.draw(x, collapse=["decoder"])
    for wrong in ("encoder", 3, [4]):
        with pytest.raises(TypeError, match="draw: collapse must be True, False or a list of names"):
            dy.draw(x, collapse=wrong)  # type: ignore[arg-type]
