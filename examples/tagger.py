"""A part-of-speech tagger: a BiLSTM over words, with a BiLSTM over letters for words it has rarely seen.

    python tagger.py                                           # train on a Turkish treebank, then tag a sentence
    python tagger.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    echo "The dog barks ." | python tagger.py tag              # tag text: one sentence per line, split into words

The network is written for one sentence, word by word and letter by letter, as one would on a whiteboard.
There is no padding and no masking: a minibatch is the sum of the losses of its sentences, and the engine
finds by itself what it can compute together.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from importlib import metadata
from pathlib import Path

from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.curves import Curves
from dynet_cy.data import CONLLU_COLUMNS, Vocabulary, read_conllu

Sentence = tuple[list[str], list[str]]  # its words, and their tags


class Tagger:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.words = Vocabulary(spec["words"])
        self.frequent = Vocabulary(spec["frequent"])
        self.letters = Vocabulary(spec["letters"])
        self.tags = Vocabulary(spec["tags"], unknown=None)
        self.training = False  # whether to apply dropout
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
        """Read the letters of a word in both directions and keep the two last states."""
        letters = [self.letter_vectors[self.letters[letter]] for letter in form]
        forward = self.spell_forward.initial_state().transduce(letters)
        backward = self.spell_backward.initial_state().transduce(letters[::-1])
        return dy.concatenate([forward[-1], backward[-1]])

    def embed(self, form: str, spellings: dict[str, dy.Expression]) -> dy.Expression:
        """Join two vectors: one looked up for the word in lower case, and one for its form.

        The form of a frequent word has its own vector; that of a rare word is read letter by letter.
        """
        word = form.lower()
        hidden = self.training and self.words.word_dropout(word, self.spec["word_dropout"], self.rng)
        word_vector = self.word_vectors[0 if hidden else self.words[word]]
        if form in self.frequent and not hidden:
            return dy.concatenate([word_vector, self.frequent_vectors[self.frequent[form]]])
        if form not in spellings:
            spellings[form] = self.spell(form)
        return dy.concatenate([word_vector, spellings[form]])

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def scores(self, words: list[str], spellings: dict[str, dy.Expression]) -> list[dy.Expression]:
        """Return the scores of all tags for each word.

        `spellings` is shared by a minibatch, so that each word in it is spelled only once.
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
        return dy.batched_map(lambda words: self.tag_one(words, spellings), sentences)

    def tag_one(self, words: list[str], spellings: dict[str, dy.Expression]) -> list[str]:
        """Return the best tag of each word of a sentence, in the current graph."""
        scores = self.scores(words, spellings)
        if scores:
            dy.forward(scores)  # all at once, so that it can be batched
        return self.tags.decode(s.npvalue().argmax() for s in scores)


# -- training ------------------------------------------------------------------------------------


def train(tagger: Tagger, training: list[Sentence], dev: list[Sentence], args: argparse.Namespace) -> None:
    """Train for all epochs, or until several bring no improvement; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(tagger.pc)
    data = dy.data.batches(training, args.batch, shuffle=True, seed=args.seed)
    total, done = sum(len(words) for words, _ in training), 0
    args.model.parent.mkdir(parents=True, exist_ok=True)
    stopping = dy.EarlyStopping(tagger.pc, args.patience, path=args.model)
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            tagger.training = True
            summed, start = 0.0, time.perf_counter()
            for batch in tqdm(data, desc=f"epoch {epoch}", unit=" batches", leave=False, disable=None):
                trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * total))
                dy.renew_cg()
                loss = tagger.loss(batch)
                words = sum(len(words) for words, _ in batch)
                summed += loss.value() * words
                loss.backward()
                trainer.update()
                done += words
            seconds = time.perf_counter() - start
            tagger.training = False
            score = accuracy(tagger, dev)
            curves.add(epoch, loss=summed / total, accuracy=score)
            speed = f"{seconds:.1f} s, {total / seconds:.0f} words/s"
            print(f"epoch {epoch}: loss {summed / total:.4f}, {speed}, dev accuracy {score:.2%}", flush=True)
            stopping.report(score, extra=tagger.spec)
            if stopping.stopped:
                print(f"no better for {args.patience} epochs: stopping")
                break
    print(f"best dev accuracy {stopping.best:.2%} after epoch {stopping.best_at}, model saved in {args.model}")


def load(path: Path) -> Tagger:
    """Build the network that was saved, and read its weights."""
    try:
        tagger = Tagger(dy.read_extra(path))
    except KeyError as error:
        raise ValueError(f"{path}: the model of another program: it has no {error}") from error
    dy.load_safetensors(path, tagger.pc)
    return tagger


def new_spec(sentences: list[Sentence], args: argparse.Namespace) -> dict:
    """Collect the vocabularies, and the sizes given on the command line."""
    forms = [form for words, _ in sentences for form in words]
    sizes = ("word_dim", "letter_dim", "letter_hidden", "hidden", "dropout", "word_dropout", "seed")
    return {
        "words": Vocabulary((form.lower() for form in forms), min_count=2).counts,
        "frequent": Vocabulary(forms, min_count=args.frequent).counts,
        "letters": Vocabulary((letter for form in forms for letter in form), min_count=5).counts,
        "tags": sorted({tag for _, tags in sentences for tag in tags}),
        **{name: getattr(args, name) for name in sizes},
    }


def accuracy(tagger: Tagger, sentences: list[Sentence]) -> float:
    """Return the share of words whose tag is right."""
    right = 0
    for batch in dy.data.batches(sentences, 64):
        for guessed, (_, tags) in zip(tagger.tag([words for words, _ in batch]), batch):
            right += sum(a == b for a, b in zip(guessed, tags))
    return right / sum(len(words) for words, _ in sentences)


# -- data ----------------------------------------------------------------------------------------


def default_treebank() -> Path:
    """The Turkish web treebank of the package turkish-treebanks."""
    try:
        files = metadata.files("turkish-treebanks") or []
    except metadata.PackageNotFoundError:
        raise ValueError("no treebank: pip install turkish-treebanks, or give one with --train FILE") from None
    print("learning from a Turkish treebank (package turkish-treebanks); --train FILE takes one of any language")
    return next(Path(str(file.locate())) for file in files if file.name == "web.conllu")


def read_sentences(path: Path, column: str) -> list[Sentence]:
    """Return the words of all sentences, with one column for each word."""
    return [(sentence.form, sentence.column(column)) for sentence in read_conllu(path, required=[column])]


# -- command line --------------------------------------------------------------------------------


def train_command(args: argparse.Namespace) -> None:
    training = read_sentences(args.train or default_treebank(), args.column)
    if args.dev:
        dev = read_sentences(args.dev, args.column)
    elif len(training) < 2:
        raise ValueError(f"{args.train}: one sentence only, none is left to train on; give --dev FILE too")
    else:  # every tenth
        training, dev = [sentence for i, sentence in enumerate(training) if i % 10], training[::10]
    tagger = Tagger(new_spec(training, args))
    print(
        f"{len(training)} training and {len(dev)} dev sentences, {len(tagger.words.counts)} words, "
        f"{len(tagger.letters.counts)} letters and {len(tagger.tags)} tags in the vocabulary"
    )
    train(tagger, training, dev, args)
    print_tagged(load(args.model), [dev[0][0]])


def tag_text(tagger: Tagger, file: str) -> None:
    with sys.stdin if file == "-" else open(file, encoding="utf-8") as lines:
        # A user at a terminal wants each answer at once; a file is faster in batches.
        for batch in dy.data.batches(lines, 1 if lines.isatty() else 64):
            print_tagged(tagger, [line.split() for line in batch])


def print_tagged(tagger: Tagger, sentences: list[list[str]]) -> None:
    for words, tags in zip(sentences, tagger.tag(sentences)):
        print(" ".join(f"{word}/{tag}" for word, tag in zip(words, tags)), flush=True)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a part-of-speech tagger, or tag text with one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "tag"], default="train")
    add("file", nargs="?", default="-", help="tag: text, one sentence per line, split into words; - for standard input")
    add("--train", type=Path, metavar="FILE", help="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks")
    add("--dev", type=Path, metavar="FILE", help="CoNLL-U; else every tenth sentence of the training file")
    add("--column", choices=CONLLU_COLUMNS[3:], default="UPOS", help="what to predict")
    add("--frequent", type=int, default=10, help="a form seen less often is read letter by letter")
    add("--word-dim", type=int, default=100)
    add("--letter-dim", type=int, default=32)
    add("--letter-hidden", type=int, default=50, help="units in each direction")
    add("--hidden", type=int, default=128, help="units in each direction")
    add("--dropout", type=float, default=0.33)
    add("--word-dropout", type=float, default=0.25, help="a word seen n times is hidden at the rate of d / (d + n)")
    add("--epochs", type=int, default=10, help="the learning rate falls to 0 over them")
    add("--patience", type=int, default=3, help="epochs without a better score before it stops")
    add("--batch", type=int, default=16, help="sentences in a minibatch")
    add("--learning-rate", type=float, default=0.002, help="initial learning rate")
    add("--seed", type=int, default=1)
    add("--model", type=Path, metavar="FILE", default=Path("runs/tagger.safetensors"))
    add("--curves", type=Path, metavar="FILE", help="plot loss and score to this file: .svg, .png or .pdf (matplotlib)")
    add("--tensorboard", type=Path, metavar="DIR", help="log them for TensorBoard (tensorboardX)")
    config.add_options(parser)
    return parser.parse_intermixed_args(argv)


def main() -> None:
    args = parse(sys.argv[1:])
    dy.reset_random_seed(args.seed)
    try:
        if args.command == "tag":
            tag_text(load(args.model), args.file)
        else:
            train_command(args)
    except (OSError, ValueError) as error:
        sys.exit(f"tagger.py: {error}")
    except KeyboardInterrupt:
        sys.exit("tagger.py: interrupted")


if __name__ == "__main__":
    main()
