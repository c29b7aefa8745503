"""A part-of-speech tagger: word and character LSTMs, a bidirectional LSTM over the sentence, minibatches.

python tagger.py [--epochs N] [--batch N] --dynet-autobatch 1
"""

import argparse
import random

import dynet as dy
import numpy as np

SYLLABLES = ["ka", "lo", "mi", "tu", "re"]
ENDINGS = {"NOUN": "s", "VERB": "t", "ADJ": "n"}


def make_sentences(count, seed):
    """Sentences of an invented language in which the ending of a word shows its part of speech, except after "da"."""
    rng = random.Random(seed)
    sentences = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(rng.randint(2, 7)):
            if rng.random() < 0.2:
                words.append("da")
                tags.append("DET")
                continue
            tag = rng.choice(sorted(ENDINGS))
            stem = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 2)))
            words.append(stem + ENDINGS[tag])
            tags.append("NOUN" if tags and tags[-1] == "DET" else tag)
        sentences.append((words, tags))
    return sentences


class Tagger:
    def __init__(self, sentences):
        self.words = {w: i for i, w in enumerate(sorted({w for words, _ in sentences for w in words}))}
        self.chars = {c: i for i, c in enumerate(sorted({c for w in self.words for c in w}))}
        self.tags = sorted({t for _, tags in sentences for t in tags})
        self.model = dy.Model()
        self.word_table = self.model.add_lookup_parameters((len(self.words), 12))
        self.char_table = self.model.add_lookup_parameters((len(self.chars), 6), name="chars")
        self.char_lstm = dy.LSTMBuilder(1, 6, 8, self.model)
        self.sentence_lstm = dy.BiRNNBuilder(2, 20, 16, self.model, dy.VanillaLSTMBuilder)
        self.hidden = self.model.add_parameters((10, 16), init=dy.GlorotInitializer())
        self.hidden_bias = self.model.add_parameters(10, init=dy.ConstInitializer(0))
        self.out = self.model.add_parameters((len(self.tags), 10))
        initialize(self.model, 5)

    def represent(self, word):
        state = self.char_lstm.initial_state()
        outputs = state.transduce([self.char_table[self.chars[c]] for c in word])
        return dy.concatenate([dy.lookup(self.word_table, self.words[word]), outputs[-1]])

    def scores(self, words):
        states = self.sentence_lstm.transduce([self.represent(w) for w in words])
        return [self.out * dy.tanh(dy.affine_transform([self.hidden_bias, self.hidden, s])) for s in states]

    def losses(self, words, tags):
        return [dy.pickneglogsoftmax(s, self.tags.index(t)) for s, t in zip(self.scores(words), tags)]

    def tag(self, words):
        return [self.tags[int(np.argmax(s.npvalue()))] for s in self.scores(words)]


def initialize(model, seed):
    """Initial values that do not depend on the library's random numbers."""
    rng = np.random.RandomState(seed)
    for p in model.parameters_list():
        p.set_value(rng.uniform(-0.3, 0.3, p.shape()))
    for table in model.lookup_parameters_list():
        table.init_from_array(rng.uniform(-0.3, 0.3, table.shape()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    args, _ = parser.parse_known_args()
    train, test = make_sentences(40, 1), make_sentences(12, 2)
    tagger = Tagger(train + test)
    trainer = dy.AdamTrainer(tagger.model, 0.01)
    for epoch in range(args.epochs):
        total = 0.0
        for start in range(0, len(train), args.batch):
            dy.renew_cg()
            errors = []
            for words, tags in train[start : start + args.batch]:
                errors.extend(tagger.losses(words, tags))
            loss = dy.esum(errors) / len(errors)
            total += loss.value()
            loss.backward()
            trainer.update()
        print("epoch", epoch, "loss", total)
    right = count = 0
    for words, tags in test:
        dy.renew_cg()
        right += sum(a == b for a, b in zip(tagger.tag(words), tags))
        count += len(tags)
    print("accuracy", right / count)


if __name__ == "__main__":
    main()
