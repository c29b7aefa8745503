"""Beam search for translation: hypotheses of a sentence attend to it, and end at different words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, bilstm_multiplications, each, lstm_multiplications
from workloads.seq2seq import END, Seq2Seq


class Hypothesis(NamedTuple):
    score: float
    words: list[int]
    state: Any  # of the decoder, and the result of attention, before the last word
    context: Any

    def ended(self) -> bool:
        return len(self.words) > 1 and self.words[-1] == END


class TranslationBeam(Seq2Seq):
    title = "beam search for translation with MLP attention, 5 hypotheses for each of 16 sentences, hidden 256"
    unit = "sentences/s"
    mode = "forward"
    own_forms = ("map",)
    goals = (Goal("2x hypothesis by hypothesis", 2.0, "autobatch", "map"),)
    sizes = {**Seq2Seq.sizes, "width": 5}
    tiny = {**Seq2Seq.tiny, "width": 2}

    def prepare(self) -> None:
        super().prepare()
        self.sources = [source for source, _ in self.pairs]
        self.limits = [len(target) - 1 for _, target in self.pairs]  # words of a translation, its end included

    def multiplications(self) -> float:
        """An upper bound: hypotheses that have ended cost nothing."""
        n = self.hidden
        read = sum(map(len, self.sources))
        steps = sum(1 + self.width * (limit - 1) for limit in self.limits)
        seen = sum(len(s) * (1 + self.width * (limit - 1)) for s, limit in zip(self.sources, self.limits))
        encoder = bilstm_multiplications(read, 1, self.word_dim, n) + read * n * 2 * n
        decoder = lstm_multiplications(steps, self.word_dim + 2 * n, n)
        return encoder + decoder + steps * n * n + seen * (n + 2 * n) + steps * n * self.vocabulary

    def dynet(self, dy: Any, pc: Any) -> Loss:
        n = self.hidden
        source_table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        target_table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        encoder = dy.BiRNNBuilder(1, self.word_dim, 2 * n, pc, dy.LSTMBuilder)
        decoder = dy.LSTMBuilder(1, self.word_dim + 2 * n, n, pc)
        W_keys, W_query = pc.add_parameters((n, 2 * n)), pc.add_parameters((n, n))
        v = pc.add_parameters((1, n))
        W, b = pc.add_parameters((self.vocabulary, n)), pc.add_parameters(self.vocabulary)

        def loss(form: str) -> Any:
            run = each(dy, form)

            def search(source: list[int], limit: int) -> float:
                memory = dy.concatenate_cols(encoder.transduce([source_table[w] for w in source]))
                keys = W_keys * memory

                def expand(own: Hypothesis) -> list[Hypothesis]:
                    if own.ended():
                        return [own]
                    state = own.state.add_input(dy.concatenate([target_table[own.words[-1]], own.context]))
                    found = dy.log_softmax(dy.affine_transform([b, W, state.output()]))
                    relevance = v * dy.tanh(dy.colwise_add(keys, W_query * state.output()))
                    context = memory * dy.softmax(dy.transpose(relevance))
                    values = found.npvalue()
                    best = np.argpartition(-values, self.width)[: self.width].tolist()
                    return [Hypothesis(own.score + float(values[w]), [*own.words, w], state, context) for w in best]

                beam = [Hypothesis(0.0, [END], decoder.initial_state(), dy.zeros(2 * n))]
                for _ in range(limit):
                    ends = [end for own in run(expand, beam) for end in own]
                    beam = sorted(ends, key=lambda end: -end.score)[: self.width]
                return beam[0].score

            return dy.scalarInput(-sum(run(search, self.sources, self.limits)))

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        rnn = torch.nn.utils.rnn
        n, width, vocabulary = self.hidden, self.width, self.vocabulary
        source_table = weights.table(self.vocabulary, self.word_dim)
        target_table = weights.table(self.vocabulary, self.word_dim)
        encoder = weights.lstm(1, self.word_dim, n, bidirectional=True)
        decoder = weights.lstm_cell(self.word_dim + 2 * n, n)
        W_keys, W_query, v = weights.parameter(n, 2 * n), weights.parameter(n, n), weights.parameter(1, n)
        scores_of = weights.linear(self.vocabulary, n)
        linear = torch.nn.functional.linear

        def search(sources: list[list[int]], limits: list[int]) -> Any:
            """Hypotheses of all sentences as rows, those of a sentence together; ended ones continue with `END`."""
            count = len(sources)
            padded = rnn.pad_sequence([weights.tensor(source) for source in sources], batch_first=True)
            lengths = torch.tensor([len(source) for source in sources])
            packed = rnn.pack_padded_sequence(source_table(padded), lengths, batch_first=True, enforce_sorted=False)
            memory, _ = rnn.pad_packed_sequence(encoder(packed)[0], batch_first=True)
            there = (torch.arange(memory.shape[1]) < lengths[:, None]).to(weights.device)
            keys, last = linear(memory, W_keys), weights.tensor(limits)
            h = c = memory.new_zeros(count, n)
            context = memory.new_zeros(count, 2 * n)
            words = torch.full((count,), END, device=weights.device)
            total, ended = memory.new_zeros(count, 1), torch.zeros(count, 1, dtype=torch.bool, device=weights.device)
            stay = torch.full((vocabulary,), -np.inf, device=weights.device)
            stay[END] = 0
            for step in range(max(limits)):
                h, c = decoder(torch.cat([target_table(words), context], -1), (h, c))
                found = scores_of(h).log_softmax(1).view(count, -1, vocabulary)
                found = torch.where((ended | (step >= last)[:, None])[..., None], stay, found)
                relevance = linear((keys.repeat_interleave(len(h) // count, 0) + linear(h, W_query)[:, None]).tanh(), v)
                mask = ~there.repeat_interleave(len(h) // count, 0)
                shares = relevance[..., 0].masked_fill(mask, -np.inf).softmax(-1)
                context = torch.bmm(shares[:, None], memory.repeat_interleave(len(h) // count, 0))[:, 0]
                total, places = (total[:, :, None] + found).flatten(1).topk(width)
                beams = places // vocabulary
                rows = (torch.arange(count, device=weights.device)[:, None] * (len(h) // count) + beams).flatten()
                words = (places % vocabulary).flatten()
                ended = ended.gather(1, beams) | (words.view(count, width) == END)
                h, c, context = h[rows], c[rows], context[rows]
            return -total[:, 0].sum()

        def loss(form: str) -> Any:
            if form == "batched":
                return search(self.sources, self.limits)
            return sum(search([source], [limit]) for source, limit in zip(self.sources, self.limits))

        return loss


WORKLOAD = TranslationBeam
