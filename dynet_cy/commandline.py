"""Command lines of training programs: their common options, and errors as messages."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dynet_cy import config
from dynet_cy.data import ConlluSentence, Vocabulary, hold_out, installed, map_batches, read_conllu
from dynet_cy.files.checkpoint import load_network
from dynet_cy.files.reading import numbered_lines
from dynet_cy.graph.expressions import reset_random_seed
from dynet_cy.model import ParameterCollection
from dynet_cy.parallel.runtime import current
from dynet_cy.train.training import Training

__all__ = ["Parser", "input_lines", "read_data", "run_dependency_parser", "training"]

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` with the usual options of a training program.

    They are ``--seed``, ``--model`` (default: a file in "runs" that is named like the program), ``--curves`` and
    ``--tensorboard`` for `curves.Curves`, those of dynet_cy, and those that are given a default here. Further ones are
    added by `add_argument`. The parsed `sizes` are also in one dictionary, ``args.sizes``.

    Args:
        description: what the program does
        data: what the files of ``--train`` and ``--dev`` are; see `read_data`. None: there are no such options
        epochs: default of ``--epochs``; None: there is no such option
        patience: default of ``--patience``
        batch: default of ``--batch``
        learning_rate: default of ``--learning-rate``
        sizes: further options that are numbers, by their names, with their defaults: sizes of layers, rates of dropout
        command: the name of what the program can do besides training; the first argument is it or "train", the default,
            and the second one is a file
        file: what that file is; None: there is no such argument
        stdin: whether the file is the standard input if none is given; otherwise it must be given
        saves: whether there is an option ``--model``
        curves: whether there are ``--curves`` and ``--tensorboard``

    Example:
        >>> from dynet_cy import commandline
        >>> parser = commandline.Parser("Train a tagger.", epochs=10, sizes={"hidden": 128, "dropout": 0.3})
        >>> args = parser.parse_args(["--epochs", "5", "--dropout", "0"])
        >>> args.epochs, args.dropout, args.seed, args.sizes
        (5, 0.0, 1, {'hidden': 128, 'dropout': 0.0})
        >>> parser = commandline.Parser("Train a tagger, or tag text.", command="tag", file="sentences")
        >>> args = parser.parse_args(["tag", "text.txt"])
        >>> args.command, args.file
        ('tag', 'text.txt')
    """

    def __init__(
        self,
        description: str,
        *,
        data: str | None = None,
        epochs: int | None = None,
        patience: int | None = None,
        batch: int | None = None,
        learning_rate: float | None = None,
        sizes: Mapping[str, float] | None = None,
        command: str | None = None,
        file: str | None = None,
        stdin: bool = True,
        saves: bool = True,
        curves: bool = True,
    ) -> None:
        program = Path(sys.argv[0])
        super().__init__(program.name, None, description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        self._command = command
        self.set_defaults(sizes=dict(sizes or {}))
        if command is not None:
            self.add_argument("command", nargs="?", choices=["train", command], default="train")
        if file is not None:
            text = f"{command}: {file}" + ("; - for the standard input" if stdin else "")
            self.add_argument("file", nargs="?", default="-" if stdin else None, help=text)
        usual = {
            "epochs": (epochs, "times to go through the data"),
            "patience": (patience, "epochs without a better score before it stops"),
            "batch": (batch, "examples in a minibatch"),
            "learning_rate": (learning_rate, "learning rate, of the beginning or the greatest"),
            "seed": (1, "of all random numbers"),
            **{name: (value, "size or rate in the network") for name, value in (sizes or {}).items()},
        }
        for name, (value, text) in usual.items():
            if value is not None:
                action = _SetSize if name in (sizes or {}) else "store"
                option = f"--{name.replace('_', '-')}"
                kind = float if name == "learning_rate" else type(value)
                self.add_argument(option, type=kind, default=value, action=action, help=text)
        if data is not None:
            self.add_argument("--train", type=Path, metavar="FILE", help=data)
            self.add_argument("--dev", type=Path, metavar="FILE", help="the same; else a tenth of the training data")
            self.add_argument(
                "--limit", type=int, metavar="N", help="only the first N examples of --train and of --dev"
            )
        if saves:
            model = Path("runs", f"{program.stem}.safetensors")
            self.add_argument("--model", type=Path, metavar="FILE", default=model, help="the trained model")
        if curves:
            self.add_argument("--curves", type=Path, metavar="FILE", help="plot the training: .svg, .png or .pdf")
            self.add_argument("--tensorboard", type=Path, metavar="DIR", help="log the training for TensorBoard")
        config.add_options(self)

    def run(self, main: Callable[[argparse.Namespace], Any], argv: Sequence[str] | None = None) -> None:
        """Parse the command line, seed the random numbers of dynet_cy, and call `main` with the arguments.

        The program ends with a message and the status 1, without a traceback, after an `OSError` or a `ValueError`,
        such as those of bad files, after an `ImportError` of a package that is not installed, after Ctrl-C, and if the
        command needs a file that is not given.

        Args:
            main: a function of the namespace of arguments
            argv: the arguments; by default those of the program

        Example:
            >>> from dynet_cy import commandline
            >>> commandline.Parser("Count.", epochs=3).run(lambda args: print(args.epochs), [])
            3
        """
        args = self.parse_intermixed_args(argv)
        reset_random_seed(args.seed)
        try:
            if getattr(args, "file", "") is None and args.command == self._command:
                raise ValueError(f"{self._command}: a file is needed")
            main(args)
        except (ImportError, OSError, ValueError) as error:
            sys.exit(f"{self.prog}: {error}")
        except KeyboardInterrupt:
            sys.exit(f"{self.prog}: interrupted")


class _SetSize(argparse.Action):
    """Sets an option that also stands in the dictionary of the sizes."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values)
        namespace.sizes = {**namespace.sizes, self.dest: values}


def input_lines(file: str | os.PathLike[str] = "-", size: int = 64) -> Iterator[list[str]]:
    """Read lines in batches; at a terminal one by one, since a user waits for each answer.

    Args:
        file: name of the file, in UTF-8; "-" for the standard input
        size: how many lines a batch has otherwise

    Raises:
        OSError: the file cannot be read
        ValueError: it is not UTF-8

    Example:
        >>> from dynet_cy import commandline
        >>> with open("text", "w") as file:
        ...     _ = file.write("a dog\\na cat\\na bird\\n")
        >>> list(commandline.input_lines("text", 2))
        [['a dog', 'a cat'], ['a bird']]
    """
    text: Iterable[str] = sys.stdin
    if file != "-":
        text = (line for _, line in numbered_lines(file, "a text"))
    most, batch = 1 if file == "-" and sys.stdin.isatty() else size, []
    for line in text:
        batch.append(line.rstrip("\n"))
        if len(batch) == most:
            yield batch
            batch = []
    if batch:
        yield batch


def read_data(
    args: argparse.Namespace,
    read: Callable[[Path], Sequence[T]],
    default: tuple[str, str] | Callable[[], Sequence[T]] | None = None,
) -> tuple[list[T], list[T]]:
    """Read training and evaluation data by the options ``--train``, ``--dev`` and ``--limit``.

    Args:
        args: what a `Parser` with these options has parsed
        read: a function that reads a file
        default: what to train with if there is no ``--train``: the names of an installed package and of its file, see
            `data.installed`; or a function that returns the data; None: there must be a ``--train``

    Returns:
        Both; without ``--dev``, every tenth of the data is held out, see `data.hold_out`.

    Raises:
        OSError, ValueError: those of `read`; or the package is not installed, or nothing is left to train with

    Example:
        >>> from dynet_cy import commandline
        >>> args = commandline.Parser("Train.", data="one word a line").parse_args(["--limit", "5"])
        >>> commandline.read_data(args, dy.data.lines, lambda: list("abcdefgh"))
        (['b', 'c', 'd', 'e'], ['a'])
    """
    if args.train:
        found = read(args.train)
    elif default is None:
        raise ValueError("--train FILE is needed")
    elif callable(default):
        found = default()
    else:
        found = read(installed(*default))
        if current().rank == 0:
            print(f"learning from {default[1]} of the package {default[0]}; --train FILE takes other data")
    if args.dev:
        return list(found)[: args.limit], list(read(args.dev))[: args.limit]
    try:
        return hold_out(list(found)[: args.limit])
    except ValueError as error:
        raise ValueError(f"{args.train or '--limit'}: {error}; give --dev FILE too") from None


def training(
    args: argparse.Namespace, collection: ParameterCollection, data: Iterable[T], **options: Any
) -> Training[T]:
    """A `Training` with the settings of the command line: epochs, patience, where to save the model and its curves.

    Args:
        args: what a `Parser` has parsed
        collection: the model
        data: the batches of an epoch
        options: further arguments of `Training`

    Example:
        >>> from dynet_cy import commandline
        >>> args = commandline.Parser("Train.", epochs=3, patience=2).parse_args([])
        >>> training = commandline.training(args, model, [["a"]], unit="words")
        >>> training.stopping
        <EarlyStopping: patience=2, mode='max', min_delta=0.0, best None of 0>
    """
    names = {"path": "model", "picture": "curves", "tensorboard": "tensorboard", "patience": "patience"}
    settings: dict[str, Any] = {name: getattr(args, option, None) for name, option in names.items()}
    return Training(collection, data, args.epochs, **{**settings, **options})


def run_dependency_parser(
    description: str,
    network: Callable[[dict[str, Any]], Any],
    train: Callable[[Any, list[ConlluSentence], list[ConlluSentence], argparse.Namespace], Any],
    argv: Sequence[str] | None = None,
    settings: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Run a whole parser program around a network and its training: it trains on a treebank in CoNLL-U, or parses.

    Without a command it trains, saves the best model, and parses the first sentence of the dev data; the command
    ``parse FILE`` prints the sentences of a file, or of the standard input, with the trees found. They are CoNLL-U with
    tags, or plain words: a sentence on each line, with spaces between words, each of which gets the tag that it has
    most often in the training data. ``--tags`` chooses between UPOS and XPOS. Without ``--train``, the treebank is that
    of the package turkish-treebanks.

    Args:
        description: what the program does
        network: makes the network from a dictionary, which is saved with the model: "tag_of" (the most frequent tag of
            each word in lower case, and of all words under ""), "words" and "tags" (what the
            `data.Vocabulary` of words in lower case that occur twice, and that of tags, are made from), "relations" (a
            list), "tag_column", "seed", the `sizes` and the `settings`. Its method ``parse(sentences)`` returns heads
            and relations of each of some sentences
        train: ``train(network, trees, dev, args)`` trains the network and saves the best one, see `training`
        argv: the arguments; by default those of the program
        settings: further options that are texts, by their names, with their help; None is the value of one that is not
            given
        options: further arguments of `Parser`, such as `epochs` and `sizes`

    Example:
        >>> from dynet_cy import commandline
        >>> class Chain:
        ...     def __init__(self, spec):
        ...         self.spec, self.pc = spec, dy.ParameterCollection()
        ...     def parse(self, sentences):
        ...         return [([*range(2, len(s) + 1), 0], ["x"] * len(s)) for s in sentences]
        >>> def train(network, trees, dev, args):
        ...     dy.save_safetensors(args.model, network.pc, extra=network.spec)
        >>> sentence = dy.data.ConlluSentence(["Dogs", "bark"], upos=["NOUN", "VERB"], head=[2, 0], deprel=["x", "x"])
        >>> with open("trees.conllu", "w") as file:
        ...     _ = file.write(f"{sentence}\\n" * 2)
        >>> files = ["--train", "trees.conllu", "--model", "chain.safetensors"]
        >>> commandline.run_dependency_parser("Parse.", Chain, train, files, sizes={"hidden": 8})
        1 training and 1 dev sentences, 0 words, 2 tags and 1 relations
        1 Dogs _ NOUN _ _ 2 x _ _
        2 bark _ VERB _ _ 0 x _ _
        <BLANKLINE>
    """

    def main(args: argparse.Namespace) -> None:
        if args.command == "train":
            read = partial(read_conllu, required=[args.tags, "HEAD", "DEPREL"])
            trees, dev = read_data(args, read, default=("turkish-treebanks", "web.conllu"))
            spec = {
                "words": Vocabulary((word.lower() for tree in trees for word in tree.form), min_count=2).counts,
                "tags": Vocabulary(tag for tree in trees for tag in tree.column(args.tags)).counts,
                "tag_of": _frequent_tags(trees, args.tags),
                "relations": sorted({relation for tree in trees for relation in tree.deprel}),
                "tag_column": args.tags,
                "seed": args.seed,
                **args.sizes,
                **{name: getattr(args, name) for name in settings or {}},
            }
            sizes = f"{len(spec['words'])} words, {len(spec['tags'])} tags and {len(spec['relations'])} relations"
            print(f"{len(trees)} training and {len(dev)} dev sentences, {sizes}")
            train(network(spec), trees, dev, args)
            parts: Iterable[list[ConlluSentence]] = iter(
                [[ConlluSentence(dev[0].form, **{args.tags.lower(): dev[0].column(args.tags)})]]
            )
        best = load_network(args.model, network)
        if args.command == "parse":
            parts = _sentences_to_parse(args.file, best.spec["tag_column"], best.spec.get("tag_of", {}))
        for sentences in parts:
            for sentence, (heads, relations) in zip(sentences, map_batches(best.parse, sentences)):
                print(replace(sentence, head=heads, deprel=relations, deps=[]), flush=True)

    parser = Parser(
        description,
        data="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks",
        command="parse",
        file="CoNLL-U, whose words have tags, or words: a sentence on each line",
        **options,
    )
    parser.add_argument("--tags", choices=["UPOS", "XPOS"], default="UPOS", help="which tags to read with the words")
    for name, text in (settings or {}).items():
        parser.add_argument(f"--{name}", help=text)
    parser.run(main, argv)


def _frequent_tags(trees: Iterable[ConlluSentence], column: str) -> dict[str, str]:
    """The most frequent tag of each word in lower case; under "" that of all words."""
    counts: dict[str, Counter[str]] = {"": Counter()}
    for tree in trees:
        for word, tag in zip(tree.form, tree.column(column)):
            counts[""][tag] += 1
            counts.setdefault(word.lower(), Counter())[tag] += 1
    return {word: count.most_common(1)[0][0] for word, count in counts.items()}


def _sentences_to_parse(file: str, column: str, tag_of: Mapping[str, str]) -> Iterator[list[ConlluSentence]]:
    """The sentences of a file or of the standard input, in batches: CoNLL-U if the first line is a comment or has tabs,
    else plain words."""
    stdin: Any = sys.stdin.buffer  # `peek` is not in the type of all streams
    begin = stdin.peek(1).decode("utf-8", "replace") if file == "-" else _first_line(file)
    if begin.startswith("#") or "\t" in begin.lstrip("\n").partition("\n")[0]:
        yield read_conllu(file, required=[column])
        return
    if "" not in tag_of:
        raise ValueError(f"{file}: the model has no tagger for plain words: pass CoNLL-U, or train it again")
    for lines in input_lines(file):
        sentences = [words for words in map(str.split, lines) if words]
        tags: list[Any] = [{column.lower(): [tag_of.get(word.lower(), tag_of[""]) for word in s]} for s in sentences]
        yield [ConlluSentence(words, **of) for words, of in zip(sentences, tags)]


def _first_line(file: str) -> str:
    return next((line for _, line in numbered_lines(file, "a text") if line.strip()), "")
