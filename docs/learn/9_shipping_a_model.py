"""
9. Shipping a model
===================

A model is finished when somebody else can use it without knowing how it was trained.
They want a function that takes a text. Between training and that function there is a
file. This tutorial is about what belongs in the file, how to read it, and what a file
from a stranger can do.
"""

# %%
# The parameters are only half of a model. The other half is what you need to build the
# network again: the list of words, the names of the tags, the sizes. Without it the
# parameters are useless. So put all of that into one object from the start. We call it
# the *spec*, and it is plain data.

import json
import pickle
import random
from pathlib import Path

from safetensors.numpy import load_file

import dynet_cy as dy


class Tagger:
    def __init__(self, spec, model):
        self.spec = spec
        self.parameters = model.add_subcollection("tagger")
        add = self.parameters
        self.ids = {word: i for i, word in enumerate(spec["words"], start=1)}
        self.table = add.add_lookup_parameters((len(self.ids) + 1, 16), name="words")
        self.reader = dy.BiRNNBuilder(1, 16, spec["hidden"], add, dy.LSTMBuilder)
        self.W = add.add_parameters((len(spec["tags"]), spec["hidden"]), name="W")

    def scores(self, words):
        ids = [self.ids.get(word.lower(), 0) for word in words]  # 0: not known
        return [self.W * h for h in self.reader.transduce([self.table[i] for i in ids])]

    def __call__(self, *texts):
        """Tag texts: for each a list of (word, tag)."""
        dy.renew_cg(forward_only=True)
        split = [text.split() for text in texts]
        found = [self.scores(words) for words in split]
        dy.forward([scores for sentence in found for scores in sentence])
        tags = [[self.tag(x.npvalue()) for x in sentence] for sentence in found]
        return [list(zip(*pair)) for pair in zip(split, tags)]

    def tag(self, scores):
        return self.spec["tags"][int(scores.argmax())]

    def param_collection(self):
        return self.parameters

    @classmethod
    def from_spec(cls, spec, model):
        return cls(spec, model)


# %%
# `__call__` is the function that people want. It makes its own graph, so that users
# need not know about graphs. ``forward_only=True`` says that no gradients will be
# requested, so the memory of values that are no longer needed can be used again. And it
# takes many texts at once, since that is faster than one call for each.
#
# The last two methods are for later. Now train the network on sentences that a few
# rules generate:

LEXICON = {
    "DET": ["the", "a", "every"],
    "ADJ": ["small", "old", "green"],
    "NOUN": ["cat", "dog", "tree", "walk"],
    "VERB": ["sees", "likes", "finds", "walk"],
}


def sentence():
    tags = ["DET", "NOUN", "VERB", "DET", "NOUN"]
    if random.random() < 0.5:
        tags.insert(random.choice([1, 4]), "ADJ")
    return [random.choice(LEXICON[tag]) for tag in tags], tags


random.seed(1)
dy.reset_random_seed(1)
words = sorted({word for group in LEXICON.values() for word in group})
model = dy.ParameterCollection()
tagger = Tagger({"words": words, "tags": list(LEXICON), "hidden": 16}, model)
trainer = dy.AdamTrainer(model, alpha=0.01)
for _ in range(100):
    dy.renew_cg()
    losses = []
    for words, tags in [sentence() for _ in range(16)]:
        for scores, tag in zip(tagger.scores(words), tags):
            losses.append(dy.pickneglogsoftmax(scores, list(LEXICON).index(tag)))
    dy.average(losses).backward()
    trainer.update()

for tagged in tagger("the old dog sees a walk", "a walk walk every dog"):
    print(*map("/".join, tagged))

# %%
# The file
# --------
#
# `dy.save` writes parameters and specs into a pair of files. It uses the object's
# `param_collection` and `spec`; `dy.load` passes the spec to `from_spec` and then sets
# the parameters. So loading a model takes one line, and the result is the function:

dy.save("tagger", [tagger])

(loaded,) = dy.load("tagger", dy.ParameterCollection())
print(*map("/".join, loaded("every walk likes the tree")[0]))

# %%
# ``tagger.data`` has the numbers as text; ``tagger.meta`` has the spec and the name of
# the class. The class itself is not in the file. Whoever loads the model needs your
# ``tagger.py``, and that is as it should be: model files should hold data, not code.
#
# A file from a stranger
# ----------------------
#
# Why does this matter? In Python, models are often pickles, and a pickle can call any
# function while it is being read. The one below calls `print`; it might as well delete
# your files.


class Surprise:
    def __reduce__(self):
        return print, ("-- this was printed by the file --",)


Path("model.meta").write_bytes(pickle.dumps(Surprise()))
Path("model.data").write_text("")

pickle.loads(Path("model.meta").read_bytes())

# %%
# The files of `dy.save` have the same format, so that DyNet can read them too. But
# `dy.load` does not unpickle them. It has its own reader, which accepts plain data and
# classes that your program has imported; a file cannot make it call anything else:

try:
    dy.load("model", dy.ParameterCollection())
except dy.ModelFileError as error:
    print(str(error).partition(";")[0])

# %%
# The worst that a bad file can do is contain bad numbers. A file that is truncated or
# belongs to another network gives an error, before any parameter has changed.
# :doc:`/files` lists what a file can and cannot do.
#
# A file for other programs
# -------------------------
#
# Text is slow for millions of numbers, and other programs cannot read it. For large
# models there is `dy.save_safetensors`: one binary file, in a format that many
# libraries support, which holds named arrays and no code. Save the spec in a file
# beside it.

dy.save_safetensors("tagger.safetensors", model)
Path("tagger.json").write_text(json.dumps(tagger.spec))

for name, array in sorted(load_file("tagger.safetensors").items()):
    print(name, array.shape)

# %%
# Loading takes two steps: first build the network, then load its parameters. Names and
# shapes are checked before any parameter is changed.

model = dy.ParameterCollection()
tagger = Tagger(json.loads(Path("tagger.json").read_text()), model)
dy.load_safetensors("tagger.safetensors", model)
print(*map("/".join, tagger("a small cat finds every green dog")[0]))

# %%
# Which format to choose:
#
# .. list-table::
#
#    * - A model that loads in one line, or that DyNet can read
#      - ``dy.save``, ``dy.load``
#    * - Large models, other programs
#      - ``dy.save_safetensors``, and a spec in JSON
#    * - A checkpoint, to continue training later
#      - ``dy.save_safetensors(file, model, trainer)``
#    * - Copies within your own programs
#      - ``pickle``; never for files from others
#
# What to remember: **a model is a spec and numbers, and what you ship is a function.**
# Most models fit the pattern of the class ``Tagger`` above. Put your own network into
# it.
