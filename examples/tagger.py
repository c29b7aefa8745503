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
import time
from collections import Counter
from pathlib import Path

from conllu import COLUMNS, Sentence, default_treebanks, read_conllu
from helpers import add_engine_options, batches, import_engine, load_spec, save_model
from tqdm import tqdm

UNKNOWN = 0  # the id of every word and letter outside the vocabulary


class Tagger:
    """The network.  `spec` is all that is needed, beside the weights, to build it again."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.words = {word: i for i, word in enumerate(spec["words"], start=1)}
        self.frequent = {form: i for i, form in enumerate(spec["frequent"], start=1)}
        self.letters = {letter: i for i, letter in enumerate(spec["letters"], start=1)}
        self.tags = {tag: i for i, tag in enumerate(spec["tags"])}
        self.training = False  # whether to drop out
        self.rng = random.Random(spec["seed"])

        self.pc = pc = dy.ParameterCollection()
        self.word_vectors = pc.add_lookup_parameters((len(self.words) + 1, spec["word_dim"]))
        self.frequent_vectors = pc.add_lookup_parameters((len(self.frequent) + 1, 2 * spec["letter_hidden"]))
        self.letter_vectors = pc.add_lookup_parameters((len(self.letters) + 1, spec["letter_dim"]))
        self.spell_forward = dy.LSTMBuilder(1, spec["letter_dim"], spec["letter_hidden"], pc)
        self.spell_backward = dy.LSTMBuilder(1, spec["letter_dim"], spec["letter_hidden"], pc)
        inputs = spec["word_dim"] + 2 * spec["letter_hidden"]
        self.read_forward = dy.LSTMBuilder(1, inputs, spec["hidden"], pc)
        self.read_backward = dy.LSTMBuilder(1, inputs, spec["hidden"], pc)
        self.W = pc.add_parameters((len(self.tags), 2 * spec["hidden"]))
        self.b = pc.add_parameters(len(self.tags), init=0)

    def spell(self, form: str) -> dy.Expression:
        """Read the letters of a word both ways and keep the two last states."""
        letters = [self.letter_vectors[self.letters.get(letter, UNKNOWN)] for letter in form]
        forward = self.spell_forward.initial_state().transduce(letters)
        backward = self.spell_backward.initial_state().transduce(letters[::-1])
        return dy.concatenate([forward[-1], backward[-1]])

    def hide(self, word: str) -> bool:
        """Draw whether to take a word for an unknown one, to learn from its spelling: the rarer, the likelier."""
        count, rate = self.spec["words"].get(word, 0), self.spec["word_dropout"]
        return self.training and self.rng.random() * (count + rate) < rate

    def embed(self, form: str, spellings: dict[str, dy.Expression]) -> dy.Expression:
        """Join two vectors: one looked up for the word in lower case, and one for its form.

        The form of a frequent word has a vector of its own; that of a rare word is read letter by letter.
        """
        word = form.lower()
        hidden = self.hide(word)
        word_vector = self.word_vectors[UNKNOWN if hidden else self.words.get(word, UNKNOWN)]
        if form in self.frequent and not hidden:
            return dy.concatenate([word_vector, self.frequent_vectors[self.frequent[form]]])
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
        dy.renew_cg()
        spellings: dict[str, dy.Expression] = {}
        scores = [self.scores(words, spellings) for words in sentences]
        if any(scores):
            dy.forward([s for sentence in scores for s in sentence])  # all at once, so that it can be batched
        return [[self.spec["tags"][s.npvalue().argmax()] for s in sentence] for sentence in scores]


# -- training ------------------------------------------------------------------------------------


def new_tagger(sentences: list[Sentence], args: argparse.Namespace) -> Tagger:
    """Collect the vocabularies and build a network with fresh weights."""
    words = Counter(word.lower() for words, _ in sentences for word in words)
    forms = Counter(form for words, _ in sentences for form in words)
    letters = Counter(letter for words, _ in sentences for word in words for letter in word)
    return Tagger(
        {
            "words": {word: count for word, count in words.items() if count > 1},
            "frequent": [form for form, count in forms.items() if count >= args.frequent],
            "letters": [letter for letter, count in letters.items() if count > 4],
            "tags": sorted({tag for _, tags in sentences for tag in tags}),
            "word_dim": args.word_dim,
            "letter_dim": args.letter_dim,
            "letter_hidden": args.letter_hidden,
            "hidden": args.hidden,
            "dropout": args.dropout,
            "word_dropout": args.word_dropout,
            "seed": args.seed,
        }
    )


def train(tagger: Tagger, training: list[Sentence], dev: list[Sentence], args: argparse.Namespace) -> None:
    """Train until the epochs or the patience are over; save after each epoch that is the best so far."""
    trainer = getattr(dy, f"{args.trainer}Trainer")(tagger.pc)
    order = random.Random(args.seed)
    training = list(training)
    total = sum(len(words) for words, _ in training)
    best, best_epoch, done = -1.0, 0, 0
    for epoch in range(1, args.epochs + 1):
        order.shuffle(training)
        tagger.training = True
        summed, start = 0.0, time.perf_counter()
        with tqdm(total=total, desc=f"epoch {epoch}", unit="words", leave=False, disable=None) as bar:
            for batch in batches(training, args.batch):
                trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * total))
                dy.renew_cg()
                loss = tagger.loss(batch)
                value = loss.value()
                loss.backward()
                trainer.update()
                count = sum(len(words) for words, _ in batch)
                done += count
                summed += value * count
                bar.set_postfix(loss=f"{value:.3f}", refresh=False)
                bar.update(count)
        seconds = time.perf_counter() - start
        tagger.training = False
        right = accuracy(tagger, dev)
        print(
            f"epoch {epoch}: loss {summed / total:.4f}, {seconds:.1f} s, {total / seconds:.0f} words/s, "
            f"dev accuracy {right:.2%}",
            flush=True,
        )
        if right > best:
            best, best_epoch = right, epoch
            save_model(args.model, tagger.spec, tagger.pc)
        elif epoch - best_epoch >= args.patience:
            print(f"no better for {args.patience} epochs: stopping")
            break
    print(f"best dev accuracy {best:.2%} after epoch {best_epoch}, model saved in {args.model}")


def accuracy(tagger: Tagger, sentences: list[Sentence]) -> float:
    right = total = 0
    for batch in batches(sentences, 64):
        found = tagger.tag([words for words, _ in batch])
        for guessed, (_, tags) in zip(found, batch):
            right += sum(a == b for a, b in zip(guessed, tags))
            total += len(tags)
    return right / total


# -- command line --------------------------------------------------------------------------------


def load(folder: Path) -> Tagger:
    spec, weights = load_spec(folder)
    tagger = Tagger(spec)
    tagger.pc.populate(weights)
    return tagger


def train_command(args: argparse.Namespace) -> None:
    global dy
    training = read_conllu(args.train or default_treebanks()[0], args.column)
    if args.dev:
        dev = read_conllu(args.dev, args.column)
    else:  # every tenth sentence
        dev, training = training[::10], [s for i, s in enumerate(training) if i % 10]
        if not training:
            raise ValueError(f"{args.train}: one sentence only, none is left to train on; give --dev FILE too")
    dy = import_engine(args, args.autobatch)
    tagger = new_tagger(training, args)
    print(
        f"{len(training)} training and {len(dev)} dev sentences, {len(tagger.words)} words, "
        f"{len(tagger.letters)} letters and {len(tagger.tags)} tags in the vocabulary"
    )
    train(tagger, training, dev, args)
    print_tagged(load(args.model), [dev[0][0]])


def tag_command(args: argparse.Namespace) -> None:
    global dy
    dy = import_engine(args, args.autobatch)
    tagger = load(args.model)
    with sys.stdin if args.file == "-" else open(args.file, encoding="utf-8") as lines:
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
    add("--epochs", type=int, default=10, help="the learning rate falls to 0 over them")
    add("--patience", type=int, default=3, help="epochs without a better dev accuracy before stopping")
    add("--batch", type=int, default=16, help="sentences in a minibatch")
    add("--frequent", type=int, default=10, help="a form seen less often is read letter by letter")
    add("--word-dim", type=int, default=100)
    add("--letter-dim", type=int, default=32)
    add("--letter-hidden", type=int, default=50, help="in each direction")
    add("--hidden", type=int, default=128, help="in each direction")
    add("--dropout", type=float, default=0.33)
    add("--word-dropout", type=float, default=0.25, help="a word seen n times is hidden at the rate of d / (d + n)")
    add("--trainer", choices=["Adam", "Amsgrad", "RMSProp", "Adagrad", "MomentumSGD", "SimpleSGD"], default="Adam")
    add("--learning-rate", type=float, default=0.002, help="at the start; SGD needs some 0.1")
    _add_common(command)

    command = commands.add_parser("tag", help="tag text, a sentence a line, words apart", **for_all)
    command.set_defaults(run=tag_command)
    command.add_argument("file", nargs="?", default="-", help="text, or - for the standard input")
    _add_common(command)

    if not argv or argv[0].startswith("-") and argv[0] not in ("-h", "--help"):
        argv = ["train", *argv]
    return parser.parse_args(argv)


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", type=Path, metavar="DIR", default=Path("runs/tagger"))
    add_engine_options(command)
    command.add_argument("--no-autobatch", dest="autobatch", action="store_false", help="run node by node")


def main() -> None:
    args = parse(sys.argv[1:])
    try:
        args.run(args)
    except (OSError, ValueError) as error:
        sys.exit(f"tagger.py: {error}")
    except KeyboardInterrupt:
        sys.exit("tagger.py: interrupted")


if __name__ == "__main__":
    main()
