"""Softmax layers: parameters that turn a vector into a distribution over classes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from dynet_cy.files.reading import FileName, numbered_lines
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.model.given import collection_of
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.ops.api import (
    affine_transform,
    concatenate,
    concatenate_to_batch,
    log_softmax,
    pick_batch_elem,
    pickneglogsoftmax,
    pickneglogsoftmax_batch,
    random_gumbel,
    select_rows,
    zeros,
)
from dynet_cy.rnn.builder import positive_integer, take_place_of_former

__all__ = ["ClassFactoredSoftmaxBuilder", "SoftmaxBuilder", "StandardSoftmaxBuilder"]

Builder = TypeVar("Builder", bound="SoftmaxBuilder")


class _Affine(NamedTuple):
    """A matrix with a row for each class, and perhaps a bias for each class."""

    w: Parameters
    b: Parameters | None

    def logits(self, x: Expression, update: bool) -> Expression:
        w = self.w.expr(update)
        return w * x if self.b is None else affine_transform([self.b.expr(update), w, x])


class SoftmaxBuilder:
    """A layer that gives a distribution over classes for a vector x of length rep_dim.

    The base class of `StandardSoftmaxBuilder` and `ClassFactoredSoftmaxBuilder`.

    Example:
        >>> isinstance(dy.StandardSoftmaxBuilder(2, 3, model), dy.SoftmaxBuilder)
        True
    """

    _collection_name: ClassVar[str]

    spec: tuple[Any, ...]
    """The arguments of the constructor but for the collection: what `from_spec` needs."""

    _collection: ParameterCollection

    def _open(self, rep_dim: int, pc: CollectionOrLayer, bias: bool) -> None:
        name = type(self).__name__
        self.rep_dim = positive_integer(rep_dim, name, "rep_dim")
        self.bias = bool(bias)
        self._collection = collection_of(pc, name, "pc").add_subcollection(self._collection_name)
        take_place_of_former(self)

    def _affine(self, classes: int) -> _Affine:
        w = self._collection.add_parameters((classes, self.rep_dim))
        return _Affine(w, self._collection.add_parameters((classes,), init=0.0) if self.bias else None)

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__}.{method}: use a class derived from SoftmaxBuilder")

    def neg_log_softmax(self, x: Expression, c: int, update: bool = True) -> Expression:
        """-log p(c | x).

        Args:
            x: shape ``{rep_dim}``; with a batch, `c` is the class of each element
            c: number of a class
            update: whether gradients reach the parameters (default: yes)

        Returns:
            Expression of shape ``{1}``.

        Raises:
            IndexError: there is no such class

        Example:
            >>> layer = dy.StandardSoftmaxBuilder(2, 3, model)
            >>> layer.neg_log_softmax(dy.inputVector([1, 2]), 0).dim()
            ((1,), 1)
        """
        raise self._missing("neg_log_softmax")

    def neg_log_softmax_batch(self, x: Expression, c: Sequence[int], update: bool = True) -> Expression:
        """-log p(c | x) of a minibatch.

        Args:
            x: shape ``{rep_dim}``
            c: number of a class for each batch element
            update: whether gradients reach the parameters (default: yes)

        Returns:
            Expression of shape ``{1}`` with a batch.

        Raises:
            IndexError: there is no such class
            ValueError: `x` has another batch size than `c`

        Example:
            >>> layer = dy.StandardSoftmaxBuilder(2, 3, model)
            >>> x = dy.inputTensor([[1, 3], [2, 4]], batched=True)
            >>> layer.neg_log_softmax_batch(x, [0, 2]).dim()
            ((1,), 2)
        """
        raise self._missing("neg_log_softmax_batch")

    def full_log_distribution(self, x: Expression, update: bool = True) -> Expression:
        """log p(c | x) of all classes.

        Args:
            x: shape ``{rep_dim}``
            update: whether gradients reach the parameters (default: yes)

        Returns:
            Expression of shape ``{number of classes}``.

        Example:
            >>> layer = dy.StandardSoftmaxBuilder(2, 3, model)
            >>> layer.full_log_distribution(dy.inputVector([1, 2])).dim()
            ((3,), 1)
        """
        raise self._missing("full_log_distribution")

    def full_logits(self, x: Expression, update: bool = True) -> Expression:
        """A vector whose softmax is the distribution.

        Args:
            x: shape ``{rep_dim}``
            update: whether gradients reach the parameters (default: yes)

        Returns:
            Expression of shape ``{number of classes}``.

        Example:
            >>> layer = dy.StandardSoftmaxBuilder(2, 3, model)
            >>> layer.full_logits(dy.inputVector([1, 2])).dim()
            ((3,), 1)
        """
        raise self._missing("full_logits")

    def sample(self, x: Expression) -> int:
        """The number of a class, drawn from the distribution.

        Args:
            x: shape ``{rep_dim}``, without a batch

        Raises:
            ValueError: `x` has a batch

        Example:
            >>> layer = dy.StandardSoftmaxBuilder(2, 3, model)
            >>> layer.sample(dy.inputVector([1, 2])) in (0, 1, 2)
            True
        """
        raise self._missing("sample")

    def param_collection(self) -> ParameterCollection:
        """The sub-collection that holds the parameters.

        Example:
            >>> layer = dy.StandardSoftmaxBuilder(2, 3, model)
            >>> layer.param_collection().name()
            '/standard-softmax-builder/'
        """
        return self._collection

    @classmethod
    def from_spec(cls: type[Builder], spec: Sequence[Any], model: ParameterCollection) -> Builder:
        """A layer like the one whose `spec` is given, with parameters of its own in `model`.

        Example:
            >>> layer = dy.StandardSoftmaxBuilder(2, 3, model)
            >>> dy.StandardSoftmaxBuilder.from_spec(layer.spec, dy.ParameterCollection())
            <StandardSoftmaxBuilder (2, 3, True)>
        """
        *arguments, bias = spec
        return cls(*arguments, model, bias)  # type: ignore[call-arg]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec}>"

    def _draw(self, logits: Expression) -> int:
        """An index of a vector, drawn from its softmax (Gumbel, "Statistical Theory of Extreme Values", 1954)."""
        shape, batch = logits.dim()
        if batch != 1:
            raise ValueError(f"{type(self).__name__}.sample: x has batch size {batch}, only 1 is possible")
        return int(np.argmax((logits + random_gumbel(shape)).npvalue()))

    def _checked(self, c: Any, method: str, count: int) -> int:
        """A class number, checked to be in range."""
        if isinstance(c, bool) or not isinstance(c, (int, np.integer)):
            raise TypeError(f"{type(self).__name__}.{method}: a class must be a whole number, not {c!r}")
        if not 0 <= c < count:
            raise IndexError(f"{type(self).__name__}.{method}: class {c} is not from 0 to {count - 1}")
        return int(c)

    def _batch_of(self, x: Expression, c: Iterable[Any], method: str, count: int) -> list[int]:
        """The classes of a minibatch, one for each element of x."""
        classes = [self._checked(one, method, count) for one in c]
        if len(classes) != x.dim()[1]:
            raise ValueError(
                f"{type(self).__name__}.{method}: {len(classes)} classes for x with batch size {x.dim()[1]}"
            )
        return classes


class StandardSoftmaxBuilder(SoftmaxBuilder):
    """p(. | x) = softmax(W x + b).

    Parameters: W (num_classes, rep_dim), Glorot; b (num_classes,), zeros. Sub-collection: `standard-softmax-builder`.

    Args:
        rep_dim: length of x
        num_classes: number of classes
        pc: where the parameters go
        bias: whether there is b (default: yes)

    Raises:
        TypeError: a number is not an integer, or `pc` is not a `ParameterCollection`
        ValueError: a number is less than 1

    Example:
        >>> layer = dy.StandardSoftmaxBuilder(2, 3, model)
        >>> layer.neg_log_softmax(dy.inputVector([1, 2]), 0).dim()
        ((1,), 1)
    """

    _collection_name = "standard-softmax-builder"

    def __init__(self, rep_dim: int, num_classes: int, pc: CollectionOrLayer, bias: bool = True) -> None:
        self.num_classes = positive_integer(num_classes, type(self).__name__, "num_classes")
        self._open(rep_dim, pc, bias)
        self._layer = self._affine(self.num_classes)
        self.spec = (self.rep_dim, self.num_classes, self.bias)

    def neg_log_softmax(self, x: Expression, c: int, update: bool = True) -> Expression:
        c = self._checked(c, "neg_log_softmax", self.num_classes)
        return pickneglogsoftmax(self._layer.logits(x, update), c)

    def neg_log_softmax_batch(self, x: Expression, c: Sequence[int], update: bool = True) -> Expression:
        classes = self._batch_of(x, c, "neg_log_softmax_batch", self.num_classes)
        return pickneglogsoftmax_batch(self._layer.logits(x, update), classes)

    def full_log_distribution(self, x: Expression, update: bool = True) -> Expression:
        return log_softmax(self._layer.logits(x, update))

    def full_logits(self, x: Expression, update: bool = True) -> Expression:
        return self._layer.logits(x, update)

    def sample(self, x: Expression) -> int:
        return self._draw(self._layer.logits(x, False))


class ClassFactoredSoftmaxBuilder(SoftmaxBuilder):
    """Words in clusters: p(word | x) = p(cluster | x) p(word | cluster, x), each a softmax of its own (Goodman,
    "Classes for fast maximum entropy training", ICASSP 2001). The cost of a word is that of two small softmaxes, over
    the clusters and over the words of its cluster, rather than of one over the whole vocabulary.

    The file has a line for each word, with fields separated by blanks or tabs: the name of a cluster, the word, and
    possibly more fields, which are ignored. Clusters, and words within a cluster, are numbered in file order.

    Parameters: W (clusters, rep_dim), Glorot, and b (clusters,), zeros; then the same for the words of each cluster
    that has more than one. Sub-collection: `class-factored-softmax-builder`.

    Args:
        rep_dim: length of x
        cluster_file: name of the file
        word_dict: the number of each word; words of it that are not in the file have probability 0
        pc: where the parameters go
        bias: whether there are biases (default: yes)

    Raises:
        TypeError: `rep_dim` is not an integer, `word_dict` no mapping, or `pc` no `ParameterCollection`
        ValueError: `rep_dim` is less than 1; a line of the file has fewer than two fields; a word occurs twice; the
            file is empty
        KeyError: a word of the file is not in `word_dict`
        OSError: the file cannot be read

    Example:
        >>> with open("clusters", "w") as file:
        ...     print("animals dog", "animals cat", "plants tree", sep=chr(10), file=file)
        >>> words = {"dog": 0, "cat": 1, "tree": 2}
        >>> layer = dy.ClassFactoredSoftmaxBuilder(2, "clusters", words, model)
        >>> layer.neg_log_softmax(dy.inputVector([1, 2]), 2).dim()
        ((1,), 1)
    """

    _collection_name = "class-factored-softmax-builder"

    def __init__(
        self,
        rep_dim: int,
        cluster_file: FileName,
        word_dict: Mapping[str, int],
        pc: CollectionOrLayer,
        bias: bool = True,
    ) -> None:
        if not isinstance(word_dict, Mapping):
            raise TypeError(
                f"{type(self).__name__}: argument word_dict: expected a dictionary, got {type(word_dict).__name__}"
            )
        self._clusters = _read_clusters(cluster_file, word_dict)
        # The cluster of each word, and its place there.
        self._place = {word: (k, i) for k, words in enumerate(self._clusters) for i, word in enumerate(words)}
        self._open(rep_dim, pc, bias)
        self._cluster_layer = self._affine(len(self._clusters))
        self._layers = [self._affine(len(words)) if len(words) > 1 else None for words in self._clusters]
        self.spec = (self.rep_dim, os.fspath(cluster_file), dict(word_dict), self.bias)

    # ---- clusters

    def class_logits(self, x: Expression, update: bool = True) -> Expression:
        """A vector whose softmax is the distribution over clusters.

        Args:
            x: shape ``{rep_dim}``
            update: whether gradients reach the parameters (default: yes)

        Returns:
            Expression of shape ``{number of clusters}``.

        Example:
            >>> with open("clusters", "w") as file:
            ...     print("animals dog", "animals cat", "plants tree", sep=chr(10), file=file)
            >>> words = {"dog": 0, "cat": 1, "tree": 2}
            >>> layer = dy.ClassFactoredSoftmaxBuilder(2, "clusters", words, model)
            >>> layer.class_logits(dy.inputVector([1, 2])).dim()
            ((2,), 1)
        """
        return self._cluster_layer.logits(x, update)

    def class_log_distribution(self, x: Expression, update: bool = True) -> Expression:
        """log p(cluster | x) of all clusters, of shape ``{number of clusters}``; see `class_logits`.

        Args:
            x: the input, of shape ``{input_dim}``.
            update: whether gradients reach the parameters (default: yes).

        Example:
            >>> with open("clusters", "w") as file:
            ...     print("animals dog", "animals cat", "plants tree", sep=chr(10), file=file)
            >>> words = {"dog": 0, "cat": 1, "tree": 2}
            >>> layer = dy.ClassFactoredSoftmaxBuilder(2, "clusters", words, model)
            >>> round(float(dy.exp(layer.class_log_distribution(dy.inputVector([1, 2]))).npvalue().sum()), 5)
            1.0
        """
        return log_softmax(self.class_logits(x, update))

    def subclass_logits(self, x: Expression, classid: int, update: bool = True) -> Expression:
        """A vector whose softmax is the distribution over the words of a cluster.

        Args:
            x: shape ``{rep_dim}``
            classid: number of the cluster
            update: whether gradients reach the parameters (default: yes)

        Returns:
            Expression of shape ``{number of words in the cluster}``.

        Raises:
            IndexError: there is no such cluster

        Example:
            >>> with open("clusters", "w") as file:
            ...     print("animals dog", "animals cat", "plants tree", sep=chr(10), file=file)
            >>> words = {"dog": 0, "cat": 1, "tree": 2}
            >>> layer = dy.ClassFactoredSoftmaxBuilder(2, "clusters", words, model)
            >>> layer.subclass_logits(dy.inputVector([1, 2]), 0).dim()
            ((2,), 1)
        """
        layer = self._layers[self._checked(classid, "subclass_logits", len(self._clusters))]
        return zeros((1,), batch_size=x.dim()[1]) if layer is None else layer.logits(x, update)

    def subclass_log_distribution(self, x: Expression, classid: int, update: bool = True) -> Expression:
        """log p(word | cluster, x) of all words of a cluster; see `subclass_logits`.

        Args:
            x: the input, of shape ``{input_dim}``.
            classid: the number of the cluster.
            update: whether gradients reach the parameters (default: yes).

        Example:
            >>> with open("clusters", "w") as file:
            ...     print("animals dog", "animals cat", "plants tree", sep=chr(10), file=file)
            >>> words = {"dog": 0, "cat": 1, "tree": 2}
            >>> layer = dy.ClassFactoredSoftmaxBuilder(2, "clusters", words, model)
            >>> layer.subclass_log_distribution(dy.inputVector([1, 2]), 1).value()     # the only word there
            0.0
        """
        return log_softmax(self.subclass_logits(x, classid, update))

    # ---- words

    def _word(self, c: Any, method: str) -> tuple[int, int]:
        """The cluster of a word, and its place there."""
        place = self._place.get(int(c)) if isinstance(c, (int, np.integer)) else None
        if place is None:
            raise IndexError(f"{type(self).__name__}.{method}: word {c!r} is in no cluster")
        return place

    def neg_log_softmax(self, x: Expression, c: int, update: bool = True) -> Expression:
        cluster, place = self._word(c, "neg_log_softmax")
        loss = pickneglogsoftmax(self.class_logits(x, update), cluster)
        layer = self._layers[cluster]
        return loss if layer is None else loss + pickneglogsoftmax(layer.logits(x, update), place)

    def neg_log_softmax_batch(self, x: Expression, c: Sequence[int], update: bool = True) -> Expression:
        words = list(c)
        if len(words) != x.dim()[1]:
            raise ValueError(
                f"{type(self).__name__}.neg_log_softmax_batch: {len(words)} words for x with batch size {x.dim()[1]}"
            )
        losses = [self.neg_log_softmax(pick_batch_elem(x, i), word, update) for i, word in enumerate(words)]
        return concatenate_to_batch(losses)

    def full_log_distribution(self, x: Expression, update: bool = True) -> Expression:
        """log p(word | x) of all words of the clusters, in the order of their numbers.

        Args:
            x: shape ``{rep_dim}``
            update: whether gradients reach the parameters (default: yes)

        Returns:
            Expression of shape ``{number of words}``; numbers of words that are in no cluster are left out.

        Example:
            >>> with open("clusters", "w") as file:
            ...     print("animals dog", "animals cat", "plants tree", sep=chr(10), file=file)
            >>> words = {"dog": 0, "cat": 1, "tree": 2}
            >>> layer = dy.ClassFactoredSoftmaxBuilder(2, "clusters", words, model)
            >>> layer.full_log_distribution(dy.inputVector([1, 2])).dim()
            ((3,), 1)
        """
        clusters = self.class_log_distribution(x, update)
        parts = [
            clusters[k : k + 1] if layer is None else log_softmax(layer.logits(x, update)) + clusters[k : k + 1]
            for k, layer in enumerate(self._layers)
        ]
        numbers = [word for words in self._clusters for word in words]
        order = np.argsort(numbers).tolist()
        joined = concatenate(parts)
        return joined if order == list(range(len(order))) else select_rows(joined, order)

    def full_logits(self, x: Expression, update: bool = True) -> Expression:
        """The log probabilities of all classes, as `full_log_distribution`: their softmax is the distribution.

        Args:
            x: the input, of shape ``{input_dim}``.
            update: whether gradients reach the parameters (default: yes).

        Example:
            >>> with open("clusters", "w") as file:
            ...     print("animals dog", "animals cat", "plants tree", sep=chr(10), file=file)
            >>> words = {"dog": 0, "cat": 1, "tree": 2}
            >>> layer = dy.ClassFactoredSoftmaxBuilder(2, "clusters", words, model)
            >>> layer.full_logits(dy.inputVector([1, 2])).dim()
            ((3,), 1)
        """
        return self.full_log_distribution(x, update)

    def sample(self, x: Expression) -> int:
        cluster = self._draw(self.class_logits(x, False))
        layer = self._layers[cluster]
        return self._clusters[cluster][0 if layer is None else self._draw(layer.logits(x, False))]


def _read_clusters(file: FileName, word_dict: Mapping[str, int]) -> list[list[int]]:
    """The numbers of the words of each cluster."""
    clusters: dict[str, list[int]] = {}
    seen: set[int] = set()
    for number, line in numbered_lines(file, "a file of clusters of words"):
        parts = line.split("\t") if "\t" in line else line.split()
        if not any(parts):
            continue
        where = f"ClassFactoredSoftmaxBuilder: {os.fspath(file)}, line {number}"
        if len(parts) not in (2, 3) or (len(parts) == 3 and not parts[2].isdigit()):
            raise ValueError(f"{where}: a cluster and a word are needed, and perhaps its count, not {line!r:.80}")
        if parts[1] not in word_dict:
            raise KeyError(f"{where}: word {parts[1]!r} is not in word_dict")
        word = word_dict[parts[1]]
        if word in seen:
            raise ValueError(f"{where}: word {parts[1]!r} is there for the second time")
        seen.add(word)
        clusters.setdefault(parts[0], []).append(word)
    if not clusters:
        raise ValueError(f"ClassFactoredSoftmaxBuilder: {os.fspath(file)} has no words")
    return list(clusters.values())
