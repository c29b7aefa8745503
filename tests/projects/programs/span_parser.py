"""A top-down constituency parser that scores spans, as the minimal span parser uses DyNet.

The parser and its feedforward networks are classes with `param_collection`, `spec` and `from_spec`, which `dy.save` and
`dy.load` write and make again; encodings of spans are kept by `lru_cache`; splits are scored as a batch; the parser
takes the steps that it predicts, and a dynamic oracle says what was best.

python span_parser.py train MODEL | python span_parser.py test MODEL
"""

import functools
import random
import sys

import dynet as dy
import numpy as np
from common import initialize, show, size, vocabulary

LABELS = ["", "S", "X", "Y"]


def make_trees(count, seed):
    """Sentences with the labels and splits of their spans: (words, {(left, right): (label, splits)})."""
    rng = random.Random(seed)
    sentences = []
    for _ in range(count):
        words, spans = [], {}

        def grow(left, depth, words=words, spans=spans):
            """Add a constituent that begins at `left`; return its end."""
            if depth > 3 or depth and rng.random() < 0.4:
                words.append(rng.choice("abc") + str(depth % 2))
                if rng.random() < 0.3:
                    spans[left, left + 1] = "X"
                return left + 1
            middle = grow(left, depth + 1)
            right = grow(middle, depth + 1)
            if rng.random() < 0.3:
                right = grow(right, depth + 1)
            spans[left, right] = "S" if not depth else "XY"[depth % 2]
            return right

        grow(0, 0)
        sentences.append((words, spans))
    return sentences


class Gold:
    """The best label for any span."""

    def __init__(self, spans):
        self.spans = spans

    def label(self, left, right):
        return self.spans.get((left, right), "")

    def splits(self, left, right):
        """Points inside a span where no gold constituent is cut."""
        inside = [s for s in self.spans if left <= s[0] and s[1] <= right and s != (left, right)]
        return [m for m in range(left + 1, right) if not any(a < m < b for a, b in inside)] or [left + 1]


def augment(scores, best):
    """Add 1 to all scores but the best one's."""
    shape = scores.dim()[0]
    increment = np.ones(shape)
    increment[best] = 0
    return scores + dy.inputVector(increment)


class Feedforward:
    def __init__(self, model, inputs, hidden, outputs):
        self.spec = {"inputs": inputs, "hidden": hidden, "outputs": outputs}
        self.model = model.add_subcollection("Feedforward")
        sizes = [inputs, *hidden, outputs]
        self.weights = [self.model.add_parameters((n, m)) for m, n in zip(sizes, sizes[1:])]
        self.biases = [self.model.add_parameters(n) for n in sizes[1:]]

    def param_collection(self):
        return self.model

    @classmethod
    def from_spec(cls, spec, model):
        return cls(model, **spec)

    def __call__(self, x):
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            x = dy.affine_transform([dy.parameter(bias), dy.parameter(weight), x])
            if i < len(self.weights) - 1:
                x = dy.rectify(x)
        return x


class TopDownParser:
    def __init__(self, model, words, word_dim, layers, hidden, dropout):
        self.spec = locals()
        self.spec.pop("self")
        self.spec.pop("model")
        self.model = model.add_subcollection("Parser")
        self.words, self.hidden, self.dropout = words, hidden, dropout
        self.table = self.model.add_lookup_parameters((len(words), word_dim))
        self.lstm = dy.BiRNNBuilder(layers, word_dim, 2 * hidden, self.model, dy.VanillaLSTMBuilder)
        self.f_label = Feedforward(self.model, 2 * hidden, [3 * hidden], len(LABELS))
        self.f_split = Feedforward(self.model, 2 * hidden, [3 * hidden], 1)

    def param_collection(self):
        return self.model

    @classmethod
    def from_spec(cls, spec, model):
        return cls(model, **spec)

    def parse(self, words, gold=None):
        train = gold is not None
        if train:
            self.lstm.set_dropout(self.dropout)
        else:
            self.lstm.disable_dropout()
        names = ["<start>", *words, "<stop>"]
        outputs = self.lstm.transduce([self.table[self.words.get(w, 0)] for w in names])

        @functools.cache
        def encoding(left, right):
            forward = outputs[right][: self.hidden] - outputs[left][: self.hidden]
            backward = outputs[left + 1][self.hidden :] - outputs[right + 1][self.hidden :]
            return dy.concatenate([forward, backward])

        def choose(scores, best, first=0):
            """The number of the greatest score, and the loss."""
            if train:
                scores = augment(scores, best)
            values = scores.npvalue()
            chosen = int(values[first:].argmax()) + first
            if not train:
                return chosen, scores[chosen]
            return chosen, scores[chosen] - scores[best] if chosen != best else dy.zeros(1)

        def part(left, right):
            scores = self.f_label(encoding(left, right))
            best = LABELS.index(gold.label(left, right)) if train else 0
            label, loss = choose(scores, best, int(right - left == len(words)))
            found = [(left, right, LABELS[label])] if label else []
            if right - left == 1:
                return found, loss
            lefts = [encoding(left, m) for m in range(left + 1, right)]
            rights = [encoding(m, right) for m in range(left + 1, right)]
            scores = self.f_split(dy.concatenate_to_batch(lefts)) + self.f_split(dy.concatenate_to_batch(rights))
            scores = dy.reshape(scores, (len(lefts),))
            split, split_loss = choose(scores, min(gold.splits(left, right)) - left - 1 if train else 0)
            split += left + 1
            first, first_loss = part(left, split)
            second, second_loss = part(split, right)
            return found + first + second, loss + split_loss + first_loss + second_loss

        return part(0, len(words))


def main(mode, path):
    sentences = make_trees(size(16), 8)
    words = vocabulary((w for s, _ in sentences for w in s), "unknown", "<start>", "<stop>")
    model = dy.ParameterCollection()
    if mode == "test":
        [parser] = dy.load(path, model)
        for sentence, spans in sentences:
            dy.renew_cg()
            found, score = parser.parse(sentence)
            right = sum(spans.get((left, right)) == label for left, right, label in found)
            show("parse", right, len(found), len(spans), score.scalar_value())
        return
    parser = TopDownParser(model, words, size(8), 2, size(10), 0.0)
    initialize(model, 11)  # no two scores that rounding could swap
    trainer = dy.AdamTrainer(model, eps=1e-5)  # else a bias that cancels out drifts by rounding errors
    for epoch in range(5):
        total = 0.0
        for start in range(0, len(sentences), 4):
            dy.renew_cg()
            losses = [parser.parse(s, Gold(spans))[1] for s, spans in sentences[start : start + 4]]
            loss = dy.average(losses)
            total += loss.scalar_value()
            loss.backward()
            trainer.update()
        show("loss", epoch, total)
        dy.save(path, [parser])


if __name__ == "__main__":
    main(*sys.argv[1:3])
