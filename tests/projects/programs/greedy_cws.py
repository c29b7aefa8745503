"""A word segmenter that keeps the best segmentation of each prefix, as greedyCWS uses DyNet.

Segmentations are named tuples that hold scores, expressions and states of an LSTM; words are composed of letters by
weights of their own for each length; candidates that lose are in the graph, but not in the loss; gradients of several
sentences are collected before an update with momentum; a table is added after the trainer was made.

python greedy_cws.py train MODEL [momentum|sgd] | python greedy_cws.py segment MODEL
"""

import random
import sys
from collections import Counter, namedtuple

import dynet as dy
import numpy as np
from common import initialize, show, size

Sentence = namedtuple("Sentence", "score score_expr state y previous length golden")
LONGEST = 3


def make_texts(count, seed):
    """Letters of sentences, and the length of the word that ends at each letter, or 0."""
    rng = random.Random(seed)
    words = [(0, 1), (2,), (1, 3, 2), (4, 0), (3,), (4, 4, 1)]
    texts = []
    for _ in range(count):
        letters, lengths = [], []
        for _ in range(rng.randint(2, 4)):
            word = rng.choice(words)
            letters += word
            lengths += [0] * (len(word) - 1) + [len(word)]
        texts.append((letters, lengths))
    return texts


class Segmenter:
    def __init__(self, letters, trainer):
        self.model = dy.Model()
        if trainer == "momentum":
            self.trainer = dy.MomentumSGDTrainer(self.model, 0.05, 0.5)
        else:
            self.trainer = dy.SimpleSGDTrainer(self.model, 0.05)
        narrow, wide, hidden = size(4), size(8), size(6)
        self.table = self.model.add_lookup_parameters((letters, narrow))
        for row, vector in enumerate(np.random.RandomState(17).normal(0, 0.5, (letters, narrow))):
            self.table.init_row(row, vector)
        self.lstm = dy.LSTMBuilder(1, wide, hidden, self.model)
        self.U = self.model.add_parameters(wide)
        self.W_next, self.b_next = self.model.add_parameters((wide, hidden)), self.model.add_parameters(wide)
        self.composition = []
        for n in range(1, LONGEST + 1):
            gate = self.model.add_parameters((n * narrow, n * narrow)), self.model.add_parameters(n * narrow)
            word = self.model.add_parameters((wide, n * narrow)), self.model.add_parameters(wide)
            self.composition.append((gate, word))
        self.start = self.model.add_parameters(wide)
        self.known = {}

    def use_known_words(self, known):
        self.known = known
        self.words = self.model.add_lookup_parameters((len(known), size(8)))

    def renew(self):
        dy.renew_cg()
        self.expressions = {name: dy.parameter(getattr(self, name)) for name in ("U", "W_next", "b_next", "start")}

    def word(self, letters, vectors):
        (gate_W, gate_b), (W, b) = [[dy.parameter(p) for p in pair] for pair in self.composition[len(letters) - 1]]
        x = dy.concatenate(vectors)
        gate = dy.logistic(gate_W * x + gate_b)
        word = dy.tanh(W * dy.cmult(gate, x) + b)
        if tuple(letters) in self.known:
            return (word + dy.lookup(self.words, self.known[tuple(letters)])) / 2.0
        return word

    def follow(self, state):
        return dy.tanh(self.expressions["W_next"] * state.output() + self.expressions["b_next"])

    def search(self, letters, truth=None, mu=0.2):
        state = self.lstm.initial_state().add_input(self.expressions["start"])
        score = dy.scalarInput(0.0)
        agenda = [Sentence(score.scalar_value(), score, state, self.follow(state), None, None, True)]
        vectors = [dy.lookup(self.table, c) for c in letters]
        if truth is not None:
            vectors = [dy.dropout(v, 0.0) for v in vectors]
        golden_sentence = None
        for end in range(1, len(letters) + 1):
            now = None
            for n in range(1, min(end, LONGEST) + 1):
                word = self.word(letters[end - n : end], vectors[end - n : end])
                sentence = agenda[end - n]
                score = (
                    sentence.score_expr + dy.dot_product(sentence.y, word) + dy.dot_product(word, self.expressions["U"])
                )
                golden = False
                if truth is not None:
                    golden = sentence.golden and truth[end - 1] == n
                    score = dy.scalarInput(mu * n if truth[end - 1] != n else 0.0) + score
                good = now is None or now.score < score.scalar_value()
                if golden or good:
                    state = sentence.state.add_input(word)
                    new = Sentence(score.scalar_value(), score, state, self.follow(state), sentence, n, golden)
                    if good:
                        now = new
                    if golden:
                        golden_sentence = new
            agenda.append(now)
            if truth is not None and truth[end - 1] > 0 and not now.golden:
                break
        return now.score_expr - golden_sentence.score_expr if truth is not None else now

    def train(self, letters, truth):
        self.renew()
        loss = self.search(letters, truth)
        value = loss.scalar_value()
        loss.backward()
        return value

    def segment(self, letters):
        self.renew()
        now, lengths = self.search(letters), []
        while now.previous is not None:
            lengths.append(now.length)
            now = now.previous
        return lengths[::-1]


def main(mode, path, trainer="momentum"):
    random.seed(6)
    texts = make_texts(size(24), 18)
    counts = Counter()
    for letters, lengths in texts:
        counts.update(tuple(letters[i - n : i]) for i, n in enumerate(lengths, 1) if n)
    segmenter = Segmenter(5, trainer)
    known = [w for w, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:4]]
    segmenter.use_known_words({w: i for i, w in enumerate(known)})
    initialize(segmenter.model, 19)
    if mode == "segment":
        segmenter.model.populate(path)
        for letters, _ in texts[:8]:
            show("segments", *segmenter.segment(letters))
        return
    for epoch in range(5):
        random.shuffle(texts)
        total = 0.0
        for i, (letters, lengths) in enumerate(texts, 1):
            total += segmenter.train(letters, lengths)
            if i % 4 == 0:
                segmenter.trainer.update()
        segmenter.trainer.update()
        segmenter.trainer.learning_rate /= 1.1
        show("loss", epoch, total)
    segmenter.model.save(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
