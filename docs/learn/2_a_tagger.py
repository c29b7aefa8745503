"""
2. A tagger on a real treebank
==============================

A tagger labels each word in a sentence with its part of speech: noun, verb, punctuation
and so on. It is a good first model for real data, because it meets everything that
makes language awkward. Sentences have any length, words have any length, and many of
the words that you will meet are not in your training data.
"""

# %%
# First the data. Treebanks are texts in which people have annotated each word. Most
# come in one format, `CoNLL-U <https://universaldependencies.org/format.html>`_: one
# word per line, columns separated by tabs, a blank line after each sentence. So the
# function that reads it is short. We use a Turkish treebank for one reason only: pip
# can install it (``pip install turkish-treebanks``). For your own language, download a
# treebank from `universaldependencies.org <https://universaldependencies.org/>`_, and
# write ``sentences = list(read("your-file.conllu"))`` below.

import random
from collections import Counter
from importlib import metadata
from pathlib import Path

import dynet_cy as dy


# Sentences, each a list of words and a list of tags
def read(path):
    for block in Path(path).read_text(encoding="utf-8").strip().split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines()]
        rows = [row for row in rows if row[0].isdigit()]  # words, not comments
        yield [row[1] for row in rows], [row[3] for row in rows]


files = {file.name: file for file in metadata.files("turkish-treebanks")}
sentences = list(read(files["web.conllu"].locate()))
print(len(sentences), "sentences, one of them:", *map("/".join, zip(*sentences[15])))

# %%
# Some sentences are held out for testing; the network never learns from them. A word
# gets its own vector if it occurs at least twice in the training sentences. How many
# words are left out?

random.seed(1)
random.shuffle(sentences)
test, train = sentences[:300], sentences[300:1800]

counts = Counter(word.lower() for words, _ in train for word in words)
word_ids = {word: i for i, word in enumerate(w for w, n in counts.items() if n > 1)}
letter_ids = {letter: i for i, letter in enumerate(sorted(set("".join(counts))))}
tags = sorted({tag for _, tags in train for tag in tags})

print(f"{len(counts)} words, of which {len(word_ids)} have a vector")

# %%
# So a vector for each word is not enough. But a person who does not know a word still
# sees how it is spelled: an English word that ends in *-ly* is probably an adverb, and
# Turkish has endings for nearly everything. So we let one small network read the
# letters of a word, in both directions, and another one read the words of the sentence:

dy.reset_random_seed(1)
model = dy.ParameterCollection()
word_vectors = model.add_lookup_parameters((len(word_ids) + 1, 32))
letter_vectors = model.add_lookup_parameters((len(letter_ids) + 1, 16))
read_letters = dy.BiRNNBuilder(1, 16, 48, model, dy.LSTMBuilder)
read_sentence = dy.BiRNNBuilder(1, 32 + 48, 64, model, dy.LSTMBuilder)
score = dy.nn.Linear(64, len(tags), model)


# The representation of a single word: its vector, and a summary of its letters
def embed(word):
    letters = [letter_vectors[letter_ids.get(x, len(letter_ids))] for x in word.lower()]
    vector = word_vectors[word_ids.get(word.lower(), len(word_ids))]
    return dy.concatenate([vector, dy.emax(read_letters.transduce(letters))])


# For each word, a score for each tag
def scores(words):
    states = read_sentence.transduce([embed(word) for word in words])
    return [score(state) for state in states]


# %%
# That is the whole network, and it is written for one sentence. Nothing in it knows
# about batches. A sentence of five words makes five embeddings; a word of twelve
# letters makes twelve steps in each direction.
#
# Tagging a sentence means taking the tag with the best score for each word. Ask for all
# scores at once: `dy.forward` computes a whole list of expressions, so that sentences
# run together.


def tag(many):
    dy.renew_cg(forward_only=True)  # no gradients will be requested
    found = [scores(words) for words in many]
    dy.forward([s for sentence in found for s in sentence])
    return [[tags[int(s.npvalue().argmax())] for s in sentence] for sentence in found]


def accuracy():
    found = tag([words for words, _ in test])
    right = [a == b for (_, own), one in zip(test, found) for a, b in zip(own, one)]
    return sum(right) / len(right)


# %%
# Training takes 16 sentences for each update. A batch needs very little code: a list of
# losses, and `dy.average`. The printed loss is that of the last batch.

trainer = dy.AdamTrainer(model, alpha=0.003)
for epoch in range(4):
    random.shuffle(train)
    for start in range(0, len(train), 16):
        dy.renew_cg()
        losses = []
        for words, labels in train[start : start + 16]:
            for s, right in zip(scores(words), labels):
                losses.append(dy.pickneglogsoftmax(s, tags.index(right)))
        loss = dy.average(losses)
        loss.backward()
        trainer.update()
    print(f"epoch {epoch}: loss {loss.value():.3f}, accuracy {accuracy():.1%}")

# %%
# That took a few seconds on one core. With all sentences, larger vectors, dropout and
# ten epochs the same design gains several points; ``examples/tagger.py`` is that
# program.
#
# Now tag a sentence of your own. This one means "My little cat drank the milk quickly
# .":

sentence = ["Küçük", "kedim", "sütü", "hızlıca", "içti", "."]
print(*map("/".join, zip(sentence, tag([sentence])[0])))

# %%
# Is it worth reading letters? Take ``read_letters`` out of ``embed``, so that a word is
# only its vector of 32 numbers, and train again. The network then cannot tell unknown
# words apart.
#
# What to remember: **write the network for one sentence, and put the losses of many
# into one list.** Finally, save the parameters, so that nobody has to train again:

model.save("tagger.txt")

# %%
# Another program makes the same collection and calls ``model.populate("tagger.txt")``.
# :doc:`Tutorial 9 <9_shipping_a_model>` makes a file that others can use.
