"""The base class of pretrained decoders: scores of the next piece, steps with caches, and generation."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Union, cast
from weakref import WeakKeyDictionary

from dynet_cy.graph import Expression
from dynet_cy.graph.expressions import cg
from dynet_cy.model import ParameterCollection
from dynet_cy.model.parameters import set_array
from dynet_cy.nn import Dropout, Embedding, KeysValues, Layer, Linear
from dynet_cy.nn.basic import resized_rows
from dynet_cy.nn.construction import put_part
from dynet_cy.pretrained.config import Config
from dynet_cy.pretrained.encoder import Encoder, Input
from dynet_cy.pretrained.generation import Sampling, generate
from dynet_cy.pretrained.heads import products_with_table
from dynet_cy.pretrained.positions import rows_from
from dynet_cy.pretrained.settings import Settings
from dynet_cy.rnn.builder import is_fresh

State = tuple[KeysValues, ...]
_matrices = threading.local()  # for each model the matrix for scores in the current graph, and what it was made of
Ids = Union[Sequence[int], Any]


class Tables(Layer):
    """Vectors of pieces, plus those of their positions if there is a table of them.

    Args:
        settings: those of the model
        model: where the parameters go
        first_position: the row of the first position; None: there are no positions
    """

    def __init__(self, settings: Settings, model: ParameterCollection, first_position: int | None) -> None:
        s = settings
        super().__init__(model)
        self.pieces = Embedding(s.vocabulary, s.dim, self.collection)
        self.positions = None if first_position is None else Embedding(s.positions, s.dim, self.collection)
        self.first_position = first_position or 0
        self.dropout = Dropout(s.dropout)

    def __call__(self, ids: Ids, first: int = 0) -> Expression:
        """The vectors.

        Args:
            ids: the pieces, as `Embedding` takes them
            first: the position of the first one
        """
        return self.dropout(self.placed(self.pieces(ids), first))

    def placed(self, x: Expression, first: int) -> Expression:
        """The vectors of pieces plus those of positions."""
        return x if self.positions is None else x + rows_from(self.positions, x, first + self.first_position)


class Generator(Encoder):
    """The base class of `Decoder` and `EncoderDecoder`: scores of the piece to come, and generation."""

    tied: ClassVar[bool] = False
    """Whether scores are products with the table of pieces where `config.json` does not say it."""

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str,
        model: ParameterCollection,
        head: bool = False,
        fill: Callable[[Encoder], None] | None = None,
    ) -> None:
        super().__init__(config, model, head, fill)

    @classmethod
    def top_tensor(cls) -> str:
        """The tensor that files have if there is a matrix for the scores."""
        return f"{cls.names['head']}.weight"

    def _add_top(self, present: bool) -> None:
        s = self.settings
        self.tie = self._is_tied(present)
        self.head = Linear(s.dim, s.vocabulary, self.collection, bias=False) if present and not self.tie else None

    def _resize_top(self, count: int) -> None:
        if self.head is not None:
            head = Linear(self.settings.dim, count, self.collection, bias=False)
            set_array(head.W, resized_rows(self.head.W.as_array(), count, None, "resize"))
            head.W.set_updated(self.head.W.is_updated())
            put_part(self, "head", head)

    def _is_tied(self, present: bool) -> bool:
        """Whether scores are products with the table of pieces; `present`: whether files have a matrix for them."""
        return self.config.flag("tie_word_embeddings", self.tied)

    def _make_embeddings(self) -> Any:
        return Tables(self.settings, self.collection, self._first_position())

    def _vectors(self, ids: Sequence[int], types: Sequence[int]) -> Expression:
        found: Expression = self.embeddings(ids)
        return found

    def _score_matrix(self) -> Expression | None:
        """The table of pieces as a matrix, if scores are products with it. It is a copy, so all steps in a graph share
        it, those of several calls too: only products with one matrix are computed together."""
        if not self.tie:
            return None
        table = self.embeddings.pieces.table
        kept, values = _matrices.__dict__.setdefault("kept", WeakKeyDictionary()), (cg(), table.storage.times_changed)
        before, found = kept.get(self, (None, None))
        if before == values and is_fresh(cast(Expression, found)):
            return cast(Expression, found)
        made: Expression = table.T
        kept[self] = values, made
        return made

    def _scores_of(self, x: Expression, matrix: Expression | None = None) -> Expression:
        """The scores of vectors; `matrix`: what `_score_matrix` returns, for steps."""
        if matrix is not None:
            return matrix * x
        if self.tie:
            return products_with_table(x, self.embeddings.pieces.table)
        if self.head is None:
            raise ValueError(f"{type(self).__name__}.scores: the files have no matrix for the scores")
        found: Expression = self.head(x)
        return found

    @abc.abstractmethod
    def _begin(self, ids: list[int]) -> tuple[Any, int]:
        """The state with which the text begins that follows some pieces, and the piece before it."""

    @abc.abstractmethod
    def _go_on(self, state: Any, ids: Any) -> tuple[Expression, Any]:
        """A step of several continuations, the batch elements of a state, each with one piece."""

    def _usual_options(self) -> dict[str, Any]:
        """Options of `generate` that the settings ask for."""
        return {}

    def _check_length(self, ids: list[int], longest: int) -> None:
        """Refuse texts that are longer than the model reads."""

    # ---- generation

    def generate(
        self,
        prompts: Any,
        longest: int = 50,
        width: int = 1,
        sample: Sampling | float | None = None,
        *,
        end: int | Sequence[int] | None = None,
        each: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> Any:
        """Generate continuations of texts: greedily, by beam search, or by sampling.

        Prompts of any lengths are continued together. Each has caches of its keys and values, so a step computes one
        column. After `dy.renew_cg(forward_only=True)`, memory of earlier steps is used again. In a function that
        `dy.Server` serves, new requests join those that are being computed.

        Args:
            prompts: a text, or a list of texts, each a string, or the numbers of its pieces; for words, `tokenize` them
            longest: how many pieces are added at most
            width: the width of beam search; 1: the best piece is taken each time
            sample: None; or how pieces are drawn: a `Sampling`, or its temperature. Draws depend on the seed.
            end: the piece, or pieces, that end a text; None: `eos_token_id` of `config.json`
            each: is called with the number of a prompt and a piece, for each piece once it is known, to show texts
                while they are written; not for ends. Needs a `width` of 1
            options: those of `dy.beam_search` with a `width` of more than 1, else of `dy.decode`: `allowed`,
                `min_length`, `no_repeat_ngram`, `forbidden`, `length_penalty` (for `beam_search`)

        Returns:
            What is added to the text, without its end: a string for a string, else the numbers of the pieces; a list of
            them for several prompts.

        Raises:
            ValueError: a prompt has no pieces, or is longer than the model reads with what is to be added; both `width`
                and `sample`; a number is out of its range; there is no tokenizer for a string
            TypeError: a prompt is something else
            IndexError: there is no such piece

        Example:
            >>> config = dict(vocab_size=10, n_embd=8, n_layer=1, n_head=2, n_positions=16, eos_token_id=0)
            >>> gpt = dy.pretrained.GPT2(config, model)
            >>> [len(found) <= 5 for found in gpt.generate([[1, 5, 2], [3]], longest=5)]
            [True, True]
        """
        return generate(self, prompts, longest, width, sample, end, each, options)

    def _is_part(self) -> bool:
        return True


class Decoder(Generator):
    """The base class of decoders: a stack of blocks in which each piece attends to the previous ones, and scores of
    the piece to come.

    An architecture is a derived class, as for `Encoder`.

    Args:
        config, model, fill: see `Encoder`
        head: whether there is a matrix for the scores; models whose scores are products with the table of pieces
            (`tie_word_embeddings`) need none

    Example:
        >>> config = dict(vocab_size=10, n_embd=8, n_layer=1, n_head=2, n_positions=16)
        >>> gpt = dy.pretrained.GPT2(config, model)
        >>> gpt([1, 5, 2]).dim()
        ((8, 3), 1)
    """

    def _make_layers(self) -> list[Any]:
        found = super()._make_layers()
        self.norm = self._make_norm(self.collection)
        return found

    @abc.abstractmethod
    def _make_norm(self, model: ParameterCollection) -> Layer:
        """The norm after the last block."""

    # ---- vectors and scores

    def _windows(self, ids: Sequence[int], types: Sequence[int], code: Input) -> list[Expression]:
        raise ValueError(
            f"{type(self).__name__}: a text has {len(ids)} pieces, more than the {self.longest} of `longest`"
        )

    def step(self, ids: Ids, state: State | None = None) -> tuple[Expression, State]:
        """Run the decoder for the next pieces of a text, from keys and values of the previous ones.

        Args:
            ids: the next piece; or a list of the next ones; or an array for a minibatch, as `Embedding` takes it
            state: what the previous step returned; None at the beginning

        Returns:
            Expression of shape ``{dim}`` or ``{dim,n}``, and the state after them, which belongs to the graph.

        Example:
            >>> config = dict(vocab_size=10, n_embd=8, n_layer=1, n_head=2, n_positions=16)
            >>> gpt = dy.pretrained.GPT2(config, model)
            >>> _, state = gpt.step([1, 5])
            >>> x, state = gpt.step(2, state)
            >>> bool(np.allclose(x.npvalue(), gpt([1, 5, 2])[:, 2].npvalue(), atol=1e-5))
            True
        """
        first = 0 if state is None else state[0].columns
        return self._steps(self.embeddings(ids, first), state)

    def _steps(self, x: Expression, state: State | None) -> tuple[Expression, State]:
        found = []
        for layer, past in zip(self.layers, state or [None] * len(self.layers)):
            x, past = layer.step(x, past)
            found.append(past)
        return self.norm(x), tuple(found)

    def _begin(self, ids: list[int]) -> tuple[State | None, int]:
        return self.step(ids[:-1])[1] if len(ids) > 1 else None, ids[-1]

    def _go_on(self, state: State | None, ids: Any) -> tuple[Expression, State]:
        first = 0 if state is None else state[0].columns
        return self._steps(self.embeddings.placed(self.embeddings.pieces.table.batch(ids), first), state)

    def _check_length(self, ids: list[int], longest: int) -> None:
        if len(ids) + longest - 1 > self.longest:
            raise ValueError(
                f"{type(self).__name__}.generate: a prompt of {len(ids)} pieces and {longest} more need more than the "
                f"{self.longest} that are read"
            )

    def scores(self, code: Input) -> Expression:
        """The score of each piece to follow each piece of a text: `log_softmax` makes log probabilities of them, and
        `dy.cross_entropy(gpt.scores(ids[:-1]), ids[1:])` is the loss of a language model.

        Args:
            code: what `tokenize` returns, or the numbers of the pieces

        Returns:
            Expression of shape ``{vocabulary,pieces}``.

        Raises:
            ValueError: there is no matrix for the scores in the files, or the text is longer than `longest`
            TypeError, IndexError: as in a call

        Example:
            >>> config = dict(vocab_size=10, n_embd=8, n_layer=1, n_head=2, n_positions=16)
            >>> dy.pretrained.GPT2(config, model).scores([1, 5, 2]).dim()
            ((10, 3), 1)
        """
        return self._scores_of(self(code))
