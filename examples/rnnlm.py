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
from collections import Counter
from pathlib import Path

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline

END, UNKNOWN = 0, 1  # the ids of the end of a sentence (also its beginning), and of all rare words

SIZES = {
    "dim": 128,  # of the embeddings
    "hidden": 256,
    "layers": 1,
    "dropout": 0.3,
}


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

    def step(self, state: dy.RNNState, tokens: np.ndarray) -> tuple[dy.RNNState, dy.Expression]:
        """Read a token of each sentence that is being written; return the next state and the scores of all tokens."""
        state = state.add_input(dy.lookup_batch(self.vectors, tokens))
        return state, self.scores(state.output())

    def sample(self, count: int, longest: int = 60) -> list[str]:
        """Draw sentences: each token is drawn from the distribution that the network gives, and is its next input."""
        options = {"begin": [END] * count, "temperature": 1.0, "forbidden": [UNKNOWN]}
        return [self.write(tokens) for tokens in dy.decode(self.step, self.start(False), END, longest, **options)]

    def best(self, beginnings: list[list[str]], width: int, longest: int = 60) -> list[str]:
        """Return the most probable sentences with these beginnings that a beam search finds, without unknown words, and
        without the same three words in two places."""
        prefixes = [self.encode(beginning)[:-1] for beginning in beginnings]
        options = {"prefix": prefixes, "forbidden": [UNKNOWN], "no_repeat_ngram": 3, "logits": True}
        begin = [END] * len(prefixes)
        found = dy.beam_search(self.step, self.start(False), width, longest, END, begin=begin, **options)
        return [self.write(sentence.tokens) for sentence in found]


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


def train(model: LanguageModel, sentences: list[list[int]], dev: list[list[int]], args: argparse.Namespace) -> None:
    """Train for all epochs; halve the learning rate after an epoch that is not better, save after one that is."""
    trainer = dy.AdamTrainer(model.pc, args.learning_rate)
    loss_of = model.loss_auto if args.batching == "auto" else model.loss_manual
    data = minibatches(sentences, args.batch, args.seed)
    options = {"extra": model.spec, "unit": f"{args.unit}s", "mode": "min", "shown": ".2f"}
    for epoch in commandline.training(args, model.pc, data, **options):
        for batch in epoch:
            tokens = sum(map(len, batch))
            dy.renew_cg()
            loss = loss_of(batch, training=True) / tokens
            epoch.add(loss.value(), tokens)
            loss.backward()
            trainer.update()
        if not epoch.report(perplexity=perplexity(model, dev, args)):
            trainer.learning_rate /= 2


def read_text(path: Path) -> list[list[str]]:
    """Return the words of each line that is not empty, of plain text or gzipped."""
    sentences = [words for words in map(str.split, dy.data.lines(path)) if words]
    if not sentences:
        raise ValueError(f"{path}: no words")
    return sentences


def turkish_sentences() -> list[list[str]]:
    """Return the words of the two Turkish treebanks of the package turkish-treebanks."""
    print("learning from Turkish sentences (package turkish-treebanks); --train FILE takes text of any language")
    paths = [dy.data.installed("turkish-treebanks", name) for name in ("web.conllu", "wiki.conllu")]
    return [sentence.form for path in paths for sentence in dy.data.read_conllu(path)]


def main(args: argparse.Namespace) -> None:
    sentences, dev = commandline.read_data(args, read_text, turkish_sentences)
    if args.unit == "letter":
        sentences, dev = ([list(" ".join(words)) for words in part] for part in (sentences, dev))
    counts = Counter(token for sentence in sentences for token in sentence)
    vocabulary = [token for token, count in counts.items() if count > args.rare]
    model = LanguageModel({"vocabulary": vocabulary, "unit": args.unit, **args.sizes})
    unknown = sum(token not in model.ids for sentence in dev for token in sentence) / sum(map(len, dev))
    print(
        f"{args.batching} batching: {len(sentences)} training and {len(dev)} dev sentences, "
        f"{len(model.ids)} {args.unit}s in the vocabulary, {unknown:.1%} of dev unknown"
    )
    train(model, [model.encode(s) for s in sentences], [model.encode(s) for s in dev], args)
    model = dy.load_network(args.model, LanguageModel)
    dy.renew_cg(forward_only=True)
    for sample in model.sample(args.samples):
        print("sample:", sample)
    for sentence in model.best([sentence[:2] for sentence in dev[: args.samples]], args.beam):
        print("best:", sentence)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a language model.",
        data="text, one sentence per line, plain or .gz; else turkish-treebanks",
        epochs=8,
        batch=32,
        learning_rate=0.002,
        sizes=SIZES,
    )
    add = parser.add_argument
    add("--unit", choices=["word", "letter"], default="word", help="what to predict")
    add("--batching", choices=["auto", "manual"], default="auto")
    add("--rare", type=int, default=1, help="words that occur this often or less are unknown words")
    add("--samples", type=int, default=3, help="sentences to draw from the model at the end")
    add("--beam", type=int, default=4, help="width of the beam search that continues beginnings of dev sentences")
    parser.run(main)
