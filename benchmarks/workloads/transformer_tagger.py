"""Part-of-speech tagging: a Transformer encoder over the words of a sentence, a score for each tag at each word."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, Workload

BATCHES = 8


class TransformerTagger(Workload):
    title = "Transformer tagger, d 128, 2 layers, 32 sentences, Adam"
    unit = "words/s"
    goals = (Goal("2x the better", 2.0),)
    in_dynet = False
    adam = True
    sizes = {"count": 32, "vocabulary": 3338, "dim": 128, "heads": 4, "hidden": 512, "layers": 2, "tags": 17}
    tiny = {"count": 4, "vocabulary": 50, "dim": 8, "heads": 2, "hidden": 12}
    torch_forms = ("eager", "batched", "encoder")
    learning_rate = 1e-4
    repeat = BATCHES

    def __init__(self, tiny: bool = False, **sizes: int) -> None:
        self.batches = 1 if tiny else BATCHES
        super().__init__(tiny, **sizes)

    def prepare(self) -> None:
        """Generate batches of sentences, and a tag for each word."""
        sentences = self.sentences(self.batches * self.count, 17, 70, self.vocabulary)
        sentences = self.arranged(sentences)
        self.data = [sentences[i : i + self.count] for i in range(0, len(sentences), self.count)]
        self.gold = [[self.rng.randint(self.tags, size=len(s)) for s in batch] for batch in self.data]

    def arranged(self, sentences: list[list[int]]) -> list[list[int]]:
        """The sentences in the order in which they are divided into batches."""
        return sentences

    @property
    def words_of_all(self) -> int:
        return sum(len(s) for batch in self.data for s in batch)

    @property
    def items(self) -> int:
        """The mean number in a batch."""
        return self.words_of_all // self.batches

    def multiplications(self) -> float:
        of_word = self.layers * self.dim * (4 * self.dim + 2 * self.hidden) + self.dim * self.tags
        pairs = sum(len(s) ** 2 for batch in self.data for s in batch)
        return self.items * of_word + 2 * self.layers * self.dim * pairs / self.batches

    def dynet(self, dy: Any, pc: Any) -> Loss:
        words = dy.nn.Embedding(self.vocabulary, self.dim, pc)
        encoder = dy.nn.TransformerEncoder(self.layers, self.dim, self.heads, self.hidden, pc)
        scores = dy.nn.Linear(self.dim, self.tags, pc)
        turns = count()

        def loss(form: str) -> Any:
            batch = next(turns) % self.batches
            losses = []
            for sentence, tags in zip(self.data[batch], self.gold[batch]):
                x = scores(encoder(words(sentence)))
                losses.append(dy.sum_batches(dy.pickneglogsoftmax_batch(dy.reshape(x, (self.tags,), len(tags)), tags)))
            return dy.esum(losses) / sum(map(len, self.gold[batch]))

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        table = weights.table(self.vocabulary, self.dim)
        layers = [TorchLayer(self, torch, weights) for _ in range(self.layers)]
        scores = weights.linear(self.tags, self.dim)
        cross_entropy = torch.nn.functional.cross_entropy
        pad = torch.nn.utils.rnn.pad_sequence
        sentences = [[weights.tensor(s) for s in batch] for batch in self.data]
        gold = [[weights.tensor(t) for t in batch] for batch in self.gold]
        turns = count()

        def padded(batch: int, run: Any) -> Any:
            """The mean loss of a padded batch, with the layers computed by `run`; the mask hides the padding."""
            lengths = [len(s) for s in sentences[batch]]
            hidden = torch.arange(max(lengths), device=weights.device) >= weights.tensor(lengths)[:, None]
            words = table(pad(sentences[batch], batch_first=True))
            x = scores(run(words, hidden if min(lengths) < max(lengths) else None))
            targets = pad(gold[batch], batch_first=True, padding_value=-1)
            return cross_entropy(x.flatten(0, 1), targets.flatten(), ignore_index=-1)

        def by_hand(x: Any, hidden: Any) -> Any:
            seen = None if hidden is None else ~hidden[:, None, None]
            for layer in layers:
                x = layer(x, seen)
            return x

        def by_module(x: Any, hidden: Any) -> Any:
            for layer in layers:
                x = layer.module(x, src_key_padding_mask=hidden)
            return x

        def loss(form: str) -> Any:
            batch = next(turns) % self.batches
            if form != "eager":
                return padded(batch, by_hand if form == "batched" else by_module)
            losses = [
                cross_entropy(scores(by_hand(table(words)[None], None)[0]), tags, reduction="sum")
                for words, tags in zip(sentences[batch], gold[batch])
            ]
            return torch.stack(losses).sum() / sum(map(len, self.gold[batch]))

        return loss


class TorchLayer:
    """A layer with PyTorch's functions, and as its own module with the same parameters."""

    def __init__(self, sizes: TransformerTagger, torch: Any, weights: TorchWeights) -> None:
        dim, hidden = sizes.dim, sizes.hidden
        self.functions = torch.nn.functional
        self.heads = sizes.heads
        module = torch.nn.TransformerEncoderLayer(
            dim, sizes.heads, hidden, dropout=0.0, batch_first=True, layer_norm_eps=1e-12, device=weights.device
        )
        matrices = [weights.weights.array(dim, dim) for _ in range(4)]
        biases = [weights.weights.array(dim) for _ in range(4)]
        attention = module.self_attn
        attention.in_proj_weight = weights.train(np.concatenate(matrices[:3]))
        attention.in_proj_bias = weights.train(np.concatenate(biases[:3]))
        attention.out_proj.weight, attention.out_proj.bias = weights.train(matrices[3]), weights.train(biases[3])
        for linear, outputs, inputs in ((module.linear1, hidden, dim), (module.linear2, dim, hidden)):
            linear.weight, linear.bias = weights.parameter(outputs, inputs), weights.parameter(outputs)
        for norm in (module.norm1, module.norm2):
            norm.weight, norm.bias = weights.parameter(dim), weights.parameter(dim)
        self.module = module

    def __call__(self, x: Any, seen: Any) -> Any:
        F, m = self.functions, self.module
        joined = F.linear(x, m.self_attn.in_proj_weight, m.self_attn.in_proj_bias)
        q, k, v = joined.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = m.norm1(x + m.self_attn.out_proj(found.transpose(1, 2).flatten(2)))
        return m.norm2(x + m.linear2(F.relu(m.linear1(x))))


WORKLOAD = TransformerTagger
