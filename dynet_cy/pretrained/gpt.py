"""GPT-2."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Layer, LayerNorm
from dynet_cy.pretrained.blocks import Block, JointAttention
from dynet_cy.pretrained.decoder import Decoder
from dynet_cy.pretrained.settings import PLAIN_KEYS, Settings


class GPT2(Decoder):
    """GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019). See `Encoder` and `Decoder`
    for arguments and methods.

    Example:
        >>> config = dict(vocab_size=10, n_embd=8, n_layer=1, n_head=2, n_positions=16)
        >>> gpt = dy.pretrained.GPT2(config, model)
        >>> gpt.scores([1, 5, 2]).dim()
        ((10, 3), 1)
    """

    model_types = {"gpt2": "GPT2LMHeadModel"}
    keys = {
        **PLAIN_KEYS,
        "dim": ("n_embd", None),
        "layers": ("n_layer", None),
        "heads": ("n_head", None),
        "hidden_dim": ("n_inner", None),
        "positions": ("n_positions", 1024),
        "activation": ("activation_function", "gelu_new"),
        "eps": ("layer_norm_epsilon", 1e-5),
        "dropout": ("resid_pdrop", 0.1),
        "attention_dropout": ("attn_pdrop", 0.1),
    }
    prefix = "transformer."
    tied = True
    names = {
        "embeddings.pieces": "wte",
        "embeddings.positions": "wpe",
        "layers.*.attention_norm": "h.*.ln_1",
        "layers.*.attention.joint": "h.*.attn.c_attn",
        "layers.*.attention.output": "h.*.attn.c_proj",
        "layers.*.norm": "h.*.ln_2",
        "layers.*.inner": "h.*.mlp.c_fc",
        "layers.*.outer": "h.*.mlp.c_proj",
        "norm": "ln_f",
        "head": "lm_head",
    }

    def _read_settings(self, **changed: tuple[str, Any]) -> Settings:
        for key, expected in (
            ("scale_attn_weights", True),
            ("scale_attn_by_inverse_layer_idx", False),
            ("add_cross_attention", False),
        ):
            self.config.only(key, expected)
        wide = 4 * self.config.size(self.keys["dim"][0])
        return super()._read_settings(hidden_dim=("n_inner", wide), **changed)

    def _make_block(self, number: int) -> Layer:
        s = self.settings
        return Block(s, self.collection, lambda place: JointAttention(s, place), norm_first=True, causal=True)

    def _make_norm(self, model: ParameterCollection) -> Layer:
        return LayerNorm(self.settings.dim, model, self.settings.eps)

    def to_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The array that files have for a parameter: the matrices of blocks are transposed there."""
        return np.transpose(array) if parameter.startswith("layers.") else array

    from_file = to_file
