"""A variational autoencoder: learns to draw digits (Kingma and Welling 2014).

    python vae.py                # scikit-learn's 8x8 digits
    python vae.py --data DIR     # the MNIST files in DIR

For each image, an encoder computes a normal distribution of a short code z; for each z, a decoder computes the
probability that each pixel is white.  Both are trained together on a lower bound (the ELBO) of the
log probability of the images:

    E_z [log p(image | z)] - KL(q(z | image) || N(0, 1))

The code is drawn within the graph, as mean + deviation * noise, so that gradients flow through the draw into the
encoder.  Grey pixels count as white with the probability of their brightness.
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


class Dense:
    """An affine layer."""

    def __init__(self, pc: dy.ParameterCollection, inputs: int, outputs: int) -> None:
        self.W = pc.add_parameters((outputs, inputs))
        self.b = pc.add_parameters(outputs, init=0)

    def __call__(self, x: dy.Expression) -> dy.Expression:
        return dy.affine_transform([self.b, self.W, x])


class VAE:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.pixels = spec["rows"] * spec["columns"]
        hidden, code = spec["hidden"], spec["code"]
        self.pc = pc = dy.ParameterCollection()
        self.read = Dense(pc, self.pixels, hidden)
        self.mean = Dense(pc, hidden, code)
        self.log_variance = Dense(pc, hidden, code)
        self.write = Dense(pc, code, hidden)
        self.pixel = Dense(pc, hidden, self.pixels)

    def encode(self, image: dy.Expression) -> tuple[dy.Expression, dy.Expression]:
        """Return the mean and the log variance of the code."""
        hidden = dy.rectify(self.read(image))
        return self.mean(hidden), self.log_variance(hidden)

    def decode(self, code: dy.Expression) -> dy.Expression:
        """Return for each pixel the log odds of being white."""
        return self.pixel(dy.rectify(self.write(code)))

    def parts(self, image: np.ndarray) -> tuple[dy.Expression, dy.Expression]:
        """Return the two parts of the loss of an image: minus the log probability of its pixels, and the KL."""
        x = dy.inputVector(image.ravel())
        mean, log_variance = self.encode(x)
        code = mean + dy.cmult(dy.exp(log_variance * 0.5), dy.random_normal((self.spec["code"],)))
        odds = self.decode(code)
        # x log p + (1 - x) log (1 - p), where log (1 - p) = log p - odds
        pixels = dy.cmult(dy.inputVector(1 - image.ravel()), odds) - dy.log_sigmoid(odds)
        divergence = (dy.square(mean) + dy.exp(log_variance) - log_variance - 1) * 0.5
        return dy.sum_elems(pixels), dy.sum_elems(divergence)

    def draw(self, count: int) -> list[np.ndarray]:
        """Return new images: codes drawn at random, decoded."""
        dy.renew_cg()
        images = [dy.logistic(self.decode(dy.random_normal((self.spec["code"],)))) for _ in range(count)]
        dy.forward(images)
        return [image.npvalue().reshape(self.spec["rows"], self.spec["columns"]) for image in images]


def measure(vae: VAE, data: Digits, size: int) -> tuple[float, float]:
    """Return the mean of both parts of the loss, in nats an image."""
    totals = np.zeros(2)
    for images, _ in minibatches(data, size):
        dy.renew_cg()
        pixels, divergences = zip(*map(vae.parts, images))
        sums = dy.esum(list(pixels)), dy.esum(list(divergences))
        dy.forward(list(sums))
        totals += [part.scalar_value() for part in sums]
    pixels, divergence = totals / len(data[0])
    return float(pixels), float(divergence)


def train(vae: VAE, training: Digits, test: Digits, args: argparse.Namespace) -> None:
    """Train for all epochs; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(vae.pc, alpha=args.learning_rate)
    count = len(training[0])
    data = minibatches(training, args.batch, args.seed)
    best = -np.inf
    args.model.parent.mkdir(parents=True, exist_ok=True)
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            total, start = 0.0, time.perf_counter()
            with tqdm(total=count, desc=f"epoch {epoch}", unit="image", leave=False, disable=None) as bar:
                for images, _ in data:
                    dy.renew_cg()
                    loss = dy.esum([part for image in images for part in vae.parts(image)]) / len(images)
                    value = loss.scalar_value()
                    loss.backward()
                    trainer.update()
                    total += value * len(images)
                    bar.set_postfix(loss=f"{value:.2f}", refresh=False)
                    bar.update(len(images))
            speed = count / (time.perf_counter() - start)
            pixels, divergence = measure(vae, test, args.batch)
            curves.add(epoch, loss=total / count, ELBO=-pixels - divergence)
            print(
                f"epoch {epoch}: ELBO {-total / count:.2f}, {speed:.0f} images/s, "
                f"test ELBO {-pixels - divergence:.2f} (pixels {pixels:.2f}, KL {divergence:.2f})",
                flush=True,
            )
            if -pixels - divergence > best:
                best = -pixels - divergence
                dy.save_safetensors(args.model, vae.pc, extra=vae.spec)


def show(images: list[np.ndarray]) -> None:
    """Print images side by side."""
    shades = " .:-=+*#%@"
    for rows in zip(*images):
        print("  ".join("".join(2 * shades[int(9.99 * pixel)] for pixel in row) for row in rows))


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
        description="Learn to draw digits.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with train-images-idx3-ubyte[.gz] etc.")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N training and N test images")
    parser.add_argument("--model", type=Path, metavar="FILE", default=Path("runs/vae.safetensors"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32, help="images in a minibatch")
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--code", type=int, default=10, help="numbers in the code of an image")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--draw", type=int, default=6, help="digits to draw at the end")
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
        rows, columns = training[0].shape[1:]
        vae = VAE({"rows": rows, "columns": columns, "hidden": args.hidden, "code": args.code})
        print(f"{len(training[0])} training and {len(test[0])} test images of {rows}x{columns} pixels")
        train(vae, training, test, args)
        vae = VAE(dy.read_extra(args.model))
        dy.load_safetensors(args.model, vae.pc)
        show(vae.draw(args.draw))
    except (OSError, ValueError) as error:
        sys.exit(f"vae.py: {error}")
    except KeyboardInterrupt:
        sys.exit("vae.py: interrupted")


if __name__ == "__main__":
    main()
