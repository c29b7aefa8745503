"""Images that leave a network of residual layers as soon as it is sure, with a classifier after each layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, Workload, each

THRESHOLD = 0.105  # a probability of one of ten classes, for untrained weights


class EarlyExit(Workload):
    title = "network with an exit behind each of 8 layers, 64 images, hidden 512"
    unit = "images/s"
    own_forms = ("map",)
    goals = (Goal("2x image by image", 2.0, "autobatch", "map"),)
    sizes = {"count": 64, "pixels": 784, "hidden": 512, "layers": 8, "classes": 10}
    tiny = {"count": 5, "pixels": 12, "hidden": 8, "layers": 3, "classes": 10}
    learning_rate = 0.01

    def prepare(self) -> None:
        self.images = self.rng.uniform(-1, 1, (self.count, self.pixels)).astype(np.float32)
        self.labels = [int(label) for label in self.rng.randint(self.classes, size=self.count)]

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        """An upper bound: as if no image left early."""
        layer = self.hidden * (self.hidden + self.classes)
        return self.count * (self.pixels * self.hidden + self.layers * layer)

    def multiplications_of_data(self) -> float:
        return self.count * self.pixels * self.hidden

    def dynet(self, dy: Any, pc: Any) -> Loss:
        W, b = pc.add_parameters((self.hidden, self.pixels)), pc.add_parameters(self.hidden)
        shapes = [(self.hidden, self.hidden), (self.hidden,), (self.classes, self.hidden), (self.classes,)]
        layers = [[pc.add_parameters(shape) for shape in shapes] for _ in range(self.layers)]

        def run(image: np.ndarray, label: int) -> Any:
            state, losses = dy.rectify(dy.affine_transform([b, W, dy.inputVector(image)])), []
            for W_layer, b_layer, W_exit, b_exit in layers:
                state = state + dy.rectify(dy.affine_transform([b_layer, W_layer, state]))
                scores = dy.log_softmax(dy.affine_transform([b_exit, W_exit, state]))
                losses.append(-dy.pick(scores, label))
                if np.exp(scores.npvalue().max()) > THRESHOLD + 0.05 * len(losses):
                    break
            return dy.esum(losses)

        return lambda form: dy.esum(each(dy, form)(run, self.images, self.labels)) / self.count

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        first = weights.linear(self.hidden, self.pixels)
        layers = [
            (weights.linear(self.hidden, self.hidden), weights.linear(self.classes, self.hidden))
            for _ in range(self.layers)
        ]
        images, labels = weights.tensor(self.images), weights.tensor(self.labels)
        nll = torch.nn.functional.nll_loss

        def run(state: Any, own: Any) -> Any:
            """Images that are not sure continue together."""
            total = 0
            state = first(state).relu()
            for i, (layer, leave) in enumerate(layers):
                state = state + layer(state).relu()
                scores = leave(state).log_softmax(1)
                total = total + nll(scores, own, reduction="sum")
                on = scores.detach().max(1).values.exp() <= THRESHOLD + 0.05 * (i + 1)
                if not on.cpu().any():
                    break
                state, own = state[on], own[on]
            return total

        def loss(form: str) -> Any:
            if form == "batched":
                return run(images, labels) / self.count
            return sum(run(image[None], label[None]) for image, label in zip(images, labels)) / self.count

        return loss


WORKLOAD = EarlyExit
