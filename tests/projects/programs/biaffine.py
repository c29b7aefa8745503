"""A biaffine parser with padded minibatches, as the biaffine parsers of DyNet's users use it.

Tables and weights come from NumPy arrays; the LSTMs' parameters are set one by one to orthonormal matrices; masks are
inputs with a batch; pretrained vectors are looked up with `update=False`; `lookup_batch`, `pick_batch`, `reshape` and
`concatenate_cols` move between sequence and batch; the learning rate is set at each step.

python biaffine.py train MODEL | python biaffine.py parse MODEL
"""

import sys

import dynet as dy
import numpy as np
from common import show, size, treebank, vocabulary

PAD, ROOT, UNKNOWN = 0, 1, 2


def orthonormal(rng, rows, columns):
    q, _ = np.linalg.qr(rng.randn(max(rows, columns), min(rows, columns)))
    return (q if rows >= columns else q.T).astype(np.float32)


def orthonormal_lstm(rng, inputs, hidden, pc):
    builder = dy.CompactVanillaLSTMBuilder(1, inputs, hidden, pc)
    for parameters in builder.get_parameters():
        W = orthonormal(rng, hidden, hidden + inputs)
        parameters[0].set_value(np.concatenate([W[:, hidden:]] * 4, 0))
        parameters[1].set_value(np.concatenate([W[:, :hidden]] * 4, 0))
        b = np.zeros(4 * hidden, dtype=np.float32)
        b[hidden : 2 * hidden] = -1.0
        parameters[2].set_value(b)
    return builder


def bilstm(builders, inputs, batch_size, dropout):
    for forward, backward in builders:
        f, b = forward.initial_state(), backward.initial_state()
        forward.set_dropouts(dropout, dropout)
        backward.set_dropouts(dropout, dropout)
        if batch_size is not None:
            forward.set_dropout_masks(batch_size)
            backward.set_dropout_masks(batch_size)
        there, back = f.transduce(inputs), b.transduce(reversed(inputs))
        inputs = [dy.concatenate([x, y]) for x, y in zip(there, reversed(back))]
    return inputs


def leaky_relu(x):
    return dy.bmax(x * 0.1, x)


def bilinear(x, W, y, rows, length, batch_size, outputs=1, bias_x=False, bias_y=False):
    """x and y: (rows, length) x batch; the result: (length, length) x batch, or (length, outputs, length) x batch."""
    ones = lambda: dy.inputTensor(np.ones((1, length), dtype=np.float32))  # noqa: E731
    if bias_x:
        x = dy.concatenate([x, ones()])
    if bias_y:
        y = dy.concatenate([y, ones()])
    left = W * x
    if outputs > 1:
        left = dy.reshape(left, (rows + bias_y, outputs * length), batch_size=batch_size)
    result = dy.transpose(y) * left
    if outputs > 1:
        result = dy.reshape(result, (length, outputs, length), batch_size=batch_size)
    return result


def flat(array):
    return np.reshape(array, (-1,), "F")


class Parser:
    def __init__(self, words, tags, relations, rng):
        pc = self.pc = dy.ParameterCollection()
        self.words, self.tags, self.relations = words, tags, relations
        wide, hidden, arc, rel = size(8), size(10), size(6), size(4)
        self.arc_size, self.rel_size = arc, rel
        self.word_table = pc.lookup_parameters_from_numpy(rng.randn(len(words), wide).astype(np.float32) * 0.1)
        self.pretrained = pc.lookup_parameters_from_numpy(rng.randn(len(words), wide).astype(np.float32) * 0.1)
        self.tag_table = pc.lookup_parameters_from_numpy(rng.randn(len(tags), wide).astype(np.float32))
        self.builders = [tuple(orthonormal_lstm(rng, n, hidden, pc) for _ in range(2)) for n in (2 * wide, 2 * hidden)]
        W = orthonormal(rng, arc + rel, 2 * hidden)
        self.W_dependent, self.W_head = pc.parameters_from_numpy(W), pc.parameters_from_numpy(W)
        self.b_dependent = pc.add_parameters((arc + rel,), init=dy.ConstInitializer(0.0))
        self.b_head = pc.add_parameters((arc + rel,), init=dy.ConstInitializer(0.0))
        self.W_arc = pc.add_parameters((arc, arc + 1), init=dy.ConstInitializer(0.0))
        self.W_rel = pc.add_parameters((len(relations) * (rel + 1), rel + 1), init=dy.ConstInitializer(0.0))
        self.rng = rng

    def masks(self, length, batch_size, share):
        """For each position the factors of words and tags, of which some are dropped."""
        for _ in range(length):
            word, tag = (self.rng.binomial(1, 1 - share, batch_size).astype(np.float32) for _ in range(2))
            scale = 3.0 / (2.0 * word + tag + 1e-12)
            yield dy.inputTensor(word * scale, batched=True), dy.inputTensor(tag * scale, batched=True)

    def run(self, words, tags, heads=None, relations=None):
        """Arrays of (length, batch); position 0 is the root."""
        length, batch_size = words.shape
        train = heads is not None
        mask = np.greater(words, ROOT).astype(np.float32)
        mask_flat = dy.inputTensor(flat(mask), batched=True)
        tokens = int(mask.sum())
        word_vectors = [
            dy.lookup_batch(self.word_table, np.where(w % 5 == 3, UNKNOWN, w))
            + dy.lookup_batch(self.pretrained, w, update=False)
            for w in words
        ]
        tag_vectors = [dy.lookup_batch(self.tag_table, t) for t in tags]
        if train:
            both = zip(word_vectors, tag_vectors, self.masks(length, batch_size, 0.2))
            inputs = [dy.concatenate([dy.cmult(w, m), dy.cmult(t, n)]) for w, t, (m, n) in both]
        else:
            inputs = [dy.concatenate([w, t]) for w, t in zip(word_vectors, tag_vectors)]
        top = dy.concatenate_cols(bilstm(self.builders, inputs, batch_size, 0.0))
        if train:
            top = dy.dropout_dim(top, 1, 0.0)
        dependent = leaky_relu(
            dy.affine_transform([dy.parameter(self.b_dependent), dy.parameter(self.W_dependent), top])
        )
        head = leaky_relu(dy.affine_transform([dy.parameter(self.b_head), dy.parameter(self.W_head), top]))
        n = self.arc_size
        arcs = bilinear(dependent[:n], dy.parameter(self.W_arc), head[:n], n, length, batch_size, bias_x=True)
        predicted = arcs.npvalue().reshape(length, length, batch_size).argmax(0)
        arcs = dy.reshape(arcs, (length,), length * batch_size)
        rels = bilinear(
            *(dependent[n:], dy.parameter(self.W_rel), head[n:], self.rel_size, length, batch_size),
            *(len(self.relations), True, True),
        )
        rels = dy.reshape(rels, (length, len(self.relations)), length * batch_size)
        chosen = dy.pick_batch(rels, flat(heads if train else predicted))
        best = chosen.npvalue().argmax(0)
        if not train:
            return predicted, np.reshape(best, (length, batch_size), "F"), mask
        arc_loss = dy.sum_batches(dy.pickneglogsoftmax_batch(arcs, flat(heads)) * mask_flat) / tokens
        rel_loss = dy.sum_batches(dy.pickneglogsoftmax_batch(chosen, flat(relations)) * mask_flat) / tokens
        right = np.equal(predicted, heads) * mask
        both_right = np.sum(np.equal(best, flat(relations)) * flat(right))
        return arc_loss + rel_loss, int(right.sum()), int(both_right), tokens


def batches(sentences, words, tags, relations, batch_size):
    """Padded arrays of sentences of similar length."""
    ordered = sorted(sentences, key=len)
    for start in range(0, len(ordered), batch_size):
        group = ordered[start : start + batch_size]
        shape = (len(group[-1]) + 1, len(group))
        arrays = [np.zeros(shape, dtype=np.int32) for _ in range(4)]
        arrays[0][0], arrays[1][0] = ROOT, ROOT
        for column, sentence in enumerate(group):
            for row, token in enumerate(sentence, 1):
                values = words[token.form], tags[token.tag], token.head, relations[token.relation]
                for array, value in zip(arrays, values):
                    array[row, column] = value
        yield arrays


def main(mode, path):
    rng = np.random.RandomState(1)
    sentences = treebank(size(24), 6, crossing=True)
    tokens = [t for s in sentences for t in s]
    words = vocabulary((t.form for t in tokens), "pad", "root", "unknown")
    tags = vocabulary((t.tag for t in tokens), "pad", "root", "unknown")
    relations = vocabulary((t.relation for t in tokens), "pad")
    parser = Parser(words, tags, relations, rng)
    if mode == "train":
        trainer = dy.AdamTrainer(parser.pc, 0.01, 0.9, 0.9, 1e-5)
        step = 0
        for epoch in range(5):
            total, counted = 0.0, np.zeros(3, int)
            for arrays in batches(sentences, words, tags, relations, 6):
                dy.renew_cg()
                loss, *counts = parser.run(*arrays)
                total += loss.scalar_value()
                counted += counts
                loss.backward()
                trainer.learning_rate = 0.01 * 0.75 ** (step / 20)
                trainer.update()
                step += 1
            show("loss", epoch, *counted, total)
        parser.pc.save(path)
    else:
        parser.pc.populate(path)
        for arrays in batches(sentences, words, tags, relations, 6):
            dy.renew_cg()
            heads, rels, mask = parser.run(*arrays[:2])
            show("parse", *heads[mask > 0], *rels[mask > 0])


if __name__ == "__main__":
    main(*sys.argv[1:3])
