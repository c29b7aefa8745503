"""Classifies digits with a network that stops when it is sure: easy images need one layer, hard ones more.

    python early_exit.py                # scikit-learn's 8x8 digits
    python early_exit.py --data DIR     # the MNIST files in DIR

Each layer has an exit, a small classifier.  When an exit gives one digit a probability above the threshold, the image
leaves there and no further layer is computed for it, neither in training nor in use (after BranchyNet,
Teerapittayanon, McDanel, Kung 2016).  So the graph of an image depends on values computed from its first part:
the program requests them midway, and continues the same graph.  Nothing is computed twice.

The network is written for one image.  `batched_map` runs it for all images of a minibatch side by side: a run that
requests a value waits until all runs have requested one, and then their layers are computed together.
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

    def run(self, images: np.ndarray, threshold: float) -> list[list[dy.Expression]]:
        """Run many images side by side, in one graph."""
        dy.renew_cg()
        return dy.batched_map(lambda image: self.run_one(image, threshold), images)


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
    """Train for all epochs; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(network.pc, alpha=args.learning_rate)
    count = len(training[1])
    data = minibatches(training, args.batch, args.seed)
    best, done = -1.0, 0
    args.model.parent.mkdir(parents=True, exist_ok=True)
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            total, layers, start = 0.0, 0, time.perf_counter()
            with tqdm(total=count, desc=f"epoch {epoch}", unit="image", leave=False, disable=None) as bar:
                for images, labels in data:
                    trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * count))
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
            speed = count / (time.perf_counter() - start)
            right, depths = measure(network, test, args.threshold, args.batch)
            curves.add(epoch, loss=total / count, accuracy=right, layers=mean_depth(depths))
            print(
                f"epoch {epoch}: loss {total / count:.4f}, {layers / count:.2f} layers an image, "
                f"{speed:.0f} images/s, test accuracy {right:.2%} with {mean_depth(depths):.2f} layers",
                flush=True,
            )
            if right > best:
                best = right
                dy.save_safetensors(args.model, network.pc, extra=network.spec)


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
    parser = argparse.ArgumentParser(
        description="Digits by a network that stops when it is sure.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with train-images-idx3-ubyte[.gz] etc.")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N training and N test images")
    parser.add_argument("--model", type=Path, metavar="FILE", default=Path("runs/early_exit.safetensors"))
    parser.add_argument("--epochs", type=int, default=15, help="the learning rate falls to 0 over them")
    parser.add_argument("--batch", type=int, default=32, help="images in a minibatch")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--threshold", type=float, default=0.95, help="images leave above this probability")
    parser.add_argument("--learning-rate", type=float, default=0.003)
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
        network = Network({"hidden": args.hidden, "layers": args.layers, "pixels": training[0][0].size})
        print(f"{len(training[1])} training and {len(test[1])} test images, {args.layers} layers")
        train(network, training, test, args)
        network = Network(dy.read_extra(args.model))
        dy.load_safetensors(args.model, network.pc)
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
