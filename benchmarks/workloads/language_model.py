"""A word-level LSTM language model: sentences of about the same length, trained with SGD."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, Workload, lstm_multiplications

END = 0  # begins and ends sentences


class LanguageModel(Workload):
    title = "LSTM language model, hidden 512, vocabulary 10k, minibatch 32, SGD"
    unit = "sentences/s"
    goals = (Goal("65 % of peak", 0.65, "peak"),)
    dynet_forms = ("plain", "autobatch", "minibatch")
    sizes = {"count": 32, "vocabulary": 10_000, "word_dim": 512, "hidden": 512, "length": 23}
    tiny = {"count": 4, "vocabulary": 50, "word_dim": 6, "hidden": 5}
    learning_rate = 1.0

    def prepare(self) -> None:
        """Take a minibatch of sentences that were sorted by length."""
        lengths = self.rng.randint(self.length - 1, self.length + 2, size=self.count)
        self.data = [[END, *(w + 1 for w in self.words(n - 1, self.vocabulary - 1)), END] for n in lengths]

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        steps = sum(len(s) - 1 for s in self.data)
        return lstm_multiplications(steps, self.word_dim, self.hidden) + steps * self.hidden * self.vocabulary

    def padded(self) -> tuple[np.ndarray, np.ndarray]:
        """The words, with a row for each sentence, and the mask of positions that have one."""
        longest = max(map(len, self.data))
        words = np.array([s + [END] * (longest - len(s)) for s in self.data])
        return words, np.arange(longest) < np.array([[len(s)] for s in self.data])

    def dynet(self, dy: Any, pc: Any) -> Loss:
        table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        builder = dy.LSTMBuilder(1, self.word_dim, self.hidden, pc)
        W = pc.add_parameters((self.vocabulary, self.hidden))
        b = pc.add_parameters(self.vocabulary)
        padded, there = self.padded()
        steps = sum(len(s) - 1 for s in self.data)

        def sentence_losses(sentence: list[int]) -> list:
            losses = []
            state = builder.initial_state()
            for word, following in zip(sentence, sentence[1:]):
                state = state.add_input(table[word])
                losses.append(dy.pickneglogsoftmax(dy.affine_transform([b, W, state.output()]), following))
            return losses

        def minibatch_losses() -> list:
            losses = []
            state = builder.initial_state()
            columns = padded.T.tolist()
            for words, following, mask in zip(columns, columns[1:], there.T[1:]):
                state = state.add_input(dy.lookup_batch(table, words))
                loss = dy.pickneglogsoftmax_batch(dy.affine_transform([b, W, state.output()]), following)
                if not mask.all():
                    loss = dy.cmult(loss, dy.inputTensor(mask[None].astype(np.float32), batched=True))
                losses.append(dy.sum_batches(loss))
            return losses

        def loss(form: str) -> Any:
            if form == "minibatch":
                losses = minibatch_losses()
            else:
                losses = [loss for sentence in self.data for loss in sentence_losses(sentence)]
            return dy.esum(losses) / steps

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        table = weights.table(self.vocabulary, self.word_dim)
        lstm = weights.lstm(1, self.word_dim, self.hidden)
        scores = weights.linear(self.vocabulary, self.hidden)
        cross_entropy = torch.nn.functional.cross_entropy
        padded, there = map(weights.tensor, self.padded())
        targets = torch.where(there, padded, -1)[:, 1:]
        steps = sum(len(s) - 1 for s in self.data)

        def loss(form: str) -> Any:
            if form == "batched":
                states, _ = lstm(table(padded[:, :-1]))
                return cross_entropy(scores(states).flatten(0, 1), targets.flatten(), ignore_index=-1)
            total = 0
            for sentence in self.data:
                words = weights.tensor(sentence)
                states, _ = lstm(table(words[:-1])[None])
                total = total + cross_entropy(scores(states[0]), words[1:], reduction="sum")
            return total / steps

        return loss


WORKLOAD = LanguageModel
