"""Functions composed of ops: they batch and run wherever the ops do."""

# derived: imports, by tools/derive.py
from dynet_cy.functions.choices import gumbel_softmax, straight_through
from dynet_cy.functions.contraction import einsum
from dynet_cy.functions.convolutions import conv1d, conv_transpose1d
from dynet_cy.functions.losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    focal_loss,
    gaussian_nll,
    kl_divergence,
    triplet_loss,
)
from dynet_cy.functions.norms import batch_norm, clip_norm, cosine_similarity, group_norm, normalize, rms_norm
from dynet_cy.functions.reductions import prod
from dynet_cy.functions.sequences import crf_score, ctc_loss
from dynet_cy.functions.shapes import arange, eye, gather, index_add, outer, pad, scatter, scatter_add, split, stack

# end of imports

__all__ = [
    # derived: names, by tools/derive.py
    "arange",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "clip_norm",
    "conv1d",
    "conv_transpose1d",
    "cosine_similarity",
    "crf_score",
    "cross_entropy",
    "ctc_loss",
    "einsum",
    "eye",
    "focal_loss",
    "gather",
    "gaussian_nll",
    "group_norm",
    "gumbel_softmax",
    "index_add",
    "kl_divergence",
    "normalize",
    "outer",
    "pad",
    "prod",
    "rms_norm",
    "scatter",
    "scatter_add",
    "split",
    "stack",
    "straight_through",
    "triplet_loss",
    # end of names
]
