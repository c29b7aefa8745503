"""Trees in brackets, as treebanks of constituents have them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from dynet_cy.data.files import FileName, numbered_lines

__all__ = ["Tree", "parse_tree", "read_trees"]


class Tree(NamedTuple):
    """A constituent of a sentence: a label, and parts that are words or constituents.

    Attributes:
        label: such as "NP"
        parts: tuple of strings and trees

    Example:
        >>> tree = dy.data.Tree("S", (dy.data.Tree("NP", ("the", "dog")), dy.data.Tree("VP", ("barks",))))
        >>> str(tree)
        '(S (NP the dog) (VP barks))'
    """

    label: str
    parts: tuple[str | Tree, ...]

    def words(self) -> list[str]:
        """The words below, in their order.

        Example:
            >>> dy.data.parse_tree("(S (NP the dog) (VP barks))").words()
            ['the', 'dog', 'barks']
        """
        return [word for part in self.parts for word in (part.words() if isinstance(part, Tree) else [part])]

    def nodes(self) -> Iterator[Tree]:
        """This constituent and those below it, parts before the whole.

        Example:
            >>> [node.label for node in dy.data.parse_tree("(S (NP the dog) (VP barks))").nodes()]
            ['NP', 'VP', 'S']
        """
        for part in self.parts:
            if isinstance(part, Tree):
                yield from part.nodes()
        yield self

    def spans(self, start: int = 0) -> Iterator[tuple[str, int, int]]:
        """The label, the first word and the word after the last one of each constituent, in the order of `nodes`.

        Args:
            start: the number of the first word

        Example:
            >>> list(dy.data.parse_tree("(S (NP the dog) (VP barks))").spans())
            [('NP', 0, 2), ('VP', 2, 3), ('S', 0, 3)]
        """
        at = start
        for part in self.parts:
            if isinstance(part, Tree):
                yield from part.spans(at)
            at += len(part.words()) if isinstance(part, Tree) else 1
        yield self.label, start, at

    def relabelled(self, labels: Iterable[Any]) -> Tree:
        """A tree of the same shape with other labels.

        Args:
            labels: one for each node, in the order of `nodes`

        Raises:
            ValueError: there are too few or too many

        Example:
            >>> str(dy.data.parse_tree("(S (NP the dog) (VP barks))").relabelled([1, 2, 3]))
            '(3 (1 the dog) (2 barks))'
        """
        given = list(labels)
        nodes = sum(1 for _ in self.nodes())
        if len(given) != nodes:
            raise ValueError(f"Tree.relabelled: {len(given)} labels for {nodes} nodes")
        return self._relabelled(iter(given))

    def _relabelled(self, labels: Iterator[Any]) -> Tree:
        parts = tuple(part._relabelled(labels) if isinstance(part, Tree) else part for part in self.parts)
        return Tree(str(next(labels)), parts)

    def __str__(self) -> str:
        return f"({self.label} {' '.join(map(str, self.parts))})"


def parse_tree(text: str) -> Tree:
    """The tree of a text in brackets, with a label behind each opening one.

    Args:
        text: blanks and tabs separate words; a no-break space may be a part of one

    Raises:
        ValueError: it is not one tree; the message says what is wrong

    Example:
        >>> dy.data.parse_tree("(NP the (ADJ big) dog)").words()
        ['the', 'big', 'dog']
    """
    opened: list[tuple[str, list[str | Tree]]] = [("", [])]  # not closed yet; the first one encloses the tree
    tokens = iter([token for token in _spaced(text).split(" ") if token])
    for token in tokens:
        if token == "(":
            label = next(tokens, ")")
            if label in "()":
                raise ValueError(f"expected a label after '(', not {label!r}")
            opened.append((label, []))
        elif token == ")":
            label, parts = opened.pop()
            if not opened:
                raise ValueError("a closing bracket without an opening one")
            if not parts:
                raise ValueError(f"the constituent {label} is empty")
            opened[-1][1].append(Tree(label, tuple(parts)))
        else:
            opened[-1][1].append(token)
    found = opened[0][1]
    if len(opened) > 1 or len(found) != 1 or not isinstance(found[0], Tree):
        raise ValueError("expected one whole tree, such as (S (NP the dog) (VP barks))")
    return found[0]


def _spaced(text: str) -> str:
    return text.replace("(", " ( ").replace(")", " ) ").replace("\t", " ")


def read_trees(path: FileName, labels: Collection[str] | None = None, binary: bool = False) -> list[Tree]:
    """Read a treebank in brackets, with one tree on each line, such as the Stanford Sentiment Treebank.

    Args:
        path: name of the file, UTF-8; gzipped if it ends in ".gz". Empty lines are left out.
        labels: the labels that there may be; None: any
        binary: whether each node must have one word, or two nodes

    Returns:
        At least one tree.

    Raises:
        OSError: the file cannot be read
        ValueError: a line is not such a tree, the text is not UTF-8, or there is no tree. The message names the file
            and the line.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("trees").write_text("(3 (2 a) (4 (3 very) (3 good)))\\n")
        >>> [tree] = dy.data.read_trees("trees", labels="01234", binary=True)
        >>> tree.label, tree.words()
        ('3', ['a', 'very', 'good'])
    """
    trees, number = [], 0
    for number, line in numbered_lines(path):
        if _spaced(line).strip(" "):
            try:
                trees.append(parse_tree(line))
                _check(trees[-1], labels, binary)
            except ValueError as error:
                raise ValueError(f"{os.fspath(path)}, line {number}: {error}") from None
    if not trees:
        raise ValueError(f"{os.fspath(path)}: no tree in {number} lines")
    return trees


def _check(tree: Tree, labels: Collection[str] | None, binary: bool) -> None:
    for node in tree.nodes():
        if labels is not None and node.label not in labels:
            raise ValueError(f"the label {node.label!r:.80} is none of {' '.join(labels)}")
        inner = sum(isinstance(part, Tree) for part in node.parts)
        if binary and (len(node.parts), inner) not in ((1, 0), (2, 2)):
            raise ValueError(f"a node of {len(node.parts)} parts; it must hold one word, or two nodes")
