"""Entities and their relations, as jointRE uses DyNet.

A conditional random field written with the library's elementary operations: transitions are rows of a lookup table,
scores are read at each step to find the greatest, log-sum-exp subtracts it; Viterbi paths are found on values while the
score of the path stays an expression; relations are scored by a bilinear form; options are pickled beside the model.

python jointre.py train MODEL [neg_log|viterbi [adam|sgd]] | python jointre.py predict MODEL
"""

import pickle
import random
import sys

import dynet
import numpy as np
from common import chunks, initialize, show, size, vocabulary

FAR = -1e10


class CRF:
    def __init__(self, model, tags):
        self.tags, self.n = tags, len(tags) + 2
        self.first, self.last = len(tags), len(tags) + 1
        self.transitions = model.add_lookup_parameters((self.n, self.n), name="transitions")

    def padded(self, observations):
        return [dynet.concatenate([o, dynet.inputVector([FAR, FAR])], d=0) for o in observations]

    def score(self, observations, tags):
        total = dynet.scalarInput(0)
        path = [self.first, *tags]
        for i, observation in enumerate(observations):
            step = dynet.pick(self.transitions[path[i + 1]], path[i])
            total = total + step + dynet.pick(observation, path[i + 1])
            total.value()
        return total + dynet.pick(self.transitions[self.last], path[-1])

    def log_sum_exp(self, scores):
        greatest = dynet.pick(scores, int(np.argmax(scores.npvalue())))
        shifted = scores - dynet.concatenate([greatest] * self.n)
        return greatest + dynet.log(dynet.sum_dim(dynet.transpose(dynet.exp(shifted)), [1]))

    def start(self):
        return dynet.inputVector([0 if i == self.first else FAR for i in range(self.n)])

    def partition(self, observations):
        alphas = self.start()
        for observation in observations:
            following = []
            for tag in range(self.n):
                emission = dynet.concatenate([dynet.pick(observation, tag)] * self.n)
                following.append(self.log_sum_exp(alphas + self.transitions[tag] + emission))
            alphas = dynet.concatenate(following)
        return self.log_sum_exp(alphas + self.transitions[self.last])

    def viterbi(self, observations):
        scores, pointers = self.start(), []
        rows = [self.transitions[i] for i in range(self.n)]
        for observation in observations:
            back, best = [], []
            for tag in range(self.n):
                candidates = scores + rows[tag]
                back.append(int(np.argmax(candidates.npvalue())))
                best.append(dynet.pick(candidates, back[-1]))
            scores = dynet.concatenate(best) + observation
            pointers.append(back)
        final = scores + rows[self.last]
        tag = int(np.argmax(final.npvalue()))
        score, path = dynet.pick(final, tag), [tag]
        for back in reversed(pointers):
            tag = back[tag]
            path.append(tag)
        assert path.pop() == self.first
        return path[::-1], score

    def loss(self, observations, tags, viterbi):
        observations = self.padded(observations)
        if not viterbi:
            return self.partition(observations) - self.score(observations, tags)
        path, score = self.viterbi(observations)
        return dynet.scalarInput(0) if path == tags else score - self.score(observations, tags)


class Extractor:
    def __init__(self, words, tags, viterbi, trainer):
        self.words, self.tags, self.viterbi = words, tags, viterbi
        self.model = dynet.ParameterCollection()
        if trainer == "adam":  # a large eps: where a gradient is 0 in theory, Adam would make a step of its rounding
            self.trainer = dynet.AdamTrainer(self.model, 0.01, eps=1e-4)
        else:
            self.trainer = dynet.SimpleSGDTrainer(self.model, 0.1)
        wide, hidden = size(8), size(8)
        self.table = self.model.add_lookup_parameters((len(words), wide))
        self.tag_table = self.model.add_lookup_parameters((len(tags), size(4)))
        lstm = lambda n: dynet.VanillaLSTMBuilder(1, n, hidden, self.model)  # noqa: E731
        self.tag_lstms = lstm(wide), lstm(wide)
        self.relation_lstms = lstm(wide + size(4)), lstm(wide + size(4))
        self.W, self.b = self.model.add_parameters((len(tags), 2 * hidden)), self.model.add_parameters(len(tags))
        self.crf = CRF(self.model, tags)
        self.bilinear = self.model.add_parameters((2 * 2 * hidden, 2 * hidden))
        self.linear = self.model.add_parameters((2, 4 * hidden))
        self.bias = self.model.add_parameters(2)
        initialize(self.model, 15)

    def encode(self, lstms, inputs):
        there = lstms[0].initial_state().transduce(inputs)
        back = lstms[1].initial_state().transduce(reversed(inputs))
        return [dynet.concatenate(list(pair)) for pair in zip(there, reversed(back))]

    def relation(self, a, b):
        n = a.dim()[0][0]
        both = dynet.reshape(self.bilinear.expr() * b, (n, 2))
        return dynet.softmax(
            dynet.transpose(dynet.transpose(a) * both)
            + self.linear.expr() * dynet.concatenate([a, b])
            + self.bias.expr()
        )

    def run(self, words, tags=None, spans=None):
        vectors = [self.table[self.words.get(w, 0)] for w in words]
        observations = [self.W.expr() * x + self.b.expr() for x in self.encode(self.tag_lstms, vectors)]
        train = tags is not None
        if train:
            path = [self.tags[t] for t in tags]
            losses = [self.crf.loss(observations, path, self.viterbi)]
        else:
            path, _ = self.crf.viterbi(self.crf.padded(observations))
        inputs = [dynet.concatenate([x, self.tag_table[t]]) for x, t in zip(vectors, path)]
        encoded = self.encode(self.relation_lstms, inputs)
        ends = [j for _, j in spans] if train else [i for i, t in enumerate(path) if t == self.tags["B"]]
        found = []
        for a, b in zip(ends, ends[1:]):
            distribution = self.relation(encoded[a], encoded[b])
            if train:
                losses.append(-dynet.log(dynet.pick(distribution, int(b - a > 2))))
            else:
                found.append(int(np.argmax(distribution.value())))
        return losses if train else (path, found)


def main(mode, path, loss="neg_log", trainer="adam"):
    random.seed(5)
    sentences = chunks(size(16), 16)
    if mode == "predict":
        with open(path + ".options", "rb") as file:
            options = pickle.load(file)
        extractor = Extractor(**options)
        extractor.model.populate(path)
        for words, _, _ in sentences[:8]:
            dynet.renew_cg()
            show("predicted", *extractor.run(words))
        return
    tags = vocabulary("BIO")
    options = {
        "words": vocabulary((w for s in sentences for w in s[0]), "unknown"),
        "tags": tags,
        "viterbi": loss == "viterbi",
        "trainer": trainer,
    }
    extractor = Extractor(**options)
    for epoch in range(4):
        random.shuffle(sentences)
        total = 0.0
        for sentence in sentences:
            loss = dynet.esum(extractor.run(*sentence))
            total += loss.scalar_value()
            loss.backward()
            extractor.trainer.update()
            dynet.renew_cg()
        show("loss", epoch, total)
    extractor.model.save(path)
    with open(path + ".options", "wb") as file:
        pickle.dump(options, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
