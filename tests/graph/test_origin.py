"""Origins of nodes: how they are found, kept with the graph, shown, and limited in number."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import sysconfig
import weakref

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.graph import origin
from dynet_cy.graph.nodes import nodes

SHOWN = origin.shown_file(__file__)  # as messages show it


def line() -> int:
    """The line that calls this."""
    return inspect.currentframe().f_back.f_lineno  # type: ignore[union-attr]


def lines_of(graph: dy.ComputationGraph) -> list[int | None]:
    return [node.origin.line if node.origin else None for node in nodes(graph)]


def test_line_of_each_node() -> None:
    def layer(x: dy.Expression) -> dy.Expression:
        return dy.tanh(x)

    graph = dy.renew_cg()
    x = dy.inputVector([1.0, 2.0])
    with dy.record_lines():
        y, here = layer(x), line()
        z = (
            y
            + 1.0
        )  # fmt: skip
        both = [v * 2.0 for v in (y, z)]
    after = dy.exp(both[0])
    made = nodes(graph)
    assert after.dim() == ((2,), 1)
    assert [n.origin is None for n in made] == [True, False, False, False, False, True]
    assert made[1].origin == (__file__, here - 5, "layer")
    assert str(made[1].origin) == f"{SHOWN}:{here - 5} in layer"
    assert here < made[2].origin.line < here + 5
    assert made[3].origin == made[4].origin
    assert not origin.is_recording()


def test_builders_are_skipped() -> None:
    """Nodes made by Python code of dynet_cy belong to the line that called it."""
    collection = dy.ParameterCollection()
    lstm = dy.BiRNNBuilder(2, 4, 4, collection, dy.VanillaLSTMBuilder)
    softmax = dy.StandardSoftmaxBuilder(4, 3, collection)
    with dy.record_lines():
        graph = dy.renew_cg()
        words, first = [dy.inputVector(np.ones(4)) for _ in range(3)], line()
        encoded, second = lstm.transduce(words), line()
        loss, third = softmax.neg_log_softmax(encoded[0], 1), line()
        assert loss.dim() == ((1,), 1)
    found = lines_of(graph)
    assert set(found) == {first, second, third}
    assert found[:3] == [first] * 3
    assert found[-1] == third


def test_renewed_reverted_and_checkpointed() -> None:
    with dy.record_lines():
        graph = dy.renew_cg()
        x, first = dy.inputVector([1.0]), line()
        dy.cg_checkpoint()
        dy.tanh(x), dy.exp(x)
    dy.cg_revert()
    assert lines_of(graph) == [first]
    dy.exp(x)  # not recorded: it must not get the line of the node that had its number
    assert lines_of(graph) == [first, None]
    with dy.record_lines():
        dy.exp(x), line()
        assert lines_of(graph)[2] == line() - 1
    dy.renew_cg()
    dy.inputVector([1.0])
    assert lines_of(graph) == [None]


def test_a_node_that_fails_leaves_no_line() -> None:
    with dy.record_lines():
        graph = dy.renew_cg(immediate_compute=True, check_validity=True)
        x, first = dy.scalarInput(0), line()
        with pytest.raises(ValueError, match="not finite"):
            dy.log(x)
        assert lines_of(graph) == [first]
        dy.exp(x)
        assert lines_of(graph) == [first, line() - 1]
    dy.renew_cg()


def test_graphs_that_number_their_nodes_anew() -> None:
    with dy.record_lines():
        graph = dy.renew_cg(forward_only=True)
        kept, first = dy.inputVector([2.0]), line()
        x = dy.inputVector([1.0])
        for _ in range(9000):
            x = x * 0.5 + 1.0
            last = line() - 1
            x.value()
        y, end = kept + x, line()
        y.value()
    assert len(graph) < 9000
    found = lines_of(graph)
    assert found[0] == first
    assert found[-1] == end
    assert last in found
    assert None not in found
    dy.renew_cg()


def test_errors_name_lines() -> None:
    """Errors raised far from the cause say where the arguments were made."""
    w = dy.ParameterCollection().add_parameters((2, 3), name="w")
    with dy.record_lines():
        dy.renew_cg()
        hidden, here = dy.tanh(dy.inputVector([1.0, 2.0])), line()
        made = f"made at {SHOWN}:{here} in test_errors_name_lines"
        with pytest.raises(dy.DimensionError, match="has 3 columns but b has 2 rows") as caught:
            w * hidden
        assert f"b  {{2}}    tanh, {made}" in str(caught.value)
        assert "a  {2,3}  parameter /w\n" in str(caught.value)
        with pytest.raises(ValueError, match="not one element") as wrong:
            hidden.backward()
        assert made in str(wrong.value)
        with pytest.raises(ValueError, match="not one element") as scalar:
            hidden.scalar_value()
        assert made in str(scalar.value)
        assert repr(hidden) == f"<expression 1 tanh {{2}}, {made}>"
    dy.renew_cg()
    with pytest.raises(dy.DimensionError) as without:
        w * dy.tanh(dy.inputVector([1.0, 2.0]))
    assert "made at" not in str(without.value)


def test_drawings_and_dumps(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    with dy.record_lines():
        dy.renew_cg()
        y, here = dy.tanh(dy.inputVector([1.0, 2.0])), line()
        y.value()
    dy.print_graphviz()
    assert f'N1 [label="v1 = tanh(v0)\\n{{2}}\\ntest_origin.py:{here}"];' in capsys.readouterr().out
    dy.dump_cg(tmp_path / "dump", show_gradients=False)
    assert f"Node 1, made at {SHOWN}:{here} in test_drawings_and_dumps\n" in (tmp_path / "dump").read_text()
    dy.renew_cg()
    dy.tanh(dy.inputVector([1.0, 2.0])).value()
    dy.dump_cg(tmp_path / "dump", show_gradients=False)
    assert "Node 1\n" in (tmp_path / "dump").read_text()


@pytest.mark.parametrize("batching", [0, 1])
def test_profiles(batching: int) -> None:
    w = dy.ParameterCollection().add_parameters((4, 4))

    def step() -> None:
        dy.renew_cg(autobatching=batching)
        losses = []
        for _ in range(6):
            h = dy.tanh(w * dy.inputVector(np.ones(4)))
            losses.append(dy.squared_norm(h))
        dy.esum([*losses, dy.squared_norm(w * dy.inputVector(np.ones(4)))]).backward()

    first = inspect.getsourcelines(step)[1]
    with profiling.measure(lines=True) as profile:
        step()
        step()
    rows = {(row.line - first, row.op, row.backward): row for row in profile.lines}
    calls = 2 * (6 if batching == 0 else 1)
    for backward in (False, True):
        assert (rows[4, "tanh", backward].nodes, rows[4, "tanh", backward].calls) == (12, calls)
        assert (rows[5, "squared_norm", backward].nodes, rows[5, "squared_norm", backward].calls) == (12, calls)
        assert rows[6, "squared_norm", backward].nodes == 2
        assert rows[4, "matmul", backward].function == "step"
    assert all(row.file == __file__ and row.seconds >= 0 for row in profile.lines)
    assert [row.seconds for row in profile.lines] == sorted((row.seconds for row in profile.lines), reverse=True)
    by_op = {(row.op, row.backward): row.seconds for row in profile}
    assert rows[4, "tanh", False].seconds == pytest.approx(
        by_op["tanh", False], abs=5e-8
    )  # shares of nodes are whole nanoseconds
    assert f"{SHOWN}:{first + 4} in step: forward tanh" in str(profile)
    with profiling.measure() as profile:
        step()
    assert profile.lines == []


def test_batches_are_listed_with_lines(capfd: pytest.CaptureFixture[str]) -> None:
    profiling.set_level(2)
    try:
        with dy.record_lines():
            dy.renew_cg()
            dy.tanh(dy.inputVector([1.0])).value()
            here = line() - 1
    finally:
        profiling.set_level(0)
    assert f"BatchSize:1 tanh {{1}}, made at {SHOWN}:{here} in " in capfd.readouterr().err


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")) and sys.version_info < (3, 14),
    reason="the free-threaded Python 3.13 never frees code",
)
def test_no_code_is_kept_alive() -> None:
    """Code of the program is freed once nothing else holds it, at the latest at the end of the block."""
    places = {}
    source = "def f(dy):\n    return dy.tanh(dy.inputVector([1.0]))\n"
    exec(compile(source, "made.py", "exec"), places)
    code = weakref.ref(places["f"].__code__)
    with dy.record_lines():
        graph = dy.renew_cg()
        places["f"](dy)
        assert nodes(graph)[1].origin == ("made.py", 2, "f")
    places.clear()
    gc.collect()
    assert code() is None
    assert nodes(graph)[1].origin == ("made.py", 2, "f")
    dy.renew_cg()


def test_a_line_has_one_number_however_often_it_is_made() -> None:
    code = "import sys\nfor _ in range(3):\n    x = dy.tanh(x)\n"
    with dy.record_lines():
        dy.renew_cg()
        before = origin.count()
        for _ in range(5):
            exec(compile(code, "again.py", "exec"), {"dy": dy, "x": dy.inputVector([1.0])})
        assert origin.count() <= before + 2
    dy.renew_cg()


@pytest.mark.slow
def test_numbers_of_lines_are_bounded(tmp_path) -> None:
    """Nodes made in 70,000 files: those beyond 65,534 have no origin, and the program goes on."""
    program = """
import dynet_cy as dy
from dynet_cy.graph import origin
from dynet_cy.graph.nodes import nodes
with dy.record_lines():
    graph = dy.renew_cg()
    for k in range(70_000):
        exec(compile("zeros(1)", f"{k}.py", "exec"), {"zeros": dy.zeros, "__builtins__": {}})
    found = [node.origin for node in nodes(graph)]
    print(found[7].file, found[-1], origin.count(), origin.origin(0))
    dy.tanh(dy.inputVector([1.0])).value()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
    assert done.stdout == "7.py None 65534 None\n", done.stderr


def test_switched_off_too_often() -> None:
    with pytest.raises(RuntimeError, match="more often"):
        origin.switch(False)


def test_files_are_shown_relative_to_the_working_directory(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside = str(tmp_path / "part" / "train.py")
    assert origin.shown_file(inside) == os.path.join("part", "train.py")
    assert origin.shown_file(str(tmp_path) + "_2/train.py") == str(tmp_path) + "_2/train.py"
    assert origin.shown_file("<stdin>") == "<stdin>"
    assert str(origin.Origin(inside, 3, "f")) == f"{os.path.join('part', 'train.py')}:3 in f"
    monkeypatch.chdir("/")
    assert origin.shown_file("/train.py") == "train.py"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert origin.shown_file(inside) == inside
