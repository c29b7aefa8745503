"""An encoder and a decoder with attention: learns to inflect words, letter by letter.

    python seq2seq.py                                          # English: "V;PST think" -> "thought"
    python seq2seq.py --train finnish-train-high --dev finnish-dev     # files of SIGMORPHON 2017
    python seq2seq.py --sampling 0.5                           # learn from its own letters too
    echo "swim V;PST" | python seq2seq.py inflect              # use the model: one word and its tags per line
    echo "swim V;PST" | python seq2seq.py inflect --words FILE # output only words of the file

A BiLSTM reads the tags and the letters of the dictionary form.  An LSTM writes the inflected form; before each
letter it attends to all of the input, with weights from a small MLP (Bahdanau, Cho, Bengio 2015).

Decoding reads values midway and continues the same graph.  The hypotheses of a beam search are the batch elements of
one state of the LSTM, and attend to the same columns.  The code is written for one word; `batched_map` runs many side
by side, whose lengths differ.
"""

from __future__ import annotations

import argparse
import random
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline

Pair = tuple[list[str], list[str]]  # tags and letters of the dictionary form; letters of the inflected form
END, UNKNOWN = 0, 1  # the ids of the end of a word (also its beginning), and of unknown letters and tags

SIZES = {
    "dim": 64,  # of the embeddings
    "hidden": 128,  # units of each LSTM
    "attention": 64,  # hidden units of the attention MLP
    "dropout": 0.2,
}


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

    def step(self, encoded: Encoded, state: dy.RNNState, last: np.ndarray) -> tuple[dy.RNNState, dy.Expression]:
        """Give the decoder the last letter of each hypothesis; return its next state and the scores of all letters."""
        state = state.add_input(dy.lookup_batch(self.output_vectors, last))
        return state, self.scores(encoded, state.output())

    def inflect_one(self, source: list[str], width: int, allowed: dy.OneOf | None) -> str:
        """Return the most probable word that a beam search finds; a width of 1 takes the best letter each time."""
        encoded, state = self.encode(source)
        longest = 2 * len(source) + 10
        found = dy.beam_search(partial(self.step, encoded), state, width, longest, END, allowed, logits=True)
        return "".join(self.spec["outputs"][letter - 2] for letter in found.tokens if letter > UNKNOWN)

    def inflect(self, sources: list[list[str]], width: int = 1, words: list[str] | None = None) -> list[str]:
        """Return an output for each source; with a list of words, one of these (constrained decoding)."""
        dy.renew_cg(forward_only=True)
        allowed = None
        if words is not None:
            allowed = dy.OneOf(([self.outputs[x] for x in word] for word in words if self.can_write(word)), END)
        return dy.batched_map(lambda source: self.inflect_one(source, width, allowed), sources)

    def can_write(self, word: str) -> bool:
        return all(letter in self.outputs for letter in word)


def train(inflector: Inflector, pairs: list[Pair], dev: list[Pair], args: argparse.Namespace) -> None:
    trainer = dy.AdamTrainer(inflector.pc)
    data = dy.data.batches(pairs, args.batch, shuffle=True, seed=args.seed)
    training = commandline.training(args, inflector.pc, data, extra=inflector.spec, unit="letters")
    for epoch in training:
        inflector.training = True
        for batch in epoch:
            trainer.learning_rate = args.learning_rate * (1 - training.done)
            inflector.sampling = args.sampling * training.done
            letters = sum(len(target) + 1 for _, target in batch)
            dy.renew_cg()
            loss = inflector.loss(batch) / letters
            epoch.add(loss.value(), letters)
            loss.backward()
            trainer.update()
        inflector.training = False
        epoch.report(accuracy=accuracy(inflector, dev, width=1))


def accuracy(inflector: Inflector, pairs: list[Pair], width: int) -> float:
    """Return the share of the words that are right to the last letter."""
    found = dy.data.map_batches(lambda sources: inflector.inflect(sources, width), [source for source, _ in pairs])
    return dy.metrics.accuracy(found, ["".join(target) for _, target in pairs])


def train_command(args: argparse.Namespace) -> None:
    reads = dy.data.read_inflections
    pairs, dev = commandline.read_data(args, reads) if args.train else dy.data.english_inflections(args.pairs)
    inputs = sorted({symbol for source, _ in pairs for symbol in source})
    outputs = sorted({letter for _, target in pairs for letter in target})
    inflector = Inflector({"inputs": inputs, "outputs": outputs, "seed": args.seed, **args.sizes})
    print(f"{len(pairs)} training and {len(dev)} dev pairs, {len(outputs)} letters")
    train(inflector, pairs, dev, args)
    inflector = dy.load_network(args.model, Inflector)
    start, right = time.perf_counter(), accuracy(inflector, dev, args.beam)
    print(f"best model, beam of {args.beam}: dev accuracy {right:.2%} in {time.perf_counter() - start:.1f} s")
    for (source, target), guess in zip(dev[:5], inflector.inflect([source for source, _ in dev[:5]])):
        print(f"{' '.join(source)} -> {guess}" + ("" if guess == "".join(target) else f" (not {''.join(target)})"))


def inflect_command(args: argparse.Namespace) -> None:
    inflector = dy.load_network(args.model, Inflector)
    words = args.words.read_text(encoding="utf-8").split() if args.words else None
    if words is not None and not any(map(inflector.can_write, words)):
        raise ValueError(f"{args.words}: no word of letters that the model knows")
    for lines in commandline.input_lines(args.file):
        for lemma, _, tags in (line.strip().rpartition(" ") for line in lines):
            if not lemma:
                raise ValueError(f"expected a word and its tags, as in: swim V;PST, not {tags!r}")
            source = [*(f"<{tag}>" for tag in tags.split(";")), *lemma]
            print(*inflector.inflect([source], args.beam, words), flush=True)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Learn to inflect words, or inflect some.",
        data="lemma, form, tags with tabs between, plain or .gz; else English ones of lemminflect",
        command="inflect",
        file="a word and its tags on each line",
        epochs=12,
        batch=16,
        learning_rate=0.002,  # falls to 0
        sizes=SIZES,
    )
    add = parser.add_argument
    add("--pairs", type=int, default=8000, help="without --train: this many of lemminflect's English pairs")
    add("--sampling", type=float, default=0.0, help="probability that the decoder reads its own letter, at the end")
    add("--beam", type=int, default=5, help="width of the beam search")
    add("--words", type=Path, metavar="FILE", help="inflect: output only words of this file")
    parser.run(lambda args: (train_command if args.command == "train" else inflect_command)(args))
