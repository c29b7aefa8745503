"""An encoder-decoder with attention that learns to reverse words, and a model file in text.

python translate.py MODEL            train, write the model
python translate.py MODEL --load     read the model
"""

import sys

import dynet as dy
import numpy as np

EOS = "<eos>"
CHARS = [*"abcde", EOS]
NUMBER = {c: i for i, c in enumerate(CHARS)}


class Translator:
    def __init__(self, model):
        self.forward = dy.LSTMBuilder(1, 8, 12, model)
        self.backward = dy.CoupledLSTMBuilder(1, 8, 12, model)
        self.decoder = dy.VanillaLSTMBuilder(2, 32, 16, model)
        self.input_table = model.add_lookup_parameters((len(CHARS), 8), name="in")
        self.output_table = model.add_lookup_parameters((len(CHARS), 8))
        attention = model.add_subcollection("attention")
        self.w1 = attention.add_parameters((10, 24), name="w1")
        self.w2 = attention.add_parameters((10, 64))
        self.v = attention.add_parameters((1, 10))
        self.R = model.add_parameters((len(CHARS), 16))
        self.b = model.add_parameters((len(CHARS),), init=0)

    def encode(self, word):
        vectors = [self.input_table[NUMBER[c]] for c in word] + [self.input_table[NUMBER[EOS]]]
        there = self.forward.initial_state().transduce(vectors)
        back = reversed(self.backward.initial_state().transduce(vectors[::-1]))
        return dy.concatenate_cols([dy.concatenate([f, b]) for f, b in zip(there, back)])

    def attend(self, encoded, projected, state):
        query = self.w2 * dy.concatenate(list(state.s()))
        weights = dy.softmax(dy.transpose(self.v * dy.tanh(dy.colwise_add(projected, query))))
        return encoded * weights

    def start(self, word):
        encoded = self.encode(word)
        last = self.output_table[NUMBER[EOS]]
        state = self.decoder.initial_state().add_input(dy.concatenate([dy.zeros(24), last]))
        return encoded, self.w1 * encoded, state, last

    def loss(self, word, target):
        encoded, projected, state, last = self.start(word)
        losses = []
        for c in [*target, EOS]:
            context = self.attend(encoded, projected, state)
            state = state.add_input(dy.concatenate([context, last]))
            logits = self.R * state.output() + self.b
            losses.append(dy.pickneglogsoftmax(logits, NUMBER[c]))
            last = self.output_table[NUMBER[c]]
        return dy.esum(losses)

    def translate(self, word):
        encoded, projected, state, last = self.start(word)
        out = ""
        while len(out) < 2 * len(word):
            context = self.attend(encoded, projected, state)
            state = state.add_input(dy.concatenate([context, last]))
            best = int(np.argmax(dy.softmax(self.R * state.output() + self.b).npvalue()))
            if CHARS[best] == EOS:
                break
            out += CHARS[best]
            last = self.output_table[best]
        return out


def initialize(model, seed):
    rng = np.random.RandomState(seed)
    for p in model.parameters_list():
        p.set_value(rng.uniform(-0.4, 0.4, p.shape()))
    for table in model.lookup_parameters_list():
        table.init_from_array(rng.uniform(-0.4, 0.4, table.shape()))


def main(path, load):
    words = [a + b + c for a in "abc" for b in "cde" for c in ("", "a", "e")]
    model = dy.ParameterCollection()
    translator = Translator(model)
    if load:
        model.populate(path)
    else:
        initialize(model, 11)
        trainer = dy.MomentumSGDTrainer(model, 0.02, 0.8)
        for epoch in range(4):
            total = 0.0
            for word in words:
                dy.renew_cg()
                loss = translator.loss(word, word[::-1])
                total += loss.value()
                loss.backward()
                trainer.update()
            print("epoch", epoch, "loss", total)
        model.save(path)
    dy.renew_cg()
    print("final", sum(translator.loss(w, w[::-1]).value() for w in words))
    dy.renew_cg()
    print("output", " ".join(translator.translate(w) or "-" for w in words[:6]))


if __name__ == "__main__":
    main(sys.argv[1], "--load" in sys.argv)
