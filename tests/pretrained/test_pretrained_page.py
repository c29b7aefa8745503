"""The blocks of docs/pretrained.md run, with a small model in place of MiniLM, and give what they say."""

from __future__ import annotations

import numpy as np
import pytest
from architectures import DECODERS, ENCODER_DECODERS
from test_pages import ROOT, blocks
from test_text import byte_pairs, needs_tokenizers, word_pieces

import dynet_cy as dy

CONFIG = {
    "vocab_size": 20,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}


@needs_tokenizers
@pytest.mark.filterwarnings("ignore:tokenize. 16 of 30 pieces are cut off")
def test_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dy.pretrained.Bert(CONFIG, dy.ParameterCollection(), pooler=True).save("minilm")
    dy.pretrained.Bert(CONFIG, dy.ParameterCollection(), head="masked").save("masked")
    dy.pretrained.Bert(CONFIG, dy.ParameterCollection(), head="token").save("tagger")
    for name in ("minilm", "tagger"):
        word_pieces(tmp_path / name)
    DECODERS["gpt2"].write(tmp_path / "gpt2")
    byte_pairs(tmp_path / "gpt2")
    ENCODER_DECODERS["t5"].write(tmp_path / "t5")
    resnet = {"embedding_size": 4, "hidden_sizes": [8, 8], "depths": [1, 1]}
    dy.pretrained.ResNet(resnet, dy.ParameterCollection()).save("resnet")
    page = ROOT / "docs" / "pretrained.md"
    known = {"dy": dy, "np": np, "model": dy.ParameterCollection()}
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), known)
    known["bert"].eval()
    code = known["code"]
    text = page.read_text(encoding="utf-8")
    for shown in (code.pieces, code.word_of, code.spans, known["short"].cut):
        assert f"# {shown}" in text
    dy.renew_cg()
    expected = known["bert"]([2, 5, 3]).npvalue()
    assert (known["again"]([2, 5, 3]).npvalue() == expected).all()
