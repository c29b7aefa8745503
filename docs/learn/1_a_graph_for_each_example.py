"""
1. A graph for each example
===========================

Most libraries want all examples of a batch to have one shape. Sentences, trees and
games do not. Here you write the network for **one** example, in plain Python, and the
library works out what it can compute together.
"""

# %%
# Parameters are the numbers that training changes. They live in a collection, and
# they stay when the graph is thrown away.

import random

import dynet_cy as dy

dy.reset_random_seed(1)  # so that you get the numbers on this page
model = dy.ParameterCollection()
leaf = model.add_lookup_parameters((2, 16), name="leaf")  # two rows of 16 numbers
combine = {op: model.add_parameters((16, 32), name=op) for op in ("and", "or")}
readout = model.add_parameters((2, 16), name="readout")

# %%
# The examples are logical expressions, such as ``True`` or ``("and", True, ("or",
# False, True))``. Each is a tree with its own shape. The network is a recursive
# function that contains an ``if``, like any Python function.


def network(tree):
    if isinstance(tree, bool):
        return leaf[int(tree)]
    op, left, right = tree
    return dy.tanh(combine[op] * dy.concatenate([network(left), network(right)]))


dy.renew_cg()
state = network(("and", True, ("or", False, True)))
print(state)

# %%
# Nothing has been computed yet: `state` is an *expression*, which stands for a node of
# a graph. The node is computed when you ask for its value.

print(state.npvalue().round(2))

# %%
# `dy.renew_cg()` above means "renew the computation graph". The graph is like a
# blackboard: each example, or each batch of examples, starts on a clean one. Call it at
# the start of every step.
#
# A loss compares the output of the network with the right answer. `pickneglogsoftmax`
# is the cross-entropy: -log of the probability that softmax gives to the right answer.
# For a batch, make one loss for each example and add them up.

trees = [
    (True, 1),
    (("and", True, False), 0),
    (("or", ("and", True, True), False), 1),
    (("and", ("or", False, True), True), 1),
]

dy.renew_cg()
losses = [
    dy.pickneglogsoftmax(readout * network(tree), answer) for tree, answer in trees
]
loss = dy.esum(losses)
print(f"{loss.value():.3f}")

# %%
# When `value()` was called, the library looked in all four trees for nodes that do the
# same operation, and ran each group of them as one call. In the drawing, nodes of one
# colour ran together; white ones ran alone.

drawing = dy.draw(loss)
drawing.save("four_trees.svg")

# %%
# .. container:: graph
#
#    .. image:: four_trees.svg
#
# That is automatic batching. There is no padding and there are no masks, and adding a
# fifth tree changes nothing in the code.
#
# Training is the usual loop: a graph, a loss, its gradients, an update. Here are random
# trees of up to four levels.


def example(depth):
    """A random tree and its value."""
    if depth == 0 or random.random() < 0.2:
        value = random.random() < 0.5
        return value, value
    op = random.choice(["and", "or"])
    (a, x), (b, y) = example(depth - 1), example(depth - 1)
    return (op, a, b), (x and y if op == "and" else x or y)


random.seed(1)
trainer = dy.AdamTrainer(model, alpha=0.01)
for step in range(501):
    dy.renew_cg()
    batch = [example(4) for _ in range(32)]
    losses = [
        dy.pickneglogsoftmax(readout * network(tree), int(answer))
        for tree, answer in batch
    ]
    loss = dy.average(losses)
    if step % 100 == 0:
        print(f"step {step}: loss {loss.value():.4f}")
    loss.backward()
    trainer.update()

# %%
# Has it learnt logic, or only these small trees? Try a thousand trees that are twice as
# deep.
# `dy.forward` computes many expressions at once, which lets them run together.

dy.renew_cg()
tests = [example(8) for _ in range(1000)]
scores = [readout * network(tree) for tree, _ in tests]
dy.forward(scores)
right = sum(int(s.npvalue().argmax()) == value for s, (_, value) in zip(scores, tests))
print(f"{right} of 1000 deeper trees right")

# %%
# What to remember: **parameters stay, the graph is new each time, and nothing runs
# until you ask for a value.** Ask late, and for many values at once, so that many nodes
# run together.
