"""Decoding under rules: a language model writes the most probable allowed word."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, Workload, each, lstm_multiplications


class Brackets:
    """The output so far: words and nested brackets, all of which are closed when it has its full length."""

    def __init__(self, length: int, kinds: int, vocabulary: int) -> None:
        self.left = length
        self.kinds = kinds  # word k opens, word kinds + k closes it, for k < kinds; others are plain
        self.opened: list[int] = []
        self.plain = np.zeros(vocabulary, bool)
        self.plain[2 * kinds :] = True

    def allowed(self) -> np.ndarray:
        """The words that may come next."""
        room = self.left - len(self.opened)
        found = self.plain.copy() if room else np.zeros_like(self.plain)
        found[: self.kinds] = room > 1
        if self.opened:
            found[self.kinds + self.opened[-1]] = True
        return found

    def choose(self, scores: np.ndarray) -> int:
        """Write the best of the allowed words."""
        word = int(np.where(self.allowed(), scores, -np.inf).argmax())
        self.left -= 1
        if word < self.kinds:
            self.opened.append(word)
        elif word < 2 * self.kinds:
            self.opened.pop()
        return word


class Constrained(Workload):
    title = "decoding under rules, the best word that may come next, 32 sentences, hidden 512"
    unit = "sentences/s"
    mode = "forward"
    own_forms = ("map",)
    goals = (Goal("2x sentence by sentence", 2.0, "autobatch", "map"),)
    sizes = {"count": 32, "kinds": 20, "vocabulary": 1000, "dim": 128, "hidden": 512}
    tiny = {"count": 3, "kinds": 2, "vocabulary": 9, "dim": 5, "hidden": 6}

    def prepare(self) -> None:
        self.starts = self.words(self.count, self.vocabulary)
        self.written = self.lengths(self.count, 18, 40)

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        steps = sum(self.written)
        return lstm_multiplications(steps, self.dim, self.hidden) + steps * self.hidden * self.vocabulary

    def rules(self, length: int) -> Brackets:
        return Brackets(length, self.kinds, self.vocabulary)

    def dynet(self, dy: Any, pc: Any) -> Loss:
        table = pc.add_lookup_parameters((self.vocabulary, self.dim))
        lstm = dy.LSTMBuilder(1, self.dim, self.hidden, pc)
        W, b = pc.add_parameters((self.vocabulary, self.hidden)), pc.add_parameters(self.vocabulary)

        def write(word: int, length: int) -> float:
            rules, state, total = self.rules(length), lstm.initial_state(), 0.0
            while rules.left:
                state = state.add_input(table[word])
                scores = dy.log_softmax(dy.affine_transform([b, W, state.output()])).npvalue()
                word = rules.choose(scores)
                total += float(scores[word])
            return total

        return lambda form: dy.scalarInput(-sum(each(dy, form)(write, self.starts, self.written)))

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        table = weights.table(self.vocabulary, self.dim)
        cell = weights.lstm_cell(self.dim, self.hidden)
        scores_of = weights.linear(self.vocabulary, self.hidden)

        def write(starts: list[int], lengths: list[int]) -> float:
            """Outputs that have not ended continue in step."""
            going, words, total = [self.rules(length) for length in lengths], starts, 0.0
            state = None
            while going:
                h, c = cell(table(weights.tensor(words)), state)
                scores = scores_of(h).log_softmax(1).cpu().numpy()
                words = [rules.choose(own) for rules, own in zip(going, scores)]
                total += float(scores[np.arange(len(words)), words].sum())
                rows = [i for i, rules in enumerate(going) if rules.left]
                state = h[rows], c[rows]
                going, words = [going[i] for i in rows], [words[i] for i in rows]
            return total

        def loss(form: str) -> Any:
            if form == "batched":
                return torch.tensor(-write(self.starts, self.written))
            return torch.tensor(-sum(write([start], [length]) for start, length in zip(self.starts, self.written)))

        return loss


WORKLOAD = Constrained
