"""A text classifier on pretrained word vectors, or on a pretrained encoder such as BERT.

    python text_classifier.py                                  # Turkish sentences: from the web, or from Wikipedia?
    python text_classifier.py --vectors cc.tr.300.vec.gz       # the same with fastText's vectors
    python text_classifier.py --train reviews.tsv              # a label, a tab and a text on each line
    python text_classifier.py --train reviews.tsv --encoder minilm --epochs 3
    echo "what a film" | python text_classifier.py classify    # label text: one per line, split into words

The network is that of Kim, "Convolutional neural networks for sentence classification" (EMNLP 2014), convolutions over
the words of a text and their maxima, made of layers (dy.nn) and written for one text, a matrix with a column for each
word; the engine runs those of a minibatch together.

Vectors of word2vec, fastText or GloVe are not trained, so that those of words that are not in the training texts still
fit the others; `--tune` trains them too.  Without `--vectors` they begin with random numbers and are trained.

With `--encoder FOLDER`, an encoder in Hugging Face's layout reads the text instead, and is trained with the rest: a
text is the mean of the vectors of its pieces.  The folder is needed to classify, too, for its tokenizer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline, nn
from dynet_cy.data import Vocabulary, WordVectors, read_labelled, read_vectors

Text = tuple[list[str], str]  # its words, and its label

UNKNOWN = ""  # stands for all words outside the vocabulary; its number is 0


class Classifier(nn.Layer):
    """The network.  `sizes` holds everything needed to build it again, except the weights."""

    def __init__(self, sizes: dict, vectors: WordVectors | None = None) -> None:
        super().__init__(dy.ParameterCollection(), (sizes,))
        self.sizes = sizes
        self.labels = Vocabulary(sizes["labels"], unknown=None)
        self.words = Vocabulary(sizes["words"], unknown=UNKNOWN)
        self.encoder = None
        if sizes.get("encoder"):
            self.encoder = dy.pretrained.load(sizes["encoder"], self.collection)
            found = self.encoder.settings.dim
        else:
            self.add_convolutions(vectors)
            found = sizes["filters"] * len(sizes["widths"])
        self.dropout = nn.Dropout(sizes["dropout"])
        self.out = nn.Linear(found, len(self.labels), self.collection)

    def add_convolutions(self, vectors: WordVectors | None) -> None:
        sizes, pc = self.sizes, self.collection
        dim, filters = sizes["dim"], sizes["filters"]
        if vectors is None:
            # Small at first, so that the vectors of words that training has not changed hardly count.
            self.embed = nn.Embedding(len(self.words), dim, pc, frozen=sizes["frozen"], init=dy.GlorotInitializer())
        else:
            self.embed = vectors.embedding(pc, self.words.words, frozen=sizes["frozen"])
        self.convolve = nn.LayerList([(nn.Conv1d, dim, filters, width, 1, "same") for width in sizes["widths"]], pc)

    def __call__(self, words: list[str]) -> dy.Expression:
        """Return the scores of all labels."""
        return self.out(self.dropout(self.read(words)))

    def read(self, words: list[str]) -> dy.Expression:
        """Return the vector of a text."""
        if self.encoder is not None:
            return dy.mean_dim(self.encoder(self.encoder.tokenize(" ".join(words))), [1], False)
        x = self.embed([self.words[word if word in self.words else word.lower()] for word in words or [UNKNOWN]])
        found = [dy.rectify(convolve(x)) for convolve in self.convolve]  # a column for each word
        return dy.concatenate([dy.max_dim(dy.reshape(f, (-1, len(words or [UNKNOWN]))), 1) for f in found])

    def loss(self, texts: list[Text]) -> dy.Expression:
        """Return the mean loss of a minibatch."""
        return dy.average([dy.pickneglogsoftmax(self(words), self.labels[label]) for words, label in texts])

    def classify(self, texts: list[list[str]]) -> list[str]:
        """Return the best label of each text."""
        dy.renew_cg(forward_only=True)
        scores = [self(words) for words in texts]
        return self.labels.decode(np.argmax(s) for s in dy.npvalues(scores))  # requested together: one batch


def train(classifier: Classifier, texts: list[Text], dev: list[Text], args: argparse.Namespace) -> None:
    data = dy.data.batches(texts, args.batch, shuffle=True, seed=args.seed)
    trainer = dy.AdamTrainer(classifier.collection, args.learning_rate)
    trainer.schedule = dy.LinearSchedule(args.epochs * len(data))
    if classifier.encoder is not None:
        trainer.group(classifier.encoder, learning_rate=args.encoder_rate)
    training = commandline.training(args, classifier.collection, data, extra=classifier.sizes, unit="texts")
    for epoch in training:
        classifier.train()
        for batch in epoch:
            dy.renew_cg()
            loss = classifier.loss(batch)
            epoch.add(loss.value(), len(batch))
            loss.backward()
            trainer.update()
        classifier.eval()
        training.curves.add_histograms(epoch.number, classifier.collection, gradients=False)
        found = dy.data.map_batches(classifier.classify, [words for words, _ in dev])
        epoch.report(accuracy=dy.metrics.accuracy(found, [label for _, label in dev]))


def new_sizes(texts: list[Text], vectors: WordVectors | None, args: argparse.Namespace) -> dict:
    """Collect the vocabulary and the labels, and the sizes given on the command line."""
    words = Vocabulary((word for words, _ in texts for word in words), args.least, unknown=UNKNOWN).words
    if vectors is not None:
        words += tuple(vectors.words[: args.most_vectors])
    return {
        "words": list(dict.fromkeys(words)),
        "labels": sorted({label for _, label in texts}),
        **args.sizes,
        **({} if vectors is None else {"dim": vectors.dim}),
        "widths": args.widths,
        "frozen": vectors is not None and not args.tune,
        "encoder": None if args.encoder is None else str(args.encoder),
    }


def turkish_texts() -> list[Text]:
    print("learning whether a Turkish sentence is from the web or from Wikipedia; --train FILE takes other texts")
    texts = []
    for label in ("web", "wiki"):
        lines = dy.data.lines(dy.data.installed("turkish-treebanks", f"{label}.conllu"))
        texts += [(line[9:].split(), label) for line in lines if line.startswith("# text = ")]
    return texts


def main(args: argparse.Namespace) -> None:
    if args.command == "train":
        texts, dev = commandline.read_data(args, read_labelled, turkish_texts)
        vectors = None if args.vectors is None else read_vectors(args.vectors)
        classifier = Classifier(new_sizes(texts, vectors, args), vectors)
        words, known = {word for words, _ in texts for word in words}, "random vectors"
        if classifier.encoder is not None:
            known = str(classifier.encoder)
        elif vectors is not None:
            share = sum(word in vectors or word.lower() in vectors for word in words) / len(words)
            known = f"{share:.0%} have vectors"
        print(f"{len(texts)} training and {len(dev)} dev texts, {len(words)} words: {known}")
        train(classifier, texts, dev, args)
    classifier = dy.load_network(args.model, Classifier).eval()
    if args.command == "train":
        text, label = dev[0]
        print(f"{classifier.classify([text])[0]} (should be {label}): {' '.join(text)}")
    else:
        for lines in commandline.input_lines(args.file):
            for line, label in zip(lines, classifier.classify([line.split() for line in lines])):
                print(f"{label}\t{line}", flush=True)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a text classifier on word vectors or an encoder, or label text with one.",
        data="a label, a tab and a text on each line; else Turkish sentences",
        command="classify",
        file="one text per line, split into words",
        epochs=10,
        patience=3,
        batch=32,
        learning_rate=0.002,  # falls to 0
        sizes={"dim": 64, "filters": 64, "dropout": 0.5},  # dim: of word vectors, without --vectors
    )
    add = parser.add_argument
    add("--vectors", type=Path, metavar="FILE", help="of word2vec, fastText or GloVe; else they are trained")
    add("--encoder", type=Path, metavar="FOLDER", help="a pretrained encoder, instead of word vectors and convolutions")
    add("--encoder-rate", type=float, default=0.0001, help="the learning rate of the encoder; falls to 0")
    add("--tune", action="store_true", help="train the vectors of the file too")
    add("--most-vectors", type=int, default=100000, help="words of the file to keep: the first, most frequent ones")
    add("--least", type=int, default=2, help="a word without a vector that is seen less often is unknown")
    add("--widths", type=int, nargs="+", default=[3, 4, 5], help="words that a filter sees at once")
    parser.run(main)
