"""A student's parser: reads a treebank in CoNLL-U and learns heads; prints the attachment score."""

from __future__ import annotations

import sys

import dynet_cy as dy
from dynet_cy.data import ConlluSentence, Vocabulary


class HeadFinder(dy.nn.Layer):
    def __init__(self, words: int, model: dy.ParameterCollection, dim: int = 16) -> None:
        super().__init__(model, (words, dim))
        self.words = dy.nn.Embedding(words, dim, self.collection)
        self.reader = dy.nn.LSTM(dim, dim, self.collection, bidirectional=True)
        self.score = dy.nn.BiaffineAttention(2 * dim, 2 * dim, self.collection)

    def __call__(self, ids: list[int]) -> dy.Expression:
        states = self.reader(self.words([0, *ids]))  # a column for the root, then one for each word
        return self.score(states, states[:, 1:])


def main(path: str) -> float:
    trees: list[ConlluSentence] = dy.data.read_conllu(path, required=["HEAD"])
    vocabulary = Vocabulary(word for tree in trees for word in tree.form)
    model = dy.ParameterCollection()
    parser = HeadFinder(len(vocabulary), model)
    trainer = dy.AdamTrainer(parser, learning_rate=0.01)
    training = dy.Training(model, dy.data.batches(trees, 2, shuffle=True, seed=1), epochs=8)
    score = 0.0
    for epoch in training:
        for batch in epoch:
            dy.renew_cg()
            losses = [dy.cross_entropy(parser(vocabulary.encode(tree.form)), heads(tree)) for tree in batch]
            loss = dy.esum(losses) / len(losses)
            epoch.add(loss.value(), len(batch))
            loss.backward()
            trainer.update()
        right = total = 0
        for tree in trees:
            dy.renew_cg(forward_only=True)
            found = dy.best_tree(parser(vocabulary.encode(tree.form)).npvalue())
            right += sum(a == b for a, b in zip(found, heads(tree)))
            total += len(found)
        score = right / total
        epoch.report(UAS=score)
    return score


def heads(tree: ConlluSentence) -> list[int]:
    return [head for head in tree.head if head is not None]


if __name__ == "__main__":
    print(f"UAS {main(sys.argv[1]):.2f}")
