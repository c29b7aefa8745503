"""A deep averaging network, as text classifiers with DyNet reduce expressions by NumPy.

`np.sum` over arrays of expressions and over a list of losses, `np.cumsum`, products of arrays of expressions and
numbers, `np.random.choice` of an array of expressions and `np.stack` of them stay expressions.

python averaging.py sum|mean
"""

import random
import sys

import dynet as dy
import numpy as np
from common import initialize, show, size


def make_texts(count, seed):
    """Word numbers and a class: the third of the words that is most frequent."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        label = rng.randrange(3)
        words = [rng.choice([label, rng.randrange(3)]) * 5 + rng.randrange(5) for _ in range(rng.randint(3, 9))]
        texts.append((words, label))
    return texts


class Classifier:
    def __init__(self, reduce):
        self.reduce = reduce
        self.model = dy.ParameterCollection()
        self.table = self.model.add_lookup_parameters((15, size(8)))
        self.W1, self.b1 = self.model.add_parameters((size(10), size(8))), self.model.add_parameters(size(10))
        self.W2, self.b2 = self.model.add_parameters((3, size(10))), self.model.add_parameters(3)
        initialize(self.model, 33)

    def scores(self, words):
        vectors = np.array([dy.lookup(self.table, w) for w in words])
        x = np.sum(vectors, axis=0) if self.reduce == "sum" else np.cumsum(vectors)[-1] / len(words)
        one = np.random.choice(vectors)
        both = np.stack([x, one]).sum()
        return self.W2 * dy.tanh(self.W1 * both + self.b1) + self.b2


def main(reduce):
    np.random.seed(11)
    texts = make_texts(size(30), 34)
    classifier = Classifier(reduce)
    before = classifier.table.as_array()
    trainer = dy.AdagradTrainer(classifier.model, 0.1)
    for epoch in range(4):
        total, right, weights = 0.0, 0, [0.1, 0.2, 0.3, 0.4, 0.5]
        for start in range(0, len(texts), 5):
            dy.renew_cg()
            losses = []
            for words, label in texts[start : start + 5]:
                scores = classifier.scores(words)
                right += int(np.argmax(scores.npvalue()) == label)
                losses.append(dy.pickneglogsoftmax(scores, label))
            loss = np.sum(losses) / len(losses) + np.sum(np.array(losses) * weights[: len(losses)])
            total += loss.value()
            loss.backward()
            trainer.update()
        show("loss", epoch, right, total)
    show("changed", int(np.any(classifier.table.as_array() != before, axis=1).sum()))


if __name__ == "__main__":
    main(sys.argv[1])
