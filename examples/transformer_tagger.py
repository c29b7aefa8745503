"""A part-of-speech tagger: a Transformer over words, with a convolution over the letters of each.

    python transformer_tagger.py                               # train on a Turkish treebank, then tag a sentence
    python transformer_tagger.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    echo "The dog barks ." | python transformer_tagger.py tag  # tag text: one sentence per line, split into words

The network is made of layers (dy.nn) and written for one sentence, a matrix with a column for each word.  Attention
needs no padding and no masks: a minibatch is the sum of the losses of its sentences, and the engine computes the
layers of all of them together, whatever their lengths.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config, nn
from dynet_cy.curves import Curves

Sentence = tuple[list[str], list[str]]  # its words, and their tags

UNKNOWN = 0  # the id of everything outside a vocabulary


class Vocabulary:
    """Numbers items from 1 on; 0 is for unknown ones.  `counts` holds how often each occurred in training."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.ids = {thing: i for i, thing in enumerate(counts, start=1)}

    def __len__(self) -> int:
        return len(self.ids) + 1

    def id(self, thing: str) -> int:
        return self.ids.get(thing, UNKNOWN)

    def hide(self, thing: str, rate: float, rng: random.Random) -> bool:
        """Draw whether to treat an item as unknown in training, so that the vector for unknown items is trained.
        An item that occurred n times is hidden with the probability rate / (rate + n).
        """
        return rng.random() * (self.counts.get(thing, 0) + rate) < rate


def count(things: Iterable[str], least: int = 1) -> dict[str, int]:
    """Count items, in the order of their first occurrence; leave out those that occur less often than `least`."""
    return {thing: n for thing, n in Counter(things).items() if n >= least}


class Tagger(nn.Layer):
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, sizes: dict, model: dy.ParameterCollection) -> None:
        super().__init__(model, (sizes,))
        self.sizes = sizes
        self.words = Vocabulary(sizes["words"])
        self.letters = Vocabulary(sizes["letters"])
        self.tags = {tag: i for i, tag in enumerate(sizes["tags"])}
        self.rng = random.Random(sizes["seed"])

        pc, dim, letter_dim = self.collection, sizes["dim"], sizes["letter_dim"]
        # Vectors of words begin small, so that at first the letters count more: most words are rare.
        self.word_vectors = nn.Embedding(len(self.words), dim, pc, init=dy.GlorotInitializer())
        self.letter_vectors = nn.Embedding(len(self.letters), letter_dim, pc, init=dy.GlorotInitializer())
        self.spell = nn.Sequential([(nn.Conv1d, letter_dim, dim, 3, 1, "same"), "tanh"], pc)
        self.positions = nn.SinusoidalPositions(dim)
        self.dropout = nn.Dropout(sizes["dropout"])
        shape = sizes["layers"], dim, sizes["heads"], sizes["hidden"]
        self.encoder = nn.TransformerEncoder(*shape, pc, sizes["dropout"], norm_first=True)
        self.out = nn.Linear(dim, len(self.tags), pc)

    def embed(self, form: str, spellings: dict[str, dy.Expression]) -> dy.Expression:
        """Add two vectors: one looked up for the word in lower case, and one made of the letters of its form."""
        word = form.lower()
        hidden = self.training and self.words.hide(word, self.sizes["word_dropout"], self.rng)
        if form not in spellings:
            # A column for each letter, which depends on its neighbours; then the maximum of each row.
            letters = self.spell(self.letter_vectors([self.letters.id(letter) for letter in form]))
            spellings[form] = dy.max_dim(letters, 1) if len(form) > 1 else letters
        return self.word_vectors(UNKNOWN if hidden else self.words.id(word)) + spellings[form]

    def __call__(self, words: list[str], spellings: dict[str, dy.Expression]) -> dy.Expression:
        """Return the scores of all tags, a column for each word.

        `spellings` is shared by a minibatch, so that each word in it is spelled only once.
        """
        x = dy.concatenate_cols([self.embed(form, spellings) for form in words])
        return self.out(self.encoder(self.dropout(self.positions(x))))

    def loss(self, sentences: list[Sentence]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch."""
        spellings: dict[str, dy.Expression] = {}
        losses = []
        for words, tags in sentences:
            right = [self.tags[tag] for tag in tags]
            # The columns of a sentence as a batch: one loss for each.
            scores = dy.reshape(self(words, spellings), (len(self.tags),), len(words))
            losses.append(dy.sum_batches(dy.pickneglogsoftmax_batch(scores, right)))
        return dy.esum(losses) / sum(len(words) for words, _ in sentences)

    def tag(self, sentences: list[list[str]]) -> list[list[str]]:
        """Return the best tag of each word."""
        dy.renew_cg(forward_only=True)
        spellings: dict[str, dy.Expression] = {}
        scores = [self(words, spellings) for words in sentences if words]
        if scores:
            dy.forward(scores)  # all at once, so that it can be batched
        found = (s.npvalue().reshape(len(self.tags), -1).argmax(0) for s in scores)
        return [[self.sizes["tags"][i] for i in next(found)] if words else [] for words in sentences]


# -- training ------------------------------------------------------------------------------------


def learning_rate(done: float, args: argparse.Namespace) -> float:
    """The rate after a share of the training: it rises linearly, then falls linearly to 0."""
    return args.learning_rate * min(done / args.warmup, (1 - done) / (1 - args.warmup))


def train(tagger: Tagger, training: list[Sentence], dev: list[Sentence], args: argparse.Namespace) -> None:
    """Train for all epochs; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(tagger.collection)
    trainer.set_clip_threshold(1.0)
    data = dy.data.batches(training, args.batch, shuffle=True, seed=args.seed)
    total = sum(len(words) for words, _ in training)
    best, best_words, best_epoch, done = -1.0, "", 0, 0
    args.model.parent.mkdir(parents=True, exist_ok=True)
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            tagger.train()
            summed, start = 0.0, time.perf_counter()
            with tqdm(total=total, desc=f"epoch {epoch}", unit=" words", leave=False, disable=None) as bar:
                for batch in data:
                    words = sum(len(words) for words, _ in batch)
                    done += words
                    trainer.learning_rate = learning_rate(done / (args.epochs * total + 1), args)
                    dy.renew_cg()
                    loss = tagger.loss(batch)
                    value = loss.value()
                    loss.backward()
                    trainer.update()
                    summed += value * words
                    bar.set_postfix(loss=f"{value:.3f}", refresh=False)
                    bar.update(words)
            seconds = time.perf_counter() - start
            tagger.eval()
            score, found = accuracy(tagger, dev)
            curves.add(epoch, loss=summed / total, accuracy=score)
            speed = f"{seconds:.1f} s, {total / seconds:.0f} words/s"
            print(f"epoch {epoch}: loss {summed / total:.4f}, {speed}, dev {found}", flush=True)
            if score > best:
                best, best_words, best_epoch = score, found, epoch
                dy.save_safetensors(args.model, tagger.collection, extra=tagger.sizes)
    print(f"best dev {best_words} after epoch {best_epoch}, model saved in {args.model}")


def load(path: Path) -> Tagger:
    """Build the network that was saved, and read its weights."""
    try:
        tagger = Tagger(dy.read_extra(path), dy.ParameterCollection())
    except KeyError as error:
        raise ValueError(f"{path}: the model of another program: it has no {error}") from error
    dy.load_safetensors(path, tagger.collection)
    return tagger.eval()


def hold_out(items: list[Sentence], source: object) -> tuple[list[Sentence], list[Sentence]]:
    """Split into items for training and, every tenth item, items for measuring."""
    if len(items) < 2:
        raise ValueError(f"{source}: one sentence only, none is left to train on; give --dev FILE too")
    return [item for i, item in enumerate(items) if i % 10], items[::10]


def new_sizes(sentences: list[Sentence], args: argparse.Namespace) -> dict:
    """Collect the vocabularies, and the sizes given on the command line."""
    forms = [form for words, _ in sentences for form in words]
    return {
        "words": count((form.lower() for form in forms), least=2),
        "letters": count((letter for form in forms for letter in form), least=5),
        "tags": sorted({tag for _, tags in sentences for tag in tags}),
        "layers": args.layers,
        "dim": args.dim,
        "heads": args.heads,
        "hidden": args.hidden,
        "letter_dim": args.letter_dim,
        "dropout": args.dropout,
        "word_dropout": args.word_dropout,
        "seed": args.seed,
    }


def accuracy(tagger: Tagger, sentences: list[Sentence]) -> tuple[float, str]:
    """Return the share of words whose tag is right, as a number and as text."""
    right = total = 0
    for batch in dy.data.batches(sentences, 64):
        found = tagger.tag([words for words, _ in batch])
        for guessed, (_, tags) in zip(found, batch):
            right += sum(a == b for a, b in zip(guessed, tags))
            total += len(tags)
    return right / total, f"accuracy {right / total:.2%}"


# -- data ----------------------------------------------------------------------------------------

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")


def default_treebank() -> Path:
    """The Turkish web treebank of the package turkish-treebanks."""
    try:
        files = metadata.files("turkish-treebanks") or []
    except metadata.PackageNotFoundError:
        raise ValueError("no treebank: pip install turkish-treebanks, or give one with --train FILE") from None
    print("learning from a Turkish treebank (package turkish-treebanks); --train FILE takes one of any language")
    return next(Path(str(file.locate())) for file in files if file.name == "web.conllu")


def read_rows(path: Path, required: list[str]) -> list[list[dict[str, str]]]:
    """Read a treebank in CoNLL-U, plain or gzipped: for each sentence its words, as dicts of their columns.

    Multiword tokens (ids such as 3-4) and empty nodes (3.1) are left out; the columns `required` must not be empty.
    """
    sentences: list[list[dict[str, str]]] = []
    rows: list[dict[str, str]] = []
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                number += 1
                text = line.decode("utf-8").rstrip("\r\n")
                if not text.strip() and rows:  # the sentence ends
                    sentences.append(rows)
                    rows = []
                if not text.strip() or text.startswith("#"):
                    continue
                row = dict(zip(COLUMNS, text.split("\t")))
                if text.count("\t") != 9:
                    raise ValueError(f"{1 + text.count(chr(9))} columns separated by tabs, CoNLL-U has 10")
                if "-" in row["ID"] or "." in row["ID"]:
                    continue
                if row["ID"] != str(len(rows) + 1):
                    place = f"word {len(rows) + 1} of the sentence"
                    raise ValueError(f"{place} has the id {row['ID']!r} (is a blank line missing?)")
                for column in required:
                    if row[column] in ("", "_"):
                        raise ValueError(f"no {column} for the word {row['FORM']!r}")
                rows.append(row)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}, after line {number}: not a whole gzip file: {error}") from error
    except ValueError as error:  # raised above, or by bytes that are not UTF-8
        raise ValueError(f"{path}, line {number}: {error}") from error
    sentences += [rows] if rows else []  # the last blank line may be missing
    if not sentences:
        raise ValueError(f"{path}: no sentence in {number} lines")
    return sentences


def read_sentences(path: Path, column: str) -> list[Sentence]:
    """Return the words of all sentences, with one column for each word."""
    return [([row["FORM"] for row in rows], [row[column] for row in rows]) for rows in read_rows(path, [column])]


# -- command line --------------------------------------------------------------------------------


def train_command(args: argparse.Namespace) -> None:
    training = read_sentences(args.train or default_treebank(), args.column)
    if args.dev:
        dev = read_sentences(args.dev, args.column)
    else:
        training, dev = hold_out(training, args.train)
    tagger = Tagger(new_sizes(training, args), dy.ParameterCollection())
    print(
        f"{len(training)} training and {len(dev)} dev sentences, {len(tagger.words.ids)} words, "
        f"{len(tagger.letters.ids)} letters and {len(tagger.tags)} tags in the vocabulary"
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
    add("--column", choices=COLUMNS[3:], default="UPOS", help="what to predict")
    add("--layers", type=int, default=2)
    add("--dim", type=int, default=128, help="length of the vector of a word")
    add("--heads", type=int, default=4)
    add("--hidden", type=int, default=512, help="units in the linear layers after attention")
    add("--letter-dim", type=int, default=32)
    add("--dropout", type=float, default=0.2)
    add("--word-dropout", type=float, default=0.25, help="a word seen n times is hidden at the rate of d / (d + n)")
    add("--epochs", type=int, default=10)
    add("--batch", type=int, default=16, help="sentences in a minibatch")
    add("--learning-rate", type=float, default=0.003, help="the greatest")
    add("--warmup", type=float, default=0.1, help="the fraction of training in which the learning rate rises")
    add("--seed", type=int, default=1)
    add("--model", type=Path, metavar="FILE", default=Path("runs/transformer_tagger.safetensors"))
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
        sys.exit(f"transformer_tagger.py: {error}")
    except KeyboardInterrupt:
        sys.exit("transformer_tagger.py: interrupted")


if __name__ == "__main__":
    main()
