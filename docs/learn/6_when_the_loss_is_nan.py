"""
6. When the loss is NaN
=======================

You start a training in the evening, and in the morning the loss is ``nan``. Somewhere
one number was not a number. What was computed from it was none either, and what was
computed from that. By the time you look, NaN is everywhere, and nothing says where it
began. This tutorial makes that happen, finds the place, and says what to do where there
is no place to find.
"""

# %%
# The data are sales of a shop: how many pieces of each of eight things were sold on a
# day. The network is to tell one of three kinds of days. Only the mixture should count,
# not how much was sold in all, so the program divides each day by its length. That
# looks harmless.

import math
import os
import random

import matplotlib.pyplot as plt

import dynet_cy as dy

random.seed(2)
dy.reset_random_seed(2)
model = dy.ParameterCollection()
W = model.add_parameters((3, 8), name="W")
b = model.add_parameters(3, name="b", init=0)
trainer = dy.SimpleSGDTrainer(model, learning_rate=0.5)


def day():
    kind = random.randrange(3)
    often = [kind, kind + 1, kind + 4]  # what is bought on such days
    rates = [0.7 if thing in often else 0.2 for thing in range(8)]
    return [random.randint(1, 9) * (random.random() < rate) for rate in rates], kind


def loss_of(sold, kind):
    x = dy.inputVector(sold)
    length = dy.sqrt(dy.squared_norm(x))
    probabilities = dy.softmax(W * (x / length) + b)
    return -dy.log(dy.pick(probabilities, kind))


days = [day() for _ in range(1600)]


def train(step):
    dy.renew_cg()
    loss = dy.average([loss_of(*day) for day in days[16 * step : 16 * step + 16]])
    loss.backward()
    trainer.update()
    return loss.value()


try:
    for step in range(100):
        loss = train(step)
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.3f}")
except RuntimeError as error:
    print(f"step {step}: {error}")

# %%
# The training has stopped, and that is the first good news. The trainer looks at the
# gradients before it uses them, and the model is as it was before this step. But the
# message names all parameters there are. NaN has gone through the whole network.
#
# Finding the place
# -----------------
#
# Run the step again within `dy.detect_anomaly`. Then every batch of operations is
# looked at as soon as it has run, forward and backward, and each node remembers which
# line of the program made it. The search ends at the *first* number that is not finite.

model.zero_gradients()
try:
    with dy.detect_anomaly():
        train(step)
except dy.AnomalyError as error:
    print(str(error).replace(os.getcwd() + os.sep, ""))  # file names without folders

# %%
# Read it from the top. A division made NaN, in the line that is shown. Then come its
# arguments: ``a`` is an input and all 0, ``b`` is a square root and 0 as well. So this
# is 0/0. On one day nothing was sold, and a day without sales has no length.
#
# For a whole program you need not write ``with``: ``python train.py --dynet-check``
# does the same. It is slower, but not by much, and no number changes.
#
# Mending it
# ----------
#
# A small number under the root keeps the division defined. It belongs *under* the root,
# since the slope of a root at 0 is infinite, and backward would find that out next.
#
# While we are here: ``log(softmax(x))`` is the next accident. A probability may become
# 0, and its logarithm infinite. `dy.pickneglogsoftmax` computes the same loss without
# the detour.


def loss_of(sold, kind):
    x = dy.inputVector(sold)
    length = dy.sqrt(dy.squared_norm(x) + 1e-6)
    return dy.pickneglogsoftmax(W * (x / length) + b, kind)


model.zero_gradients()
for step in range(100):
    loss = train(step)
print(f"step {step}: loss {loss:.3f}")

# %%
# When there is no place
# ----------------------
#
# Sometimes nothing is wrong in any line. Gradients of a long recurrent network can grow
# at every step back in time, until they are too large to be of use. And data that come
# from sensors and spreadsheets hold a number like 1e30 now and then. Then you want to
# see how large gradients are, to bound them, and to lose one step rather than the
# night.
#
# Here a network reads 40 numbers and says their mean. Every fiftieth answer is broken.

model = dy.ParameterCollection()
reader = dy.SimpleRNNBuilder(1, 1, 24, model)
w = model.add_parameters((1, 24))
trainer = dy.SimpleSGDTrainer(model, learning_rate=0.05)
trainer.set_clip_threshold(1.0)  # gradients longer than 1 are shortened to 1

norms = []
for step in range(200):
    dy.renew_cg()
    losses = []
    for _ in range(8):
        numbers = [random.random() for _ in range(40)]
        answer = 1e30 if step % 50 == 49 else sum(numbers) / 40
        inputs = [dy.scalarInput(number) for number in numbers]
        state = reader.initial_state().transduce(inputs)[-1]
        losses.append(dy.square(w * state - answer))
    dy.average(losses).backward()
    trainer.update(skip_nonfinite=True)
    norms.append(trainer.gradient_norm)

dropped = [step for step, norm in enumerate(norms) if not math.isfinite(norm)]
print("updates dropped at steps", dropped)

# %%
# ``skip_nonfinite=True`` drops an update whose gradients are not finite, and training
# goes on with the next. It is for accidents of the data. If *many* updates are dropped,
# something is wrong, and `dy.detect_anomaly` finds it: so count them.
#
# `trainer.gradient_norm` is the length of all gradients together in the last update,
# before they were cut. A picture of it often tells more than the loss does. Gradients
# below the dashed line are used as they are; those above it are shortened to it.

figure, axes = plt.subplots(figsize=(6, 3), dpi=80, layout="constrained")
axes.semilogy(norms, linewidth=1)
axes.axhline(1.0, color="C1", linestyle="--", label="clip threshold")
for number, step in enumerate(dropped):
    axes.axvline(step, color="C3", alpha=0.5, label="" if number else "dropped")
axes.set(xlabel="step", ylabel="gradient norm")
axes.legend()

# %%
# What to keep: **run the bad step again within dy.detect_anomaly, and read the message
# from the top.** :doc:`Debugging </debugging>` has a table of what you may find there.
