"""
6. When the loss is NaN
=======================

You start training in the evening, and in the morning the loss is ``nan``. Somewhere one
result was not a number. Everything computed from it became NaN as well. By the time you
look, NaN is everywhere, and nothing says where it began. This tutorial makes that
happen, finds the line that caused it, and says what to do when no single line is to
blame.
"""

# %%
# The data are the sales of a shop: how many pieces of each of eight products were sold
# on a day. The network has to recognize three kinds of days. Only the proportions
# should count, not the total, so the program divides each day's vector by its length.
# That looks harmless.

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
# The good news is that training has stopped. The trainer checks the gradients before it
# uses them, and the model is as it was before this step. But the message names all
# parameters: NaN has spread through the whole network.
#
# Finding the place
# -----------------
#
# Run the step again within `dy.detect_anomaly`. The library then checks every batch of
# operations as soon as it has run, forward and backward, and each node remembers which
# line of the program made it. The check stops at the *first* number that is not finite.

model.zero_gradients()
try:
    with dy.detect_anomaly():
        train(step)
except dy.AnomalyError as error:
    print(str(error).replace(os.getcwd() + os.sep, ""))  # file names without folders

# %%
# Read it from the top. A division made NaN, in the line that is shown. Then come its
# arguments: ``a`` is an input whose elements are all 0, and ``b`` is a square root,
# which is 0 as well. So this is 0/0: nothing was sold that day, and the vector has
# length 0.
#
# For a whole program you need not write ``with``: ``python train.py --dynet-check``
# does the same. It is slower, but not by much, and no result changes.
#
# Fixing it
# ---------
#
# Add a small number, so that the divisor is never 0. It belongs *under* the root, since
# the slope of the root at 0 is infinite, and the gradient would be the next NaN.
#
# While we are here: ``log(softmax(x))`` is the next accident waiting to happen. A
# probability may become 0, and its logarithm infinite. `dy.pickneglogsoftmax` computes
# the same loss without that problem.


def loss_of(sold, kind):
    x = dy.inputVector(sold)
    length = dy.sqrt(dy.squared_norm(x) + 1e-6)
    return dy.pickneglogsoftmax(W * (x / length) + b, kind)


model.zero_gradients()
for step in range(100):
    loss = train(step)
print(f"step {step}: loss {loss:.3f}")

# %%
# When no line is to blame
# ------------------------
#
# Sometimes no line is wrong. Gradients of a long recurrent network can grow at every
# step back in time, until they are too large to be useful. And data from sensors and
# spreadsheets contain a number like 1e30 now and then. Then you want to see how large
# the gradients are, to limit them, and to lose one step rather than the whole night.
#
# Here a network reads 40 numbers and computes their mean. Every fiftieth target is
# broken.

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
# goes on with the next. It is meant for occasional bad data. Count the dropped updates:
# if there are *many*, something else is wrong, and `dy.detect_anomaly` finds it.
#
# `trainer.gradient_norm` is the norm of all gradients together in the last update,
# before they were clipped. A plot of it often tells more than the loss does. Gradients
# below the dashed line are used as they are; those above it are scaled down to it.

figure, axes = plt.subplots(figsize=(6, 3), dpi=80, layout="constrained")
axes.semilogy(norms, linewidth=1)
axes.axhline(1.0, color="C1", linestyle="--", label="clip threshold")
for number, step in enumerate(dropped):
    axes.axvline(step, color="C3", alpha=0.5, label="" if number else "dropped")
axes.set(xlabel="step", ylabel="gradient norm")
axes.legend()

# %%
# What to remember: **run the bad step again within dy.detect_anomaly, and read the
# message from the top.** :doc:`Debugging </debugging>` has a table of what you may find
# there.
