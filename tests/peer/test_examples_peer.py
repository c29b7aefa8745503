"""Networks of the examples learn as in DyNet: from the same weights, the losses of all updates are equal."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import dynet_cy
from dynet_cy.data import ConlluSentence, toy_sentiment

dynet = pytest.importorskip("dynet")

pytestmark = pytest.mark.peer

DRY = {"dropout": 0.0, "word_dropout": 0.0, "seed": 1}


def sentences(count: int) -> list[ConlluSentence]:
    """Random sentences of different lengths with projective trees: the head of each word is the next one."""
    rng = random.Random(1)
    trees = []
    for _ in range(count):
        n = rng.randrange(1, 7)
        words = [rng.choice("abcdef") for _ in range(n)]
        tags, relations = [w.upper() for w in words], [f"r{w}" for w in words]
        trees.append(ConlluSentence(words, upos=tags, head=[*range(2, n + 1), 0], deprel=relations))
    return trees


def parser(module: ModuleType, engine: ModuleType):
    sizes = {size: min(value, 12) for size, value in module.SIZES.items()}
    vocabularies = {
        "words": dict.fromkeys("abcde", 1),
        "tags": dict.fromkeys("ABCDE", 1),
        "relations": [f"r{w}" for w in "abcdef"],
        "tag_column": "UPOS",
    }
    return module.Parser({**sizes, **vocabularies, **DRY}), sentences(24)


def recognizer(module: ModuleType, engine: ModuleType):
    spec = {
        "words": {"a": 1, "b": 1},
        "frequent": {"a": 1},
        "letters": dict.fromkeys("abc", 1),
        "tags": ["O", "B", "I"],
    }
    sizes = {"word_dim": 8, "letter_dim": 4, "letter_hidden": 5, "hidden": 7}
    rng = random.Random(2)
    items = [[(rng.choice(["a", "b", "ab", "cab"]), rng.choice("OBI")) for _ in range(n % 6 + 1)] for n in range(24)]
    return module.Recognizer({**spec, **sizes, **DRY}), [tuple(map(list, zip(*item))) for item in items]


def sentiment(module: ModuleType, engine: ModuleType):
    trees = toy_sentiment(24, seed=3)
    return module.Sentiment({"words": {"film": 1, "good": 1}, "word_dim": 8, "hidden": 7, **DRY}), trees


MAKERS = {
    "biaffine_parser": parser,
    "transition_parser": parser,
    "stack_lstm_parser": parser,
    "ner": recognizer,
    "tree_lstm": sentiment,
}


@pytest.mark.parametrize("name", MAKERS)
def test_losses(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tqdm", reason="the examples need tqdm")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    module = importlib.import_module(name)
    losses: dict[str, list[float]] = {}
    dynet.reset_random_seed(1)
    one_by_one = lambda function, *items: list(map(function, *items))  # noqa: E731
    monkeypatch.setattr(dynet, "batched_map", one_by_one, raising=False)
    for engine in (dynet, dynet_cy):
        monkeypatch.setattr(module, "dy", engine, raising=False)
        network, items = MAKERS[name](module, engine)
        weights = str(tmp_path / "weights")
        if engine is dynet:
            network.pc.save(weights)
        else:
            network.pc.populate(weights)
        trainer = engine.AdamTrainer(network.pc, 0.01)
        found = losses[engine.__name__] = []
        for start in [0, 8, 16] * 4:
            engine.renew_cg()
            loss = network.loss(items[start : start + 8])
            found.append(loss.value())
            loss.backward()
            trainer.update()
    assert sum(losses["dynet"][-3:]) < sum(losses["dynet"][:3])
    np.testing.assert_allclose(losses["dynet_cy"], losses["dynet"], rtol=2e-3)
