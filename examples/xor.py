"""Exclusive or: the smallest program that trains a network, a good place to start reading.

    python xor.py

The graph is built once, from inputs that can be set; every step sets them and computes the graph again.
In all other programs here the graph differs from example to example, so they build a new one for each,
which is cheap.
"""

from __future__ import annotations

import argparse

import dynet_cy as dy
from dynet_cy import config

EXAMPLES = [((0, 0), 0), ((0, 1), 1), ((1, 0), 1), ((1, 1), 0)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn exclusive or.")
    parser.add_argument("--steps", type=int, default=2000, help="passes over the four examples (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    config.add_options(parser)
    args = parser.parse_args()
    dy.reset_random_seed(args.seed)

    # The parameters: two inputs, eight hidden units, one output.
    model = dy.ParameterCollection()
    W = model.add_parameters((8, 2))
    b = model.add_parameters(8, init=0)
    V = model.add_parameters((1, 8))
    a = model.add_parameters(1, init=0)
    trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)

    # The graph.
    dy.renew_cg()
    x = dy.vecInput(2)  # a vector whose values are set below
    y = dy.scalarInput(0)
    output = dy.logistic(V * dy.tanh(W * x + b) + a)
    loss = dy.binary_log_loss(output, y)

    for step in range(1, args.steps + 1):
        total = 0.0
        for bits, answer in EXAMPLES:
            x.set(bits)
            y.set(answer)
            total += loss.scalar_value(recalculate=True)  # True: the inputs have changed
            loss.backward()
            trainer.update()
        if step % max(1, args.steps // 5) == 0:
            print(f"step {step}: mean loss {total / len(EXAMPLES):.4f}")

    for bits, answer in EXAMPLES:
        x.set(bits)
        print(f"{bits[0]} xor {bits[1]} = {output.scalar_value(recalculate=True):.3f} (should be {answer})")


if __name__ == "__main__":
    main()
