"""An encoder-decoder with attention and residual connections, as DyNet's sequence-to-sequence programs are written.

The table of target words is both looked up and used whole, as the weights of the softmax; decoder states begin with
computed vectors; padded minibatches; beam search over tuples of states; the best model is kept by dev perplexity.

python seq2seq_att.py train MODEL | python seq2seq_att.py translate MODEL
"""

import sys

import dynet as dy
import numpy as np
from common import initialize, pairs, show, size, vocabulary

SOS, EOS = 0, 1


class Seq2Seq:
    def __init__(self, source, target, path):
        self.path = path
        self.model = dy.Model()
        wide, self.hidden, attention = size(6), size(8), size(6)
        self.encoded = 2 * self.hidden + wide
        self.enc = dy.VanillaLSTMBuilder(1, wide, self.hidden, self.model)
        self.rev_enc = dy.VanillaLSTMBuilder(1, wide, self.hidden, self.model)
        self.dec = dy.VanillaLSTMBuilder(1, wide + self.encoded, self.hidden, self.model)
        self.Wp = self.model.add_parameters((self.hidden, self.encoded))
        self.bp = self.model.add_parameters((self.hidden,), init=dy.ConstInitializer(0))
        self.Va = self.model.add_parameters(attention)
        self.Wa = self.model.add_parameters((attention, self.encoded))
        self.Wha = self.model.add_parameters((attention, self.hidden))
        self.MS = self.model.add_lookup_parameters((source, wide))
        self.MT = self.model.add_lookup_parameters((target, wide))
        self.Wo = self.model.add_parameters((wide, wide + self.hidden + self.encoded))
        self.bo = self.model.add_parameters((wide,), init=dy.ConstInitializer(0))
        self.b = self.model.add_parameters((target,), init=dy.ConstInitializer(0))
        initialize(self.model, 23)

    @staticmethod
    def prepare(batch):
        """Arrays of (length, batch): words, and which of them count."""
        longest = max(map(len, batch))
        words = np.full((longest, len(batch)), EOS)
        counts = np.ones((longest, len(batch)))
        for i, sentence in enumerate(batch):
            words[: len(sentence), i] = sentence
            counts[len(sentence) :, i] = 0.0
        return words, counts

    def encode(self, batch):
        words, _ = self.prepare(batch)
        vectors = [dy.lookup_batch(self.MS, w) for w in words]
        H = dy.concatenate_cols(self.enc.initial_state().transduce(vectors))
        back = dy.concatenate_cols(self.rev_enc.initial_state().transduce(vectors[::-1])[::-1])
        return dy.concatenate([H, back, dy.concatenate_cols(vectors)])

    def attend(self, encodings, h):
        d = dy.tanh(dy.colwise_add(self.Wa.expr() * encodings, self.Wha.expr() * h))
        weights = dy.softmax(dy.transpose(d) * self.Va.expr())
        return encodings * weights, weights

    def start(self, encodings, batch_size):
        last = dy.select_cols(encodings, [encodings.dim()[0][-1] - 1])
        first = dy.affine_transform([self.bp.expr(), self.Wp.expr(), last])
        state = self.dec.initial_state([first, dy.zeroes((self.hidden,), batch_size=batch_size)])
        return state, dy.zeroes((self.encoded,), batch_size=batch_size)

    def step(self, encodings, state, context, vector):
        state = state.add_input(dy.concatenate([vector, context]))
        h = state.output()
        context, _ = self.attend(encodings, h)
        output = dy.affine_transform([self.bo.expr(), self.Wo.expr(), dy.concatenate([vector, h, context])])
        scores = dy.affine_transform([self.b.expr(), dy.transpose(dy.parameter(self.MT)), output])
        return state, context, scores

    def loss(self, sources, targets):
        dy.renew_cg()
        encodings = self.encode(sources)
        words, counts = self.prepare(targets)
        state, context = self.start(encodings, len(sources))
        errors = []
        for word, following, count in zip(words, words[1:], counts[1:]):
            state, context, scores = self.step(encodings, state, context, dy.lookup_batch(self.MT, word))
            error = dy.pickneglogsoftmax_batch(scores, following)
            errors.append(dy.cmult(error, dy.inputTensor(count, batched=True)))
        return dy.sum_batches(dy.esum(errors)) / float(len(sources))

    def translate(self, source, beam_size):
        dy.renew_cg()
        encodings = self.encode([source])
        beam = [(*self.start(encodings, 1), [SOS], 0.0)]
        for _ in range(len(source) + 2):
            candidates = []
            for state, context, words, score in beam:
                state, context, scores = self.step(encodings, state, context, dy.lookup(self.MT, words[-1]))
                p = dy.softmax(scores).npvalue().flatten()
                p = p / p.sum()
                for w in np.argsort(p)[-beam_size:]:
                    candidates.append((state, context, [*words, int(w)], score + np.log(p[w])))
            beam = sorted(candidates, key=lambda c: c[-1])[-beam_size:]
            if beam[-1][2][-1] == EOS:
                break
        return beam[-1][2]


def main(mode, path):
    letters = vocabulary("abcde", "<s>", "</s>")
    data = pairs(size(24), 24, "abcde", 5)
    data = [([SOS, *map(letters.get, a), EOS], [SOS, *map(letters.get, b), EOS]) for a, b in data]
    train, dev = data[:-4], data[-4:]
    network = Seq2Seq(len(letters), len(letters), path)
    if mode == "translate":
        network.model.populate(path)
        for source, _ in dev:
            show("translation", *network.translate(source, 3))
        return
    trainer = dy.AdadeltaTrainer(network.model)
    trainer.set_clip_threshold(1.0)
    best = np.inf
    train.sort(key=lambda pair: len(pair[0]))
    for epoch in range(5):
        total = 0.0
        for start in range(0, len(train), 5):
            group = train[start : start + 5]
            loss = network.loss([a for a, _ in group], [b for _, b in group])
            total += loss.scalar_value()
            loss.backward()
            trainer.update()
        held_out = network.loss([a for a, _ in dev], [b for _, b in dev]).scalar_value()
        show("loss", epoch, total, float(np.exp(held_out / 5)))
        if held_out < best:
            best = held_out
            network.model.save(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
