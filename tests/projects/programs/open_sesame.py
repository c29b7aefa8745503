"""Spans with labels by a semi-Markov model, as open-sesame uses DyNet.

All names come from `from dynet import *`; parameters stand in expressions without a call, also in `concatenate`; biases
are matrices of one column; pretrained vectors are not updated, by `nobackprop` or `update=False`; scores of all spans
are expressions in a dictionary, `logsumexp` over lists sums them up, costs are inputs; models are an ensemble.

python open_sesame.py train MODEL NUMBER | python open_sesame.py predict MODEL NUMBER...
"""

import json
import math
import os
import random
import sys
from collections import defaultdict, namedtuple

import numpy as np
from common import chunks, initialize, show, size, vocabulary
from dynet import *  # noqa: F403
from dynet import (
    AdamTrainer,
    LSTMBuilder,
    Model,
    concatenate,
    dropout,
    esum,
    exp,
    log,
    logsumexp,
    lookup,
    nobackprop,
    noise,
    rectify,
    renew_cg,
    scalarInput,
)

Factor = namedtuple("Factor", "begin end label")
LONGEST, NOTHING, ARGUMENT = 3, 0, 1


class Labeler:
    def __init__(self, words, pretrained, seed):
        self.words, self.pretrained = words, pretrained
        self.model = Model()
        self.adam = AdamTrainer(self.model, 0.0005, 0.01, 0.9999, 1e-8)
        wide, hidden = size(6), size(8)
        self.v_x = self.model.add_lookup_parameters((len(words), wide))
        self.fe_x = self.model.add_lookup_parameters((2, size(4)))
        self.sp_x = self.model.add_lookup_parameters((LONGEST + 1, size(2)))
        self.e_x = self.model.add_lookup_parameters((len(words), wide))
        self.u_x = self.model.add_lookup_parameters((1, wide), init="glorot")
        self.w_e = self.model.add_parameters((hidden, wide))
        self.b_e = self.model.add_parameters((hidden, 1))
        self.w_i = self.model.add_parameters((hidden, 2 * wide + 1))
        self.b_i = self.model.add_parameters((hidden, 1))
        self.base = [LSTMBuilder(2, hidden, hidden, self.model) for _ in range(2)]
        self.spans = [LSTMBuilder(1, 2 * hidden, hidden, self.model) for _ in range(2)]
        self.w_z = self.model.add_parameters((hidden, size(4) + 2 * hidden + 2 + size(2)))
        self.b_z = self.model.add_parameters((hidden, 1))
        self.w_f = self.model.add_parameters((1, hidden))
        self.b_f = self.model.add_parameters((1, 1))
        initialize(self.model, seed)
        for word, vector in pretrained.items():
            self.e_x.init_row(word, vector)

    def embed(self, words, train):
        inputs = []
        for i, w in enumerate(words):
            vector = noise(self.v_x[w], 0.0) if train else self.v_x[w]
            given = lookup(self.e_x, w, update=False) if w in self.pretrained else self.u_x[0]
            inputs.append(self.w_i * concatenate([vector, given, scalarInput(i + 1)]) + self.b_i)
            if w in self.pretrained:
                inputs[-1] = inputs[-1] + self.w_e * nobackprop(self.e_x[w]) + self.b_e
        inputs = [rectify(x) for x in inputs]
        if train:
            for builder in self.base:
                builder.set_dropout(0.0)
        there = self.base[0].initial_state().transduce(inputs)
        back = self.base[1].initial_state().transduce(reversed(inputs))
        return [concatenate([f, b]) for f, b in zip(there, reversed(back))]

    def factors(self, words, train):
        vectors, n = self.embed(words, train), len(words)
        scores = {}
        ends = [self.spans[1].initial_state().transduce(reversed(vectors[: j + 1])) for j in range(n)]
        for i in range(n):
            begins = self.spans[0].initial_state().transduce(vectors[i:])
            for j in range(i, min(n, i + LONGEST)):
                width = self.sp_x[j - i + 1]
                lengths = [scalarInput(i == j), scalarInput(math.log(j - i + 1))]
                span = concatenate([begins[j - i], ends[j][j - i], *lengths, width])
                for label in (NOTHING, ARGUMENT):
                    x = concatenate([self.fe_x[label], span])
                    score = self.w_f * rectify(self.w_z * x + self.b_z) + self.b_f
                    scores[Factor(i, j, label)] = dropout(score, 0.0) if train else score
        return scores

    @staticmethod
    def partition(scores, gold, n):
        """Log-sum-exp over all segmentations; those of wrong spans cost 1 each."""
        alphas = []
        for j in range(n):
            found = []
            for i in range(max(0, j - LONGEST + 1), j + 1):
                for label in (NOTHING, ARGUMENT):
                    factor = Factor(i, j, label)
                    score = scores[factor] + scalarInput(0 if factor in gold else 1)
                    found.append(alphas[i - 1] + score if i else score)
            alphas.append(logsumexp(found))
        return alphas[n - 1]

    def loss(self, words, spans):
        gold, last = [], 0
        for first, end in spans:
            gold += [Factor(i, i, NOTHING) for i in range(last, first)] + [Factor(first, end, ARGUMENT)]
            last = end + 1
        gold += [Factor(i, i, NOTHING) for i in range(last, len(words))]
        scores = self.factors(words, True)
        return self.partition(scores, gold, len(words)) - esum([scores[f] for f in gold])


def best_path(scores, n):
    """The best segmentation, of scores that are numbers."""
    best, back = [0.0], []
    for j in range(n):
        options = [
            (best[i] + scores[Factor(i, j, label)], i, label)
            for i in range(max(0, j - LONGEST + 1), j + 1)
            for label in (NOTHING, ARGUMENT)
        ]
        score, i, label = max(options)
        best.append(score)
        back.append((i, label))
    found, j = [], n - 1
    while j >= 0:
        i, label = back[j]
        if label == ARGUMENT:
            found.insert(0, (i, j))
        j = i - 1
    return found


def main(mode, path, *numbers):
    random.seed(8)
    sentences = chunks(size(10), 27)
    words = vocabulary((w for s in sentences for w in s[0]), "unknown")
    pretrained = {i: np.random.RandomState(i).normal(0, 0.3, size(6)) for i in range(1, len(words)) if i % 2}
    instances = [([words[w] for w in s[0]], s[2]) for s in sentences]
    if mode == "train":
        os.makedirs(path, exist_ok=True)
        labeler = Labeler(words, pretrained, 28 + int(numbers[0]))
        lowest = math.inf
        for epoch in range(4):
            total = 0.0
            for numbered, spans in instances:
                renew_cg()
                loss = labeler.loss(numbered, spans)
                total += loss.scalar_value()
                loss.backward()
                labeler.adam.update()
            labeler.adam.status()
            show("loss", epoch, total)
            if total < lowest:
                lowest = total
                labeler.model.save(os.path.join(path, numbers[0]))
                with open(os.path.join(path, "configuration.json"), "w", encoding="utf-8") as file:
                    json.dump({"words": len(words)}, file)
        return
    models = []
    for number in numbers:
        models.append(Labeler(words, pretrained, 0))
        models[-1].model.populate(os.path.join(path, number))
    for numbered, _ in instances[:5]:
        renew_cg()
        together = defaultdict(list)
        for labeler in models:
            for factor, score in labeler.factors(numbered, False).items():
                together[factor].append(exp(score))
        scores = {f: log(esum(s)).scalar_value() for f, s in together.items()}
        show("spans", *(i for span in best_path(scores, len(numbered)) for i in span), float(sum(scores.values())))


if __name__ == "__main__":
    main(*sys.argv[1:])
