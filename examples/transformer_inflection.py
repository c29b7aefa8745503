"""An encoder and a decoder made of Transformers: learns to inflect words, letter by letter.

    python transformer_inflection.py                           # English: "V;PST think" -> "thought"
    python transformer_inflection.py --train finnish-train-high --dev finnish-dev  # files of SIGMORPHON 2017
    echo "swim V;PST" | python transformer_inflection.py inflect   # use the model: one word and its tags per line

The encoder reads the tags and the letters of the dictionary form; the decoder writes the inflected form, and attends to
what the encoder has read.  In training it gets the right letters at once: causal attention hides those that it has to
predict.  In use it writes letter by letter.  Its state is the keys and values of the letters before, and the hypotheses
of a beam search are its batch elements.  The code is written for one word, without padding and masks; the engine runs
many side by side.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline, nn

Pair = tuple[list[str], list[str]]  # tags and letters of the dictionary form; letters of the inflected form
END, UNKNOWN = 0, 1  # the ids of the end of a word (also its beginning), and of unknown letters and tags

SIZES = {
    "layers": 2,  # of the encoder, and of the decoder
    "dim": 96,  # length of the vector of a letter
    "heads": 4,
    "hidden": 256,  # units in the linear layers after attention
    "dropout": 0.1,
}


class Inflector(nn.Layer):
    """The network.  `sizes` holds everything needed to build it again, except the weights."""

    def __init__(self, sizes: dict) -> None:
        super().__init__(dy.ParameterCollection(), (sizes,))
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

    def step(self, state: nn.DecoderState, last: np.ndarray) -> tuple[nn.DecoderState, dy.Expression]:
        """Give the decoder the last letter of each hypothesis; return its next state and the scores of all letters."""
        y, state = self.decoder.step(dy.lookup_batch(self.output_vectors.table, last), state)
        return state, self.out(y)

    def inflect_one(self, source: list[str], width: int) -> str:
        """Return the most probable word that a beam search finds; a width of 1 takes the best letter each time."""
        start, longest = self.decoder.start(self.encode(source)), 2 * len(source) + 10
        letters = dy.beam_search(self.step, start, width, longest, END, logits=True).tokens
        return "".join(self.sizes["outputs"][letter - 2] for letter in letters if letter > UNKNOWN)

    def inflect(self, sources: list[list[str]], width: int = 1) -> list[str]:
        """Return an output for each source."""
        dy.renew_cg(forward_only=True)
        return dy.batched_map(lambda source: self.inflect_one(source, width), sources)


def train(inflector: Inflector, pairs: list[Pair], dev: list[Pair], args: argparse.Namespace) -> None:
    trainer = dy.AdamTrainer(inflector.collection, args.learning_rate)
    trainer.set_clip_threshold(1.0)
    data = dy.data.batches(pairs, args.batch, shuffle=True, seed=args.seed)
    updates, rising = args.epochs * len(data), max(1, round(args.warmup * args.epochs * len(data)))
    trainer.schedule = dy.WarmupSchedule(rising, then=dy.LinearSchedule(updates - rising))
    for epoch in commandline.training(args, inflector.collection, data, extra=inflector.sizes, unit="letters"):
        inflector.train()
        for batch in epoch:
            letters = sum(len(target) + 1 for _, target in batch)
            dy.renew_cg()
            loss = dy.esum([inflector.loss(pair) for pair in batch]) / letters
            epoch.add(loss.value(), letters)
            loss.backward()
            trainer.update()
        inflector.eval()
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
    inflector = dy.load_network(args.model, Inflector).eval()
    start, right = time.perf_counter(), accuracy(inflector, dev, args.beam)
    print(f"best model, beam of {args.beam}: dev accuracy {right:.2%} in {time.perf_counter() - start:.1f} s")
    for (source, target), guess in zip(dev[:5], inflector.inflect([source for source, _ in dev[:5]])):
        print(f"{' '.join(source)} -> {guess}" + ("" if guess == "".join(target) else f" (not {''.join(target)})"))


def inflect_command(args: argparse.Namespace) -> None:
    inflector = dy.load_network(args.model, Inflector).eval()
    for lines in commandline.input_lines(args.file):
        for lemma, _, tags in (line.strip().rpartition(" ") for line in lines):
            if not lemma:
                raise ValueError(f"expected a word and its tags, as in: swim V;PST, not {tags!r}")
            source = [*(f"<{tag}>" for tag in tags.split(";")), *lemma]
            print(*inflector.inflect([source], args.beam), flush=True)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Learn to inflect words, or inflect some.",
        data="lemma, form, tags with tabs between, plain or .gz; else English ones of lemminflect",
        command="inflect",
        file="a word and its tags on each line",
        epochs=12,
        batch=32,
        learning_rate=0.002,  # the greatest
        sizes=SIZES,
    )
    add = parser.add_argument
    add("--pairs", type=int, default=8000, help="without --train: this many of lemminflect's English pairs")
    add("--warmup", type=float, default=0.1, help="the fraction of training in which the learning rate rises")
    add("--beam", type=int, default=5, help="width of the beam search")
    parser.run(lambda args: (train_command if args.command == "train" else inflect_command)(args))
