"""Beam search in a language model: each hypothesis continues from its own state.

Forms in addition to those for one hypothesis at a time:

- together: all hypotheses of all sentences in step, by hand, and `dy.forward(list)` for their values
- map: each sentence an item of `dy.batched_map`, and each of its hypotheses one of a map within it
- joined: all hypotheses of all sentences as one state of `dy.beam_search`, as they are rows of a tensor in PyTorch
"""

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
    own_forms = ("together", "map", "joined")
    goals = (
        Goal("mapped 1.15x of together", 0.87, "together", "map"),
        Goal("as the peers", 1.0, form="map"),
        Goal("joined 1.2x the peers", 1.2, form="joined"),
    )
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
        """Extend a hypothesis by each of the best next words."""
        score, words, _ = hypothesis
        best = np.argpartition(-values, self.width)[: self.width].tolist()
        return [(score + float(values[word]), [*words, word], state) for word in best]

    def dynet(self, dy: Any, pc: Any) -> Loss:
        table = pc.add_lookup_parameters((self.vocabulary, self.dim))
        lstm = dy.LSTMBuilder(1, self.dim, self.hidden, pc)
        W, b = pc.add_parameters((self.vocabulary, self.hidden)), pc.add_parameters(self.vocabulary)

        def loss(form: str) -> Any:
            run = each(dy, form)

            def scored(hypothesis: Hypothesis) -> tuple[Any, Any]:
                state = hypothesis[2].add_input(table[hypothesis[1][-1]])
                return dy.log_softmax(dy.affine_transform([b, W, state.output()])), state

            def expand(hypothesis: Hypothesis) -> list[Hypothesis]:
                scores, state = scored(hypothesis)
                return self.grown(hypothesis, scores.npvalue(), state)

            def first(start: int) -> list[Hypothesis]:
                return [(0.0, [start], lstm.initial_state())]

            def search(start: int) -> float:
                beam = first(start)
                for _ in range(self.steps):
                    beam = best_of([end for ends in run(expand, beam) for end in ends], self.width)
                return beam[0][0]

            def together() -> list[float]:
                beams = list(map(first, self.starts))
                for _ in range(self.steps):
                    found = [[scored(hypothesis) for hypothesis in beam] for beam in beams]
                    dy.forward([scores for own in found for scores, _ in own])
                    for i, (beam, own) in enumerate(zip(beams, found)):
                        grown = [self.grown(one, scores.npvalue(), state) for one, (scores, state) in zip(beam, own)]
                        beams[i] = best_of([end for ends in grown for end in ends], self.width)
                return [beam[0][0] for beam in beams]

            def joined() -> list[float]:
                def step(state: Any, words: np.ndarray) -> tuple[Any, Any]:
                    state = state.add_input(dy.lookup_batch(table, words))
                    return state, dy.affine_transform([b, W, state.output()])

                options = {"end": None, "begin": self.starts, "logits": True, "every": self.steps}
                dy.renew_cg(forward_only=True)  # as PyTorch's inference mode
                found = dy.beam_search(step, lstm.initial_state(), self.width, self.steps, **options)
                return [best.score for best in found]

            if form == "joined":
                return dy.scalarInput(-sum(joined()))
            return dy.scalarInput(-sum(together() if form == "together" else run(search, self.starts)))

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        table = weights.table(self.vocabulary, self.dim)
        cell = weights.lstm_cell(self.dim, self.hidden)
        scores = weights.linear(self.vocabulary, self.hidden)

        def search(starts: Any) -> Any:
            """Hypotheses of all sentences as rows; those of a sentence are adjacent."""
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
