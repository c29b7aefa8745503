"""Classifies digits with a network that stops when it is sure: easy images need one layer, hard ones more.

    python early_exit.py                # scikit-learn's 8x8 digits
    python early_exit.py --data DIR     # the MNIST files in DIR

Each layer has an exit, a small classifier.  When an exit gives one digit a probability above the threshold, the image
leaves there and no further layer is computed for it, neither in training nor in use (after BranchyNet,
Teerapittayanon, McDanel, Kung 2016).  So the graph of an image depends on values computed from its first part:
the program requests them midway, and continues the same graph.  No value is computed twice.

The network is written for one image.  `batched_map` runs it for all images of a minibatch side by side: a run that
requests a value waits until all runs have requested one, and then their layers are computed together.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline

Digit = tuple[np.ndarray, int]  # image (rows, columns) in [0, 1], label


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
    """`spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.pc = pc = dy.ParameterCollection()
        self.W = pc.add_parameters((spec["hidden"], spec["pixels"]))
        self.b = pc.add_parameters(spec["hidden"], init=0)
        self.layers = [Layer(pc, spec["hidden"]) for _ in range(spec["layers"])]

    def run_one(self, image: np.ndarray, threshold: float) -> list[dy.Expression]:
        """Return the log probabilities of the digits at all exits up to the one where the image leaves."""
        state = dy.rectify(dy.affine_transform([self.b, self.W, dy.inputVector(image.ravel())]))
        exits: list[dy.Expression] = []
        for layer in self.layers:
            state = layer(state)
            exits.append(layer.leave(state))
            if np.exp(exits[-1].npvalue().max()) > threshold:
                break
        return exits

    def run(self, images: list[np.ndarray], threshold: float) -> list[list[dy.Expression]]:
        """Run many images side by side, in one graph."""
        dy.renew_cg()
        return dy.batched_map(lambda image: self.run_one(image, threshold), images)

    def loss(self, digits: list[Digit], threshold: float) -> dy.Expression:
        """Return the mean over the images of the losses at all exits that they reach, summed."""
        losses = []
        for exits, (_, label) in zip(self.run([image for image, _ in digits], threshold), digits):
            losses += [-dy.pick(scores, label) for scores in exits]
        return dy.esum(losses) / len(digits)


def measure(network: Network, data: list[Digit], threshold: float, size: int) -> tuple[float, np.ndarray]:
    """Return the accuracy, and how many images left at each exit."""
    right = 0
    depths = np.zeros(len(network.layers), int)
    for batch in dy.data.batches(data, size):
        for exits, (_, label) in zip(network.run([image for image, _ in batch], threshold), batch):
            right += int(exits[-1].npvalue().argmax() == label)
            depths[len(exits) - 1] += 1
    return right / len(data), depths


def mean_depth(depths: np.ndarray) -> float:
    return float((depths * np.arange(1, len(depths) + 1)).sum() / depths.sum())


def main(args: argparse.Namespace) -> None:
    digits, test = (part[: args.limit] for part in dy.data.read_digits(args.data))
    network = Network({"hidden": args.hidden, "layers": args.layers, "pixels": digits[0][0].size})
    print(f"{len(digits)} training and {len(test)} test images, {args.layers} layers")
    trainer = dy.AdamTrainer(network.pc)
    data = dy.data.batches(digits, args.batch, shuffle=True, seed=args.seed)
    options = {"extra": network.spec, "unit": "images", "total": len(digits), "scored": "test"}
    training = commandline.training(args, network.pc, data, **options)
    for epoch in training:
        for batch in epoch:
            trainer.learning_rate = args.learning_rate * (1 - training.done)
            loss = network.loss(batch, args.threshold)
            epoch.add(loss.value(), len(batch))
            loss.backward()
            trainer.update()
        accuracy, depths = measure(network, test, args.threshold, args.batch)
        training.curves.add(epoch.number, layers=mean_depth(depths))
        epoch.report(accuracy=accuracy)
    network = dy.load_network(args.model, Network)
    for threshold in (0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 1):  # at 1 all layers are computed
        accuracy, depths = measure(network, test, threshold, args.batch)
        print(
            f"threshold {threshold}: {mean_depth(depths):.2f} layers an image, accuracy {accuracy:.2%}, "
            f"left after each layer: {' '.join(map(str, depths))}"
        )


if __name__ == "__main__":
    sizes = {"hidden": 64, "layers": 6}
    parser = commandline.Parser(
        "Digits by a network that stops when it is sure.", sizes=sizes, epochs=15, batch=32, learning_rate=0.003
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with train-images-idx3-ubyte[.gz] etc.")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N training and N test images")
    parser.add_argument("--threshold", type=float, default=0.95, help="images leave above this probability")
    parser.run(main)
