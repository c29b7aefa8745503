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
import random
import sys
import time
from importlib import metadata
from pathlib import Path

from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config, nn
from dynet_cy.curves import Curves
from dynet_cy.data import CONLLU_COLUMNS, Vocabulary, read_conllu

Sentence = tuple[list[str], list[str]]  # its words, and their tags


class Tagger(nn.Layer):
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, sizes: dict, model: dy.ParameterCollection) -> None:
        super().__init__(model, (sizes,))
        self.sizes = sizes
        self.words = Vocabulary(sizes["words"])
        self.letters = Vocabulary(sizes["letters"])
        self.tags = Vocabulary(sizes["tags"], unknown=None)
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
        hidden = self.training and self.words.word_dropout(word, self.sizes["word_dropout"], self.rng)
        if form not in spellings:
            # A column for each letter, which depends on its neighbours; then the maximum of each row.
            letters = self.spell(self.letter_vectors([self.letters[letter] for letter in form]))
            spellings[form] = dy.max_dim(letters, 1) if len(form) > 1 else letters
        return self.word_vectors(0 if hidden else self.words[word]) + spellings[form]

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
            right = self.tags.encode(tags)
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
        return [self.tags.decode(next(found)) if words else [] for words in sentences]


# -- training ------------------------------------------------------------------------------------


def learning_rate(done: float, args: argparse.Namespace) -> float:
    """The rate after a share of the training: it rises linearly, then falls linearly to 0."""
    return args.learning_rate * min(done / args.warmup, (1 - done) / (1 - args.warmup))


def train(tagger: Tagger, training: list[Sentence], dev: list[Sentence], args: argparse.Namespace) -> None:
    """Train for all epochs; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(tagger.collection)
    trainer.set_clip_threshold(1.0)
    data = dy.data.batches(training, args.batch, shuffle=True, seed=args.seed)
    total, done = sum(len(words) for words, _ in training), 0
    args.model.parent.mkdir(parents=True, exist_ok=True)
    best = dy.EarlyStopping(tagger.collection, path=args.model)  # saves the best model; nothing is stopped
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            tagger.train()
            summed, start = 0.0, time.perf_counter()
            for batch in tqdm(data, desc=f"epoch {epoch}", unit=" batches", leave=False, disable=None):
                words = sum(len(words) for words, _ in batch)
                done += words
                trainer.learning_rate = learning_rate(done / (args.epochs * total + 1), args)
                dy.renew_cg()
                loss = tagger.loss(batch)
                summed += loss.value() * words
                loss.backward()
                trainer.update()
            seconds = time.perf_counter() - start
            tagger.eval()
            score = accuracy(tagger, dev)
            curves.add(epoch, loss=summed / total, accuracy=score)
            speed = f"{seconds:.1f} s, {total / seconds:.0f} words/s"
            print(f"epoch {epoch}: loss {summed / total:.4f}, {speed}, dev accuracy {score:.2%}", flush=True)
            best.report(score, extra=tagger.sizes)
    print(f"best dev accuracy {best.best:.2%} after epoch {best.best_at}, model saved in {args.model}")


def load(path: Path) -> Tagger:
    """Build the network that was saved, and read its weights."""
    try:
        tagger = Tagger(dy.read_extra(path), dy.ParameterCollection())
    except KeyError as error:
        raise ValueError(f"{path}: the model of another program: it has no {error}") from error
    dy.load_safetensors(path, tagger.collection)
    return tagger.eval()


def new_sizes(sentences: list[Sentence], args: argparse.Namespace) -> dict:
    """Collect the vocabularies, and the sizes given on the command line."""
    forms = [form for words, _ in sentences for form in words]
    sizes = ("layers", "dim", "heads", "hidden", "letter_dim", "dropout", "word_dropout", "seed")
    return {
        "words": Vocabulary((form.lower() for form in forms), min_count=2).counts,
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
    tagger = Tagger(new_sizes(training, args), dy.ParameterCollection())
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
