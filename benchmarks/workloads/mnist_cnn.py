"""Digits with the classic two-layer convolutional network."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.common import Goal, TorchWeights
from workloads.mlp import MLP


class CNN(MLP):
    title = "MNIST CNN, minibatch 64"
    goals = (
        Goal("1.5x", 1.5, form="minibatch"),
        Goal("autobatch within 10 % of minibatch", 0.9, "minibatch", form="autobatch"),
        Goal("0.6 of the time on a GPU", 1 / 0.6, "torch_gpu", "minibatch"),
        Goal("autobatch as fast on a GPU", 1.0, "torch_gpu", "autobatch"),
    )
    convolves = True
    repeat = 1
    sizes = {"count": 64, "rows": 28, "size": 5, "first": 32, "second": 64, "hidden": 1024, "classes": 10}
    tiny = {"count": 4, "rows": 8, "size": 3, "first": 2, "second": 3, "hidden": 5}

    def prepare(self) -> None:
        super().prepare()
        self.flat = (self.rows // 4) ** 2 * self.second  # numbers after the second pooling

    def multiplications(self) -> float:
        second = (self.rows // 2) ** 2 * self.size**2 * self.first * self.second
        return self.multiplications_of_data() + self.count * (second + self.hidden * (self.flat + self.classes))

    def multiplications_of_data(self) -> float:
        return self.count * self.rows**2 * self.size**2 * self.first

    def dynet_scores(self, dy: Any, pc: Any) -> Any:
        F1, c1 = pc.add_parameters((self.size, self.size, 1, self.first)), pc.add_parameters(self.first)
        F2, c2 = pc.add_parameters((self.size, self.size, self.first, self.second)), pc.add_parameters(self.second)
        W1, b1 = pc.add_parameters((self.hidden, self.flat)), pc.add_parameters(self.hidden)
        W2, b2 = pc.add_parameters((self.classes, self.hidden)), pc.add_parameters(self.classes)

        def layer(x: Any, filters: Any, bias: Any) -> Any:
            x = dy.rectify(dy.conv2d_bias(x, filters, bias, [1, 1], is_valid=False))
            return dy.maxpooling2d(x, [2, 2], [2, 2])

        def scores(image: Any) -> Any:
            x = layer(layer(image, F1, c1), F2, c2)
            x = dy.reshape(x, (self.flat,), batch_size=x.dim()[1])
            x = dy.rectify(dy.affine_transform([b1, W1, x]))
            return dy.affine_transform([b2, W2, x])

        return scores

    def dynet_arrays(self) -> np.ndarray:
        return self.images[..., None]

    def torch_scores(self, torch: Any, weights: TorchWeights) -> Any:
        functional = torch.nn.functional
        F1, c1 = weights.filters(self.size, self.size, 1, self.first), weights.parameter(self.first)
        F2, c2 = weights.filters(self.size, self.size, self.first, self.second), weights.parameter(self.second)
        hidden = weights.linear(self.hidden, self.flat)
        scores = weights.linear(self.classes, self.hidden)

        def layer(x: Any, filters: Any, bias: Any) -> Any:
            return functional.max_pool2d(functional.conv2d(x, filters, bias, padding="same").relu(), 2)

        def network(images: Any) -> Any:
            x = layer(layer(images[:, None], F1, c1), F2, c2)
            return scores(hidden(x.flatten(1)).relu())

        return network

    def torch_arrays(self) -> np.ndarray:
        return self.images.swapaxes(1, 2)  # columns by rows: DyNet's order of numbers


WORKLOAD = CNN
