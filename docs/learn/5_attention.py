"""
5. Attention
============

A network that generates text should be able to look back at its input. Attention makes
that possible: before each word that it writes, the network gives a weight to each word
that it has read, and takes the weighted mean of their states. The network learns to
choose the weights, and you can look at them.

With sentences of different lengths, attention usually needs padding and masks, because
padding must not get any weight. Here there is neither, because sentences are never
padded to the same length.
"""

# %%
# The task: people write dates in many ways, and we want ``1984-03-12``. The order of
# day, month and year differs, so a network has to look in the right place.

import random

import matplotlib.pyplot as plt
import numpy as np

import dynet_cy as dy

MONTHS = "January,February,March,April,May,June,July,August,September,October,"
MONTHS = (MONTHS + "November,December").split(",")
FORMS = [
    "{day} {month} {year}",
    "{month} {day} , {year}",
    "on {weekday} , {month} {day} , {year}",
    "{weekday} the {day} of {month} in the year {year}",
    "in {year} on the {day} of {month}",
]


def example():
    year = random.randint(1960, 2029)
    month = random.randint(1, 12)
    day = random.randint(1, 28)
    weekday = random.choice(["Monday", "Thursday", "Sunday"])
    words = random.choice(FORMS).format(
        day=day, month=MONTHS[month - 1], year=year, weekday=weekday
    )
    return words.split(), f"{year}-{month:02}-{day:02}"


random.seed(1)
train = [example() for _ in range(2000)]
tests = [example() for _ in range(200)]
for words, date in train[:3]:
    print(date, "is", " ".join(words))

# %%
# One LSTM reads the words in both directions, and another writes the date letter by
# letter. `dy.concatenate_cols` puts the states of all words side by side: a matrix with
# as many columns as there are words.
#
# Then attention takes three lines. A product computes how well each word fits the state
# of the writer, `dy.softmax` turns the results into weights, and another product takes
# the weighted mean.

words = sorted({word for words, _ in train for word in words})
word_ids = {word: i for i, word in enumerate(words)}
LETTERS = "0123456789-"

dy.reset_random_seed(1)
model = dy.ParameterCollection()
word_vectors = model.add_lookup_parameters((len(words), 32))
letter_vectors = model.add_lookup_parameters((len(LETTERS) + 1, 16))
reader = dy.BiRNNBuilder(1, 32, 48, model, dy.LSTMBuilder)
writer = dy.LSTMBuilder(1, 16 + 48, 48, model)
W_look = model.add_parameters((48, 48))
W_letter = model.add_parameters((len(LETTERS), 96))


def read(words):
    """A column for each word."""
    states = reader.transduce([word_vectors[word_ids[word]] for word in words])
    return dy.concatenate_cols(states)


def attend(columns, state):
    """The weighted mean of the columns, and the weights."""
    fit = dy.transpose(columns) * (W_look * state)
    weights = dy.softmax(fit)
    return columns * weights, weights


def write(columns, choose):
    """Write ten letters; `choose` picks each one, given the scores and the weights."""
    context, letter = dy.zeros(48), len(LETTERS)  # nothing seen, nothing written
    state = writer.initial_state()
    for _ in range(10):
        state = state.add_input(dy.concatenate([letter_vectors[letter], context]))
        context, weights = attend(columns, state.output())
        scores = W_letter * dy.concatenate([state.output(), context])
        letter = choose(scores, weights)


# %%
# In training the letters are known, so no value is needed while the graph is built, as
# in :doc:`the previous tutorial <4_decisions_and_value>`. Sentences of three words and
# of ten are in one batch, and their products of different sizes still run together.


def loss_of(words, date):
    right = iter(LETTERS.index(letter) for letter in date)
    losses = []

    def choose(scores, weights):
        letter = next(right)
        losses.append(dy.pickneglogsoftmax(scores, letter))
        return letter

    write(read(words), choose)
    return dy.esum(losses)


trainer = dy.AdamTrainer(model, alpha=0.005)
for epoch in range(5):
    random.shuffle(train)
    total = 0.0
    for start in range(0, len(train), 20):
        dy.renew_cg()
        loss = dy.average([loss_of(*pair) for pair in train[start : start + 20]])
        total += loss.value()
        loss.backward()
        trainer.update()
    print(f"epoch {epoch}: loss {total / (len(train) / 20):.3f}")

# %%
# To write a date by itself, the network has to know each letter before it can write the
# next. The function asks for the scores of one item, and `dy.batched_map` computes
# those of all items together. The weights show what the network looked at; we keep them
# for a picture.


def date_of(words):
    written, looked_at = [], []

    def choose(scores, weights):
        letter = int(scores.npvalue().argmax())
        written.append(LETTERS[letter])
        looked_at.append(weights)
        return letter

    write(read(words), choose)
    return "".join(written), looked_at


dy.renew_cg()
found = dy.batched_map(date_of, [words for words, _ in tests])
right = sum(date == written for (_, date), (written, _) in zip(tests, found))
print(f"{right / len(tests):.0%} of {len(tests)} new dates are right")

# %%
# The picture shows where the network looked. Each row is a letter that it wrote, each
# column a word that it read. The darker a field, the larger the weight of that word.

shown = [["7", "May", "1999"], ["on", "Sunday", ",", "July", "21", ",", "1969"]]
figure, both = plt.subplots(1, 2, figsize=(7, 3.5), dpi=80, layout="constrained")
dy.renew_cg()
for words, axes in zip(shown, both):
    written, looked_at = date_of(words)
    axes.imshow(np.array([weights.npvalue() for weights in looked_at]), cmap="Blues")
    axes.set_xticks(range(len(words)), words, rotation=45)
    axes.set_yticks(range(10), written)

# %%
# Nobody told the network where the month is. It learnt where to look, because that was
# the only way to get the dates right.
#
# Self-attention, where the words of a sentence attend to each other, is the same three
# lines with another query: ``columns * dy.softmax(dy.transpose(columns) * (W *
# columns))`` has a weighted mean of all words for each word. That is the heart of a
# transformer.
#
# What to remember: **attention needs no mask if each sentence is a matrix of its own.
# And the weights are values: draw them.**
