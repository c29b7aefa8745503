"""Trees in brackets, as treebanks of constituents have them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dynet_cy.files.reading import FileName, Line, TextFile


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

    def simplified(self) -> Tree:
        """The tree as parsers of the Penn Treebank learn it: without traces, function tags and indices.

        Left out are words below "-NONE-" and what holds nothing else. Of labels such as NP-SBJ-1 and NP=2, the part
        before the first hyphen or equals sign stays.

        Raises:
            ValueError: the tree holds nothing but traces

        Example:
            >>> tree = dy.data.parse_tree("(S (NP-SBJ-1 (-NONE- *)) (VP (VB Go) (PP-DIR (RB home))))")
            >>> str(tree.simplified())
            '(S (VP (VB Go) (PP (RB home))))'
        """
        found = self._simplified()
        if found is None:
            raise ValueError(f"Tree.simplified: the tree has only traces: {self}")
        return found

    def _simplified(self) -> Tree | None:
        if self.label == "-NONE-":
            return None
        parts = [part._simplified() if isinstance(part, Tree) else part for part in self.parts]
        kept = tuple(part for part in parts if part is not None)
        return Tree(_FUNCTIONS.sub(r"\1", self.label), kept) if kept else None

    def __str__(self) -> str:
        """The tree in brackets, which `parse_tree` reads.

        Raises:
            ValueError: a word or a label is empty, or has brackets or blanks, or a constituent has no parts
        """
        return self._written(True)

    def _written(self, is_root: bool) -> str:
        if not self.parts:
            raise ValueError(f"Tree: the constituent {self.label} is empty")
        may_lack_label = is_root and len(self.parts) > 1 and isinstance(self.parts[0], Tree)
        label = "" if may_lack_label and not self.label else _checked(self.label)
        parts = [part._written(False) if isinstance(part, Tree) else _checked(str(part)) for part in self.parts]
        return f"({label} {' '.join(parts)})"


_FUNCTIONS = re.compile(r"^([^-=]+)[-=].*", re.DOTALL)  # behind a label; -LRB- has none
_UNWRITABLE = re.compile("[() \t\r\n\ud800-\udfff]")


def _checked(text: str) -> str:
    if not text or _UNWRITABLE.search(text):
        raise ValueError(f"Tree: {text!r:.80} is no word or label; brackets in words are written -LRB- and -RRB-")
    return text


def parse_tree(text: str) -> Tree:
    """Parse a tree in brackets, with a label after each opening bracket; the first may have none.

    Around a whole tree of the Penn Treebank, there are brackets without a label: "( (S ...) )". They are left out; if
    there are several trees within, the label is empty.

    Args:
        text: blanks, tabs and line ends separate words; a no-break space may be a part of one

    Raises:
        ValueError: it is not one tree; the message says what is wrong

    Example:
        >>> dy.data.parse_tree("(NP the (ADJ big) dog)").words()
        ['the', 'big', 'dog']
    """
    labels: list[str | None] = [""]  # of the brackets not closed yet, with their parts; the first encloses the tree
    opened: list[list[str | Tree]] = [[]]
    for token in filter(None, _spaced(text).split(" ")):
        if token == "(":
            if labels[-1] is None:
                if len(labels) > 2:
                    raise ValueError("expected a label after '(', not '('")
                labels[-1] = ""
            labels.append(None)
            opened.append([])
        elif token == ")":
            label, parts = labels.pop(), opened.pop()
            if not opened:
                raise ValueError("a closing bracket without an opening one")
            if label is None:
                raise ValueError("expected a label after '(', not ')'")
            if not parts:
                raise ValueError(f"the constituent {label} is empty")
            opened[-1].append(parts[0] if not label and len(parts) == 1 else Tree(label, tuple(parts)))
        elif labels[-1] is None:
            labels[-1] = token
        else:
            opened[-1].append(token)
    found = opened[0]
    if len(opened) > 1 or len(found) != 1 or not isinstance(found[0], Tree):
        raise ValueError("expected one whole tree, such as (S (NP the dog) (VP barks))")
    return found[0]


def _spaced(text: str) -> str:
    return text.replace("(", " ( ").replace(")", " ) ").replace("\t", " ").replace("\n", " ")


def read_trees(
    path: FileName,
    labels: Collection[str] | None = None,
    binary: bool = False,
    *,
    encoding: str = "utf-8",
    errors: str = "strict",
) -> list[Tree]:
    """Read a treebank in brackets: the Stanford Sentiment Treebank, with a tree on each line, or files of the Penn
    Treebank, where a tree has several lines, and brackets without a label around it.

    Words and labels are those of the file; `Tree.simplified` leaves out traces and function tags.

    Args:
        path: name of the file, plain or gzipped. Empty lines are left out.
        labels: the labels that there may be; None: any
        binary: whether each node must have one word, or two nodes
        encoding: the encoding of the text
        errors: "strict" for an error at the first bad tree; "skip" to leave bad trees out, with a warning that says how
            many there are. The next tree is then looked for at the next line that begins with a bracket.

    Returns:
        At least one tree.

    Raises:
        OSError: the file cannot be read
        ValueError: there is no such tree at a place, the text is not in the encoding, or there is no tree. The message
            names the file and the line where the tree begins.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("trees").write_text("(3 (2 a) (4 (3 very) (3 good)))\\n")
        >>> [tree] = dy.data.read_trees("trees", labels="01234", binary=True)
        >>> tree.label, tree.words()
        ('3', ['a', 'very', 'good'])
        >>> _ = Path("wsj_0001.mrg").write_text("( (S\\n    (NP-SBJ (NNP Ms.) (NNP Rivers) )\\n    (VP (VBZ is) )))\\n")
        >>> [str(tree.simplified()) for tree in dy.data.read_trees("wsj_0001.mrg")]
        ['(S (NP (NNP Ms.) (NNP Rivers)) (VP (VBZ is)))']
    """

    def tree(lines: Sequence[Line]) -> Tree:
        found = parse_tree("\n".join(line for _, line in lines))
        _check(found, allowed, binary)
        return found

    allowed = None if labels is None else dict.fromkeys(labels)  # of a string, its letters
    source = TextFile(path, "a treebank in brackets", encoding, errors)
    return source.items(_trees([line for line in source if _spaced(line[1]).strip(" ")]), tree, "tree")


def _trees(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """The lines of each tree: up to the one that closes its first bracket."""
    # After a first line that is a tree, or a tree that is not closed, a bracket at the margin begins a tree.
    begin, at_margin = 0, bool(lines) and _depth(lines[0]) == 0
    while begin < len(lines):
        end, depth = begin + 1, _depth(lines[begin])
        while end < len(lines) and depth > 0 and not (at_margin and lines[end][1].startswith("(")):
            depth += _depth(lines[end])
            end += 1
        if depth > 0 and not at_margin:
            at_margin = True
        else:
            yield lines[begin:end]
            begin = end


def _depth(line: Line) -> int:
    return line[1].count("(") - line[1].count(")")


def _check(tree: Tree, labels: Collection[str] | None, binary: bool) -> None:
    for node in tree.nodes():
        if labels is not None and node.label not in labels:
            raise ValueError(f"the label {node.label!r:.80} is none of {' '.join(labels)}")
        inner = sum(isinstance(part, Tree) for part in node.parts)
        if binary and (len(node.parts), inner) not in ((1, 0), (2, 2)):
            raise ValueError(f"a node of {len(node.parts)} parts; it must hold one word, or two nodes")
