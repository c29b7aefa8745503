"""The base class of pretrained models with an encoder, and a decoder that attends to it."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from dynet_cy.graph import Expression
from dynet_cy.nn import DecoderState
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.decoder import Generator
from dynet_cy.pretrained.encoder import Input


class EncoderDecoder(Generator):
    """The base class of models with an encoder and a decoder. A call gives the vectors of the encoder, as that of
    `Encoder`; `scores` and `generate` use the decoder as well.

    An architecture is a derived class, as for `Encoder`, with blocks of the decoder in `decoder_layers`, which have
    the method ``step(x, past, memory, *context)`` and the attention `cross`.

    Args:
        config, model, head, fill: see `Decoder`

    Example:
        >>> config = dict(vocab_size=10, d_model=8, d_ff=16, num_layers=1, num_heads=2, d_kv=4)
        >>> t5 = dy.pretrained.T5({**config, "decoder_start_token_id": 0}, model)
        >>> t5([4, 5, 1]).dim()
        ((8, 3), 1)
    """

    def _make_layers(self) -> list[Any]:
        s = self.settings
        self.begin = self.config.size("decoder_start_token_id", self._first_piece(), 0)
        found = super()._make_layers()
        count = self._decoder_layers()
        self.config.check_room(self.keys["layers"][0], count, s.dim, s.dim)
        self.decoder_layers = [self._make_decoder_block(number) for number in range(count)]
        return found

    # ---- what architectures change

    def _first_piece(self) -> int | None:
        """The piece before the first one of a text where `config.json` does not say it; None: it has to."""
        return None

    @abc.abstractmethod
    def _decoder_layers(self) -> int:
        """The number of blocks of the decoder."""

    @abc.abstractmethod
    def _make_decoder_block(self, number: int) -> Any:
        """A block of the decoder."""

    def _decoder_vectors(self, x: Expression, first: int) -> Expression:
        """The input of the first block of the decoder.

        Args:
            x: the vectors of the pieces in the table
            first: the position of the first one
        """
        return x

    def _decoder_context(self, first: int, columns: int) -> tuple[Expression, ...]:
        """Further arguments of all blocks of the decoder, for so many columns from position `first` on."""
        return ()

    def _decoder_finished(self, x: Expression) -> Expression:
        """What comes after the last block of the decoder."""
        return x

    # ---- steps

    def start(self, memory: Expression) -> DecoderState:
        """The state of the decoder before the first piece.

        Args:
            memory: the vectors of the encoder, ``{dim,n}``

        Returns:
            The state for `step`, which belongs to the graph.

        Example:
            >>> config = dict(vocab_size=10, d_model=8, d_ff=16, num_layers=1, num_heads=2, d_kv=4)
            >>> t5 = dy.pretrained.T5({**config, "decoder_start_token_id": 0}, model)
            >>> state = t5.start(t5([4, 5, 1]))
            >>> x, state = t5.step([0, 7], state)
            >>> x.dim(), state.position()
            (((8, 2), 1), 2)
        """
        return DecoderState(
            (None,) * len(self.decoder_layers), tuple(layer.cross.keys_values(memory) for layer in self.decoder_layers)
        )

    def step(self, ids: int | Sequence[int], state: DecoderState) -> tuple[Expression, DecoderState]:
        """Run the decoder for the next pieces, from keys and values of the previous ones.

        Args:
            ids: the next piece, or a list of the next ones
            state: what `start` or the previous step returned

        Returns:
            Expression of shape ``{dim}`` or ``{dim,n}``, and the state after them.

        Example:
            >>> config = dict(vocab_size=10, d_model=8, d_ff=16, num_layers=1, num_heads=2, d_kv=4)
            >>> t5 = dy.pretrained.T5({**config, "decoder_start_token_id": 0}, model)
            >>> x, state = t5.step(0, t5.start(t5([4, 5, 1])))
            >>> x.dim()
            ((8,), 1)
        """
        return self._steps(self.embeddings.pieces(ids), state)

    def _steps(self, x: Expression, state: DecoderState) -> tuple[Expression, DecoderState]:
        shape, _ = x.dim()
        first = state.position()
        x = self._decoder_vectors(x, first)
        context = self._decoder_context(first, shape[1] if len(shape) > 1 else 1)
        found = []
        for layer, past, memory in zip(self.decoder_layers, *state):
            x, after = layer.step(x, past, memory, *context)
            found.append(after)
        return self._decoder_finished(x), DecoderState(tuple(found), state.memory)

    def scores(self, code: Input, target: Input) -> Expression:  # type: ignore[override]  # a decoder reads its own text
        """The score of each piece to follow each piece of a target.

        Args:
            code: what the encoder reads: what `tokenize` returns, or the numbers of the pieces
            target: what the decoder reads, likewise; it begins with the piece `begin`. The loss of a translation `ids`
                is ``dy.cross_entropy(t5.scores(code, [t5.begin, *ids[:-1]]), ids)``.

        Returns:
            Expression of shape ``{vocabulary,pieces of the target}``.

        Raises:
            ValueError: there is no matrix for the scores in the files, or no pieces
            TypeError, IndexError: as in a call

        Example:
            >>> config = dict(vocab_size=10, d_model=8, d_ff=16, num_layers=1, num_heads=2, d_kv=4)
            >>> t5 = dy.pretrained.T5({**config, "decoder_start_token_id": 0}, model)
            >>> t5.scores([4, 5, 1], [0, 7]).dim()
            ((10, 2), 1)
        """
        ids, _ = self._numbers(target)
        found = self._scores_of(self.step(ids, self.start(self(code)))[0])
        return ops.reshape(found, (self.settings.vocabulary, 1)) if len(ids) == 1 else found

    def _begin(self, ids: list[int]) -> tuple[DecoderState, int]:
        return self.start(self(ids)), self.begin

    def _go_on(self, state: DecoderState, ids: Any) -> tuple[Expression, DecoderState]:
        return self._steps(self.embeddings.pieces.table.batch(ids), state)

    def _usual_options(self) -> dict[str, Any]:
        first = self.config.get("forced_bos_token_id")
        return {} if first is None else {"prefix": [self.config.size("forced_bos_token_id", least=0)]}
