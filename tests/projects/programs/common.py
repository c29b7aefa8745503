"""Initial values, sizes, data and printing for the programs in this folder.

Nothing here imports DyNet: programs differ in when they do.
"""

import os
import random
from collections import namedtuple

import numpy as np

SCALE = int(os.environ.get("PROJECT_SCALE", "1"))  # benchmarks set it; sizes and amounts of data grow with it

Token = namedtuple("Token", "form tag head relation")  # head: number of a token; 0 is the root, 1 the first token


def size(n):
    """A number of hidden units, or of sentences."""
    return n * SCALE


def show(*words):
    """Print a line that must be equal in both libraries; numbers with a point may differ by rounding."""
    print(*(f"{float(w):.9g}" if isinstance(w, (float, np.floating)) else w for w in words), flush=True)


def initialize(model, seed):
    """Set the values of all parameters of a collection: the libraries' own random numbers differ."""
    rng = np.random.RandomState(seed)
    for p in model.parameters_list():
        shape = p.shape()
        p.set_value(rng.normal(0, 1 / np.sqrt(shape[-1] + 1), shape))
    for table in model.lookup_parameters_list():
        table.init_from_array(rng.normal(0, 0.3, table.shape()))


def attach(heads, first, last, head, rng):
    """Attach a random projective tree of the tokens from first to last to a head."""
    if first > last:
        return
    root = rng.randint(first, last)
    heads[root] = head
    attach(heads, first, root - 1, root, rng)
    attach(heads, root + 1, last, root, rng)


def treebank(count, seed, shortest=3, longest=7, crossing=False):
    """Sentences whose words, tags and relations tell something about their trees.

    With `crossing`, two tokens of some sentences are swapped, so that their trees are not projective.
    """
    rng = random.Random(seed)
    sentences = []
    for number in range(count):
        n = rng.randint(shortest, longest)
        heads = [0] * (n + 1)
        attach(heads, 1, n, 0, rng)
        if crossing and number % 3 == 0:
            i = rng.randint(1, n - 1)
            other = {i: i + 1, i + 1: i}
            moved = list(heads)
            for k in range(1, n + 1):
                moved[other.get(k, k)] = other.get(heads[k], heads[k])
            heads = moved
        sentence = []
        for i in range(1, n + 1):
            side = "root" if not heads[i] else "left" if i < heads[i] else "right"
            leaf = i not in heads
            tag = {"root": "V", "left": "N", "right": "A"}[side] if leaf or side == "root" else "P"
            form = tag.lower() + rng.choice("abc") * rng.randint(1, 3)
            sentence.append(Token(form, tag, heads[i], side))
        sentences.append(sentence)
    return sentences


def vocabulary(items, *special):
    """Numbers of different items, after the special ones."""
    names = [*special, *sorted(set(items))]
    return {name: i for i, name in enumerate(names)}


def projective_heads(scores):
    """The heads of the best projective tree (Eisner's algorithm); scores[head, dependent], token 0 is the root."""
    n = len(scores)
    best = np.full((2, 2, n, n), -np.inf)  # complete or not, direction (0: the head is right), span
    back = np.zeros((2, 2, n, n), int)
    for i in range(n):
        best[:, :, i, i] = 0
    for width in range(1, n):
        for s in range(n - width):
            t = s + width
            inner = [best[1, 1, s, q] + best[1, 0, q + 1, t] for q in range(s, t)]
            q = int(np.argmax(inner))
            best[0, 0, s, t], best[0, 1, s, t] = inner[q] + scores[t, s], inner[q] + scores[s, t]
            back[0, :, s, t] = s + q
            left = [best[1, 0, s, q] + best[0, 0, q, t] for q in range(s, t)]
            right = [best[0, 1, s, q] + best[1, 1, q, t] for q in range(s + 1, t + 1)]
            best[1, 0, s, t], back[1, 0, s, t] = max(left), s + int(np.argmax(left))
            best[1, 1, s, t], back[1, 1, s, t] = max(right), s + 1 + int(np.argmax(right))
    heads = [-1] * n
    spans = [(1, 1, 0, n - 1)]
    while spans:
        complete, direction, s, t = spans.pop()
        if s == t:
            continue
        q = int(back[complete, direction, s, t])
        if not complete:
            heads[s if direction == 0 else t] = t if direction == 0 else s
            spans += [(1, 1, s, q), (1, 0, q + 1, t)]
        elif direction == 0:
            spans += [(1, 0, s, q), (0, 0, q, t)]
        else:
            spans += [(0, 1, s, q), (1, 1, q, t)]
    return heads


def pairs(count, seed, letters="abcdef", longest=6):
    """Words and their translations: reversed, each letter replaced by the next one."""
    rng = random.Random(seed)
    words = ["".join(rng.choice(letters) for _ in range(rng.randint(2, longest))) for _ in range(count)]
    after = {c: letters[(i + 1) % len(letters)] for i, c in enumerate(letters)}
    return [(w, "".join(after[c] for c in reversed(w))) for w in words]


def chunks(count, seed):
    """Sentences of words with chunk tags (B, I, O): (words, tags, chunks); a chunk is (first, last)."""
    rng = random.Random(seed)
    sentences = []
    for _ in range(count):
        words, tags, spans = [], [], []
        while len(words) < 3 or rng.random() < 0.6 and len(words) < 8:
            if rng.random() < 0.4:
                n = rng.randint(1, 2)
                spans.append((len(words), len(words) + n - 1))
                words += ["N" + rng.choice("abc") for _ in range(n)]
                tags += ["B"] + ["I"] * (n - 1)
            else:
                words.append("o" + rng.choice("abc"))
                tags.append("O")
        sentences.append((words, tags, spans))
    return sentences
