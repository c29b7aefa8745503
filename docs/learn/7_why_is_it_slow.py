"""
7. Why is it slow?
==================

A program is slow for one of three reasons: it does too much work, it does the work in
pieces that are too small, or Python itself takes most of the time. Each has its own
cure, and guessing the reason takes longer than measuring. Here is a program with two
mistakes that everybody makes once. We measure, fix, and measure again.
"""

# %%
# The network assigns one of two labels to each sentence. Its weights are multiplied by
# a gate, so that it can learn to switch some of them off.

import linecache
import random
import time

import dynet_cy as dy
from dynet_cy import profiling

random.seed(1)
dy.reset_random_seed(1)
model = dy.ParameterCollection()
table = model.add_lookup_parameters((50, 128), name="words")
W = model.add_parameters((128, 256), name="W")
gate = model.add_parameters((128, 256), name="gate")
readout = model.add_parameters((2, 128), name="readout")
trainer = dy.AdamTrainer(model)


def sentence():
    return [random.randrange(50) for _ in range(random.randint(4, 20))]


data = [(sentence(), random.randrange(2)) for _ in range(64)]
batches = [data[start : start + 16] for start in range(0, 64, 16)]


def loss_of(words, label):
    weights = dy.cmult(W, dy.logistic(gate))
    h = dy.zeros(128)
    for word in words:
        h = dy.tanh(weights * dy.concatenate([h, table[word]]))
    return dy.pickneglogsoftmax(readout * h, label)


def epoch():
    total = 0.0
    for batch in batches:
        dy.renew_cg()
        losses = []
        for words, label in batch:
            loss = loss_of(words, label)
            total += loss.value()  # to print it
            losses.append(loss)
        dy.average(losses).backward()
        trainer.update()
    return total / len(data)


# %%
# Measure first
# -------------
#
# How long does an epoch take? The fastest of several runs is the best measure, since
# other programs on the machine can only make a run slower. The times here were measured
# on the machine that built this page; the counts further below will be the same on
# yours.


def fastest(run):
    times = []
    for _ in range(20):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return f"{1000 * min(times):.1f} ms"


print(fastest(epoch))

# %%
# `dynet_cy.profiling.measure` counts and times what runs within its block.

with profiling.measure() as profile:
    epoch()
print(profile)

# %%
# Two columns matter most.
#
# *nodes*: are there as many as you expect? ``pickneglogsoftmax`` has 64, one for each
# sentence, and that is right. But ``logistic`` has 64 too. It computes the gate, which
# is the same for all sentences.
#
# *per call*: how many nodes ran together? Only one, in every row. Although the
# sentences come in batches of sixteen, each product was computed alone.
#
# Too much work: do it once
# -------------------------
#
# Which line makes the gate 64 times? Here it is easy to see. In a large program, use
# ``measure(lines=True)``, which adds a row for each line of the program.

with profiling.measure(lines=True) as profile:
    epoch()
for row in profile.lines:
    if row.op == "logistic" and not row.backward:
        print(row.nodes, "nodes:", linecache.getline(row.file, row.line).strip())

# %%
# Each sentence computes its own weights, although they are all equal, so each batch
# does this work sixteen times. It also hides from the library that all sentences use
# *one* matrix. A product of one matrix with many vectors is cheap; products of many
# matrices with one vector each are not. So move what does not depend on the example out
# of the function:


def loss_of(words, label, weights):
    h = dy.zeros(128)
    for word in words:
        h = dy.tanh(weights * dy.concatenate([h, table[word]]))
    return dy.pickneglogsoftmax(readout * h, label)


def epoch():
    total = 0.0
    for batch in batches:
        dy.renew_cg()
        weights = dy.cmult(W, dy.logistic(gate))
        losses = []
        for words, label in batch:
            loss = loss_of(words, label, weights)
            total += loss.value()
            losses.append(loss)
        dy.average(losses).backward()
        trainer.update()
    return total / len(data)


print(fastest(epoch))

# %%
# Pieces that are too small: ask late
# -----------------------------------
#
# Now for the second column. A picture shows what is wrong. It has two short sentences,
# and the program asks for the loss of the first one before it builds the second. Nodes
# of one colour ran together; white ones ran alone.

dy.renew_cg()
weights = dy.cmult(W, dy.logistic(gate))
first = loss_of([1, 2, 3], 0, weights)
first.value()
second = loss_of([4, 5, 6], 1, weights)
second.value()
dy.draw(first, second).save("asked_early.svg")

# %%
# .. container:: graph
#
#    .. image:: asked_early.svg
#
# The culprit is the innocent-looking line that adds up the loss. ``loss.value()`` asks
# for a number, so it has to be computed at once, before the next sentence has been
# built. Ask after the whole batch instead:


def epoch():
    total = 0.0
    for batch in batches:
        dy.renew_cg()
        weights = dy.cmult(W, dy.logistic(gate))
        loss = dy.average([loss_of(words, label, weights) for words, label in batch])
        total += loss.value() * len(batch)
        loss.backward()
        trainer.update()
    return total / len(data)


print(fastest(epoch))

dy.renew_cg()
weights = dy.cmult(W, dy.logistic(gate))
losses = [loss_of([1, 2, 3], 0, weights), loss_of([4, 5, 6], 1, weights)]
dy.forward(losses)
dy.draw(*losses).save("asked_late.svg")

# %%
# .. container:: graph
#
#    .. image:: asked_late.svg
#
# Now both sentences run in step. Whatever requests a value too early makes nodes run
# alone: `value`, `npvalue`, an ``if`` on a score, a progress bar that shows the loss of
# each example. Where a program needs the value to go on, `dy.batched_map` helps; see
# :doc:`Decisions <4_decisions_and_value>`.
#
# Is it batched at all?
# ---------------------
#
# Batching can be switched off for a graph, which is the quickest way to see what it
# gains. The results stay the same, except for rounding.

for autobatching in (0, 1):
    dy.renew_cg(autobatching=autobatching)
    with profiling.measure() as profile:
        weights = dy.cmult(W, dy.logistic(gate))
        loss = dy.average([loss_of(*example, weights) for example in data])
        loss.backward()
    calls = sum(row.calls for row in profile)
    print(f"autobatching={autobatching}: loss {loss.value():.4f}, {calls:4} calls")

# %%
# Or is it Python?
# ----------------
#
# If the total of the table is far less than the running time of the program, Python
# takes the rest. It builds the graph node by node, so fewer and larger expressions
# help. A builder makes all steps of a sequence in one call:

builder = dy.LSTMBuilder(1, 128, 128, model)
words, _ = data[0]
dy.renew_cg()
states = builder.initial_state().transduce([table[word] for word in words])
print(f"{len(words)} words, {len(dy.cg())} nodes")

# %%
# What to remember: go through this list from the top.
#
# .. list-table::
#    :header-rows: 1
#
#    * - The profile says
#      - Then
#    * - more nodes than there should be
#      - Move what does not depend on the example out of its function.
#    * - about one node per call
#      - Does something ask for a value too early? Do weights differ although they could
#        be shared? :doc:`Performance </performance>` says what runs together.
#    * - few nodes, much time
#      - The products are large, and need that time. Use threads, or
#        :doc:`several processes <8_several_processes>`.
#    * - a total far below the running time
#      - It is Python. Use `transduce`, `dy.affine_transform` and `dy.lookup_batch`, or
#        run a Python profiler.
