"""Named entities: a BiLSTM over words and letters, and above it a CRF, which scores whole sequences of tags.

    python ner.py                                              # names in a Turkish treebank, then tag a sentence
    python ner.py --train train.conll --dev dev.conll          # one word and its tag per line, as in CoNLL-2003
    python ner.py --train train.txt --dev dev.txt              # one sentence per line, word|tag word|tag, as in WikiNER
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
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np
from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.curves import Curves
from dynet_cy.data import ConlluSentence, Vocabulary, read_conllu

Sentence = tuple[list[str], list[str]]  # its words, and their tags


class Tagger:
    """The scores of the tags for each word.  `spec` holds everything needed to build it again, except the weights."""

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


class Recognizer(Tagger):
    """The tagger, with further scores for each pair of adjacent tags."""

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


# -- training ------------------------------------------------------------------------------------


def train(recognizer: Recognizer, training: list[Sentence], dev: list[Sentence], args: argparse.Namespace) -> None:
    """Train for all epochs, or until several bring no improvement; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(recognizer.pc)
    data = dy.data.batches(training, args.batch, shuffle=True, seed=args.seed)
    total, done, best = sum(len(words) for words, _ in training), 0, ""
    args.model.parent.mkdir(parents=True, exist_ok=True)
    stopping = dy.EarlyStopping(recognizer.pc, args.patience, path=args.model)
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            recognizer.training = True
            summed, start = 0.0, time.perf_counter()
            for batch in tqdm(data, desc=f"epoch {epoch}", unit=" batches", leave=False, disable=None):
                trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * total))
                dy.renew_cg()
                loss = recognizer.loss(batch)
                words = sum(len(words) for words, _ in batch)
                summed += loss.value() * words
                loss.backward()
                trainer.update()
                done += words
            seconds = time.perf_counter() - start
            recognizer.training = False
            score, found = f1(recognizer, dev)
            curves.add(epoch, loss=summed / total, F1=score)
            speed = f"{seconds:.1f} s, {total / seconds:.0f} words/s"
            print(f"epoch {epoch}: loss {summed / total:.4f}, {speed}, dev {found}", flush=True)
            best = found if stopping.report(score, extra=recognizer.spec) else best
            if stopping.stopped:
                print(f"no better for {args.patience} epochs: stopping")
                break
    print(f"best dev {best} after epoch {stopping.best_at}, model saved in {args.model}")


def load(path: Path) -> Recognizer:
    """Build the network that was saved, and read its weights."""
    try:
        recognizer = Recognizer(dy.read_extra(path))
    except KeyError as error:
        raise ValueError(f"{path}: the model of another program: it has no {error}") from error
    dy.load_safetensors(path, recognizer.pc)
    return recognizer


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


def f1(recognizer: Recognizer, sentences: list[Sentence]) -> tuple[float, str]:
    """Return F1, and precision, recall and F1 as text: an entity is right if its bounds and its kind are."""
    right = guessed = true = 0
    for batch in dy.data.batches(sentences, 64):
        for tags, (_, gold) in zip(recognizer.tag([words for words, _ in batch]), batch):
            found, wanted = entities(tags), entities(gold)
            right, guessed, true = right + len(found & wanted), guessed + len(found), true + len(wanted)
    score = 2 * right / max(1, guessed + true)
    precision, recall = right / max(1, guessed), right / max(1, true)
    return score, f"precision {precision:.2%}, recall {recall:.2%}, F1 {score:.2%}"


# -- data ----------------------------------------------------------------------------------------


def read_tagged(path: Path) -> list[Sentence]:
    """Read the sentences of a file, plain or gzipped, with their tags as BIO; its suffix selects the format."""
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind == ".conllu":
        return [(sentence.form, proper_nouns(sentence)) for sentence in read_conllu(path, required=["UPOS"])]
    sentences: list[Sentence] = []
    pairs: list[list[str]] = []
    lines = dy.data.lines(path)
    for number, line in enumerate(lines, 1):
        # Split only at blanks and tabs: a word may contain a no-break space.
        fields = [field for field in line.replace("\t", " ").split(" ") if field]
        if kind != ".conll":
            pairs = [field.rsplit("|", 1) for field in fields]
        elif fields and fields[0] != "-DOCSTART-":
            pairs.append([fields[0], fields[-1]] if len(fields) > 1 else fields)
        for pair in pairs[-1:] if kind == ".conll" else pairs:
            if len(pair) < 2 or pair[1] != "O" and pair[1][:2] not in ("B-", "I-"):
                raise ValueError(f"{path}, line {number}: no tag (O, B-... or I-...) at {pair[0]!r}")
        if pairs and (kind != ".conll" or not fields or number == len(lines)):  # the sentence ends
            sentences.append(([word for word, _ in pairs], to_bio([tag for _, tag in pairs])))
            pairs = []
    if not sentences:
        raise ValueError(f"{path}: no sentence in {len(lines)} lines")
    return sentences


def proper_nouns(sentence: ConlluSentence) -> list[str]:
    """Tag the sequences of proper nouns in a sentence of a treebank."""
    columns = zip(sentence.upos, sentence.feats)
    proper = [tag == "PROPN" or "Proper=True" in feats.split("|") for tag, feats in columns]
    return to_bio(["I-NAME" if is_proper else "O" for is_proper in proper])


def to_bio(tags: list[str]) -> list[str]:
    """Convert tags from either of the two common formats (IOB1, BIO) to BIO: each entity begins with B-."""
    fixed = []
    for before, tag in zip(["O", *tags], tags):
        fixed.append("B" + tag[1:] if tag[0] == "I" and before[1:] != tag[1:] else tag)
    return fixed


def entities(tags: list[str]) -> set[tuple[int, int, str]]:
    """Return the entities of a sentence: for each its first word, the word after its last, and its kind."""
    tags = to_bio(tags)
    starts = [i for i, tag in enumerate(tags) if tag[0] == "B"]
    return {
        (i, next((j for j in range(i + 1, len(tags)) if tags[j][0] != "I"), len(tags)), tags[i][2:]) for i in starts
    }


def default_treebank() -> Path:
    """The Turkish web treebank of the package turkish-treebanks."""
    try:
        files = metadata.files("turkish-treebanks") or []
    except metadata.PackageNotFoundError:
        raise ValueError("no treebank: pip install turkish-treebanks, or give one with --train FILE") from None
    print("learning from a Turkish treebank (package turkish-treebanks); --train FILE takes one of any language")
    return next(Path(str(file.locate())) for file in files if file.name == "web.conllu")


# -- command line --------------------------------------------------------------------------------


def train_command(args: argparse.Namespace) -> None:
    training = read_tagged(args.train or default_treebank())[: args.limit]
    if args.dev:
        dev = read_tagged(args.dev)[: args.limit]
    elif len(training) < 2:
        source = args.train or "--limit 1"
        raise ValueError(f"{source}: one sentence only, none is left to train on; give --dev FILE too")
    else:  # every tenth
        training, dev = [sentence for i, sentence in enumerate(training) if i % 10], training[::10]
    recognizer = Recognizer(new_spec(training, args))
    print(
        f"{len(training)} training sentences with {sum(len(entities(tags)) for _, tags in training)} entities, "
        f"{len(dev)} dev sentences with {sum(len(entities(tags)) for _, tags in dev)}; "
        f"tags {' '.join(recognizer.tags.words)}"
    )
    train(recognizer, training, dev, args)
    print_tagged(load(args.model), [dev[0][0]])


def tag_text(recognizer: Recognizer, file: str) -> None:
    with sys.stdin if file == "-" else open(file, encoding="utf-8") as lines:
        # A user at a terminal wants each answer at once; a file is faster in batches.
        for batch in dy.data.batches(lines, 1 if lines.isatty() else 64):
            print_tagged(recognizer, [line.split() for line in batch])


def print_tagged(recognizer: Recognizer, sentences: list[list[str]]) -> None:
    for words, tags in zip(sentences, recognizer.tag(sentences)):
        print(" ".join(f"{word}/{tag}" for word, tag in zip(words, tags)), flush=True)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a recognizer of named entities, or tag text with one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "tag"], default="train")
    add("file", nargs="?", default="-", help="tag: text, one sentence per line, split into words; - for standard input")
    add("--train", type=Path, metavar="FILE", help=".conllu, .conll, or lines of word|tag; each plain or .gz")
    add("--dev", type=Path, metavar="FILE", help="likewise; else every tenth sentence of the training file")
    add("--limit", type=int, metavar="N", help="take only the first N sentences of each file")
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
    add("--model", type=Path, metavar="FILE", default=Path("runs/ner.safetensors"))
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
        sys.exit(f"ner.py: {error}")
    except KeyboardInterrupt:
        sys.exit("ner.py: interrupted")


if __name__ == "__main__":
    main()
