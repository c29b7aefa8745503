"""A character language model: a causal Transformer that predicts each character from those before it.

    python transformer_lm.py                              # on the documentation that Python itself ships
    python transformer_lm.py --train shakespeare.txt.gz   # on any text, plain or .gz
    python transformer_lm.py write "ROMEO:"               # continue a text

In training a window of the text goes through the layers at once: causal attention prevents each character from seeing
the next ones.  When the program writes, characters come one by one.  The state keeps the keys and values of the
characters before, so that each step computes one column instead of the whole text again.  Training is programmed for
one window; the engine computes those of a minibatch together.  Texts that are written side by side are the batch
elements of one state.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline, nn

UNKNOWN = 0  # the id of characters that the training text does not have

SIZES = {
    "layers": 2,
    "dim": 128,  # length of the vector of a character
    "heads": 4,
    "hidden": 512,  # units in the linear layers after attention
    "dropout": 0.1,
}


class LanguageModel(nn.Layer):
    """The network.  `sizes` holds everything needed to build it again, except the weights.

    Rotary positions rotate queries and keys, so that attention depends on distances; nothing is added to the vectors.
    """

    def __init__(self, sizes: dict) -> None:
        super().__init__(dy.ParameterCollection(), (sizes,))
        self.sizes = sizes
        self.ids = {character: i for i, character in enumerate(sizes["characters"], start=1)}
        count, dim, dropout = len(self.ids) + 1, sizes["dim"], sizes["dropout"]
        self.vectors = nn.Embedding(count, dim, self.collection)
        self.dropout = nn.Dropout(dropout)
        shape = sizes["layers"], dim, sizes["heads"], sizes["hidden"]
        options = {"activation": "gelu", "norm_first": True, "positions": "rotary"}
        self.layers = nn.TransformerEncoder(*shape, self.collection, dropout, **options)
        self.out = nn.Linear(dim, count, self.collection)

    def encode(self, text: str) -> np.ndarray:
        return np.array([self.ids.get(character, UNKNOWN) for character in text], int)

    def loss(self, window: np.ndarray) -> dy.Expression:
        """Return the loss of a window, summed over all its characters but the first, which is given."""
        x = self.layers(self.dropout(self.vectors(window[:-1])), causal=True)
        scores = dy.reshape(self.out(x), (len(self.ids) + 1,), len(window) - 1)  # a batch element for each character
        return dy.sum_batches(dy.pickneglogsoftmax_batch(scores, window[1:]))

    def step(self, state: Any, ids: np.ndarray) -> tuple[Any, dy.Expression]:
        """Read a character of each text that is being written; return the next state and the scores of all."""
        y, state = self.layers.step(dy.lookup_batch(self.vectors.table, ids), state)
        return state, self.out(y)

    def write(self, beginning: str, texts: int, length: int, temperature: float) -> list[str]:
        """Draw texts with this beginning, character by character; a lower temperature prefers likelier ones."""
        dy.renew_cg(forward_only=True)
        *given, last = self.encode(beginning)
        state = self.layers.step(self.vectors(given))[1] if given else None  # keys and values, computed at once
        options = {"begin": [last] * texts, "temperature": temperature, "forbidden": [UNKNOWN]}
        found = dy.decode(self.step, state, None, length, **options)
        return [beginning + "".join(self.sizes["characters"][i - 1] for i in text) for text in found]


def bits(model: LanguageModel, ids: np.ndarray, args: argparse.Namespace) -> float:
    """Return the bits per character of a text, computed window by window."""
    model.eval()
    summed = 0.0
    windows = [ids[at : at + args.context + 1] for at in range(0, len(ids) - 1, args.context)]
    for first in range(0, len(windows), 64):
        dy.renew_cg(forward_only=True)
        summed += dy.esum([model.loss(window) for window in windows[first : first + 64]]).value()
    return summed / (len(ids) - 1) / math.log(2)


def train(model: LanguageModel, text: str, dev: str, args: argparse.Namespace) -> None:
    """Train with windows at random places; an epoch is `steps` minibatches of them."""
    trainer = dy.AdamTrainer(model.collection, args.learning_rate)
    trainer.set_clip_threshold(1.0)
    updates = args.epochs * args.steps
    rising = max(1, round(args.warmup * updates))
    trainer.schedule = dy.WarmupSchedule(rising, then=dy.CosineSchedule(updates - rising))
    ids, held_out = model.encode(text), model.encode(dev)
    draw, size = random.Random(args.seed), min(args.context + 1, len(ids))
    options = {"extra": model.sizes, "unit": "characters", "mode": "min", "shown": ".3f"}
    for epoch in commandline.training(args, model.collection, range(args.steps), **options):
        model.train()
        for _ in epoch:
            begins = [draw.randrange(len(ids) - size + 1) for _ in range(args.batch)]
            dy.renew_cg()
            loss = dy.esum([model.loss(ids[at : at + size]) for at in begins]) / (args.batch * (size - 1))
            epoch.add(loss.value(), args.batch * (size - 1))
            loss.backward()
            trainer.update()
        epoch.report(bits_a_character=bits(model, held_out, args))


def python_documentation() -> str:
    """What `help("topics")` shows: the chapters of Python's language reference, which Python ships."""
    print("learning from Python's documentation; --train FILE takes any text")
    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


def main(args: argparse.Namespace) -> None:
    for name in ("steps", "batch", "context", "texts", "length"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, not {getattr(args, name)}")
    if args.command == "write":
        if not args.beginning:
            raise ValueError('write needs a beginning: transformer_lm.py write "ROMEO:"')
        model = dy.load_network(args.model, LanguageModel).eval()
        for text in model.write(args.beginning, args.texts, args.length, args.temperature):
            print(text, flush=True)
        return
    text = dy.data.read_text(args.train) if args.train else python_documentation()
    text, dev = text[: -(len(text) // 20)], text[-(len(text) // 20) :]
    if len(dev) < 2 or not text:
        raise ValueError(f"{args.train}: {len(text + dev)} characters, which is too short")
    model = LanguageModel({"characters": sorted(set(text)), **args.sizes})
    print(
        f"{len(text)} characters to learn from and {len(dev)} to measure with, {len(model.ids)} different ones, "
        f"{model.collection.parameter_count()} parameters"
    )
    train(model, text, dev, args)
    model = dy.load_network(args.model, LanguageModel).eval()
    for text in model.write(dev.split()[0], 2, 200, args.temperature):
        print("-" * 80, text, sep="\n")


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a language model of characters, or write with one.",
        epochs=5,
        batch=16,  # windows
        learning_rate=0.003,  # the greatest
        sizes=SIZES,
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "write"], default="train")
    add("beginning", nargs="?", default="", help="write: the text to continue")
    add("--train", type=Path, metavar="FILE", help="text, plain or .gz; else Python's own documentation")
    add(
        "--steps", type=int, default=100, help="minibatches in an epoch; the last twentieth of the text is the dev text"
    )
    add("--context", type=int, default=128, help="characters in a window")
    add("--warmup", type=float, default=0.1, help="the fraction of training in which the learning rate rises")
    add("--texts", type=int, default=1, help="write: number of texts")
    add("--length", type=int, default=400, help="write: characters to draw")
    add("--temperature", type=float, default=0.8, help="above 0; a lower one prefers likelier characters")
    parser.run(main)
