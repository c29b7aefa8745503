"""Named entities: a BiLSTM over words and letters, and above it a CRF, which scores whole sequences of tags.

    python ner.py                                              # names in a Turkish treebank, then tag a sentence
    python ner.py --train train.conll --dev dev.conll          # a word and its tag a line, as in CoNLL-2003
    python ner.py --train train.txt --dev dev.txt              # a sentence a line, word|tag word|tag, as in WikiNER
    echo "Alice moved to Paris ." | python ner.py tag          # tag text: a sentence a line, words apart

The BiLSTM is the network of `tagger.py`.  The loss is the negative log-likelihood of the right tags, for which the
forward algorithm sums over all sequences of tags, as operations of the graph; the best sequence is found by the
algorithm of Viterbi (Lample, Ballesteros, Subramanian, Kawakami, Dyer: Neural Architectures for Named Entity
Recognition, NAACL 2016).

Tags are read as BIO: B-LOC begins a place, I-LOC goes on, O is outside.  A CoNLL-U treebank has no entities: in such a
file, and so in the one that is read without `--train`, the names to be found are the runs of proper nouns, all of one
kind.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import zlib
from pathlib import Path

import learning
import numpy as np
import tagger
from conllu import Sentence, default_treebanks, read_columns
from helpers import batches


class Recognizer(tagger.Tagger):
    """The tagger, whose scores for each word are joined by scores for each pair of neighbouring tags."""

    def __init__(self, spec: dict) -> None:
        super().__init__(spec)
        tags = len(self.tags)
        self.transitions = self.pc.add_parameters((tags, tags))  # (i, j): tag j after tag i
        self.first, self.last = self.pc.add_parameters(tags, init=0), self.pc.add_parameters(tags, init=0)

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
        """Return the negative log-likelihood of the right sequences, a word."""
        spellings: dict[str, dy.Expression] = {}
        losses = []
        for words, tags in sentences:
            scores = self.scores(words, spellings)
            losses.append(self.log_sum(scores) - self.score(scores, [self.tags[tag] for tag in tags]))
        return dy.esum(losses) / sum(len(words) for words, _ in sentences)

    def tag(self, sentences: list[list[str]]) -> list[list[str]]:
        """Return the best sequence of tags for each sentence."""
        dy.renew_cg(forward_only=True)
        spellings: dict[str, dy.Expression] = {}
        found = [dy.concatenate_cols(self.scores(words, spellings)) if words else None for words in sentences]
        if any(sentences):
            dy.forward([matrix for matrix in found if matrix is not None])  # all at once, so that it can be batched
        chain = [parameter.npvalue() for parameter in (self.transitions, self.first, self.last)]
        names, shape = self.spec["tags"], (len(self.tags), -1)
        return [
            [] if matrix is None else [names[i] for i in viterbi(matrix.npvalue().reshape(shape).T, *chain)]
            for matrix in found
        ]


def viterbi(scores: np.ndarray, transitions: np.ndarray, first: np.ndarray, last: np.ndarray) -> list[int]:
    """Return the sequence with the highest score: `scores` is of shape (words, tags), at least one word."""
    best = first + scores[0]  # for each tag, of the sequences that end with it
    before = []  # for each word but the first, and each tag: the tag of the word before in the best sequence
    for word in scores[1:]:
        paths = best[:, None] + transitions
        before.append(paths.argmax(0))
        best = paths.max(0) + word
    tags = [int((best + last).argmax())]
    for choice in reversed(before):
        tags.append(int(choice[tags[-1]]))
    return tags[::-1]


# -- data ----------------------------------------------------------------------------------------


def read_tagged(path: Path) -> list[Sentence]:
    """Read the sentences of a file, plain or gzipped, with their tags as BIO; its ending says what it holds."""
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind == ".conllu":
        return [([row["FORM"] for row in rows], proper_nouns(rows)) for rows in read_columns(path, ["UPOS"])]
    sentences: list[Sentence] = []
    pairs: list[list[str]] = []
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                number += 1
                # Only these separate: a word may hold a no-break space.
                fields = [field for field in line.decode("utf-8").strip("\r\n").replace("\t", " ").split(" ") if field]
                if kind != ".conll":
                    pairs = [field.rsplit("|", 1) for field in fields]
                elif fields and fields[0] != "-DOCSTART-":
                    pairs.append([fields[0], fields[-1]] if len(fields) > 1 else fields)
                for pair in pairs[-1:] if kind == ".conll" else pairs:
                    if len(pair) < 2 or pair[1] != "O" and pair[1][:2] not in ("B-", "I-"):
                        raise ValueError(f"no tag, that is O, B-... or I-..., at {pair[0]!r}")
                if pairs and (kind != ".conll" or not fields):  # the sentence ends
                    sentences.append(([word for word, _ in pairs], to_bio([tag for _, tag in pairs])))
                    pairs = []
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}, after line {number}: not a whole gzip file: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
    if pairs:  # the last blank line is missing: accept it
        sentences.append(([word for word, _ in pairs], to_bio([tag for _, tag in pairs])))
    if not sentences:
        raise ValueError(f"{path}: no sentence in {number} lines")
    return sentences


def proper_nouns(rows: list[dict[str, str]]) -> list[str]:
    """Tag the runs of proper nouns in a sentence of a treebank."""
    proper = [row["UPOS"] == "PROPN" or "Proper=True" in row["FEATS"].split("|") for row in rows]
    return to_bio(["I-NAME" if is_proper else "O" for is_proper in proper])


def to_bio(tags: list[str]) -> list[str]:
    """Let each entity begin with B-, in whichever of the two common ways (IOB1, BIO) the tags are written."""
    fixed = []
    for before, tag in zip(["O", *tags], tags):
        fixed.append("B" + tag[1:] if tag[0] == "I" and before[1:] != tag[1:] else tag)
    return fixed


def entities(tags: list[str]) -> set[tuple[int, int, str]]:
    """Return the entities of a sentence: from a word, to before a word, of a kind."""
    tags = to_bio(tags)
    starts = [i for i, tag in enumerate(tags) if tag[0] == "B"]
    return {
        (i, next((j for j in range(i + 1, len(tags)) if tags[j][0] != "I"), len(tags)), tags[i][2:]) for i in starts
    }


def f1(recognizer: Recognizer, sentences: list[Sentence]) -> tuple[float, str]:
    """Return F1, and precision, recall and F1 in words: an entity is right if its bounds and its kind are."""
    right = guessed = true = 0
    for batch in batches(sentences, 64):
        for tags, (_, gold) in zip(recognizer.tag([words for words, _ in batch]), batch):
            found, wanted = entities(tags), entities(gold)
            right, guessed, true = right + len(found & wanted), guessed + len(found), true + len(wanted)
    score = 2 * right / max(1, guessed + true)
    precision, recall = right / max(1, guessed), right / max(1, true)
    return score, f"dev precision {precision:.2%}, recall {recall:.2%}, F1 {score:.2%}"


# -- command line --------------------------------------------------------------------------------


def train(args: argparse.Namespace) -> None:
    training = read_tagged(args.train or default_treebanks()[0])[: args.limit]
    if args.dev:
        dev = read_tagged(args.dev)[: args.limit]
    else:
        training, dev = learning.hold_out(training, args.train)
    import_engine(args)
    recognizer = Recognizer(tagger.new_spec(training, args))
    print(
        f"{len(training)} training sentences with {sum(len(entities(tags)) for _, tags in training)} entities, "
        f"{len(dev)} dev sentences with {sum(len(entities(tags)) for _, tags in dev)}; "
        f"tags {' '.join(recognizer.tags)}"
    )
    learning.train(dy, recognizer, training, lambda sentence: len(sentence[0]), lambda: f1(recognizer, dev), args)
    tagger.print_tagged(learning.load(Recognizer, args.model), [dev[0][0]])


def tag(args: argparse.Namespace) -> None:
    import_engine(args)
    tagger.tag_text(learning.load(Recognizer, args.model), args.file)


def import_engine(args: argparse.Namespace) -> None:
    global dy
    dy = tagger.import_engine(args)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a recognizer of named entities, or tag text with one.")
    commands = parser.add_subparsers(required=True)
    for_all = {"formatter_class": argparse.ArgumentDefaultsHelpFormatter}

    command = commands.add_parser("train", help="train a recognizer (done if no command is named)", **for_all)
    command.set_defaults(run=train)
    add = command.add_argument
    add("--train", type=Path, metavar="FILE", help=".conllu, .conll, or lines of word|tag; each plain or .gz")
    add("--dev", type=Path, metavar="FILE", help="likewise; else every tenth sentence of the training file")
    add("--limit", type=int, metavar="N", help="take the first N sentences of each file only")
    tagger.add_sizes(command)
    learning.add_training(command, epochs=10, batch=16, rate=0.002)
    learning.add_common(command, "ner")

    command = commands.add_parser("tag", help="tag text, a sentence a line, words apart", **for_all)
    command.set_defaults(run=tag)
    command.add_argument("file", nargs="?", default="-", help="text, or - for the standard input")
    learning.add_common(command, "ner")
    return parser.parse_args(learning.train_first(argv))


def main() -> None:
    args = parse(sys.argv[1:])
    learning.guarded("ner.py", lambda: args.run(args))


if __name__ == "__main__":
    main()
