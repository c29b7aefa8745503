"""
4. Decisions and value()
========================

So far the shape of a graph came from the data. Often it comes from the network itself:
a parser looks at its scores to choose its next action, a game player evaluates its
moves, a classifier checks whether it is already sure. Such a program requests a value
in the middle of the graph.

It may do so at any time. But a value that is requested must be computed *now*, and the
part of the graph that does not exist yet cannot run together with it. This tutorial
shows what that costs, and how to avoid the cost without turning the program inside out.
"""

# %%
# Our parser reads ``a + b * c`` from left to right. It keeps a stack, and it has two
# actions. *Shift* puts an operator and the letter after it on the stack. *Reduce* joins
# the three topmost items into one tree. To see that ``b * c`` belongs together, it must
# learn that ``*`` binds more tightly than ``+``, and ``^`` more tightly than both.

import random
from functools import partial

import matplotlib.pyplot as plt

import dynet_cy as dy
from dynet_cy import profiling

SHIFT, REDUCE = 0, 1
BINDS = {"+": 1, "*": 2, "^": 3}


def formula(operators):
    tokens = [random.choice("abcd")]
    for _ in range(operators):
        tokens += [random.choice("+*^"), random.choice("abcd")]
    return tokens


def right_action(stack, rest):
    """The correct action by the rules, which the parser has to learn."""
    on_stack, coming = stack[-2][0], rest[0]
    if on_stack == coming == "^":  # a ^ b ^ c is a ^ (b ^ c)
        return SHIFT
    return SHIFT if BINDS[coming] > BINDS[on_stack] else REDUCE


# %%
# Each item on the stack has a text and a vector. The vector of a token comes from a
# table; the vector of a tree is computed from those of its parts. The parser scores
# both actions from the top of the stack and the next operator.

dy.reset_random_seed(1)
model = dy.ParameterCollection()
table = model.add_lookup_parameters((7, 16))
W_join = model.add_parameters((16, 48))
W_hidden = model.add_parameters((32, 64))
W_action = model.add_parameters((2, 32))


def leaf(token):
    return token, table["abcd+*^".index(token)]


def join(parts):
    texts, vectors = zip(*parts)
    return f"({' '.join(texts)})", dy.tanh(W_join * dy.concatenate(list(vectors)))


def scores(stack, rest):
    seen = [vector for _, vector in [*stack[-3:], leaf(rest[0])]]
    return W_action * dy.rectify(W_hidden * dy.concatenate(seen))


def parse(tokens, choose):
    """Parse one formula; `choose` decides where there is a choice."""
    stack, rest = [leaf(tokens[0])], tokens[1:]
    while rest or len(stack) > 1:
        if len(stack) < 3:
            action = SHIFT
        elif not rest:
            action = REDUCE
        else:
            action = choose(stack, rest)
        if action == SHIFT:
            stack += [leaf(rest[0]), leaf(rest[1])]
            rest = rest[2:]
        else:
            stack[-3:] = [join(stack[-3:])]
    return stack[0][0]


# %%
# Training needs no decisions
# ---------------------------
#
# During training the parser follows the correct actions. Its own scores only go into
# the loss, so no value is needed before the whole batch has been built. So the first
# advice is: check whether you need the value at all.


def loss_of(tokens):
    losses = [dy.zeros(1)]  # short formulas leave no choice

    def choose(stack, rest):
        right = right_action(stack, rest)
        losses.append(dy.pickneglogsoftmax(scores(stack, rest), right))
        return right

    parse(tokens, choose)
    return dy.esum(losses)


random.seed(1)
trainer = dy.AdamTrainer(model, alpha=0.01)
for step in range(7):
    dy.renew_cg()
    loss = dy.average([loss_of(formula(random.randint(1, 6))) for _ in range(32)])
    if step % 2 == 0:
        print(f"step {step}: loss {loss.value():.3f}")
    loss.backward()
    trainer.update()

# %%
# Using the parser does
# ---------------------
#
# Now there is no right answer to follow. The parser must look at its scores before it
# can go on, and `npvalue` is where it looks:


def ask(stack, rest):
    return int(scores(stack, rest).npvalue().argmax())


def parse_alone(tokens):
    return parse(tokens, ask)


dy.renew_cg()
print(parse_alone(["a", "+", "b", "*", "c", "^", "d", "^", "a", "*", "b", "+", "c"]))

# %%
# It has seen few examples, so it still makes mistakes; we come back to that. For one
# formula this is all you need. For a hundred formulas a loop works too, but then each
# value is computed alone. A profile counts the calls:

tests = [formula(12) for _ in range(100)]


def calls(run):
    dy.renew_cg()
    with profiling.measure() as profile:
        run()
    return sum(row.calls for row in profile)


def in_a_loop(formulas):
    return [parse_alone(tokens) for tokens in formulas]


def together(formulas):
    return dy.batched_map(parse_alone, formulas)


print(calls(partial(in_a_loop, tests)), "calls in a loop")

# %%
# The usual cure is to rewrite the parser: keep a hundred stacks, advance all of them by
# one step, collect the scores, and ask once. That works, but it ruins a function that
# was easy to read. `dy.batched_map` does the same for you. Give it the function for
# *one* formula, and all formulas:

print(calls(partial(together, tests)), "calls with batched_map")

# %%
# It runs the function for the first formula until the function requests a value. There
# that run waits, and the function runs for the second formula, and so on. When all of
# them wait, their values are computed as one batch, and each run goes on until it asks
# for the next value. The runs do not run in parallel, so nothing needs a lock. Results
# come in the order of the items.
#
# How much this saves depends on the number of formulas. In a loop the number of calls
# grows with the number of formulas; here it depends on the *longest* formula.

numbers = [1, 2, 5, 10, 20, 50, 100]
figure, axes = plt.subplots(figsize=(5, 3), dpi=80, layout="constrained")
for run in (in_a_loop, together):
    counted = [calls(partial(run, tests[:n])) for n in numbers]
    axes.loglog(numbers, counted, "o-", label=run.__name__)
axes.set(xlabel="formulas", ylabel="calls")
axes.legend()
axes.grid(alpha=0.3)

# %%
# Learning from its own decisions
# -------------------------------
#
# All items share one graph, so the function may return expressions, and one call of
# `backward` is enough for all of them. That allows another kind of training. A parser
# that has only seen correct stacks does not know what to do after a mistake. So let it
# follow its own decisions, make a wrong one on purpose now and then, and train it at
# each step on the action that is correct there.


def practise(tokens):
    losses = [dy.zeros(1)]

    def choose(stack, rest):
        found = scores(stack, rest)
        right = right_action(stack, rest)
        losses.append(dy.pickneglogsoftmax(found, right))
        mistake = random.random() < 0.1
        return 1 - right if mistake else int(found.npvalue().argmax())

    parse(tokens, choose)
    return dy.esum(losses)


def accuracy(tests):
    dy.renew_cg(forward_only=True)
    found = dy.batched_map(parse_alone, tests)
    right = [parse(tokens, right_action) for tokens in tests]
    return sum(a == b for a, b in zip(found, right)) / len(tests)


print(f"before: {accuracy(tests):.0%} of long formulas right")
for _ in range(40):
    dy.renew_cg()
    batch = [formula(random.randint(1, 6)) for _ in range(32)]
    dy.average(dy.batched_map(practise, batch)).backward()
    trainer.update()
print(f"after:  {accuracy(tests):.0%}")

# %%
# The same pattern works for games played by a network, for networks that skip layers
# when they are sure, and for search: see ``reinforce.py``, ``early_exit.py`` and
# ``transition_parser.py`` among the :doc:`examples </project/examples>`.
#
# What to remember: **do not ask for a value unless you need it. If you do, write the
# function for one item, and let dy.batched_map ask for all items together.**
