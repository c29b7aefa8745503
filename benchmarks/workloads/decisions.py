"""A recurrent tagger that chooses a label at each step by its scores, like programs whose next step depends on it.

The forms ask for the same values in different ways:

- lazy: asks only for the loss, which shows what batching can reach
- sentence: `value()` at each step, sentence by sentence
- step: all sentences in step, and `value()` of each one by one
- together: in step, and `dy.forward(list)` before the values are taken
- mapped: as "sentence", each sentence an item of `dy.batched_map`

The inputs do not depend on the decisions, so that all forms have the same loss.
"""

from __future__ import annotations

from typing import Any

from workloads.common import Goal, Loss, TorchWeights, Workload, lstm_multiplications


class Decisions(Workload):
    title = "LSTM that decides on a label at each step, hidden 512, 32 sentences of 10 to 25 words"
    unit = "ms"
    per_item = 1e3
    goals = (
        Goal("one by one 1.1x of together", 0.909, "together", "step"),
        Goal("mapped 1.15x of lazy", 0.870, "lazy", "mapped"),
        Goal("mapped 1.4x PyTorch", 1.4, "peers", "mapped"),
    )
    dynet_forms = ("lazy", "sentence", "step", "together")
    own_forms = ("mapped",)
    torch_forms = ("eager", "batched")
    sizes = {"count": 32, "least": 10, "most": 25, "vocabulary": 1000, "hidden": 512, "labels": 50}
    tiny = {"count": 4, "least": 2, "most": 5, "vocabulary": 20, "hidden": 6, "labels": 4}

    def prepare(self) -> None:
        lengths = self.rng.randint(self.least, self.most + 1, self.count)
        self.data = [self.words(n, self.vocabulary) for n in lengths]
        self.tags = [[word % self.labels for word in sentence] for sentence in self.data]
        self.decided = 0  # number of right decisions, so that decisions are used

    @property
    def items(self) -> int:
        return 1  # the unit is the time of an update

    def multiplications(self) -> float:
        words = sum(map(len, self.data))
        mlp = self.hidden * (self.hidden + self.labels)
        return lstm_multiplications(words, self.hidden, self.hidden) + words * mlp

    def decide(self, scores: list[float], tag: int) -> None:
        self.decided += scores.index(max(scores)) == tag

    def dynet(self, dy: Any, pc: Any) -> Loss:
        table = pc.add_lookup_parameters((self.vocabulary, self.hidden))
        reader = dy.LSTMBuilder(1, self.hidden, self.hidden, pc)
        W1, b1 = pc.add_parameters((self.hidden, self.hidden)), pc.add_parameters(self.hidden)
        W2, b2 = pc.add_parameters((self.labels, self.hidden)), pc.add_parameters(self.labels)

        def step(state: Any, word: int) -> tuple[Any, Any]:
            state = state.add_input(table[word])
            hidden = dy.tanh(dy.affine_transform([b1, W1, state.output()]))
            return state, dy.affine_transform([b2, W2, hidden])

        def one(sentence: list[int], tags: list[int], ask: bool = True) -> list[Any]:
            state, losses = reader.initial_state(), []
            for word, tag in zip(sentence, tags):
                state, scores = step(state, word)
                if ask:
                    self.decide(scores.value(), tag)
                losses.append(dy.pickneglogsoftmax(scores, tag))
            return losses

        def in_step(together: bool) -> list[Any]:
            states = [reader.initial_state() for _ in self.data]
            losses = []
            for t in range(max(map(len, self.data))):
                asked = []
                for i, sentence in enumerate(self.data):
                    if t < len(sentence):
                        states[i], scores = step(states[i], sentence[t])
                        asked.append((scores, self.tags[i][t]))
                if together:
                    dy.forward([scores for scores, _ in asked])
                for scores, tag in asked:
                    self.decide(scores.value(), tag)
                    losses.append(dy.pickneglogsoftmax(scores, tag))
            return losses

        def loss(form: str) -> Any:
            if form in ("step", "together"):
                losses = in_step(form == "together")
            elif form == "mapped":
                losses = sum(dy.batched_map(one, self.data, self.tags), [])
            else:
                losses = sum((one(*pair, form == "sentence") for pair in zip(self.data, self.tags)), [])
            return dy.esum(losses) / len(losses)

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        table = weights.table(self.vocabulary, self.hidden)
        cell = weights.lstm_cell(self.hidden, self.hidden)
        hidden = weights.linear(self.hidden, self.hidden)
        scores_of = weights.linear(self.labels, self.hidden)
        cross_entropy = torch.nn.functional.cross_entropy
        sentences = [weights.tensor(s) for s in self.data]
        pad = torch.nn.utils.rnn.pad_sequence
        padded = pad(sentences)
        tags = pad([weights.tensor(t) for t in self.tags], padding_value=-100)

        def batched() -> Any:
            """In step, with padding."""
            state, losses = None, []
            for words, gold in zip(padded, tags):
                state = cell(table(words), state)
                scores = scores_of(hidden(state[0]).tanh())
                for row, tag in zip(scores.tolist(), gold.tolist()):
                    if tag >= 0:
                        self.decide(row, tag)
                losses.append(cross_entropy(scores, gold, reduction="sum"))
            return torch.stack(losses).sum() / (tags >= 0).sum()

        def loss(form: str) -> Any:
            if form == "batched":
                return batched()
            losses = []
            for sentence, own in zip(sentences, self.tags):
                state = None
                for word, tag in zip(sentence, own):
                    state = cell(table(word[None]), state)
                    scores = scores_of(hidden(state[0]).tanh())[0]
                    self.decide(scores.tolist(), tag)
                    losses.append(cross_entropy(scores, weights.tensor(tag)))
            return torch.stack(losses).mean()

        return loss


WORKLOAD = Decisions
