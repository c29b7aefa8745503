"""The convolutional network of `examples/mnist.py` in one library: a process that trains an epoch for each line of its
standard input.

    python mnist_worker.py LIBRARY FORM DATA [THREADS] [--device NAME] [--limit N] [--batch N]

LIBRARY and FORM are dynet_cy minibatch, dynet_cy autobatch, torch default (as PyTorch is when it is installed: cuDNN
may round the factors of convolutions to TF32), torch tuned (cuDNN also tries its algorithms first) or torch float32.
DATA is a folder with the files of MNIST, or "made-up".

Each answer is a line of JSON: seconds that an epoch took until the device was done with it, without the test; the loss
of its last minibatch; the accuracy on the test images after it. The libraries get the same minibatches, each from the
memory of the host, update with Adam without clipping, and fetch a loss every hundred minibatches. PyTorch's images lie
in page-locked memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
from digits import Digits, read_digits

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MADE_UP = "made-up"
RATE = 0.001
FETCHED = 100  # read the loss once in this many minibatches


class Program(NamedTuple):
    prepare: Callable[[np.ndarray], Any]  # prepares images or labels, before the measurement
    epoch: Callable[[Any, Any], float]  # trains on images and labels, returns the last loss
    predict: Callable[[np.ndarray], np.ndarray]


def made_up(limit: int | None = None) -> tuple[Digits, Digits]:
    """Generated images, as many and as large as MNIST's, of ten kinds that are easy to distinguish: for times only."""
    rng = np.random.RandomState(4)
    kinds = rng.uniform(0, 1, (10, 28, 28)) > 0.7

    def part(n: int) -> Digits:
        labels = rng.randint(10, size=n)
        images = np.empty((n, 28, 28), np.float32)
        for start in range(0, n, 1000):
            own = slice(start, start + 1000)
            images[own] = kinds[labels[own]] * rng.uniform(0, 1, images[own].shape)
        return images, labels

    return part(min(60_000, limit or 60_000)), part(min(10_000, limit or 10_000))


def slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


def dynet_network(form: str, device: str, batch: int, shape: tuple[int, ...]) -> Program:
    sys.path.insert(0, str(EXAMPLES))
    import mnist

    import dynet_cy as dy
    from dynet_cy import config

    config.set(autobatch=int(form == "autobatch"), random_seed=1)
    if device != "cpu":
        config.set_gpu()
    network = mnist.CNN(*shape)
    trainer = dy.AdamTrainer(network.pc, alpha=RATE)
    trainer.set_clip_threshold(0)
    loss_of = mnist.loss_auto if form == "autobatch" else mnist.loss_manual

    def epoch(images: np.ndarray, labels: np.ndarray) -> float:
        value = np.nan
        for i, own in enumerate(slices(len(labels), batch)):
            dy.renew_cg()
            loss = loss_of(network, images[own], labels[own])
            loss.forward()
            loss.backward()
            trainer.update()
            if (i + 1) % FETCHED == 0 or own.stop >= len(labels):
                value = loss.value()
        return value

    def predict(images: np.ndarray) -> np.ndarray:
        dy.renew_cg(forward_only=True)
        return mnist.predict_manual(network, images)

    return Program(lambda array: array, epoch, predict)


def torch_network(form: str, device: str, batch: int, shape: tuple[int, ...]) -> Program:
    import torch

    torch.manual_seed(1)
    if form == "float32":
        torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = form == "tuned"
    nn = torch.nn
    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    layers += [nn.Linear(shape[0] // 4 * (shape[1] // 4) * 64, 1024), nn.ReLU(), nn.Dropout(0.4), nn.Linear(1024, 10)]
    network = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(network.parameters(), RATE)

    def prepare(array: np.ndarray) -> Any:
        tensor = torch.from_numpy(array)
        return tensor if device == "cpu" else tensor.pin_memory()

    def there(tensor: Any) -> Any:
        """The tensor on the device; the copy may not have ended yet."""
        return tensor.to(device, non_blocking=True)

    def epoch(images: Any, labels: Any) -> float:
        value = np.nan
        network.train()
        for i, own in enumerate(slices(len(labels), batch)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(there(images[own])[:, None]), there(labels[own]))
            loss.backward()
            optimizer.step()
            if (i + 1) % FETCHED == 0 or own.stop >= len(labels):
                value = float(loss.detach())
        return value

    def predict(images: np.ndarray) -> np.ndarray:
        network.eval()
        with torch.inference_mode():
            return network(torch.from_numpy(images).to(device)[:, None]).argmax(1).cpu().numpy()

    return Program(prepare, epoch, predict)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("library", choices=["dynet_cy", "torch"])
    add("form", choices=["minibatch", "autobatch", "default", "tuned", "float32"])
    add("data")
    add("threads", type=int, nargs="?", default=1)
    add("--device", default="cpu", help="as the library names it: GPU:0, cuda")
    add("--limit", type=int, metavar="N", help="the first N training and N test images only")
    add("--batch", type=int, default=64)
    args = parser.parse_args()
    training, test = made_up(args.limit) if args.data == MADE_UP else read_digits(Path(args.data), args.limit)
    make = dynet_network if args.library == "dynet_cy" else torch_network
    program = make(args.form, args.device, args.batch, training[0].shape[1:])
    order = np.random.RandomState(1)
    for _ in sys.stdin:
        shuffled = order.permutation(len(training[1]))
        images, labels = (program.prepare(array[shuffled]) for array in training)
        start = time.perf_counter()
        loss = program.epoch(images, labels)  # the epoch is done, since its last loss has been read
        seconds = time.perf_counter() - start
        right = sum(int((program.predict(test[0][s]) == test[1][s]).sum()) for s in slices(len(test[1]), 1000))
        answer = {"seconds": seconds, "loss": loss, "accuracy": right / len(test[1])}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
