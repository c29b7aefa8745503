"""Settings of positions: rotary angles, and blocks with local attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.graph import Expression
from dynet_cy.nn import Embedding
from dynet_cy.pretrained.config import Config

FULL, NEAR = "full_attention", "sliding_attention"


def rows_from(table: Embedding, x: Expression, first: int) -> Expression:
    """The vectors of the positions of a column, or of each column, of which `first` is the first one."""
    shape, _ = x.dim()
    return table(range(first, first + shape[1]) if len(shape) > 1 else first)


def rotary(config: Config, head_dim: int, base: float) -> dict[str, Any]:
    """The options of `MultiHeadAttention` for rotary positions, from the settings of newer files or of older ones.

    Args:
        config: the contents of `config.json`
        head_dim: the length of a head's part of queries and keys
        base: that of the rotation, where the settings do not say it
    """
    newer = config.get("rope_parameters")
    given: Any = config.get("rope_scaling", {}) if newer is None else newer
    if not isinstance(given, dict):
        raise config.wrong("rope_scaling" if newer is None else "rope_parameters", "settings of rotary positions")
    inner = Config({"rope_type": given.get("type"), **given}, f"{config.source}, settings of rotary positions")
    base = inner.number("rope_theta", config.number("rope_theta", base))
    inner.only("partial_rotary_factor", 1.0)
    kind = inner.choice("rope_type", ("default", *_SCALED), "default")
    if kind == "default":
        return {"positions": "rotary", "base": base}
    usual = config.size("max_position_embeddings", 2048)
    longest = config.size("original_max_position_embeddings", inner.size("original_max_position_embeddings", usual))
    angles, factor = _SCALED[kind](inner, base ** (-np.arange(0, head_dim, 2) / head_dim), longest, base)
    # Queries and keys times a factor have scores times its square.
    return {"positions": "rotary", "base": tuple(angles.tolist()), "scale": factor**2 * head_dim**-0.5}


Angles = npt.NDArray[np.float64]


def _linear(config: Config, angles: Angles, longest: int, base: float) -> tuple[Angles, float]:
    """Positions divided by a factor (Chen et al., "Extending context window by positional interpolation", 2023)."""
    return angles / config.number("factor"), 1.0


def _llama3(config: Config, angles: Angles, longest: int, base: float) -> tuple[Angles, float]:
    """That of Llama 3.1: slow rotations are slower by a factor, fast ones are not (Grattafiori et al., "The Llama 3
    herd of models", 2024)."""
    low, high = config.number("low_freq_factor"), config.number("high_freq_factor")
    if not low < high:
        raise config.wrong("low_freq_factor", f"a number below {high:g}")
    share = np.clip((longest * angles / (2 * math.pi) - low) / (high - low), 0, 1)
    return angles * (share + (1 - share) / config.number("factor")), 1.0


def _yarn(config: Config, angles: Angles, longest: int, base: float) -> tuple[Angles, float]:
    """YaRN: the same by the number of turns within the length of training, and greater scores (Peng et al., "YaRN",
    ICLR 2024)."""
    factor, half = config.number("factor"), len(angles)
    fast, slow = (config.number(key, usual) for key, usual in (("beta_fast", 32.0), ("beta_slow", 1.0)))
    low, high = (half * math.log(longest / (turns * 2 * math.pi)) / math.log(base) for turns in (fast, slow))
    if config.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    share = 1 - np.clip((np.arange(half) - low) / (high - low or 0.001), 0, 1)
    grows = 0.1 * math.log(max(factor, 1.0))
    usual = 1 + grows
    if config.get("mscale") and config.get("mscale_all_dim"):
        usual = (1 + grows * config.number("mscale")) / (1 + grows * config.number("mscale_all_dim"))
    return angles * (share + (1 - share) / factor), config.number("attention_factor", usual)


_SCALED = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}


def layer_kinds(config: Config, usual: Sequence[bool]) -> list[bool]:
    """For each block, whether it attends to near columns only.

    Args:
        config: the contents of `config.json`
        usual: the same where the settings do not say it
    """
    kinds = config.get("layer_types")
    if kinds is None:
        return list(usual)
    if not isinstance(kinds, list) or len(kinds) != len(usual) or not set(map(str, kinds)) <= {FULL, NEAR}:
        raise config.wrong("layer_types", f"{len(usual)} of {FULL} and {NEAR}")
    return [kind == NEAR for kind in kinds]
