"""Settings of encoders, read from `config.json` under the names of the architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynet_cy.files.textfile import ModelFileError
from dynet_cy.pretrained.config import Config


@dataclass(frozen=True)
class Settings:
    """The settings that encoders have in common."""

    vocabulary: int
    """The number of pieces in the table."""
    dim: int
    """The length of the columns."""
    embedding_dim: int
    """The length of the vectors in the tables."""
    layers: int
    heads: int
    head_dim: int
    """The length of a head's part of queries and keys."""
    kv_heads: int
    """The number of heads of keys and values; each of them serves as many heads of queries."""
    hidden_dim: int
    """The length of the vectors between the linear layers of a block."""
    positions: int
    """The number of rows in the table of positions; without one, the greatest length of a text."""
    types: int
    """The number of types of pieces, such as first and second text; 0: there is no table."""
    activation: str
    eps: float
    """The eps of the norms."""
    dropout: float
    attention_dropout: float
    padding: int
    """The number of the piece that fills short texts in other libraries; here, positions may begin after it."""
    half_tables: bool = False
    """Whether the table of pieces is in bfloat16, and not trained."""


KEYS: dict[str, tuple[str, Any]] = {
    "vocabulary": ("vocab_size", None),
    "dim": ("hidden_size", None),
    "embedding_dim": ("embedding_size", 0),
    "layers": ("num_hidden_layers", None),
    "heads": ("num_attention_heads", None),
    "head_dim": ("", 0),
    "kv_heads": ("", 0),
    "hidden_dim": ("intermediate_size", None),
    "positions": ("max_position_embeddings", 512),
    "types": ("type_vocab_size", 2),
    "activation": ("hidden_act", "gelu"),
    "eps": ("layer_norm_eps", 1e-12),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "padding": ("pad_token_id", 0),
}
"""The name of each setting in `config.json`, and its value where it is missing; None: it has to be there."""

PLAIN_KEYS = {**KEYS, "embedding_dim": ("", 0), "types": ("", 0)}
"""Those of models whose tables have vectors of the length of columns, and none for types."""

_LEAST = {"embedding_dim": 0, "head_dim": 0, "kv_heads": 0, "types": 0, "padding": 0}
_FLOATS = {"eps": Config.number, "dropout": Config.rate, "attention_dropout": Config.rate}


def read_settings(config: Config, keys: Mapping[str, tuple[str, Any]], activations: Mapping[str, Any]) -> Settings:
    """The settings in a config.

    Args:
        config: the contents of `config.json`
        keys: `KEYS`, or a changed copy of it
        activations: those that there are

    Raises:
        ModelFileError: one is missing or out of its range, or they contradict each other
    """
    found: dict[str, Any] = {}
    for name, (key, default) in keys.items():
        if name == "activation":
            found[name] = config.choice(key, activations, default)
        elif name in _FLOATS:
            found[name] = _FLOATS[name](config, key, default)
        else:
            found[name] = config.size(key, default, _LEAST.get(name, 1))
    found["embedding_dim"] = found["embedding_dim"] or found["dim"]
    if not found["head_dim"] and found["dim"] % found["heads"]:
        raise ModelFileError(f"{found['heads']} heads do not divide columns of {found['dim']}", config.source)
    found["head_dim"] = found["head_dim"] or found["dim"] // found["heads"]
    found["kv_heads"] = found["kv_heads"] or found["heads"]
    if found["heads"] % found["kv_heads"]:
        raise ModelFileError(
            f"{found['kv_heads']} heads of keys and values do not divide {found['heads']} heads", config.source
        )
    return Settings(**found)
