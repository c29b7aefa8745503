"""A character language model: a causal Transformer that predicts each character from those before it.

    python transformer_lm.py                              # on the documentation that Python itself ships
    python transformer_lm.py --train shakespeare.txt.gz   # on any text, plain or .gz
    python transformer_lm.py write "ROMEO:"               # continue a text

In training a window of the text goes through the layers at once: causal attention prevents each character from seeing
the next ones.  When the program writes, characters come one by one.  The state keeps the keys and values of the
characters before, so that each step computes one column instead of the whole text again.  Both are written for one
text; the engine computes the windows of a minibatch, and texts that are written side by side, together.
"""

from __future__ import annotations

import argparse
import gzip
import math
import random
import sys
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from pydoc_data import topics

import numpy as np
from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config, nn
from dynet_cy.curves import Curves

UNKNOWN = 0  # the id of characters that the training text does not have


# -- the network ---------------------------------------------------------------------------------


class LanguageModel(nn.Layer):
    """The network.  `sizes` holds everything needed to build it again, except the weights.

    Rotary positions rotate queries and keys, so that attention depends on distances; nothing is added to the vectors.
    """

    def __init__(self, sizes: dict, model: dy.ParameterCollection) -> None:
        super().__init__(model, (sizes,))
        self.sizes = sizes
        self.ids = {character: i for i, character in enumerate(sizes["characters"], start=1)}
        count, dim, dropout = len(self.ids) + 1, sizes["dim"], sizes["dropout"]
        self.vectors = nn.Embedding(count, dim, self.collection)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.TransformerEncoder(
            sizes["layers"],
            dim,
            sizes["heads"],
            sizes["hidden"],
            self.collection,
            dropout=dropout,
            activation="gelu",
            norm_first=True,
            positions="rotary",
        )
        self.out = nn.Linear(dim, count, self.collection)

    def encode(self, text: str) -> np.ndarray:
        return np.array([self.ids.get(character, UNKNOWN) for character in text], int)

    def loss(self, window: np.ndarray) -> dy.Expression:
        """Return the loss of a window, summed over all its characters but the first, which is given."""
        x = self.layers(self.dropout(self.vectors(window[:-1])), causal=True)
        scores = dy.reshape(self.out(x), (len(self.ids) + 1,), len(window) - 1)  # a batch element for each character
        return dy.sum_batches(dy.pickneglogsoftmax_batch(scores, window[1:]))

    def write(self, beginning: str, length: int, temperature: float, seed: float) -> str:
        """Draw the characters that follow, one by one; a lower temperature prefers likelier ones."""
        rng, text, state = random.Random(seed), [], None
        given = self.encode(beginning)  # its keys and values are computed at once
        for _ in range(length):
            y, state = self.layers.step(self.vectors(given), state)
            scores = self.out(y[:, -1:] if len(given) > 1 else y).npvalue().ravel() / temperature
            weights = np.exp(scores - scores.max())
            weights[UNKNOWN] = 0
            given = np.array(rng.choices(range(len(weights)), weights.tolist()))
            text.append(self.sizes["characters"][given[0] - 1])
        return beginning + "".join(text)

    def write_many(self, beginnings: list[str], length: int, temperature: float, seed: int) -> list[str]:
        """Write texts side by side."""
        dy.renew_cg(forward_only=True)
        seeds = [seed + i / 1000 for i in range(len(beginnings))]
        return dy.batched_map(lambda text, own: self.write(text, length, temperature, own), beginnings, seeds)


# -- training ------------------------------------------------------------------------------------


def learning_rate(done: float, args: argparse.Namespace) -> float:
    """The rate after a share of the training: it rises linearly, then falls like a cosine."""
    if done < args.warmup:
        return args.learning_rate * done / args.warmup
    return args.learning_rate * (1 + math.cos(math.pi * (done - args.warmup) / (1 - args.warmup))) / 2


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
    """Train for all steps; save whenever the dev text is predicted best so far."""
    trainer = dy.AdamTrainer(model.param_collection())
    trainer.set_clip_threshold(1.0)
    ids, held_out = model.encode(text), model.encode(dev)
    draw = random.Random(args.seed)
    size = min(args.context + 1, len(ids))
    best, start = math.inf, time.perf_counter()
    summed = count = 0.0
    args.model.parent.mkdir(parents=True, exist_ok=True)
    bar = tqdm(total=args.steps, unit="step", leave=False, disable=None)
    with Curves(args.curves, args.tensorboard) as curves, bar:
        for step in range(1, args.steps + 1):
            model.train()
            trainer.learning_rate = learning_rate((step - 0.5) / args.steps, args)
            begins = [draw.randrange(len(ids) - size + 1) for _ in range(args.batch)]
            dy.renew_cg()
            loss = dy.esum([model.loss(ids[at : at + size]) for at in begins]) / (args.batch * (size - 1))
            value = loss.value()
            loss.backward()
            trainer.update()
            summed += value
            count += 1
            bar.set_postfix(loss=f"{value:.3f}", refresh=False)
            bar.update()
            if step % args.every == 0 or step == args.steps:
                seconds = time.perf_counter() - start
                found = bits(model, held_out, args)
                curves.add(step, loss=summed / count, bits=found)
                speed = f"{seconds:.1f} s, {count * args.batch * (size - 1) / seconds:.0f} characters/s"
                print(f"step {step}: loss {summed / count:.4f}, {speed}, dev {found:.3f} bits a character", flush=True)
                if found < best:
                    best = found
                    dy.save_safetensors(args.model, model.param_collection(), extra=model.sizes)
                start, summed, count = time.perf_counter(), 0.0, 0.0
    print(f"best dev {best:.3f} bits a character, model saved in {args.model}")


# -- data ----------------------------------------------------------------------------------------


def read(path: Path) -> str:
    """Return the text of a file in UTF-8, plain or gzipped."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return content.decode("utf-8")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not a whole gzip file: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8: {error}") from error


def python_documentation() -> str:
    """What `help("topics")` shows: the chapters of Python's language reference, which Python ships."""
    print("learning from Python's documentation; --train FILE takes any text")
    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


def load(path: Path) -> LanguageModel:
    """Build the network that was saved, and read its weights."""
    try:
        model = LanguageModel(dy.read_extra(path), dy.ParameterCollection())
    except KeyError as error:
        raise ValueError(f"{path}: the model of another program: it has no {error}") from error
    dy.load_safetensors(path, model.param_collection())
    return model.eval()


# -- command line --------------------------------------------------------------------------------


def train_command(args: argparse.Namespace) -> None:
    text = read(args.train) if args.train else python_documentation()
    held_out = len(text) // 20
    text, dev = text[: len(text) - held_out], text[len(text) - held_out :]
    if len(dev) < 2:
        raise ValueError(f"{args.train}: {len(text) + len(dev)} characters, which is too short")
    sizes = {name: getattr(args, name) for name in ("dim", "heads", "hidden", "layers", "dropout")}
    model = LanguageModel({"characters": sorted(set(text)), **sizes}, dy.ParameterCollection())
    parameters = model.param_collection().parameter_count()
    print(
        f"{len(text)} characters to learn from and {len(dev)} to measure with, {len(model.ids)} different ones, "
        f"{parameters} parameters"
    )
    train(model, text, dev, args)
    for written in load(args.model).write_many([dev.split()[0]] * 2, 200, args.temperature, args.seed):
        print("-" * 80)
        print(written)


def write_command(args: argparse.Namespace) -> None:
    if not args.beginning:
        raise ValueError('write needs a beginning: transformer_lm.py write "ROMEO:"')
    for written in load(args.model).write_many([args.beginning] * args.texts, args.length, args.temperature, args.seed):
        print(written, flush=True)


def parse(argv: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a language model of characters, or write with one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "write"], default="train")
    add("beginning", nargs="?", default="", help="write: the text to continue")
    add("--train", type=Path, metavar="FILE", help="text, plain or .gz; else Python's own documentation")
    add("--steps", type=int, default=500, help="minibatches to train with")
    add("--every", type=int, default=100, help="steps between measurements with the last twentieth of the text")
    add("--batch", type=int, default=16, help="windows in a minibatch")
    add("--context", type=int, default=128, help="characters in a window")
    add("--layers", type=int, default=2)
    add("--dim", type=int, default=128, help="length of the vector of a character")
    add("--heads", type=int, default=4)
    add("--hidden", type=int, default=512, help="units in the linear layers after attention")
    add("--dropout", type=float, default=0.1)
    add("--learning-rate", type=float, default=0.003, help="the greatest")
    add("--warmup", type=float, default=0.1, help="the fraction of training in which the learning rate rises")
    add("--texts", type=int, default=1, help="write: number of texts")
    add("--length", type=int, default=400, help="write: characters to draw")
    add("--temperature", type=float, default=0.8)
    add("--seed", type=int, default=1)
    add("--model", type=Path, metavar="FILE", default=Path("runs/transformer_lm.safetensors"))
    add("--curves", type=Path, metavar="FILE", help="plot loss and bits to this file: .svg, .png or .pdf (matplotlib)")
    add("--tensorboard", type=Path, metavar="DIR", help="log them for TensorBoard (tensorboardX)")
    config.add_options(parser)
    args = parser.parse_intermixed_args(argv)
    for name in ("steps", "every", "batch", "context", "texts", "length"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(args, name)}")
    if not args.temperature > 0:
        parser.error(f"--temperature must be above 0, not {args.temperature}")
    if not 0 < args.warmup < 1:
        parser.error(f"--warmup must be between 0 and 1, not {args.warmup}")
    return args


def main() -> None:
    args = parse(sys.argv[1:])
    dy.reset_random_seed(args.seed)
    try:
        (train_command if args.command == "train" else write_command)(args)
    except (OSError, ValueError) as error:
        sys.exit(f"transformer_lm.py: {error}")
    except KeyboardInterrupt:
        sys.exit("transformer_lm.py: interrupted")


if __name__ == "__main__":
    main()
