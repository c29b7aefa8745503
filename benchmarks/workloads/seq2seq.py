"""Sequence to sequence: a BiLSTM encoder, an LSTM decoder, and attention by a multilayer perceptron."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, Workload, bilstm_multiplications, lstm_multiplications

END = 0  # begins and ends targets


class Seq2Seq(Workload):
    title = "sequence-to-sequence with MLP attention, hidden 256, 16 pairs"
    unit = "pairs/s"
    goals = (Goal("2.5x", 2.5),)
    sizes = {"count": 16, "vocabulary": 2_000, "word_dim": 256, "hidden": 256}
    tiny = {"count": 3, "vocabulary": 50, "word_dim": 6, "hidden": 5}
    learning_rate = 1.0

    def prepare(self) -> None:
        self.pairs = []
        for source in self.sentences(self.count, 20, 50, self.vocabulary):
            length = max(1, len(source) + self.rng.randint(-3, 4))
            self.pairs.append((source, [END, *(w + 1 for w in self.words(length, self.vocabulary - 1)), END]))
        self.steps = sum(len(target) - 1 for _, target in self.pairs)

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        n = self.hidden
        read = sum(len(source) for source, _ in self.pairs)
        seen = sum(len(source) * (len(target) - 1) for source, target in self.pairs)
        encoder = bilstm_multiplications(read, 1, self.word_dim, n) + read * n * 2 * n
        decoder = lstm_multiplications(self.steps, self.word_dim + 2 * n, n)
        return encoder + decoder + self.steps * n * n + seen * (n + 2 * n) + self.steps * n * self.vocabulary

    def dynet(self, dy: Any, pc: Any) -> Loss:
        n = self.hidden
        source_table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        target_table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        encoder = dy.BiRNNBuilder(1, self.word_dim, 2 * n, pc, dy.LSTMBuilder)
        decoder = dy.LSTMBuilder(1, self.word_dim + 2 * n, n, pc)
        W_keys = pc.add_parameters((n, 2 * n))
        W_query = pc.add_parameters((n, n))
        v = pc.add_parameters((1, n))
        W = pc.add_parameters((self.vocabulary, n))
        b = pc.add_parameters(self.vocabulary)

        def attend(memory: Any, keys: Any, output: Any) -> Any:
            if output is None:
                return dy.zeros(2 * n)
            scores = v * dy.tanh(dy.colwise_add(keys, W_query * output))
            return memory * dy.softmax(dy.transpose(scores))

        def loss(form: str) -> Any:
            losses = []
            for source, target in self.pairs:
                memory = dy.concatenate_cols(encoder.transduce([source_table[w] for w in source]))
                keys = W_keys * memory
                state, output = decoder.initial_state(), None
                for word, following in zip(target, target[1:]):
                    context = attend(memory, keys, output)
                    state = state.add_input(dy.concatenate([target_table[word], context]))
                    output = state.output()
                    losses.append(dy.pickneglogsoftmax(dy.affine_transform([b, W, output]), following))
            return dy.esum(losses) / len(losses)

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        rnn = torch.nn.utils.rnn
        n = self.hidden
        source_table = weights.table(self.vocabulary, self.word_dim)
        target_table = weights.table(self.vocabulary, self.word_dim)
        encoder = weights.lstm(1, self.word_dim, n, bidirectional=True)
        decoder = weights.lstm_cell(self.word_dim + 2 * n, n)
        W_keys, W_query, v = weights.parameter(n, 2 * n), weights.parameter(n, n), weights.parameter(1, n)
        scores = weights.linear(self.vocabulary, n)
        linear, cross_entropy = torch.nn.functional.linear, torch.nn.functional.cross_entropy
        pairs = [(weights.tensor(source), weights.tensor(target)) for source, target in self.pairs]
        lengths = torch.tensor([len(source) for source, _ in pairs])
        padded_source = rnn.pad_sequence([source for source, _ in pairs], batch_first=True)
        padded_target = rnn.pad_sequence([target for _, target in pairs], batch_first=True, padding_value=-1)
        there = (torch.arange(int(lengths.max())) < lengths[:, None]).to(weights.device)

        def decode(memory: Any, there: Any, words: Any) -> Any:
            """States of the decoder for padded minibatches of encoded sources and target words."""
            keys = linear(memory, W_keys)
            inputs = target_table(words)
            h = c = memory.new_zeros(len(words), n)
            context = memory.new_zeros(len(words), 2 * n)
            states = []
            for step in range(words.shape[1]):
                if step:
                    energies = linear((keys + linear(h, W_query)[:, None]).tanh(), v)[..., 0]
                    if there is not None:
                        energies = energies.masked_fill(~there, -np.inf)
                    context = torch.bmm(energies.softmax(-1)[:, None], memory)[:, 0]
                h, c = decoder(torch.cat([inputs[:, step], context], -1), (h, c))
                states.append(h)
            return torch.stack(states, 1)

        def loss(form: str) -> Any:
            if form == "batched":
                embedded = source_table(padded_source)
                packed = rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
                memory, _ = rnn.pad_packed_sequence(encoder(packed)[0], batch_first=True)
                states = decode(memory, there, padded_target[:, :-1].clamp(min=0))
                return cross_entropy(scores(states).flatten(0, 1), padded_target[:, 1:].flatten(), ignore_index=-1)
            total = 0
            for source, target in pairs:
                memory, _ = encoder(source_table(source)[None])
                states = decode(memory, None, target[None, :-1])
                total = total + cross_entropy(scores(states[0]), target[1:], reduction="sum")
            return total / self.steps

        return loss


WORKLOAD = Seq2Seq
