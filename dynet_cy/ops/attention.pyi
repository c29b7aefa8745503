# Written by tools/derive.py

from dynet_cy.graph.expressions import Expression

def scaled_dot_product_attention(
    q: Expression,
    k: Expression,
    v: Expression,
    heads: int = 1,
    bias: Expression | None = None,
    causal: bool = False,
    first: int = 0,
    dropout: float = 0.0,
    scale: float | None = None,
    window: int | None = None,
) -> Expression:
    """For each query the mean of the values, weighted by the softmax of its products with the keys, in several heads (Vaswani et al., "Attention is all you need", NeurIPS 2017)."""
