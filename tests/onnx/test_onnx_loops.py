"""Programs that loop over words: files for any length and batch, with ONNX's operators for recurrent networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import close, session

import dynet_cy as dy

onnx = pytest.importorskip("onnx")  # running.py skips if it is missing
Floats, Indices = dy.onnx.Floats, dy.onnx.Indices

WORDS, TAGS, D = 40, 5, 6
BUILDERS = {
    "LSTM": [
        dy.VanillaLSTMBuilder,
        dy.CompactVanillaLSTMBuilder,
        dy.SparseLSTMBuilder,
        partial(dy.VanillaLSTMBuilder, forget_bias=0.5),
    ],
    "GRU": [dy.GRUBuilder, partial(dy.GRUBuilder, reset_after=True)],
    "RNN": [dy.SimpleRNNBuilder],
}
KINDS = [(operator, builder) for operator, builders in BUILDERS.items() for builder in builders]
Program = Callable[..., Any]


def drawn(model: dy.ParameterCollection) -> None:
    """Other values than zero in biases too."""
    rng = np.random.default_rng(3)
    for p in model.parameters_list():
        p.set_value(rng.uniform(-0.7, 0.7, p.shape()))


def operators(path: Path) -> dict[str, list[str]]:
    """The recurrent operators of a file, and their directions."""
    found: dict[str, list[str]] = {}
    for node in onnx.load(path).graph.node:
        for attribute in node.attribute:
            if attribute.name == "direction":
                found.setdefault(node.op_type, []).append(attribute.s.decode())
    return found


def rows(result: Any) -> np.ndarray:
    """The value of an expression as in a file; of a list of them with a row for each."""
    if isinstance(result, dy.Expression):
        return np.asarray(result.npvalue()).T
    values = np.array([np.asarray(e.npvalue()).T for e in result])
    return values[:, 0] if values.shape[1:] == (1,) else values


def check(program: Program, path: Path, lengths: bool = False, **options: Any) -> None:
    """Export a program of one sentence; compare at lengths and batches that no run of the export had."""
    given = {"lengths": {"n": "lengths"}} if lengths else {}
    dy.onnx.export(program, {"words": Indices("n", WORDS)}, path, **{"longest": 30, **given, **options})
    opened = session(path)
    rng = np.random.default_rng(5)
    for batch, n in ((1, 1), (3, 2), (2, 3), (4, 19), (2, 83), (1, 700)):
        ids = rng.integers(0, WORDS, (batch, n))
        sizes = [n, *rng.integers(1, n + 1, batch - 1)] if lengths else [n] * batch
        fed = {"words": ids, **({"lengths": np.array(sizes, np.int64)} if lengths else {})}
        for sentence, size, *found in zip(ids, sizes, *opened.run(None, fed)):
            with dy.ComputationGraph():
                result = program(sentence[:size].tolist())
                wanted = list(result.values()) if isinstance(result, dict) else [result]
                for y, want in zip(found, map(rows, wanted)):
                    close(y[:size] if y.shape[:1] == (n,) else y, want, f"length {n}")


class Tagger:
    """The parts of a tagger, for programs that combine them."""

    def __init__(self, model: dy.ParameterCollection, builder: Any, layers: int = 1) -> None:
        self.table = model.add_lookup_parameters((WORDS, D), name="words")
        self.reader = dy.BiRNNBuilder(layers, D, 8, model, builder)
        self.W, self.b = model.add_parameters((TAGS, 8), name="W"), model.add_parameters(TAGS, name="b")
        drawn(model)

    def read(self, words: list[int]) -> list[dy.Expression]:
        return self.reader.transduce([self.table[w] for w in words])

    def scores(self, words: list[int]) -> list[dy.Expression]:
        return [dy.affine_transform([self.b, self.W, h]) for h in self.read(words)]


@pytest.mark.parametrize("lengths", [False, True], ids=["same-length", "padded"])
@pytest.mark.parametrize(("operator", "builder"), KINDS)
def test_bidirectional_tagger(
    operator: str, builder: Any, lengths: bool, path: Path, model: dy.ParameterCollection
) -> None:
    tagger = Tagger(model, builder, layers=2)
    check(tagger.scores, path, lengths)
    assert operators(path) == {operator: ["bidirectional"] * 2}
    graph = onnx.load(path).graph
    assert [d.dim_param or d.dim_value for d in graph.output[0].type.tensor_type.shape.dim] == ["batch", "n", TAGS]
    assert [x.name for x in graph.input] == ["words"] + ["lengths"] * lengths
    assert len(graph.node) < 25
    assert {"/words", "/W", "/b"} <= {x.name for x in graph.initializer}


@pytest.mark.parametrize("lengths", [False, True], ids=["same-length", "padded"])
@pytest.mark.parametrize(("operator", "builder"), KINDS)
def test_stacked_in_one_direction(
    operator: str, builder: Any, lengths: bool, path: Path, model: dy.ParameterCollection
) -> None:
    table, rnn = model.add_lookup_parameters((WORDS, D)), builder(2, D, 7, model)
    drawn(model)

    def read(words: list[int]) -> dict[str, Any]:
        xs = [table[w] for w in words]
        state = rnn.initial_state()
        outputs = []
        for x in xs:
            state = state.add_input(x)
            outputs.append(state.output())
        back = rnn.initial_state().add_inputs(reversed(xs))
        first = rnn.initial_state(list(state.s())).transduce(xs)
        return {
            "all": outputs,
            "last": outputs[-1],
            "back": back[-1].output(),
            "again": first[-1],
            "cells": state.s()[0],
        }

    check(read, path, lengths)
    # The first layers that read both ways are one operator; those after it have different inputs.
    assert {name: sorted(found) for name, found in operators(path).items()} == {
        operator: ["bidirectional", "forward", "forward", "forward", "reverse"]
    }


def test_what_sentences_are_for(path: Path, model: dy.ParameterCollection) -> None:
    """Lists that are joined, summed, compared with a vector; the first and the last word; sums over words."""
    t = Tagger(model, dy.LSTMBuilder)

    def attention(words: list[int]) -> dy.Expression:
        hs = t.read(words)
        columns = dy.concatenate_cols(hs)
        weights = dy.softmax(dy.transpose(columns) * dy.tanh(hs[-1]))
        return columns * weights + hs[0]

    def every_word(words: list[int]) -> list[dy.Expression]:
        hs = t.read(words)
        return [dy.dot_product(h, hs[-1]) for h in hs]

    def same_again(words: list[int]) -> list[dy.Expression]:
        columns = dy.concatenate_cols(t.read(words))
        return [columns * dy.softmax(dy.transpose(columns) * h) + t.table[0][0] for h in t.read(words)]

    def last_cell(words: list[int]) -> dy.Expression:
        return t.reader.builder_layers[0][0].initial_state().add_inputs([t.table[w] for w in words])[-1].s()[0]

    programs: dict[str, Program] = {
        "matrix": lambda words: dy.tanh(dy.concatenate_cols(t.scores(words)) * 2),
        "linear": lambda words: dy.affine_transform([t.b, t.W, dy.concatenate_cols(t.read(words))]),
        "sum": lambda words: dy.esum(t.scores(words)),
        "mean": lambda words: dy.average(t.scores(words)),
        "maximum": lambda words: dy.emax(t.read(words)),
        "rows": lambda words: dy.logsumexp(t.scores(words)),
        "mean_dim": lambda words: dy.mean_dim(dy.concatenate_cols(t.read(words)), [1]),
        "max_dim": lambda words: dy.max_dim(dy.concatenate_cols(t.read(words)), 1),
        "attention": attention,
        "every word": every_word,
        "the same again": same_again,
        "cells": last_cell,
        "constants": lambda words: [h + dy.inputVector([1, 2] * 4) for h in t.read(words)],
        "two": lambda words: {"tags": t.scores(words), "first": t.scores(words)[0], "sum": dy.esum(t.read(words))},
    }
    for name, program in programs.items():
        for lengths in (False, True):
            try:
                check(program, path, lengths)
            except Exception as error:
                raise AssertionError(f"{name}, lengths {lengths}") from error


def test_words_around_a_sentence(path: Path, model: dy.ParameterCollection) -> None:
    """A network that reads more than the sentence: steps before and after the operator."""
    t = Tagger(model, dy.LSTMBuilder)
    begin, end = model.add_parameters(D), model.add_parameters(D)

    def scores(words: list[int]) -> list[dy.Expression]:
        hs = t.reader.transduce([begin, *[t.table[w] for w in words], end])
        return [t.W * h for h in hs[1:-1]]

    check(scores, path, longest=512)
    assert sorted(operators(path)["LSTM"]) == ["forward", "reverse"]


def test_columns_of_an_input(path: Path, model: dy.ParameterCollection) -> None:
    t = Tagger(model, dy.GRUBuilder)

    def read(x: dy.Expression) -> list[dy.Expression]:
        columns = [dy.pick(x, i, 1) for i in range(x.dim()[0][1])]
        return [dy.logistic(t.W * h) for h in t.reader.transduce(columns)]

    dy.onnx.export(read, {"x": Floats((D, "n"))}, path)
    for n in (1, 2, 11):
        x = np.random.default_rng(n).normal(size=(2, n, D)).astype(np.float32)
        (found,) = session(path).run(None, {"x": x})
        for one, y in zip(x, found):
            with dy.ComputationGraph():
                close(y, rows(read(dy.inputTensor(one.T))))


class Speller(Tagger):
    """A tagger with a network that reads the letters of each word."""

    def __init__(self, model: dy.ParameterCollection) -> None:
        super().__init__(model, dy.LSTMBuilder)
        self.letters = model.add_lookup_parameters((9, 4))
        self.speller = dy.BiRNNBuilder(1, 4, D, model, dy.LSTMBuilder)

    def spell(self, word: list[int]) -> dy.Expression:
        states = self.speller.add_inputs([self.letters[letter] for letter in word])
        return dy.concatenate([states[-1][0].output(), states[0][1].output()])

    def tag(self, words: list[int], spelled: list[dy.Expression]) -> list[dy.Expression]:
        xs = [self.table[w] + s for w, s in zip(words, spelled)]
        return [self.W * h for h in self.reader.transduce(xs)]

    def expected(self, words: list[int], letters: list[list[int]]) -> np.ndarray:
        with dy.ComputationGraph():
            return rows(self.tag(words, [self.spell(word) for word in letters]))


def test_words_by_their_letters(path: Path, model: dy.ParameterCollection) -> None:
    """One file with a loop over letters in that over words; both have lengths of their own."""
    t = Speller(model)
    drawn(model)
    spelled = dy.onnx.Each(t.spell, {"letters": Indices("m", 9)}, "n", lengths={"m": "word_lengths"})
    inputs = {"words": Indices("n", WORDS), "spelled": spelled}
    dy.onnx.export(t.tag, inputs, path, lengths={"n": "lengths"})
    assert sorted(operators(path)["LSTM"]) == ["bidirectional", "bidirectional"]
    names = [tensor.name for tensor in onnx.load(path).graph.initializer]
    assert len(names) == len(set(names))
    rng = np.random.default_rng(0)
    for sizes in ([5, 3, 1], [1], [2, 9]):
        n, m = max(sizes), 7
        words, letters = rng.integers(0, WORDS, (len(sizes), n)), rng.integers(0, 9, (len(sizes), n, m))
        word_lengths = rng.integers(1, m + 1, (len(sizes), n))
        feed = {"words": words, "letters": letters, "word_lengths": word_lengths, "lengths": np.array(sizes)}
        (found,) = session(path).run(None, feed)
        for i, size in enumerate(sizes):
            read = [word[:k].tolist() for word, k in zip(letters[i, :size], word_lengths[i])]
            close(found[i, :size], t.expected(words[i, :size].tolist(), read))


@pytest.mark.parametrize("batch", [None, "batch", 2])
def test_results_of_a_function_at_each_position(path: Path, model: dy.ParameterCollection, batch: Any) -> None:
    """Also without an axis of examples, with numbers as inputs, and with a parameter of both functions."""
    W = model.add_parameters((D, D), name="W")

    def inner(x: dy.Expression, label: int) -> dy.Expression:
        return dy.tanh(W * x[:D]) * dy.pick(x, label)

    def outer(ys: list[dy.Expression]) -> dy.Expression:
        return W * dy.esum(ys)

    each = dy.onnx.Each(inner, {"x": Floats(D + 1), "label": Indices((), D)}, "n")
    dy.onnx.export(outer, {"ys": each}, path, batch=batch)
    assert sum(tensor.name.startswith("/W") for tensor in onnx.load(path).graph.initializer) == 1
    rng = np.random.default_rng(1)
    for n in (1, 2, 6):
        x, label = rng.normal(size=(2, n, D + 1)).astype(np.float32), rng.integers(0, D, (2, n))
        feeds = [{"x": x, "label": label}] if batch else [{"x": x[i], "label": label[i]} for i in range(2)]
        found = [y for feed in feeds for y in session(path).run(None, feed)]
        for i, y in enumerate(found[0] if batch else found):
            with dy.ComputationGraph():
                close(y, rows(outer([inner(dy.inputVector(a), int(k)) for a, k in zip(x[i], label[i])])))


def test_inputs_at_each_position_that_are_refused(path: Path, model: dy.ParameterCollection) -> None:
    t = Speller(model)
    letters = {"letters": Indices("m", 9)}
    with pytest.raises(ValueError, match="Each: argument inputs: expected at least one"):
        dy.onnx.Each(t.spell, {}, "n")
    with pytest.raises(
        ValueError, match="Each: argument axis: expected a name that no axis of its inputs has, got 'm'"
    ):
        dy.onnx.Each(t.spell, letters, "m")
    each = dy.onnx.Each(t.spell, letters, "n")
    with pytest.raises(ValueError, match="two inputs have the name 'letters'"):
        dy.onnx.export(t.tag, {"letters": Indices("n", WORDS), "spelled": each}, path)
    matrix = dy.onnx.Each(lambda word: dy.concatenate_cols([t.letters[i] for i in word]), letters, "n")
    with pytest.raises(dy.onnx.ExportError, match="input 'spelled': its function must return one vector"):
        dy.onnx.export(t.tag, {"words": Indices("n", WORDS), "spelled": matrix}, path)


def test_losses_of_words(path: Path, model: dy.ParameterCollection) -> None:
    t = Tagger(model, dy.LSTMBuilder)

    def loss(words: list[int], tags: list[int]) -> dy.Expression:
        return dy.esum([dy.pickneglogsoftmax(s, tag) for s, tag in zip(t.scores(words), tags)])

    dy.onnx.export(loss, {"words": Indices("n", WORDS), "tags": Indices("n", TAGS)}, path)
    rng = np.random.default_rng(2)
    words, tags = rng.integers(0, WORDS, (3, 14)), rng.integers(0, TAGS, (3, 14))
    (found,) = session(path).run(None, {"words": words, "tags": tags})
    for y, one, true in zip(found, words.tolist(), tags.tolist()):
        with dy.ComputationGraph():
            close(y, np.asarray(loss(one, true).npvalue()))


def refused(program: Program, path: Path, match: str, **options: Any) -> None:
    with pytest.raises(dy.onnx.ExportError, match=match):
        dy.onnx.export(program, {"words": Indices("n", WORDS)}, path, longest=30, **options)
    assert not path.exists()


def test_what_prevents_any_length(path: Path, model: dy.ParameterCollection) -> None:
    """The error names the operation that is not the same at each position, its line and the reason."""
    t = Tagger(model, dy.LSTMBuilder)
    coupled, rnn = dy.CoupledLSTMBuilder(1, D, 8, model), dy.SimpleRNNBuilder(1, D, D, model)
    lstm = dy.LSTMBuilder(1, D, 4, model)

    def own_recurrence(words: list[int]) -> dy.Expression:
        total = t.table[words[0]]
        for w in words[1:]:
            total = dy.rectify(total + t.table[w])
        return total

    def feeds_back(words: list[int]) -> list[dy.Expression]:
        state, found = rnn.initial_state(), []
        x = dy.zeros(D)
        for w in words:
            state = state.add_input(x + t.table[w])
            x = dy.tanh(state.output())
            found.append(x)
        return found

    def cells(words: list[int]) -> list[dy.Expression]:
        return [state.s()[0] for state in lstm.initial_state().add_inputs([t.table[w] for w in words])]

    def pairs(words: list[int]) -> list[dy.Expression]:
        xs = [t.table[w] for w in words]
        return [dy.cmult(a, b) for a, b in zip(xs, xs[1:])]

    line = r"made at .*test_onnx_loops.py:\d+ in "
    refused(own_recurrence, path, "the length cannot vary: .*(add|rectify).*computed from the one before.*" + line)
    refused(feeds_back, path, "the length cannot vary: .*from its output before.*" + line + "feeds_back")
    refused(pairs, path, "the length cannot vary: mul is made.*combines different positions.*" + line)
    refused(lambda ws: [t.table[w] * (i + 0.5) for i, w in enumerate(ws)], path, "differ in more than the position")
    refused(lambda ws: coupled.transduce([t.table[w] for w in ws]), path, "the length cannot vary: .*computed from")
    refused(cells, path, "vanilla_lstm_c is part of a step of a recurrent network")
    rnn.set_dropout(0.5)
    refused(lambda ws: rnn.transduce([t.table[w] for w in ws]), path, "random_bernoulli draws random numbers")


def test_lengths_are_checked(path: Path, model: dy.ParameterCollection) -> None:
    t = Tagger(model, dy.LSTMBuilder)
    own = {"lengths": {"n": "lengths"}}
    refused(lambda ws: dy.cumsum(dy.concatenate_cols(t.read(ws)), 1), path, "cumsum may combine positions", **own)
    refused(
        lambda ws: dy.sum_elems(dy.concatenate(t.read(ws))), path, "sum has an axis of 8.n elements.*padding", **own
    )
    for wrong, match in [
        ({"lengths": {"m": "lengths"}}, "no input has an axis 'm'"),
        ({"lengths": {"n": "words"}}, "a name that no other input has"),
        ({"lengths": {"n": "lengths"}, "batch": None}, "batch is None"),
    ]:
        with pytest.raises(ValueError, match=match):
            dy.onnx.export(t.scores, {"words": Indices("n", WORDS)}, path, **wrong)
