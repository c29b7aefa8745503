"""An encoder and a decoder with attention: learns to inflect words, letter by letter.

    python seq2seq.py                                          # English: "V;PST think" -> "thought"
    python seq2seq.py --train finnish-train-high --dev finnish-dev     # files of SIGMORPHON 2017
    python seq2seq.py --sampling 0.5                           # learn from its own letters too
    echo "swim V;PST" | python seq2seq.py inflect              # use the model: one word and its tags per line
    echo "swim V;PST" | python seq2seq.py inflect --words FILE # output only words of the file

A BiLSTM reads the tags and the letters of the dictionary form.  An LSTM writes the inflected form; before each
letter it attends to all of the input, with weights from a small MLP (Bahdanau, Cho, Bengio 2015).

Decoding reads values midway and continues the same graph.  The states of the LSTM never change,
so a beam search can continue from one state with several letters.  The code is written for one word and one
hypothesis; `batched_map` runs many side by side.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.curves import Curves

Pair = tuple[list[str], list[str]]  # tags and letters of the dictionary form; letters of the inflected form
END, UNKNOWN = 0, 1  # the ids of the end of a word (also its beginning), and of unknown letters and tags


class Encoded(NamedTuple):
    """The encoded source, to which the decoder attends."""

    columns: dy.Expression  # (2 * hidden, n): a column for each symbol of the source
    projected: dy.Expression  # (attention, n): the part of the MLP that does not depend on the decoder


class Inflector:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.inputs = {symbol: i for i, symbol in enumerate(spec["inputs"], start=2)}
        self.outputs = {letter: i for i, letter in enumerate(spec["outputs"], start=2)}
        dim, hidden, attention = spec["dim"], spec["hidden"], spec["attention"]
        self.training = False  # whether to apply dropout
        self.sampling = 0.0  # probability that the decoder reads its own letter in training
        self.rng = random.Random(spec["seed"])

        self.pc = pc = dy.ParameterCollection()
        self.input_vectors = pc.add_lookup_parameters((len(self.inputs) + 2, dim))
        self.output_vectors = pc.add_lookup_parameters((len(self.outputs) + 2, dim))
        self.forward = dy.LSTMBuilder(1, dim, hidden, pc)
        self.backward = dy.LSTMBuilder(1, dim, hidden, pc)
        self.decoder = dy.LSTMBuilder(1, dim, hidden, pc)
        self.W_first = pc.add_parameters((hidden, 2 * hidden))
        self.W_read = pc.add_parameters((attention, 2 * hidden))
        self.W_state = pc.add_parameters((attention, hidden))
        self.v = pc.add_parameters((1, attention))
        self.W_hidden = pc.add_parameters((hidden, 3 * hidden))
        self.b_hidden = pc.add_parameters(hidden, init=0)
        self.W = pc.add_parameters((len(self.outputs) + 2, hidden))
        self.b = pc.add_parameters(len(self.outputs) + 2, init=0)

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def encode(self, source: list[str]) -> tuple[Encoded, dy.RNNState]:
        """Encode the source; return it, and the first state of the decoder."""
        inputs = [self.drop(self.input_vectors[self.inputs.get(symbol, UNKNOWN)]) for symbol in source]
        forward = self.forward.initial_state().transduce(inputs)
        backward = self.backward.initial_state().transduce(inputs[::-1])[::-1]
        columns = dy.concatenate_cols([dy.concatenate([f, b]) for f, b in zip(forward, backward)])
        last = dy.concatenate([forward[-1], backward[0]])
        first = dy.tanh(self.W_first * last)
        return Encoded(columns, self.W_read * columns), self.decoder.initial_state([first])

    def attend(self, encoded: Encoded, state: dy.Expression) -> dy.Expression:
        """Return the mean of the encoded symbols, weighted by their relevance in this state."""
        relevance = self.v * dy.tanh(dy.colwise_add(encoded.projected, self.W_state * state))  # (1, n)
        return encoded.columns * dy.softmax(dy.transpose(relevance))

    def scores(self, encoded: Encoded, output: dy.Expression) -> dy.Expression:
        """Return the scores of all letters to come next, for an output of the decoder."""
        joined = dy.concatenate([output, self.attend(encoded, output)])
        hidden = dy.tanh(dy.affine_transform([self.b_hidden, self.W_hidden, joined]))
        return dy.affine_transform([self.b, self.W, self.drop(hidden)])

    def loss(self, pairs: list[Pair]) -> dy.Expression:
        """Return the loss of a minibatch, summed over the letters."""
        return dy.esum(dy.batched_map(self.loss_of_one, pairs, [self.rng.random() for _ in pairs]))

    def loss_of_one(self, pair: Pair, seed: float) -> dy.Expression:
        """Return the loss of a pair.

        The decoder reads the letters of the correct form.  With probability `sampling`, it instead reads the letter
        that it scored highest, for which a value is read, so that it learns to continue after its own errors
        (scheduled sampling: Bengio, Vinyals, Jaitly, Shazeer 2015).
        """
        source, target = pair
        rng, right = random.Random(seed), [*(self.outputs[letter] for letter in target), END]
        encoded, state = self.encode(source)
        losses, given = [], END
        for letter in right:
            state = state.add_input(self.drop(self.output_vectors[given]))
            scores = self.scores(encoded, state.output())
            losses.append(dy.pickneglogsoftmax(scores, letter))
            own = self.sampling and rng.random() < self.sampling
            given = int(scores.npvalue().argmax()) if own else letter
        return dy.esum(losses)

    # -- decoding --------------------------------------------------------------------------------

    def write(self, letters: list[int]) -> str:
        return "".join(self.spec["outputs"][letter - 2] for letter in letters if letter > UNKNOWN)

    def step(self, encoded: Encoded, state: dy.RNNState, last: int) -> tuple[dy.RNNState, dy.Expression]:
        """Give the decoder the last letter; return its next state and the log probabilities of the next letter."""
        state = state.add_input(self.output_vectors[last])
        return state, dy.log_softmax(self.scores(encoded, state.output()))

    def greedy_one(self, source: list[str]) -> str:
        """Take the best letter at each step."""
        encoded, state = self.encode(source)
        letters = [END]
        for _ in range(longest(source)):
            state, scores = self.step(encoded, state, letters[-1])
            letters.append(int(scores.npvalue().argmax()))
            if letters[-1] == END:
                break
        return self.write(letters)

    def beam_one(self, source: list[str], width: int, allowed: Allowed) -> str:
        """Keep the `width` most probable partial words at each step; return the most probable complete one."""
        encoded, state = self.encode(source)
        step = partial(self.step, encoded)
        return self.write(search(state, step, width, longest(source), allowed).tokens)

    def inflect(self, sources: list[list[str]], width: int = 1, words: list[str] | None = None) -> list[str]:
        """Return an output for each source, by a beam search, or greedily if the width is 1.

        With a list of words, each output is one of these (constrained decoding).
        """
        dy.renew_cg(forward_only=True)
        if width == 1 and words is None:
            return dy.batched_map(self.greedy_one, sources)
        allowed: Allowed = lambda letters: None  # noqa: E731
        if words is not None:
            allowed = OneOf([self.outputs[x] for x in word] for word in words if self.can_write(word))
        return dy.batched_map(lambda source: self.beam_one(source, width, allowed), sources)

    def can_write(self, word: str) -> bool:
        return all(letter in self.outputs for letter in word)


def longest(source: list[str]) -> int:
    """The maximum length of an output."""
    return 2 * len(source) + 10


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


class OneOf:
    """Allows only outputs from a list, which is stored as a prefix tree."""

    def __init__(self, outputs: Iterable[list[int]]) -> None:
        self.root: dict[int, dict] = {}
        for output in outputs:
            node = self.root
            for token in [*output, END]:
                node = node.setdefault(token, {})

    def __call__(self, tokens: list[int]) -> list[int]:
        node = self.root
        for token in tokens:
            node = node[token]
        return list(node)


# -- training ------------------------------------------------------------------------------------


def new_inflector(pairs: list[Pair], args: argparse.Namespace) -> Inflector:
    spec = {
        "inputs": sorted({symbol for source, _ in pairs for symbol in source}),
        "outputs": sorted({letter for _, target in pairs for letter in target}),
    }
    spec.update({name: getattr(args, name) for name in ("dim", "hidden", "attention", "dropout", "seed")})
    return Inflector(spec)


def accuracy(inflector: Inflector, pairs: list[Pair], width: int) -> float:
    """Return the share of the words that are right to the last letter; width 1 decodes greedily."""
    right = 0
    for batch in dy.data.batches(pairs, 64):
        found = inflector.inflect([source for source, _ in batch], width)
        right += sum(guess == "".join(target) for guess, (_, target) in zip(found, batch))
    return right / len(pairs)


def train(inflector: Inflector, training: list[Pair], dev: list[Pair], args: argparse.Namespace) -> None:
    """Train for all epochs; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(inflector.pc, alpha=args.learning_rate)
    data = dy.data.batches(training, args.batch, shuffle=True, seed=args.seed)
    done = 0
    args.model.parent.mkdir(parents=True, exist_ok=True)
    best = dy.EarlyStopping(inflector.pc, path=args.model)  # saves the best model; nothing is stopped
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            inflector.training = True
            summed, letters, start = 0.0, 0, time.perf_counter()
            for batch in tqdm(data, desc=f"epoch {epoch}", unit=" batches", leave=False, disable=None):
                trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * len(training)))
                done += len(batch)
                inflector.sampling = args.sampling * done / (args.epochs * len(training))
                dy.renew_cg()
                count = sum(len(target) + 1 for _, target in batch)
                loss = inflector.loss(batch) / count
                summed += loss.value() * count
                letters += count
                loss.backward()
                trainer.update()
            seconds = time.perf_counter() - start
            inflector.training = False
            right = accuracy(inflector, dev, width=1)
            curves.add(epoch, loss=summed / letters, accuracy=right)
            speed = f"{seconds:.1f} s, {len(training) / seconds:.0f} pairs/s"
            print(f"epoch {epoch}: loss {summed / letters:.4f}, {speed}, dev accuracy {right:.2%}", flush=True)
            best.report(right, extra=inflector.spec)


# -- data ----------------------------------------------------------------------------------------

SLOTS = {  # the columns of lemminflect's table after the dictionary form and the part of speech
    "noun": ["N;PL"],
    "adj": ["ADJ;CMPR", "ADJ;SPRL"],
    "adv": ["ADV;CMPR", "ADV;SPRL"],
    "verb": ["V;PST", "V;V.PTCP;PST", "V;V.PTCP;PRS", "V;3;SG;PRS"],
}


def make_pair(lemma: str, form: str, tags: str) -> Pair:
    return [f"<{tag}>" for tag in tags.split(";")] + list(lemma), list(form)


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a file in the format of the SIGMORPHON tasks: lemma, form, tags, separated by tabs."""
    return [make_pair(*row) for row in dy.data.read_tsv(path, ["lemma", "form", "tags"])]


def read_lemminflect(count: int) -> tuple[list[Pair], list[Pair]]:
    """Return `count` pairs drawn from the English table of the package lemminflect, and dev pairs.

    A tenth of the dictionary forms is held out for dev, with all their inflected forms; dev has a tenth of `count`.
    """
    try:
        files = metadata.files("lemminflect") or []
    except metadata.PackageNotFoundError:
        raise ValueError("no pairs: pip install lemminflect, or give some with --train FILE") from None
    path = next(Path(str(file.locate())) for file in files if file.name == "infl_lu.csv.gz")
    forms: dict[str, list[Pair]] = {}
    for line in dy.data.lines(path):
        lemma, part_of_speech, *columns = line.split(",")
        for tags, variants in zip(SLOTS[part_of_speech], columns):
            if variants:  # otherwise there is no such form, or it is the same as the previous one
                forms.setdefault(lemma, []).append(make_pair(lemma, variants.split("/")[0], tags))
    rng = random.Random(0)
    lemmas = sorted(forms)
    rng.shuffle(lemmas)
    tenth = len(lemmas) // 10
    dev = [pair for lemma in lemmas[:tenth] for pair in forms[lemma]]
    training = [pair for lemma in lemmas[tenth:] for pair in forms[lemma]]
    return rng.sample(training, min(count, len(training))), rng.sample(dev, min(count // 10, len(dev)))


# -- command line --------------------------------------------------------------------------------


def load(path: Path) -> Inflector:
    inflector = Inflector(dy.read_extra(path))
    dy.load_safetensors(path, inflector.pc)
    return inflector


def train_command(args: argparse.Namespace) -> None:
    if args.train:
        training = read_pairs(args.train)
        dev = read_pairs(args.dev) if args.dev else training[::10]
        if not args.dev:
            training = [pair for i, pair in enumerate(training) if i % 10]
        if not training:
            raise ValueError(f"{args.train}: one pair only, none is left to train on; give --dev FILE too")
    else:
        training, dev = read_lemminflect(args.pairs)
    inflector = new_inflector(training, args)
    print(f"{len(training)} training and {len(dev)} dev pairs, {len(inflector.outputs)} letters")
    train(inflector, training, dev, args)
    inflector = load(args.model)
    start = time.perf_counter()
    right = accuracy(inflector, dev, args.beam)
    print(f"best model, beam of {args.beam}: dev accuracy {right:.2%} in {time.perf_counter() - start:.1f} s")
    for (source, target), guess in zip(dev[:5], inflector.inflect([source for source, _ in dev[:5]])):
        print(f"{' '.join(source)} -> {guess}" + ("" if guess == "".join(target) else f" (not {''.join(target)})"))


def inflect_command(args: argparse.Namespace) -> None:
    inflector = load(args.model)
    words = args.words.read_text(encoding="utf-8").split() if args.words else None
    if words is not None and not any(map(inflector.can_write, words)):
        raise ValueError(f"{args.words}: no word of letters that the model knows")
    for line in sys.stdin:
        lemma, _, tags = line.strip().rpartition(" ")
        if not lemma:
            raise ValueError(f"expected a word and its tags, as in: swim V;PST, not {line.strip()!r}")
        print(*inflector.inflect([make_pair(lemma, "", tags)[0]], args.beam, words), flush=True)


def parse(argv: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Learn to inflect words, or inflect some.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "inflect"], default="train")
    add("--train", type=Path, metavar="FILE", help="lemma, form, tags with tabs between, plain or .gz")
    add("--dev", type=Path, metavar="FILE", help="else every tenth pair of the training file")
    add("--pairs", type=int, default=8000, help="without --train: this many of lemminflect's English pairs")
    add("--model", type=Path, metavar="FILE", default=Path("runs/seq2seq.safetensors"))
    add("--epochs", type=int, default=12, help="the learning rate falls to 0 over them")
    add("--batch", type=int, default=16, help="pairs in a minibatch")
    add("--dim", type=int, default=64, help="size of the embeddings")
    add("--hidden", type=int, default=128, help="units of each LSTM")
    add("--attention", type=int, default=64, help="hidden units of the attention MLP")
    add("--dropout", type=float, default=0.2)
    add("--learning-rate", type=float, default=0.002)
    add("--sampling", type=float, default=0.0, help="probability that the decoder reads its own letter, at the end")
    add("--beam", type=int, default=5, help="width of the beam search")
    add("--words", type=Path, metavar="FILE", help="inflect: output only words of this file")
    add("--curves", type=Path, metavar="FILE", help="plot the training to this file: .svg, .png or .pdf")
    add("--tensorboard", type=Path, metavar="DIR", help="log the training for TensorBoard (tensorboardX)")
    add("--seed", type=int, default=1)
    config.add_options(parser)
    return parser.parse_args(argv)


def main() -> None:
    args = parse(sys.argv[1:])
    dy.reset_random_seed(args.seed)
    try:
        (train_command if args.command == "train" else inflect_command)(args)
    except (OSError, ValueError) as error:
        sys.exit(f"seq2seq.py: {error}")
    except KeyboardInterrupt:
        sys.exit("seq2seq.py: interrupted")


if __name__ == "__main__":
    main()
