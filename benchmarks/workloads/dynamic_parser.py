"""The transition parser, following its own best-scored actions, as in training that learns from errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, each
from workloads.parser import SHIFT, Parser


class Walk:
    """A sentence being parsed.  The best action depends only on the configuration, as with a dynamic oracle."""

    def __init__(self, length: int, labels: int) -> None:
        self.length, self.labels = length, labels
        self.stack: list[int] = []
        self.first = 0

    def over(self) -> bool:
        return self.first == self.length and len(self.stack) == 1

    def seen(self) -> list[int | None]:
        top: list[int | None] = list(self.stack[-1:-4:-1])
        return [*top, *[None] * (3 - len(top)), self.first if self.first < self.length else None]

    def allowed(self) -> list[bool]:
        """Whether each action is possible: shift, attach to the first of the buffer, attach to the one below."""
        left, right = bool(self.stack) and self.first < self.length, len(self.stack) > 1
        return [self.first < self.length, *[left] * self.labels, *[right] * self.labels]

    def best(self) -> int:
        """The action to learn: the word itself determines when it has all of its children."""
        if self.first < self.length and (not self.stack or (self.stack[-1] + self.first) % 3):
            return SHIFT
        right = len(self.stack) > 1
        return 1 + right * self.labels + (self.stack[-1] * 7 + self.first) % self.labels

    def advance(self, scores: np.ndarray) -> None:
        action = int(np.where(self.allowed(), scores, -np.inf).argmax())
        if action == SHIFT:
            self.stack.append(self.first)
            self.first += 1
        else:
            self.stack.pop()


class DynamicParser(Parser):
    title = "transition parser that follows its own actions, 32 sentences, hidden 512"
    goals = (Goal("3x sentence by sentence", 3.0, "autobatch", "map"), Goal("1.4x the peers", 1.4, form="map"))
    own_forms = ("map",)
    sizes = {**Parser.sizes, "hidden": 512, "mlp": 512}
    learning_rate = 0.1

    def prepare(self) -> None:
        self.data = self.sentences(self.count, 16, 40, self.vocabulary)
        self.decisions = sum(2 * len(sentence) - 1 for sentence in self.data)

    def dynet(self, dy: Any, pc: Any) -> Loss:
        table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        reader = dy.BiRNNBuilder(self.layers, self.word_dim, 2 * self.hidden, pc, dy.LSTMBuilder)
        none = pc.add_parameters(2 * self.hidden)
        W1, b1 = pc.add_parameters((self.mlp, 8 * self.hidden)), pc.add_parameters(self.mlp)
        W2, b2 = pc.add_parameters((2 * self.labels + 1, self.mlp)), pc.add_parameters(2 * self.labels + 1)

        def parse(sentence: list[int]) -> list[Any]:
            states = reader.transduce([table[word] for word in sentence])
            walk, losses = Walk(len(sentence), self.labels), []
            while not walk.over():
                seen = dy.concatenate([none if place is None else states[place] for place in walk.seen()])
                hidden = dy.tanh(dy.affine_transform([b1, W1, seen]))
                scores = dy.affine_transform([b2, W2, hidden])
                losses.append(dy.pickneglogsoftmax(scores, walk.best()))
                walk.advance(scores.npvalue())
            return losses

        def loss(form: str) -> Any:
            losses = [one for own in each(dy, form)(parse, self.data) for one in own]
            return dy.esum(losses) / len(losses)

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        rnn = torch.nn.utils.rnn
        table = weights.table(self.vocabulary, self.word_dim)
        reader = weights.lstm(self.layers, self.word_dim, self.hidden, bidirectional=True)
        none = weights.parameter(2 * self.hidden)
        hidden = weights.linear(self.mlp, 8 * self.hidden)
        scores = weights.linear(2 * self.labels + 1, self.mlp)
        cross_entropy = torch.nn.functional.cross_entropy
        sentences = [weights.tensor(s) for s in self.data]
        lengths = torch.tensor([len(s) for s in self.data])

        def batched() -> Any:
            """All sentences are read at once, and then parsed in step."""
            words = table(rnn.pad_sequence(sentences, batch_first=True))
            packed, _ = reader(rnn.pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False))
            states, _ = rnn.pad_packed_sequence(packed, batch_first=True)
            rows = torch.cat([none[None], states.flatten(0, 1)])
            walks = [Walk(len(sentence), self.labels) for sentence in self.data]
            losses = []
            while going := [(i, walk) for i, walk in enumerate(walks) if not walk.over()]:
                places = [[0 if p is None else 1 + i * states.shape[1] + p for p in w.seen()] for i, w in going]
                found = scores(hidden(rows[weights.tensor(places)].flatten(1)).tanh())
                best = weights.tensor([walk.best() for _, walk in going])
                losses.append(cross_entropy(found, best, reduction="sum"))
                for (_, walk), values in zip(going, found.detach().cpu().numpy()):
                    walk.advance(values)
            return torch.stack(losses).sum() / self.decisions

        def loss(form: str) -> Any:
            if form == "batched":
                return batched()
            losses = []
            for sentence, words in zip(self.data, sentences):
                states, walk = reader(table(words)[None])[0][0].unbind(), Walk(len(sentence), self.labels)
                while not walk.over():
                    seen = torch.cat([none if place is None else states[place] for place in walk.seen()])
                    found = scores(hidden(seen).tanh())
                    losses.append(cross_entropy(found, weights.tensor(walk.best())))
                    walk.advance(found.detach().cpu().numpy())
            return torch.stack(losses).mean()

        return loss


WORKLOAD = DynamicParser
