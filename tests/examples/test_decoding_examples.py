"""Programs that decide by values: they agree with exhaustive search, and give the same results batched and alone."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from programs import numbers, output, refused, run

import dynet_cy as dy

pytest.importorskip("tqdm", reason="the examples need tqdm")
pytestmark = pytest.mark.fibers


# -- translation and language models --------------------------------------------------------------


def test_seq2seq_learns_from_its_own_letters(tmp_path: Path) -> None:
    rng, lines = random.Random(1), []
    for _ in range(400):
        lemma = "".join(rng.choices("abc", k=rng.randint(1, 4)))
        form, tags = rng.choice([(lemma[0] + lemma, "N;PL"), (lemma + "d", "V;PST")])
        lines.append(f"{lemma}\t{form}\t{tags}\n")
    (tmp_path / "train.tsv").write_text("".join(lines), encoding="utf-8")
    sizes = ["--dim", 16, "--hidden", 24, "--attention", 16, "--epochs", 8, "--dropout", 0, "--learning-rate", 0.02]
    found = output("seq2seq.py", "--train", "train.tsv", "--model", "model", "--sampling", 0.3, *sizes, cwd=tmp_path)
    assert max(numbers(r"^epoch \d: .*dev accuracy ([\d.]+)%$", found)) > 70

    (tmp_path / "words").write_text("aabc\nbcad\ncabd\n", encoding="utf-8")
    args = ["inflect", "--model", "model", "--words", "words"]
    done = run("seq2seq.py", *args, cwd=tmp_path, stdin="abc N;PL\nbca V;PST\nacb N;PL\n")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"aabc", "bcad", "cabd"}
    assert done.stdout.split()[:2] == ["aabc", "bcad"]
    (tmp_path / "words").write_text("xyz\n", encoding="utf-8")
    said = refused("seq2seq.py", *args, cwd=tmp_path, stdin="abc N;PL\n")
    assert "no word of letters that the model knows" in said


def test_sampled_letters_do_not_depend_on_the_minibatch(example) -> None:
    seq2seq = example("seq2seq")
    dy.reset_random_seed(1)
    spec = {"inputs": list("abc"), "outputs": list("abc"), "dim": 4, "hidden": 5, "attention": 3, "dropout": 0.0}
    net = seq2seq.Inflector({**spec, "seed": 1})
    pairs, seeds = [(list("abc"), list("cab")), (list("b"), list("bb")), (list("ca"), list("a"))], [0.1, 0.7, 0.4]
    net.training, net.sampling = True, 0.7
    dy.renew_cg()
    alone = [net.loss_of_one(pair, seed).value() for pair, seed in zip(pairs, seeds)]
    dy.renew_cg()
    together = dy.values(dy.batched_map(net.loss_of_one, pairs, seeds))
    assert together == pytest.approx(alone, rel=1e-5)
    net.sampling = 0.0
    dy.renew_cg()
    assert dy.values([net.loss_of_one(*item) for item in zip(pairs, seeds)]) != pytest.approx(alone, rel=1e-4)


def test_language_model_goes_on_from_a_beginning(example) -> None:
    rnnlm = example("rnnlm")
    dy.reset_random_seed(2)
    vocabulary = ["a", "b", "c", "d"]
    spec = {"vocabulary": vocabulary, "dim": 4, "hidden": 8, "layers": 1, "dropout": 0.0, "unit": "word"}
    model = rnnlm.LanguageModel(spec)
    dy.renew_cg(forward_only=True)
    found = model.best([["a", "b"], ["d"], []], width=200, longest=4)
    assert found[0].split()[:2] == ["a", "b"]
    assert found[1].split()[:1] == ["d"]

    def score(tokens: list[int]) -> float:
        dy.renew_cg()
        return -model.loss_auto([[*tokens, rnnlm.END]], training=False).value()

    outputs = [list(t) for n in range(4) for t in itertools.product(range(2, 6), repeat=n)]
    best = max(outputs, key=score)
    assert found[2] == model.write(best)


# -- generative parsing ---------------------------------------------------------------------------


def grammar_of(rnng: ModuleType, seed: int):
    dy.reset_random_seed(seed)
    spec = {"words": {"a": 1, "b": 1}, "labels": ["X", "Y"], "word_dim": 4, "hidden": 6, "dropout": 0.0}
    return rnng.Grammar(spec)


def test_rnng_writes_trees(example) -> None:
    rnng = example("rnng")
    state, grammar = None, grammar_of(rnng, 1)
    tree = dy.data.parse_tree("(X (Y a) (X b a))")
    dy.renew_cg()
    state = grammar.start()
    for action, word in rnng.actions_of(tree, ["X", "Y"]):
        assert action in state.possible(2)
        state = grammar.apply(state, action, word)
    assert state.finished()
    assert state.tree() == tree


def test_rnng_probabilities_of_actions_sum_to_one(example) -> None:
    rnng = example("rnng")
    grammar = grammar_of(rnng, 2)
    dy.renew_cg()
    state = grammar.start()
    for action, word in rnng.actions_of(dy.data.parse_tree("(X (Y a) (X b a))"), ["X", "Y"]):
        values = grammar.action_scores(state, grammar.seen(state)).npvalue()
        possible = state.possible(2)
        assert np.exp(values[possible]).sum() == pytest.approx(1, rel=1e-5)
        assert all(v == -math.inf for i, v in enumerate(values) if i not in possible)
        state = grammar.apply(state, action, word)


def test_rnng_draws_trees(example) -> None:
    """Their actions are possible, and their words, which are read at the end, those of the vocabulary."""
    rnng = example("rnng")
    grammar = grammar_of(rnng, 3)
    drawn = []
    for _ in range(2):
        dy.reset_random_seed(4)
        dy.renew_cg(forward_only=True)
        drawn.append(dy.batched_map(lambda _: grammar.sample(4), range(200)))
    assert drawn[0] == drawn[1]
    trees = [tree for tree in drawn[0] if tree]
    assert len(trees) > 10
    assert {word for tree in trees for word in tree.words()} == set(grammar.words.words)
    dy.renew_cg()
    for tree in trees:
        assert len(tree.words()) <= 4
        state = grammar.start()
        for action, word in rnng.actions_of(tree, ["X", "Y"]):
            assert action in state.possible(2)
            state = grammar.apply(state, action, word)
        assert state.tree() == tree


def test_rnng_finds_the_most_probable_tree(example, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with all trees that open at most two constituents in a row."""
    rnng = example("rnng")
    monkeypatch.setattr(rnng, "IN_A_ROW", 2)
    monkeypatch.setattr(rnng, "MOST_OPEN", 3)
    for seed in range(3):
        grammar = grammar_of(rnng, seed)
        words = ["a", "b"]

        def all_trees(grammar=grammar, words=words) -> list:
            found = []

            def go(state, written: int) -> None:
                if state.finished():
                    if written == len(words):
                        found.append(state.tree())
                    return
                for action in state.possible(2):
                    if action != rnng.WRITE or written < len(words):
                        word = words[written] if action == rnng.WRITE else ""
                        go(grammar.apply(state, action, word), written + (action == rnng.WRITE))

            go(grammar.start(), 0)
            return found

        dy.renew_cg()
        trees = list(dict.fromkeys(all_trees()))
        assert len(trees) > 20
        losses = []
        for tree in trees:
            dy.renew_cg()
            losses.append(grammar.loss_of_one(tree).value())
        dy.renew_cg(forward_only=True)
        found, score = grammar.parse_one(words, 1000)
        assert found == trees[int(np.argmin(losses))]
        assert score == pytest.approx(-min(losses), rel=1e-4)


def test_rnng_sentences_together_are_parsed_as_alone(example) -> None:
    rnng = example("rnng")
    grammar = grammar_of(rnng, 3)
    sentences = [["a"], ["a", "b", "a"], ["b", "b"], ["b", "a", "b", "unknown", "a"]]
    assert grammar.parse(sentences, 4) == [grammar.parse([words], 4)[0] for words in sentences]


@pytest.mark.slow
def test_rnng_learns(tmp_path: Path) -> None:
    options = ["--limit", 150, "--epochs", 4, "--beam", 3, "--dropout", 0, "--batch", 4]
    text = output("rnng.py", *options, cwd=tmp_path)
    assert max(numbers(r"^epoch \d: .*dev F1 ([\d.]+)%$", text)) > 85
    assert text.count("sample: ") == 3
    done = run("rnng.py", "parse", cwd=tmp_path, stdin="the dog of Anna sees a cat with Bob\nBob barks\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert done.stdout.startswith("(S (NP ")


def test_rnng_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("(S a\n")
    said = refused("rnng.py", "--train", "bad", cwd=tmp_path)
    assert said.startswith("rnng.py: bad, line 1: expected one whole tree")
