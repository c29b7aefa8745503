"""A tagger and graph parser trained together, as jPTDP uses DyNet.

All names come from `from dynet import *`; the scores of all pairs of words are read one by one into an array, in
which Eisner's algorithm finds the best tree, and the losses are differences of the same expressions; the tag that was
predicted chooses a row of a table in the same graph; builders keep states from step to step.

python jptdp.py train MODEL | python jptdp.py predict MODEL
"""

import random
import sys

import dynet
import numpy as np
from common import initialize, projective_heads, show, size, treebank, vocabulary
from dynet import *  # noqa: F403
from dynet import (
    AdamTrainer,
    LSTMBuilder,
    ParameterCollection,
    VanillaLSTMBuilder,
    cmult,
    concatenate,
    esum,
    renew_cg,
    softmax,
    tanh,
)


class Entry:
    def __init__(self, token):
        self.token = token
        self.head_vector = self.dependent_vector = None


class Layer:
    def __init__(self, model, inputs, outputs, activation=dynet.tanh):
        self.W, self.b = model.add_parameters((outputs, inputs)), model.add_parameters(outputs)
        self.activation = activation

    def __call__(self, x):
        return self.activation(dynet.parameter(self.W) * x + dynet.parameter(self.b))


class Sequences:
    """A builder that runs over whole sequences."""

    def __init__(self, builder):
        self.builder = builder

    def __call__(self, inputs):
        return self.builder.initial_state().transduce(inputs)


def pick_neg_log(distribution, gold):
    return -dynet.log(dynet.pick(distribution, gold))


class Learner:
    def __init__(self, words, letters, tags, relations):
        self.model = ParameterCollection()
        self.trainer = AdamTrainer(self.model)
        self.words, self.letters, self.tags, self.relations = words, letters, tags, relations
        wide, narrow, hidden = size(8), size(4), size(6)
        self.word_table = self.model.add_lookup_parameters((len(words), wide))
        self.letter_table = self.model.add_lookup_parameters((len(letters), narrow))
        self.tag_table = self.model.add_lookup_parameters((len(tags), narrow))
        inputs = wide + 2 * narrow
        lstm = lambda n: VanillaLSTMBuilder(1, n, hidden, self.model)  # noqa: E731
        self.tag_lstms = [(lstm(inputs), lstm(inputs)), (lstm(2 * hidden), lstm(2 * hidden))]
        self.parse_lstms = [(lstm(inputs + narrow), lstm(inputs + narrow)), (lstm(2 * hidden), lstm(2 * hidden))]
        self.tagger = Layer(self.model, 2 * hidden, len(tags), softmax)
        self.hidden_bias = self.model.add_parameters(hidden * 8)
        self.hidden_layer = self.model.add_parameters((hidden, hidden * 8))
        self.hidden_bias2 = self.model.add_parameters(hidden)
        self.out_layer = self.model.add_parameters((1, hidden))
        self.relation_layer = Layer(self.model, hidden * 8, hidden)
        self.labeler = Layer(self.model, hidden, len(relations), softmax)
        self.spell = Sequences(LSTMBuilder(1, narrow, narrow, self.model))
        initialize(self.model, 7)

    def embed(self, entries, train):
        for entry in entries:
            number = self.words.get(entry.token.form, 0) if entry.token else 1
            if train and random.random() < 0.2:
                number = 0
            letters = [self.letters.get(c, 0) for c in (entry.token.form if entry.token else "*")]
            last = self.spell([self.letter_table[c] for c in letters])[-1]
            first = self.spell([self.letter_table[c] for c in reversed(letters)])[-1]
            entry.vector = concatenate(list(filter(None, [self.word_table[int(number)], last, first])))
            if train:
                entry.vector = dynet.dropout(entry.vector, 0.0)

    def run(self, lstms, vectors):
        for forward, backward in lstms:
            f, b = forward.initial_state(), backward.initial_state()
            after, before = [], []
            for x, y in zip(vectors, reversed(vectors)):
                f, b = f.add_input(x), b.add_input(y)
                after.append(f.output())
                before.insert(0, b.output())
            vectors = [concatenate([x, y]) for x, y in zip(after, before)]
        return vectors

    def pair(self, head, dependent):
        return concatenate([head, dependent, dynet.abs(head - dependent), cmult(head, dependent)])

    def score(self, head, dependent):
        hidden = self.hidden_layer.expr() * tanh(self.pair(head, dependent) + self.hidden_bias.expr())
        return self.out_layer.expr() * tanh(self.hidden_bias2.expr() + hidden)

    def relation(self, head, dependent):
        return self.labeler(self.relation_layer(self.pair(head, dependent)))

    def parse(self, sentence, train):
        entries = [Entry(None), *map(Entry, sentence)]
        self.embed(entries, train)
        distributions = [self.tagger(x) for x in self.run(self.tag_lstms, [e.vector for e in entries])]
        predicted = [np.argmax(d.value()) for d in distributions]
        inputs = [concatenate([e.vector, self.tag_table[t]]) for e, t in zip(entries, predicted)]
        vectors = self.run(self.parse_lstms, inputs)
        expressions = [[self.score(h, d) for d in vectors] for h in vectors]
        scores = np.array([[e.scalar_value() for e in row] for row in expressions])
        if train:
            gold = [-1, *(t.head for t in sentence)]
            for d, h in enumerate(gold):
                if h >= 0:
                    scores[h, d] -= 1
            heads = projective_heads(scores)
            tag_losses = [
                pick_neg_log(p, self.tags[e.token.tag if e.token else "root"]) for p, e in zip(distributions, entries)
            ]
            arcs = [expressions[h][d] - expressions[g][d] for d, (h, g) in enumerate(zip(heads, gold)) if h != g]
            relations = [self.relation(vectors[t.head], vectors[i]) for i, t in enumerate(sentence, 1)]
            relation_losses = [pick_neg_log(p, self.relations[t.relation]) for p, t in zip(relations, sentence)]
            return arcs + relation_losses + tag_losses, len(arcs)
        heads = projective_heads(scores)
        relations = [self.relation(vectors[h], vectors[i]) for i, h in enumerate(heads) if h >= 0]
        return [*(int(t) for t in predicted[1:]), *heads[1:], *(int(np.argmax(p.value())) for p in relations)]

    def train(self, sentences):
        wrong, total = 0, 0.0
        for sentence in sentences:
            losses, mistakes = self.parse(sentence, True)
            loss = esum(losses)
            total += loss.scalar_value()
            loss.backward()
            self.trainer.update()
            renew_cg()
            wrong += mistakes
        return wrong, total


def main(mode, path):
    random.seed(2)
    sentences = treebank(size(10), 4)
    tokens = [t for s in sentences for t in s]
    learner = Learner(
        vocabulary((t.form for t in tokens), "unknown", "root"),
        vocabulary((c for t in tokens for c in t.form), "unknown"),
        vocabulary((t.tag for t in tokens), "root"),
        vocabulary(t.relation for t in tokens),
    )
    if mode == "train":
        for epoch in range(4):
            show("loss", epoch, *learner.train(sentences))
        learner.model.save(path)
    else:
        learner.model.populate(path)
        for sentence in sentences[:6]:
            show("parse", *learner.parse(sentence, False))
            renew_cg()


if __name__ == "__main__":
    main(*sys.argv[1:3])
