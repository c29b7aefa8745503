"""A recurrent neural network grammar with a stack LSTM, as programs with DyNet are written for it.

Derivations are objects that share states of an LSTM, whose `prev()` pops the stack; a constituent is composed by two
LSTMs; words are drawn from a class-factored softmax that reads its clusters from a file, actions from a softmax over
what is allowed; a word-synchronous beam keeps derivations with the values of their scores and expressions.

python rnng.py train MODEL | python rnng.py parse MODEL
"""

import random
import sys
from math import log

import dynet as dy
import numpy as np
from common import initialize, show, size

SHIFT, OPEN, CLOSE = range(3)
LABELS = ["S", "X", "Y"]
WORDS = [f"{c}{i}" for c in "abc" for i in range(4)]


class Symbol:
    """An element of the stack; open constituents have no vector of their whole yet."""

    def __init__(self, label, vector, open=False):
        self.label, self.vector, self.open = label, vector, open


def make_trees(count, seed):
    """Derivations: lists of words, labels of constituents that open, and None where one closes."""
    rng = random.Random(seed)

    def grow(label, depth):
        steps = [("open", label)]
        for _ in range(rng.randint(1, 3)):
            if depth < 2 and rng.random() < 0.5:
                steps += grow(rng.choice(LABELS[1:]), depth + 1)
            else:
                steps.append(("word", f"{'abc'[LABELS.index(label)]}{rng.randint(0, 3)}"))
        return [*steps, ("close", None)]

    return [grow("S", 0) for _ in range(count)]


class Derivation:
    def __init__(self, stack, state, score, opened, last=None, history=()):
        self.stack, self.state, self.score = stack, state, score
        self.opened, self.last, self.history = opened, last, history

    def copy(self):
        return Derivation(list(self.stack), self.state, self.score, self.opened, self.last, self.history)


class Grammar:
    def __init__(self, clusters):
        self.model = dy.ParameterCollection()
        wide, hidden = size(8), size(8)
        self.word_table = self.model.add_lookup_parameters((len(WORDS), wide))
        self.label_table = self.model.add_lookup_parameters((len(LABELS), wide))
        self.lstm = dy.LSTMBuilder(1, wide, hidden, self.model)
        self.there, self.back = (dy.LSTMBuilder(1, wide, wide, self.model) for _ in range(2))
        self.W_compose = self.model.add_parameters((wide, 2 * wide))
        self.b_compose = self.model.add_parameters(wide)
        self.W_action, self.b_action = self.model.add_parameters((3, hidden)), self.model.add_parameters(3)
        self.labels = dy.StandardSoftmaxBuilder(hidden, len(LABELS), self.model, True)
        self.numbers = {w: i for i, w in enumerate(WORDS)}
        self.words = dy.ClassFactoredSoftmaxBuilder(hidden, clusters, self.numbers, self.model, True)
        self.start = self.model.add_parameters(wide)
        initialize(self.model, 31)

    def begin(self):
        dy.renew_cg()
        return Derivation([], self.lstm.initial_state().add_input(self.start.expr()), 0.0, 0)

    def actions(self, d, words_left):
        allowed = [SHIFT] if d.opened and words_left else []
        if not d.stack or (d.opened and d.opened < 4 and words_left and d.last != OPEN):
            allowed.append(OPEN)
        if d.opened and not d.stack[-1].open and (d.opened > 1 or not words_left):
            allowed.append(CLOSE)
        return allowed

    def action_scores(self, d, allowed):
        # DyNet leaves the infinities of a restricted log_softmax in memory, where later nodes read them.
        penalty = dy.inputVector([0 if action in allowed else -100 for action in range(3)])
        return dy.log_softmax(self.W_action * d.state.output() + self.b_action + penalty)

    def push(self, d, symbol):
        d.stack.append(symbol)
        d.state = d.state.add_input(symbol.vector)

    def shift(self, d, word):
        self.push(d, Symbol(word, self.word_table[self.numbers[word]]))
        d.last = SHIFT

    def open(self, d, label):
        self.push(d, Symbol(label, self.label_table[label], open=True))
        d.opened, d.last = d.opened + 1, OPEN

    def close(self, d):
        children = []
        while not d.stack[-1].open:
            children.insert(0, d.stack.pop())
            d.state = d.state.prev()
        head = d.stack.pop()
        d.state = d.state.prev()
        vectors = [c.vector for c in children]
        there = self.there.initial_state().add_input(head.vector).add_inputs(vectors)[-1].output()
        back = self.back.initial_state().add_input(head.vector).add_inputs(vectors[::-1])[-1].output()
        both = dy.concatenate([there, back])
        self.push(d, Symbol(head.label, dy.rectify(self.W_compose * both + self.b_compose)))
        d.opened, d.last = d.opened - 1, CLOSE

    def loss(self, steps):
        d, losses = self.begin(), []
        left = sum(kind == "word" for kind, _ in steps)
        for kind, value in steps:
            allowed = self.actions(d, left) if kind != "word" else [SHIFT, OPEN, CLOSE]
            action = {"word": SHIFT, "open": OPEN, "close": CLOSE}[kind]
            allowed = sorted({*allowed, action})
            losses.append(-dy.pick(self.action_scores(d, allowed), action))
            if kind == "word":
                losses.append(self.words.neg_log_softmax(d.state.output(), self.numbers[value]))
                self.shift(d, value)
                left -= 1
            elif kind == "open":
                number = LABELS.index(value)
                losses.append(self.labels.neg_log_softmax(d.state.output(), number))
                self.open(d, number)
            else:
                self.close(d)
        return dy.esum(losses)

    def parse(self, words, beam=3):
        """The labels and closings of the best derivation: before each word, `beam` derivations are kept."""
        agenda = [self.begin()]
        for position in range(len(words) + 1):
            left, ready = len(words) - position, []
            for _ in range(6):
                following = []
                for d in agenda:
                    allowed = self.actions(d, left)
                    if not allowed:
                        ready.append(d)
                        continue
                    values = self.action_scores(d, allowed).npvalue()
                    for action in allowed:
                        new = d.copy()
                        new.score += float(values[action])
                        if action == SHIFT:
                            loss = self.words.neg_log_softmax(d.state.output(), self.numbers[words[position]])
                            new.score -= loss.value()
                            ready.append(new)
                        elif action == CLOSE:
                            new.history += (")",)
                            self.close(new)
                            following.append(new)
                        else:
                            scores = self.labels.full_log_distribution(d.state.output()).npvalue()
                            best = int(np.argmax(scores))
                            new.score += float(scores[best])
                            new.history += (LABELS[best],)
                            self.open(new, best)
                            following.append(new)
                agenda = sorted(following, key=lambda d: -d.score)[:beam]
            agenda = sorted(ready, key=lambda d: -d.score)[:beam]
            if left:
                for d in agenda:
                    self.shift(d, words[position])
                    d.history += (words[position],)
        return agenda[0] if agenda else None


def main(mode, path):
    with open(path + ".clusters", "w", encoding="utf-8") as file:
        file.writelines(f"{w[0]} {w}\n" for w in WORDS)
    random.seed(10)
    trees = make_trees(size(16), 32)
    grammar = Grammar(path + ".clusters")
    if mode == "parse":
        grammar.model.populate(path)
        for steps in trees[:6]:
            best = grammar.parse([value for kind, value in steps if kind == "word"])
            show("parse", *(best.history if best else ()), best.score if best else -1.0)
        return
    trainer = dy.SimpleSGDTrainer(grammar.model, learning_rate=0.05)
    for epoch in range(4):
        random.shuffle(trees)
        total, words = 0.0, 0
        for steps in trees:
            loss = grammar.loss(steps)
            total += loss.value()
            words += sum(kind == "word" for kind, _ in steps)
            loss.backward()
            trainer.update()
        trainer.learning_rate *= 0.95
        show("loss", epoch, total, total / words / log(2))
    grammar.model.save(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
