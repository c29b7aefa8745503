"""Handwritten digits: an MLP or the classic two-layer CNN, batched by the engine or by hand.

    python mnist.py                                  # MLP on scikit-learn's 8x8 digits
    python mnist.py --model cnn --data DIR           # CNN on the MNIST files in DIR
    python mnist.py --model cnn --batching manual    # the same network on minibatch tensors

With `--batching auto` the network gets one image at a time, and the engine runs the images of a
minibatch together; with `--batching manual` it gets the minibatch as one tensor.  Both use the same code.
"""

from __future__ import annotations

import argparse
import gzip
import struct
import sys
import time
import zlib
from pathlib import Path

import numpy as np
from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.curves import Curves

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
    data = minibatches(training, args.batch, args.seed)
    count = len(training[1])
    print(f"{args.model}, {args.batching} batching: {count} training and {len(test[1])} test images")
    done, steps = 0, args.epochs * count
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            total, start = 0.0, time.perf_counter()
            with tqdm(total=count, desc=f"epoch {epoch}", unit="image", leave=False, disable=None) as bar:
                for images, labels in data:
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
            speed = count / (time.perf_counter() - start)
            right = accuracy(network, test, args.batch, predict)
            curves.add(epoch, loss=total / count, accuracy=right)
            print(
                f"epoch {epoch}: loss {total / count:.4f}, {speed:.0f} images/s, test accuracy {right:.2%}",
                flush=True,
            )


# -- data ----------------------------------------------------------------------------------------

Digits = tuple[np.ndarray, np.ndarray]  # images (n, rows, columns) in [0, 1], labels (n,)


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Read one of MNIST's files: big-endian sizes, then a byte for each value."""
    plain, packed = folder / name, folder / f"{name}.gz"
    path = plain if plain.exists() else packed
    try:
        data = path.read_bytes() if path == plain else gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not a whole gzip file: {error}") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{path}: not an IDX file of bytes (it begins with {data[:4].hex(' ')})")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape))
    if values.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path}: {values.size} values after the header, which says {shape}")
    return values.reshape(shape)


def read_digits(folder: Path | None, limit: int | None = None) -> tuple[Digits, Digits]:
    """Return the digits for training and for testing: MNIST's in a folder, or scikit-learn's of 8x8 pixels."""
    found = []
    for part in ("train", "t10k") if folder else ():
        images, labels = read_idx(folder, f"{part}-images-idx3-ubyte"), read_idx(folder, f"{part}-labels-idx1-ubyte")
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise ValueError(f"{folder}: {part} has images {images.shape} but labels {labels.shape}")
        if labels.size and labels.max() > 9:
            raise ValueError(f"{folder}: {part} has the label {labels.max()}, digits go up to 9")
        found.append((images.astype(np.float32) / 255, labels.astype(np.int64)))
    if not found:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise ValueError("no data: pip install scikit-learn, or give the MNIST files with --data DIR") from None
        digits = load_digits()
        images, labels = digits.images.astype(np.float32) / 16, digits.target.astype(np.int64)
        test = np.arange(len(labels)) % 5 == 0  # every fifth image is for testing
        found = [(images[~test], labels[~test]), (images[test], labels[test])]
    (images, labels), (test_images, test_labels) = found
    return (images[:limit], labels[:limit]), (test_images[:limit], test_labels[:limit])


def minibatches(data: Digits, size: int, seed: int | None = None) -> dy.data.Batches:
    """Batches of `size` images and labels; with a seed, in a different order in each epoch."""
    images, labels = data

    def cut(rows: list[int]) -> Digits:
        return images[rows], labels[rows]

    return dy.data.batches(range(len(labels)), size, shuffle=seed is not None, seed=seed or 0, collate=cut)


# -- command line --------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description="MNIST by an MLP or a CNN.")
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--batching", choices=["auto", "manual"], default="auto")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="images in a minibatch (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with train-images-idx3-ubyte[.gz] etc.")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N training and N test images")
    parser.add_argument(
        "--curves", type=Path, metavar="FILE", help="plot the training to this file: .svg, .png or .pdf"
    )
    parser.add_argument(
        "--tensorboard", type=Path, metavar="DIR", help="log the training for TensorBoard (tensorboardX)"
    )
    parser.add_argument("--seed", type=int, default=1)
    config.add_options(parser)
    args = parser.parse_args()
    dy.reset_random_seed(args.seed)
    try:
        training, test = read_digits(args.data, args.limit)
        train(args, training, test)
    except (OSError, ValueError) as error:
        sys.exit(f"mnist.py: {error}")
    except KeyboardInterrupt:
        sys.exit("mnist.py: interrupted")


if __name__ == "__main__":
    main()
