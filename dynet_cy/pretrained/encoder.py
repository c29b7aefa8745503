"""The base class of pretrained encoders: tables, a stack of blocks, words, and files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.model.weights import widened
from dynet_cy.nn import Dropout, Embedding, Layer, LayerNorm, Linear
from dynet_cy.ops import api as ops
from dynet_cy.pretrained.blocks import ACTIVATIONS, Block
from dynet_cy.pretrained.heads import KINDS, Head, HeadPlan, labels_of, resize_vector
from dynet_cy.pretrained.model import ConfigLike, Fill, Layout, Pretrained, as_config, in_text
from dynet_cy.pretrained.names import Table
from dynet_cy.pretrained.settings import KEYS, Settings, read_settings
from dynet_cy.pretrained.tables import NotWritten, piece_table
from dynet_cy.pretrained.text import Code, Text, TextReader, advice, read_tokenizer
from dynet_cy.pretrained.words import POOLS, Mixture, pooled

Input = Union[Code, Sequence[int], npt.NDArray[np.integer[Any]]]


class Embeddings(Layer):
    """Vectors of pieces: the sum of one for the piece, one for its position and one for its type, normalized.

    Args:
        settings: those of the encoder
        model: where the parameters go
        first_position: the row of the first position; None: there are no positions
        norm: makes the norm, in a collection; None: a `LayerNorm` of the vectors in the tables
    """

    def __init__(
        self,
        settings: Settings,
        model: ParameterCollection,
        first_position: int | None = 0,
        norm: Callable[[ParameterCollection], Layer] | None = None,
    ) -> None:
        s = settings
        super().__init__(model)
        self.first_position = first_position or 0
        self.pieces = piece_table(s, self.collection)
        self.positions = None
        if first_position is not None:
            self.positions = Embedding(s.positions, s.embedding_dim, self.collection)
        self.types = Embedding(s.types, s.embedding_dim, self.collection) if s.types else None
        self.norm = LayerNorm(s.embedding_dim, self.collection, s.eps) if norm is None else norm(self.collection)
        self.dropout = Dropout(s.dropout)

    def __call__(self, ids: Sequence[int], types: Sequence[int]) -> Expression:
        """The vectors, ``{embedding_dim,n}``."""
        x = self.pieces(ids)
        if self.positions is not None:
            x = x + self.positions(range(self.first_position, self.first_position + len(ids)))
        if self.types is not None:
            x = x + self.types(types)
        return self.dropout(self._normalized(x))

    def _normalized(self, x: Expression) -> Expression:
        found: Expression = self.norm(x)
        return found


class Encoder(Pretrained):
    """The base class of encoders: a stack of blocks over the vectors of pieces.

    An architecture is a derived class: its names in `config.json`, `keys`, and its table of names, `names`; the package
    `dynet_cy.pretrained` says how to add one. `dy.pretrained.load` makes encoders from folders. A new encoder is in
    evaluation mode, as in `transformers`; the `train` of a layer that holds it sets its mode, too.

    Args:
        config: the settings in `config.json`, as a dictionary or in JSON
        model: where the parameters go
        pooler: whether there is a linear layer for the vector of a text, as in BERT
        fill: is called with the new encoder; if it raises an error, nothing is left in the model
        head: what `scores` computes: None, the default: nothing; "masked": scores of the pieces that may stand in each
            place; "sequence": scores of the labels of a text; "token": scores of the labels of each piece
        tables: "float32", or "bfloat16" for a table of pieces of half the bytes that is not trained

    Raises:
        ModelFileError: a setting is missing or out of its range
        ValueError: `config` is something else, there is no such head, there are no such tables, or a head for masked
            pieces needs the table

    Attributes:
        settings: what `config.json` says, under the names of this library
        text: the tokenizer, or None
        labels: the names of the labels that `scores` has scores of; empty without such a head
        longest: how many pieces are read together; longer texts are read in windows
        overlap: how many pieces two windows have in common
        checkpoint: whether the values within blocks are dropped and computed again in backward, for less memory; see
            `dynet_cy.checkpoint`

    Example:
        >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model)
        >>> bert
        <Bert (1 layers of 8, 2 heads, 10 pieces, 4,808 numbers, no tokenizer), evaluation mode>
        >>> bert([2, 5, 7, 3]).dim()
        ((8, 4), 1)
    """

    keys: ClassVar[Mapping[str, tuple[str, Any]]] = KEYS
    """The name of each setting in `config.json`, and its value where it is missing."""
    heads: ClassVar[Mapping[str, HeadPlan]] = {}
    """The parts of each kind of head."""
    norm: Any = None
    """The norm after the last block."""

    def __init__(
        self,
        config: ConfigLike,
        model: ParameterCollection,
        pooler: bool = False,
        fill: Fill = None,
        head: str | None = None,
        tables: str = "float32",
    ) -> None:
        self.config = as_config(config)
        self.settings = replace(self._read_settings(), half_tables=self._half(tables, head))
        self._check_room()
        more: tuple[Any, ...] = ()
        if head is not None or self.settings.half_tables:
            more = (None, head, *([NotWritten()] if self.settings.half_tables else []))
        super().__init__(self.config, model, bool(pooler), *more)
        self.text: TextReader | None = None
        self.advice = ""
        self.embeddings = self._make_embeddings()
        self.projection = self._make_projection()
        self.layers = self._make_layers()
        self.pooler: Linear | None = None
        self.kind = head
        self.labels: list[str] = []
        self.head: Any = None
        self._add_top(bool(pooler))
        if head is not None:
            self._add_head(head)
        self.mixtures: dict[int, Mixture] = {}
        self.longest = self._longest()
        self.overlap = min(128, self.longest // 4)
        self.eval()
        if fill is not None:
            fill(self)

    def _half(self, tables: str, head: str | None) -> bool:
        """Whether the table of pieces is in bfloat16."""
        name = type(self).__name__
        if tables not in ("float32", "bfloat16"):
            raise ValueError(f"{name}: argument tables: expected float32 or bfloat16, got {tables!r:.80}")
        if tables == "bfloat16" and head == "masked":
            raise ValueError(f"{name}: argument tables: a head for masked pieces multiplies with the table in float32")
        return tables == "bfloat16"

    def _check_room(self) -> None:
        """Check that what the settings say is not larger than the files."""
        s, check = self.settings, self.config.check_room
        rows = {"vocabulary": s.vocabulary, "types": s.types}
        if self._first_position() is not None:
            rows["positions"] = s.positions
            if self._longest() < 1:
                raise self.config.wrong(self.keys["padding"][0], f"a piece before position {s.positions - 1}")
        for name, count in rows.items():
            check(self.keys[name][0], count, s.embedding_dim)
        check(self.keys["dim"][0], s.dim, s.dim)
        check(self.keys["heads"][0], s.heads * s.head_dim, s.dim)
        check(self.keys["hidden_dim"][0], s.hidden_dim, s.dim)

    def _longest(self) -> int:
        return self.settings.positions - (self._first_position() or 0)

    # ---- what architectures change

    def _read_settings(self, **changed: tuple[str, Any]) -> Settings:
        """The settings in `config.json`, some of them under other names or with other values where they are missing."""
        return read_settings(self.config, {**self.keys, **changed}, ACTIVATIONS)

    @classmethod
    def _layout(cls) -> Layout:
        return Layout(f"{cls.names['embeddings.pieces']}.weight", (cls.top_tensor(),))

    @classmethod
    def top_tensor(cls) -> str:
        """The tensor that files have if they have what `_add_top` adds."""
        return f"{cls.names.get('pooler')}.weight"

    def _add_top(self, present: bool) -> None:
        """Add what comes after the blocks, if files have it."""
        if present:
            self.pooler = Linear(self.settings.dim, self.settings.dim, self.collection)

    def _add_head(self, kind: str) -> None:
        """Add what computes scores."""
        if kind not in KINDS:
            expected = f"expected one of {', '.join(KINDS)}, got {kind!r:.80}"
            raise ValueError(f"{type(self).__name__}: argument head: {expected}")
        plan = self._head_plan(kind)
        if kind == "masked":
            self.config.only("tie_word_embeddings", True)
        else:
            self.labels = labels_of(self.config)
        self.names = {**self.names, **plan.names}
        if kind == "sequence" and self.pooler is None and "pooler" in self.names and "head.dense" not in plan.names:
            self.pooler = Linear(self.settings.dim, self.settings.dim, self.collection)
        self.head = Head(self.settings, self.collection, plan, len(self.labels) or None, self._head_dropout(kind))

    def _assigns(self, name: str, value: Any) -> bool:
        if name == "head" and self.heads and not (value is None or isinstance(value, Head)):
            raise TypeError(
                f"{type(self).__name__}: attribute head: expected none of your own: load(folder, model, head='token', "
                "labels=[...]) makes a new one, or head='sequence' for texts; or hold the encoder and your layer in a "
                f"dy.nn.Layer; got {type(value).__name__}"
            )
        return super()._assigns(name, value)

    def _head_plan(self, kind: str) -> HeadPlan:
        """The parts of a kind of head."""
        return self.heads[kind]

    def _head_dropout(self, kind: str) -> float:
        """The rate of dropout before the scores of labels."""
        return self.config.rate("classifier_dropout", self.settings.dropout)

    def _text_vector(self, x: Expression) -> Expression:
        """The vector of a text that the head for its labels reads, from those of the pieces."""
        return ops.pick(x, 0, 1) if self.pooler is None or self.head.dense is not None else self.pooled(x)

    def _first_position(self) -> int | None:
        """The row of the first position; None: there are no positions."""
        return 0

    def _make_embeddings(self) -> Any:
        return Embeddings(self.settings, self.collection, self._first_position())

    def _make_projection(self) -> Layer | None:
        """The layer between the vectors of pieces and the first block, where they differ in length."""
        s = self.settings
        return Linear(s.embedding_dim, s.dim, self.collection) if s.embedding_dim != s.dim else None

    def _make_layers(self) -> list[Any]:
        s = self.settings
        self.config.check_room(self.keys["layers"][0], s.layers, s.dim, s.dim)
        return [self._make_block(number) for number in range(s.layers)]

    def _make_block(self, number: int) -> Layer:
        return Block(self.settings, self.collection)

    def _stack(self) -> Sequence[Any]:
        """The blocks in the order in which they are called."""
        return self.layers

    def _context(self, columns: int) -> tuple[Expression, ...]:
        """Further arguments of all blocks, for a text of so many pieces."""
        return ()

    # ---- vectors

    @in_text
    def __call__(self, code: Input, *, all_layers: bool = False) -> Any:
        """The vectors of the pieces of a text.

        Texts of different lengths need no padding: called for each text of a graph, all of them are computed together.
        A text of more than `longest` pieces is read in windows that overlap; each piece gets its vector from the window
        in which it is farther from the ends.

        Args:
            code: what `tokenize` returns, or the numbers of the pieces, with the model's own
            all_layers: whether to return the results of all layers, those of the tables first

        Returns:
            Expression of shape ``{dim,pieces}``; with `all_layers` a list of them.

        Raises:
            TypeError: something other than whole numbers
            ValueError: no pieces, or an array with an axis for several texts
            IndexError: there is no such piece

        Example:
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model)
            >>> [x.dim()[0] for x in bert([2, 5, 7, 3], all_layers=True)]
            [(8, 4), (8, 4)]
        """
        ids, types = self._numbers(code)
        states = self._states(ids, types) if len(ids) <= self.longest else self._windows(ids, types, code)
        return states if all_layers else states[-1]

    def _numbers(self, code: Input) -> tuple[list[int], list[int]]:
        """The numbers of pieces, and their types."""
        name = type(self).__name__
        if isinstance(code, Code):
            return code.ids, code.types or [0] * len(code.ids)
        numbers = np.asarray(code)
        if numbers.dtype.kind not in "iu" and numbers.size:
            raise TypeError(
                f"{name}: argument code: expected whole numbers, or what `tokenize` returns, got {code!r:.80}"
            )
        if numbers.ndim == 2:
            hint = "pass code[0]" if len(numbers) == 1 else "call it for each of them"
            raise ValueError(f"{name}: argument code: expected one text, got an array of shape {numbers.shape}: {hint}")
        if numbers.ndim != 1 or not numbers.size:
            raise ValueError(f"{name}: argument code: expected pieces, got an array of shape {numbers.shape}")
        return numbers.tolist(), [0] * len(numbers)

    def _states(self, ids: Sequence[int], types: Sequence[int]) -> list[Expression]:
        """The results of all layers for one window."""
        x = self._vectors(ids, types)
        if self.projection is not None:
            x = self.projection(x)
        states, context = [x], self._context(len(ids))
        for number, layer in enumerate(self._stack()):
            x = self._run(number, layer, x, context)
            states.append(x)
        if self.norm is not None:
            states[-1] = self.norm(states[-1])
        if len(ids) == 1:  # some operations make a vector of a single column
            states = [ops.reshape(x, (self.settings.dim, 1)) for x in states]
        return states

    def _vectors(self, ids: Sequence[int], types: Sequence[int]) -> Expression:
        """The vectors in the tables."""
        found: Expression = self.embeddings(ids, types)
        return found

    def _windows(self, ids: Sequence[int], types: Sequence[int], code: Input) -> list[Expression]:
        """The results for a text that is too long to be read at once."""
        first, last = (code.first, code.last) if isinstance(code, Code) else (0, 0)
        if isinstance(code, Code) and None in code.word_of[first : len(ids) - last]:
            raise ValueError(
                f"{type(self).__name__}: a pair of texts has {len(ids)} pieces, which is more than {self.longest}: "
                f"tokenize(first, second, longest={self.longest}) cuts them off"
            )
        head, body, tail = list(ids[:first]), list(ids[first : len(ids) - last]), list(ids[len(ids) - last :])
        room = self.longest - first - last
        step = room - min(self.overlap, room - 1)
        begins = [*range(0, len(body) - room, step), len(body) - room]
        parts: list[list[Expression]] = []
        done = 0
        for i, begin in enumerate(begins):
            window = head + body[begin : begin + room] + tail
            ends = i == len(begins) - 1
            # The border of two windows is in the middle of what they have in common.
            until = len(body) if ends else (begins[i + 1] + begin + room) // 2
            low = 0 if i == 0 else first + done - begin
            high = len(window) if ends else first + until - begin
            states = self._states(window, [0] * len(window))
            parts.append([x[:, low:high] for x in states])
            done = until
        return [ops.concatenate(list(pieces), d=1) for pieces in zip(*parts)]

    def words(self, code: Code, pool: str = "first", mix: int | None = None) -> Expression:
        """The vectors of the words of a text.

        Args:
            code: what `tokenize` returns
            pool: which pieces of a word count: "first", "last", or "mean" for the mean of all of them
            mix: the number of layers, from the last one down, of which the vectors are a learnt mixture; see
                `Mixture`, which the first call with a number makes. None, the default: the last layer only.

        Returns:
            Expression of shape ``{dim,words}``; a word that was cut off has no column.

        Raises:
            TypeError: `code` is something else
            ValueError: there is no such `pool`, `mix` is not from 1 to the number of layers and the tables, or the
                text has no words

        Example:
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model)
            >>> code = dy.pretrained.Code([2, 7, 8, 3], ["[CLS]", "a", "##b", "[SEP]"], [None, 0, 0, None], ["ab"])
            >>> bert.words(code, pool="mean").dim()
            ((8, 1), 1)
        """
        name = f"{type(self).__name__}.words"
        if not isinstance(code, Code):
            raise TypeError(f"{name}: argument code: expected what `tokenize` returns, got {code!r:.80}")
        if pool not in POOLS:
            raise ValueError(f"{name}: argument pool: expected one of {', '.join(POOLS)}, got {pool!r:.80}")
        spans = code.spans
        if not spans:
            raise ValueError(f"{name}: argument code: the text has no words")
        if mix is None:
            return pooled(self(code), spans, pool)
        return pooled(self.mixture(mix)(self(code, all_layers=True)[-mix:]), spans, pool)

    def mixture(self, count: int) -> Mixture:
        """The learnt mixture of the last layers that `words` uses with `mix`; created at its first use.

        Args:
            count: the number of layers, from 1 to that of all layers and the tables

        Raises:
            ValueError: another number

        Example:
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model)
            >>> [name for name, p in bert.mixture(2).named_parameters()]
            ['weights', 'scale']
        """
        most = 1 + len(self._stack())
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
            name = type(self).__name__
            raise ValueError(f"{name}.words: argument mix: expected a number from 1 to {most}, got {count!r:.80}")
        if count not in self.mixtures:
            self.mixtures = {**self.mixtures, count: Mixture(count, self.collection)}
        return self.mixtures[count]

    def pooled(self, x: Expression) -> Expression:
        """The pooled vector of a text, as for BERT's next sentence prediction: the tanh of a linear layer of the first
        column.

        Args:
            x: the vectors of the pieces, ``{dim,pieces}``

        Returns:
            Expression of shape ``{dim}``.

        Raises:
            ValueError: the files had no such layer

        Example:
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model, pooler=True)
            >>> bert.pooled(bert([2, 5, 7, 3])).dim()
            ((8,), 1)
        """
        if self.pooler is None:
            raise ValueError(f"{type(self).__name__}.pooled: there is no such layer in the files")
        return ops.tanh(self.pooler(ops.pick(x, 0, 1)))

    def scores(self, code: Input) -> Expression:
        """The scores of the head, for `dy.softmax` or `dy.cross_entropy`.

        Args:
            code: what `tokenize` returns, or the numbers of the pieces

        Returns:
            Expression: with a head for masked pieces ``{vocabulary,pieces}``, with one for labels of pieces
            ``{labels,pieces}``, with one for labels of texts ``{labels}``.

        Raises:
            ValueError: there is no head
            TypeError, IndexError: as in a call

        Example:
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> config |= dict(intermediate_size=16, id2label={"0": "noun", "1": "verb", "2": "other"})
            >>> tagger = dy.pretrained.Bert(config, model, head="token")
            >>> tagger.scores([2, 5, 7, 3]).dim(), tagger.labels
            (((3, 4), 1), ['noun', 'verb', 'other'])
        """
        if self.head is None:
            raise ValueError(
                f"{type(self).__name__}.scores: there is no head; load(folder, model, head=...) reads one of "
                f"{', '.join(KINDS)}"
            )
        x = self(code)
        table = self.embeddings.pieces.table if self.kind == "masked" else None
        found: Expression = self.head(self._text_vector(x) if self.kind == "sequence" else x, table)
        return found

    # ---- text

    @in_text
    def tokenize(self, text: Text, second: Text | None = None, *, longest: int | None = None) -> Code:
        """The pieces of a text, with the model's own, such as `[CLS]` and `[SEP]`.

        Args:
            text: a string, or a list or array of words, which stay apart. A word without pieces gets the one for
                unknown words.
            second: the second text of a pair
            longest: cut off pieces beyond so many, with a warning; None, the default: keep all of them

        Raises:
            ValueError: there is no tokenizer, or `longest` leaves no room for the text
            TypeError: neither a string nor words

        Example:
            >>> from pathlib import Path
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> dy.pretrained.Bert({**config, "intermediate_size": 16}, model).save("folder")
            >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "wal", "##ly"]
            >>> _ = Path("folder/vocab.txt").write_text(chr(10).join(vocabulary))
            >>> bert = dy.pretrained.load("folder", model)
            >>> bert.tokenize(["Wally"]).pieces
            ['[CLS]', 'wal', '##ly', '[SEP]']
        """
        return self._reader().read(text, second, longest)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some pieces, without the model's own.

        Args:
            ids: the numbers of the pieces

        Raises:
            ValueError: there is no tokenizer

        Example:
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model)
            >>> bert.decode([2, 3])
            Traceback (most recent call last):
                ...
            ValueError: Bert: there is no tokenizer: it was made without a folder that has one
        """
        return self._reader().decode(ids)

    def resize(self, vocabulary: int) -> None:
        """Change the number of pieces, for a tokenizer with further ones. The tables of vectors and of scores keep
        their first rows; new ones are drawn as by `Embedding.resize`. A trainer's state for these begins with zeros.

        Args:
            vocabulary: the new number of pieces

        Raises:
            TypeError: not an integer
            ValueError: less than 1, or the table is in bfloat16

        Example:
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model)
            >>> bert.resize(12)
            >>> bert([2, 5, 11, 3]).dim()
            ((8, 4), 1)
        """
        count = self._size(vocabulary, "vocabulary")
        self.embeddings.pieces.resize(count)
        self._resize_top(count)
        self.settings = replace(self.settings, vocabulary=count)
        self.config.values[self.keys["vocabulary"][0]] = count
        self.spec = (json.dumps(self.config.values), *self.spec[1:])

    def _resize_top(self, count: int) -> None:
        """Change the number of pieces of what makes scores."""
        if self.kind == "masked":
            resize_vector(self.head, "b", count)

    def _reader(self) -> TextReader:
        if self.text is None:
            message = "there is no tokenizer: it was made without a folder that has one"
            raise ValueError(f"{type(self).__name__}: {message}{self.advice}")
        return self.text

    # ---- training

    def _by_depth(self) -> list[Any]:
        tables = [part for part in (self.embeddings, self.projection, *self._further_tables()) if part is not None]
        return [*self.layers[::-1], tables]

    def _further_tables(self) -> list[Any]:
        """Further tables, such as those of distances."""
        return []

    # ---- files

    def _architecture(self, kind: str) -> str:
        name = super()._architecture(kind)
        return name if self.kind is None else name[: -len("Model")] + "For" + KINDS[self.kind]

    def _is_part(self) -> bool:
        return self.head is not None

    def _tensors(self) -> dict[str, npt.NDArray[Any]]:
        found = super()._tensors()
        if self.settings.half_tables:
            found[self._name_in_files("embeddings.pieces.table")] = widened(self.embeddings.pieces.numbers)
        return found

    def _outline(self) -> str:
        s = self.settings
        text = "no tokenizer" if self.text is None else "with tokenizer"
        if self.kind is not None:
            text += f", {self.kind} head"
        shape = f"{s.layers} layers of {s.dim}, {s.heads} heads, {s.vocabulary} pieces"
        return f"({shape}, {self._count()}, {text}){self._reported()}"

    def _files(self) -> Mapping[str, bytes]:
        return self.text.files if self.text is not None else {}

    def _read_folder(self, folder: Path) -> None:
        self.text = read_tokenizer(folder)
        self.advice = "" if self.text is not None else advice(folder)

    def _add_parts(self, names: Iterable[str]) -> None:
        for name in names:
            mixture = re.fullmatch(r"mixtures\.(\d{1,4})\.weights", name)
            if mixture is not None:
                self.mixture(int(mixture[1]))

    def _extra_names(self) -> Table:
        return {"mixtures.*": "mixtures.*"}
