"""What the dependency parsers share: input vectors, reading, measuring and writing trees, commands.  No program."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import helpers
import learning
from conllu import COLUMNS, Tree, default_treebanks, read_columns, read_trees
from helpers import batches
from learning import UNKNOWN, Vocabulary, count

Parses = list[tuple[list[int], list[str]]]  # for each sentence the heads and the relations of its words
Parse = Callable[[list[list[str]], list[list[str]]], Parses]  # from the words and tags of sentences


class Inputs:
    """Looks up a vector for each word of a sentence: one for the word in lower case joined to one for its tag."""

    def __init__(self, dy: ModuleType, pc: Any, spec: dict) -> None:
        self.dy, self.spec = dy, spec
        self.words = Vocabulary(spec["words"])
        self.tags = Vocabulary(spec["tags"])
        self.rng = random.Random(spec["seed"])
        self.dim = spec["word_dim"] + spec["tag_dim"]
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.tag_vectors = pc.add_lookup_parameters((len(self.tags), spec["tag_dim"]))

    def look_up(self, words: list[str], tags: list[str], training: bool) -> list:
        vectors = []
        for word, tag in zip(words, tags):
            word = word.lower()
            hidden = training and self.words.hide(word, self.spec["word_dropout"], self.rng)
            word_vector = self.word_vectors[UNKNOWN if hidden else self.words.id(word)]
            vector = self.dy.concatenate([word_vector, self.tag_vectors[self.tags.id(tag)]])
            vectors.append(self.dy.dropout(vector, self.spec["dropout"]) if training else vector)
        return vectors


def attachment(parse: Parse, trees: list[Tree]) -> tuple[float, str]:
    """Return LAS, and UAS and LAS in words: the share of words (punctuation too) whose head, and relation, is right."""
    heads = both = total = 0
    for batch in batches(trees, 64):
        found = parse([tree.words for tree in batch], [tree.tags for tree in batch])
        for tree, (guessed, relations) in zip(batch, found):
            for head, right, relation, name in zip(guessed, tree.heads, relations, tree.relations):
                heads += head == right
                both += head == right and relation == name
            total += len(tree)
    return both / total, f"dev UAS {heads / total:.2%}, LAS {both / total:.2%}"


def parse_file(parse: Parse, path: Path, tags: str) -> None:
    """Print a treebank with the heads and relations found in place of what was there."""
    for batch in batches(read_columns(path, [tags]), 64):
        words = [[row["FORM"] for row in rows] for rows in batch]
        for rows, found in zip(batch, parse(words, [[row[tags] for row in rows] for rows in batch])):
            print_tree(rows, *found)


def print_tree(rows: Iterable[dict[str, str]], heads: list[int], relations: list[str]) -> None:
    """Print a sentence in CoNLL-U; columns that are not given are empty."""
    for number, (row, head, relation) in enumerate(zip(rows, heads, relations), start=1):
        row = {**row, "ID": str(number), "HEAD": str(head), "DEPREL": relation, "DEPS": "_"}
        print("\t".join(row.get(column, "_") for column in COLUMNS))
    print(flush=True)


# -- commands ------------------------------------------------------------------------------------


def main(
    program: str,
    description: str,
    build: Callable[[ModuleType, dict], Any],
    sizes: dict[str, float],
) -> None:
    """Train or parse, as the command line says.

    `build(engine, spec)` makes a network with the methods `loss`, for `learning.train`, and `parse`.  `sizes` are what
    its spec holds beside the vocabularies; each is an option too.
    """
    args = _command_line(program, description, sizes)

    def run() -> None:
        if args.command == "train":
            _train(args, build, list(sizes))
        else:
            engine = helpers.import_engine(args, args.autobatch)
            parser = learning.load(lambda spec: build(engine, spec), args.model)
            parse_file(parser.parse, args.file, parser.spec["tag_column"])

    learning.guarded(f"{program}.py", run)


def _train(args: argparse.Namespace, build: Callable[[ModuleType, dict], Any], sizes: list[str]) -> None:
    training = read_trees(args.train or default_treebanks()[0], args.tags)[: args.limit]
    if args.dev:
        dev = read_trees(args.dev, args.tags)[: args.limit]
    else:
        training, dev = learning.hold_out(training, args.train)
    engine = helpers.import_engine(args, args.autobatch)
    spec = {
        "words": count((word.lower() for tree in training for word in tree.words), least=2),
        "tags": count(tag for tree in training for tag in tree.tags),
        "relations": sorted({relation for tree in training for relation in tree.relations}),
        "tag_column": args.tags,
        "seed": args.seed,
        **{size: getattr(args, size) for size in sizes},
    }
    print(
        f"{len(training)} training and {len(dev)} dev sentences, {len(spec['words'])} words, "
        f"{len(spec['tags'])} tags and {len(spec['relations'])} relations"
    )
    parser = build(engine, spec)
    learning.train(engine, parser, training, len, lambda: attachment(parser.parse, dev), args)
    best = learning.load(lambda spec: build(engine, spec), args.model)
    rows = [{"FORM": word, args.tags: tag} for word, tag in zip(dev[0].words, dev[0].tags)]
    print_tree(rows, *best.parse([dev[0].words], [dev[0].tags])[0])


def _command_line(program: str, description: str, sizes: dict[str, float]) -> argparse.Namespace:
    """Read the commands `train`, which is the one without a name, and `parse`."""
    parser = argparse.ArgumentParser(description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    for_all = {"formatter_class": argparse.ArgumentDefaultsHelpFormatter}

    command = commands.add_parser("train", help="train a parser (done if no command is named)", **for_all)
    add = command.add_argument
    add("--train", type=Path, metavar="FILE", help="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks")
    add("--dev", type=Path, metavar="FILE", help="CoNLL-U; else every tenth sentence of the training file")
    add("--limit", type=int, metavar="N", help="take the first N sentences of each file only")
    add("--tags", choices=["UPOS", "XPOS"], default="UPOS", help="which tags to read beside the words")
    for size, default in sizes.items():
        add(f"--{size.replace('_', '-')}", type=type(default), default=default, help="see the program's SIZES")
    learning.add_training(command, epochs=10, batch=16, rate=0.002)
    learning.add_common(command, program)

    command = commands.add_parser("parse", help="parse a CoNLL-U file, whose words have tags", **for_all)
    command.add_argument("file", type=Path)
    learning.add_common(command, program)
    return parser.parse_args(learning.train_first(sys.argv[1:]))
