"""A transition-based dependency parser: a BiLSTM reads the sentence, an MLP chooses one action after the other.

    python transition_parser.py                                # train on a Turkish treebank, then parse a sentence
    python transition_parser.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python transition_parser.py parse text.conllu              # print a treebank with the trees found

The choice is made from the BiLSTM's states of four words: the three on top
of the stack and the next one to be read (Kiperwasser and Goldberg, Simple and Accurate Dependency Parsing Using
Bidirectional LSTM Feature Representations, TACL 2016).

In training, the parser now and then takes the action with the best score, even if it is wrong, and learns which action
is best after it.  So the graph of each sentence depends on values.  The code is still written for one sentence:
`batched_map` runs the sentences of a minibatch side by side, and computes their scores together.
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
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.curves import Curves


@dataclass
class Tree:
    """A sentence and its dependency tree: the head of a word is the number of another, from 1 on, or 0 for the root."""

    words: list[str]
    tags: list[str]
    heads: list[int]
    relations: list[str]

    def __len__(self) -> int:
        return len(self.words)


Parses = list[tuple[list[int], list[str]]]  # for each sentence the heads and the relations of its words

SIZES = {
    "word_dim": 100,
    "tag_dim": 32,
    "hidden": 128,  # of the BiLSTM, in each direction
    "layers": 2,
    "mlp_dim": 128,
    "dropout": 0.33,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
    "explore": 0.1,  # probability that it takes the action with the best score in training, even if it is wrong
}

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


class Inputs:
    """Looks up a vector for each word of a sentence: one for the word in lower case joined to one for its tag."""

    def __init__(self, pc: dy.ParameterCollection, spec: dict) -> None:
        self.spec = spec
        self.words = Vocabulary(spec["words"])
        self.tags = Vocabulary(spec["tags"])
        self.rng = random.Random(spec["seed"])
        self.dim = spec["word_dim"] + spec["tag_dim"]
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.tag_vectors = pc.add_lookup_parameters((len(self.tags), spec["tag_dim"]))

    def look_up(self, words: list[str], tags: list[str], training: bool) -> list[dy.Expression]:
        vectors = []
        for word, tag in zip(words, tags):
            word = word.lower()
            hidden = training and self.words.hide(word, self.spec["word_dropout"], self.rng)
            word_vector = self.word_vectors[UNKNOWN if hidden else self.words.id(word)]
            vector = dy.concatenate([word_vector, self.tag_vectors[self.tags.id(tag)]])
            vectors.append(dy.dropout(vector, self.spec["dropout"]) if training else vector)
        return vectors


class Parser:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.actions = actions_for(spec["relations"])
        self.ids = {action: i for i, action in enumerate(self.actions)}
        self.training = False  # whether to apply dropout
        self.rng = random.Random(spec["seed"])

        self.pc = pc = dy.ParameterCollection()
        self.inputs = Inputs(pc, spec)
        self.root = pc.add_parameters(self.inputs.dim)  # comes before the first word
        states, hidden = 2 * spec["hidden"], spec["mlp_dim"]
        self.reader = dy.BiRNNBuilder(spec["layers"], self.inputs.dim, states, pc, dy.LSTMBuilder)
        self.nothing = pc.add_parameters(states)  # takes the place of a missing word
        self.looks = [pc.add_parameters((hidden, states)) for _ in range(4)]
        self.bias = pc.add_parameters(hidden, init=0)
        self.choose = pc.add_parameters((len(self.actions), hidden))
        self.choose_bias = pc.add_parameters(len(self.actions), init=0)

    def start(self, words: list[str], tags: list[str]) -> State:
        inputs = [self.root, *self.inputs.look_up(words, tags, self.training)]
        return State(self, self.reader.transduce(inputs), self.nothing * 1.0)

    def loss(self, batch: list[Tree]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch: each word takes two actions."""
        if self.training:
            self.reader.set_dropout(self.spec["dropout"])
        losses = dy.batched_map(self.loss_of_one, batch, [self.rng.random() for _ in batch])
        return dy.esum(losses) / sum(len(tree) for tree in batch)

    def loss_of_one(self, tree: Tree, seed: float) -> dy.Expression:
        state = self.start(tree.words, tree.tags)
        return explored_loss(state, Oracle(tree, self.ids), self.spec["explore"], random.Random(seed))

    def parse(self, words: list[list[str]], tags: list[list[str]]) -> Parses:
        """Return the heads and the relations of sentences."""
        dy.renew_cg(forward_only=True)
        self.reader.disable_dropout()
        return dy.batched_map(self.parse_one, words, tags)

    def parse_one(self, words: list[str], tags: list[str]) -> tuple[list[int], list[str]]:
        return take_best(self.start(words, tags), self.actions)


class State:
    """A partly parsed sentence."""

    def __init__(self, parser: Parser, vectors: list[dy.Expression], nothing: dy.Expression) -> None:
        self.parser = parser
        self.vectors = vectors  # of the root, and of each word
        self.nothing = nothing  # a node like these, not a parameter, so that all configurations batch
        self.configuration = Configuration(len(vectors) - 1)

    def scores(self) -> dy.Expression:
        """Return the scores of all actions, including those that are not allowed."""
        net, now = self.parser, self.configuration
        words = [*now.stack[:-4:-1], *[None] * (3 - len(now.stack)), now.next if now.next <= now.length else None]
        terms = [net.bias]
        for look, word in zip(net.looks, words):
            terms += [look, self.nothing if word is None else self.vectors[word]]
        hidden = dy.rectify(dy.affine_transform(terms))
        if net.training:
            hidden = dy.dropout(hidden, net.spec["dropout"])
        return dy.affine_transform([net.choose_bias, net.choose, hidden])

    def take(self, action: Action) -> None:
        self.configuration.apply(action)


# -- the actions ---------------------------------------------------------------------------------
# The actions of the arc-hybrid system: a stack holds words, with the root 0 at its bottom; the unread words follow in
# order.  `shift` reads the next word onto the stack.  `left` makes the next word the head of the one on top of the
# stack, `right` the one below it; the word that gets its head leaves the stack.  Every tree without crossing arcs can
# be built.  The cost of an action is the number of arcs of the correct tree that it makes impossible.  So the best
# actions are known in every configuration, even after errors of the parser, and for trees with crossing arcs
# (Goldberg and Nivre, Training Deterministic Parsers with Non-Deterministic Oracles, TACL 2013).

Action = tuple[str, str]  # shift, left or right, and the relation of the arc
SHIFT: Action = ("shift", "")


def actions_for(relations: list[str]) -> list[Action]:
    return [SHIFT, *((kind, relation) for kind in ("left", "right") for relation in relations)]


class Configuration:
    """The state of a parse: the stack, the next word to be read, the heads and relations found so far."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.stack = [0]
        self.next = 1
        self.heads = [-1] * (length + 1)
        self.relations = [""] * (length + 1)

    def over(self) -> bool:
        return self.next > self.length and len(self.stack) == 1

    def allowed(self) -> set[str]:
        """Return the kinds of actions that are possible; the root gets only one word, after all have been read."""
        kinds = {"shift", "left"} if self.next <= self.length else set()
        if len(self.stack) == 1:
            kinds.discard("left")
        elif len(self.stack) > 2 or not kinds:
            kinds.add("right")
        return kinds

    def apply(self, action: Action) -> None:
        kind, relation = action
        if kind == "shift":
            self.stack.append(self.next)
            self.next += 1
            return
        child = self.stack.pop()
        self.heads[child] = self.next if kind == "left" else self.stack[-1]
        self.relations[child] = relation


class Oracle:
    """Knows the correct tree of a sentence, and so the best actions in each configuration."""

    def __init__(self, tree: Tree, ids: dict[Action, int]) -> None:
        self.tree, self.ids = tree, ids
        self.heads = [-1, *tree.heads]
        self.children: list[list[int]] = [[] for _ in self.heads]
        for child, head in enumerate(tree.heads, start=1):
            self.children[head].append(child)
        self.of_kind: dict[str, list[int]] = {}
        for (kind, _), number in ids.items():
            self.of_kind.setdefault(kind, []).append(number)

    def cost(self, now: Configuration, kind: str) -> int:
        """Return the number of arcs of the correct tree that an action of this kind loses."""
        top, word = now.stack[-1], now.next
        if kind == "shift":  # the word can get no more children from the stack, and no head from below its top
            return sum(child in now.stack for child in self.children[word]) + (self.heads[word] in now.stack[:-1])
        lost = sum(child >= word for child in self.children[top])
        if kind == "left":
            return lost + (self.heads[top] == now.stack[-2] or self.heads[top] > word)
        return lost + (self.heads[top] >= word)

    def best(self, now: Configuration) -> list[int]:
        """Return the numbers of all actions with the lowest cost, those that make an arc first."""
        costs = {kind: self.cost(now, kind) for kind in ("left", "right", "shift") if kind in now.allowed()}
        least, found = min(costs.values()), []
        for kind, cost in costs.items():
            if cost == least:
                head, child = now.next if kind == "left" else now.stack[-2:][0], now.stack[-1]
                right = kind != "shift" and self.heads[child] == head  # then its relation counts too
                found += [self.ids[kind, self.tree.relations[child - 1]]] if right else self.of_kind[kind]
        return found


def explored_loss(state: State, oracle: Oracle, explore: float, rng: random.Random) -> dy.Expression:
    """Return the summed loss of the actions of a sentence.

    The target is the best action; if there are several, the one with the highest score.  At the rate of `explore`, the
    parser takes the action with the network's highest score, right or wrong, so that it learns to continue after
    errors.  At a rate of 0 no value is needed: the first of the best actions is the target, and is taken.
    """
    names, losses, now = list(oracle.ids), [], state.configuration
    while not now.over():
        scores, best = state.scores(), oracle.best(now)
        learnt = taken = best[0]
        if explore:
            values = scores.npvalue()
            learnt = taken = max(best, key=lambda number: values[number])
            if rng.random() < explore:
                taken = best_allowed(values, names, now.allowed())
        losses.append(dy.pickneglogsoftmax(scores, learnt))
        state.take(names[taken])
    return dy.esum(losses)


def take_best(state: State, names: list[Action]) -> tuple[list[int], list[str]]:
    """Take the action with the best score until the tree is complete; return its heads and relations."""
    now = state.configuration
    while not now.over():
        state.take(names[best_allowed(state.scores().npvalue(), names, now.allowed())])
    return now.heads[1:], now.relations[1:]


def best_allowed(values: np.ndarray, names: list[Action], allowed: set[str]) -> int:
    """Return the number of the action with the highest score among those that are allowed."""
    return next(i for i in (-values).argsort() if names[i][0] in allowed)


# -- training ------------------------------------------------------------------------------------


def train(parser: Parser, training: list[Tree], dev: list[Tree], args: argparse.Namespace) -> None:
    """Train for all epochs, or until several bring no improvement; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(parser.pc)
    data = dy.data.batches(training, args.batch, shuffle=True, seed=args.seed)
    total = sum(len(tree) for tree in training)
    best, best_words, best_epoch, done = -1.0, "", 0, 0
    args.model.parent.mkdir(parents=True, exist_ok=True)
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            parser.training = True
            summed, start = 0.0, time.perf_counter()
            with tqdm(total=total, desc=f"epoch {epoch}", unit=" words", leave=False, disable=None) as bar:
                for batch in data:
                    trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * total))
                    dy.renew_cg()
                    loss = parser.loss(batch)
                    value = loss.value()
                    loss.backward()
                    trainer.update()
                    words = sum(len(tree) for tree in batch)
                    done += words
                    summed += value * words
                    bar.set_postfix(loss=f"{value:.3f}", refresh=False)
                    bar.update(words)
            seconds = time.perf_counter() - start
            parser.training = False
            score, found = attachment(parser, dev)
            curves.add(epoch, loss=summed / total, LAS=score)
            print(
                f"epoch {epoch}: loss {summed / total:.4f}, {seconds:.1f} s, {total / seconds:.0f} words/s, "
                f"dev {found}",
                flush=True,
            )
            if score > best:
                best, best_words, best_epoch = score, found, epoch
                dy.save_safetensors(args.model, parser.pc, extra=parser.spec)
            elif epoch - best_epoch >= args.patience:
                print(f"no better for {args.patience} epochs: stopping")
                break
    print(f"best dev {best_words} after epoch {best_epoch}, model saved in {args.model}")


def load(path: Path) -> Parser:
    """Build the network that was saved, and read its weights."""
    try:
        parser = Parser(dy.read_extra(path))
    except KeyError as error:
        raise ValueError(f"{path}: the model of another program: it has no {error}") from error
    dy.load_safetensors(path, parser.pc)
    return parser


def hold_out(items: list[Tree], source: object) -> tuple[list[Tree], list[Tree]]:
    """Split into items for training and, every tenth item, items for measuring."""
    if len(items) < 2:
        raise ValueError(f"{source}: one sentence only, none is left to train on; give --dev FILE too")
    return [item for i, item in enumerate(items) if i % 10], items[::10]


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


def read_trees(path: Path, tags: str = "UPOS") -> list[Tree]:
    """Return the trees of all sentences, with one column as the tags of their words."""
    trees = []
    for number, rows in enumerate(read_rows(path, [tags, "HEAD", "DEPREL"]), start=1):
        words, labels, heads, relations = ([row[column] for row in rows] for column in ("FORM", tags, "HEAD", "DEPREL"))
        for head in heads:
            if not head.isdecimal() or int(head) > len(words):
                raise ValueError(f"{path}, sentence {number}: HEAD {head!r} is not a word")
        trees.append(Tree(words, labels, [int(head) for head in heads], relations))
        if not is_tree(trees[-1].heads):
            raise ValueError(f"{path}, sentence {number}: it must have one root and no cycle")
    return trees


def is_tree(heads: list[int]) -> bool:
    """Return whether exactly one word has the head 0, and all other words are below it."""
    reached: set[int] = {0}
    for word in range(1, len(heads) + 1):
        path = []
        while word not in reached and word not in path:
            path.append(word)
            word = heads[word - 1]
        if word not in reached:  # a cycle
            return False
        reached.update(path)
    return heads.count(0) == 1


def attachment(parser: Parser, trees: list[Tree]) -> tuple[float, str]:
    """Return LAS, and UAS and LAS as text: the share of words, with punctuation, whose head (and relation) is right."""
    heads = both = total = 0
    for batch in dy.data.batches(trees, 64):
        found = parser.parse([tree.words for tree in batch], [tree.tags for tree in batch])
        for tree, (guessed, relations) in zip(batch, found):
            for head, right, relation, name in zip(guessed, tree.heads, relations, tree.relations):
                heads += head == right
                both += head == right and relation == name
            total += len(tree)
    return both / total, f"UAS {heads / total:.2%}, LAS {both / total:.2%}"


def print_tree(rows: Iterable[dict[str, str]], heads: list[int], relations: list[str]) -> None:
    """Print a sentence in CoNLL-U; columns that are not given are empty."""
    for number, (row, head, relation) in enumerate(zip(rows, heads, relations), start=1):
        row = {**row, "ID": str(number), "HEAD": str(head), "DEPREL": relation, "DEPS": "_"}
        print("\t".join(row.get(column, "_") for column in COLUMNS))
    print(flush=True)


# -- command line --------------------------------------------------------------------------------


def train_command(args: argparse.Namespace) -> None:
    training = read_trees(args.train or default_treebank(), args.tags)[: args.limit]
    if args.dev:
        dev = read_trees(args.dev, args.tags)[: args.limit]
    else:
        training, dev = hold_out(training, args.train or "--limit 1")
    spec = {
        "words": count((word.lower() for tree in training for word in tree.words), least=2),
        "tags": count(tag for tree in training for tag in tree.tags),
        "relations": sorted({relation for tree in training for relation in tree.relations}),
        "tag_column": args.tags,
        "seed": args.seed,
        **{size: getattr(args, size) for size in SIZES},
    }
    print(
        f"{len(training)} training and {len(dev)} dev sentences, {len(spec['words'])} words, "
        f"{len(spec['tags'])} tags and {len(spec['relations'])} relations"
    )
    train(Parser(spec), training, dev, args)
    rows = [{"FORM": word, args.tags: tag} for word, tag in zip(dev[0].words, dev[0].tags)]
    print_tree(rows, *load(args.model).parse([dev[0].words], [dev[0].tags])[0])


def parse_command(args: argparse.Namespace) -> None:
    """Print a treebank, with its heads and relations replaced by the predicted ones."""
    if args.file is None:
        raise ValueError("parse: a file is needed")
    parser = load(args.model)
    tags = parser.spec["tag_column"]
    sentences = read_rows(args.file, [tags])
    for batch in dy.data.batches(sentences, 64):
        words = [[row["FORM"] for row in rows] for rows in batch]
        for rows, found in zip(batch, parser.parse(words, [[row[tags] for row in rows] for rows in batch])):
            print_tree(rows, *found)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a transition-based dependency parser, or parse with one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "parse"], default="train")
    add("file", nargs="?", type=Path, help="parse: a CoNLL-U file, whose words have tags")
    add("--train", type=Path, metavar="FILE", help="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks")
    add("--dev", type=Path, metavar="FILE", help="CoNLL-U; else every tenth sentence of the training file")
    add("--limit", type=int, metavar="N", help="take only the first N sentences of each file")
    add("--tags", choices=["UPOS", "XPOS"], default="UPOS", help="which tags to read with the words")
    for size, value in SIZES.items():
        add(f"--{size.replace('_', '-')}", type=type(value), default=value, help="see SIZES in the program")
    add("--epochs", type=int, default=10, help="the learning rate falls to 0 over them")
    add("--patience", type=int, default=3, help="epochs without a better score before it stops")
    add("--batch", type=int, default=16, help="sentences in a minibatch")
    add("--learning-rate", type=float, default=0.002, help="initial learning rate")
    add("--seed", type=int, default=1)
    add("--model", type=Path, metavar="FILE", default=Path("runs/transition_parser.safetensors"))
    add("--curves", type=Path, metavar="FILE", help="plot loss and score to this file: .svg, .png or .pdf (matplotlib)")
    add("--tensorboard", type=Path, metavar="DIR", help="log them for TensorBoard (tensorboardX)")
    config.add_options(parser)
    return parser.parse_intermixed_args(argv)


def main() -> None:
    args = parse(sys.argv[1:])
    dy.reset_random_seed(args.seed)
    try:
        (train_command if args.command == "train" else parse_command)(args)
    except (OSError, ValueError) as error:
        sys.exit(f"transition_parser.py: {error}")
    except KeyboardInterrupt:
        sys.exit("transition_parser.py: interrupted")


if __name__ == "__main__":
    main()
