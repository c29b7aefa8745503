"""Graphs as pictures: SVG, in which nodes that ran together have one colour."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from dynet_cy.drawing import picture
from dynet_cy.files.reading import FileName
from dynet_cy.files.replacing import write_file
from dynet_cy.graph.expressions import ComputationGraph, Expression, cg
from dynet_cy.graph.nodes import nodes, nodes_around, number
from dynet_cy.graph.structs import operators

_MOST_NODES = 2000  # a graph of more is not drawn node by node
_MOST_BOXES = 300  # what a picture of such a graph has at most: it fits a screen


class Drawing:
    """A picture of a graph, which notebooks display.

    Attributes:
        svg: the picture, as a complete SVG document

    Example:
        >>> drawing = dy.draw(dy.tanh(dy.inputVector([1, 2])))
        >>> drawing.save("graph.svg")
        >>> drawing.svg.startswith("<svg")
        True
    """

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def save(self, filename: FileName) -> None:
        """Write the picture to a file. Any browser shows SVG.

        PNG and PDF are converted by the first of these that is installed: the program ``rsvg-convert`` (in Debian's
        package librsvg2-bin), the package ``cairosvg``, the program ``inkscape``. PNG has two pixels for each of SVG.

        Args:
            filename: the file, which is replaced; its name ends in .svg, .png or .pdf

        Raises:
            FileNotFoundError: PNG or PDF, and none of these is installed
            OSError: the file cannot be written
            RuntimeError: the program for PNG and PDF failed; the message is its own
            ValueError: the name has another ending

        Example:
            >>> dy.draw(dy.tanh(dy.inputVector([1, 2]))).save("graph.svg")
        """
        name = os.fsdecode(filename)
        kind = os.path.splitext(name)[1].lower()
        if kind not in (".svg", ".png", ".pdf"):
            raise ValueError(f"Drawing.save: {name!r} must end in .svg, .png or .pdf")
        write_file(name, self.svg.encode() if kind == ".svg" else picture.converted(self.svg, kind[1:]))

    def _repr_svg_(self) -> str:
        return self.svg


def draw(
    *expressions: Expression | Iterable[Expression],
    names: Mapping[Expression, str] | None = None,
    graph: ComputationGraph | None = None,
    parameters: bool = False,
    graphviz: bool | None = None,
    collapse: bool | Iterable[str] = False,
) -> Drawing:
    """Draw a graph: operations with their shapes, inputs below, results above.

    Once values have been computed, nodes that ran in one call have the same colour; so the picture shows what automatic
    batching put together. White nodes ran alone, or have not been computed. Nothing is computed for the drawing. The
    tooltip of a node has the number of its call and, if lines are recorded (`record_lines`), its line::

        dy.renew_cg()
        y = dy.tanh(W * x + b)
        y.value()
        dy.draw(y).save("graph.svg")   # in a notebook `dy.draw(y)` is enough

    Args:
        expressions: the expressions to draw, with everything they depend on, one by one or as lists; if there are none,
            the whole graph is drawn
        names: names to show for expressions, as ``{expression: "name"}``
        graph: the graph, if no expressions are given; None for the current one of this thread
        parameters: draw parameters as nodes too; when False, the nodes that use them name them; default: False
        collapse: draw consecutive nodes of a scope (`name_scope`) as one box: True for the outermost scopes, or the
            names of scopes, including those of builders and layers (``"vanilla-lstm-builder"``, ``"hidden"``; of nodes
            that were made outside of a scope, and without lines being recorded, these are the nodes that use their
            parameters, and what lies between these). Boxes of one colour ran together, in the same calls. Default:
            False, but True for more than 2,000 nodes. Where this leaves more than 2,000 nodes and boxes, or by default
            300 of so large a graph, nodes of one operation at one depth become a box; where these are too many, parts
            that repeat along the depth do; and then ranges of depths
        graphviz: whether Graphviz's program ``dot`` places the nodes; None: if it is installed

    Returns:
        A `Drawing`: its attribute ``svg`` is the text of the picture, ``save(filename)`` writes it, also as PNG or PDF.

    Raises:
        StaleExpressionError: an expression is of a renewed graph
        TypeError: the argument is not an expression or a list of them, or `collapse` is neither a bool nor names
        ValueError: there are expressions of several graphs; or no node was made in a scope that `collapse` names
        FileNotFoundError: graphviz is True, and there is no ``dot``

    Example:
        >>> with dy.name_scope("encoder"):
        ...     h = dy.tanh(dy.inputVector([1, 2]))
        >>> drawing = dy.draw(dy.sum_elems(h), collapse=True)
        >>> drawing.save("graph.svg")
        >>> "2 nodes" in drawing.svg
        True
    """
    tops: list[Expression] = []
    for item in expressions:
        tops += [item] if isinstance(item, Expression) or not isinstance(item, Iterable) else item
    for e in tops:
        if not isinstance(e, Expression):
            raise TypeError(f"draw: expressions must be Expressions, not {type(e).__name__}")
    if not expressions:
        found = nodes(cg() if graph is None else graph)
    else:
        try:
            found = nodes_around(tops)
        except ValueError as error:
            raise ValueError(f"draw: {error}") from None
    wanted = picture.cone(found, [number(e) for e in tops]) if expressions else set(range(len(found)))
    if not parameters:
        wanted = {n for n in wanted if not picture.is_parameter(found[n])}
    named = {number(e): name for e, name in (names or {}).items()}
    if collapse is False and len(wanted) > _MOST_NODES:
        return Drawing(picture.drawn(found, wanted, named, graphviz, True, _MOST_BOXES))
    return Drawing(picture.drawn(found, wanted, named, graphviz, collapse, _MOST_NODES))


def shown(graph: ComputationGraph, most: int) -> str | None:
    """The picture of a graph in a notebook, of at most `most` nodes and boxes; None for an empty one."""
    found = nodes(graph)
    wanted = {n for n in range(len(found)) if not picture.is_parameter(found[n])}
    return picture.drawn(found, wanted, {}, None, len(wanted) > most, most) if wanted else None


operators["shown"] = shown
