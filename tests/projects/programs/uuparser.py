"""A transition parser (arc-hybrid with swap) with BiLSTM features and a dynamic oracle, as uuparser uses DyNet.

The library is imported inside a class, after the program has read its options; expressions of features that may be
missing go through `filter(None, ...)`; scores are read as values and used again as expressions; losses are collected
over several sentences in one graph; a model file is written after each epoch and read by a second run.

python uuparser.py train MODEL | python uuparser.py predict MODEL
"""

import argparse
import random
from itertools import chain
from operator import itemgetter

import numpy as np
from common import initialize, show, size, treebank, vocabulary

LEFT, RIGHT, SHIFT, SWAP, NONE = range(5)


class Item:
    """A token while it is parsed."""

    def __init__(self, number, token):
        self.id, self.token = number, token
        self.head, self.relation = (token.head, token.relation) if token else (-1, None)
        self.dependents, self.order = [], 0
        self.vectors = {}
        self.predicted = None


def items_of(sentence):
    """The tokens, with the root last, the dependents that each still has to collect, and the projective order."""
    items = [Item(i + 1, token) for i, token in enumerate(sentence)]
    root = Item(0, None)
    by_id = {0: root, **{item.id: item for item in items}}
    for item in items:
        item.above = by_id[item.head]
        item.above.dependents.append(item.id)
    order = iter(range(len(by_id)))

    def visit(item):
        below = sorted(item.dependents)
        for d in below:
            if d < item.id:
                visit(by_id[d])
        item.order = next(order)
        for d in below:
            if d > item.id:
                visit(by_id[d])

    visit(root)
    root.order = len(by_id)  # the root is at the end of the buffer
    return [*items, root]


class BiLSTM:
    def __init__(self, inputs, outputs, model, dropout=None):
        self.forward = dy.VanillaLSTMBuilder(1, inputs, outputs, model)
        self.backward = dy.VanillaLSTMBuilder(1, inputs, outputs, model)
        self.dropout = dropout

    def set_dropout(self, train):
        for builder in (self.forward, self.backward):
            if train and self.dropout is not None:
                builder.set_dropout(self.dropout)
            else:
                builder.disable_dropout()

    def last(self, sequence, train):
        self.set_dropout(train)
        there = self.forward.initial_state().transduce(sequence)
        back = self.backward.initial_state().transduce(reversed(sequence))
        return dy.concatenate([there[-1], back[-1]])

    def all(self, items, train):
        self.set_dropout(train)
        f, b = self.forward.initial_state(), self.backward.initial_state()
        for item, mirrored in zip(items, reversed(items)):
            f, b = f.add_input(item.vector), b.add_input(mirrored.vector)
            item.after, mirrored.before = f.output(), b.output()
        for item in items:
            item.vector = dy.concatenate([item.after, item.before])


class MLP:
    def __init__(self, model, inputs, hidden, outputs):
        self.W1, self.b1 = model.add_parameters((hidden, inputs)), model.add_parameters(hidden)
        self.W2, self.b2 = model.add_parameters((outputs, hidden)), model.add_parameters(outputs)

    def __call__(self, x):
        cubed = lambda h: dy.tanh(dy.cmult(dy.cmult(h, h), h))  # noqa: E731
        return self.W2.expr() * cubed(self.W1.expr() * x + self.b1.expr()) + self.b2.expr()


class Parser:
    def __init__(self, words, tags, characters, relations, options):
        global dy
        import dynet as dy

        self.model = dy.ParameterCollection()
        self.trainer = dy.AdamTrainer(self.model, alpha=options.learning_rate)
        self.words, self.tags, self.characters, self.relations = words, tags, characters, relations
        wide, narrow, self.k = size(8), size(4), 2
        self.word_table = self.model.add_lookup_parameters((len(words), wide))
        self.tag_table = self.model.add_lookup_parameters((len(tags), narrow))
        self.character_table = self.model.add_lookup_parameters((len(characters), narrow))
        inputs = wide + narrow + 2 * narrow
        self.bilstms = [BiLSTM(inputs, wide, self.model, 0.0), BiLSTM(2 * wide, wide, self.model)]
        self.W_padding = self.model.add_parameters((2 * wide, inputs))
        self.b_padding = self.model.add_parameters(2 * wide)
        self.character_lstm = BiLSTM(narrow, narrow, self.model)
        self.p_characters = self.model.add_parameters(2 * narrow)
        self.moves = MLP(self.model, 2 * wide * (self.k + 1), 2 * wide, 4)
        self.labels = MLP(self.model, 2 * wide * (self.k + 1), 2 * wide, 2 * len(relations) + 2)
        initialize(self.model, 5)
        for row in range(2, 5):  # pretrained vectors
            self.word_table.init_row(row, np.linspace(-0.3, 0.3, wide) * row)

    def begin(self):
        features = [self.word_table[1], None, self.tag_table[1], self.p_characters.expr()]
        self.padding = dy.tanh(
            self.W_padding.expr() * dy.concatenate(list(filter(None, features))) + self.b_padding.expr()
        )

    def embed(self, items, train):
        for item in items:
            if item.token is None:
                word, tag, characters = 0, 0, self.p_characters.expr()
            else:
                word, tag = self.words.get(item.token.form, 0), self.tags.get(item.token.tag, 0)
                if train and random.random() < 0.1:
                    word = 0
                letters = [self.character_table[self.characters.get(c, 0)] for c in item.token.form]
                characters = self.character_lstm.last(letters, train)
            parts = [self.word_table[word], item.vectors.get("context"), self.tag_table[tag], characters]
            item.vector = dy.concatenate(list(filter(None, parts)))
        for bilstm in self.bilstms:
            bilstm.all(items, train)

    def evaluate(self, stack, buffer, train):
        """For each kind of transition a list of (relation, transition, score, expression)."""
        top = [stack[-i - 1].vector if len(stack) > i else self.padding for i in range(self.k)]
        x = dy.concatenate([*top, buffer[0].vector])
        moves, labels = self.moves(x), self.labels(x)
        label_scores, move_scores = labels.value(), moves.value()
        allowed = [
            bool(stack) and (train or not (buffer[0].id == 0 and len(stack) > 1)),
            len(stack) > 1,
            buffer[0].id != 0,
            bool(stack) and stack[-1].id < buffer[0].id,
        ]

        def option(relation, move, label):
            expression = labels[label] + moves[move] if train else None
            return relation, move, label_scores[label] + move_scores[move], expression

        return [
            [option(r, LEFT, 2 + 2 * j) for j, r in enumerate(self.relations)] if allowed[LEFT] else [],
            [option(r, RIGHT, 3 + 2 * j) for j, r in enumerate(self.relations)] if allowed[RIGHT] else [],
            [option(None, SHIFT, 0)] if allowed[SHIFT] else [],
            [option(None, SWAP, 1)] if allowed[SWAP] else [],
        ]

    def costs(self, scores, stack, buffer):
        """The cost of each transition: the number of arcs that cannot be reached after it."""
        b, ids = buffer[0], [item.id for item in stack]
        lost = 0
        if stack:
            s0 = stack[-1]
            lost = len(s0.dependents)
            here = s0.id in s0.above.dependents
        left = lost + int(s0.head != b.id and here) if scores[LEFT] else 1
        right = lost + int(s0.head != stack[-2].id and here) if scores[RIGHT] else 1
        swap, shift = 1, 1
        if scores[SHIFT]:
            if any(item.order < b.order and item.id > b.id for item in buffer[1:]):
                shift = 0
            else:
                shift = sum(d in ids for d in b.dependents)
                shift += int(bool(stack) and b.head in ids[:-1] and b.id in b.above.dependents)
        if scores[SWAP] and s0.order > b.order:
            left, right, shift, swap = 1, 1, 1, 0
        return left, right, shift, swap, 1

    @staticmethod
    def forget(move, stack, buffer):
        """Take arcs that a transition makes impossible out of the oracle."""
        if move == SHIFT:
            b, ids = buffer[0], [item.id for item in stack]
            if b.head in ids[:-1] and b.id in b.above.dependents:
                b.above.dependents.remove(b.id)
            for d in [d for d in b.dependents if d in ids]:
                b.dependents.remove(d)
        elif move in (LEFT, RIGHT):
            s0 = stack[-1]
            s0.dependents = []
            if s0.id in s0.above.dependents:
                s0.above.dependents.remove(s0.id)

    @staticmethod
    def apply(option, stack, buffer):
        relation, move = option[:2]
        if move == SHIFT:
            stack.append(buffer.pop(0))
        elif move == SWAP:
            buffer.insert(1, stack.pop())
        else:
            child = stack.pop()
            child.predicted = (buffer[0] if move == LEFT else stack[-1]).id, relation

    def train(self, sentences):
        errors, total, mistakes = [], 0.0, 0
        self.begin()
        for sentence in sentences:
            items = items_of(sentence)
            projective = all(item.order == item.id for item in items[:-1])
            self.embed(items, True)
            stack, buffer = [], list(items)
            while not (len(buffer) == 1 and not stack):
                scores = self.evaluate(stack, buffer, True)
                scores.append([(None, NONE, -float("inf"), None)])
                costs = self.costs(scores, stack, buffer)
                right = lambda s: costs[s[1]] == 0 and (s[1] in (SHIFT, SWAP) or s[0] == stack[-1].relation)  # noqa: E731, B023
                best_right = max((s for s in chain(*scores) if right(s)), key=itemgetter(2))
                best_wrong = max((s for s in chain(*scores) if not right(s)), key=itemgetter(2))
                explore = projective and best_wrong[1] in (LEFT, RIGHT, SHIFT) and random.random() < 0.1
                chosen = best_wrong if explore and best_right[2] - best_wrong[2] < 1 else best_right
                self.forget(chosen[1], stack, buffer)
                if best_right[2] < best_wrong[2] + 1 and best_wrong[3] is not None:
                    errors.append(best_wrong[3] - best_right[3])
                    total += 1 + best_wrong[2] - best_right[2]
                    mistakes += 1
                self.apply(chosen, stack, buffer)
            if len(errors) > 25:
                self.update(errors)
                errors = []
                dy.renew_cg()
                self.begin()
        if errors:
            self.update(errors)
        dy.renew_cg()
        return total, mistakes

    def update(self, errors):
        loss = dy.esum(errors)
        loss.scalar_value()
        loss.backward()
        self.trainer.update()

    def predict(self, sentences):
        for sentence in sentences:
            self.begin()
            items = items_of(sentence)
            self.embed(items, False)
            stack, buffer, swaps = [], list(items), 0
            while not (len(buffer) == 1 and not stack):
                scores = self.evaluate(stack, buffer, False)
                best = max(chain(*(scores if swaps < 2 * len(items) else scores[:3])), key=itemgetter(2))
                swaps += best[1] == SWAP
                self.apply(best, stack, buffer)
            dy.renew_cg()
            yield [item.predicted for item in items[:-1]]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("mode", choices=["train", "predict"])
    options.add_argument("model")
    options.add_argument("--learning-rate", type=float, default=0.01)
    options.add_argument("--dynet-seed", type=int, default=0)
    options.add_argument("--dynet-mem", type=int)
    options = options.parse_args()
    random.seed(1)
    sentences = treebank(size(16), 2, crossing=True)
    tokens = [token for sentence in sentences for token in sentence]
    parser = Parser(
        vocabulary((t.form for t in tokens), "unknown", "padding"),
        vocabulary((t.tag for t in tokens), "unknown", "padding"),
        vocabulary((c for t in tokens for c in t.form), "unknown"),
        sorted({t.relation for t in tokens}),
        options,
    )
    if options.mode == "train":
        for epoch in range(4):
            random.shuffle(sentences)
            total, mistakes = parser.train(sentences)
            show("loss", epoch, mistakes, float(total))
            parser.model.save(options.model + str(epoch))
    else:
        parser.model.populate(options.model + "3")
        trees = list(parser.predict(sentences))
        right = sum(p == (t.head, t.relation) for s, tree in zip(sentences, trees) for t, p in zip(s, tree))
        show("arcs", right, len(tokens))


if __name__ == "__main__":
    main()
