"""A parser behind an interface that hides the library, as uniparse uses DyNet.

A backend object holds the library, optimizers by name and loss functions; layers are closures over parameters that
are multiplied by expressions directly; a table of given vectors has `set_updated(False)`; scores of a minibatch are
one tensor, from which NumPy decodes trees; `pick_batch` along an axis; hinge losses of `emax` and `bmax`.

python uniparse.py sgd|rmsprop|adam|adadelta|adagrad
"""

import sys

import dynet as dy
import numpy as np
from common import initialize, projective_heads, show, size, treebank, vocabulary

PAD, ROOT = 0, 1


class Backend:
    def __init__(self):
        self.K = dy
        self.optimizers = {
            "sgd": dy.SimpleSGDTrainer,
            "rmsprop": dy.RMSPropTrainer,
            "adam": dy.AdamTrainer,
            "adadelta": dy.AdadeltaTrainer,
            "adagrad": dy.AdagradTrainer,
        }
        self.losses = {"arcs": self.masked_difference, "relations": self.hinge}

    @staticmethod
    def shape(expression):
        shape, batch_size = expression.dim()
        return (batch_size, *shape)

    @staticmethod
    def to_numpy(expression):
        values = expression.npvalue().astype(np.float64)
        return values[None, :, :] if values.ndim < 3 else np.moveaxis(values, 2, 0)

    def masked_difference(self, scores, predicted, gold, mask):
        """The scores of wrong heads less those of the gold heads."""
        batch_size, n, _ = self.shape(scores)
        scores = dy.reshape(scores, (n,), batch_size=n * batch_size)
        predicted[:, 0] = gold[:, 0] = 0
        wrong = (predicted.T != gold.T) * mask.T
        flat = lambda a: np.reshape(a, (-1), "F")  # noqa: E731
        factors = dy.inputTensor(flat(wrong), batched=True)
        difference = dy.pick_batch(scores, flat(predicted.T)) - dy.pick_batch(scores, flat(gold.T))
        return dy.sum_batches(difference * factors) / batch_size

    def hinge(self, scores, gold, mask):
        (labels, n), batch_size = scores.dim()
        losses = [dy.zeros(1)]
        for b in range(batch_size):
            one = dy.pick_batch_elem(scores, b)
            for i in range(n):
                if not mask[b, i]:
                    continue
                vector = dy.pick(one, i, dim=1)
                wrong = dy.emax([dy.pick(vector, k) for k in range(labels) if k != gold[b, i]])
                losses.append(dy.bmax(dy.ones(1) + wrong - vector[int(gold[b, i])], dy.zeros(1)))
        return dy.esum(losses) / batch_size


def dense(model, inputs, outputs, use_bias):
    w = model.add_parameters((outputs, inputs))
    b = model.add_parameters((outputs,)) if use_bias else None

    def call(x):
        x = w * x
        return x + b if use_bias else x

    return call


class Parser:
    def __init__(self, vectors, tags, relations):
        self.params = params = dy.ParameterCollection()
        narrow, hidden = size(4), size(8)
        self.words = params.add_lookup_parameters(vectors.shape)
        self.tags = params.add_lookup_parameters((tags, narrow))
        wide = vectors.shape[1] + narrow
        self.bilstm = dy.BiRNNBuilder(2, wide, 2 * wide, params, dy.VanillaLSTMBuilder)
        self.edge_head, self.edge_dependent = (dense(params, 2 * wide, hidden, False) for _ in range(2))
        self.edge_bias = params.add_parameters((hidden,))
        self.edge_scorer = dense(params, hidden, 1, True)
        self.label_head, self.label_dependent = (dense(params, 2 * wide, hidden, False) for _ in range(2))
        self.label_bias = params.add_parameters((hidden,))
        self.label_scorer = dense(params, hidden, relations, True)
        initialize(params, 11)
        self.words.init_from_array(vectors)
        self.words.set_updated(False)

    def __call__(self, words, tags, gold=None):
        batch_size, n = words.shape
        vectors = [
            dy.concatenate([dy.lookup_batch(self.words, words[:, i]), dy.lookup_batch(self.tags, tags[:, i])])
            for i in range(n)
        ]
        outputs = self.bilstm.transduce(vectors)
        heads, dependents = ([layer(x) for x in outputs] for layer in (self.edge_head, self.edge_dependent))
        edges = [dy.tanh(h + d + self.edge_bias.expr()) for d in dependents for h in heads]
        arcs = dy.reshape(dy.concatenate_cols([self.edge_scorer(e) for e in edges]), (n, n), batch_size=batch_size)
        if gold is not None:
            margin = np.ones((n, n, batch_size))
            for b in range(batch_size):
                margin[gold[b], np.arange(n), b] -= 1
            arcs = arcs + dy.inputTensor(margin, batched=True)
        values = Backend.to_numpy(arcs)
        lengths = (words != PAD).sum(1)
        trees = np.zeros((batch_size, n), int)
        for b in range(batch_size):
            trees[b, : lengths[b]] = projective_heads(values[b, : lengths[b], : lengths[b]])
        used = trees if gold is None else gold
        used[:, 0] = 0
        stacked = dy.concatenate_cols([self.label_head(x) for x in outputs])
        picked = [dy.pick_batch(stacked, indices=column, dim=1) for column in used.T]
        labels = [dy.tanh(self.label_dependent(x) + p + self.label_bias.expr()) for x, p in zip(outputs, picked)]
        relations = self.label_scorer(dy.concatenate_cols(labels))
        return trees, arcs, relations


def main(optimizer):
    rng = np.random.RandomState(3)
    sentences = sorted(treebank(size(12), 10, 4, 6), key=len)
    tokens = [t for s in sentences for t in s]
    words = vocabulary((t.form for t in tokens), "pad", "root")
    tags = vocabulary((t.tag for t in tokens), "pad", "root")
    relations = vocabulary(t.relation for t in tokens)
    backend = Backend()
    parser = Parser(rng.uniform(-0.5, 0.5, (len(words), size(8))), len(tags), len(relations))
    trainer = backend.optimizers[optimizer](parser.params)
    trainer.set_clip_threshold(0)  # the norm of all gradients has the frozen table's in DyNet only
    for epoch in range(4):
        arc_total, relation_total = 0.0, 0.0
        for start in range(0, len(sentences), 3):
            group = sentences[start : start + 3]
            word, tag, head, relation = np.zeros((4, len(group), len(group[-1]) + 1), dtype=int)
            word[:, 0] = tag[:, 0] = ROOT
            for row, sentence in enumerate(group):
                for i, t in enumerate(sentence, 1):
                    word[row, i], tag[row, i] = words[t.form], tags[t.tag]
                    head[row, i], relation[row, i] = t.head, relations[t.relation]
            mask = word > ROOT
            dy.renew_cg()
            trees, arcs, rels = parser(word, tag, head)
            arc_loss = backend.losses["arcs"](arcs, trees, head, mask)
            relation_loss = backend.losses["relations"](rels, relation, mask)
            loss = arc_loss + relation_loss
            arc_total, relation_total = arc_total + arc_loss.value(), relation_total + relation_loss.value()
            loss.backward()
            trainer.update()
        show("loss", epoch, arc_total, relation_total)
    assert np.allclose(parser.words.as_array(), np.random.RandomState(3).uniform(-0.5, 0.5, (len(words), size(8))))


if __name__ == "__main__":
    main(sys.argv[1])
