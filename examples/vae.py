"""A variational autoencoder: learns to draw digits (Kingma and Welling 2014).

    python vae.py                # scikit-learn's 8x8 digits
    python vae.py --data DIR     # the MNIST files in DIR

For each image, an encoder computes a normal distribution of a short code z; for each z, a decoder computes the
probability that each pixel is white.  The two networks are trained together on a lower bound (the ELBO) of the
log probability of the images:

    E_z [log p(image | z)] - KL(q(z | image) || N(0, 1))

The code is drawn within the graph, as mean + deviation * noise, so that gradients flow through the draw into the
encoder.  Grey pixels count as white with the probability of their brightness.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline


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


def measure(vae: VAE, images: list[np.ndarray], size: int) -> tuple[float, float]:
    """Return the mean of both parts of the loss, in nats an image."""
    totals = np.zeros(2)
    for batch in dy.data.batches(images, size):
        dy.renew_cg()
        pixels, divergences = zip(*map(vae.parts, batch))
        totals += dy.values([dy.esum(list(pixels)), dy.esum(list(divergences))])
    pixels, divergence = totals / len(images)
    return float(pixels), float(divergence)


def show(images: list[np.ndarray]) -> None:
    """Print images side by side."""
    shades = " .:-=+*#%@"
    for rows in zip(*images):
        print("  ".join("".join(2 * shades[int(9.99 * pixel)] for pixel in row) for row in rows))


def main(args: argparse.Namespace) -> None:
    images, test = ([image for image, _ in part[: args.limit]] for part in dy.data.read_digits(args.data))
    rows, columns = images[0].shape
    vae = VAE({"rows": rows, "columns": columns, "hidden": args.hidden, "code": args.code})
    print(f"{len(images)} training and {len(test)} test images of {rows}x{columns} pixels")
    trainer = dy.AdamTrainer(vae.pc, args.learning_rate)
    data = dy.data.batches(images, args.batch, shuffle=True, seed=args.seed)
    options = {"extra": vae.spec, "unit": "images", "scored": "test", "shown": ".2f"}
    for epoch in commandline.training(args, vae.pc, data, **options):
        for batch in epoch:
            dy.renew_cg()
            loss = dy.esum([part for image in batch for part in vae.parts(image)]) / len(batch)
            epoch.add(loss.value(), len(batch))
            loss.backward()
            trainer.update()
        pixels, divergence = measure(vae, test, args.batch)
        epoch.report(pixels=pixels, KL=divergence, ELBO=-pixels - divergence)
    show(dy.load_network(args.model, VAE).draw(args.draw))


if __name__ == "__main__":
    sizes = {"hidden": 200, "code": 10}  # code: numbers in the code of an image
    parser = commandline.Parser("Learn to draw digits.", sizes=sizes, epochs=40, batch=32, learning_rate=0.001)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with train-images-idx3-ubyte[.gz] etc.")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N training and N test images")
    parser.add_argument("--draw", type=int, default=6, help="digits to draw at the end")
    parser.run(main)
