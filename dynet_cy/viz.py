"""DyNet's module `dynet_viz`: a graph is drawn rather than computed.

DyNet's is a second implementation that only tracks shapes. This one is dynet_cy itself, whose graphs compute nothing
either until a value is requested: build the network, then call `print_graphviz`::

    import dynet_cy.viz as dy

    W = dy.ParameterCollection().add_parameters((2, 3))
    y = dy.tanh(W * dy.inputVector([1, 2, 3]))
    dy.print_graphviz(expression_names={y: "y"})

prints a drawing in the language of Graphviz: ``python program.py | dot -Tpdf > graph.pdf``. Values are available too,
where DyNet's module returns None. The module has every name of dynet_cy.
"""

import dynet_cy as _dynet_cy
from dynet_cy import *  # noqa: F403 - its __all__ is the list
from dynet_cy.drawing.text import dot

__all__ = [*_dynet_cy.__all__, "dot"]
