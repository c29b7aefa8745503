"""Digits with a multilayer perceptron."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, Workload


class MLP(Workload):
    title = "MLP 784-128-10, 64 per update"
    unit = "images/s"
    dynet_forms = ("plain", "autobatch", "minibatch")
    goals = (
        Goal("minibatch 160k to the best peer's 88k", 160 / 88, form="minibatch"),
        Goal("autobatch 80k to the best peer's 88k", 80 / 88, form="autobatch"),
    )
    repeat = 40
    sizes = {"count": 64, "rows": 28, "hidden": 128, "classes": 10}
    tiny = {"count": 4, "rows": 8, "hidden": 5}

    def prepare(self) -> None:
        """Images as bright as digits: four of five pixels are black."""
        shape = self.count, self.rows, self.rows
        self.images = np.maximum(self.rng.uniform(-4, 1, shape), 0).astype(np.float32)
        self.labels = [int(label) for label in self.rng.randint(self.classes, size=self.count)]

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        return self.multiplications_of_data() + self.count * self.hidden * self.classes

    def multiplications_of_data(self) -> float:
        return self.count * self.hidden * self.rows**2

    def dynet_scores(self, dy: Any, pc: Any) -> Any:
        """The network, from an image (rows x columns x 1) or a minibatch of them to the scores."""
        n = self.rows**2
        W1, b1 = pc.add_parameters((self.hidden, n)), pc.add_parameters(self.hidden)
        W2, b2 = pc.add_parameters((self.classes, self.hidden)), pc.add_parameters(self.classes)

        def scores(image: Any) -> Any:
            hidden = dy.rectify(dy.affine_transform([b1, W1, image]))
            return dy.affine_transform([b2, W2, hidden])

        return scores

    def dynet_arrays(self) -> np.ndarray:
        """The images in the form that the network takes, one by one."""
        return self.images.reshape(self.count, -1)

    def dynet(self, dy: Any, pc: Any) -> Loss:
        scores = self.dynet_scores(dy, pc)
        images = self.dynet_arrays()
        minibatch = np.moveaxis(images, 0, -1)

        def loss(form: str) -> Any:
            if form == "minibatch":
                x = dy.inputTensor(minibatch, batched=True)
                total = dy.sum_batches(dy.pickneglogsoftmax_batch(scores(x), self.labels))
            else:
                inputs = [scores(dy.inputTensor(image)) for image in images]
                total = dy.esum([dy.pickneglogsoftmax(s, label) for s, label in zip(inputs, self.labels)])
            return total / self.count

        return loss

    def torch_scores(self, torch: Any, weights: TorchWeights) -> Any:
        """The network, from images (n x columns x rows) to the scores."""
        hidden = weights.linear(self.hidden, self.rows**2)
        scores = weights.linear(self.classes, self.hidden)
        return lambda images: scores(hidden(images.flatten(1)).relu())

    def torch_arrays(self) -> np.ndarray:
        return self.images

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        scores = self.torch_scores(torch, weights)
        arrays = np.ascontiguousarray(self.torch_arrays())
        cross_entropy = torch.nn.functional.cross_entropy

        def loss(form: str) -> Any:
            images, labels = torch.from_numpy(arrays).to(weights.device), weights.tensor(self.labels)
            if form == "batched":
                return cross_entropy(scores(images), labels)
            losses = [cross_entropy(scores(image[None]), label[None]) for image, label in zip(images, labels)]
            return torch.stack(losses).mean()

        return loss


WORKLOAD = MLP
