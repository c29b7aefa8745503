"""A linear-chain conditional random field as a layer."""

from __future__ import annotations

from dynet_cy.functions.arguments import Input
from dynet_cy.functions.sequences import Tags
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn.layer import Layer
from dynet_cy.ops import api as ops

__all__ = ["CRF"]


class CRF(Layer):
    """Scores for sequences of tags: the score of a sequence y is ``start[y_0] + sum x[y_t, t] + sum
    transitions[y_{t-1}, y_t] + end[y_{n-1}]`` (Lafferty, McCallum and Pereira, ICML 2001; as the last layer of a
    network, Lample et al., "Neural architectures for named entity recognition", NAACL 2016).

    Parameters: transitions (tags, tags), the score of a tag (column) after another one (row), start and end (tags,);
    zeros.

    Args:
        tags: number of tags
        model: where the parameters go

    Raises:
        TypeError: `tags` is not an integer, or `model` is not a `ParameterCollection`
        ValueError: `tags` is less than 1

    Example:
        >>> import dynet_cy as dy
        >>> crf = dy.nn.CRF(3, dy.ParameterCollection())
        >>> scores = dy.inputTensor([[1, 0, 0, 2], [0, 1, 0, 0], [0, 0, 1, 0]])
        >>> crf.best(scores)
        [0, 1, 2, 0]
        >>> crf.loss(scores, [0, 1, 2, 0]).dim()
        ((1,), 1)
    """

    def __init__(self, tags: int, model: ParameterCollection) -> None:
        self.tags = self._size(tags, "tags")
        super().__init__(model, (self.tags,))
        self.transitions = self.collection.add_parameters((self.tags, self.tags), init=0.0, name="transitions")
        self.start = self._vector(self.tags, 0.0, "start")
        self.end = self._vector(self.tags, 0.0, "end")

    def loss(self, x: Input, tags: Expression | Tags) -> Expression:
        """-log p(tags | x).

        Args:
            x: the score of each tag for each word, ``{tags,n}``, a column for each word
            tags: the n tags; or a vector of them as an expression

        Returns:
            Expression of shape ``{1}``. Sentences of different lengths run together.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or more or fewer tags than words
            IndexError: there is no such tag
        """
        x = self._checked(x, self.tags)
        return ops.crf_loss(x, tags, self.transitions, self.start, self.end)

    def marginals(self, x: Input) -> Expression:
        """The probability of each tag for each word. There is no gradient.

        Args:
            x: see `loss`

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        x = self._checked(x, self.tags)
        return ops.crf_marginals(x, self.transitions, self.start, self.end)

    def __call__(self, x: Input) -> Expression:
        """The sequence of tags with the greatest score, as a vector of integers. There is no gradient.

        Args:
            x: see `loss`

        Returns:
            Expression of shape ``{n}``.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        x = self._checked(x, self.tags)
        return ops.crf_viterbi(x, self.transitions, self.start, self.end)

    def best(self, x: Input) -> list[int]:
        """The best sequence of tags, as a list of ints; computes x.

        Args:
            x: see `loss`
        """
        return self(x).vec_value()
