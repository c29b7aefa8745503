"""Named entities: a BiLSTM over words and letters, and above it a CRF, which scores whole sequences of tags.

    python ner.py                                              # names in a Turkish treebank, then tag a sentence
    python ner.py --train train.conll --dev dev.conll          # one word and its tag per line, as in CoNLL-2003
    python ner.py --train train.txt --dev dev.txt              # one sentence per line, word|POS|tag ..., as in WikiNER
    echo "Alice moved to Paris ." | python ner.py tag          # tag text: one sentence per line, split into words

The BiLSTM is that of `tagger.py`.  The loss is the negative log-likelihood of the right tags, for which the
forward algorithm sums over all sequences of tags, as operations of the graph; the best sequence is found by the
algorithm of Viterbi (Lample, Ballesteros, Subramanian, Kawakami, Dyer: Neural Architectures for Named Entity
Recognition, NAACL 2016).

Tags have the BIO format: B-LOC begins a place, I-LOC continues it, O is outside.  A CoNLL-U treebank has no entities:
in such a file, including the one used without `--train`, the names to be found are sequences of proper nouns, all of
one kind.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline, metrics
from dynet_cy.data import Vocabulary, read_conllu, read_entities

Sentence = tuple[list[str], list[str]]  # its words, and their tags

SIZES = {
    "word_dim": 100,
    "letter_dim": 32,
    "letter_hidden": 50,  # units in each direction
    "hidden": 128,  # units in each direction
    "dropout": 0.33,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
}


class Recognizer:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.words = Vocabulary(spec["words"])
        self.frequent = Vocabulary(spec["frequent"])
        self.letters = Vocabulary(spec["letters"])
        self.tags = Vocabulary(spec["tags"], unknown=None)
        self.training, self.rng = False, random.Random(spec["seed"])
        self.pc = pc = dy.ParameterCollection()
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.frequent_vectors = pc.add_lookup_parameters((len(self.frequent), 2 * spec["letter_hidden"]))
        self.letter_vectors = pc.add_lookup_parameters((len(self.letters), spec["letter_dim"]))
        self.speller = dy.BiRNNBuilder(1, spec["letter_dim"], 2 * spec["letter_hidden"], pc, dy.LSTMBuilder)
        inputs = spec["word_dim"] + 2 * spec["letter_hidden"]
        self.reader = dy.BiRNNBuilder(1, inputs, 2 * spec["hidden"], pc, dy.LSTMBuilder)
        self.W = pc.add_parameters((len(self.tags), 2 * spec["hidden"]))
        self.b = pc.add_parameters(len(self.tags), init=0)
        self.transitions = pc.add_parameters((len(self.tags), len(self.tags)))  # (i, j): tag j after tag i
        self.first, self.last = pc.add_parameters(len(self.tags), init=0), pc.add_parameters(len(self.tags), init=0)

    def embed(self, form: str, spellings: dict[str, dy.Expression]) -> dy.Expression:
        """Join two vectors: one of the word in lower case, one of its form, whose letters are read if it is rare."""
        word = form.lower()
        hidden = self.training and self.words.word_dropout(word, self.spec["word_dropout"], self.rng)
        word_vector = self.word_vectors[0 if hidden else self.words[word]]
        if form in self.frequent and not hidden:
            return dy.concatenate([word_vector, self.frequent_vectors[self.frequent[form]]])
        if form not in spellings:
            states = self.speller.add_inputs([self.letter_vectors[self.letters[letter]] for letter in form])
            spellings[form] = dy.concatenate([states[-1][0].output(), states[0][1].output()])  # the last of each
        return dy.concatenate([word_vector, spellings[form]])

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def scores(self, words: list[str], spellings: dict[str, dy.Expression]) -> list[dy.Expression]:
        """Return the scores of all tags for each word; `spellings` are those of the minibatch so far."""
        states = self.reader.transduce([self.drop(self.embed(form, spellings)) for form in words])
        return [dy.affine_transform([self.b, self.W, self.drop(state)]) for state in states]

    def log_sum(self, scores: list[dy.Expression]) -> dy.Expression:
        """Return the logarithm of the sum, over all sequences of tags, of the exponential of the sequence's score."""
        sums = self.first + scores[0]  # for each tag, over the sequences that end with it
        for word in scores[1:]:
            sums = dy.logsumexp_dim(dy.colwise_add(self.transitions, sums), 0) + word
        return dy.logsumexp_dim(sums + self.last, 0)

    def score(self, scores: list[dy.Expression], tags: list[int]) -> dy.Expression:
        """Return the score of one sequence."""
        terms = [dy.pick(word, tag) for word, tag in zip(scores, tags)]
        counts = np.zeros((len(self.tags), len(self.tags)))
        np.add.at(counts, (tags[:-1], tags[1:]), 1)
        terms.append(dy.sum_elems(dy.cmult(self.transitions, dy.inputTensor(counts))))
        return dy.esum([*terms, dy.pick(self.first, tags[0]), dy.pick(self.last, tags[-1])])

    def loss(self, sentences: list[Sentence]) -> dy.Expression:
        """Return the negative log-likelihood of the right sequences, per word."""
        spellings: dict[str, dy.Expression] = {}
        losses = []
        for words, tags in sentences:
            scores = self.scores(words, spellings)
            losses.append(self.log_sum(scores) - self.score(scores, self.tags.encode(tags)))
        return dy.esum(losses) / sum(len(words) for words, _ in sentences)

    def tag(self, sentences: list[list[str]]) -> list[list[str]]:
        """Return the best sequence of tags for each sentence."""
        dy.renew_cg(forward_only=True)
        spellings: dict[str, dy.Expression] = {}
        found = [dy.concatenate_cols(self.scores(words, spellings)) if words else None for words in sentences]
        if any(sentences):
            dy.forward([matrix for matrix in found if matrix is not None])  # all at once, so that it can be batched
        chain = [parameter.npvalue() for parameter in (self.transitions, self.first, self.last)]
        shape = (len(self.tags), -1)
        return [
            [] if matrix is None else self.tags.decode(viterbi(matrix.npvalue().reshape(shape).T, *chain))
            for matrix in found
        ]


def viterbi(scores: np.ndarray, transitions: np.ndarray, first: np.ndarray, last: np.ndarray) -> list[int]:
    """Return the sequence with the highest score: `scores` is of shape (words, tags), at least one word."""
    best = first + scores[0]  # for each tag, of the best sequence that ends with it
    before = []  # for each word but the first, and each tag: the tag of the word before in the best sequence
    for word in scores[1:]:
        paths = best[:, None] + transitions
        before.append(paths.argmax(0))
        best = paths.max(0) + word
    tags = [int((best + last).argmax())]
    for choice in reversed(before):
        tags.append(int(choice[tags[-1]]))
    return tags[::-1]


def train(recognizer: Recognizer, sentences: list[Sentence], dev: list[Sentence], args: argparse.Namespace) -> None:
    trainer = dy.AdamTrainer(recognizer.pc)
    data = dy.data.batches(sentences, args.batch, shuffle=True, seed=args.seed)
    words = sum(len(words) for words, _ in sentences)
    training = commandline.training(args, recognizer.pc, data, extra=recognizer.spec, unit="words", total=words)
    for epoch in training:
        recognizer.training = True
        for batch in epoch:
            trainer.learning_rate = args.learning_rate * (1 - training.done)
            dy.renew_cg()
            loss = recognizer.loss(batch)
            epoch.add(loss.value(), sum(len(words) for words, _ in batch))
            loss.backward()
            trainer.update()
        recognizer.training = False
        epoch.report(**f1(recognizer, dev)._asdict())


def f1(recognizer: Recognizer, sentences: list[Sentence]) -> metrics.PrecisionRecall:
    """Return precision, recall and F1: an entity is right if its bounds and its kind are."""
    found = map(metrics.entities, dy.data.map_batches(recognizer.tag, [words for words, _ in sentences]))
    return metrics.precision_recall(found, [metrics.entities(tags) for _, tags in sentences])


def read(path: Path) -> list[Sentence]:
    """Read the sentences of a file, plain or gzipped, with their tags as BIO; its suffix says which format it has."""
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind != ".conllu":
        return read_entities(path, None if kind == ".conll" else "|")
    sentences = []
    for sentence in read_conllu(path, required=["UPOS"]):
        columns = zip(sentence.upos, sentence.feats)
        proper = [tag == "PROPN" or "Proper=True" in feats.split("|") for tag, feats in columns]
        sentences.append((sentence.form, metrics.to_bio(["I-NAME" if is_proper else "O" for is_proper in proper])))
    return sentences


def main(args: argparse.Namespace) -> None:
    if args.command == "train":
        sentences, dev = commandline.read_data(args, read, default=("turkish-treebanks", "web.conllu"))
        forms = [form for words, _ in sentences for form in words]
        spec = {
            "words": Vocabulary((form.lower() for form in forms), min_count=2).counts,
            "frequent": Vocabulary(forms, min_count=args.frequent).counts,
            "letters": Vocabulary((letter for form in forms for letter in form), min_count=5).counts,
            "tags": sorted({tag for _, tags in sentences for tag in tags}),
            "seed": args.seed,
            **args.sizes,
        }
        counts = [sum(len(metrics.entities(tags)) for _, tags in part) for part in (sentences, dev)]
        print(f"{len(sentences)} training sentences with {counts[0]} entities, ", end="")
        print(f"{len(dev)} dev sentences with {counts[1]}; tags {' '.join(spec['tags'])}")
        train(Recognizer(spec), sentences, dev, args)
    recognizer = dy.load_network(args.model, Recognizer)
    parts = ([line.split() for line in lines] for lines in commandline.input_lines(args.file))
    for texts in [[dev[0][0]]] if args.command == "train" else parts:
        for words, tags in zip(texts, recognizer.tag(texts)):
            print(" ".join(f"{word}/{tag}" for word, tag in zip(words, tags)), flush=True)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a recognizer of named entities, or tag text with one.",
        data=".conllu, .conll, or lines of word|tag; each plain or .gz",
        command="tag",
        file="text, one sentence per line, split into words",
        epochs=10,
        patience=3,
        batch=16,
        learning_rate=0.002,  # falls to 0
        sizes=SIZES,
    )
    add = parser.add_argument
    add("--frequent", type=int, default=10, help="a form seen less often is read letter by letter")
    parser.run(main)
