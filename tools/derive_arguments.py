"""Arguments that mean the same in several classes: docstrings have the texts that stand here.

An entry of "Args:" belongs to a text of its file that has its name and begins with the same word. What follows in the
entry from the first parenthesis, semicolon or "Default" on is its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from derive_text import ROOT, wrapped

MODEL = {"model": "where the parameters go"}
NETWORK = {"layers": "number of layers", "input_dim": "length of the inputs", "hidden_dim": "length of the outputs"}
LAYERS = {
    "init": '"pytorch" for the initial values of PyTorch',
    "bias": "whether there is b",
    "checkpoint": "which states are kept for backward, as the attribute of this name of builders says",
}
TEXTS = {
    "train/trainer.pyx": {
        "m": "the ParameterCollection to train.",
        "learning_rate": "step size",
        "alpha": "step size",
        "beta_1, beta_2": "decay of the means of g and of g²",
        "eps": "keeps the divisor from zero",
        "mom": "momentum",
        "rho": "decay of the mean of squares",
    },
    **dict.fromkeys(
        ("rnn/gru.py", "rnn/lstm.py", "rnn/simple.py", "rnn/tree.py"),
        {
            **MODEL,
            **NETWORK,
            "checkpoint": "which states are kept for backward, as the attribute of this name says",
            "forget_bias": "added in the forget gate",
            "ln_lstm": "layer normalization",
        },
    ),
    "rnn/softmax_builders.py": {
        "pc": MODEL["model"],
        "rep_dim": "length of x",
        "update": "whether gradients reach the parameters",
    },
    "nn/convolution.py": {
        **MODEL,
        **LAYERS,
        "input_dim": "length of the columns of x",
        "output_dim": "length of those of the result",
        "input_channels": "channels of the image",
        "output_channels": "channels of the result",
        "size": "rows and columns of a filter, or one number for both",
    },
    "nn/recurrent.py": {
        **MODEL,
        **LAYERS,
        "layers": NETWORK["layers"],
        "input_dim": "length of the columns of x",
        "hidden_dim": "length of the state in each direction",
        "bidirectional": "whether a second network reads backwards",
        "dropout": "the rate of `set_dropout`: inputs and states of all layers, with the same mask at all positions",
    },
}
ENTRY = re.compile(r"^( +)(\w+(?:, \w+)*): (.*\n(?:\1 +.*\n)*)", re.MULTILINE)


def with_text(match: re.Match[str], texts: dict[str, str]) -> str:
    """An entry with the text of its name."""
    indent, name, old = match.groups()
    text = texts.get(name)
    if text is None or old.split()[0].strip("(;.,") != text.split()[0].strip("(;.,"):
        return match[0]
    own = re.search(r"\s*[(;]|\.?\s+Default\b", old)
    rest = " ".join(old[own.start() :].split()) if own is not None else "." if old.rstrip().endswith(".") else ""
    space = " " if rest[:1] in "(D" and rest else ""
    return "\n".join(wrapped(f"{name}: {text}{space}{rest}".replace("..", "."), indent, indent + "    ")) + "\n"


def arguments() -> Iterator[tuple[Path, str]]:
    """All files with such docstrings, with their texts."""
    for name, texts in TEXTS.items():
        path = ROOT / "dynet_cy" / name
        section = re.compile(r"^( +)Args:\n(?:\1 +.*\n)+", re.MULTILINE)
        entries = partial(ENTRY.sub, partial(with_text, texts=texts))
        yield path, section.sub(lambda match, entries=entries: entries(match[0]), path.read_text(encoding="utf-8"))
