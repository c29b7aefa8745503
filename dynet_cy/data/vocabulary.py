"""Vocabularies: numbers for words."""

from __future__ import annotations

import json
import operator
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, SupportsIndex

from dynet_cy.core.items import check_no_table
from dynet_cy.files.reading import FileName, numbered_lines
from dynet_cy.files.replacing import write_file
from dynet_cy.files.schema import COUNT, TEXT, check, every, mapping, maybe, one_of, record
from dynet_cy.hints.equivalents import KnownArguments

_FORMAT = "dynet_cy vocabulary"
_FILE = record(
    {
        "format": one_of(_FORMAT),
        "version": one_of(1),
        "unknown": maybe(TEXT),
        "special": every(TEXT),
        "words": mapping(COUNT),
    }
)


class _Generator(Protocol):
    def random(self) -> float: ...


class Vocabulary(KnownArguments):
    """Numbers words, from 0 on: first the unknown word, then special words, then the words of the data.

    A vocabulary does not change after it is made. ``vocabulary["dog"]`` is the number of a word, `words` has the word
    of each number. ``"dog" in vocabulary`` says whether a word has a number of its own, ``len(vocabulary)`` is the
    number of rows that a table of vectors needs, and iteration yields the words.

    The words of the data have the order in which they first occur. ``Vocabulary(dict(Counter(words).most_common()))``
    numbers the most frequent ones first.

    Args:
        words: an iterable of words, such as those of all sentences one after the other; or a mapping from words to
            counts
        min_count: words that occur less often are left out
        max_size: how many words of the data are kept at most, apart from the unknown and special ones: the most
            frequent, of equally frequent ones the first
        unknown: the word that stands for all words without a number. None: they have none, and asking for it is an
            error, as is right for labels.
        special: further words to number, such as "<s>" and "</s>", whether they occur in the data or not

    Attributes:
        words: tuple of the words, in the order of their numbers
        counts: dict from each word of the data that is kept to how often it occurred
        unknown: the unknown word, or None

    Raises:
        TypeError: a word is not a string, or `words` is one; a number is not whole
        ValueError: a count or number is out of range, or special words are repeated

    Example:
        >>> sentences = [["the", "dog", "barks"], ["the", "cat"]]
        >>> vocabulary = dy.data.Vocabulary(word for sentence in sentences for word in sentence)
        >>> len(vocabulary), vocabulary["dog"], vocabulary["bird"], "bird" in vocabulary
        (5, 2, 0, False)
        >>> vocabulary.words
        ('<unk>', 'the', 'dog', 'barks', 'cat')
        >>> dy.data.Vocabulary(["a", "b", "a"], min_count=2, special=["<s>"]).words
        ('<unk>', '<s>', 'a')
        >>> labels = dy.data.Vocabulary(["good", "bad"], unknown=None)
        >>> labels["bad"]
        1
    """

    def __init__(
        self,
        words: Iterable[str] | Mapping[str, int] = (),
        min_count: int = 1,
        max_size: int | None = None,
        unknown: str | None = "<unk>",
        special: Iterable[str] = (),
    ) -> None:
        self.unknown = unknown
        first = ([] if unknown is None else [unknown]) + _checked(special, "special")
        for word in first:
            _check_word(word)
        repeated = [word for word, count in Counter(first).items() if count > 1]
        if repeated:
            raise ValueError(f"Vocabulary: the special word {repeated[0]!r:.80} is given twice")
        self._special = first
        counts = _counted(words)
        least, most = _whole(min_count, "min_count"), None if max_size is None else _whole(max_size, "max_size")
        kept = {word: count for word, count in counts.items() if count >= least and word not in first}
        if most is not None and len(kept) > most:
            frequent = set(sorted(kept, key=lambda word: -kept[word])[:most])
            kept = {word: count for word, count in kept.items() if word in frequent}
        self.counts: dict[str, int] = kept
        self.words: tuple[str, ...] = (*first, *kept)
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._numbers

    def __getitem__(self, word: str) -> int:
        """The number of a word; of a word outside the vocabulary that of the unknown word.

        Raises:
            KeyError: there is no such word, and no unknown word
            TypeError: it is not a string
        """
        found = self._numbers.get(word)
        if found is not None:
            return found
        _check_word(word)
        if self.unknown is None:
            raise KeyError(f"{word!r:.80} is not in the vocabulary, which has no unknown word")
        return 0

    def encode(self, words: Iterable[str], dropout: float = 0.0, rng: _Generator | None = None) -> list[int]:
        """The numbers of words, as tables of vectors and losses take them.

        Args:
            words: the words of a sentence
            dropout: the rate at which words are treated as unknown, see `word_dropout`; 0: none is
            rng: where the random numbers for that come from; by default the module `random`

        Raises:
            KeyError: one is not in the vocabulary, and there is no unknown word
            ValueError: the rate is negative, or there is no unknown word for it

        Example:
            >>> vocabulary = dy.data.Vocabulary(["the", "dog"])
            >>> vocabulary.encode(["the", "old", "dog"])
            [1, 0, 2]
        """
        return [
            0 if dropout and self.word_dropout(word, dropout, rng) else self[word] for word in _checked(words, "words")
        ]

    def decode(self, numbers: Iterable[SupportsIndex]) -> list[str]:
        """The words of numbers, which may be those of an array.

        Args:
            numbers: numbers from 0 on

        Raises:
            IndexError: a number is not one of a word

        Example:
            >>> vocabulary = dy.data.Vocabulary(["the", "dog"])
            >>> vocabulary.decode([1, 0, 2])
            ['the', '<unk>', 'dog']
        """
        found = []
        for one in numbers:
            number = operator.index(one)
            if not 0 <= number < len(self.words):
                raise IndexError(f"Vocabulary.decode: {number} is no word, there are {len(self.words)}")
            found.append(self.words[number])
        return found

    def word_dropout(self, word: str, rate: float, rng: _Generator | None = None) -> bool:
        """Whether to treat a word as unknown in training, at random, so that the vector of the unknown word is trained.

        A word that occurred n times is dropped with the probability rate / (rate + n): rare words more often
        (Kiperwasser and Goldberg, TACL 2016).

        Args:
            word: a word
            rate: at least 0; a usual value is 0.25
            rng: where random numbers come from, such as a `random.Random`; by default the module `random`

        Raises:
            ValueError: there is no unknown word, or the rate is negative

        Example:
            >>> import random
            >>> vocabulary = dy.data.Vocabulary({"the": 1000, "aardvark": 1})
            >>> rng = random.Random(1)
            >>> [sum(vocabulary.word_dropout(word, 0.25, rng) for _ in range(1000)) for word in ("the", "aardvark")]
            [0, 206]
        """
        if self.unknown is None or not rate >= 0:
            why = "there is no unknown word" if self.unknown is None else f"the rate is {rate}"
            raise ValueError(f"Vocabulary.word_dropout: {why}")
        drawn = random.random() if rng is None else rng.random()
        return drawn * (self.counts.get(word, 0) + rate) < rate

    def save(self, path: FileName) -> None:
        """Write the vocabulary to a file: JSON in UTF-8, with a line for each word and its count.

        The file is replaced in one step: after an error, or a crash, it is still the old one.

        Args:
            path: name of the file

        Raises:
            OSError: the file cannot be written
            ValueError: a word cannot be written as UTF-8, or a count has more than 63 bits

        Example:
            >>> dy.data.Vocabulary(["a", "b", "a"]).save("words.json")
            >>> from pathlib import Path
            >>> print(Path("words.json").read_text(encoding="utf-8"))
            {
             "format": "dynet_cy vocabulary",
             "version": 1,
             "unknown": "<unk>",
             "special": [],
             "words": {
              "a": 2,
              "b": 1
             }
            }
        """
        special = self._special if self.unknown is None else self._special[1:]
        data = {"format": _FORMAT, "version": 1, "unknown": self.unknown, "special": special, "words": self.counts}
        check(data, _FILE, "Vocabulary.save: the vocabulary")
        try:
            text = (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"Vocabulary.save: {os.fspath(path)}: a word cannot be written: {error}") from error
        write_file(path, text)

    @classmethod
    def load(cls, path: FileName) -> Vocabulary:
        """Read a vocabulary that `save` has written.

        Args:
            path: name of the file

        Raises:
            OSError: the file cannot be read
            ValueError: it is not such a file; the message says what is wrong, and names the line if it is not JSON

        Example:
            >>> dy.data.Vocabulary(["a", "b", "a"]).save("words.json")
            >>> dy.data.Vocabulary.load("words.json").counts
            {'a': 2, 'b': 1}
        """
        name = os.fspath(path)
        try:
            lines = numbered_lines(path, "a vocabulary that Vocabulary.save has written")
            text = "".join(f"{line}\n" for _, line in lines)
            data = json.loads(text, object_pairs_hook=_unique)
            check(data, _FILE, "the vocabulary")
            return cls(data["words"], 0, None, data["unknown"], data["special"])
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}, line {error.lineno}: not a vocabulary: {error.msg}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}: not a vocabulary: {error}") from error

    def __eq__(self, other: object) -> bool:
        """Whether two vocabularies have the same words, numbers and counts."""
        if not isinstance(other, Vocabulary):
            return NotImplemented
        same = self.words == other.words and self.unknown == other.unknown and self._special == other._special
        return same and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]  # compared by content

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self)} words, unknown {self.unknown!r}>"


def _check_word(word: object) -> None:
    if not isinstance(word, str):
        raise TypeError(f"Vocabulary: words must be strings, not {type(word).__name__} ({word!r:.80})")


def _checked(words: Iterable[str], name: str) -> list[str]:
    """The items of an iterable; a string, whose items would be letters, is a mistake."""
    _check_iterable(words, name)
    return list(words)


def _check_iterable(words: Iterable[str], name: str) -> None:
    if isinstance(words, (str, bytes)):
        got = type(words).__name__
        raise TypeError(f"Vocabulary: {name} must be an iterable of words, not {got}; for letters: list(text)")
    check_no_table("Vocabulary", words, name)


def _counted(words: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    if isinstance(words, Mapping):
        counts = {word: operator.index(count) for word, count in words.items()}
        negative = [word for word, count in counts.items() if count < 0]
        if negative:
            raise ValueError(f"Vocabulary: the count of {negative[0]!r:.80} is {counts[negative[0]]}")
    else:
        _check_iterable(words, "words")
        try:
            counts = dict(Counter(words))
        except TypeError as error:  # a list of sentences: their words are needed
            raise TypeError(f"Vocabulary: words must be strings: {error}") from error
    for word in counts:
        _check_word(word)
    return counts


def _whole(value: Any, name: str) -> int:
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"Vocabulary: {name} must be at least 0, not {number}")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dictionary of an object of JSON, whose keys must differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"{repeated!r:.80} is there twice")
    return found
