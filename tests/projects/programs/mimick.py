"""Vectors of words from their letters, as Mimick uses DyNet.

A convolution with a weight of four axes and k-max pooling, or two LSTMs; the program's own option parser swallows
`--dynet-mem`; each prediction begins a new graph, and its parameters are put into it one by one; the loss is a squared
distance to a given vector; parameters have names; the two networks' files are written and read.

python mimick.py lstm|cnn --model-out FILE [--model-in FILE] [--dynet-mem MB]
"""

import argparse
import pickle
import random

import dynet as dy
import numpy as np
from common import initialize, pairs, show, size, vocabulary

WINDOW, POOLED = 3, 1


class LSTMMimick:
    def __init__(self, letters, vector_dim, file=None):
        self.letters = letters
        self.model = dy.Model()
        narrow, hidden = size(4), size(8)
        self.table = self.model.add_lookup_parameters((len(letters), narrow), name="ce")
        self.forward = dy.LSTMBuilder(2, narrow, hidden, self.model)
        self.backward = dy.LSTMBuilder(2, narrow, hidden, self.model)
        self.make_output(hidden * 2, vector_dim, file)

    def make_output(self, inputs, vector_dim, file):
        self.H = self.model.add_parameters((vector_dim, inputs), name="H")
        self.Hb = self.model.add_parameters(vector_dim, name="Hb")
        self.O = self.model.add_parameters((vector_dim, vector_dim), name="O")
        self.Ob = self.model.add_parameters(vector_dim, name="Ob")
        if file is None:
            initialize(self.model, 13)
        else:
            self.model.populate(file)

    def read(self, numbers):
        vectors = [self.table[n] for n in numbers]
        there = self.forward.initial_state().transduce(vectors)
        back = self.backward.initial_state().transduce(reversed(vectors))
        return dy.concatenate([there[-1], back[-1]])

    def predict(self, numbers):
        dy.renew_cg()
        H, Hb, out, out_bias = (dy.parameter(p) for p in (self.H, self.Hb, self.O, self.Ob))
        return out * dy.tanh(H * self.read([0, *numbers, 0]) + Hb) + out_bias

    def set_dropout(self, p):
        self.forward.set_dropout(p)
        self.backward.set_dropout(p)

    def disable_dropout(self):
        self.forward.disable_dropout()
        self.backward.disable_dropout()

    def save(self, path):
        self.model.save(path)
        with open(path + ".c2i", "wb") as file:
            pickle.dump(self.letters, file)


class CNNMimick(LSTMMimick):
    def __init__(self, letters, vector_dim, file=None):
        self.letters = letters
        self.model = dy.Model()
        self.narrow, self.hidden = size(4), size(8)
        self.table = self.model.add_lookup_parameters((len(letters), self.narrow), name="ce")
        self.conv = self.model.add_parameters((1, WINDOW, self.narrow, self.hidden), name="conv")
        self.conv_bias = self.model.add_parameters((self.hidden), name="convb")
        self.make_output(self.hidden * POOLED, vector_dim, file)

    def read(self, numbers):
        conv, bias = dy.parameter(self.conv), dy.parameter(self.conv_bias)
        numbers = numbers + [0] * (POOLED - len(numbers) + WINDOW - 1)
        columns = dy.concatenate_cols([self.table[n] for n in numbers])
        image = dy.reshape(dy.transpose(columns), (1, len(numbers), self.narrow))
        found = dy.rectify(dy.conv2d_bias(image, conv, bias, [1, 1], is_valid=True))
        return dy.reshape(dy.kmax_pooling(found, POOLED, d=1), (self.hidden * POOLED,))

    def set_dropout(self, p):
        pass

    def disable_dropout(self):
        pass


def main():
    options = argparse.ArgumentParser()
    options.add_argument("network", choices=["lstm", "cnn"])
    options.add_argument("--model-out", default="model.bin")
    options.add_argument("--model-in")
    options.add_argument("--dropout", default=-1, type=float)
    options.add_argument("--dynet-mem", help="for the library")
    options = options.parse_args()
    rng = np.random.RandomState(4)
    random.seed(4)
    words = sorted({w for w, _ in pairs(size(16), 14)})
    letters = vocabulary((c for w in words for c in w), "<pad>")
    of_letter = rng.normal(0, 0.5, (len(letters), size(6)))
    numbers = {w: [letters[c] for c in w] for w in words}
    vectors = {w: of_letter[numbers[w]].mean(0) for w in words}
    network = {"lstm": LSTMMimick, "cnn": CNNMimick}[options.network](letters, size(6), options.model_in)
    trainer = dy.MomentumSGDTrainer(network.model, 0.01, 0.9)
    cut = len(words) - 3
    for epoch in range(0 if options.model_in else 4):
        train = words[:cut]
        random.shuffle(train)
        if options.dropout > 0:
            network.set_dropout(options.dropout)
        total = 0.0
        for word in train:
            loss = dy.squared_distance(network.predict(numbers[word]), dy.inputVector(vectors[word]))
            total += loss.value()
            loss.backward()
            trainer.update()
        network.disable_dropout()
        held_out = 0.0
        for word in words[cut:]:
            held_out += dy.squared_distance(network.predict(numbers[word]), dy.inputVector(vectors[word])).value()
        show("loss", epoch, total, held_out)
    network.save(options.model_out)
    for word in words[cut:]:
        v = np.array(network.predict(numbers[word]).value())
        nearest = max(words, key=lambda w: v.dot(vectors[w]) / np.linalg.norm(vectors[w]))
        show("nearest", word, nearest, float(np.linalg.norm(v - vectors[word])))


if __name__ == "__main__":
    main()
