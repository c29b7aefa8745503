"""
10. Gradients of gradients
==========================

``backward()`` ends with numbers, in the parameters. Some losses need more: they contain
a gradient themselves, such as a penalty on how steep a network is. `dy.gradients` gives
gradients as *expressions*. They are nodes of the graph like all others, so a loss may
contain them, they batch, and they have gradients of their own.
"""

# %%
# The slope of x³ is 3 x², the slope of that is 6 x.

import random

import matplotlib.pyplot as plt
import numpy as np

import dynet_cy as dy

random.seed(1)
dy.reset_random_seed(1)  # so that you get the numbers on this page
rng = np.random.default_rng(1)

dy.renew_cg()
x = dy.inputVector([1, 2, 3])
slope = dy.gradients(dy.sum_elems(dy.cube(x)), x)
print(slope.npvalue(), dy.gradients(dy.sum_elems(slope), x).npvalue())

# %%
# The first argument is a scalar, the loss. The second one is what to differentiate by:
# an expression, a parameter, a lookup table, or a list of them. `backward` remains the
# way to train: it is faster, and it adds to the gradients that the trainer uses.
#
# A penalty on slopes
# -------------------
#
# A *critic* gives high scores to real examples and low ones to forgeries. Two critics
# with the same opinion can have very different slopes, and a steep one is of no use to
# the forger, who wants to follow the slope uphill. So the loss of the critic gets a
# second part: at points between the two kinds, the length of the slope should be 1
# (Gulrajani et al., "Improved training of Wasserstein GANs", NeurIPS 2017).

model = dy.ParameterCollection()
W1 = model.add_parameters((32, 2))
W2 = model.add_parameters((32, 32))
v = model.add_parameters((1, 32))


def critic(x):
    return v * dy.tanh(W2 * dy.tanh(W1 * x))


def steepness(point):
    x = dy.inputVector(point)
    return dy.l2_norm(dy.gradients(critic(x), x))


def example():
    angle = rng.uniform(0, 2 * np.pi)
    real = np.array([np.cos(angle), np.sin(angle)])  # on a circle
    forged = rng.normal(0, 0.2, 2)
    share = rng.uniform()
    return real, forged, share * real + (1 - share) * forged


def critic_loss(penalized):
    real, forged, between = example()
    loss = critic(dy.inputVector(forged)) - critic(dy.inputVector(real))
    return loss + 10 * dy.square(steepness(between) - 1) if penalized else loss


def slopes():
    dy.renew_cg()
    return np.array(dy.values([steepness(example()[2]) for _ in range(200)]))


for penalized in (False, True):
    trainer = dy.AdamTrainer(model, learning_rate=0.005)
    for _ in range(150):
        dy.renew_cg()
        dy.average([critic_loss(penalized) for _ in range(32)]).backward()
        trainer.update()
    found = slopes()
    name = "with the penalty" if penalized else "without"
    print(f"{name}: slopes {found.mean():.2f}, give or take {found.std():.2f}")

# %%
# Each of the 32 examples has a small graph with its own gradient, written for one
# point. The library runs them together, the gradients included:

dy.renew_cg()
dy.average([critic_loss(True) for _ in range(32)]).backward()
print(f"{len(dy.cg())} nodes ran in {dy.cg().n_batches()} calls")

# %%
# Learning to learn
# -----------------
#
# A network that has seen many similar tasks should need only a few examples of the next
# one. MAML (Finn, Abbeel and Levine, "Model-agnostic meta-learning", ICML 2017) looks
# for weights from which *one step of gradient descent* leads to a good network. That
# step is a part of the graph: the new weights are the old ones minus a gradient, both
# expressions. The loss is that of the new weights, on other examples of the same task.
#
# Here a task is to continue a wave, of which ten points are known. A function takes the
# weights as an argument, so that it can be called with parameters and with expressions.

start = dy.ParameterCollection()
weights = [
    start.add_parameters((40, 1)),
    start.add_parameters(40, init=0),
    start.add_parameters((40, 40)),
    start.add_parameters(40, init=0),
    start.add_parameters((1, 40)),
]


def error(weights, points):
    W1, b1, W2, b2, v = weights
    xs, ys = (dy.inputTensor(row[None]) for row in points)  # a column for each point
    h = dy.tanh(W1 * xs + b1)
    h = dy.tanh(W2 * h + b2)
    return dy.mean_elems(dy.square(v * h - ys))


def adapted(weights, points, steps=1):
    for _ in range(steps):
        slopes = dy.gradients(error(weights, points), weights)
        weights = [w - 0.05 * slope for w, slope in zip(weights, slopes)]
    return weights


def wave():
    height, shift = rng.uniform(1, 3), rng.uniform(0, np.pi)
    return lambda xs: np.stack([xs, height * np.sin(xs + shift)])


def task():
    f = wave()
    return f(rng.uniform(-4, 4, 10)), f(rng.uniform(-4, 4, 10))


untrained = [w.npvalue() for w in weights]
trainer = dy.AdamTrainer(start, learning_rate=0.003)
for step in range(601):
    dy.renew_cg()
    tasks = [task() for _ in range(16)]
    losses = [error(adapted(weights, few), others) for few, others in tasks]
    loss = dy.average(losses)
    loss.backward()  # through the step of gradient descent
    trainer.update()
    if step % 200 == 0:
        print(f"step {step}: error after one step on a new wave {loss.value():.2f}")

# %%
# Nothing holds it to one step: the loop in ``adapted`` may take as many as it wants.
# From other weights the same steps lead nowhere.

dy.renew_cg()
f, xs = wave(), np.linspace(-4, 4, 100)
known = f(rng.uniform(-4, 4, 10))
figure, axes = plt.subplots(figsize=(5, 3), dpi=80, layout="constrained")
axes.plot(*f(xs), "k:", label="the wave")
axes.plot(*known, "ko")
for name, first in (("untrained", map(dy.inputTensor, untrained)), ("MAML", weights)):
    W1, b1, W2, b2, v = adapted(list(first), known, steps=3)
    h = dy.tanh(W2 * dy.tanh(W1 * dy.inputTensor(xs[None]) + b1) + b2)
    axes.plot(xs, (v * h).npvalue().ravel(), label=f"{name}, three steps")
axes.legend(fontsize="small")

# %%
# Which example is to blame?
# --------------------------
#
# A classifier makes a mistake. Which examples of its training data have led to it? One
# could train again without each of them. *Influence functions* estimate the same
# without training (Koh and Liang, "Understanding black-box predictions", ICML 2017):
# leaving out an example changes the weights by H⁻¹ g, where g is the gradient of its
# loss and H is the *Hessian*, the matrix of second derivatives of the whole loss.
#
# With a thousand weights, H has a million numbers. But it is enough to multiply it by a
# vector, which `dy.hessian_vector_product` does for the price of two gradients.

classifier = dy.ParameterCollection()
w = classifier.add_parameters(3, init=0)
points = [np.array([*rng.normal(0, 1, 2), 1.0]) for _ in range(40)]
labels = [int(p[0] + p[1] > 0) for p in points]
labels[7] = 1 - labels[7]  # somebody made a mistake
puzzle, right = np.array([*0.8 * points[7][:2], 1.0]), 1 - labels[7]


def loss_at(point, label):
    score = dy.dot_product(w, dy.inputVector(point))
    return dy.softplus(-score if label else score)


def whole_loss(without=None):
    kept = [i for i in range(len(points)) if i != without]
    return dy.esum([loss_at(points[i], labels[i]) for i in kept]) + dy.squared_norm(w)


def train(without=None):
    trainer = dy.SimpleSGDTrainer(classifier, learning_rate=0.05)
    w.set_value(np.zeros(3))
    for _ in range(300):
        dy.renew_cg()
        whole_loss(without).backward()
        trainer.update()


def hessian_times(vector):
    dy.renew_cg()
    return dy.hessian_vector_product(whole_loss(), w, vector).npvalue()


def gradient(point, label):
    dy.renew_cg()
    return dy.gradients(loss_at(point, label), w).npvalue()


# %%
# H⁻¹ g is the vector that H multiplies to g. The method of conjugate gradients finds it
# with a few such products.


def solve(g, rounds=10):
    found, left = np.zeros_like(g), g
    direction = left
    for _ in range(rounds):
        if left @ left < 1e-12:
            break
        product = hessian_times(direction)
        step = left @ left / (direction @ product)
        found, before = found + step * direction, left
        left = left - step * product
        direction = left + left @ left / (before @ before) * direction
    return found


def puzzle_loss():
    dy.renew_cg()
    return loss_at(puzzle, right).value()


train()
before = puzzle_loss()
back = solve(gradient(puzzle, right))  # one solution serves for all examples
estimates = [gradient(p, y) @ back for p, y in zip(points, labels)]
for i in np.argsort(estimates)[:3]:
    train(without=i)
    really = puzzle_loss() - before
    print(f"without example {i}: {estimates[i]:+.3f}, really {really:+.3f}")

# %%
# Example 7, whose label is wrong, is the first of the list.
#
# What to remember: **dy.gradients is for losses that contain gradients. Write them for
# one example, as everything else, and call backward once.** A few operations, such as
# sorting, have no second order; the error names them, and :doc:`/training` lists
# them.
