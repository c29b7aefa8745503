"""Text as pieces, by the package `tokenizers`: the tokenizer of a folder, and the inputs of a model."""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.files.textfile import ModelFileError
from dynet_cy.pretrained.config import read_json

Text = Union[str, Sequence[str], "npt.NDArray[np.str_]"]

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "bpe.codes"),
    *(_SENTENCE_PIECES := ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model", "source.spm")),
    "target.spm",
)
"""The files of tokenizers, which a saved folder has too."""

_OWN = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # of RoBERTa and PhoBERT
_UNKNOWN = ("[UNK]", "<unk>", "<|endoftext|>")


@dataclass(frozen=True)
class Code:
    """A text, or a pair of texts, as a model reads it; see `Encoder.tokenize`.

    Attributes:
        ids: the numbers of the pieces, with those of the model's own pieces such as `[CLS]`
        pieces: the pieces themselves
        word_of: for each piece the number of its word, or None for the model's own pieces
        types: for each piece 0, or 1 in the second text of a pair
        words: the words; those of a text that was a string are as the tokenizer has found them
        first: how many of the model's own pieces come before the text
        last: how many come after it
        cut: how many pieces were cut off

    Example:
        >>> code = dy.pretrained.Code([2, 7, 8, 3], ["[CLS]", "Wal", "##ly", "[SEP]"], [None, 0, 0, None], ["Wally"])
        >>> code.spans
        [(1, 3)]
    """

    ids: list[int]
    pieces: list[str]
    word_of: list[int | None]
    words: list[str]
    types: list[int] = field(default_factory=list)
    first: int = 1
    last: int = 1
    cut: int = 0

    @property
    def spans(self) -> list[tuple[int, int]]:
        """For each word that was not cut off, its first piece and the one after its last.

        Example:
            >>> dy.pretrained.Code([2, 7, 8, 9], ["[CLS]", "a", "b", "##c"], [None, 0, 1, 1], ["a", "bc"]).spans
            [(1, 2), (2, 4)]
        """
        found: dict[int, tuple[int, int]] = {}
        for at, word in enumerate(self.word_of):
            if word is not None:
                found[word] = found.get(word, (at, at))[0], at + 1
        return [found[word] for word in sorted(found)]

    def __len__(self) -> int:
        return len(self.ids)


class TextReader:
    """Makes pieces of texts.

    Args:
        tokenizer: a `tokenizers.Tokenizer`
        files: the contents of the files that it was made from, by name
    """

    def __init__(self, tokenizer: Any, files: dict[str, bytes]) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.files = files

    @functools.cached_property
    def _for_words(self) -> Any:
        """The tokenizer for texts that are lists of words: bytes after a blank, as within a text."""
        settings = json.loads(self.tokenizer.to_str())
        before = settings.get("pre_tokenizer") or {}
        parts = [part for part in before.get("pretokenizers", [before]) if part.get("type") == "ByteLevel"]
        if all(part["add_prefix_space"] for part in parts):
            return self.tokenizer
        for part in parts:
            part["add_prefix_space"] = True
        return type(self.tokenizer).from_str(json.dumps(settings))

    def read(self, text: Text, second: Text | None = None, longest: int | None = None) -> Code:
        """The pieces of a text, or of a pair."""
        encoded, words, cut = [], [], 0
        for one in (text,) if second is None else (text, second):
            found, names = self._pieces(one)
            encoded.append(found)
            words.append(names)
        if longest is not None:
            own = self.tokenizer.num_special_tokens_to_add(second is not None)
            cut = _cut(encoded, longest - own, longest)
        whole = self.tokenizer.post_process(*encoded, add_special_tokens=True)
        own_pieces = [number is None for number in whole.sequence_ids]
        word_of = [
            None if number is None else number + (len(words[0]) if sequence else 0)
            for number, sequence in zip(whole.word_ids, whole.sequence_ids)
        ]
        inner = [at for at, own_piece in enumerate(own_pieces) if not own_piece]
        first, last = (inner[0], len(own_pieces) - 1 - inner[-1]) if inner else (len(own_pieces), 0)
        pieces = [self.tokenizer.id_to_token(number) for number in whole.ids]
        return Code(whole.ids, pieces, word_of, sum(words, []), whole.type_ids, first, last, cut)

    def _pieces(self, text: Text) -> tuple[Any, list[str]]:
        """A text as the tokenizer encodes it, without the model's own pieces, and its words."""
        if isinstance(text, np.ndarray):
            text = text.tolist()
        if isinstance(text, str):
            found = self.tokenizer.encode(text, add_special_tokens=False)
            count = 1 + max((number for number in found.word_ids if number is not None), default=-1)
            return found, [text[slice(*found.word_to_chars(i))].strip() for i in range(count)]
        words: list[Any] = list(text) if isinstance(text, (list, tuple)) else [text]
        wrong = [word for word in words if not isinstance(word, str)]
        if wrong:
            raise TypeError(f"tokenize: expected a string or a list of words, got {wrong[0]!r:.80}")
        found = self._for_words.encode(words, is_pretokenized=True, add_special_tokens=False)
        lost = set(range(len(words))) - set(found.word_ids)
        if lost:
            named = [self._unknown(word) if i in lost else word for i, word in enumerate(words)]
            found = self._for_words.encode(named, is_pretokenized=True, add_special_tokens=False)
        return found, words

    def _unknown(self, word: str) -> str:
        """The piece that stands for a word without pieces, such as one of characters that are removed."""
        for piece in _UNKNOWN:
            if self.tokenizer.token_to_id(piece) is not None:
                return piece
        raise ValueError(f"tokenize: the word {word!r} has no pieces, and the tokenizer has none for unknown words")

    def decode(self, ids: Sequence[int]) -> str:
        """The text of pieces, without the model's own."""
        found: str = self.tokenizer.decode([int(number) for number in ids])
        return found


def _cut(encoded: list[Any], room: int, longest: int) -> int:
    """Cut off pieces at the end, of the longer text first, and warn; returns how many."""
    if room < len(encoded):
        raise ValueError(f"tokenize: argument longest: {longest} pieces are too few")
    lengths = [len(one.ids) for one in encoded]
    kept = [min(lengths[0], max(room - sum(lengths[1:]), room - room // 2 if len(lengths) > 1 else room))]
    kept += [min(n, room - kept[0]) for n in lengths[1:]]
    for one, n in zip(encoded, kept):
        one.truncate(n)
    cut = sum(lengths) - sum(kept)
    if cut:
        message = f"tokenize: {cut} of {sum(lengths)} pieces are cut off, since at most {longest} were wanted"
        warnings.warn(message, stacklevel=5)
    return cut


# ---- reading


def read_tokenizer(folder: Path) -> TextReader | None:
    """The tokenizer in a folder; None if there is none.

    Raises:
        ModelFileError: a file is broken
        ImportError: there is no package `tokenizers`
    """
    present = [name for name in FILES if (folder / name).is_file()]
    makers = [row for row in _MAKERS if all(name in present for name in row[0])]
    if not makers:
        return None
    names, make = makers[0]
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError("tokenizers of pretrained models need: pip install 'dynet_cy[pretrained]'") from error
    try:
        tokenizer = make(tokenizers, folder)
    except ModelFileError:
        raise
    except Exception as error:  # of no other class
        raise ModelFileError(f"not a tokenizer: {error}", os.fspath(folder / names[0])) from error
    files = {name: (folder / name).read_bytes() for name in present}
    return tokenizer(files) if isinstance(tokenizer, functools.partial) else TextReader(tokenizer, files)


def _whole(tokenizers: Any, folder: Path) -> Any:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(path, "the settings of a tokenizer") if path.is_file() else {}


def _byte_pairs(tokenizers: Any, folder: Path) -> Any:
    """The tokenizer of RoBERTa, or of GPT-2, which frames texts by no pieces of its own."""
    files = [str(folder / name) for name in ("vocab.json", "merges.txt")]
    found = tokenizers.implementations.ByteLevelBPETokenizer.from_file(*files)
    own = [token for token in _OWN if found.token_to_id(token) is not None]
    found.add_special_tokens(own)
    if {"<s>", "</s>"} <= set(own):
        _frame(tokenizers, found._tokenizer)
    return found._tokenizer


def _frame(tokenizers: Any, tokenizer: Any) -> None:
    """Let a tokenizer add the pieces at the ends of texts."""
    ends = [(token, tokenizer.token_to_id(token)) for token in ("</s>", "<s>")]
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(*ends)


def _word_pieces(tokenizers: Any, folder: Path) -> Any:
    """The tokenizer of BERT."""
    settings = _settings(folder)
    found = tokenizers.implementations.BertWordPieceTokenizer.from_file(
        str(folder / "vocab.txt"),
        lowercase=bool(settings.get("do_lower_case", True)),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    return found._tokenizer


class _PairReader(TextReader):
    """Makes pieces as PhoBERT does (fastBPE): "@@" follows those within a word.

    Here pairs are merged by `tokenizers`, in which the last piece of a word has an ending instead. Some results of
    merges are no pieces of the model: they have numbers from `size` on here, and become the piece for unknown ones.
    """

    def __init__(self, tokenizer: Any, files: dict[str, bytes], size: int) -> None:
        super().__init__(tokenizer, files)
        self.size = size

    def read(self, text: Text, second: Text | None = None, longest: int | None = None) -> Code:
        code = super().read(text, second, longest)
        unknown = self.tokenizer.token_to_id("<unk>")
        ids = [number if number < self.size else unknown for number in code.ids]
        return replace(code, ids=ids, pieces=[self._shown(number) for number in ids])

    def _shown(self, number: int) -> str:
        piece: str = self.tokenizer.id_to_token(number)
        if piece in _OWN:
            return piece
        return piece[: -len(_LAST)] if piece.endswith(_LAST) else piece + "@@"


_LAST = "</w>"


def _pairs(tokenizers: Any, folder: Path) -> Any:
    """The tokenizer of PhoBERT: `vocab.txt` has a piece and its count a line, `bpe.codes` a pair and its count."""
    known = {piece: number for number, piece in enumerate(_OWN[:-1])}
    for line in (folder / "vocab.txt").read_text(encoding="utf-8").splitlines():
        piece, _, count = line.strip().rpartition(" ")
        if not piece or not count.isdecimal():
            raise ModelFileError(f"not a list of pieces and counts: {line!r:.80}", os.fspath(folder / "vocab.txt"))
        known.setdefault(piece[:-2] if piece.endswith("@@") else piece + _LAST, len(known))
    known.setdefault("<mask>", len(known))
    size, merges = len(known), []
    for line in (folder / "bpe.codes").read_text(encoding="utf-8").splitlines():
        parts = line.split()
        if len(parts) != 3:
            raise ModelFileError(f"not a list of pairs and counts: {line!r:.80}", os.fspath(folder / "bpe.codes"))
        merges.append((parts[0], parts[1]))
        for piece in (*merges[-1], "".join(merges[-1])):
            known.setdefault(piece, len(known))
    model = tokenizers.models.BPE(known, merges, unk_token="<unk>", end_of_word_suffix=_LAST)
    found = tokenizers.Tokenizer(model)
    found.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    found.decoder = tokenizers.decoders.BPEDecoder(_LAST)
    found.add_special_tokens(list(_OWN))
    _frame(tokenizers, found)
    return functools.partial(_PairReader, found, size=size)


# Files that make a tokenizer, the best first, and the function that does.
_MAKERS = (
    (("tokenizer.json",), _whole),
    (("vocab.json", "merges.txt"), _byte_pairs),
    (("vocab.txt", "bpe.codes"), _pairs),
    (("vocab.txt",), _word_pieces),
)


def advice(folder: Path) -> str:
    """Advice for a folder without a tokenizer, or with files of an unsupported one."""
    found = next((name for name in _SENTENCE_PIECES if (folder / name).is_file()), None)
    if found is None:
        ways = ", ".join(" with ".join(names) for names, _ in _MAKERS)
        return f"; {os.fspath(folder)} has none of {ways}"
    what = f"; {os.fspath(folder / found)} is a SentencePiece model, which is not read"
    if found == "source.spm":
        return f"{what}: make pieces with `transformers`, and pass their numbers"
    line = f"AutoTokenizer.from_pretrained({os.fspath(folder)!r}).save_pretrained({os.fspath(folder)!r})"
    return (
        f'{what}: python -c "from transformers import AutoTokenizer; {line}" makes a tokenizer.json of it (it needs '
        "`pip install transformers sentencepiece`)"
    )
