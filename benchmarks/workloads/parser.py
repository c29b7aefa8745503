"""A transition parser (arc-hybrid) with BiLSTM features, trained on the decisions of an oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

from workloads.common import Goal, Loss, TorchWeights, Workload, bilstm_multiplications

SHIFT = 0  # the other actions attach the top of the stack: to the first of the buffer, or to the item below it
Configuration = list[Optional[int]]  # positions of the words to look at; None if there is no word


def configurations(length: int, actions: list[int]) -> Iterator[Configuration]:
    """The inputs of a parser before each action: three words of the stack and one of the buffer."""
    stack: list[int] = []
    first = 0
    for action in actions:
        top = stack[-1:-4:-1]
        yield [*top, *[None] * (3 - len(top)), first if first < length else None]
        if action == SHIFT:
            stack.append(first)
            first += 1
        else:
            stack.pop()


class Parser(Workload):
    title = "transition parser with BiLSTM features, decisions by oracle, 32 sentences"
    unit = "sentences/s"
    goals = (Goal("2x the better", 2.0),)
    sizes = {"count": 32, "vocabulary": 10_000, "word_dim": 100, "layers": 2, "hidden": 125, "mlp": 100, "labels": 40}
    tiny = {"count": 4, "vocabulary": 50, "word_dim": 6, "hidden": 5, "mlp": 7, "labels": 2}
    learning_rate = 1.0

    def prepare(self) -> None:
        self.data = self.sentences(self.count, 23, 70, self.vocabulary)
        self.actions = [self.derivation(len(s)) for s in self.data]
        self.decisions = sum(map(len, self.actions))

    def derivation(self, length: int) -> list[int]:
        """Actions that lead to some tree over a sentence, whose last word on the stack is the root."""
        actions = []
        stacked, left = 0, length
        while left or stacked > 1:
            kinds = [SHIFT] * (left > 0) + [1] * (left > 0 and stacked > 0) + [2] * (stacked > 1)
            kind = kinds[self.rng.randint(len(kinds))]
            stacked, left = (stacked + 1, left - 1) if kind == SHIFT else (stacked - 1, left)
            actions.append(kind if kind == SHIFT else (kind - 1) * self.labels + 1 + int(self.rng.randint(self.labels)))
        return actions

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        words = sum(map(len, self.data))
        reader = bilstm_multiplications(words, self.layers, self.word_dim, self.hidden)
        return reader + self.decisions * self.mlp * (4 * 2 * self.hidden + 2 * self.labels + 1)

    def dynet(self, dy: Any, pc: Any) -> Loss:
        table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        reader = dy.BiRNNBuilder(self.layers, self.word_dim, 2 * self.hidden, pc, dy.LSTMBuilder)
        none = pc.add_parameters(2 * self.hidden)
        W1, b1 = pc.add_parameters((self.mlp, 8 * self.hidden)), pc.add_parameters(self.mlp)
        W2, b2 = pc.add_parameters((2 * self.labels + 1, self.mlp)), pc.add_parameters(2 * self.labels + 1)

        def loss(form: str) -> Any:
            losses = []
            for sentence, actions in zip(self.data, self.actions):
                states = reader.transduce([table[word] for word in sentence])
                for places, action in zip(configurations(len(sentence), actions), actions):
                    seen = dy.concatenate([none if place is None else states[place] for place in places])
                    hidden = dy.tanh(dy.affine_transform([b1, W1, seen]))
                    losses.append(dy.pickneglogsoftmax(dy.affine_transform([b2, W2, hidden]), action))
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
            """All sentences are read at once, and then all decisions are scored at once."""
            words = table(rnn.pad_sequence(sentences, batch_first=True))
            packed, _ = reader(rnn.pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False))
            states, _ = rnn.pad_packed_sequence(packed, batch_first=True)
            rows = torch.cat([none[None], states.flatten(0, 1)])
            places = []
            for i, (sentence, actions) in enumerate(zip(self.data, self.actions)):
                start = 1 + i * states.shape[1]
                for seen in configurations(len(sentence), actions):
                    places.append([0 if place is None else start + place for place in seen])
            actions = weights.tensor([action for actions in self.actions for action in actions])
            return cross_entropy(scores(hidden(rows[weights.tensor(places)].flatten(1)).tanh()), actions)

        def loss(form: str) -> Any:
            if form == "batched":
                return batched()
            losses = []
            for sentence, words, actions in zip(self.data, sentences, self.actions):
                states = reader(table(words)[None])[0][0].unbind()
                for places, action in zip(configurations(len(sentence), actions), actions):
                    seen = torch.cat([none if place is None else states[place] for place in places])
                    losses.append(cross_entropy(scores(hidden(seen).tanh()), weights.tensor(action)))
            return torch.stack(losses).mean()

        return loss


WORKLOAD = Parser
