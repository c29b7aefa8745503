"""Programs as ONNX files: classifiers, Transformers, recurrent steps, tables; and what cannot be exported."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from module_examples import run_examples
from running import check, onnxruntime, session

import dynet_cy as dy
from dynet_cy.onnx import exporting

onnx = pytest.importorskip("onnx")  # running.py skips if it is missing
Floats, Indices = dy.onnx.Floats, dy.onnx.Indices


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def ids(count: int, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed + n).integers(0, count, n).tolist()


def test_classifier(path: Path, model: dy.ParameterCollection) -> None:
    W, V = model.add_parameters((20, 9), name="W"), model.add_parameters((4, 20), name="V")
    b = model.add_parameters(20, name="b")
    check(
        lambda x: dy.softmax(V * dy.tanh(dy.affine_transform([b, W, x]))),
        {"x": Floats(9)},
        path,
        [[[floats(9)]], [[floats(9) * k] for k in range(1, 6)]],
    )
    graph = onnx.load(path).graph
    assert {"/W", "/V", "/b"} <= {x.name for x in graph.initializer}
    assert [d.dim_param or d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == ["batch", 9]
    assert [d.dim_param or d.dim_value for d in graph.output[0].type.tensor_type.shape.dim] == ["batch", 4]
    # The file has the values of parameters transposed: the order of axes is reversed.
    stored = {x.name: onnx.numpy_helper.to_array(x) for x in graph.initializer}
    np.testing.assert_array_equal(stored["/W"], W.as_array().T)


def test_axes_are_reversed(path: Path, model: dy.ParameterCollection) -> None:
    dy.onnx.export(lambda x: x * 2, {"x": Floats((2, 3, 4))}, path)
    x = floats(2, 3, 4)
    np.testing.assert_array_equal(session(path).run(None, {"x": x.T[None]})[0][0].T, 2 * x)


def test_sizes_that_are_products(path: Path) -> None:
    def pairs(x: dy.Expression, v: dy.Expression) -> dy.Expression:
        n, m = x.dim()[0][1], v.dim()[0][0]
        both = dy.concatenate([dy.reshape(dy.transpose(x) * x, (n, n, 1))] * 2)
        return dy.reshape(dy.cmult(both, dy.reshape(v, (1, 1, m))), (2 * n * n, m))

    inputs = {"x": Floats((3, "n")), "v": Floats("m")}
    check(pairs, inputs, path, [[[floats(3, n), floats(m)]] for n, m in ((2, 5), (7, 3))])
    (output,) = onnx.load(path).graph.output
    assert [d.dim_param for d in output.type.tensor_type.shape.dim] == ["batch", "m", "2*n*n"]


def test_convolutional_classifier(path: Path, model: dy.ParameterCollection) -> None:
    first = dy.nn.Conv2d(1, 4, (3, 3), model)
    last = dy.nn.Linear(4 * 5 * 4, 3, model)

    def classify(image: dy.Expression) -> dy.Expression:
        return last(dy.reshape(dy.maxpooling2d(dy.rectify(first(image)), [2, 2], [2, 2], False), (80,)))

    check(classify, {"image": Floats((12, 10, 1))}, path, [[[floats(12, 10, 1)], [floats(12, 10, 1) * 2]]])


def test_bag_of_words(path: Path, model: dy.ParameterCollection) -> None:
    words = dy.nn.Embedding(50, 6, model)
    check(
        lambda given: dy.softmax(dy.mean_dim(words(given), [1])[:3]),
        {"words": Indices("n", 50)},
        path,
        [[[ids(50, n, k)] for k in range(3)] for n in (1, 4, 9)],
    )


def test_single_rows(path: Path, model: dy.ParameterCollection) -> None:
    """A loop over a fixed number of words, as in programs for DyNet, and a single index as input."""
    table = model.add_lookup_parameters((30, 5), name="words")
    W = model.add_parameters((5, 5))

    def score(words: list[int], tag: int) -> dy.Expression:
        states = [dy.tanh(W * table[w]) for w in words]
        return dy.pickneglogsoftmax(dy.esum(states), tag) + dy.pick(table[words[1]], tag) + dy.hinge(states[0], tag)

    examples = [[ids(30, 3, k), k] for k in range(5)]
    check(score, {"words": Indices(3, 30), "tag": Indices((), 5)}, path, [examples, examples[:1]])
    check(lambda w: table[w], {"w": Indices((), 30)}, path, [[[7]], [[9]]], batch=None)


def test_selections_by_inputs(path: Path, model: dy.ParameterCollection) -> None:
    def select(x: dy.Expression, columns: list[int]) -> list[dy.Expression]:
        return [
            dy.select_cols(x, columns),
            dy.select_rows(dy.transpose(x), columns),
            dy.pick(x, columns[0], 1),
            dy.scatter_rows(dy.pick(x, 0)[:3], columns, 6),
            dy.hinge_dim(dy.select_rows(x, [0, 1, 2]), columns, 1),
            x[:, 1:3],
            x[::-1, -1],
            dy.concatenate([x, x[0:1]]),
        ]

    inputs = {"x": Floats((4, 6)), "columns": Indices(3, 6)}
    check(select, inputs, path, [[[floats(4, 6) * k, ids(6, 3, k)] for k in range(1, 4)]])


@pytest.mark.parametrize(
    ("builder", "parts"),
    [(dy.LSTMBuilder, 4), (dy.GRUBuilder, 2), (dy.SimpleRNNBuilder, 2), (dy.CoupledLSTMBuilder, 4)],
)
def test_step_of_a_recurrent_network(builder, parts: int, path: Path, model: dy.ParameterCollection) -> None:
    """The state is an input and an output."""
    rnn = builder(2, 5, 4, model)

    def step(x: dy.Expression, *state: dy.Expression) -> dict[str, dy.Expression]:
        after = rnn.initial_state(list(state)).add_input(x)
        return {"y": after.output(), **{f"new_{k}": s for k, s in enumerate(after.s())}}

    inputs = {"x": Floats(5), **{f"state_{k}": Floats(4) for k in range(parts)}}
    check(step, inputs, path, [[[floats(5) * k, *[floats(4) / k] * parts] for k in range(1, 4)]])
    # A sentence, with one call of the file per word.
    run = session(path)
    state, words = [np.zeros((2, 4), np.float32)] * parts, floats(7, 2, 5)
    for x in words:
        y, *state = run.run(None, {"x": x, **{f"state_{k}": s for k, s in enumerate(state)}})
    with dy.ComputationGraph():
        zero = rnn.initial_state([dy.zeros(4)] * parts)
        wanted = zero.transduce([dy.inputVector(x[1]) for x in words])[-1].npvalue()
    np.testing.assert_allclose(y[1], wanted, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_transformer(causal: bool, path: Path, model: dy.ParameterCollection) -> None:
    """The batch size and the length are symbolic."""
    words = dy.nn.Embedding(40, 16, model)
    positions = dy.nn.SinusoidalPositions(16)
    encoder = dy.nn.TransformerEncoder(2, 16, 4, 32, model)
    encoder.eval()
    tag = dy.nn.Linear(16, 7, model)
    check(
        lambda given: dy.log_softmax(tag(encoder(positions(words(given)), causal=causal))),
        {"words": Indices("length", 40)},
        path,
        [[[ids(40, n, k)] for k in range(3)] for n in (1, 2, 5, 17)],
    )
    shape = onnx.load(path).graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in shape] == ["batch", "length", 7]


@pytest.mark.parametrize("causal", [False, True])
def test_windows_of_any_length(causal: bool, path: Path, model: dy.ParameterCollection) -> None:
    words = dy.nn.Embedding(40, 16, model)

    def attend(given: list[int]) -> dy.Expression:
        x = words(given)
        return dy.scaled_dot_product_attention(x, x, x, heads=2, causal=causal, window=2)

    check(attend, {"words": Indices("length", 40)}, path, [[[ids(40, n, k)] for k in range(3)] for n in (1, 2, 5, 17)])


def test_fixed_batch_and_none(path: Path, model: dy.ParameterCollection) -> None:
    W = model.add_parameters((3, 5))
    check(lambda x: W * x, {"x": Floats((5, "n"))}, path, [[[floats(5, 4)], [floats(5, 4)]]], batch=2)
    check(lambda x: W * x, {"x": Floats((5, "n"))}, path, [[[floats(5, 4)]]], batch=None)


def test_two_lengths(path: Path) -> None:
    """Scores of each pair: a reshape of two axes that are known only when the file runs."""
    check(
        lambda a, b: dy.reshape(dy.transpose(a) * b, (-1,)),
        {"a": Floats((3, "n")), "b": Floats((3, "m"))},
        path,
        [[[floats(3, n), floats(3, m)]] for n, m in [(2, 5), (4, 4), (7, 1)]],
    )


def test_outputs_that_depend_on_nothing(path: Path, model: dy.ParameterCollection) -> None:
    W = model.parameters_from_numpy(floats(3, 2), name="W")
    check(lambda x: [x, W], {"x": Floats(2)}, path, [[[floats(2)]] * 3])


def test_tables_that_decay(path: Path, model: dy.ParameterCollection) -> None:
    """The factor of a table is included in the file."""
    table = model.add_lookup_parameters((4, 3))
    other = model.add_parameters(3)
    model.set_weight_decay_lambda(0.1)
    trainer = dy.SimpleSGDTrainer(model)
    dy.renew_cg()
    dy.squared_norm(table[1] + other).backward()
    trainer.update()
    check(lambda w: table[w] + other, {"w": Indices((), 4)}, path, [[[k] for k in range(4)]])


def test_large_models_have_a_file_beside_them(path: Path, model: dy.ParameterCollection, monkeypatch) -> None:
    monkeypatch.setattr(exporting, "MOST_BYTES", 1000)
    W = model.add_parameters((30, 40))
    check(lambda x: W * x, {"x": Floats(40)}, path, [[[floats(40)]]])
    assert (path.parent / "model.onnx.data").stat().st_size >= 4800


# ---- what cannot be exported


def refused(function, inputs, path: Path, match: str, error: type[Exception] = dy.onnx.ExportError, **options) -> None:
    with pytest.raises(error, match=match):
        dy.onnx.export(function, inputs, path, **options)
    assert not path.exists()


def first(x: dy.Expression) -> float:
    return float(x.npvalue()[0, 0])


def test_refusals(path: Path, model: dy.ParameterCollection) -> None:
    x = {"x": Floats((3, "n"))}
    words = {"words": Indices("n", 9)}
    refused(lambda x: dy.dropout(x, 0.5), x, path, r"dropout draws random numbers.* in <lambda>")
    refused(lambda x: x if x[0][0].value() > 0 else -x, x, path, "asks for the value of")
    read = r"asks for the value of the input x at .*test_onnx_files.py:\d+ in first, so what it does next may depend on"
    refused(lambda x: x * first(x), x, path, read)
    refused(lambda x: x * first(x), {"x": Floats((3, 4))}, path, read)  # of one size, so the numbers differ
    refused(lambda x: x + dy.inputVector([first(x)] * 3), {"x": Floats((3, 1))}, path, read)
    refused(lambda x: x * first(dy.tanh(x)), x, path, r"the value of tanh at .*test_onnx_files.py:\d+ in first, so")
    refused(lambda words: dy.inputVector([words[0], 1]), words, path, "converts a number of the input")
    refused(
        lambda x: x[:, : x.shape[1] ** 3 % 5 + 1], x, path, "not a simple function|not the same", shortest=6, longest=99
    )
    refused(
        lambda x: dy.conv2d(x, x, [1, 1]), {"x": Floats((3, 3, 1))}, path, "conv2d has filters that differ.*made at"
    )
    refused(lambda x: 3, x, path, "must return expressions", TypeError)
    refused(lambda x: [], x, path, "returns no expression", ValueError)
    refused(lambda x: x, {}, path, "argument inputs", ValueError)
    refused(lambda x: x, {"x": 3}, path, "must be Floats, Indices or Each, not int", TypeError)
    refused(lambda x: x, x, path, "shortest and longest", ValueError, shortest=7, longest=7)
    refused(lambda x: x, x, path, "batch: expected a name that no axis", ValueError, batch="n")
    dy.renew_cg()
    assert dy.inputVector([1, 2]).npvalue().tolist() == [1, 2]


def scratch(x: dy.Expression) -> dy.Expression:
    """A number from another graph, whose nodes have the same numbers."""
    with dy.ComputationGraph():
        found = dy.inputVector([1, 2]).value()
    return x * found[1]


def test_numbers_of_no_input_may_be_read(path: Path, model: dy.ParameterCollection) -> None:
    W = model.add_parameters((3, 3))
    table = model.add_lookup_parameters((9, 3))
    constant = dy.inputVector
    x, word, words = {"x": Floats(3)}, {"word": Indices((), 9)}, {"words": Indices(4, 9)}
    rows = [0, 3, 8, 8]
    for function, inputs, argument in [
        (scratch, x, np.ones(3)),
        (lambda x: x * float(W.npvalue()[0, 0]) + float(W.as_array()[1, 1]), x, np.ones(3)),
        (lambda x: x * constant([2, 3]).value()[1], x, np.ones(3)),
        (lambda word: table[word] + constant(table[3].npvalue()), word, 8),
        (lambda words: constant(np.arange(9))[words], words, rows),
        (lambda words: dy.esum([table[w] for w in [*reversed(words), words[0]][1:]]), words, rows),
    ]:
        check(function, inputs, path, [[[argument]]])


def swallowed(x: dy.Expression) -> bool:
    try:
        return x.value()[0] > 100
    except Exception:
        return True


def reverted(x: dy.Expression) -> bool:
    dy.cg_checkpoint()
    found = dy.tanh(x).value()[0] > 1
    dy.cg_revert()
    return found


DECISIONS: dict[str, tuple[Any, Any, str]] = {
    "value": (lambda x: x.value()[0] > 0, Floats(3), "value of the input x"),
    "beyond what is tried": (lambda x: x.npvalue().max() > 1e6, Floats(3), "value of the input x"),
    "one number": (lambda x: x.value() < -9, Floats(1), "value of the input x"),
    "array": (lambda x: (np.asarray(x) > 9).any(), Floats(3), "value of the input x"),
    "element": (lambda x: float(x[0]) > 9, Floats(3), "value of pick"),
    "comparison": (lambda x: x[0] > 9, Floats(3), "value of greater_const"),
    "random": (lambda x: dy.random_normal(1).value() > 9, Floats(3), "value of random_normal"),
    "swallowed": (swallowed, Floats(3), "value of the input x"),
    "reverted": (reverted, Floats(3), "value of tanh"),
    "row": (lambda x: TABLE[x].npvalue()[0] > 9, Indices((), 500), "a row of /_0 at .* that its inputs choose"),
    "equal": (lambda x: x == 7, Indices((), 500), "compares a number of the input x"),
    "less": (lambda x: x > 7, Indices((), 500), "compares"),
    "truth": (lambda x: x, Indices((), 500), "decides by"),
    "remainder": (lambda x: x % 2, Indices((), 500), "computes with"),
    "from the right": (lambda x: 3 - x, Indices((), 500), "computes with"),
    "set": (lambda x: x in {7, 9}, Indices((), 500), "looks up"),
    "dictionary": (lambda x: {7: True}.get(x), Indices((), 500), "looks up"),
    "text": (lambda x: str(x) == "7", Indices((), 500), "writes"),
    "format": (lambda x: f"{x}" == "7", Indices((), 500), "writes"),
    "int": (lambda x: int(x) == 7, Indices((), 500), "converts"),
    "within": (lambda x: 7 in x, Indices("n", 500), "compares"),
    "count": (lambda x: x.count(7), Indices("n", 500), "compares"),
    "twice": (lambda x: x[0] == x[1], Indices("n", 500), "compares"),
    "greatest": (lambda x: max(x) == 499, Indices("n", 500), "compares"),
    "NumPy": (lambda x: (np.array(x) == 7).any(), Indices("n", 500), "converts"),
    "element of a list": (lambda x: [True, False, False, False][x], Indices((), 4), "graph is not the same"),
    "a short length": (
        lambda x: x.shape[1] == 5,
        Floats((3, "n")),
        "not the same for n = 2 and 5, so the function decid",
    ),
    "parity": (lambda x: x.dim()[0][1] % 3 == 0, Floats((3, "n")), "not the same for n = 2 and 3"),
    "a power of two": (lambda x: x.shape[1] == 64, Floats((3, "n")), "not the same for n = 2 and 64"),
    "the longest": (lambda x: x.shape[1] > 511, Floats((3, "n")), "is not the same"),
    "in a loop": (lambda x: len(x) == 7, Indices("n", 500), "is not the same for n = . and 7"),
}
TABLE = dy.ParameterCollection().add_lookup_parameters((500, 3))


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_are_refused(name: str, path: Path) -> None:
    """Whatever the numbers are, also where only one of them leads to another graph."""
    decide, kind, message = DECISIONS[name]

    def function(x: Any) -> dy.Expression:
        y = dy.esum([TABLE[k] for k in x]) if isinstance(x, list) else dy.ones(3)
        y = dy.sum_dim(x, [1]) if kind.shape == (3, "n") else y
        return dy.tanh(y) if decide(x) else y

    refused(function, {"x": kind}, path, message)


def test_inputs_are_checked() -> None:
    for shape in (0, (3, -1), (3, ""), (1,) * 8):
        with pytest.raises(ValueError, match="^Floats: argument shape"):
            Floats(shape)
    with pytest.raises(ValueError, match="^Indices: argument shape"):
        Indices((2, 2), 5)
    with pytest.raises(ValueError, match="^Indices: argument count"):
        Indices(2, 0)


def test_arguments_of_pytorch(path: Path) -> None:
    export: Any = dy.onnx.export
    with pytest.raises(TypeError, match=r'export: argument inputs: expected a dictionary such as \{"x": .*, got tuple'):
        export(lambda x: x, (Floats(2),), path)
    for name in ("input_names", "dynamic_axes"):
        with pytest.raises(TypeError, match=rf"no argument {name}; write names and shapes of `inputs`: `\{{"):
            export(lambda x: x, {"x": Floats(2)}, path, **{name: 1})


def test_the_missing_package_is_named(monkeypatch, path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx.checker", None)
    with pytest.raises(ImportError, match=r"pip install 'dynet_cy\[onnx\]'"):
        dy.onnx.export(lambda x: x, {"x": Floats(2)}, path)


@pytest.mark.parametrize("name", ["errors", "exporting", "inputs"])
def test_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"dynet_cy.onnx.{name}")
    monkeypatch.chdir(tmp_path)
    known = {"dy": dy, "model": dy.ParameterCollection()}
    found = run_examples(module, doctest.IGNORE_EXCEPTION_DETAIL, **known)
    assert found.attempted > 0
    assert found.failed == 0


def test_the_page(path: Path, model: dy.ParameterCollection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of docs/onnx.md run, one after the other."""
    page = Path(__file__).parents[2] / "docs" / "onnx.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 6
    monkeypatch.chdir(path.parent)
    ids = np.array([[1, 2, 3], [4, 5, 6]], np.int64)
    known = {"dy": dy, "model": model, "onnxruntime": onnxruntime, "ids": ids, "lstm": dy.LSTMBuilder(1, 64, 64, model)}
    for block in blocks:
        exec(block, known)
    assert known["found"].shape == (2, 3, 17)
    assert (path.parent / "step.onnx").exists()
    names = [x.name for x in onnxruntime.InferenceSession(str(path.parent / "spelling.onnx")).get_inputs()]
    assert sorted(names) == ["lengths", "letters", "sentence", "word_lengths"]


def test_operations_of_a_program(path: Path) -> None:
    double = dy.custom_op("double", lambda x: 2 * x)
    refused(lambda x: double(x), {"x": Floats(2)}, path, "double has no converter")


@pytest.mark.parametrize("n", [1, 3])
def test_decisions_in_the_graph(path: Path, model: dy.ParameterCollection, n: int) -> None:
    """A greedy decoder: each word is looked up by the index of the greatest score before it."""
    E, W = model.add_lookup_parameters((20, 6), name="E"), model.add_parameters((20, 6), init="uniform", scale=2.0)

    def decode(h: dy.Expression) -> dict[str, dy.Expression]:
        words = []
        for _ in range(3):
            words.append(dy.argmax(W * h))
            h = dy.tanh(h + E[words[-1]])
        rows = dy.reshape(E[dy.concatenate(words)], (18,))
        return {"words": dy.concatenate(words), "h": h, "rows": rows, "hot": dy.one_hot(20, words[0])}

    check(decode, {"h": Floats(6)}, path, [[[floats(6)]], [[floats(6) * k] for k in range(1, 1 + n)]])
    assert "/E" in {x.name for x in onnx.load(path).graph.initializer}
