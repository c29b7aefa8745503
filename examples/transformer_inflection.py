"""An encoder and a decoder made of Transformers: learns to inflect words, letter by letter.

    python transformer_inflection.py                           # English: "V;PST think" -> "thought"
    python transformer_inflection.py --train finnish-train-high --dev finnish-dev  # files of SIGMORPHON 2017
    echo "swim V;PST" | python transformer_inflection.py inflect   # use the model: one word and its tags per line

The encoder reads the tags and the letters of the dictionary form; the decoder writes the inflected form, and attends to
what the encoder has read.  In training it gets the right letters, all at once: causal attention hides those that
it has to predict.  In use it writes letter by letter.  Its state has the keys and values of the letters before, and
is never changed, so a beam search can continue from one state with several letters.

The code is written for one word and one hypothesis, without padding and masks; the engine runs many side by side.  The
task and the data are those of seq2seq.py, which uses LSTMs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config, nn
from dynet_cy.curves import Curves

Pair = tuple[list[str], list[str]]  # tags and letters of the dictionary form; letters of the inflected form
END, UNKNOWN = 0, 1  # the ids of the end of a word (also its beginning), and of unknown letters and tags


# -- the network ---------------------------------------------------------------------------------


class Inflector(nn.Layer):
    """The network.  `sizes` holds everything needed to build it again, except the weights."""

    def __init__(self, sizes: dict, model: dy.ParameterCollection) -> None:
        super().__init__(model, (sizes,))
        self.sizes = sizes
        self.inputs = {symbol: i for i, symbol in enumerate(sizes["inputs"], start=2)}
        self.outputs = {letter: i for i, letter in enumerate(sizes["outputs"], start=2)}
        dim, pc = sizes["dim"], self.collection
        shape = (sizes["layers"], dim, sizes["heads"], sizes["hidden"], pc)
        options = {"dropout": sizes["dropout"], "norm_first": True, "positions": "relative", "max_distance": 16}
        self.input_vectors = nn.Embedding(len(self.inputs) + 2, dim, pc)
        self.output_vectors = nn.Embedding(len(self.outputs) + 2, dim, pc)
        self.dropout = nn.Dropout(sizes["dropout"])
        self.encoder = nn.TransformerEncoder(*shape, **options)
        self.decoder = nn.TransformerDecoder(*shape, **options)
        self.out = nn.Linear(dim, len(self.outputs) + 2, pc)

    def encode(self, source: list[str]) -> dy.Expression:
        """Encode the source: a column for each symbol, which has attended to all of them."""
        ids = [self.inputs.get(symbol, UNKNOWN) for symbol in source]
        return self.encoder(self.dropout(self.input_vectors(ids)))

    def loss(self, pair: Pair) -> dy.Expression:
        """Return the loss of a pair, summed over the letters of the inflected form."""
        source, target = pair
        right = [*(self.outputs[letter] for letter in target), END]
        given = self.dropout(self.output_vectors([END, *right[:-1]]))
        scores = self.out(self.decoder(given, self.encode(source)))
        # The columns of a word as a batch: one loss for each.
        scores = dy.reshape(scores, (len(self.outputs) + 2,), len(right))
        return dy.sum_batches(dy.pickneglogsoftmax_batch(scores, right))

    # -- decoding --------------------------------------------------------------------------------

    def step(self, state: nn.DecoderState, last: int) -> tuple[nn.DecoderState, dy.Expression]:
        """Give the decoder the last letter; return its next state and the log probabilities of the next letter."""
        y, state = self.decoder.step(self.output_vectors(last), state)
        return state, dy.log_softmax(self.out(y))

    def inflect_one(self, source: list[str], width: int) -> str:
        """Return the most probable word that a beam search finds; a width of 1 takes the best letter each time."""
        letters = search(self.decoder.start(self.encode(source)), self.step, width, 2 * len(source) + 10).tokens
        return "".join(self.sizes["outputs"][letter - 2] for letter in letters if letter > UNKNOWN)

    def inflect(self, sources: list[list[str]], width: int = 1) -> list[str]:
        """Return an output for each source."""
        dy.renew_cg(forward_only=True)
        return dy.batched_map(lambda source: self.inflect_one(source, width), sources)


# -- beam search ---------------------------------------------------------------------------------


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
) -> Hypothesis:
    """Keep the `width` most probable partial outputs at each step; return the most probable complete one.

    `step(state, token)` lets a state read a token, END at first, and returns the next state and an expression
    with the log probabilities of the tokens to come.  The steps of all hypotheses, and those of other searches that
    run in the same `batched_map`, are computed together.
    """

    def expand(hypothesis: Hypothesis) -> list[Hypothesis]:
        state, scores = step(hypothesis.state, hypothesis.tokens[-1] if hypothesis.tokens else END)
        values = scores.npvalue()
        best = np.argsort(-values, kind="stable")[:width].tolist()
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


def learning_rate(done: float, args: argparse.Namespace) -> float:
    """The rate after a share of the training: it rises linearly, then falls linearly to 0."""
    return args.learning_rate * min(done / args.warmup, (1 - done) / (1 - args.warmup))


def accuracy(inflector: Inflector, pairs: list[Pair], width: int) -> float:
    """Return the share of the words that are right to the last letter."""
    right = 0
    for batch in dy.data.batches(pairs, 64):
        found = inflector.inflect([source for source, _ in batch], width)
        right += sum(guess == "".join(target) for guess, (_, target) in zip(found, batch))
    return right / len(pairs)


def train(inflector: Inflector, training: list[Pair], dev: list[Pair], args: argparse.Namespace) -> None:
    """Train for all epochs; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(inflector.param_collection())
    trainer.set_clip_threshold(1.0)
    data = dy.data.batches(training, args.batch, shuffle=True, seed=args.seed)
    done = 0
    args.model.parent.mkdir(parents=True, exist_ok=True)
    best = dy.EarlyStopping(inflector.param_collection(), path=args.model)  # saves the best model; nothing is stopped
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            inflector.train()
            summed, letters, start = 0.0, 0, time.perf_counter()
            for batch in tqdm(data, desc=f"epoch {epoch}", unit=" batches", leave=False, disable=None):
                done += len(batch)
                trainer.learning_rate = learning_rate(done / (args.epochs * len(training) + 1), args)
                dy.renew_cg()
                count = sum(len(target) + 1 for _, target in batch)
                loss = dy.esum([inflector.loss(pair) for pair in batch]) / count
                summed += loss.value() * count
                letters += count
                loss.backward()
                trainer.update()
            seconds = time.perf_counter() - start
            inflector.eval()
            right = accuracy(inflector, dev, width=1)
            curves.add(epoch, loss=summed / letters, accuracy=right)
            speed = f"{seconds:.1f} s, {len(training) / seconds:.0f} pairs/s"
            print(f"epoch {epoch}: loss {summed / letters:.4f}, {speed}, dev accuracy {right:.2%}", flush=True)
            best.report(right, extra=inflector.sizes)


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


def new_sizes(pairs: list[Pair], args: argparse.Namespace) -> dict:
    """Collect the symbols, and the sizes given on the command line."""
    return {
        "inputs": sorted({symbol for source, _ in pairs for symbol in source}),
        "outputs": sorted({letter for _, target in pairs for letter in target}),
        **{name: getattr(args, name) for name in ("dim", "heads", "hidden", "layers", "dropout")},
    }


def load(path: Path) -> Inflector:
    """Build the network that was saved, and read its weights."""
    try:
        inflector = Inflector(dy.read_extra(path), dy.ParameterCollection())
    except KeyError as error:
        raise ValueError(f"{path}: the model of another program: it has no {error}") from error
    dy.load_safetensors(path, inflector.param_collection())
    return inflector.eval()


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
    inflector = Inflector(new_sizes(training, args), dy.ParameterCollection())
    parameters = inflector.param_collection().parameter_count()
    print(
        f"{len(training)} training and {len(dev)} dev pairs, {len(inflector.outputs)} letters, {parameters} parameters"
    )
    train(inflector, training, dev, args)
    inflector = load(args.model)
    start = time.perf_counter()
    right = accuracy(inflector, dev, args.beam)
    print(f"best model, beam of {args.beam}: dev accuracy {right:.2%} in {time.perf_counter() - start:.1f} s")
    for (source, target), guess in zip(dev[:5], inflector.inflect([source for source, _ in dev[:5]])):
        print(f"{' '.join(source)} -> {guess}" + ("" if guess == "".join(target) else f" (not {''.join(target)})"))


def inflect_command(args: argparse.Namespace) -> None:
    inflector = load(args.model)
    for line in sys.stdin:
        lemma, _, tags = line.strip().rpartition(" ")
        if not lemma:
            raise ValueError(f"expected a word and its tags, as in: swim V;PST, not {line.strip()!r}")
        print(*inflector.inflect([make_pair(lemma, "", tags)[0]], args.beam), flush=True)


def parse(argv: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Learn to inflect words, or inflect some.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "inflect"], default="train")
    add("--train", type=Path, metavar="FILE", help="lemma, form, tags with tabs between, plain or .gz")
    add("--dev", type=Path, metavar="FILE", help="else every tenth pair of the training file")
    add("--pairs", type=int, default=8000, help="without --train: this many of lemminflect's English pairs")
    add("--model", type=Path, metavar="FILE", default=Path("runs/transformer_inflection.safetensors"))
    add("--epochs", type=int, default=12)
    add("--batch", type=int, default=32, help="pairs in a minibatch")
    add("--layers", type=int, default=2, help="of the encoder, and of the decoder")
    add("--dim", type=int, default=96, help="length of the vector of a letter")
    add("--heads", type=int, default=4)
    add("--hidden", type=int, default=256, help="units in the linear layers after attention")
    add("--dropout", type=float, default=0.1)
    add("--learning-rate", type=float, default=0.002, help="the greatest")
    add("--warmup", type=float, default=0.1, help="the fraction of training in which the learning rate rises")
    add("--beam", type=int, default=5, help="width of the beam search")
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
        sys.exit(f"transformer_inflection.py: {error}")
    except KeyboardInterrupt:
        sys.exit("transformer_inflection.py: interrupted")


if __name__ == "__main__":
    main()
