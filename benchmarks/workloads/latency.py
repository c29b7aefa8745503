"""Tagging one sentence with the tagger's network: forward only, from the words to their scores."""

from __future__ import annotations

from typing import Any

from workloads.common import Goal, Loss, TorchWeights
from workloads.tagger import Tagger


class Latency(Tagger):
    title = "latency of tagging one 20-word sentence, 2 layers, hidden 200"
    unit = "ms"
    per_item = 1e3
    mode = "forward"
    torch_forms = ("eager",)
    goals = (Goal("0.8 ms to the best peer's 1.6", 2.0),)
    repeat = 20
    sizes = {**Tagger.sizes, "count": 1, "length": 20}
    tiny = {**Tagger.tiny, "count": 1, "length": 4}

    def prepare(self) -> None:
        self.data = [self.words(self.length, self.vocabulary)]

    def dynet(self, dy: Any, pc: Any) -> Loss:
        scores = self.dynet_tagger(dy, pc)
        return lambda form: dy.concatenate_cols(scores(self.data[0]))

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        one, _ = self.torch_tagger(torch, weights)
        return lambda form: one(weights.tensor(self.data[0])).T


WORKLOAD = Latency
