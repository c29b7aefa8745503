"""Generation with a Transformer decoder, word by word, with a cache of keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.common import Goal, Loss, TorchWeights, Workload

START = 0


class TransformerDecoding(Workload):
    title = "Transformer decoder with a cache, d 128, 2 layers, 32 sentences of different lengths"
    unit = "us/word"
    per_item = 1e6
    mode = "forward"
    in_dynet = False
    own_forms = ("map",)
    torch_forms = ("eager", "batched", "shrinking")
    goals = (Goal("2x the better", 2.0),)
    sizes = {"count": 32, "vocabulary": 1000, "dim": 128, "heads": 4, "hidden": 512, "layers": 2}
    tiny = {"count": 3, "vocabulary": 9, "dim": 8, "heads": 2, "hidden": 12}

    def prepare(self) -> None:
        """Generate the sources, and fix the lengths of the outputs, so that they do not depend on rounding."""
        mean, longest = (17, 60) if self.count > 3 else (3, 5)
        self.memories = [
            self.rng.normal(size=(self.dim, n)).astype(np.float32) for n in self.lengths(self.count, mean, longest)
        ]
        self.ends = self.lengths(self.count, mean, longest)

    @property
    def items(self) -> int:
        return sum(self.ends)

    def multiplications(self) -> float:
        of_memory = 2 * self.layers * self.dim**2 * sum(memory.shape[1] for memory in self.memories)
        of_word = self.layers * self.dim * (6 * self.dim + 2 * self.hidden) + self.dim * self.vocabulary
        pairs = sum(n * memory.shape[1] + n * (n + 1) / 2 for n, memory in zip(self.ends, self.memories))
        return of_memory + self.items * of_word + 2 * self.layers * self.dim * pairs

    def dynet(self, dy: Any, pc: Any) -> Loss:
        table = dy.nn.Embedding(self.vocabulary, self.dim, pc)
        decoder = dy.nn.TransformerDecoder(self.layers, self.dim, self.heads, self.hidden, pc)
        out = dy.nn.Linear(self.dim, self.vocabulary, pc)

        def write(memory: np.ndarray, end: int) -> float:
            """Write a sentence; returns the sum of its best scores."""
            state, word, total = decoder.start(dy.inputTensor(memory)), START, 0.0
            for _ in range(end):
                y, state = decoder.step(table(word), state)
                values = out(y).npvalue()
                word = int(values.argmax())
                total += float(values[word])
            return total

        def in_step() -> float:
            states = [decoder.start(dy.inputTensor(memory)) for memory in self.memories]
            words, total = [START] * self.count, 0.0
            for step in range(max(self.ends)):
                going = [i for i, end in enumerate(self.ends) if step < end]
                scores = []
                for i in going:
                    y, states[i] = decoder.step(table(words[i]), states[i])
                    scores.append(out(y))
                dy.forward(scores)
                for i, expression in zip(going, scores):
                    values = expression.npvalue()
                    words[i] = int(values.argmax())
                    total += float(values[words[i]])
            return total

        def loss(form: str) -> Any:
            dy.renew_cg(forward_only=True)
            total = sum(dy.batched_map(write, self.memories, self.ends)) if form == "map" else in_step()
            return dy.scalarInput(total)

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        table = weights.table(self.vocabulary, self.dim)
        layers = [TorchDecoderLayer(self, torch, weights) for _ in range(self.layers)]
        out = weights.linear(self.vocabulary, self.dim)
        memories = [weights.tensor(memory.T) for memory in self.memories]

        def write(which: list[int], shrinking: bool = False) -> Any:
            """Sentences as rows of padded tensors; those that have ended continue, or are removed."""
            ends = weights.tensor([self.ends[i] for i in which])
            lengths = weights.tensor([len(memories[i]) for i in which])
            memory = torch.nn.utils.rnn.pad_sequence([memories[i] for i in which], batch_first=True)
            seen = None
            if len(which) > 1:
                seen = (torch.arange(memory.shape[1], device=weights.device) < lengths[:, None])[:, None, None]
            longest = max(self.ends[i] for i in which)
            caches = [layer.start(memory, longest) for layer in layers]
            words = weights.tensor([START] * len(which))
            total = torch.zeros((), device=weights.device)
            for step in range(longest):
                going = ends > step
                if shrinking and not going.all():
                    words, ends, caches = words[going], ends[going], [[x[going] for x in cache] for cache in caches]
                    seen, going = None if seen is None else seen[going], going[going]
                x = table(words)[:, None]
                for layer, cache in zip(layers, caches):
                    x = layer.step(x, step, cache, seen)
                best, words = out(x[:, 0]).max(1)
                total = total + (best * going).sum()
            return total

        def loss(form: str) -> Any:
            everything = list(range(self.count))
            if form == "eager":
                return sum(write([i]) for i in everything)
            return write(everything, form == "shrinking")

        return loss


class TorchDecoderLayer:
    """A layer with PyTorch's functions.  The cache is allocated for all steps, so that nothing is copied."""

    def __init__(self, sizes: TransformerDecoding, torch: Any, weights: TorchWeights) -> None:
        self.torch = torch
        self.functions = torch.nn.functional
        self.heads, self.dim = sizes.heads, sizes.dim
        dim, hidden = sizes.dim, sizes.hidden
        self.joined, self.out = self._attention(weights)
        self.cross_joined, self.cross_out = self._attention(weights)
        self.linear1, self.linear2 = weights.linear(hidden, dim), weights.linear(dim, hidden)
        norms = [(weights.parameter(dim), weights.parameter(dim)) for _ in range(3)]
        self.norms = [lambda x, g=g, b=b: self.functions.layer_norm(x, (dim,), g, b, 1e-12) for g, b in norms]

    def _attention(self, weights: TorchWeights) -> tuple[Any, Any]:
        """Weight and bias of queries, keys and values, stacked, and those of the output projection."""
        matrices = [weights.weights.array(self.dim, self.dim) for _ in range(4)]
        biases = [weights.weights.array(self.dim) for _ in range(4)]
        joined = weights.train(np.concatenate(matrices[:3])), weights.train(np.concatenate(biases[:3]))
        return joined, (weights.train(matrices[3]), weights.train(biases[3]))

    def _heads(self, x: Any) -> Any:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def start(self, memory: Any, longest: int) -> list[Any]:
        """Allocate the keys and values of the words, and compute those of the memory."""
        weight, bias = self.cross_joined
        keys, values = self.functions.linear(memory, weight[self.dim :], bias[self.dim :]).chunk(2, 2)
        shape = (len(memory), self.heads, longest, self.dim // self.heads)
        room = [self.torch.empty(shape, device=memory.device) for _ in range(2)]
        return [*room, self._heads(keys), self._heads(values)]

    def step(self, x: Any, step: int, cache: list[Any], seen: Any) -> Any:
        F = self.functions
        keys, values, memory_keys, memory_values = cache
        q, k, v = F.linear(x, *self.joined).chunk(3, 2)
        keys[:, :, step : step + 1], values[:, :, step : step + 1] = self._heads(k), self._heads(v)
        found = F.scaled_dot_product_attention(self._heads(q), keys[:, :, : step + 1], values[:, :, : step + 1])
        x = self.norms[0](x + F.linear(found.transpose(1, 2).flatten(2), *self.out))
        weight, bias = self.cross_joined
        q = self._heads(F.linear(x, weight[: self.dim], bias[: self.dim]))
        found = F.scaled_dot_product_attention(q, memory_keys, memory_values, attn_mask=seen)
        x = self.norms[1](x + F.linear(found.transpose(1, 2).flatten(2), *self.cross_out))
        return self.norms[2](x + self.linear2(F.relu(self.linear1(x))))


WORKLOAD = TransformerDecoding
