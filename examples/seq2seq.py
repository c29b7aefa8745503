"""An encoder and a decoder with attention: learns to inflect words, letter by letter.

    python seq2seq.py                                          # English: "V;PST think" -> "thought"
    python seq2seq.py --train finnish-train-high --dev finnish-dev     # files of SIGMORPHON 2017
    echo "swim V;PST" | python seq2seq.py inflect              # use the model: a word and its tags a line

A BiLSTM reads the tags and the letters of the dictionary form.  An LSTM writes the inflected form; before each
letter it looks back at all that was read, weighed by a small MLP (Bahdanau, Cho, Bengio 2015).

Decoding asks for values midway and goes on building the same graph.  The states of the LSTM never change,
so a beam search just goes on from one state with several letters.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from helpers import add_engine_options, batches, import_engine, load_spec, save_model
from inflections import Pair, make_pair, read_lemminflect, read_tsv
from tqdm import tqdm

END, UNKNOWN = 0, 1  # the ids of the end of a word (also its beginning), and of unknown letters and tags


class Hypothesis(NamedTuple):
    """The beginning of an output, as decoding goes."""

    letters: list[int]  # ids; after END nothing follows
    score: float  # log probability
    state: dy.RNNState  # of the decoder, before it is given the last letter


class Encoded(NamedTuple):
    """What the decoder looks back at."""

    columns: dy.Expression  # (2 * hidden, n): what was read, a column for each symbol
    projected: dy.Expression  # (attention, n): the part of the MLP that does not depend on the decoder


class Inflector:
    """The network.  `spec` is all that is needed, beside the weights, to build it again."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.inputs = {symbol: i for i, symbol in enumerate(spec["inputs"], start=2)}
        self.outputs = {letter: i for i, letter in enumerate(spec["outputs"], start=2)}
        dim, hidden, attention = spec["dim"], spec["hidden"], spec["attention"]
        self.training = False  # whether to drop out

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
        """Read the source; return what was read, and the first state of the decoder."""
        inputs = [self.drop(self.input_vectors[self.inputs.get(symbol, UNKNOWN)]) for symbol in source]
        forward = self.forward.initial_state().transduce(inputs)
        backward = self.backward.initial_state().transduce(inputs[::-1])[::-1]
        columns = dy.concatenate_cols([dy.concatenate([f, b]) for f, b in zip(forward, backward)])
        last = dy.concatenate([forward[-1], backward[0]])
        first = dy.tanh(self.W_first * last)
        return Encoded(columns, self.W_read * columns), self.decoder.initial_state([first])

    def attend(self, encoded: Encoded, state: dy.Expression) -> dy.Expression:
        """Return the mean of what was read, weighed by how much each symbol matters in this state."""
        relevance = self.v * dy.tanh(dy.colwise_add(encoded.projected, self.W_state * state))  # (1, n)
        return encoded.columns * dy.softmax(dy.transpose(relevance))

    def scores(self, encoded: Encoded, output: dy.Expression) -> dy.Expression:
        """Return the scores of all letters to come next, for an output of the decoder."""
        joined = dy.concatenate([output, self.attend(encoded, output)])
        hidden = dy.tanh(dy.affine_transform([self.b_hidden, self.W_hidden, joined]))
        return dy.affine_transform([self.b, self.W, self.drop(hidden)])

    def loss(self, pairs: list[Pair]) -> dy.Expression:
        """Return the loss of a minibatch, summed over the letters."""
        losses = []
        for source, target in pairs:
            letters = [self.outputs[letter] for letter in target]
            encoded, state = self.encode(source)
            inputs = [self.drop(self.output_vectors[letter]) for letter in [END, *letters]]
            for output, letter in zip(state.transduce(inputs), [*letters, END]):
                losses.append(dy.pickneglogsoftmax(self.scores(encoded, output), letter))
        return dy.esum(losses)

    # -- decoding --------------------------------------------------------------------------------

    def write(self, letters: list[int]) -> str:
        return "".join(self.spec["outputs"][letter - 2] for letter in letters if letter > UNKNOWN)

    def step(self, encoded: Encoded, hypothesis: Hypothesis) -> tuple[dy.RNNState, dy.Expression]:
        """Give the decoder the last letter; return its next state and the log probabilities of the next letter."""
        last = hypothesis.letters[-1] if hypothesis.letters else END
        state = hypothesis.state.add_input(self.output_vectors[last])
        return state, dy.log_softmax(self.scores(encoded, state.output()))

    def greedy(self, sources: list[list[str]]) -> list[str]:
        """Take the best letter at each step.  All words go on in step, so that they can be batched."""
        dy.renew_cg(forward_only=True)
        encoded, states = zip(*map(self.encode, sources))
        found = [Hypothesis([], 0.0, state) for state in states]
        running = list(range(len(sources)))
        for _ in range(max(map(longest, sources))):
            steps = [self.step(encoded[i], found[i]) for i in running]
            dy.forward([scores for _, scores in steps])  # all at once
            for i, (state, scores) in zip(running, steps):
                values = scores.npvalue()
                letter = int(values.argmax())
                found[i] = Hypothesis([*found[i].letters, letter], found[i].score + values[letter], state)
            running = [i for i in running if found[i].letters[-1] != END]
            if not running:
                break
        return [self.write(hypothesis.letters) for hypothesis in found]

    def beam(self, source: list[str], width: int) -> str:
        """Keep the `width` most probable beginnings at each step; return the most probable whole word."""
        dy.renew_cg(forward_only=True)
        encoded, state = self.encode(source)
        beginnings = [Hypothesis([], 0.0, state)]
        ended: list[Hypothesis] = []
        for _ in range(longest(source)):
            steps = [self.step(encoded, hypothesis) for hypothesis in beginnings]
            dy.forward([scores for _, scores in steps])
            candidates = []
            for hypothesis, (state, scores) in zip(beginnings, steps):
                values = scores.npvalue()
                for letter in np.argsort(-values)[:width].tolist():
                    letters = [*hypothesis.letters, letter]
                    candidates.append(Hypothesis(letters, hypothesis.score + float(values[letter]), state))
            candidates.sort(key=lambda candidate: -candidate.score)
            ended += [candidate for candidate in candidates[:width] if candidate.letters[-1] == END]
            beginnings = [candidate for candidate in candidates[:width] if candidate.letters[-1] != END]
            best = max((hypothesis.score for hypothesis in ended), default=float("-inf"))
            beginnings = [candidate for candidate in beginnings if candidate.score > best]  # scores only fall
            if not beginnings:
                break
        return self.write(max(ended or beginnings, key=lambda hypothesis: hypothesis.score).letters)


def longest(source: list[str]) -> int:
    """How long an output may become."""
    return 2 * len(source) + 10


# -- training ------------------------------------------------------------------------------------


def new_inflector(pairs: list[Pair], args: argparse.Namespace) -> Inflector:
    spec = {
        "inputs": sorted({symbol for source, _ in pairs for symbol in source}),
        "outputs": sorted({letter for _, target in pairs for letter in target}),
    }
    spec.update({name: getattr(args, name) for name in ("dim", "hidden", "attention", "dropout")})
    return Inflector(spec)


def accuracy(inflector: Inflector, pairs: list[Pair], width: int) -> float:
    """Return the share of the words that come out right, to the last letter; width 1 decodes greedily."""
    right = 0
    for batch in batches(pairs, 64):
        sources = [source for source, _ in batch]
        found = inflector.greedy(sources) if width == 1 else [inflector.beam(source, width) for source in sources]
        right += sum(guess == "".join(target) for guess, (_, target) in zip(found, batch))
    return right / len(pairs)


def train(inflector: Inflector, training: list[Pair], dev: list[Pair], args: argparse.Namespace) -> None:
    """Train for all epochs; save after each that is the best so far."""
    trainer = dy.AdamTrainer(inflector.pc, alpha=args.learning_rate)
    order = random.Random(args.seed)
    training = list(training)
    best, done = -1.0, 0
    for epoch in range(1, args.epochs + 1):
        order.shuffle(training)
        inflector.training = True
        summed, letters, start = 0.0, 0, time.perf_counter()
        with tqdm(total=len(training), desc=f"epoch {epoch}", unit="pair", leave=False, disable=None) as bar:
            for batch in batches(training, args.batch):
                trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * len(training)))
                done += len(batch)
                dy.renew_cg()
                count = sum(len(target) + 1 for _, target in batch)
                loss = inflector.loss(batch) / count
                value = loss.scalar_value()
                loss.backward()
                trainer.update()
                summed += value * count
                letters += count
                bar.set_postfix(loss=f"{value:.3f}", refresh=False)
                bar.update(len(batch))
        seconds = time.perf_counter() - start
        inflector.training = False
        right = accuracy(inflector, dev, width=1)
        print(
            f"epoch {epoch}: loss {summed / letters:.4f}, {seconds:.1f} s, {len(training) / seconds:.0f} pairs/s, "
            f"dev accuracy {right:.2%}",
            flush=True,
        )
        if right > best:
            best = right
            save_model(args.model, inflector.spec, inflector.pc)


# -- command line --------------------------------------------------------------------------------


def load(folder: Path) -> Inflector:
    spec, weights = load_spec(folder)
    inflector = Inflector(spec)
    inflector.pc.populate(weights)
    return inflector


def train_command(args: argparse.Namespace) -> None:
    if args.train:
        training = read_tsv(args.train)
        dev = read_tsv(args.dev) if args.dev else training[::10]
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
    for (source, target), guess in zip(dev[:5], inflector.greedy([source for source, _ in dev[:5]])):
        print(f"{' '.join(source)} -> {guess}" + ("" if guess == "".join(target) else f" (not {''.join(target)})"))


def inflect_command(args: argparse.Namespace) -> None:
    inflector = load(args.model)
    for line in sys.stdin:
        lemma, _, tags = line.strip().rpartition(" ")
        if not lemma:
            raise ValueError(f"expected a word and its tags, as in: swim V;PST, not {line.strip()!r}")
        print(inflector.beam(make_pair(lemma, "", tags)[0], args.beam), flush=True)


def parse(argv: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Learn to inflect words, or inflect some.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "inflect"], default="train")
    add("--train", type=Path, metavar="FILE", help="lemma, form, tags with tabs between, plain or .gz")
    add("--dev", type=Path, metavar="FILE", help="else every tenth pair of the training file")
    add("--pairs", type=int, default=8000, help="without --train: this many of lemminflect's English pairs")
    add("--model", type=Path, metavar="DIR", default=Path("runs/seq2seq"))
    add("--epochs", type=int, default=12, help="the learning rate falls to 0 over them")
    add("--batch", type=int, default=16, help="pairs in a minibatch")
    add("--dim", type=int, default=64, help="of the vectors looked up")
    add("--hidden", type=int, default=128, help="of each LSTM")
    add("--attention", type=int, default=64, help="hidden units of the attention's MLP")
    add("--dropout", type=float, default=0.2)
    add("--learning-rate", type=float, default=0.002)
    add("--beam", type=int, default=5, help="width of the beam search")
    add("--no-autobatch", dest="autobatch", action="store_false", help="run node by node")
    add_engine_options(parser)
    return parser.parse_args(argv)


def main() -> None:
    global dy
    args = parse(sys.argv[1:])
    dy = import_engine(args, args.autobatch)
    try:
        (train_command if args.command == "train" else inflect_command)(args)
    except (OSError, ValueError) as error:
        sys.exit(f"seq2seq.py: {error}")
    except KeyboardInterrupt:
        sys.exit("seq2seq.py: interrupted")


if __name__ == "__main__":
    main()
