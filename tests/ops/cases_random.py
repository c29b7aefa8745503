"""Random ops where they have only one outcome, and the table of random ops for statistical tests."""

from __future__ import annotations

from case import Case

CASES = [
    Case("dropout-0", [(4, 3)], lambda dy, xs: dy.dropout(xs[0], 0.0), lambda xs: xs[0]),
    Case("dropout-1", [(4, 3)], lambda dy, xs: dy.dropout(xs[0], 1.0), lambda xs: 0 * xs[0]),
    *[
        Case(f"dropout_dim-{d}", [(4, 3)], lambda dy, xs, d=d: dy.dropout_dim(xs[0], d, 0.0), lambda xs: xs[0])
        for d in (0, 1)
    ],
    Case("dropout_batch-0", [(4,)], lambda dy, xs: dy.dropout_batch(xs[0], 0.0), lambda xs: xs[0]),
    Case("block_dropout-0", [(4,)], lambda dy, xs: dy.block_dropout(xs[0], 0.0), lambda xs: xs[0]),
    Case("noise-0", [(4,)], lambda dy, xs: dy.noise(xs[0], 0.0), lambda xs: xs[0]),
    Case("random_normal-0", [(4,)], lambda dy, xs: xs[0] + dy.random_normal(4, 2.0, 0.0), lambda xs: xs[0] + 2),
    Case("random_uniform-0", [(4,)], lambda dy, xs: xs[0] + dy.random_uniform(4, 2.0, 2.0), lambda xs: xs[0] + 2),
    Case("random_bernoulli-1", [(4,)], lambda dy, xs: xs[0] + dy.random_bernoulli(4, 1.0, 2.0), lambda xs: xs[0] + 2),
    Case("random_gumbel-0", [(4,)], lambda dy, xs: xs[0] + dy.random_gumbel(4, 2.0, 0.0), lambda xs: xs[0] + 2),
]

# The op of each name, applied to an expression x of ones, or a leaf of the shape of x.
RANDOM = {
    "dropout": lambda dy, x: dy.dropout(x, 0.3),
    "dropout_dim": lambda dy, x: dy.dropout_dim(x, 0, 0.3),
    "dropout_batch": lambda dy, x: dy.dropout_batch(x, 0.3),
    "block_dropout": lambda dy, x: dy.block_dropout(x, 0.3),
    "noise": lambda dy, x: dy.noise(x, 0.5),
    "random_normal": lambda dy, x: dy.random_normal(x.dim()[0], 1.0, 0.5, x.dim()[1]),
    "random_uniform": lambda dy, x: dy.random_uniform(x.dim()[0], -1.0, 3.0, x.dim()[1]),
    "random_bernoulli": lambda dy, x: dy.random_bernoulli(x.dim()[0], 0.7, 1 / 0.7, x.dim()[1]),
    "random_gumbel": lambda dy, x: dy.random_gumbel(x.dim()[0], 0.0, 1.0, x.dim()[1]),
}
