"""A long chain of nodes with almost nothing to compute: the cost of a node."""

from __future__ import annotations

from typing import Any

from workloads.common import Goal, Loss, TorchWeights, Workload


class Chain(Workload):
    title = "tiny-node chain"
    unit = "ns/node"
    per_item = 1e9
    mode = "backward"
    torch_forms = ("eager",)
    goals = (Goal("150 ns to DyNet's 360", 360 / 150),)
    repeat = 5
    sizes = {"steps": 10_000, "size": 4}
    tiny = {"steps": 20}

    def prepare(self) -> None:
        pass

    @property
    def items(self) -> int:
        return 2 * self.steps

    def multiplications(self) -> float:
        return 0

    def dynet(self, dy: Any, pc: Any) -> Loss:
        b = pc.add_parameters(self.size)

        def loss(form: str) -> Any:
            x = b
            for _ in range(self.steps):
                x = dy.tanh(x + b)
            return dy.sum_elems(x)

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        b = weights.parameter(self.size)

        def loss(form: str) -> Any:
            x = b
            for _ in range(self.steps):
                x = torch.tanh(x + b)
            return x.sum()

        return loss


WORKLOAD = Chain
