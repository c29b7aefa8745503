"""
2. A tagger on a real treebank
==============================

A tagger says of each word in a sentence what it is: a noun, a verb, a comma. It is a
good first model for real data, because everything that makes language awkward is there
at once. Sentences have any length, words have any length, and many of the words that
you will meet are not in your training data.
"""

# %%
# Data first. Treebanks are texts in which people have marked each word, and most come
# in one format, `CoNLL-U <https://universaldependencies.org/format.html>`_: a word a
# line, columns between tabs, a blank line after each sentence. So a reader is short. We
# use a Turkish treebank for one reason only: it is the one that pip can install
# (``pip install turkish-treebanks``). For your own language download a treebank from
# `universaldependencies.org <https://universaldependencies.org/>`_, and write
# ``sentences = read("your-file.conllu")`` below.

import random
from collections import Counter
from importlib import metadata

import dynet_cy as dy


def read(path):
    """Sentences, each a list of words and a list of tags."""
    sentences = []
    with open(path, encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            rows = [line.split("\t") for line in block.splitlines()]
            rows = [row for row in rows if row[0].isdigit()]  # words, not comments
            if rows:
                sentences.append(([row[1] for row in rows], [row[3] for row in rows]))
    return sentences


def installed(name):
    files = metadata.files("turkish-treebanks")
    return next(file.locate() for file in files if file.name == name)


sentences = read(installed("web.conllu"))
print(len(sentences), "sentences")
print(*map("/".join, zip(*sentences[15])))

# %%
# Some sentences are for testing; the network never learns from those. A word gets a
# vector of its own if it occurs at least twice in the others. How much is left out?

random.seed(1)
random.shuffle(sentences)
test, train = sentences[:300], sentences[300:1800]

counts = Counter(word.lower() for words, _ in train for word in words)
word_ids = {word: i for i, word in enumerate(w for w, n in counts.items() if n > 1)}
letter_ids = {letter: i for i, letter in enumerate(sorted(set("".join(counts))))}
tags = sorted({tag for _, tags in train for tag in tags})

tested = [word.lower() for words, _ in test for word in words]
unknown = sum(word not in word_ids for word in tested) / len(tested)
print(f"{unknown:.0%} of the words in the test sentences have no vector")

# %%
# So a vector for each word is not enough. But a person who does not know a word still
# sees how it is spelled: an English word in *-ly* is likely an adverb, and Turkish has
# endings for nearly everything. So we let one small network read the letters of a word,
# in both directions, and another read the words of the sentence:

dy.reset_random_seed(1)
model = dy.ParameterCollection()
word_vectors = model.add_lookup_parameters((len(word_ids) + 1, 32))
letter_vectors = model.add_lookup_parameters((len(letter_ids) + 1, 16))
read_forwards = dy.LSTMBuilder(1, 16, 24, model)
read_backwards = dy.LSTMBuilder(1, 16, 24, model)
read_sentence = dy.BiRNNBuilder(1, 32 + 2 * 24, 64, model, dy.LSTMBuilder)
W = model.add_parameters((len(tags), 64))
b = model.add_parameters(len(tags), init=0)


def embed(word):
    """What is known of a word by itself: its vector, joined to what its letters say."""
    letters = [letter_vectors[letter_ids.get(x, len(letter_ids))] for x in word.lower()]
    forwards = read_forwards.initial_state().transduce(letters)[-1]
    backwards = read_backwards.initial_state().transduce(letters[::-1])[-1]
    vector = word_vectors[word_ids.get(word.lower(), len(word_ids))]
    return dy.concatenate([vector, forwards, backwards])


def scores(words):
    """A score for each tag, for each word."""
    states = read_sentence.transduce([embed(word) for word in words])
    return [dy.affine_transform([b, W, state]) for state in states]


# %%
# That is the whole network, and it is written for one sentence. Nothing in it knows
# about batches. A sentence of five words makes five embeddings; a word of twelve
# letters makes twelve steps in each direction.
#
# Tagging a sentence means taking the best score at each word. Ask for all of them at
# once: `dy.forward` computes a whole list of expressions, so sentences run together.


def tag(many):
    dy.renew_cg(forward_only=True)  # no gradients will be asked for
    found = [scores(words) for words in many]
    dy.forward([score for sentence in found for score in sentence])
    return [[tags[int(s.npvalue().argmax())] for s in sentence] for sentence in found]


def accuracy(which=lambda word: True):
    """The share of right tags, of the words that `which` chooses."""
    right = total = 0
    guesses = tag([words for words, _ in test])
    for (words, labels), guessed in zip(test, guesses):
        for word, label, guess in zip(words, labels, guessed):
            if which(word.lower()):
                right, total = right + (label == guess), total + 1
    return right / total


# %%
# Training takes 16 sentences for each update. Look at how little there is to a batch: a
# list of losses, and `dy.average`.

trainer = dy.AdamTrainer(model, alpha=0.003)
for epoch in range(4):
    random.shuffle(train)
    total = 0.0
    for start in range(0, len(train), 16):
        dy.renew_cg()
        losses = [
            dy.pickneglogsoftmax(score, tags.index(right))
            for words, labels in train[start : start + 16]
            for score, right in zip(scores(words), labels)
        ]
        loss = dy.average(losses)
        total += loss.value() * 16
        loss.backward()
        trainer.update()
    print(f"epoch {epoch}: loss {total / len(train):.3f}, accuracy {accuracy():.1%}")

# %%
# A few seconds, on one core. With all sentences, larger vectors, dropout and ten epochs
# the same design gets several points more; ``examples/tagger.py`` is that program.
#
# Now write something yourself. This is "My little cat drank the milk quickly .":

sentence = ["Küçük", "kedim", "sütü", "hızlıca", "içti", "."]
print(*map("/".join, zip(sentence, tag([sentence])[0])))

# %%
# And was it worth reading letters? Count only words that are not in the training data
# at all, of which the model knows nothing but their spelling and their neighbours:

print(f"words seen in training: {accuracy(lambda word: word in counts):.1%} right")
print(f"words never seen:       {accuracy(lambda word: word not in counts):.1%} right")

# %%
# What to keep: **write the network for one sentence, put the losses of many into one
# list.** And keep the parameters, so that nobody has to train again:

model.save("tagger.txt")

# %%
# Another program makes the same collection and calls ``model.populate("tagger.txt")``.
# :doc:`The last tutorial <9_shipping_a_model>` makes a file that others can use.
