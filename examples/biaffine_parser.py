"""A graph-based dependency parser: a BiLSTM, a biaffine score for each pair of words, the best tree of all.

    python biaffine_parser.py                                  # train on a Turkish treebank, then parse a sentence
    python biaffine_parser.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python biaffine_parser.py parse text.conllu                # print a treebank with the trees found
    echo "Köpek uyuyor ." | python biaffine_parser.py parse    # words, without tags
    python biaffine_parser.py --encoder minilm --train en-train.conllu.gz

In training each word picks its head by softmax over all other words, and its relation to the true head likewise.
The parser keeps the heads that form the best tree: the maximum spanning tree, by the algorithm of Chu and Liu (1965)
and Edmonds (1967).  The network is that of Dozat and Manning (Deep Biaffine Attention for Neural Dependency Parsing,
ICLR 2017), made smaller, and with an MLP for the relations.

The network is written for one sentence; the engine finds what it can compute together in a minibatch, even if all
sentences have different lengths.

With `--encoder FOLDER`, words also have the vectors of a pretrained encoder in Hugging Face's layout, such as BERT,
which is trained with the rest.  The folder is needed to parse, too, for its tokenizer.
"""

from __future__ import annotations

import argparse
import random

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import ConlluSentence, Vocabulary

SIZES = {
    "word_dim": 100,
    "tag_dim": 32,
    "hidden": 128,  # of the BiLSTM, in each direction
    "layers": 2,
    "arc_dim": 160,
    "label_dim": 100,
    "dropout": 0.33,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
    "encoder_rate": 0.0003,  # the learning rate of the encoder; falls to 0
}


class Parser:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.relations = Vocabulary(spec["relations"], unknown=None)
        self.training, self.rng = False, random.Random(spec["seed"])
        self.pc = pc = dy.ParameterCollection()
        self.words, self.tags = Vocabulary(spec["words"]), Vocabulary(spec["tags"])
        self.encoder, word_dim = None, spec["word_dim"]
        if spec.get("encoder"):
            self.encoder = dy.pretrained.load(spec["encoder"], pc)
            self.mix = min(4, self.encoder.settings.layers)  # of the last layers
            self.encoder.mixture(self.mix)
            word_dim += self.encoder.settings.dim
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.tag_vectors = pc.add_lookup_parameters((len(self.tags), spec["tag_dim"]))
        inputs, states = word_dim + spec["tag_dim"], 2 * spec["hidden"]
        arc, label = spec["arc_dim"], spec["label_dim"]
        self.root = pc.add_parameters(inputs)  # comes before the first word
        self.reader = dy.BiRNNBuilder(spec["layers"], inputs, states, pc, dy.LSTMBuilder)
        self.as_head, self.as_head_bias = pc.add_parameters((arc, states)), pc.add_parameters(arc, init=0)
        self.as_child, self.as_child_bias = pc.add_parameters((arc, states)), pc.add_parameters(arc, init=0)
        self.pair = pc.add_parameters((arc, arc))
        self.wanted = pc.add_parameters((1, arc))  # scores words as heads, whatever the dependent
        self.label_head, self.label_child = pc.add_parameters((label, states)), pc.add_parameters((label, states))
        self.label_bias, self.label = pc.add_parameters(label, init=0), pc.add_parameters((len(self.relations), label))
        self.last_bias = pc.add_parameters(len(self.relations), init=0)

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def look_up(self, sentence: ConlluSentence) -> list[dy.Expression]:
        """Return a vector for each word: one for the word, perhaps the encoder's, and one for its tag, joined."""
        rate = self.spec["word_dropout"] if self.training else 0
        words = [self.word_vectors[i] for i in self.words.encode(map(str.lower, sentence.form), rate, self.rng)]
        if self.encoder is not None:
            columns = self.encoder.words(self.encoder.tokenize(sentence.form), mix=self.mix)
            words = [dy.concatenate([word, dy.pick(columns, i, 1)]) for i, word in enumerate(words)]
        tags = self.tags.encode(sentence.column(self.spec["tag_column"]))
        return [self.drop(dy.concatenate([word, self.tag_vectors[j]])) for word, j in zip(words, tags)]

    def read(self, sentence: ConlluSentence) -> dy.Expression:
        """Return a matrix with a column for the root and one for each word."""
        return self.drop(dy.concatenate_cols(self.reader.transduce([self.root, *self.look_up(sentence)])))

    def arcs(self, states: dy.Expression) -> dy.Expression:
        """Return a matrix whose element (i, j) is the score of word i, or the root 0, as the head of word j + 1."""
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

    def loss(self, batch: list[ConlluSentence]) -> dy.Expression:
        """Return the mean over all words of the losses for head and relation."""
        if self.training:
            self.reader.set_dropout(self.spec["dropout"])
            if self.encoder is not None:
                self.encoder.train()
        losses = []
        for tree in batch:
            states = self.read(tree)
            losses.append(picked(self.arcs(states), tree.head))
            losses.append(picked(self.labels(states, tree.head), self.relations.encode(tree.deprel)))
        return dy.esum(losses) / sum(len(tree) for tree in batch)

    def parse(self, sentences: list[ConlluSentence]) -> list[tuple[list[int], list[str]]]:
        """Return the heads and the relations of sentences, whose words have tags."""
        dy.renew_cg(forward_only=True)
        self.reader.disable_dropout()
        if self.encoder is not None:
            self.encoder.eval()
        states = [self.read(sentence) for sentence in sentences]
        scores = [self.arcs(matrix) for matrix in states]
        dy.forward(scores)  # all at once, so that it can be batched
        heads = [dy.best_tree(matrix.npvalue()) for matrix in scores]
        labels = [self.labels(matrix, found) for matrix, found in zip(states, heads)]
        dy.forward(labels)
        best = [matrix.npvalue().reshape(len(self.relations), -1).argmax(0) for matrix in labels]
        return [(found, self.relations.decode(numbers)) for found, numbers in zip(heads, best)]


def picked(scores: dy.Expression, right: list[int]) -> dy.Expression:
    """Sum the losses of all columns, each of which has one right row."""
    (rows, columns), _ = scores.dim()
    return dy.sum_batches(dy.pickneglogsoftmax_batch(dy.reshape(scores, (rows,), columns), right))


def train(parser: Parser, trees: list[ConlluSentence], dev: list[ConlluSentence], args: argparse.Namespace) -> None:
    data = dy.data.batches(trees, args.batch, shuffle=True, seed=args.seed)
    trainer = dy.AdamTrainer(parser.pc, args.learning_rate)
    trainer.schedule = dy.LinearSchedule(args.epochs * len(data))
    if parser.encoder is not None:
        trainer.group(parser.encoder, learning_rate=args.encoder_rate)
    options = {"extra": parser.spec, "unit": "words", "total": sum(map(len, trees))}
    for epoch in commandline.training(args, parser.pc, data, **options):
        parser.training = True
        for batch in epoch:
            dy.renew_cg()
            loss = parser.loss(batch)
            epoch.add(loss.value(), sum(map(len, batch)))
            loss.backward()
            trainer.update()
        parser.training = False
        epoch.report(**dy.metrics.attachment(dy.data.map_batches(parser.parse, dev), dev)._asdict())


if __name__ == "__main__":
    commandline.run_dependency_parser(
        "Train a graph-based dependency parser, or parse with one.",
        Parser,
        train,
        epochs=10,
        patience=3,
        batch=16,
        learning_rate=0.002,  # falls to 0
        sizes=SIZES,
        settings={"encoder": "a pretrained encoder in Hugging Face's layout, beside vectors of words"},
    )
