"""A tagger with letters and several tasks, as bilstm-aux uses DyNet.

The library is the module `_dynet`, with settings by `DynetParams`; features are an `np.array` of expressions; indices
come from `array.array`; layers serve tasks at different depths; the output is a softmax of each tag, or a conditional
random field whose total is built with `+=`; minibatches are automatically batched in one graph; the model's settings
are pickled beside its parameters.

python bilty.py train MODEL softmax|crf|viterbi [--minibatch N] [--dynet-autobatch 1] | python bilty.py test MODEL
"""

import argparse
import array
import pickle
import random
from collections import Counter

import _dynet as dynet
import numpy as np
from common import initialize, show, size, treebank, vocabulary

START, END = 0, 1


def start_library(seed):
    parameters = dynet.DynetParams()
    parameters.from_args()
    parameters.set_random_seed(seed)
    parameters.init()


class BiRNN:
    def __init__(self, builder, inputs, hidden, model):
        self.forward, self.backward = builder(1, inputs, hidden, model), builder(1, inputs, hidden, model)

    def predict(self, inputs, backward_inputs):
        there = self.forward.initial_state().transduce(inputs)
        back = self.backward.initial_state().transduce(reversed(backward_inputs))
        return there, back


class Layer:
    def __init__(self, model, inputs, outputs, activation, mlp):
        self.activation = activation
        self.W_mlp, self.b_mlp = model.add_parameters((mlp, inputs)), model.add_parameters(mlp)
        self.W, self.b = model.add_parameters((outputs, mlp)), model.add_parameters(outputs)

    def __call__(self, x):
        logits = self.W * dynet.tanh(self.W_mlp * x + self.b_mlp) + self.b
        return self.activation(logits) if self.activation else logits


class Softmax:
    def __init__(self, model, tags, inputs, mlp):
        self.layer = Layer(model, inputs, len(tags), dynet.softmax, mlp)

    def loss(self, vectors, gold):
        distributions = [self.layer(x) for x in vectors]
        return dynet.esum([-dynet.log(dynet.pick(d, t)) for d, t in zip(distributions, gold)])

    def tags(self, vectors):
        return [int(np.argmax(self.layer(x).npvalue())) for x in vectors]


class CRF:
    def __init__(self, model, tags, inputs, mlp, viterbi_loss):
        self.n, self.viterbi_loss = len(tags), viterbi_loss
        self.layer = Layer(model, inputs, self.n, None, mlp)
        self.transitions = model.add_lookup_parameters((self.n, self.n))

    def start(self):
        return dynet.inputVector([0 if t == START else -1e10 for t in range(self.n)])

    def log_sum_exp(self, scores):
        greatest = dynet.pick(scores, np.argmax(scores.npvalue()))
        return greatest + dynet.logsumexp_dim(scores - dynet.concatenate([greatest] * self.n), 0)

    def partition(self, observations):
        alphas = self.start()
        for observation in observations:
            following = []
            for tag in range(self.n):
                emission = dynet.concatenate([dynet.pick(observation, tag)] * self.n)
                following.append(self.log_sum_exp(alphas + self.transitions[tag] + emission))
            alphas = dynet.concatenate(following)
        return self.log_sum_exp(alphas + self.transitions[END])

    def viterbi(self, observations):
        scores, pointers = self.start(), []
        rows = [self.transitions[t] for t in range(self.n)]
        for observation in observations:
            candidates = [scores + row for row in rows]
            pointers.append([np.argmax(c.npvalue()) for c in candidates])
            best = [dynet.pick(c, k) for c, k in zip(candidates, pointers[-1])]
            scores = dynet.concatenate(best) + observation
        final = scores + rows[END]
        tag = np.argmax(final.npvalue())
        path, score = [tag], dynet.pick(final, tag)
        for back in reversed(pointers):
            path.append(back[path[-1]])
        return [int(t) for t in path[-2::-1]], score

    def loss(self, vectors, gold):
        observations = [self.layer(x) for x in vectors]
        total = self.viterbi(observations)[1] if self.viterbi_loss else self.partition(observations)
        gold = array.array("I", [START]) + gold
        score = dynet.scalarInput(0.0)
        for i, observation in enumerate(observations):
            tag = gold[i + 1]
            score += dynet.pick(self.transitions[tag], gold[i]) + dynet.pick(observation, tag)
        score += dynet.pick(self.transitions[END], gold[-1])
        return total - score

    def tags(self, vectors):
        return self.viterbi([self.layer(x) for x in vectors])[0]


class Tagger:
    def __init__(self, words, letters, tasks, output, layers=2):
        self.words, self.letters, self.tasks, self.output = words, letters, tasks, output
        self.model = dynet.ParameterCollection()
        self.trainer = dynet.SimpleSGDTrainer(self.model)
        wide, narrow, hidden = size(6), size(4), size(8)
        self.word_table = self.model.add_lookup_parameters((len(words), wide), init=dynet.ConstInitializer(0.01))
        self.letter_table = self.model.add_lookup_parameters((len(letters), narrow))
        self.spell = BiRNN(dynet.CoupledLSTMBuilder, narrow, narrow, self.model)
        self.layers = [BiRNN(dynet.CoupledLSTMBuilder, wide + 2 * narrow, hidden, self.model)]
        self.layers += [BiRNN(dynet.CoupledLSTMBuilder, hidden, hidden, self.model) for _ in range(layers - 1)]
        self.outputs = []
        for tags in tasks:
            if output == "softmax":
                self.outputs.append(Softmax(self.model, tags, 2 * hidden, size(6)))
            else:
                self.outputs.append(CRF(self.model, tags, 2 * hidden, size(6), output == "viterbi"))
        initialize(self.model, 29)

    def word(self, form, counts=None, update=True):
        number = self.words.get(form, 0)
        if counts and random.random() > counts[form] / (0.25 + counts[form]):
            number = 0
        return self.word_table[number] if update else dynet.nobackprop(self.word_table[number])

    def spelling(self, form):
        numbers = (
            array.array("I", [1]) + array.array("I", [self.letters.get(c, 0) for c in form]) + array.array("I", [2])
        )
        vectors = [self.letter_table[n] for n in numbers]
        there, back = self.spell.predict(vectors, vectors)
        return dynet.concatenate([there[-1], back[-1]])

    def run(self, forms, task, gold=None, counts=None):
        """The loss, or without gold tags the best ones; the last task is solved at the last layer."""
        features = np.array([self.word(w, counts, update=gold is not None) for w in forms])
        spelled = [self.spelling(w) for w in forms]
        features = [dynet.concatenate([w, c]) for w, c in zip(features, spelled)]
        if gold is not None:
            features = [dynet.noise(x, 0.0) for x in features]
        forward = backward = features
        for depth, layer in enumerate(self.layers):
            forward, backward = layer.predict(forward, backward)
            if depth:
                forward, backward = [[dynet.tanh(x) for x in xs] for xs in (forward, backward)]
            if depth == task:
                vectors = [dynet.concatenate([f, b]) for f, b in zip(forward, reversed(backward))]
                return self.outputs[task].loss(vectors, gold) if gold is not None else self.outputs[task].tags(vectors)
        return None


def read(sentences, tasks):
    """Instances of two tasks: tags, and the sides of the heads."""
    kinds = [lambda t: t.tag, lambda t: t.relation]
    return [
        ([t.form for t in s], i % 2, array.array("I", [tasks[i % 2][kinds[i % 2](t)] for t in s]))
        for i, s in enumerate(sentences)
    ]


def train(options, sentences):
    tokens = [t for s in sentences for t in s]
    settings = {
        "words": vocabulary((t.form for t in tokens), "unknown"),
        "letters": vocabulary((c for t in tokens for c in t.form), "unknown", "start", "end"),
        "tasks": [vocabulary({getattr(t, kind) for t in tokens}, "<start>", "<end>") for kind in ("tag", "relation")],
        "output": options.output,
    }
    tagger = Tagger(**settings)
    instances, counts = read(sentences, settings["tasks"]), Counter(t.form for t in tokens)
    for epoch in range(4):
        random.shuffle(instances)
        total, batch = 0.0, []
        dynet.renew_cg()
        for forms, task, gold in instances:
            if options.minibatch == 1:
                dynet.renew_cg()
            batch.append(tagger.run(forms, task, gold, counts))
            if len(batch) == options.minibatch:
                loss = dynet.esum(batch)
                total += loss.value()
                loss.backward()
                tagger.trainer.update()
                dynet.renew_cg()
                batch = []
        show("loss", epoch, total)
    tagger.model.save(options.model)
    with open(options.model + ".params.pickle", "wb") as file:
        pickle.dump(settings, file)


def test(options, sentences):
    with open(options.model + ".params.pickle", "rb") as file:
        settings = pickle.load(file)
    tagger = Tagger(**settings)
    tagger.model.populate(options.model)
    for forms, task, _ in read(sentences[:8], settings["tasks"]):
        dynet.renew_cg()
        show("tags", *tagger.run(forms, task))
    show("embedding", *tagger.word_table[3].npvalue())


def main():
    options = argparse.ArgumentParser()
    options.add_argument("mode", choices=["train", "test"])
    options.add_argument("model")
    options.add_argument("output", nargs="?", choices=["softmax", "crf", "viterbi"])
    options.add_argument("--minibatch", type=int, default=1)
    options.add_argument("--dynet-autobatch", type=int, default=0)
    options = options.parse_args()
    random.seed(9)
    start_library(9)
    sentences = treebank(size(16), 30)
    (train if options.mode == "train" else test)(options, sentences)


if __name__ == "__main__":
    main()
