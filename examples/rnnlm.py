"""A language model: an LSTM that predicts each word, or letter, from those before it.

    python rnnlm.py                                            # words of two Turkish treebanks
    python rnnlm.py --unit letter                              # their letters
    python rnnlm.py --train train.txt.gz --dev dev.txt.gz      # text, one sentence per line
    python rnnlm.py --batching manual                          # the same network on minibatch tensors

With `--batching auto` the program computes the loss of one sentence, and the engine runs the sentences of a
minibatch together.  `--batching manual` does that by hand: it pads the sentences to one length, looks
up a column of words at a time, and masks the losses of the padding.  Both give the same numbers.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.curves import Curves

END, UNKNOWN = 0, 1  # the ids of the end of a sentence (also its beginning), and of all rare words


# -- the network ---------------------------------------------------------------------------------


class LanguageModel:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.ids = {token: i for i, token in enumerate(spec["vocabulary"], start=2)}
        self.pc = pc = dy.ParameterCollection()
        size = len(self.ids) + 2
        self.vectors = pc.add_lookup_parameters((size, spec["dim"]))
        self.lstm = dy.LSTMBuilder(spec["layers"], spec["dim"], spec["hidden"], pc)
        self.W = pc.add_parameters((size, spec["hidden"]))
        self.b = pc.add_parameters(size, init=0)

    def encode(self, sentence: list[str]) -> list[int]:
        """Return the ids of a sentence, with the end."""
        return [self.ids.get(token, UNKNOWN) for token in sentence] + [END]

    def start(self, training: bool):
        """Return the state of the LSTM before the first input."""
        self.lstm.set_dropout(self.spec["dropout"] if training else 0)
        return self.lstm.initial_state()

    def scores(self, output: dy.Expression) -> dy.Expression:
        """Return the scores of all tokens to come next, for an output of the LSTM."""
        return dy.affine_transform([self.b, self.W, output])

    def loss_auto(self, sentences: list[list[int]], training: bool) -> dy.Expression:
        """Return the loss summed over all tokens, computed sentence by sentence."""
        losses = []
        start = self.start(training)
        for sentence in sentences:
            inputs = [self.vectors[token] for token in [END, *sentence[:-1]]]
            for output, token in zip(start.transduce(inputs), sentence):
                losses.append(dy.pickneglogsoftmax(self.scores(output), token))
        return dy.esum(losses)

    def loss_manual(self, sentences: list[list[int]], training: bool) -> dy.Expression:
        """Return the same, computed token by token for the whole minibatch."""
        length = max(map(len, sentences))
        padded = [sentence + [END] * (length - len(sentence)) for sentence in sentences]
        columns = [list(column) for column in zip(*padded)]
        inputs = [dy.lookup_batch(self.vectors, column) for column in [[END] * len(sentences), *columns[:-1]]]
        losses = []
        for i, (output, column) in enumerate(zip(self.start(training).transduce(inputs), columns)):
            loss = dy.pickneglogsoftmax_batch(self.scores(output), column)
            mask = [float(i < len(sentence)) for sentence in sentences]
            if not all(mask):
                loss = loss * dy.reshape(dy.inputVector(mask), (1,), batch_size=len(mask))
            losses.append(loss)
        return dy.sum_batches(dy.esum(losses))

    def write(self, tokens: list[int]) -> str:
        separator = " " if self.spec["unit"] == "word" else ""
        return separator.join(self.spec["vocabulary"][token - 2] for token in tokens if token > UNKNOWN)

    def sample(self, seed: float, longest: int = 60) -> str:
        """Draw a sentence: each token is drawn from the distribution that the network gives, and is its next input."""
        rng, state, tokens = random.Random(seed), self.start(training=False), [END]
        for _ in range(longest):
            state = state.add_input(self.vectors[tokens[-1]])
            probabilities = dy.softmax(self.scores(state.output())).vec_value()
            probabilities[UNKNOWN] = 0
            tokens.append(rng.choices(range(len(probabilities)), probabilities)[0])
            if tokens[-1] == END:
                break
        return self.write(tokens)

    def best(self, beginning: list[str], width: int, longest: int = 60) -> str:
        """Return the most probable sentence with this beginning that a beam search finds, without unknown words."""
        forced, known = self.encode(beginning)[:-1], [END, *range(UNKNOWN + 1, len(self.ids) + 2)]

        def step(state: dy.RNNState, token: int) -> tuple[dy.RNNState, dy.Expression]:
            state = state.add_input(self.vectors[token])
            return state, dy.log_softmax(self.scores(state.output()))

        def allowed(tokens: list[int]) -> list[int]:
            return [forced[len(tokens)]] if len(tokens) < len(forced) else known

        return self.write(search(self.start(training=False), step, width, longest, allowed).tokens)


# -- beam search ---------------------------------------------------------------------------------

# Maps the tokens so far to those that may come next; None: all.
Allowed = Callable[[list[int]], Optional[list[int]]]


class Hypothesis(NamedTuple):
    """A partial output of a beam search."""

    tokens: list[int]  # END comes last
    score: float  # log probability
    state: Any  # before the last token is read


def search(
    state: Any,
    step: Callable[[Any, int], tuple[Any, dy.Expression]],
    width: int,
    longest: int,
    allowed: Allowed = lambda tokens: None,
) -> Hypothesis:
    """Keep the `width` most probable partial outputs at each step; return the most probable complete one.

    `step(state, token)` lets a state read a token, END at first, and returns the next state and an expression
    with the log probabilities of the tokens to come.  The steps of all hypotheses, and those of other searches that
    run in the same `batched_map`, are computed together.
    """

    def expand(hypothesis: Hypothesis) -> list[Hypothesis]:
        state, scores = step(hypothesis.state, hypothesis.tokens[-1] if hypothesis.tokens else END)
        values, tokens = scores.npvalue(), allowed(hypothesis.tokens)
        ids = np.arange(len(values)) if tokens is None else np.array(tokens, int)
        best = ids[np.argsort(-values[ids], kind="stable")[:width]].tolist()
        return [Hypothesis([*hypothesis.tokens, i], hypothesis.score + float(values[i]), state) for i in best]

    beginnings, ended = [Hypothesis([], 0.0, state)], []
    for _ in range(longest):
        candidates = [candidate for found in dy.batched_map(expand, beginnings) for candidate in found]
        candidates.sort(key=lambda candidate: -candidate.score)
        ended += [candidate for candidate in candidates[:width] if candidate.tokens[-1] == END]
        beginnings = [candidate for candidate in candidates[:width] if candidate.tokens[-1] != END]
        best = max((hypothesis.score for hypothesis in ended), default=float("-inf"))
        beginnings = [candidate for candidate in beginnings if candidate.score > best]  # scores only fall
        if not beginnings:
            break
    return max(ended or beginnings, key=lambda hypothesis: hypothesis.score)


# -- training ------------------------------------------------------------------------------------


def minibatches(sentences: list[list[int]], size: int, seed: int | None = None) -> dy.data.Batches:
    """Put sentences of similar length together, which saves padding in manual batching; with a seed, shuffle them."""
    return dy.data.batches(sentences, size, bucket=len, shuffle=seed is not None, seed=seed or 0)


def perplexity(model: LanguageModel, sentences: list[list[int]], args: argparse.Namespace) -> float:
    """Return e to the mean loss of all tokens, ends of sentences and unknown words included."""
    loss_of = model.loss_auto if args.batching == "auto" else model.loss_manual
    total = 0.0
    for batch in minibatches(sentences, args.batch):
        dy.renew_cg(forward_only=True)
        total += loss_of(batch, training=False).scalar_value()
    return math.exp(total / sum(map(len, sentences)))


def train(model: LanguageModel, training: list[list[int]], dev: list[list[int]], args: argparse.Namespace) -> None:
    """Train for all epochs; halve the learning rate after an epoch that is not better, save after one that is."""
    trainer = dy.AdamTrainer(model.pc, alpha=args.learning_rate)
    trainer.set_clip_threshold(5.0)
    loss_of = model.loss_auto if args.batching == "auto" else model.loss_manual
    data = minibatches(training, args.batch, args.seed)
    total = sum(map(len, training))
    best = math.inf
    args.model.parent.mkdir(parents=True, exist_ok=True)
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            summed, start = 0.0, time.perf_counter()
            for batch in tqdm(data, desc=f"epoch {epoch}", unit=" batches", leave=False, disable=None):
                count = sum(map(len, batch))
                dy.renew_cg()
                loss = loss_of(batch, training=True) / count
                summed += loss.value() * count
                loss.backward()
                trainer.update()
            seconds = time.perf_counter() - start
            found = perplexity(model, dev, args)
            curves.add(epoch, loss=summed / total, perplexity=found)
            speed = f"{seconds:.1f} s, {total / seconds:.0f} {args.unit}s/s"
            print(f"epoch {epoch}: loss {summed / total:.4f}, {speed}, dev perplexity {found:.2f}", flush=True)
            if found < best:
                best = found
                dy.save_safetensors(args.model, model.pc, extra=model.spec)
            else:
                trainer.learning_rate /= 2
    print(f"best dev perplexity {best:.2f}, model saved in {args.model}")


# -- data ----------------------------------------------------------------------------------------


def read_text(path: Path) -> list[list[str]]:
    """Return the words of each line that is not empty, of plain text or gzipped."""
    sentences = [words for words in map(str.split, dy.data.lines(path)) if words]
    if not sentences:
        raise ValueError(f"{path}: no words")
    return sentences


def read_sentences(args: argparse.Namespace) -> tuple[list[list[str]], list[list[str]]]:
    """Return the sentences for training and for measuring; without --dev, the latter are every tenth."""
    training = read_text(args.train) if args.train else default_sentences()
    if args.dev:
        dev = read_text(args.dev)
    else:
        dev, training = training[::10], [s for i, s in enumerate(training) if i % 10]
        if not training:
            raise ValueError(f"{args.train}: one sentence only, none is left to train on; give --dev FILE too")
    training, dev = training[: args.limit], dev[: args.limit]
    if args.unit == "letter":
        training, dev = ([list(" ".join(words)) for words in sentences] for sentences in (training, dev))
    return training, dev


def default_sentences() -> list[list[str]]:
    """Return the words of the two Turkish treebanks of the package turkish-treebanks."""
    try:
        files = metadata.files("turkish-treebanks") or []
    except metadata.PackageNotFoundError:
        raise ValueError("no text: pip install turkish-treebanks, or give some with --train FILE") from None
    print("learning from Turkish sentences (package turkish-treebanks); --train FILE takes text of any language")
    names = {file.name: str(file.locate()) for file in files}
    paths = [names[name] for name in ("web.conllu", "wiki.conllu")]
    return [sentence.form for path in paths for sentence in dy.data.read_conllu(path)]


# -- command line --------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a language model.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--train", type=Path, metavar="FILE", help="text, one sentence per line, plain or .gz; else turkish-treebanks")
    add("--dev", type=Path, metavar="FILE", help="text; else every tenth sentence of the training text")
    add("--limit", type=int, metavar="N", help="use only the first N sentences of each")
    add("--unit", choices=["word", "letter"], default="word", help="what to predict")
    add("--batching", choices=["auto", "manual"], default="auto")
    add("--model", type=Path, metavar="FILE", default=Path("runs/rnnlm.safetensors"))
    add("--rare", type=int, default=1, help="words that occur this often or less are unknown words")
    add("--epochs", type=int, default=8)
    add("--batch", type=int, default=32, help="sentences in a minibatch")
    add("--dim", type=int, default=128, help="size of the embeddings")
    add("--hidden", type=int, default=256)
    add("--layers", type=int, default=1)
    add("--dropout", type=float, default=0.3)
    add("--learning-rate", type=float, default=0.002)
    add("--samples", type=int, default=3, help="sentences to draw from the model at the end")
    add("--beam", type=int, default=4, help="width of the beam search that continues beginnings of dev sentences")
    add("--curves", type=Path, metavar="FILE", help="plot the training to this file: .svg, .png or .pdf")
    add("--tensorboard", type=Path, metavar="DIR", help="log the training for TensorBoard (tensorboardX)")
    add("--seed", type=int, default=1)
    config.add_options(parser)
    return parser.parse_args()


def main() -> None:
    args = parse()
    dy.reset_random_seed(args.seed)
    try:
        training, dev = read_sentences(args)
        counts = Counter(token for sentence in training for token in sentence)
        spec = {"vocabulary": [token for token, count in counts.items() if count > args.rare]}
        spec.update({name: getattr(args, name) for name in ("unit", "dim", "hidden", "layers", "dropout")})
        model = LanguageModel(spec)
        unknown = sum(token not in model.ids for sentence in dev for token in sentence) / sum(map(len, dev))
        print(
            f"{args.batching} batching: {len(training)} training and {len(dev)} dev sentences, "
            f"{len(model.ids)} {args.unit}s in the vocabulary, {unknown:.1%} of dev unknown"
        )
        train(model, [model.encode(s) for s in training], [model.encode(s) for s in dev], args)
        model = LanguageModel(dy.read_extra(args.model))
        dy.load_safetensors(args.model, model.pc)
        dy.renew_cg(forward_only=True)
        rng = random.Random(args.seed)
        for sample in dy.batched_map(model.sample, [rng.random() for _ in range(args.samples)]):
            print("sample:", sample)
        beginnings = [sentence[:2] for sentence in dev[: args.samples]]
        for sentence in dy.batched_map(lambda beginning: model.best(beginning, args.beam), beginnings):
            print("best:", sentence)
    except (OSError, ValueError) as error:
        sys.exit(f"rnnlm.py: {error}")
    except KeyboardInterrupt:
        sys.exit("rnnlm.py: interrupted")


if __name__ == "__main__":
    main()
