"""Heads of encoders: scores of masked pieces, of the class of a text, or of the class of each piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

from dynet_cy.graph import Expression
from dynet_cy.model import LookupParameters, ParameterCollection
from dynet_cy.model.parameters import set_array
from dynet_cy.nn import Dropout, Layer, LayerNorm, Linear
from dynet_cy.nn.basic import resized_rows
from dynet_cy.nn.construction import put_part
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.blocks import ACTIVATIONS
from dynet_cy.pretrained.config import Config
from dynet_cy.pretrained.names import Table
from dynet_cy.pretrained.settings import Settings
from dynet_cy.rnn.builder import positive_integer

Labels = Union[int, Sequence[str]]

KINDS = {"masked": "MaskedLM", "sequence": "SequenceClassification", "token": "TokenClassification"}
"""The kinds of heads, and how the names of their classes in `transformers` end."""


class HeadPlan(NamedTuple):
    """The parts of a kind of head in a family of encoders.

    Attributes:
        names: the names in files of the parts of `Head` that are there: "head.dense", "head.norm", "head.output", and
            "head" for b
        activation: that after `dense`; None: that of the blocks
        drops_first: whether there is dropout before `dense`
        bias: whether `dense` has b
        norm_bias: whether `norm` has b
    """

    names: Table
    activation: str | None = None
    drops_first: bool = False
    bias: bool = True
    norm_bias: bool = True


TOKEN = HeadPlan({"head.output": "classifier"})
"""A linear layer alone."""


class Head(Layer):
    """A linear layer with an activation, and a norm, as far as they are there; then scores of labels by a linear layer,
    or scores of pieces by products with the table of their vectors, plus b.

    Args:
        settings: those of the encoder
        model: where the parameters go
        plan: which parts there are
        labels: the number of labels; None: scores of pieces
        dropout: the rate before the scores of labels
    """

    def __init__(
        self, settings: Settings, model: ParameterCollection, plan: HeadPlan, labels: int | None, dropout: float
    ) -> None:
        s, there = settings, plan.names
        super().__init__(model)
        width = s.embedding_dim if labels is None else s.dim
        self.activation = ACTIVATIONS[plan.activation or s.activation]
        self.dropout, self.drops_first = Dropout(dropout), plan.drops_first
        self.dense = Linear(s.dim, width, self.collection, plan.bias) if "head.dense" in there else None
        self.norm = LayerNorm(width, self.collection, s.eps, plan.norm_bias) if "head.norm" in there else None
        self.output: Any = None if labels is None else Linear(width, labels, self.collection)
        self.b = self._vector(s.vocabulary) if labels is None else None

    def __call__(self, x: Expression, table: LookupParameters | None = None) -> Expression:
        """The scores.

        Args:
            x: columns, ``{dim,n}`` or ``{dim}``
            table: the vectors of the pieces, for their scores
        """
        if self.dense is not None:
            x = self.activation(self.dense(self.dropout(x) if self.drops_first else x))
        if self.norm is not None:
            x = self.norm(x)
        if table is not None and self.b is not None:
            return products_with_table(x, table) + self.b
        found: Expression = self.output(self.dropout(x))
        return found


def products_with_table(x: Expression, table: LookupParameters) -> Expression:
    """The product of each column with each vector of a table; both transposes are smaller than that of the table."""
    return ops.transpose(ops.transpose(x) * table.expr())


def resize_vector(layer: Layer, name: str, count: int) -> None:
    """Change the length of a parameter that is added to the scores of pieces: new ones get zeros."""
    former = getattr(layer, name)
    vector = layer._vector(count, 0.0, name)
    set_array(vector, resized_rows(former.as_array()[:, None], count, 0.0, "resize")[:, 0])
    vector.set_updated(former.is_updated())
    put_part(layer, name, vector)


def labels_of(config: Config) -> list[str]:
    """The names of the labels that a config has."""
    names = config.get("id2label")
    if names is None:
        return [f"LABEL_{i}" for i in range(config.size("num_labels", 2))]
    if not isinstance(names, dict) or sorted(map(str, names)) != sorted(map(str, range(len(names)))) or not names:
        raise config.wrong("id2label", "a name for each number from 0 on")
    return [str(names[key]) for key in sorted(names, key=int)]


def label_names(labels: Labels, where: str) -> list[str]:
    """The names of labels, of which there are the number or the names.

    Args:
        labels: the argument
        where: what it is an argument of, for errors
    """
    if not isinstance(labels, (list, tuple, str)):
        return [f"LABEL_{i}" for i in range(positive_integer(labels, where, "labels"))]
    if isinstance(labels, str) or not labels or not all(isinstance(name, str) for name in labels):
        raise ValueError(f"{where}: argument labels: expected a number, or names, got {labels!r:.80}")
    twice = next((name for i, name in enumerate(labels) if name in labels[:i]), None)
    if twice is not None:
        raise ValueError(f"{where}: argument labels: expected different names, got {twice!r:.80} twice")
    return list(labels)


def with_labels(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The settings, with other labels."""
    changed = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {n: i for i, n in enumerate(names)},
    }
    return {**{key: value for key, value in values.items() if key != "num_labels"}, **changed}
