"""A transition parser whose graph goes from thread to thread, as TUPA uses DyNet.

A graph is begun in the main thread; each sentence is parsed in a worker of a thread pool, so that there is a timeout,
and losses of several sentences, from several workers, are summed up in the main thread; after a timeout the
sentence is left out and training goes on; features of missing items are inputs of zeros that are kept for a graph;
trainers make dense updates; `dy.save` and `dy.load_generator` take an iterator of parameters and builders; the trainer
is made anew after an epoch; scores of valid actions only.

python tupa.py train MODEL | python tupa.py parse MODEL
"""

import random
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor, TimeoutError

import dynet as dy
import numpy as np
from common import initialize, show, size, treebank, vocabulary

SHIFT, LEFT, RIGHT = range(3)
MISSING = -1


class State:
    """An arc-standard parser's state, with its oracle."""

    def __init__(self, sentence):
        self.heads = [t.head - 1 for t in sentence]
        self.waiting = [self.heads.count(i) for i in range(len(sentence))]
        self.stack, self.buffer, self.arcs = [], list(range(len(sentence))), {}

    def finished(self):
        return not self.buffer and len(self.stack) == 1

    def valid(self, action):
        return bool(self.buffer) if action == SHIFT else len(self.stack) > 1

    def oracle(self):
        if len(self.stack) > 1:
            below, top = self.stack[-2:]
            if self.heads[below] == top and not self.waiting[below]:
                return LEFT
            if self.heads[top] == below and not self.waiting[top]:
                return RIGHT
        return SHIFT if self.buffer else LEFT

    def apply(self, action):
        if action == SHIFT:
            self.stack.append(self.buffer.pop(0))
            return
        child = self.stack.pop(-2 if action == LEFT else -1)
        self.arcs[child] = self.stack[-1]
        if self.heads[child] >= 0:
            self.waiting[self.heads[child]] -= 1

    def features(self):
        return [*reversed([MISSING, MISSING, *self.stack][-2:]), self.buffer[0] if self.buffer else MISSING]


class Network:
    def __init__(self, words, tags):
        self.words, self.tags = words, tags
        self.params, self.model, self.losses, self.trainer = OrderedDict(), None, [], None
        self.wide, self.narrow, self.hidden = size(8), size(4), size(8)

    def make(self):
        self.model = dy.ParameterCollection()
        self.params["words"] = self.model.add_lookup_parameters((len(self.words), self.wide))
        self.params["tags"] = self.model.add_lookup_parameters((len(self.tags), self.narrow))
        self.params["birnn"] = dy.BiRNNBuilder(
            1, self.wide + self.narrow, self.hidden, self.model, dy.VanillaLSTMBuilder
        )
        inputs = 3 * self.hidden
        for i, (rows, columns) in enumerate([(self.hidden, inputs), (3, self.hidden)]):
            self.params["W", i] = self.model.add_parameters((rows, columns), init=dy.GlorotInitializer())
            self.params["b", i] = self.model.add_parameters(rows, init=dy.GlorotInitializer())
        initialize(self.model, 25)
        self.params["tags"].set_updated(True)

    def make_trainer(self, kind):
        self.trainer = kind(self.model)
        self.trainer.set_sparse_updates(False)

    def begin(self):
        dy.renew_cg()
        self.empty = dy.inputVector(np.zeros(self.hidden, dtype=float))

    def embed(self, sentence, train):
        birnn = self.params["birnn"]
        if train:
            birnn.set_dropout(0.0)
        else:
            birnn.disable_dropout()
        pairs = [
            (self.params["words"][self.words.get(t.form, 0)], self.params["tags"][self.tags[t.tag]]) for t in sentence
        ]
        self.encoded = birnn.transduce([dy.concatenate(list(pair)) for pair in pairs])

    def evaluate(self, features):
        x = dy.concatenate([self.empty if f == MISSING else self.encoded[f] for f in features])
        for i in range(2):
            W, b = [dy.parameter(self.params[name, i]) for name in "Wb"]
            x = dy.tanh(W * x + b) if i == 0 else W * x + b
        return x

    def parse(self, sentence, train, entered=None, leave=None):
        """Parse in a worker; with events, wait half-way, so that the time is over."""
        if train or entered:
            self.embed(sentence, train)
        else:
            self.embed(sentence, False)
        state, losses = State(sentence), []
        while not state.finished():
            scores = self.evaluate(state.features())
            values = dy.log_softmax(scores, restrict=[SHIFT, LEFT, RIGHT]).npvalue()
            best = next(filter(state.valid, (int(a) for a in np.argsort(-values))))
            if train:
                true = state.oracle()
                losses.append(dy.pickneglogsoftmax(scores, true))
                best = true if random.random() < 0.9 else best
            state.apply(best)
            if entered is not None:
                entered.set()
                leave.wait()
                entered = None
        return losses, state.arcs

    def finish(self):
        """Update with the losses of all sentences since the last time."""
        loss = dy.esum(self.losses)
        loss.forward()
        value = loss.value()
        loss.backward()
        self.trainer.update()
        self.begin()
        self.losses = []
        return value

    def save(self, path):
        dy.save(path, (value for value in self.params.values()))

    def load(self, path):
        self.model = dy.ParameterCollection()
        self.make_names = ["words", "tags", "birnn", ("W", 0), ("b", 0), ("W", 1), ("b", 1)]
        values = list(dy.load_generator(path, self.model))
        self.params = OrderedDict(zip(self.make_names, values))


def too_slow(network, sentence):
    """A sentence that is not parsed in time."""
    entered, leave = threading.Event(), threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(network.parse, sentence, True, entered, leave)
        entered.wait()
        try:
            future.result(timeout=0.01)
        except TimeoutError:
            show("timeout")
        leave.set()


def main(mode, path):
    random.seed(7)
    sentences = treebank(size(16), 26)
    tokens = [t for s in sentences for t in s]
    network = Network(vocabulary((t.form for t in tokens), "unknown"), vocabulary(t.tag for t in tokens))
    if mode == "parse":
        network.load(path)
        for sentence in sentences[:8]:
            network.begin()
            with ThreadPoolExecutor(max_workers=1) as pool:
                _, arcs = pool.submit(network.parse, sentence, False).result(timeout=600)
            show("arcs", *(arcs.get(i, -1) + 1 for i in range(len(sentence))))
        return
    network.make()
    network.begin()
    for epoch, kind in enumerate([dy.SimpleSGDTrainer, dy.SimpleSGDTrainer, dy.AdamTrainer]):
        network.make_trainer(kind)
        total, steps = 0.0, 0
        for number, sentence in enumerate(sentences):
            if number == 5:
                too_slow(network, sentence)
            with ThreadPoolExecutor(max_workers=1) as pool:
                losses, _ = pool.submit(network.parse, sentence, True).result(timeout=600)
            network.losses += losses
            steps += len(losses)
            if steps >= 30:
                total += network.finish()
                steps = 0
        if network.losses:
            total += network.finish()
        network.trainer.learning_rate /= 1 - 0.05
        show("loss", epoch, total)
        network.save(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
