"""Training data for the examples: digits in MNIST's format, and a treebank; and a pretrained encoder."""

from __future__ import annotations

import gzip
import random
import struct
from pathlib import Path

import dynet_cy as dy


def _write_idx(path: Path, shape: tuple[int, ...], values: bytes) -> None:
    data = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_digits(folder: Path, training: int = 200, test: int = 40) -> Path:
    """Digits of 12x8 pixels: in digit d, row d is bright.  The training files are gzipped, the others plain."""
    rng = random.Random(3)
    for part, ending, count in [("train", ".gz", training), ("t10k", "", test)]:
        labels = bytes(i % 10 for i in range(count))
        pixels = bytearray()
        for label in labels:
            for row in range(12):
                pixels += bytes(rng.randrange(180, 256) if row == label else rng.randrange(60) for _ in range(8))
        _write_idx(folder / f"{part}-images-idx3-ubyte{ending}", (count, 12, 8), bytes(pixels))
        _write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", (count,), labels)
    return folder


LEXICON = {
    "DET": ["the", "a", "every"],
    "NOUN": ["dog", "cat", "bird", "tree", "çiçek"],
    "VERB": ["sees", "likes", "paints", "finds"],
    "PUNCT": [".", "!"],
}


def write_treebank(path: Path, sentences: int, seed: int) -> Path:
    """Sentences such as `every dog likes the çiçek .` in CoNLL-U."""
    rng = random.Random(seed)
    lines = []
    for number in range(sentences):
        lines.append(f"# sent_id = {number}")
        tags = ["DET", "NOUN", "VERB", "DET", "NOUN", "PUNCT"]
        for i, tag in enumerate(tags, start=1):
            if i == 2:
                lines.append("2-3\tboth\t" + "\t".join("_" * 8))  # a multiword token, which readers must skip
            head, relation = (0, "root") if i == 3 else (3, "dep")
            lines.append(f"{i}\t{rng.choice(LEXICON[tag])}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_")
        lines.append("6.1\tempty\t" + "\t".join("_" * 8))  # an empty node, which readers must skip
        lines.append("")
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_encoder(folder: Path, words: list[str]) -> Path:
    """A small random encoder in Hugging Face's layout, whose tokenizer knows some words and all letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *".!'"]
    known += [word for word in dict.fromkeys(words) if word not in known]
    config = {
        "vocab_size": len(known),
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    dy.reset_random_seed(1)
    dy.pretrained.Bert(config, dy.ParameterCollection(), pooler=True).save(folder)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in known), encoding="utf-8")
    return folder
