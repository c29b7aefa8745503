"""Beam search in a language model: each hypothesis goes on from a state of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, Workload, each, lstm_multiplications

Hypothesis = tuple[float, list[int], Any]  # log probability, words, and the state before the last of them


def best_of(ends: list[tuple[float, list[int], Any]], width: int) -> list[Hypothesis]:
    return sorted(ends, key=lambda end: -end[0])[:width]


class BeamSearch(Workload):
    title = "beam search in a language model, 8 hypotheses for each of 32 sentences, 20 steps, hidden 512"
    unit = "sentences/s"
    mode = "forward"
    own_forms = ("map",)
    goals = (Goal("as all 256 by hand", 1 / 1.15, form="map"),)
    sizes = {"count": 32, "width": 8, "steps": 20, "vocabulary": 1000, "dim": 128, "hidden": 512}
    tiny = {"count": 3, "width": 2, "steps": 3, "vocabulary": 9, "dim": 5, "hidden": 6}

    def prepare(self) -> None:
        self.starts = self.words(self.count, self.vocabulary)

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        steps = self.count * (1 + self.width * (self.steps - 1))
        return lstm_multiplications(steps, self.dim, self.hidden) + steps * self.hidden * self.vocabulary

    def grown(self, hypothesis: Hypothesis, values: np.ndarray, state: Any) -> list[Hypothesis]:
        """The best words to come next."""
        score, words, _ = hypothesis
        best = np.argsort(-values, kind="stable")[: self.width].tolist()
        return [(score + float(values[word]), [*words, word], state) for word in best]

    def dynet(self, dy: Any, pc: Any) -> Loss:
        table = pc.add_lookup_parameters((self.vocabulary, self.dim))
        lstm = dy.LSTMBuilder(1, self.dim, self.hidden, pc)
        W, b = pc.add_parameters((self.vocabulary, self.hidden)), pc.add_parameters(self.vocabulary)

        def loss(form: str) -> Any:
            run = each(dy, form)

            def expand(hypothesis: Hypothesis) -> list[Hypothesis]:
                state = hypothesis[2].add_input(table[hypothesis[1][-1]])
                scores = dy.log_softmax(dy.affine_transform([b, W, state.output()]))
                return self.grown(hypothesis, scores.npvalue(), state)

            def search(start: int) -> float:
                beam: list[Hypothesis] = [(0.0, [start], lstm.initial_state())]
                for _ in range(self.steps):
                    beam = best_of([end for ends in run(expand, beam) for end in ends], self.width)
                return beam[0][0]

            return dy.scalarInput(-sum(run(search, self.starts)))

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        table = weights.table(self.vocabulary, self.dim)
        cell = weights.lstm_cell(self.dim, self.hidden)
        scores = weights.linear(self.vocabulary, self.hidden)

        def search(starts: Any) -> Any:
            """Hypotheses of all sentences as rows; those of a sentence stand together."""
            n, width = len(starts), 1
            words, total = starts, torch.zeros(n, 1, device=weights.device)
            h = c = torch.zeros(n, self.hidden, device=weights.device)
            for _ in range(self.steps):
                h, c = cell(table(words), (h, c))
                found = total[:, :, None] + scores(h).log_softmax(1).view(n, width, -1)
                total, places = found.flatten(1).topk(self.width)
                rows = (torch.arange(n, device=weights.device)[:, None] * width + places // self.vocabulary).flatten()
                h, c, words, width = h[rows], c[rows], (places % self.vocabulary).flatten(), self.width
            return -total[:, 0].sum()

        def loss(form: str) -> Any:
            if form == "batched":
                return search(weights.tensor(self.starts))
            return sum(search(weights.tensor([start])) for start in self.starts)

        return loss


WORKLOAD = BeamSearch
