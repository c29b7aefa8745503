"""Part-of-speech tagging: a two-layer BiLSTM over the words of a sentence, a score for each tag at each word."""

from __future__ import annotations

from typing import Any

from workloads.common import Goal, Loss, TorchWeights, Workload, bilstm_multiplications


class Tagger(Workload):
    title = "2-layer BiLSTM tagger, hidden 200, 64 sentences"
    unit = "sentences/s"
    goals = (Goal("2x the better", 2.0),)
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

    def dynet(self, dy: Any, pc: Any) -> Loss:
        table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        reader = dy.BiRNNBuilder(self.layers, self.word_dim, 2 * self.hidden, pc, dy.LSTMBuilder)
        W = pc.add_parameters((self.tags, 2 * self.hidden))
        b = pc.add_parameters(self.tags)
        embed = self.dynet_embed(dy, pc, table)

        def loss(form: str) -> Any:
            losses = []
            for sentence, tags in zip(self.data, self.gold):
                states = reader.transduce([embed(word) for word in sentence])
                for state, tag in zip(states, tags):
                    losses.append(dy.pickneglogsoftmax(dy.affine_transform([b, W, state]), tag))
            return dy.esum(losses) / len(losses)

        return loss

    def dynet_embed(self, dy: Any, pc: Any, table: Any) -> Any:
        """The vector of a word."""
        return lambda word: table[word]

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        rnn = torch.nn.utils.rnn
        table = weights.table(self.vocabulary, self.word_dim)
        reader = weights.lstm(self.layers, self.word_dim, self.hidden, bidirectional=True)
        scores = weights.linear(self.tags, 2 * self.hidden)
        embed_one, embed_all = self.torch_embed(torch, weights, table)
        sentences = [torch.tensor(s) for s in self.data]
        gold = [torch.tensor(t) for t in self.gold]
        lengths = torch.tensor([len(s) for s in self.data])
        packed = rnn.pack_sequence(gold, enforce_sorted=False)
        cross_entropy = torch.nn.functional.cross_entropy

        def loss(form: str) -> Any:
            if form == "batched":
                words = rnn.pad_sequence(sentences, batch_first=True)
                inputs = rnn.pack_padded_sequence(embed_all(words), lengths, batch_first=True, enforce_sorted=False)
                states, _ = reader(inputs)
                return cross_entropy(scores(states.data), packed.data)
            total = 0
            for sentence, tags in zip(sentences, gold):
                states, _ = reader(embed_one(sentence)[None])
                total = total + cross_entropy(scores(states[0]), tags, reduction="sum")
            return total / int(lengths.sum())

        return loss

    def torch_embed(self, torch: Any, weights: TorchWeights, table: Any) -> tuple[Any, Any]:
        """Functions to the vectors of the words of a sentence, and of a padded minibatch."""
        return table, table


WORKLOAD = Tagger
