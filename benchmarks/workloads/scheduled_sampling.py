"""Scheduled sampling: a decoder reads its own best word instead of the right one, every other time."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, each
from workloads.seq2seq import Seq2Seq


class ScheduledSampling(Seq2Seq):
    title = "sequence-to-sequence with attention and scheduled sampling, hidden 512, 16 pairs"
    own_forms = ("map",)
    goals = (Goal("2x pair by pair", 2.0, "autobatch", "map"),)
    sizes = {**Seq2Seq.sizes, "hidden": 512}
    learning_rate = 0.1

    def prepare(self) -> None:
        super().prepare()
        self.own = [self.rng.randint(2, size=len(target)).astype(bool) for _, target in self.pairs]

    def dynet(self, dy: Any, pc: Any) -> Loss:
        n = self.hidden
        source_table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        target_table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        encoder = dy.BiRNNBuilder(1, self.word_dim, 2 * n, pc, dy.LSTMBuilder)
        decoder = dy.LSTMBuilder(1, self.word_dim + 2 * n, n, pc)
        W_keys, W_query = pc.add_parameters((n, 2 * n)), pc.add_parameters((n, n))
        v = pc.add_parameters((1, n))
        W, b = pc.add_parameters((self.vocabulary, n)), pc.add_parameters(self.vocabulary)

        def run(source: list[int], target: list[int], own: np.ndarray) -> list[Any]:
            memory = dy.concatenate_cols(encoder.transduce([source_table[w] for w in source]))
            keys, state, context = W_keys * memory, decoder.initial_state(), dy.zeros(2 * n)
            losses, word = [], target[0]
            for following, sampled in zip(target[1:], own):
                state = state.add_input(dy.concatenate([target_table[word], context]))
                scores = dy.affine_transform([b, W, state.output()])
                losses.append(dy.pickneglogsoftmax(scores, following))
                word = int(scores.npvalue().argmax()) if sampled else following
                relevance = v * dy.tanh(dy.colwise_add(keys, W_query * state.output()))
                context = memory * dy.softmax(dy.transpose(relevance))
            return losses

        def loss(form: str) -> Any:
            sources, targets = zip(*self.pairs)
            losses = [one for own in each(dy, form)(run, sources, targets, self.own) for one in own]
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
        scores_of = weights.linear(self.vocabulary, n)
        linear, cross_entropy = torch.nn.functional.linear, torch.nn.functional.cross_entropy

        def run(pairs: list[tuple[list[int], list[int]]], coins: list[np.ndarray]) -> Any:
            """The summed loss of pairs that are padded and decoded in step."""
            sources = [weights.tensor(source) for source, _ in pairs]
            lengths = torch.tensor([len(source) for source in sources])
            words = source_table(rnn.pad_sequence(sources, batch_first=True))
            packed = rnn.pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
            memory, _ = rnn.pad_packed_sequence(encoder(packed)[0], batch_first=True)
            there = (torch.arange(memory.shape[1]) < lengths[:, None]).to(weights.device)
            targets = rnn.pad_sequence([weights.tensor(target) for _, target in pairs], True, padding_value=-1)
            own = rnn.pad_sequence([weights.tensor(coin) for coin in coins], True)
            keys, total = linear(memory, W_keys), 0
            h = c = memory.new_zeros(len(pairs), n)
            context = memory.new_zeros(len(pairs), 2 * n)
            given = targets[:, 0]
            for step in range(targets.shape[1] - 1):
                h, c = decoder(torch.cat([target_table(given), context], -1), (h, c))
                scores, following = scores_of(h), targets[:, step + 1]
                total = total + cross_entropy(scores, following, ignore_index=-1, reduction="sum")
                given = torch.where(own[:, step], scores.argmax(1), following.clamp(min=0))
                relevance = linear((keys + linear(h, W_query)[:, None]).tanh(), v)[..., 0]
                shares = relevance.masked_fill(~there, -np.inf).softmax(-1)
                context = torch.bmm(shares[:, None], memory)[:, 0]
            return total

        def loss(form: str) -> Any:
            if form == "batched":
                return run(self.pairs, self.own) / self.steps
            return sum(run([pair], [own]) for pair, own in zip(self.pairs, self.own)) / self.steps

        return loss


WORKLOAD = ScheduledSampling
