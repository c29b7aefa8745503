"""Recurrent networks over trees: Tai, Socher and Manning, "Improved Semantic Representations From Tree-Structured Long
Short-Term Memory Networks", ACL 2015. DyNet's Python has no such builders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dynet_cy.functions.arguments import Input
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.model.given import collection_of
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.rnn.builder import positive_integer, take_place_of_former
from dynet_cy.rnn.state import child_sum_step, in_scope_of, nary_step

__all__ = ["ChildSumTreeLSTMBuilder", "NaryTreeLSTMBuilder", "TreeState"]


class TreeState(NamedTuple):
    """The state of a Tree-LSTM for a subtree: its output h and its cell c, each of shape (hidden_dim,).

    Example:
        >>> leaf = dy.ChildSumTreeLSTMBuilder(3, 4, model).add_input(dy.inputVector([1, 2, 3]))
        >>> leaf.h.dim(), leaf.c.dim()
        (((4,), 1), ((4,), 1))
    """

    h: Expression
    c: Expression

    def output(self) -> Expression:
        """The output: h, of shape (hidden_dim,).

        Example:
            >>> leaf = dy.ChildSumTreeLSTMBuilder(3, 4, model).add_input(dy.inputVector([1, 2, 3]))
            >>> leaf.output() is leaf.h
            True
        """
        return self.h


class _TreeBuilder:
    """The base of both builders."""

    spec: tuple[int, ...]
    _collection_name: str
    _state = TreeState

    def __init__(self, input_dim: int, hidden_dim: int, model: CollectionOrLayer) -> None:
        name = type(self).__name__
        self.input_dim = positive_integer(input_dim, name, "input_dim")
        self.hidden_dim = positive_integer(hidden_dim, name, "hidden_dim")
        self._collection = collection_of(model, name).add_subcollection(self._collection_name)
        take_place_of_former(self)

    def _weights(self, gates: int, columns: int) -> Parameters:
        return self._collection.add_parameters((gates * self.hidden_dim, columns), init="glorot")

    def _bias(self, gates: int) -> Parameters:
        return self._collection.add_parameters((gates * self.hidden_dim,), init=0.0)

    def param_collection(self) -> ParameterCollection:
        """The sub-collection that holds the parameters.

        Example:
            >>> dy.ChildSumTreeLSTMBuilder(3, 4, model).param_collection().name()
            '/child-sum-tree-lstm-builder/'
        """
        return self._collection

    def get_parameters(self) -> list[Parameters]:
        """The parameters, in the order documented by the class.

        Example:
            >>> tree = dy.ChildSumTreeLSTMBuilder(3, 4, model)
            >>> [parameter.shape() for parameter in tree.get_parameters()]
            [(12, 3), (12, 4), (12,), (4, 3), (4, 4), (4,)]
        """
        return self._collection.parameters_list()

    def whoami(self) -> str:
        """The name of the class.

        Example:
            >>> dy.ChildSumTreeLSTMBuilder(3, 4, model).whoami()
            'ChildSumTreeLSTMBuilder'
        """
        return type(self).__name__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec}>"


class NaryTreeLSTMBuilder(_TreeBuilder):
    """Tree-LSTM whose nodes have up to N children in order, each with weights of its own (Tai et al., 2015, 3.2)

        i   = sigmoid(W_i x + sum_k U_ik h_k + b_i)
        o   = sigmoid(W_o x + sum_k U_ok h_k + b_o)
        u   = tanh(W_u x + sum_k U_uk h_k + b_u)
        f_k = sigmoid(W_f x + sum_l U_fkl h_l + b_f)      for each child k
        c   = i * u + sum_k f_k * c_k
        h   = o * tanh(c)

    except that W_f and b_f are not shared between the children: each f_k has its own. A node without input leaves out
    the terms with x, and a node with fewer children the terms of the missing ones.

    Each node of the tree becomes three nodes of the graph.

    Parameters, in the order of `get_parameters()`: W ((3 + N) hidden_dim, input_dim), U_1 ... U_N, each
    ((3 + N) hidden_dim, hidden_dim), all Glorot; b ((3 + N) hidden_dim,), zeros. Rows: i, o, u, f_1 ... f_N.
    Sub-collection: `nary-tree-lstm-builder`.

    Args:
        N: the greatest number of children of a node
        input_dim: length of the inputs
        hidden_dim: length of the outputs
        model: where the parameters go

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1

    Example:
        >>> tree = dy.NaryTreeLSTMBuilder(2, 3, 4, model)
        >>> leaf = tree.add_input(dy.inputVector([1, 2, 3]))
        >>> tree.add_input(None, [leaf, leaf]).h.dim()
        ((4,), 1)
    """

    _collection_name = "nary-tree-lstm-builder"

    def __init__(self, N: int, input_dim: int, hidden_dim: int, model: CollectionOrLayer) -> None:
        self.N = positive_integer(N, type(self).__name__, "N")
        super().__init__(input_dim, hidden_dim, model)
        self.spec = (self.N, self.input_dim, self.hidden_dim)
        self._w = self._weights(3 + self.N, self.input_dim)
        self._u = [self._weights(3 + self.N, self.hidden_dim) for _ in range(self.N)]
        self._b = self._bias(3 + self.N)

    @classmethod
    def from_spec(cls, spec: Sequence[int], model: ParameterCollection) -> NaryTreeLSTMBuilder:
        """Make a builder from the `spec` of another one, with its own parameters in `model`.

        Example:
            >>> tree = dy.NaryTreeLSTMBuilder(2, 3, 4, model)
            >>> dy.NaryTreeLSTMBuilder.from_spec(tree.spec, dy.ParameterCollection())
            <NaryTreeLSTMBuilder (2, 3, 4)>
        """
        n, input_dim, hidden_dim = spec
        return cls(n, input_dim, hidden_dim, model)

    def add_input(self, x: Input | None, children: Iterable[TreeState | None] = ()) -> TreeState:
        """The state of a node of a tree.

        Args:
            x: the input, of shape (input_dim,): an expression, an array, or a list of numbers; None: the node has none
            children: the states of the first, second, ... child; `[]` for a leaf; None for a missing child

        Raises:
            TypeError: a child is not a state
            ValueError: neither x nor a child is given, there are more than N children, or a shape does not fit

        Example:
            >>> tree = dy.NaryTreeLSTMBuilder(2, 3, 4, model)
            >>> leaf = tree.add_input(dy.inputVector([1, 2, 3]))
            >>> tree.add_input(None, [leaf, None]).h.dim()
            ((4,), 1)
        """
        return in_scope_of(self, nary_step, self, x, children)


class ChildSumTreeLSTMBuilder(_TreeBuilder):
    """Tree-LSTM whose nodes have any number of children, without order (Tai et al., 2015, 3.1)

        s   = sum_k h_k
        i   = sigmoid(W_i x + U_i s + b_i)
        o   = sigmoid(W_o x + U_o s + b_o)
        u   = tanh(W_u x + U_u s + b_u)
        f_k = sigmoid(W_f x + U_f h_k + b_f)      for each child k
        c   = i * u + sum_k f_k * c_k
        h   = o * tanh(c)

    A node without input leaves out the terms with x, and a leaf those with children.

    Parameters, in the order of `get_parameters()`: W (3 hidden_dim, input_dim), U (3 hidden_dim, hidden_dim), b
    (3 hidden_dim,), with rows i, o, u; W_f (hidden_dim, input_dim), U_f (hidden_dim, hidden_dim), b_f (hidden_dim,).
    Matrices are Glorot, biases zeros. Sub-collection: `child-sum-tree-lstm-builder`.

    Args:
        input_dim: length of the inputs
        hidden_dim: length of the outputs
        model: where the parameters go

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1

    Example:
        >>> tree = dy.ChildSumTreeLSTMBuilder(3, 4, model)
        >>> leaf = tree.add_input(dy.inputVector([1, 2, 3]))
        >>> tree.add_input(None, [leaf, leaf, leaf]).h.dim()
        ((4,), 1)
    """

    _collection_name = "child-sum-tree-lstm-builder"

    def __init__(self, input_dim: int, hidden_dim: int, model: CollectionOrLayer) -> None:
        super().__init__(input_dim, hidden_dim, model)
        self.spec = (self.input_dim, self.hidden_dim)
        self._w, self._u = self._weights(3, self.input_dim), self._weights(3, self.hidden_dim)
        self._b = self._bias(3)
        self._w_f, self._u_f = self._weights(1, self.input_dim), self._weights(1, self.hidden_dim)
        self._b_f = self._bias(1)

    @classmethod
    def from_spec(cls, spec: Sequence[int], model: ParameterCollection) -> ChildSumTreeLSTMBuilder:
        """Make a builder from the `spec` of another one, with its own parameters in `model`.

        Example:
            >>> tree = dy.ChildSumTreeLSTMBuilder(3, 4, model)
            >>> dy.ChildSumTreeLSTMBuilder.from_spec(tree.spec, dy.ParameterCollection())
            <ChildSumTreeLSTMBuilder (3, 4)>
        """
        input_dim, hidden_dim = spec
        return cls(input_dim, hidden_dim, model)

    def add_input(self, x: Input | None, children: Iterable[TreeState] = ()) -> TreeState:
        """The state of a node of a tree.

        Args:
            x: the input, of shape (input_dim,): an expression, an array, or a list of numbers; None: the node has none
            children: the states of the children; `[]` for a leaf

        Raises:
            TypeError: a child is not a state
            ValueError: neither x nor a child is given, or a shape does not fit

        Example:
            >>> tree = dy.ChildSumTreeLSTMBuilder(3, 4, model)
            >>> leaf = tree.add_input(dy.inputVector([1, 2, 3]))
            >>> tree.add_input(dy.inputVector([4, 5, 6]), [leaf]).h.dim()
            ((4,), 1)
        """
        return in_scope_of(self, child_sum_step, self, x, children)
