"""Handwritten digits: an MLP or the classic two-layer CNN, batched by the engine or by hand.

    python mnist.py                                  # MLP on scikit-learn's 8x8 digits
    python mnist.py --model cnn --data DIR           # CNN on the MNIST files in DIR
    python mnist.py --model cnn --batching manual    # the same network on minibatch tensors

With `--batching auto` the network gets one image at a time, and the engine runs the images of a
minibatch together; with `--batching manual` it gets the minibatch as one tensor.  Both use the same code.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline

# -- networks ------------------------------------------------------------------------------------
# Both take one image (columns x rows x 1) or a minibatch of them (columns x rows x 1, batch n) and
# return the scores of the ten digits.  Columns come first because numbers along the first axis are adjacent
# in memory, so that a transposed NumPy image need not be rearranged.


class MLP:
    """784 - 128 - 10 on MNIST."""

    def __init__(self, rows: int, columns: int) -> None:
        self.pc = dy.ParameterCollection()
        self.pixels = rows * columns
        self.W1 = self.pc.add_parameters((128, self.pixels))
        self.b1 = self.pc.add_parameters(128, init=0)
        self.W2 = self.pc.add_parameters((10, 128))
        self.b2 = self.pc.add_parameters(10, init=0)

    def __call__(self, image: dy.Expression, training: bool) -> dy.Expression:
        x = dy.reshape(image, (self.pixels,), batch_size=image.dim()[1])
        h = dy.rectify(dy.affine_transform([self.b1, self.W1, x]))
        return dy.affine_transform([self.b2, self.W2, h])


class CNN:
    """Convolve 5x5 to 32 channels, pool, convolve 5x5 to 64, pool, dense 1024, dropout 0.4, dense 10."""

    def __init__(self, rows: int, columns: int) -> None:
        self.pc = dy.ParameterCollection()
        self.flat = (rows // 4) * (columns // 4) * 64
        self.F1 = self.pc.add_parameters((5, 5, 1, 32))
        self.c1 = self.pc.add_parameters(32, init=0)
        self.F2 = self.pc.add_parameters((5, 5, 32, 64))
        self.c2 = self.pc.add_parameters(64, init=0)
        self.W1 = self.pc.add_parameters((1024, self.flat))
        self.b1 = self.pc.add_parameters(1024, init=0)
        self.W2 = self.pc.add_parameters((10, 1024))
        self.b2 = self.pc.add_parameters(10, init=0)

    def __call__(self, image: dy.Expression, training: bool) -> dy.Expression:
        x = dy.rectify(dy.conv2d_bias(image, self.F1, self.c1, [1, 1], is_valid=False))
        x = dy.maxpooling2d(x, [2, 2], [2, 2])
        x = dy.rectify(dy.conv2d_bias(x, self.F2, self.c2, [1, 1], is_valid=False))
        x = dy.maxpooling2d(x, [2, 2], [2, 2])
        x = dy.reshape(x, (self.flat,), batch_size=image.dim()[1])
        h = dy.rectify(dy.affine_transform([self.b1, self.W1, x]))
        if training:
            h = dy.dropout(h, 0.4)
        return dy.affine_transform([self.b2, self.W2, h])


# -- the two ways to batch -----------------------------------------------------------------------


def loss_auto(network: MLP | CNN, images: np.ndarray, labels: np.ndarray) -> dy.Expression:
    """Compute the loss image by image; the engine finds what can run together."""
    losses = [
        dy.pickneglogsoftmax(network(dy.inputTensor(image.T[:, :, None]), training=True), int(label))
        for image, label in zip(images, labels)
    ]
    return dy.esum(losses) / len(losses)


def loss_manual(network: MLP | CNN, images: np.ndarray, labels: np.ndarray) -> dy.Expression:
    """Put the minibatch into one tensor, whose last axis numbers the images."""
    batch = dy.inputTensor(images.T[:, :, None, :], batched=True)
    return dy.mean_batches(dy.pickneglogsoftmax_batch(network(batch, training=True), labels.tolist()))


def predict_auto(network: MLP | CNN, images: np.ndarray) -> np.ndarray:
    scores = [network(dy.inputTensor(image.T[:, :, None]), training=False) for image in images]
    dy.forward(scores)
    return np.array([score.npvalue().argmax() for score in scores])


def predict_manual(network: MLP | CNN, images: np.ndarray) -> np.ndarray:
    batch = dy.inputTensor(images.T[:, :, None, :], batched=True)
    return network(batch, training=False).npvalue().reshape(10, -1).argmax(axis=0)


# -- training ------------------------------------------------------------------------------------


def main(args: argparse.Namespace) -> None:
    digits, test = (part[: args.limit] for part in dy.data.read_digits(args.data))
    print(f"{args.model}, {args.batching} batching: {len(digits)} training and {len(test)} test images")
    network = (CNN if args.model == "cnn" else MLP)(*digits[0][0].shape)
    trainer = dy.AdamTrainer(network.pc)
    loss_of, predict = (loss_auto, predict_auto) if args.batching == "auto" else (loss_manual, predict_manual)
    data = dy.data.batches(digits, args.batch, shuffle=True, seed=args.seed)
    options = {"unit": "images", "total": len(digits), "scored": "test", "path": None}  # the model is not saved
    training = commandline.training(args, network.pc, data, **options)
    for epoch in training:
        for batch in epoch:
            images, labels = map(np.array, zip(*batch))
            trainer.learning_rate = args.learning_rate * (1 - training.done)
            dy.renew_cg()
            loss = loss_of(network, images, labels)
            epoch.add(loss.value(), len(batch))
            loss.backward()
            trainer.update()
        epoch.report(accuracy=accuracy(network, test, args.batch, predict))


def accuracy(network: MLP | CNN, data: list[tuple[np.ndarray, int]], size: int, predict) -> float:
    right = 0
    for batch in dy.data.batches(data, size):
        images, labels = map(np.array, zip(*batch))
        dy.renew_cg(forward_only=True)
        right += int((predict(network, images) == labels).sum())
    return right / len(data)


if __name__ == "__main__":
    parser = commandline.Parser("MNIST by an MLP or a CNN.", epochs=5, batch=32, learning_rate=0.001, saves=False)
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--batching", choices=["auto", "manual"], default="auto")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with train-images-idx3-ubyte[.gz] etc.")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N training and N test images")
    parser.run(main)
