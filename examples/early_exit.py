"""Digits by a network that stops when it is sure: easy images leave after a layer, hard ones go deeper.

    python early_exit.py                # scikit-learn's 8x8 digits
    python early_exit.py --data DIR     # the MNIST files in DIR

Each layer has an exit, a small classifier.  When an exit gives one digit a probability above the threshold, the image
leaves there and no further layer is computed for it, neither in training nor in use (the idea: BranchyNet,
Teerapittayanon, McDanel, Kung 2016).  So the graph of an image depends on values computed from its first part:
the program asks for them midway, and goes on with the same graph.  What is computed stays computed.

The network is written for one image.  `batched_map` runs it for all images of a minibatch, side by side: whoever asks
for a value waits until all do, and then all their layers are run as one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np
from digits import Digits, add_digits_options, minibatches, read_digits
from helpers import add_engine_options, batched_map, import_engine, load_spec, save_model
from tqdm import tqdm


class Layer:
    """A residual layer and its exit."""

    def __init__(self, pc: dy.ParameterCollection, hidden: int) -> None:
        self.W = pc.add_parameters((hidden, hidden))
        self.b = pc.add_parameters(hidden, init=0)
        self.W_exit = pc.add_parameters((10, hidden))
        self.b_exit = pc.add_parameters(10, init=0)

    def __call__(self, h: dy.Expression) -> dy.Expression:
        return h + dy.rectify(dy.affine_transform([self.b, self.W, h]))

    def leave(self, h: dy.Expression) -> dy.Expression:
        """Return the log probabilities of the digits."""
        return dy.log_softmax(dy.affine_transform([self.b_exit, self.W_exit, h]))


class Network:
    """`spec` is all that is needed, beside the weights, to build it again."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.pc = pc = dy.ParameterCollection()
        self.W = pc.add_parameters((spec["hidden"], spec["pixels"]))
        self.b = pc.add_parameters(spec["hidden"], init=0)
        self.layers = [Layer(pc, spec["hidden"]) for _ in range(spec["layers"])]

    def run_one(self, image: np.ndarray, threshold: float) -> list[dy.Expression]:
        """Return the log probabilities of the digits at all exits that the image has passed, the last one taken."""
        state = dy.rectify(dy.affine_transform([self.b, self.W, dy.inputVector(image.ravel())]))
        exits: list[dy.Expression] = []
        for layer in self.layers:
            state = layer(state)
            exits.append(layer.leave(state))
            if np.exp(exits[-1].npvalue().max()) > threshold:
                break
        return exits

    def run(self, images: np.ndarray, threshold: float) -> list[list[dy.Expression]]:
        """Run many images side by side, in one graph."""
        dy.renew_cg()
        return batched_map(dy, lambda image: self.run_one(image, threshold), images)


def measure(network: Network, data: Digits, threshold: float, size: int) -> tuple[float, np.ndarray]:
    """Return the accuracy, and how many images left at each exit."""
    right = 0
    depths = np.zeros(len(network.layers), int)
    for images, labels in minibatches(data, size):
        for exits, label in zip(network.run(images, threshold), labels):
            right += int(exits[-1].npvalue().argmax() == label)
            depths[len(exits) - 1] += 1
    return right / len(data[1]), depths


def mean_depth(depths: np.ndarray) -> float:
    return float((depths * np.arange(1, len(depths) + 1)).sum() / depths.sum())


def train(network: Network, training: Digits, test: Digits, args: argparse.Namespace) -> None:
    """Train for all epochs; save after each that is the best so far."""
    trainer = dy.AdamTrainer(network.pc, alpha=args.learning_rate)
    order = list(range(len(training[1])))
    rng = random.Random(args.seed)
    best, done = -1.0, 0
    for epoch in range(1, args.epochs + 1):
        rng.shuffle(order)
        shuffled = training[0][order], training[1][order]
        total, layers, start = 0.0, 0, time.perf_counter()
        with tqdm(total=len(order), desc=f"epoch {epoch}", unit="image", leave=False, disable=None) as bar:
            for images, labels in minibatches(shuffled, args.batch):
                trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * len(order)))
                done += len(labels)
                losses = []
                for exits, label in zip(network.run(images, args.threshold), labels):
                    losses += [-dy.pick(scores, int(label)) for scores in exits]
                    layers += len(exits)
                loss = dy.esum(losses) / len(labels)
                value = loss.scalar_value()
                loss.backward()
                trainer.update()
                total += value * len(labels)
                bar.set_postfix(loss=f"{value:.3f}", refresh=False)
                bar.update(len(labels))
        speed = len(order) / (time.perf_counter() - start)
        right, depths = measure(network, test, args.threshold, args.batch)
        print(
            f"epoch {epoch}: loss {total / len(order):.4f}, {layers / len(order):.2f} layers an image, "
            f"{speed:.0f} images/s, test accuracy {right:.2%} with {mean_depth(depths):.2f} layers",
            flush=True,
        )
        if right > best:
            best = right
            save_model(args.model, network.spec, network.pc)


def main() -> None:
    global dy
    parser = argparse.ArgumentParser(
        description="Digits by a network that stops when it is sure.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_digits_options(parser)
    parser.add_argument("--model", type=Path, metavar="DIR", default=Path("runs/early_exit"))
    parser.add_argument("--epochs", type=int, default=15, help="the learning rate falls to 0 over them")
    parser.add_argument("--batch", type=int, default=32, help="images in a minibatch")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--threshold", type=float, default=0.95, help="images leave above this probability")
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--no-autobatch", dest="autobatch", action="store_false", help="run node by node")
    add_engine_options(parser)
    args = parser.parse_args()
    try:
        training, test = read_digits(args.data, args.limit)
        dy = import_engine(args, args.autobatch)
        network = Network({"hidden": args.hidden, "layers": args.layers, "pixels": training[0][0].size})
        print(f"{len(training[1])} training and {len(test[1])} test images, {args.layers} layers")
        train(network, training, test, args)
        spec, weights = load_spec(args.model)
        network = Network(spec)
        network.pc.populate(weights)
    except (OSError, ValueError) as error:
        sys.exit(f"early_exit.py: {error}")
    except KeyboardInterrupt:
        sys.exit("early_exit.py: interrupted")
    for threshold in (0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 1):  # at 1 all layers are computed
        right, depths = measure(network, test, threshold, args.batch)
        print(
            f"threshold {threshold}: {mean_depth(depths):.2f} layers an image, accuracy {right:.2%}, "
            f"left after each layer: {' '.join(map(str, depths))}"
        )


if __name__ == "__main__":
    main()
