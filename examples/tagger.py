"""A part-of-speech tagger: a BiLSTM over words, with a BiLSTM over letters for words it has rarely seen.

    python tagger.py                                           # train on a Turkish treebank, then tag a sentence
    python tagger.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    echo "The dog barks ." | python tagger.py tag              # tag text: a sentence a line, words apart

The network is written for one sentence, word by word and letter by letter, as one would on a whiteboard.
There is no padding and no masking: a minibatch is the sum of the losses of its sentences, and the engine
finds by itself what it can compute together.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from types import ModuleType

import helpers
import learning
from conllu import COLUMNS, Sentence, default_treebanks, read_conllu
from helpers import batched_map, batches
from learning import UNKNOWN, Vocabulary, count


class Tagger:
    """The network.  `spec` is all that is needed, beside the weights, to build it again."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.words = Vocabulary(spec["words"])
        self.frequent = Vocabulary(spec["frequent"])
        self.letters = Vocabulary(spec["letters"])
        self.tags = {tag: i for i, tag in enumerate(spec["tags"])}
        self.training = False  # whether to drop out
        self.rng = random.Random(spec["seed"])

        self.pc = pc = dy.ParameterCollection()
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.frequent_vectors = pc.add_lookup_parameters((len(self.frequent), 2 * spec["letter_hidden"]))
        self.letter_vectors = pc.add_lookup_parameters((len(self.letters), spec["letter_dim"]))
        self.spell_forward = dy.LSTMBuilder(1, spec["letter_dim"], spec["letter_hidden"], pc)
        self.spell_backward = dy.LSTMBuilder(1, spec["letter_dim"], spec["letter_hidden"], pc)
        inputs = spec["word_dim"] + 2 * spec["letter_hidden"]
        self.read_forward = dy.LSTMBuilder(1, inputs, spec["hidden"], pc)
        self.read_backward = dy.LSTMBuilder(1, inputs, spec["hidden"], pc)
        self.W = pc.add_parameters((len(self.tags), 2 * spec["hidden"]))
        self.b = pc.add_parameters(len(self.tags), init=0)

    def spell(self, form: str) -> dy.Expression:
        """Read the letters of a word both ways and keep the two last states."""
        letters = [self.letter_vectors[self.letters.id(letter)] for letter in form]
        forward = self.spell_forward.initial_state().transduce(letters)
        backward = self.spell_backward.initial_state().transduce(letters[::-1])
        return dy.concatenate([forward[-1], backward[-1]])

    def embed(self, form: str, spellings: dict[str, dy.Expression]) -> dy.Expression:
        """Join two vectors: one looked up for the word in lower case, and one for its form.

        The form of a frequent word has a vector of its own; that of a rare word is read letter by letter.
        """
        word = form.lower()
        hidden = self.training and self.words.hide(word, self.spec["word_dropout"], self.rng)
        word_vector = self.word_vectors[UNKNOWN if hidden else self.words.id(word)]
        if form in self.frequent.ids and not hidden:
            return dy.concatenate([word_vector, self.frequent_vectors[self.frequent.id(form)]])
        if form not in spellings:
            spellings[form] = self.spell(form)
        return dy.concatenate([word_vector, spellings[form]])

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def scores(self, words: list[str], spellings: dict[str, dy.Expression]) -> list[dy.Expression]:
        """Return the scores of all tags for each word.

        `spellings` belongs to the minibatch: a word that occurs in it twice is spelled once.
        """
        if not words:
            return []
        inputs = [self.drop(self.embed(form, spellings)) for form in words]
        forward = self.read_forward.initial_state().transduce(inputs)
        backward = self.read_backward.initial_state().transduce(inputs[::-1])[::-1]
        states = [self.drop(dy.concatenate([f, b])) for f, b in zip(forward, backward)]
        return [dy.affine_transform([self.b, self.W, state]) for state in states]

    def loss(self, sentences: list[Sentence]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch."""
        spellings: dict[str, dy.Expression] = {}
        losses = []
        for words, tags in sentences:
            for scores, tag in zip(self.scores(words, spellings), tags):
                losses.append(dy.pickneglogsoftmax(scores, self.tags[tag]))
        return dy.esum(losses) / len(losses)

    def tag(self, sentences: list[list[str]]) -> list[list[str]]:
        """Return the best tag of each word."""
        dy.renew_cg(forward_only=True)
        spellings: dict[str, dy.Expression] = {}
        return batched_map(dy, lambda words: self.tag_one(words, spellings), sentences)

    def tag_one(self, words: list[str], spellings: dict[str, dy.Expression]) -> list[str]:
        """Return the best tag of each word of a sentence, in the current graph."""
        scores = self.scores(words, spellings)
        if scores:
            dy.forward(scores)  # all at once, so that it can be batched
        return [self.spec["tags"][s.npvalue().argmax()] for s in scores]


# -- training ------------------------------------------------------------------------------------


def new_spec(sentences: list[Sentence], args: argparse.Namespace) -> dict:
    """Collect the vocabularies, and the sizes that were asked for."""
    forms = [form for words, _ in sentences for form in words]
    return {
        "words": count((form.lower() for form in forms), least=2),
        "frequent": count(forms, least=args.frequent),
        "letters": count((letter for form in forms for letter in form), least=5),
        "tags": sorted({tag for _, tags in sentences for tag in tags}),
        "word_dim": args.word_dim,
        "letter_dim": args.letter_dim,
        "letter_hidden": args.letter_hidden,
        "hidden": args.hidden,
        "dropout": args.dropout,
        "word_dropout": args.word_dropout,
        "seed": args.seed,
    }


def accuracy(tagger: Tagger, sentences: list[Sentence]) -> float:
    right = total = 0
    for batch in batches(sentences, 64):
        found = tagger.tag([words for words, _ in batch])
        for guessed, (_, tags) in zip(found, batch):
            right += sum(a == b for a, b in zip(guessed, tags))
            total += len(tags)
    return right / total


# -- command line --------------------------------------------------------------------------------


def import_engine(args: argparse.Namespace) -> ModuleType:
    global dy
    dy = helpers.import_engine(args, args.autobatch)
    return dy


def train_command(args: argparse.Namespace) -> None:
    training = read_conllu(args.train or default_treebanks()[0], args.column)
    if args.dev:
        dev = read_conllu(args.dev, args.column)
    else:
        training, dev = learning.hold_out(training, args.train)
    import_engine(args)
    tagger = Tagger(new_spec(training, args))
    print(
        f"{len(training)} training and {len(dev)} dev sentences, {len(tagger.words.ids)} words, "
        f"{len(tagger.letters.ids)} letters and {len(tagger.tags)} tags in the vocabulary"
    )

    def evaluate() -> tuple[float, str]:
        right = accuracy(tagger, dev)
        return right, f"dev accuracy {right:.2%}"

    learning.train(dy, tagger, training, lambda sentence: len(sentence[0]), evaluate, args)
    print_tagged(learning.load(Tagger, args.model), [dev[0][0]])


def tag_command(args: argparse.Namespace) -> None:
    import_engine(args)
    tag_text(learning.load(Tagger, args.model), args.file)


def tag_text(tagger: Tagger, file: str) -> None:
    with sys.stdin if file == "-" else open(file, encoding="utf-8") as lines:
        # Someone who types wants each answer at once; a file goes faster in batches.
        for batch in batches(lines, 1 if lines.isatty() else 64):
            print_tagged(tagger, [line.split() for line in batch])


def print_tagged(tagger: Tagger, sentences: list[list[str]]) -> None:
    for words, tags in zip(sentences, tagger.tag(sentences)):
        print(" ".join(f"{word}/{tag}" for word, tag in zip(words, tags)), flush=True)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a part-of-speech tagger, or tag text with one.")
    commands = parser.add_subparsers(required=True)
    for_all = {"formatter_class": argparse.ArgumentDefaultsHelpFormatter}

    command = commands.add_parser("train", help="train a tagger (done if no command is named)", **for_all)
    command.set_defaults(run=train_command)
    add = command.add_argument
    add("--train", type=Path, metavar="FILE", help="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks")
    add("--dev", type=Path, metavar="FILE", help="CoNLL-U; else every tenth sentence of the training file")
    add("--column", choices=COLUMNS[3:], default="UPOS", help="what to predict")
    add_sizes(command)
    learning.add_training(command, epochs=10, batch=16, rate=0.002)
    learning.add_common(command, "tagger")

    command = commands.add_parser("tag", help="tag text, a sentence a line, words apart", **for_all)
    command.set_defaults(run=tag_command)
    command.add_argument("file", nargs="?", default="-", help="text, or - for the standard input")
    learning.add_common(command, "tagger")
    return parser.parse_args(learning.train_first(argv))


def add_sizes(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--frequent", type=int, default=10, help="a form seen less often is read letter by letter")
    add("--word-dim", type=int, default=100)
    add("--letter-dim", type=int, default=32)
    add("--letter-hidden", type=int, default=50, help="in each direction")
    add("--hidden", type=int, default=128, help="in each direction")
    add("--dropout", type=float, default=0.33)
    add("--word-dropout", type=float, default=0.25, help="a word seen n times is hidden at the rate of d / (d + n)")


def main() -> None:
    args = parse(sys.argv[1:])
    learning.guarded("tagger.py", lambda: args.run(args))


if __name__ == "__main__":
    main()
