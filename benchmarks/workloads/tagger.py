"""Part-of-speech tagging: a two-layer BiLSTM over the words of a sentence, a score for each tag at each word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workloads.common import Goal, Loss, TorchWeights, Workload, bilstm_multiplications


class Tagger(Workload):
    title = "2-layer BiLSTM tagger, hidden 200, 64 sentences"
    unit = "sentences/s"
    goals = (Goal("2x the better", 2.0), Goal("faster on a GPU", 1.0, "torch_gpu", "autobatch"))
    sizes = {"count": 64, "vocabulary": 10_000, "word_dim": 100, "layers": 2, "hidden": 200, "tags": 17}
    tiny = {"count": 4, "vocabulary": 50, "word_dim": 6, "hidden": 5}
    learning_rate = 1.0

    def prepare(self) -> None:
        self.data = self.sentences(self.count, 22, 70, self.vocabulary)
        self.gold = [[int(t) for t in self.rng.randint(self.tags, size=len(s))] for s in self.data]

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        words = sum(map(len, self.data))
        return bilstm_multiplications(words, self.layers, self.word_dim, self.hidden) + (
            words * self.tags * 2 * self.hidden
        )

    def dynet_tagger(self, dy: Any, pc: Any) -> Callable[[list[int]], list]:
        """The network, from a sentence to the scores of its words."""
        table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        reader = dy.BiRNNBuilder(self.layers, self.word_dim, 2 * self.hidden, pc, dy.LSTMBuilder)
        W = pc.add_parameters((self.tags, 2 * self.hidden))
        b = pc.add_parameters(self.tags)
        embed = self.dynet_embed(dy, pc, table)

        def scores(sentence: list[int]) -> list:
            states = reader.transduce([embed(word) for word in sentence])
            return [dy.affine_transform([b, W, state]) for state in states]

        return scores

    def dynet_embed(self, dy: Any, pc: Any, table: Any) -> Callable[[int], Any]:
        """The vector of a word."""
        return lambda word: table[word]

    def dynet(self, dy: Any, pc: Any) -> Loss:
        scores = self.dynet_tagger(dy, pc)

        def loss(form: str) -> Any:
            losses = []
            for sentence, tags in zip(self.data, self.gold):
                losses += [dy.pickneglogsoftmax(s, tag) for s, tag in zip(scores(sentence), tags)]
            return dy.esum(losses) / len(losses)

        return loss

    def torch_tagger(self, torch: Any, weights: TorchWeights) -> tuple[Callable, Callable]:
        """The network, from a sentence to scores, and from padded sentences and their lengths to packed scores."""
        rnn = torch.nn.utils.rnn
        table = weights.table(self.vocabulary, self.word_dim)
        reader = weights.lstm(self.layers, self.word_dim, self.hidden, bidirectional=True)
        scores = weights.linear(self.tags, 2 * self.hidden)
        embed_one, embed_padded = self.torch_embed(torch, weights, table)

        def one(sentence: Any) -> Any:
            states, _ = reader(embed_one(sentence)[None])
            return scores(states[0])

        def padded(words: Any, lengths: Any) -> Any:
            inputs = rnn.pack_padded_sequence(embed_padded(words), lengths, batch_first=True, enforce_sorted=False)
            states, _ = reader(inputs)
            return scores(states.data)

        return one, padded

    def torch_embed(self, torch: Any, weights: TorchWeights, table: Any) -> tuple[Callable, Callable]:
        """The vectors of the words of a sentence, and of padded sentences."""
        return table, table

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        rnn = torch.nn.utils.rnn
        one, padded = self.torch_tagger(torch, weights)
        sentences = [weights.tensor(s) for s in self.data]
        gold = [weights.tensor(t) for t in self.gold]
        lengths = torch.tensor([len(s) for s in self.data])
        cross_entropy = torch.nn.functional.cross_entropy

        def loss(form: str) -> Any:
            if form == "batched":
                words = rnn.pad_sequence(sentences, batch_first=True)
                tags = rnn.pack_sequence(gold, enforce_sorted=False)
                return cross_entropy(padded(words, lengths), tags.data)
            losses = [cross_entropy(one(s), tags, reduction="sum") for s, tags in zip(sentences, gold)]
            return torch.stack(losses).sum() / int(lengths.sum())

        return loss


WORKLOAD = Tagger
