"""A translator made of parts from a settings file, as xnmt uses DyNet.

The program reads its settings before it imports the library, and adds the library's options to `sys.argv`; LSTM cells
are written with the library's gate operations, with masks that copy states of ended sentences; each part has a
collection of its own, which is saved to a file of its own; an ensemble of two models averages log-probabilities;
beam search has hypothesis objects that hold decoder states.

python xnmt.py train SETTINGS NAME | python xnmt.py translate SETTINGS NAME NAME
"""

import math
import sys

import numpy as np
from common import initialize, pairs, show, size, vocabulary


def settings_of(path):
    """Lines of `key: value`; without the file, it is made."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        lines = ["dynet-mem: 600", "dynet-seed: 5", "dynet-weight-decay: 0.0005"]
        lines += ["trainer: adam", "smoothing: 0.1", "beam: 3"]
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
    return dict(line.split(": ") for line in lines)


MODE, NAMES = sys.argv[1], sys.argv[3:]
SETTINGS = settings_of(sys.argv[2])
for key in [k for k in SETTINGS if k.startswith("dynet-")]:
    sys.argv += ["--" + key, SETTINGS.pop(key)]

import dynet as dy  # noqa: E402


class CustomLSTM:
    """An LSTM of one layer, whose states are plain objects."""

    def __init__(self, inputs, hidden, model):
        self.hidden = hidden
        self.Wx = model.add_parameters(dim=(hidden * 4, inputs))
        self.Wh = model.add_parameters(dim=(hidden * 4, hidden))
        self.b = model.add_parameters(dim=(hidden * 4,), init=dy.ConstInitializer(0.0))

    def step(self, x, h, c):
        gates = dy.vanilla_lstm_gates(x, h, dy.parameter(self.Wx), dy.parameter(self.Wh), dy.parameter(self.b), 0.0)
        c = dy.vanilla_lstm_c(c, gates)
        return dy.vanilla_lstm_h(c, gates), c

    def transduce(self, xs, mask=None):
        """The outputs, and the last state; where the mask is 1, states are copied. mask: (batch, length)."""
        batch_size = xs[0].dim()[1]
        h = c = dy.zeroes(dim=(self.hidden,), batch_size=batch_size)
        outputs = []
        for i, x in enumerate(xs):
            new_h, new_c = self.step(x, h, c)
            if mask is None:
                h, c = new_h, new_c
            else:
                ended = dy.inputTensor(mask.transpose()[i : i + 1], batched=True)
                going = dy.inputTensor(1.0 - mask.transpose()[i : i + 1], batched=True)
                h = dy.cmult(new_h, going) + dy.cmult(h, ended)
                c = dy.cmult(new_c, going) + dy.cmult(c, ended)
            outputs.append(h)
        return outputs, (h, c)


class Encoder:
    def __init__(self, words, wide, hidden, model):
        self.collection = model
        self.table = model.add_lookup_parameters((words, wide))
        self.forward, self.backward = CustomLSTM(wide, hidden // 2, model), CustomLSTM(wide, hidden // 2, model)

    def encode(self, batch, mask):
        xs = [dy.lookup_batch(self.table, column) for column in np.transpose(batch)]
        there, last = self.forward.transduce(xs, mask)
        back, first = self.backward.transduce(xs[::-1], mask[:, ::-1] if mask is not None else None)
        self.outputs = [dy.concatenate([f, b]) for f, b in zip(there, back[::-1])]
        return [dy.concatenate([f, b]) for f, b in zip(last, first)]


class Attender:
    def __init__(self, hidden, model):
        self.collection = model
        self.W, self.V = model.add_parameters((hidden, hidden)), model.add_parameters((hidden, hidden))
        self.b, self.U = model.add_parameters((hidden,)), model.add_parameters((1, hidden))

    def start(self, outputs, mask):
        self.sentence, self.mask = dy.concatenate_cols(outputs), mask
        self.WI = dy.affine_transform([dy.parameter(self.b), dy.parameter(self.W), self.sentence])
        if len(self.WI.dim()[0]) == 1:
            self.WI = dy.reshape(self.WI, (self.WI.dim()[0][0], 1), batch_size=self.WI.dim()[1])

    def context(self, state):
        h = dy.tanh(dy.colwise_add(self.WI, dy.parameter(self.V) * state))
        scores = dy.transpose(dy.parameter(self.U) * h)
        if self.mask is not None:
            penalty = np.reshape(self.mask.transpose(), (self.mask.shape[1], 1, self.mask.shape[0])) * -100.0
            scores = scores + dy.inputTensor(penalty, batched=True)
        return self.sentence * dy.softmax(scores)


class DecoderState:
    def __init__(self, h, c, context):
        self.h, self.c, self.context = h, c, context


class Decoder:
    def __init__(self, words, wide, hidden, model):
        self.collection, self.words = model, words
        self.table = model.add_lookup_parameters((words, wide))
        self.lstm = CustomLSTM(wide + hidden, hidden, model)
        self.W_combine = model.add_parameters((hidden, 2 * hidden))
        self.W, self.b = model.add_parameters((words, hidden)), model.add_parameters((words,))

    def start(self, final, batch_size):
        return DecoderState(*final, dy.zeroes(final[0].dim()[0], batch_size=batch_size))

    def add(self, state, word_vector, attender):
        h, c = self.lstm.step(dy.concatenate([word_vector, state.context]), state.h, state.c)
        return DecoderState(h, c, attender.context(h))

    def scores(self, state):
        combined = dy.tanh(dy.parameter(self.W_combine) * dy.concatenate([state.h, state.context]))
        return dy.affine_transform([dy.parameter(self.b), dy.parameter(self.W), combined])


class Translator:
    def __init__(self, source, target, seed):
        self.source, self.target = source, target
        self.model = dy.ParameterCollection()
        wide, hidden = size(6), size(8)
        self.parts = {
            "encoder": Encoder(len(source), wide, hidden, self.model.add_subcollection("encoder")),
            "attender": Attender(hidden, self.model.add_subcollection("attender")),
            "decoder": Decoder(len(target), wide, hidden, self.model.add_subcollection("decoder")),
        }
        self.encoder, self.attender, self.decoder = self.parts.values()
        initialize(self.model, seed)

    def save(self, name):
        for part, layer in self.parts.items():
            layer.collection.save(f"{name}.{part}")

    def load(self, name):
        for part, layer in self.parts.items():
            layer.collection.populate(f"{name}.{part}")

    @staticmethod
    def padded(sentences):
        """Arrays of (batch, length): words, and where sentences have ended; no mask if none has before others."""
        longest = max(map(len, sentences))
        words = np.array([s + [0] * (longest - len(s)) for s in sentences])
        mask = np.array([[0.0] * len(s) + [1.0] * (longest - len(s)) for s in sentences])
        return words, mask if mask.any() else None

    def begin(self, sources):
        words, mask = self.padded(sources)
        final = self.encoder.encode(words, mask)
        self.attender.start(self.encoder.outputs, mask)
        return self.decoder.start(final, len(sources))

    def loss(self, sources, targets, smoothing):
        state = self.begin(sources)
        words, mask = self.padded(targets)
        previous, losses = np.zeros(len(targets), int), []
        for i, column in enumerate(np.transpose(words)):
            state = self.decoder.add(state, dy.lookup_batch(self.decoder.table, previous), self.attender)
            scores = dy.log_softmax(self.decoder.scores(state))
            loss = dy.pick_batch(scores, column) * -(1 - smoothing) - dy.mean_elems(scores) * smoothing
            if mask is not None:
                loss = dy.cmult(loss, dy.inputTensor(1.0 - mask.transpose()[i : i + 1], batched=True))
            losses.append(loss)
            previous = column
        return dy.sum_batches(dy.esum(losses))


class Hypothesis:
    def __init__(self, words, score, states):
        self.words, self.score, self.states = words, score, states

    def normalized(self):
        return self.score / len(self.words) ** 0.5


def search(models, source, beam):
    """The best translation of an ensemble of models."""
    dy.renew_cg()
    beams = [Hypothesis([0], 0.0, [m.begin([source]) for m in models])]
    done = []
    while beams and len(beams[0].words) < 2 * len(source):
        candidates = []
        for hypothesis in beams:
            word = hypothesis.words[-1]
            steps = zip(models, hypothesis.states)
            states = [m.decoder.add(s, dy.lookup(m.decoder.table, word), m.attender) for m, s in steps]
            scores = dy.average([dy.log_softmax(m.decoder.scores(s)) for m, s in zip(models, states)])
            values = scores.npvalue()
            for w in np.argsort(-values)[:beam]:
                candidates.append(Hypothesis([*hypothesis.words, int(w)], hypothesis.score + float(values[w]), states))
        candidates.sort(key=Hypothesis.normalized, reverse=True)
        done += [h for h in candidates[:beam] if h.words[-1] == 1]
        beams = [h for h in candidates[:beam] if h.words[-1] != 1]
    return max(done or beams, key=Hypothesis.normalized)


def main(mode, names):
    data = pairs(size(24), 20, "abcd", 5)
    source = vocabulary("abcd", "<s>", "</s>")
    data = [([*map(source.get, a), 1], [*map(source.get, b), 1]) for a, b in data]
    if mode == "translate":
        models = [Translator(source, source, 0) for _ in names]
        for model, name in zip(models, names):
            model.load(name)
        for words, _ in data[:6]:
            found = search(models, words, int(SETTINGS["beam"]))
            show("translation", *found.words, found.score)
        return
    for number, name in enumerate(names):
        translator = Translator(source, source, 21 + number)
        trainer = {"adam": dy.AdamTrainer, "sgd": dy.SimpleSGDTrainer}[SETTINGS["trainer"]](translator.model, 0.01)
        best = math.inf
        for epoch in range(3):
            total = 0.0
            for start in range(0, len(data), 4):
                dy.renew_cg()
                batch = data[start : start + 4]
                loss = translator.loss([a for a, _ in batch], [b for _, b in batch], float(SETTINGS["smoothing"]))
                total += loss.value()
                loss.backward()
                trainer.update()
            show("loss", name, epoch, total)
            if total < best:
                best = total
                translator.save(name)
            trainer.restart(trainer.learning_rate * 0.9)


if __name__ == "__main__":
    main(MODE, NAMES)
