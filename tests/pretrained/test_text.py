"""Texts as pieces, words from pieces, and texts that are too long."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from architectures import CASES, random_ids

import dynet_cy as dy
from dynet_cy.files.textfile import ModelFileError
from dynet_cy.pretrained import Code

NOT_THERE = "" if importlib.util.find_spec("tokenizers") else "tokenizers is not installed"
needs_tokenizers = pytest.mark.skipif(bool(NOT_THERE), reason=NOT_THERE or "-")

PIECES = ["where", "'", "s", "wal", "##ly", "?", "the", "cat", "sat", "on", "mat", "##s"]
WORD_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]


def word_pieces(folder):
    """BERT's: vocab.txt alone."""
    (folder / "vocab.txt").write_text("\n".join(WORD_PIECES), encoding="utf-8")


def byte_pairs(folder):
    """RoBERTa's: vocab.json and merges.txt."""
    merges = ["Ġ w", "w a", "l l", "wa ll", "Ġ t", "Ġt h", "Ġth e"]
    found = ["<s>", "<pad>", "</s>", "<unk>", *"Ġwalthecsony?'", "Ġw", "wa", "ll", "wall", "Ġt", "Ġth", "Ġthe"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(found)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges), encoding="utf-8")


PAIRS = ["w@@", "wall", "wa@@", "ll@@", "y", "the", "t@@", "h@@", "e@@", "th@@", "s@@", "s"]
MERGES = ["w a", "l l", "t h", "th e</w>", "wa ll", "l l</w>", "wa ll</w>", "l y</w>", "s a"]


def pairs(folder):
    """PhoBERT's: vocab.txt with counts, and bpe.codes."""
    (folder / "vocab.txt").write_text("".join(f"{piece} 9\n" for piece in PAIRS), encoding="utf-8")
    (folder / "bpe.codes").write_text("".join(f"{pair} 9\n" for pair in MERGES), encoding="utf-8")


def merged(word):
    """The pieces of a word: the pair that comes first in the list is joined everywhere, until there is none."""
    parts = [*word[:-1], word[-1] + "</w>"]
    while True:
        places = [MERGES.index(f"{x} {y}") for x, y in zip(parts, parts[1:]) if f"{x} {y}" in MERGES]
        if not places:
            pieces = [*(part + "@@" for part in parts[:-1]), parts[-1][: -len("</w>")]]
            return [piece if piece in PAIRS else "<unk>" for piece in pieces]
        x, y = MERGES[min(places)].split()
        at = 0
        while at < len(parts) - 1:
            if parts[at : at + 2] == [x, y]:
                parts[at : at + 2] = [x + y]
            at += 1


def unigrams(folder):
    """XLM-R's: tokenizer.json, with limits that a folder may have from earlier use."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    words = ["▁the", "▁cat", "▁sat", "▁wal", "ly", "▁", "t", "s", "▁on"]
    pieces = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>")] + [(piece, -1.0) for piece in words]
    tokenizer = Tokenizer(models.Unigram(pieces, 3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    ends = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", ends)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))


def made(tmp_path, name="bert", files=None):
    CASES[name].write(tmp_path)
    if files is not None:
        files(tmp_path)
    return dy.pretrained.load(tmp_path, dy.ParameterCollection())


@pytest.fixture
def bert(tmp_path):
    return made(tmp_path, files=word_pieces)


@needs_tokenizers
@pytest.mark.parametrize(
    ("files", "model", "words", "pieces", "word_of"),
    [
        (
            word_pieces,
            "bert",
            ["Where", "'s", "Wally", "?"],
            ["[CLS]", "where", "'", "s", "wal", "##ly", "?", "[SEP]"],
            [None, 0, 1, 1, 2, 2, 3, None],
        ),
        (byte_pairs, "roberta", ["wall", "the"], ["<s>", "Ġw", "a", "ll", "Ġthe", "</s>"], [None, 0, 0, 0, 1, None]),
        (unigrams, "xlm-roberta", ["wally", "the"], ["<s>", "▁wal", "ly", "▁the", "</s>"], [None, 0, 0, 1, None]),
    ],
)
def test_words_and_their_pieces(files, model, words, pieces, word_of, tmp_path):
    encoder = made(tmp_path, model, files)
    code = encoder.tokenize(words)
    assert (code.pieces, code.word_of, code.words) == (pieces, word_of, words)
    assert [encoder.text.tokenizer.token_to_id(piece) for piece in pieces] == code.ids
    assert (code.first, code.last, code.cut, len(code)) == (1, 1, 0, len(pieces))
    assert encoder.decode(code.ids).replace(" ", "").lower() == "".join(words).lower()


@needs_tokenizers
def test_a_string(bert):
    code = bert.tokenize("Where's  Wally?")
    assert code.ids == bert.tokenize(["Where", "'", "s", "Wally", "?"]).ids
    assert code.words == ["Where", "'", "s", "Wally", "?"]


@needs_tokenizers
def test_bytes_do_not_begin_with_a_blank_in_a_string(tmp_path):
    encoder = made(tmp_path, "roberta", byte_pairs)
    assert encoder.tokenize("wall the").pieces == ["<s>", "wall", "Ġthe", "</s>"]


@needs_tokenizers
@pytest.mark.parametrize("word", ["", " ", "\u200b", "\x00"])
def test_a_word_without_pieces_is_an_unknown_one(word, bert):
    code = bert.tokenize(["the", word, "cat"])
    assert code.pieces == ["[CLS]", "the", "[UNK]", "cat", "[SEP]"]
    assert code.words == ["the", word, "cat"]
    assert bert.words(code).dim() == ((12, 3), 1)


@needs_tokenizers
def test_capitals_count_where_the_settings_say_so(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', encoding="utf-8")
    encoder = made(tmp_path, files=word_pieces)
    assert encoder.tokenize("The the").pieces == ["[CLS]", "[UNK]", "the", "[SEP]"]


@needs_tokenizers
def test_pairs(bert):
    code = bert.tokenize("the cat", ["sat", "on"])
    assert code.pieces == ["[CLS]", "the", "cat", "[SEP]", "sat", "on", "[SEP]"]
    assert code.types == [0, 0, 0, 0, 1, 1, 1]
    assert code.word_of == [None, 0, 1, None, 2, 3, None]
    assert code.words == ["the", "cat", "sat", "on"]


@needs_tokenizers
@pytest.mark.parametrize(
    ("first", "second", "longest", "lengths"),
    [(10, None, 6, (4,)), (10, 3, 10, (4, 3)), (2, 10, 10, (2, 5)), (10, 10, 10, (4, 3)), (3, 3, 9, (3, 3))],
)
def test_what_is_cut_off_is_said(first, second, longest, lengths, bert):
    import warnings

    texts = ["the " * n for n in (first, second) if n is not None]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = bert.tokenize(*texts, longest=longest)
    cut = sum(n for n in (first, second) if n) - sum(lengths)
    assert code.cut == cut
    assert len(code.spans) == sum(lengths)
    assert [str(one.message).partition(" of ")[0] for one in caught] == ([f"tokenize: {cut}"] if cut else [])
    assert all(one.filename == __file__ for one in caught)


@needs_tokenizers
def test_a_saved_folder_has_the_tokenizer(bert, tmp_path):
    bert.save(tmp_path / "again")
    again = dy.pretrained.load(tmp_path / "again", dy.ParameterCollection())
    assert again.tokenize("the cat") == bert.tokenize("the cat")


# ---- words


CODE = Code([2, 5, 6, 7, 8, 9, 3], list("[abcde]"), [None, 0, 0, 1, 2, 2, None], ["ab", "c", "de"])


@pytest.fixture
def plain(tmp_path):
    return made(tmp_path)


@pytest.mark.parametrize(
    ("pool", "columns"), [("first", [1, 3, 4]), ("last", [2, 3, 5]), ("mean", [[1, 2], [3], [4, 5]])]
)
def test_vectors_of_words(pool, columns, plain):
    x = plain(CODE).npvalue()
    expected = np.stack([x[:, part].reshape(12, -1).mean(1) for part in columns], 1)
    np.testing.assert_allclose(plain.words(CODE, pool=pool).npvalue(), expected, atol=1e-6)
    single = Code(CODE.ids, CODE.pieces, [None, 0, 1, 2, 3, 4, None], list("abcde"))
    np.testing.assert_allclose(plain.words(single, pool=pool).npvalue(), x[:, 1:6], atol=1e-6)


def test_a_mixture_of_layers_is_learnt(plain):
    states = [x.npvalue() for x in plain(CODE, all_layers=True)]
    trainer = dy.SimpleSGDTrainer(plain, 0.1)
    np.testing.assert_allclose(plain.words(CODE, mix=2).npvalue(), (states[1] + states[2])[:, [1, 3, 4]] / 2, atol=1e-5)
    plain.set_updated(False)
    mixture = plain.mixtures[2]
    mixture.set_updated(True)
    dy.renew_cg()
    dy.sum_elems(plain.words(CODE, mix=2)[:4]).backward()
    trainer.update()
    weights, scale = mixture.weights.as_array(), mixture.scale.as_array()
    assert weights[0] != weights[1]
    assert scale != 1
    shares = np.exp(weights) / np.exp(weights).sum() * scale
    dy.renew_cg()
    expected = (shares[0] * states[1] + shares[1] * states[2])[:, [1, 3, 4]]
    np.testing.assert_allclose(plain.words(CODE, mix=2).npvalue(), expected, atol=1e-5)


def test_a_mixture_is_saved(plain, tmp_path):
    plain.words(CODE, mix=3)
    plain.mixtures[3].weights.set_value([1, 2, 3])
    plain.save(tmp_path / "again")
    again = dy.pretrained.load(tmp_path / "again", dy.ParameterCollection())
    np.testing.assert_array_equal(again.words(CODE, mix=3).npvalue(), plain.words(CODE, mix=3).npvalue())


# ---- long texts


@pytest.mark.parametrize("length", [33, 45, 100])
def test_long_texts_are_read_in_windows(length, plain):
    ids = random_ids(length)
    code = Code(ids, ["x"] * length, [None, *range(length - 2), None], ["x"] * (length - 2))
    found = plain(code).npvalue()
    assert found.shape == (12, length)
    room, step = 30, 22
    begins = [*range(0, length - 2 - room, step), length - 2 - room]
    windows = [[ids[0], *ids[1 + at : 1 + at + room], ids[-1]] for at in begins]
    vectors = [plain(window).npvalue() for window in windows]
    np.testing.assert_allclose(found[:, 0], vectors[0][:, 0], atol=1e-6)
    np.testing.assert_allclose(found[:, -1], vectors[-1][:, -1], atol=1e-6)
    for place in range(length - 2):
        # The window in which the piece is farthest from the ends of what was cut.
        margins = [
            min(math_inf if at == 0 else place - at, math_inf if at == begins[-1] else at + room - 1 - place)
            if at <= place < at + room
            else -1
            for at in begins
        ]
        best = [i for i, margin in enumerate(margins) if margin >= max(margins) - 1]
        assert any(np.allclose(found[:, place + 1], vectors[i][:, place - begins[i] + 1], atol=1e-5) for i in best)


math_inf = float("inf")


def test_a_text_that_just_fits_has_one_window(plain):
    assert plain.longest == 32
    ids = random_ids(32)
    x = plain(ids)
    assert x.dim() == ((12, 32), 1)
    assert "concatenate" not in repr(x)


@needs_tokenizers
def test_a_long_pair_is_an_error(bert):
    with pytest.raises(ValueError, match=r"a pair of texts has 45 pieces, .* longest=32\) cuts them off"):
        bert(bert.tokenize("the " * 2, "the " * 40))


# ---- errors


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda e: e([[1, 2]]), ValueError, r"expected one text, got an array of shape \(1, 2\): pass code\[0\]"),
        (lambda e: e(np.zeros((3, 2), int)), ValueError, r"shape \(3, 2\): call it for each of them"),
        (lambda e: e([]), ValueError, "expected pieces"),
        (lambda e: e([1.5]), TypeError, "expected whole numbers"),
        (lambda e: e("text"), TypeError, "expected whole numbers, or what `tokenize` returns, got 'text'"),
        (lambda e: e([30]), IndexError, "index 30 is out of range"),
        (lambda e: e([-1]), IndexError, "index -1 is out of range"),
        (lambda e: e.words([1, 2]), TypeError, "expected what `tokenize` returns"),
        (
            lambda e: e.words(CODE, pool="max"),
            ValueError,
            "argument pool: expected one of first, mean, last, got 'max'",
        ),
        (lambda e: e.words(CODE, mix=4), ValueError, "argument mix: expected a number from 1 to 3, got 4"),
        (lambda e: e.words(CODE, mix=0), ValueError, "argument mix"),
        (lambda e: e.words(Code([1, 2], ["a", "b"], [None, None], [])), ValueError, "the text has no words"),
        (lambda e: e.tokenize("text"), ValueError, "no tokenizer: .*; .* has none of tokenizer.json, vocab.json with"),
        (lambda e: e.decode([1]), ValueError, "there is no tokenizer"),
    ],
)
def test_errors(call, error, message, plain):
    with pytest.raises(error, match=message):
        call(plain)
    assert plain([1, 2]).npvalue().shape == (12, 2)


@needs_tokenizers
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((5,), TypeError, "expected a string or a list of words, got 5"),
        ((["a", 5],), TypeError, "expected a string or a list of words, got 5"),
        (("the", None, 2), ValueError, "2 pieces are too few"),
    ],
)
def test_errors_of_tokenize(arguments, error, message, bert):
    with pytest.raises(error, match=message):
        bert.tokenize(*arguments[:2], longest=arguments[2] if len(arguments) > 2 else None)


@needs_tokenizers
def test_words_in_an_array(bert):
    words = ["the", "wally"]
    assert bert.tokenize(np.array(words)) == bert.tokenize(np.array(words, object)) == bert.tokenize(words)
    for wrong in (np.array([1, 2]), np.array([words])):
        with pytest.raises(TypeError, match="expected a string or a list of words"):
            bert.tokenize(wrong)


@needs_tokenizers
def test_pairs_of_phobert(tmp_path):
    CASES["roberta"].write(tmp_path)
    pairs(tmp_path)
    encoder = dy.pretrained.load(tmp_path, dy.ParameterCollection())
    words = ["wall", "the", "thee", "wally", "swall", "sa", "xs", "s", "y", "way"]
    pieces = [piece for word in words for piece in merged(word)]
    assert {"<unk>", "the", "wa@@", "th@@", "wall"} <= set(pieces)
    for code in (encoder.tokenize(words), encoder.tokenize(" ".join(words))):
        assert code.pieces == ["<s>", *pieces, "</s>"]
        own = ["<s>", "<pad>", "</s>", "<unk>", *PAIRS]
        assert code.ids == [own.index(piece) for piece in code.pieces]
        assert [end - begin for begin, end in code.spans] == [len(merged(word)) for word in words]
    assert encoder.decode(encoder.tokenize("the wall way").ids) == "the wall way"
    assert encoder.text.tokenizer.token_to_id("<mask>") == len(own)
    encoder.save(tmp_path / "again")
    assert (tmp_path / "again" / "bpe.codes").exists()


@needs_tokenizers
@pytest.mark.parametrize(
    ("name", "line", "message"),
    [("vocab.txt", "wall\n", "not a list of pieces and counts: 'wall'"), ("bpe.codes", "w a\n", "not a list of pairs")],
)
def test_files_of_phobert_that_are_something_else(name, line, message, tmp_path):
    CASES["roberta"].write(tmp_path)
    pairs(tmp_path)
    (tmp_path / name).write_text(line, encoding="utf-8")
    with pytest.raises(ModelFileError, match=message):
        dy.pretrained.load(tmp_path, dy.ParameterCollection())


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("spiece.model", r"SentencePiece model, which is not read: python -c .*makes a tokenizer.json"),
        ("sentencepiece.bpe.model", "makes a tokenizer.json"),
        ("tokenizer.model", "makes a tokenizer.json"),
        ("source.spm", "make pieces with `transformers`, and pass their numbers"),
    ],
)
def test_sentence_pieces_alone(file, message, tmp_path):
    CASES["xlm-roberta"].write(tmp_path)
    (tmp_path / file).write_bytes(b"x")
    encoder = dy.pretrained.load(tmp_path, dy.ParameterCollection())
    assert encoder([3, 4]).dim() == ((12, 2), 1)
    with pytest.raises(ValueError, match=f"there is no tokenizer.*{message}"):
        encoder.tokenize("a text")
