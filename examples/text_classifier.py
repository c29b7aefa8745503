"""A text classifier on pretrained word vectors: convolutions over the words of a text, and their maxima.

    python text_classifier.py                                  # Turkish sentences: from the web, or from Wikipedia?
    python text_classifier.py --vectors cc.tr.300.vec.gz       # the same with fastText's vectors
    python text_classifier.py --train reviews.tsv              # a label, a tab and a text on each line
    echo "what a film" | python text_classifier.py classify    # label text: one per line, split into words

The network is that of Kim, "Convolutional neural networks for sentence classification" (EMNLP 2014), made of layers
(dy.nn) and written for one text, a matrix with a column for each word.  A minibatch is the sum of the losses of its
texts, which the engine computes together, whatever their lengths.

Vectors may come from word2vec, fastText or GloVe, see `dy.data.read_vectors`.  They are not trained, so that the
vectors of words that are not in the training texts still fit the others; `--tune` trains them too.  Without
`--vectors` they begin with random numbers and are trained.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np
from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config, nn
from dynet_cy.curves import Curves
from dynet_cy.data import Vocabulary, WordVectors, read_labelled, read_vectors

Text = tuple[list[str], str]  # its words, and its label

UNKNOWN = ""  # stands for all words outside the vocabulary; its number is 0


class Classifier(nn.Layer):
    """The network.  `sizes` holds everything needed to build it again, except the weights."""

    def __init__(self, sizes: dict, model: dy.ParameterCollection, vectors: WordVectors | None = None) -> None:
        super().__init__(model, (sizes,))
        self.sizes = sizes
        self.labels = Vocabulary(sizes["labels"], unknown=None)
        self.words = Vocabulary(sizes["words"], unknown=UNKNOWN)
        pc, dim, filters = self.collection, sizes["dim"], sizes["filters"]
        if vectors is None:
            self.embed = nn.Embedding(len(self.words), dim, pc, frozen=sizes["frozen"])
        else:
            self.embed = vectors.embedding(pc, self.words.words, frozen=sizes["frozen"])
        self.convolve = nn.LayerList([(nn.Conv1d, dim, filters, width, 1, "same") for width in sizes["widths"]], pc)
        self.dropout = nn.Dropout(sizes["dropout"])
        self.out = nn.Linear(filters * len(sizes["widths"]), len(self.labels), pc)

    def __call__(self, words: list[str]) -> dy.Expression:
        """Return the scores of all labels."""
        x = self.embed([self.words[word if word in self.words else word.lower()] for word in words or [UNKNOWN]])
        found = [dy.rectify(convolve(x)) for convolve in self.convolve]  # a column for each word
        greatest = dy.concatenate([dy.max_dim(dy.reshape(f, (-1, len(words or [UNKNOWN]))), 1) for f in found])
        return self.out(self.dropout(greatest))

    def loss(self, texts: list[Text]) -> dy.Expression:
        """Return the mean loss of a minibatch."""
        return dy.average([dy.pickneglogsoftmax(self(words), self.labels[label]) for words, label in texts])

    def classify(self, texts: list[list[str]]) -> list[str]:
        """Return the best label of each text."""
        dy.renew_cg(forward_only=True)
        scores = [self(words) for words in texts]
        return self.labels.decode(np.argmax(s) for s in dy.npvalues(scores))  # requested together: one batch


# -- training ------------------------------------------------------------------------------------


def train(classifier: Classifier, training: list[Text], dev: list[Text], args: argparse.Namespace) -> None:
    """Train for all epochs, or until several bring no improvement; save the model whenever it is the best so far."""
    data = dy.data.batches(training, args.batch, shuffle=True, seed=args.seed)
    trainer = dy.AdamTrainer(classifier.collection, args.learning_rate)
    trainer.schedule = dy.LinearSchedule(args.epochs * len(data))
    args.model.parent.mkdir(parents=True, exist_ok=True)
    stopping = dy.EarlyStopping(classifier.collection, args.patience, path=args.model)
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            classifier.train()
            summed, start = 0.0, time.perf_counter()
            for batch in tqdm(data, desc=f"epoch {epoch}", unit=" batches", leave=False, disable=None):
                dy.renew_cg()
                loss = classifier.loss(batch)
                summed += loss.value() * len(batch)
                loss.backward()
                trainer.update()
            speed = len(training) / (time.perf_counter() - start)
            classifier.eval()
            score = accuracy(classifier, dev)
            curves.add(epoch, loss=summed / len(training), accuracy=score)
            curves.add_histograms(epoch, classifier.collection, gradients=False)
            numbers = f"loss {summed / len(training):.4f}, {speed:.0f} texts/s, dev accuracy {score:.2%}"
            print(f"epoch {epoch}: {numbers}", flush=True)
            stopping.report(score, extra=classifier.sizes)
            if stopping.stopped:
                print(f"no better for {args.patience} epochs: stopping")
                break
    print(f"best dev accuracy {stopping.best:.2%} after epoch {stopping.best_at}, model saved in {args.model}")


def accuracy(classifier: Classifier, texts: list[Text]) -> float:
    """Return the share of texts whose label is right."""
    right = 0
    for batch in dy.data.batches(texts, 64):
        found = classifier.classify([words for words, _ in batch])
        right += sum(a == label for a, (_, label) in zip(found, batch))
    return right / len(texts)


def load(path: Path) -> Classifier:
    """Build the network that was saved, and read its weights."""
    try:
        classifier = Classifier(dy.read_extra(path), dy.ParameterCollection())
    except KeyError as error:
        raise ValueError(f"{path}: the model of another program: it has no {error}") from error
    dy.load_safetensors(path, classifier.collection)
    return classifier.eval()


def new_sizes(training: list[Text], vectors: WordVectors | None, args: argparse.Namespace) -> dict:
    """Collect the vocabulary and the labels, and the sizes given on the command line."""
    words = Vocabulary((word for words, _ in training for word in words), args.least, unknown=UNKNOWN).words
    if vectors is not None:
        words += tuple(vectors.words[: args.most_vectors])
    return {
        "words": list(dict.fromkeys(words)),
        "labels": sorted({label for _, label in training}),
        "dim": args.dim if vectors is None else vectors.dim,
        "filters": args.filters,
        "widths": args.widths,
        "dropout": args.dropout,
        "frozen": vectors is not None and not args.tune,
    }


# -- data ----------------------------------------------------------------------------------------


def read_texts(path: Path) -> list[Text]:
    """Read a label, a tab and a text from each line; blanks separate words."""
    texts = read_labelled(path)
    if len({label for _, label in texts}) < 2:
        raise ValueError(f"{path}: texts with at least two labels are needed")
    return texts


def default_texts() -> list[Text]:
    """Turkish sentences from the web and from Wikipedia, in the package turkish-treebanks."""
    try:
        files = metadata.files("turkish-treebanks") or []
    except metadata.PackageNotFoundError:
        raise ValueError("no texts: pip install turkish-treebanks, or give some with --train FILE") from None
    print("learning whether a Turkish sentence is from the web or from Wikipedia; --train FILE takes other texts")
    texts = []
    for file in files:
        if file.name in ("web.conllu", "wiki.conllu"):
            lines = dy.data.lines(str(file.locate()))
            texts += [(line[9:].split(), file.name[:-7]) for line in lines if line.startswith("# text = ")]
    return texts


# -- command line --------------------------------------------------------------------------------


def train_command(args: argparse.Namespace) -> None:
    training = read_texts(args.train) if args.train else default_texts()
    if args.dev:
        dev = read_texts(args.dev)
    else:  # every tenth
        training, dev = [text for i, text in enumerate(training) if i % 10], training[::10]
    vectors = None if args.vectors is None else read_vectors(args.vectors)
    classifier = Classifier(new_sizes(training, vectors, args), dy.ParameterCollection(), vectors)
    words = {word for words, _ in training for word in words}
    known = "random vectors"
    if vectors is not None:
        known = f"{sum(word in vectors or word.lower() in vectors for word in words) / len(words):.0%} have vectors"
    print(f"{len(training)} training and {len(dev)} dev texts, {len(words)} words: {known}")
    train(classifier, training, dev, args)
    words, label = dev[0]
    print(f"{load(args.model).classify([words])[0]} (should be {label}): {' '.join(words)}")


def classify_text(classifier: Classifier, file: str) -> None:
    with sys.stdin if file == "-" else open(file, encoding="utf-8") as lines:
        # A user at a terminal wants each answer at once; a file is faster in batches.
        for batch in dy.data.batches(lines, 1 if lines.isatty() else 64):
            for line, label in zip(batch, classifier.classify([line.split() for line in batch])):
                print(f"{label}\t{line.rstrip()}", flush=True)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a text classifier on word vectors, or label text with one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "classify"], default="train")
    add("file", nargs="?", default="-", help="classify: one text per line, split into words; - for standard input")
    add("--train", type=Path, metavar="FILE", help="a label, a tab and a text on each line; else Turkish sentences")
    add("--dev", type=Path, metavar="FILE", help="the same; else every tenth text of the training file")
    add("--vectors", type=Path, metavar="FILE", help="of word2vec, fastText or GloVe; else they are trained")
    add("--tune", action="store_true", help="train the vectors of the file too")
    add("--most-vectors", type=int, default=100000, help="words of the file to keep: the first, most frequent ones")
    add("--least", type=int, default=2, help="a word without a vector that is seen less often is unknown")
    add("--dim", type=int, default=64, help="size of word vectors, without --vectors")
    add("--filters", type=int, default=64, help="filters of each width")
    add("--widths", type=int, nargs="+", default=[3, 4, 5], help="words that a filter sees at once")
    add("--dropout", type=float, default=0.5)
    add("--epochs", type=int, default=10, help="the learning rate falls to 0 over them")
    add("--patience", type=int, default=3, help="epochs without a better score before it stops")
    add("--batch", type=int, default=32, help="texts in a minibatch")
    add("--learning-rate", type=float, default=0.002, help="initial learning rate")
    add("--seed", type=int, default=1)
    add("--model", type=Path, metavar="FILE", default=Path("runs/text_classifier.safetensors"))
    add("--curves", type=Path, metavar="FILE", help="plot loss and score to this file: .svg, .png or .pdf (matplotlib)")
    add("--tensorboard", type=Path, metavar="DIR", help="log them for TensorBoard (tensorboardX)")
    config.add_options(parser)
    return parser.parse_intermixed_args(argv)


def main() -> None:
    args = parse(sys.argv[1:])
    dy.reset_random_seed(args.seed)
    try:
        if args.command == "classify":
            classify_text(load(args.model), args.file)
        else:
            train_command(args)
    except (OSError, ValueError) as error:
        sys.exit(f"text_classifier.py: {error}")
    except KeyboardInterrupt:
        sys.exit("text_classifier.py: interrupted")


if __name__ == "__main__":
    main()
