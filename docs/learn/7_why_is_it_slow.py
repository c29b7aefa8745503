"""
7. Why is it slow?
==================

A program is slow for one of three reasons: it does too much, it does it in too small
pieces, or it waits for Python. Each has its own cure, and guessing which it is takes
longer than looking. Here is a program with two mistakes that everybody makes once. We
look, mend, and look again.
"""

# %%
# A network reads sentences and says one of two things about each. Its weights go
# through a gate, so that it can learn to switch some of them off.

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
# Look first
# ----------
#
# How long does it take? The fastest of some runs says it best, since whatever else the
# machine does can only add to it. Times here are of the machine that built this page;
# counts, further below, will be the same on yours.


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
# Two columns tell most.
#
# *nodes*: are there as many as there should be? ``pickneglogsoftmax`` has 64, one for
# each sentence, and that is right. But ``logistic`` has 64 too. It computes the gate,
# which is the same for all sentences.
#
# *per call*: how many nodes ran together? One, everywhere. There are batches of sixteen
# sentences, and yet each product was computed alone.
#
# Too much: do it once
# --------------------
#
# Which line makes the gate 64 times? Here one sees it; in a large program
# ``measure(lines=True)`` says it. Then the profile has rows for the lines of the
# program.

with profiling.measure(lines=True) as profile:
    epoch()
for row in profile.lines:
    if row.op == "logistic" and not row.backward:
        print(row.nodes, "nodes:", linecache.getline(row.file, row.line).strip())

# %%
# Each sentence makes weights of its own, all of them equal. That is work done sixteen
# times. It also hides from the library that all sentences use *one* matrix. A product
# of one matrix with many vectors is cheap; products of many matrices with a vector each
# are not. What does not depend on the example goes out of the function:


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
# Too small pieces: ask late
# --------------------------
#
# Now for the second column. A picture shows what is wrong: two short sentences, where
# the loss of the first is asked for before the second is there. Nodes of one colour ran
# together; white ones ran alone.

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
# The culprit is the innocent line that adds up the loss. ``loss.value()`` asks for a
# number, so it has to be computed at once, before the next sentence is known. Ask after
# the whole batch instead:


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
# Now both sentences go in step. Anything that asks has this effect: `value`, `npvalue`,
# an ``if`` on a score, a progress bar that shows the loss of each example. Where a
# program must ask to go on, `dy.batched_map` helps; see :doc:`Decisions
# <4_decisions_and_value>`.
#
# Is it batched at all?
# ---------------------
#
# Batching can be switched off for a graph, which is the quickest way to see what it
# brings. The numbers stay the same, but for rounding.

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
# If the total of the table is far less than what the program takes, the rest is Python.
# It makes the graph, node by node, and fewer, larger expressions help. A builder makes
# all steps of a sequence in one call:

builder = dy.LSTMBuilder(1, 128, 128, model)
words, _ = data[0]
dy.renew_cg()
states = builder.initial_state().transduce([table[word] for word in words])
print(f"{len(words)} words, {len(dy.cg())} nodes")

# %%
# What to keep is a list, in the order in which to go through it:
#
# .. list-table::
#    :header-rows: 1
#
#    * - The profile says
#      - Then
#    * - more nodes than there should be
#      - Move what does not depend on the example out of its function.
#    * - about one node per call
#      - Does something ask early? Do weights differ where they need not?
#        :doc:`Performance </performance>` says what runs together.
#    * - few nodes, much time
#      - The products are large, and that is what they cost. Use threads, or
#        :doc:`several processes <8_several_processes>`.
#    * - a total far below the clock
#      - It is Python: `transduce`, `dy.affine_transform`, `dy.lookup_batch`, or a
#        profiler for Python.
