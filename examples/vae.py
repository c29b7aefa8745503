"""A variational autoencoder: learns to draw digits (Kingma and Welling 2014).

    python vae.py                # scikit-learn's 8x8 digits
    python vae.py --data DIR     # the MNIST files in DIR

An encoder gives for each image a normal distribution of a short code z; a decoder gives for each z the
probability that each pixel is white.  Both are trained together on a lower bound (the ELBO) of the
log probability of the images:

    E_z [log p(image | z)] - KL(q(z | image) || N(0, 1))

The code is drawn within the graph, as mean + deviation * noise, so that gradients flow through the draw into the
encoder.  Grey pixels count as white with the probability of their brightness.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np
from digits import Digits, add_digits_options, minibatches, read_digits
from helpers import add_engine_options, import_engine, load_spec, save_model
from tqdm import tqdm


class Dense:
    """An affine layer."""

    def __init__(self, pc: dy.ParameterCollection, inputs: int, outputs: int) -> None:
        self.W = pc.add_parameters((outputs, inputs))
        self.b = pc.add_parameters(outputs, init=0)

    def __call__(self, x: dy.Expression) -> dy.Expression:
        return dy.affine_transform([self.b, self.W, x])


class VAE:
    """The network.  `spec` is all that is needed, beside the weights, to build it again."""

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
    """Train for all epochs; save after each that is the best so far."""
    trainer = dy.AdamTrainer(vae.pc, alpha=args.learning_rate)
    order = list(range(len(training[0])))
    rng = random.Random(args.seed)
    best = -np.inf
    for epoch in range(1, args.epochs + 1):
        rng.shuffle(order)
        shuffled = training[0][order], training[1][order]
        total, start = 0.0, time.perf_counter()
        with tqdm(total=len(order), desc=f"epoch {epoch}", unit="image", leave=False, disable=None) as bar:
            for images, _ in minibatches(shuffled, args.batch):
                dy.renew_cg()
                loss = dy.esum([part for image in images for part in vae.parts(image)]) / len(images)
                value = loss.scalar_value()
                loss.backward()
                trainer.update()
                total += value * len(images)
                bar.set_postfix(loss=f"{value:.2f}", refresh=False)
                bar.update(len(images))
        speed = len(order) / (time.perf_counter() - start)
        pixels, divergence = measure(vae, test, args.batch)
        print(
            f"epoch {epoch}: ELBO {-total / len(order):.2f}, {speed:.0f} images/s, "
            f"test ELBO {-pixels - divergence:.2f} (pixels {pixels:.2f}, KL {divergence:.2f})",
            flush=True,
        )
        if -pixels - divergence > best:
            best = -pixels - divergence
            save_model(args.model, vae.spec, vae.pc)


def show(images: list[np.ndarray]) -> None:
    """Print images side by side."""
    shades = " .:-=+*#%@"
    for rows in zip(*images):
        print("  ".join("".join(2 * shades[int(9.99 * pixel)] for pixel in row) for row in rows))


def main() -> None:
    global dy
    parser = argparse.ArgumentParser(
        description="Learn to draw digits.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add_digits_options(parser)
    parser.add_argument("--model", type=Path, metavar="DIR", default=Path("runs/vae"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32, help="images in a minibatch")
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--code", type=int, default=10, help="numbers in the code of an image")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--draw", type=int, default=6, help="digits to draw at the end")
    add_engine_options(parser)
    args = parser.parse_args()
    try:
        training, test = read_digits(args.data, args.limit)
        dy = import_engine(args, autobatch=True)
        rows, columns = training[0].shape[1:]
        vae = VAE({"rows": rows, "columns": columns, "hidden": args.hidden, "code": args.code})
        print(f"{len(training[0])} training and {len(test[0])} test images of {rows}x{columns} pixels")
        train(vae, training, test, args)
        spec, weights = load_spec(args.model)
        vae = VAE(spec)
        vae.pc.populate(weights)
        show(vae.draw(args.draw))
    except (OSError, ValueError) as error:
        sys.exit(f"vae.py: {error}")
    except KeyboardInterrupt:
        sys.exit("vae.py: interrupted")


if __name__ == "__main__":
    main()
