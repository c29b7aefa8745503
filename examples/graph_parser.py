"""A graph-based dependency parser: a BiLSTM, a biaffine score for each pair of words, the best tree of all.

    python graph_parser.py                                     # train on a Turkish treebank, then parse a sentence
    python graph_parser.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python graph_parser.py parse text.conllu                   # print a treebank with the trees found

In training each word picks its head by softmax over all other words, and its relation to the true head likewise.
The parser keeps the heads that form the best tree: the maximum spanning tree, by the algorithm of Chu and Liu (1965)
and Edmonds (1967).  The network is that of Dozat and Manning (Deep Biaffine Attention for Neural Dependency Parsing,
ICLR 2017), made smaller, and with an MLP for the relations.

The network is written for one sentence; a minibatch is the sum of the losses of its sentences, and the engine finds
what it can compute together although no two sentences need to be of a length.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import trees
from conllu import Tree


class Parser:
    """The network.  `spec` is all that is needed, beside the weights, to build it again."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.relations = {relation: i for i, relation in enumerate(spec["relations"])}
        self.training = False  # whether to drop out
        self.pc = pc = dy.ParameterCollection()
        self.inputs = trees.Inputs(dy, pc, spec)
        self.root = pc.add_parameters(self.inputs.dim)  # stands before the first word
        states = 2 * spec["hidden"]
        self.reader = dy.BiRNNBuilder(spec["layers"], self.inputs.dim, states, pc, dy.LSTMBuilder)
        arc, label = spec["arc_dim"], spec["label_dim"]
        self.as_head, self.as_head_bias = pc.add_parameters((arc, states)), pc.add_parameters(arc, init=0)
        self.as_child, self.as_child_bias = pc.add_parameters((arc, states)), pc.add_parameters(arc, init=0)
        self.pair = pc.add_parameters((arc, arc))
        self.wanted = pc.add_parameters((1, arc))  # how much a word is wanted as a head, whoever asks
        self.label_head, self.label_child = pc.add_parameters((label, states)), pc.add_parameters((label, states))
        self.label_bias = pc.add_parameters(label, init=0)
        self.label = pc.add_parameters((len(self.relations), label))
        self.last_bias = pc.add_parameters(len(self.relations), init=0)

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def read(self, words: list[str], tags: list[str]) -> dy.Expression:
        """Return a matrix with a column for the root and one for each word."""
        inputs = [self.root, *self.inputs.look_up(words, tags, self.training)]
        return self.drop(dy.concatenate_cols(self.reader.transduce(inputs)))

    def arcs(self, states: dy.Expression) -> dy.Expression:
        """Return a matrix whose element (i, j) says how well word i, or the root 0, does as the head of word j + 1."""
        length = states.dim()[0][1]
        words = dy.pick_range(states, 1, length, 1)
        heads = self.drop(dy.rectify(dy.colwise_add(self.as_head * states, self.as_head_bias)))
        children = self.drop(dy.rectify(dy.colwise_add(self.as_child * words, self.as_child_bias)))
        wanted = dy.reshape(self.wanted * heads, (length,))
        return dy.colwise_add(dy.transpose(heads) * (self.pair * children), wanted)

    def labels(self, states: dy.Expression, heads: list[int]) -> dy.Expression:
        """Return a matrix with a column for each word: the scores of its relations to its head."""
        words = dy.pick_range(states, 1, len(heads) + 1, 1)
        pairs = dy.select_cols(self.label_head * states, heads) + self.label_child * words
        hidden = self.drop(dy.rectify(dy.colwise_add(pairs, self.label_bias)))
        return dy.colwise_add(self.label * hidden, self.last_bias)

    def loss(self, batch: list[Tree]) -> dy.Expression:
        """Return the mean over all words of the losses for head and relation."""
        if self.training:
            self.reader.set_dropout(self.spec["dropout"])
        losses = []
        for tree in batch:
            states = self.read(tree.words, tree.tags)
            losses.append(picked(self.arcs(states), tree.heads))
            losses.append(picked(self.labels(states, tree.heads), [self.relations[r] for r in tree.relations]))
        return dy.esum(losses) / sum(len(tree) for tree in batch)

    def parse(self, words: list[list[str]], tags: list[list[str]]) -> trees.Parses:
        """Return the heads and the relations of sentences."""
        dy.renew_cg(forward_only=True)
        self.reader.disable_dropout()
        states = [self.read(*sentence) for sentence in zip(words, tags)]
        scores = [self.arcs(matrix) for matrix in states]
        dy.forward(scores)  # all at once, so that it can be batched
        heads = [best_tree(matrix.npvalue()) for matrix in scores]
        labels = [self.labels(matrix, found) for matrix, found in zip(states, heads)]
        dy.forward(labels)
        names = self.spec["relations"]
        return [
            (found, [names[i] for i in matrix.npvalue().reshape(len(names), -1).argmax(0)])
            for found, matrix in zip(heads, labels)
        ]


def picked(scores: dy.Expression, right: list[int]) -> dy.Expression:
    """Sum the losses of all columns, each of which has one right row."""
    (rows, columns), _ = scores.dim()
    return dy.sum_batches(dy.pickneglogsoftmax_batch(dy.reshape(scores, (rows,), columns), right))


# -- the best tree -------------------------------------------------------------------------------


def best_tree(scores: np.ndarray) -> list[int]:
    """Return the heads of the words 1 to n in the tree of the greatest sum of scores, of those with one root.

    `scores` is of shape (n + 1, n): what it is worth that word i, or the root 0, is the head of word j + 1.
    """
    words = scores.shape[1]
    square = np.full((words + 1, words + 1), -np.inf)
    square[:, 1:] = scores
    square[0] -= (np.ptp(scores) + 1) * words  # a second root costs more than all else can gain
    np.fill_diagonal(square, -np.inf)
    return [int(head) for head in _arborescence(square)[1:]]


def _arborescence(scores: np.ndarray) -> np.ndarray:
    """Return the heads of all nodes in the best tree from node 0: greedily, and cycles are contracted."""
    heads = scores[:, 1:].argmax(0)
    heads = np.concatenate([[0], heads])
    cycle = _cycle(heads)
    if not len(cycle):
        return heads
    rest = np.setdiff1d(np.arange(len(heads)), cycle)  # begins with node 0
    # The cycle becomes one node, the last.  An arc into it costs the arc of the cycle that it replaces.
    into = scores[np.ix_(rest, cycle)] - scores[heads[cycle], cycle]
    out = scores[np.ix_(cycle, rest)]
    smaller = np.full((len(rest) + 1, len(rest) + 1), -np.inf)
    smaller[:-1, :-1] = scores[np.ix_(rest, rest)]
    smaller[:-1, -1] = into.max(1)
    smaller[-1, :-1] = out.max(0)
    found = _arborescence(smaller)
    from_cycle = found[:-1] == len(rest)
    heads[rest] = np.where(from_cycle, cycle[out.argmax(0)], rest[np.where(from_cycle, 0, found[:-1])])
    entering = found[-1]
    heads[cycle[into[entering].argmax()]] = rest[entering]
    return heads


def _cycle(heads: np.ndarray) -> np.ndarray:
    """Return the nodes of a cycle, of none if there is no cycle."""
    free = {0}  # nodes from which the root is reached
    for start in range(1, len(heads)):
        path: dict[int, None] = {}
        node = start
        while node not in free and node not in path:
            path[node] = None
            node = int(heads[node])
        if node in path:
            steps = list(path)
            return np.array(steps[steps.index(node) :])
        free.update(path)
    return np.array([], int)


SIZES = {
    "word_dim": 100,
    "tag_dim": 32,
    "hidden": 128,  # of the BiLSTM, in each direction
    "layers": 2,
    "arc_dim": 160,
    "label_dim": 100,
    "dropout": 0.33,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
}


def build(engine: ModuleType, spec: dict) -> Parser:
    global dy
    dy = engine
    return Parser(spec)


if __name__ == "__main__":
    trees.main("graph_parser", "Train a graph-based dependency parser, or parse with one.", build, SIZES)
