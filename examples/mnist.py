"""Handwritten digits: an MLP or the classic two-layer CNN, batched by the engine or by hand.

    python mnist.py                                  # MLP on scikit-learn's 8x8 digits
    python mnist.py --model cnn --data DIR           # CNN on the MNIST files in DIR
    python mnist.py --model cnn --batching manual    # the same network on minibatch tensors

`--batching auto` writes the network for one image and leaves it to the engine to run the images of a
minibatch together; `--batching manual` hands it the minibatch as one tensor.  Both run the same code.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import numpy as np
from digits import Digits, add_digits_options, minibatches, read_digits
from helpers import add_engine_options, import_engine
from tqdm import tqdm

# -- networks ------------------------------------------------------------------------------------
# Both take one image (columns x rows x 1) or a minibatch of them (columns x rows x 1, batch n) and
# give the scores of the ten digits.  Columns come first because the first axis is the one along which
# numbers are neighbours in memory: an image of NumPy, transposed, need not be moved about.


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
    """Write the loss image by image; the engine finds what can run together."""
    losses = [
        dy.pickneglogsoftmax(network(dy.inputTensor(image.T[:, :, None]), training=True), int(label))
        for image, label in zip(images, labels)
    ]
    return dy.esum(losses) / len(losses)


def loss_manual(network: MLP | CNN, images: np.ndarray, labels: np.ndarray) -> dy.Expression:
    """Put the minibatch into one tensor, the last axis counting the images."""
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


def accuracy(network: MLP | CNN, data: Digits, size: int, predict) -> float:
    right = 0
    for images, labels in minibatches(data, size):
        dy.renew_cg(forward_only=True)
        right += int((predict(network, images) == labels).sum())
    return right / len(data[1])


def train(args: argparse.Namespace, training: Digits, test: Digits) -> None:
    network = (CNN if args.model == "cnn" else MLP)(*training[0].shape[1:])
    trainer = dy.AdamTrainer(network.pc, alpha=args.learning_rate)
    loss_of, predict = (loss_auto, predict_auto) if args.batching == "auto" else (loss_manual, predict_manual)
    rng = random.Random(args.seed)
    order = list(range(len(training[1])))
    print(f"{args.model}, {args.batching} batching: {len(order)} training and {len(test[1])} test images")
    done, steps = 0, args.epochs * len(order)
    for epoch in range(1, args.epochs + 1):
        rng.shuffle(order)
        shuffled = training[0][order], training[1][order]
        total, start = 0.0, time.perf_counter()
        with tqdm(total=len(order), desc=f"epoch {epoch}", unit="image", leave=False, disable=None) as bar:
            for images, labels in minibatches(shuffled, args.batch):
                trainer.learning_rate = args.learning_rate * (1 - done / steps)
                done += len(labels)
                dy.renew_cg()
                loss = loss_of(network, images, labels)
                value = loss.value()
                loss.backward()
                trainer.update()
                total += value * len(labels)
                bar.set_postfix(loss=f"{value:.3f}", refresh=False)
                bar.update(len(labels))
        speed = len(order) / (time.perf_counter() - start)
        right = accuracy(network, test, args.batch, predict)
        print(
            f"epoch {epoch}: loss {total / len(order):.4f}, {speed:.0f} images/s, test accuracy {right:.2%}",
            flush=True,
        )


# -- command line --------------------------------------------------------------------------------


def main() -> None:
    global dy
    parser = argparse.ArgumentParser(description="MNIST by an MLP or a CNN.")
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--batching", choices=["auto", "manual"], default="auto")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="images in a minibatch (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    add_digits_options(parser)
    add_engine_options(parser)
    args = parser.parse_args()
    try:
        training, test = read_digits(args.data, args.limit)
    except (OSError, ValueError) as error:
        sys.exit(f"mnist.py: {error}")
    dy = import_engine(args, args.batching == "auto")
    train(args, training, test)


if __name__ == "__main__":
    main()
