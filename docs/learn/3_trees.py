"""
3. Trees
========

"Not very good" contains *good*, but it is not praise. To understand a sentence, one has
to know which words belong together, and that is a tree: *very* modifies *good*, and
*not* modifies both. A Tree-LSTM computes along such trees, from the words up to the
whole sentence.

Trees are the hardest case for batching by hand, since no two of them have the same
shape. Here batching is automatic, and the code for trees stays simple.
"""

# %%
# The Stanford Sentiment Treebank (Socher et al. 2013) has such trees for film reviews.
# Every phrase has a mark from 0, very bad, to 4, very good. We generate similar trees,
# so that there is nothing to download: ``very`` moves a mark away from the middle,
# ``not`` reverses it, and after ``but`` comes the part that decides.
#
# A word is ``(mark, "word")`` and a phrase is ``(mark, left, right)``.

import random

import dynet_cy as dy

WORDS = {
    0: ["awful", "dreadful"],
    1: ["dull", "weak", "clumsy"],
    2: ["long", "quiet", "French"],
    3: ["good", "fresh", "charming"],
    4: ["superb", "brilliant"],
}


def opinion(depth):
    if depth == 0 or random.random() < 0.3:
        mark = random.randrange(5)
        return (mark, random.choice(WORDS[mark]))
    inner = opinion(depth - 1)
    value = inner[0] - 2  # from -2 to 2
    sign = (value > 0) - (value < 0)
    if random.random() < 0.5:
        return (2 + max(-2, min(2, value + sign)), (2, "very"), inner)
    return (2 - sign, (2, "not"), inner)


def review():
    one, two = opinion(3), opinion(3)
    if random.random() < 0.5:
        return one
    return (two[0], one, (two[0], (2, "but"), two))


def text(tree):
    return tree[1] if len(tree) == 2 else f"{text(tree[1])} {text(tree[2])}"


random.seed(1)
train = [review() for _ in range(1000)]
test = [review() for _ in range(300)]
for tree in train[:4]:
    print(tree[0], text(tree))

# %%
# Why a Tree-LSTM, and not the ``tanh`` of the first tutorial? A long sentence makes a
# deep tree, and information about a word must pass through many levels. As in an LSTM
# over a sequence, a cell carries it, and gates decide how much of each child to keep.
#
# `dy.NaryTreeLSTMBuilder` is a Tree-LSTM for children in a fixed order. `add_input`
# takes the input of a node, or None, and the states of its children. The network is a
# recursive function that visits the tree and appends the scores of *every* phrase to a
# list.

dy.reset_random_seed(1)
model = dy.ParameterCollection()
words = ["very", "not", "but", *sum(WORDS.values(), [])]
ids = {word: i for i, word in enumerate(words)}
vectors = model.add_lookup_parameters((len(words), 16), name="words")
builder = dy.NaryTreeLSTMBuilder(2, 16, 32, model)
W = model.add_parameters((5, 32), name="W")
b = model.add_parameters(5, init=0, name="b")


def visit(tree, found):
    """The state of a phrase; `found` gets it and all phrases below, with scores."""
    if len(tree) == 2:
        state = builder.add_input(vectors[ids[tree[1]]])
    else:
        children = [visit(child, found) for child in tree[1:]]
        state = builder.add_input(None, children)
    found.append((tree, dy.affine_transform([b, W, state.output()])))
    return state


# %%
# We put a loss at every node, not only at the root: it costs little, and it teaches
# much more. If you learn only that "not very good" is bad, you have to guess which word
# is the reason. If you also learn that "very good" is good, you know.


def loss_of(trees):
    found = []
    for tree in trees:
        visit(tree, found)
    losses = [dy.pickneglogsoftmax(scores, tree[0]) for tree, scores in found]
    return dy.esum(losses) / len(losses)


def marks(trees):
    """For each tree, its phrases with predicted marks, parts before the whole."""
    dy.renew_cg(forward_only=True)
    phrases = [[] for _ in trees]
    for tree, found in zip(trees, phrases):
        visit(tree, found)
    dy.forward([scores for found in phrases for _, scores in found])
    return [[(t, int(s.npvalue().argmax())) for t, s in found] for found in phrases]


def accuracy(trees):
    """How often the mark of a whole review is right."""
    whole = [found[-1] for found in marks(trees)]
    return sum(tree[0] == mark for tree, mark in whole) / len(whole)


trainer = dy.AdamTrainer(model, alpha=0.01)
for epoch in range(3):
    random.shuffle(train)
    for start in range(0, len(train), 25):
        dy.renew_cg()
        loss = loss_of(train[start : start + 25])
        loss.backward()
        trainer.update()
    print(f"epoch {epoch}: loss {loss.value():.3f}, accuracy {accuracy(test):.1%}")

# %%
# These reviews follow rules, so a network can get all of them right; reviews written by
# people are harder. ``examples/tree_lstm.py`` reads the files of the treebank.
#
# How could 25 trees of different shapes run in a few calls? A profile counts the nodes
# of each operation, and the calls in which they ran.

from dynet_cy import profiling

with profiling.measure() as profile:
    dy.renew_cg()
    loss_of(train[:25]).value()
for row in sorted(profile, key=lambda row: -row.nodes):
    print(f"{row.nodes:4} nodes in {row.calls:2} calls  {row.op}")

# %%
# All words of all trees run first, in one call; then all phrases whose parts have been
# computed, level by level. The number of calls depends on the *deepest* tree, not on
# the number of trees. That is why more trees in a batch cost so little. Here are two
# small trees, "not very dull" and "very good", without their losses. Nodes of one
# colour ran together, white ones alone:

small = [
    (2, (2, "not"), (0, (2, "very"), (1, "dull"))),
    (4, (2, "very"), (3, "good")),
]
dy.renew_cg()
outputs = [visit(tree, []).output() for tree in small]
dy.forward(outputs)
dy.draw(*outputs).save("trees.svg")

# %%
# .. container:: graph
#
#    .. image:: trees.svg
#
# What does the network predict for each phrase of a new review? We build a tree without
# marks, and draw it with the predicted ones.

from itertools import count

import matplotlib.pyplot as plt


def plot(tree, marks, columns):
    """Draw a tree with the mark of each phrase; return the position of its root."""
    if len(tree) == 2:
        x, y = next(columns), 0
        axes.text(x, -0.3, tree[1], ha="center", va="top")
    else:
        places = [plot(child, marks, columns) for child in tree[1:]]
        x, y = sum(x for x, _ in places) / 2, 1 + max(y for _, y in places)
        for place in places:
            axes.plot([x, place[0]], [y, place[1]], color="grey", zorder=0)
    mark = next(marks)
    axes.scatter(x, y, 300, mark, cmap="RdYlGn", vmin=0, vmax=4, edgecolors="grey")
    axes.text(x, y, mark, ha="center", va="center")
    return x, y


good = (None, (None, "not"), (None, (None, "very"), (None, "charming")))
bad = (None, (None, "not"), (None, (None, "not"), (None, "brilliant")))
tree = (None, good, (None, (None, "but"), bad))

figure, axes = plt.subplots(figsize=(6, 3.2), dpi=80)
plot(tree, (mark for _, mark in marks([tree])[0]), count())
axes.axis("off")
axes.margins(0.1)

# %%
# What to remember: **a network over trees is a recursive function, and a loss at every
# node takes one more line.** The next step is
# :doc:`decisions <4_decisions_and_value>`: trees that the network builds itself.
