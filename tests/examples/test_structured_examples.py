"""The parsers, the named-entity recognizer and the Tree-LSTM, at small sizes, run as users run them.

Their algorithms are compared with exhaustive search.
"""

from __future__ import annotations

import itertools
import random
import re
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from programs import numbers, output, refused, run

import dynet_cy as dy
from dynet_cy.data import ConlluSentence

pytest.importorskip("tqdm", reason="the examples need tqdm")


# -- data ----------------------------------------------------------------------------------------

NOUNS, VERBS = ["dog", "cat", "bird", "çiçek"], ["sees", "likes", "finds"]
ENGLISH = [("DET", 2, "det"), ("NOUN", 3, "nsubj"), ("VERB", 0, "root"), ("DET", 5, "det"), ("NOUN", 3, "obj")]
CROSSING = "1\ta\t_\tDET\t_\t_\t3\tdet\t_\t_\n2\tb\t_\tNOUN\t_\t_\t4\tobj\t_\t_\n" + (
    "3\tc\t_\tNOUN\t_\t_\t0\troot\t_\t_\n4\td\t_\tVERB\t_\t_\t3\tacl\t_\t_\n\n"
)


def write_treebank(path: Path, count: int, seed: int) -> Path:
    """Write sentences such as `every dog sees Alice Smith`, after one with crossing arcs."""
    rng, lines = random.Random(seed), [CROSSING]
    for _ in range(count):
        words = [*rng.choices(["the", "a", "every"]), *rng.choices(NOUNS), *rng.choices(VERBS)]
        columns = ENGLISH
        if rng.random() < 0.5:
            words += [*rng.choices(["the", "a"]), *rng.choices(NOUNS)]
        else:
            words += [*rng.choices(["Alice", "Bob"]), *rng.choices(["Smith", "Jones"])]
            columns = [*ENGLISH[:3], ("PROPN", 3, "obj"), ("PROPN", 4, "flat")]
        for i, (word, (tag, head, relation)) in enumerate(zip(words, columns), start=1):
            lines.append(f"{i}\t{word}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_\n")
        lines.append("\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    folder = tmp_path_factory.mktemp("treebank")
    files = (write_treebank(folder / f"{name}.conllu", n, n) for name, n in [("train", 80), ("dev", 15)])
    return [argument for pair in zip(["--train", "--dev"], files) for argument in pair]


SMALL: dict[str, list[object]] = {
    "biaffine_parser.py": ["--hidden", 16, "--layers", 1, "--arc-dim", 16, "--label-dim", 16],
    "transition_parser.py": ["--hidden", 16, "--layers", 1, "--mlp-dim", 24],
    "stack_lstm_parser.py": ["--hidden", 20, "--tree-dim", 20, "--action-dim", 8],
    "ner.py": ["--hidden", 16, "--letter-dim", 8, "--letter-hidden", 8],
    "tree_lstm.py": ["--hidden", 24],
}
LEARN = ["--word-dim", 16, "--batch", 8, "--learning-rate", 0.02, "--dropout", 0.1]
PARSERS = [name for name in SMALL if "parser" in name]


# -- parsers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", PARSERS)
def test_parser_learns_and_parses(script: str, treebank: list[object], tmp_path: Path) -> None:
    text = output(script, *treebank, "--epochs", 6, "--tag-dim", 8, *LEARN, *SMALL[script], cwd=tmp_path)
    assert "81 training and 16 dev sentences" in text
    scores = numbers(r"^epoch \d: loss [\d.]+, .* words/s, dev UAS [\d.]+%, LAS ([\d.]+)%$", text)
    assert max(scores) > 90  # of the 79 dev words, the 4 in the sentence with crossing arcs may be wrong

    model = tmp_path / "runs" / f"{script[:-3]}.safetensors"
    assert model.exists()
    wanted = write_treebank(tmp_path / "text.conllu", 2, 5).read_text(encoding="utf-8").split("\n\n", 1)[1]
    (tmp_path / "text.conllu").write_text(re.sub(r"\d+\t\w+\t_\t_$", "_\t_\t_\t_", wanted, flags=re.M), "utf-8")
    assert output(script, "parse", "--model", model, tmp_path / "text.conllu", cwd=tmp_path) == wanted
    done = run(script, "parse", "--model", model, cwd=tmp_path, stdin=(tmp_path / "text.conllu").read_text("utf-8"))
    assert done.stdout == wanted
    if script != PARSERS[0]:
        return  # all read words in the same way
    words = re.findall(r"^\d+\t(\w+)", wanted.split("\n\n")[0], re.M)
    (tmp_path / "plain.txt").write_text(" ".join(words) + "\n\n", "utf-8")
    trees = output(script, "parse", "--model", model, tmp_path / "plain.txt", cwd=tmp_path)
    rows = [line.split("\t") for line in trees.splitlines() if line]
    assert [row[1] for row in rows] == words
    assert {row[3] for row in rows} <= set(re.findall(r"^\d+\t\w+\t_\t(\w+)", wanted, re.M))
    assert run(script, "parse", "--model", model, cwd=tmp_path, stdin=" ".join(words)).stdout == trees
    done = run(script, "parse", "--model", model, cwd=tmp_path, stdin="1\tdog\tbad\n")
    assert (done.returncode, "the standard input, line 1: " in done.stderr) == (1, True)


def test_parser_wrong_trees(tmp_path: Path) -> None:
    bad = "1\tdog\t_\tNOUN\t_\t_\t1\tnsubj\t_\t_\n"
    (tmp_path / "bad.conllu").write_text(bad + "\n")
    said = refused("biaffine_parser.py", "--train", "bad.conllu", cwd=tmp_path)
    assert "bad.conllu, line 1: the sentence that begins here must have one root and no cycle" in said


def test_model_of_another_program(tmp_path: Path) -> None:
    model = dy.ParameterCollection()
    model.add_parameters(1)
    dy.save_safetensors(tmp_path / "model", model, extra={"words": {}})
    (tmp_path / "text.conllu").write_text(CROSSING)
    said = refused("biaffine_parser.py", "parse", "--model", "model", "text.conllu", cwd=tmp_path)
    assert "model: the model of another program: it has no 'relations'" in said


@pytest.mark.parametrize("script", ["transition_parser.py", "stack_lstm_parser.py"])
def test_parser_learns_without_exploring(script: str, treebank: list[object], tmp_path: Path) -> None:
    options = ["--epochs", 6, "--tag-dim", 8, "--explore", 0.0, *LEARN, *SMALL[script]]
    text = output(script, *treebank, *options, cwd=tmp_path)
    assert max(numbers(r"LAS ([\d.]+)%$", text)) > 90


def is_tree(heads: list[int]) -> bool:
    return ConlluSentence(["w"] * len(heads), head=heads).is_tree()


@pytest.mark.parametrize("script", ["transition_parser", "stack_lstm_parser"])
def test_sentences_together_are_parsed_as_alone(example, script: str) -> None:
    """Training gives the same losses and gradients too, with one pass for each step of all sentences."""
    parser = example(script)
    sizes = {name: min(value, 8) if isinstance(value, int) else 0.0 for name, value in parser.SIZES.items()}
    spec = {"words": {"a": 1, "b": 1, "c": 1}, "tags": {}, "relations": ["r", "s"], "seed": 1, **sizes, "explore": 0.5}
    spec["tag_column"] = "UPOS"
    dy.reset_random_seed(3)
    net = parser.Parser(spec)
    words = [["a", "b", "c", "b"], ["b"], ["c", "a"], ["a", "b", "a", "c", "c", "b", "a"]]
    tags = [["T"] * len(sentence) for sentence in words]
    sentences = [ConlluSentence(w, upos=t) for w, t in zip(words, tags)]
    together = net.parse(sentences)
    assert dy.cg().n_batches() < 14 * 40
    assert together == [net.parse([sentence])[0] for sentence in sentences]
    for heads, _ in together:
        assert is_tree(heads)
    trees = [ConlluSentence(w, upos=t, head=h, deprel=r) for w, t, (h, r) in zip(words, tags, together)]
    net.training = True
    seeds = [net.rng.random() for _ in trees]
    dy.renew_cg()
    alone = sum(net.loss_of_one(tree, seed).value() for tree, seed in zip(trees, seeds))
    dy.renew_cg()
    assert dy.esum(dy.batched_map(net.loss_of_one, trees, seeds)).value() == pytest.approx(alone, rel=1e-4)


def test_stack_lstm_follows_the_stack(example, graph) -> None:
    """After each action, the states equal those of LSTMs that read the current stack and buffer."""
    parser = example("stack_lstm_parser")
    sizes = {"word_dim": 4, "tag_dim": 2, "action_dim": 3, "tree_dim": 5, "hidden": 6, "seed": 1}
    net = parser.Parser(
        {"words": {"a": 1, "b": 1, "c": 1}, "tags": {}, "relations": ["r"], "tag_column": "UPOS", **sizes}
    )
    state = parser.State(net, dy.data.ConlluSentence(["a", "b", "c"], upos=["T"] * 3))
    words, shift, left, right = list(state.words), ("shift", ""), ("left", "r"), ("right", "r")
    trees, taken = [net.root], [net.begin]
    for action in [shift, left, shift, shift, right, right]:
        if action == shift:
            trees.append(words.pop(0))
        else:
            place = words if action == left else trees
            child = trees.pop()
            head = place.pop(0 if action == left else -1)
            arc = net.arc * net.arc_vectors[net.actions.index(action)]
            place.insert(
                0 if action == left else len(place),
                dy.tanh(net.head * head + net.child * child + arc + net.compose_bias),
            )
        taken.append(net.action_vectors[net.actions.index(action)])
        state.apply(net.actions.index(action))
        for found, builder, inputs in [
            (state.stack, net.stack, trees),
            (state.buffer, net.buffer, [net.end, *words[::-1]]),
            (state.history, net.history, taken),
        ]:
            wanted = builder.initial_state().transduce(inputs)[-1]
            np.testing.assert_allclose(found.output().npvalue(), wanted.npvalue(), rtol=1e-4, atol=1e-6)
    assert state.parse.heads[1:] == [2, 0, 2]
    assert state.parse.over()


# -- names ---------------------------------------------------------------------------------------


def test_ner_on_the_names_of_a_treebank(treebank: list[object], tmp_path: Path) -> None:
    text = output("ner.py", *treebank, "--epochs", 5, *LEARN, *SMALL["ner.py"], cwd=tmp_path)
    assert "tags B-NAME I-NAME O" in text
    scores = numbers(r"^epoch \d: .* words/s, dev precision [\d.]+%, recall [\d.]+%, F1 ([\d.]+)%$", text)
    assert max(scores) > 90
    (tmp_path / "text").write_text("the dog likes Bob Jones\n\n", encoding="utf-8")
    tagged = output("ner.py", "tag", "--model", tmp_path / "runs" / "ner.safetensors", tmp_path / "text", cwd=tmp_path)
    assert tagged == "the/O dog/O likes/O Bob/B-NAME Jones/I-NAME\n\n"


def test_crf(example, graph, rng: np.random.Generator) -> None:
    """The sum over all sequences, the score of one and the best one agree with exhaustive search."""
    ner = example("ner")
    sizes = {
        "word_dim": 4,
        "letter_dim": 2,
        "letter_hidden": 2,
        "hidden": 3,
        "dropout": 0,
        "word_dropout": 0,
        "seed": 1,
    }
    network = ner.Recognizer({"words": {}, "frequent": {}, "letters": {}, "tags": ["A", "B", "O"], **sizes})
    chain = network.transitions, network.first, network.last
    for parameter in chain:
        parameter.set_value(rng.normal(size=parameter.shape()))
    transitions, first, last = (parameter.npvalue() for parameter in chain)
    for length in (1, 2, 4):
        values = rng.normal(size=(length, 3)).astype(np.float32)
        words = [dy.inputVector(word) for word in values]
        scores = {}
        for tags in itertools.product(range(3), repeat=length):
            pairs = sum(transitions[pair] for pair in zip(tags, tags[1:]))
            scores[tags] = first[tags[0]] + last[tags[-1]] + pairs + values[range(length), tags].sum()
        total = np.log(np.exp(np.array(list(scores.values()), np.float64)).sum())
        assert network.log_sum(words).value() == pytest.approx(total, rel=1e-5)
        assert tuple(ner.viterbi(values, transitions, first, last)) == max(scores, key=scores.get)
        for tags in ((0,) * length, max(scores, key=scores.get)):
            assert network.score(words, list(tags)).value() == pytest.approx(scores[tags], rel=1e-5, abs=1e-5)


# -- sentiment -----------------------------------------------------------------------------------


def test_tree_lstm(tmp_path: Path) -> None:
    args = ["--limit", 400, "--epochs", 6, *LEARN, *SMALL["tree_lstm.py"]]
    text = output("tree_lstm.py", *args, cwd=tmp_path)
    assert "360 training and 40 dev trees" in text
    scores = numbers(r"^epoch \d: .* nodes/s, dev accuracy at all nodes ([\d.]+)%, at the roots [\d.]+%$", text)
    assert max(scores) > 95
    (tmp_path / "trees").write_text("(0 (0 this) (0 (0 is) (0 (0 very) (0 superb))))\n")
    labelled = output(
        "tree_lstm.py", "label", "--model", tmp_path / "runs" / "tree_lstm.safetensors", "trees", cwd=tmp_path
    )
    assert labelled.endswith("(4 (2 very) (4 superb))))\n")


def test_tree_lstm_cells(example, graph, rng: np.random.Generator) -> None:
    """The scores of a tree of three words agree with the formulas of Tai et al."""
    tree_lstm, dim = example("tree_lstm"), 3
    sizes = {"word_dim": 4, "hidden": dim, "dropout": 0, "word_dropout": 0, "seed": 1}
    net = tree_lstm.Sentiment({"words": {"a": 1, "b": 1}, **sizes})
    for bias in (net.leaf_bias, net.bias, net.label_bias):
        bias.set_value(rng.normal(size=bias.shape()))
    leaf, left, right, label = (W.npvalue() for W in (net.leaf, net.left, net.right, net.label))
    leaf_bias, bias, label_bias = (b.npvalue() for b in (net.leaf_bias, net.bias, net.label_bias))
    vectors = {
        "a": net.word_vectors[1].npvalue(),
        "b": net.word_vectors[2].npvalue(),
        "?": net.word_vectors[0].npvalue(),
    }

    def gate(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    def word(name: str) -> tuple[np.ndarray, np.ndarray]:
        i, o, u = np.split(leaf @ vectors[name] + leaf_bias, 3)
        cell = gate(i) * np.tanh(u)
        return gate(o) * np.tanh(cell), cell

    def pair(one: tuple, two: tuple) -> tuple[np.ndarray, np.ndarray]:
        i, o, f_left, f_right, u = np.split(left @ one[0] + right @ two[0] + bias, 5)
        cell = gate(i) * np.tanh(u) + gate(f_left) * one[1] + gate(f_right) * two[1]
        return gate(o) * np.tanh(cell), cell

    inner = pair(word("b"), word("?"))
    states = [word("a"), word("b"), word("?"), inner, pair(word("a"), inner)]
    tree = dy.data.parse_tree("(0(1 A)(2(3 b)(4 c)))")
    assert [int(node.label) for node in tree.nodes()] == [1, 3, 4, 2, 0]  # the order of the scores
    for scores, (state, _) in zip(net.scores(tree), states):
        np.testing.assert_allclose(scores.npvalue(), label @ state + label_bias, rtol=1e-4, atol=1e-6)


# -- all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SMALL)
def test_default_data(script: str, tmp_path: Path) -> None:
    if script != "tree_lstm.py":
        try:
            metadata.distribution("turkish-treebanks")
        except metadata.PackageNotFoundError:
            pytest.skip("needs turkish-treebanks")
    text = output(script, "--limit", 30, "--epochs", 1, *SMALL[script], cwd=tmp_path)
    assert re.search(r"^epoch 1: loss \d", text, re.M)
    assert (tmp_path / "runs" / f"{script[:-3]}.safetensors").exists()


@pytest.mark.parametrize("script", ["biaffine_parser.py", "stack_lstm_parser.py", "tree_lstm.py"])
def test_same_seed_same_training(script: str, treebank: list[object], tmp_path: Path) -> None:
    data = [] if script == "tree_lstm.py" else treebank
    args = [*data, "--limit", 20, "--epochs", 1, *SMALL[script]]
    first, second = (re.search(r"loss ([\d.]+)", output(script, *args, cwd=tmp_path)) for _ in range(2))
    assert first[0] == second[0]
