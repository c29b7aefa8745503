"""An engineer's program, ported from PyTorch: a Transformer that classifies, minibatches, a schedule, files."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import dynet_cy as dy
from dynet_cy import nn


class Classifier(nn.Layer):
    def __init__(self, words: int, classes: int, model: dy.ParameterCollection, dim: int = 16) -> None:
        super().__init__(model, (words, classes, dim))
        self.embed = nn.Embedding(words, dim, self.collection)
        self.encoder = nn.TransformerEncoder(1, dim, 2, 32, self.collection, norm_first=True, final_norm=False)
        self.head = nn.Sequential([(nn.Linear, dim, dim), "gelu", (nn.Dropout, 0.1), (nn.Linear, dim, classes)], model)
        self.initialize("pytorch")

    def __call__(self, ids: npt.NDArray[np.int64]) -> dy.Expression:
        return self.head(self.encoder(self.embed(ids)).mean(axis=1))


def main() -> float:
    rng = np.random.default_rng(1)
    data = [(rng.integers(1, 10, 5), int(label)) for label in rng.integers(0, 2, 32)]
    for ids, label in data:
        ids[0] = 10 + label
    model = dy.ParameterCollection()
    net = Classifier(12, 2, model)
    optimizer = dy.AdamWTrainer(net, learning_rate=0.01, weight_decay=0.01)
    optimizer.schedule = dy.WarmupSchedule(4, then=dy.CosineSchedule(60))
    stopping = dy.EarlyStopping(net, patience=5, mode="max")
    accuracy = 0.0
    for _ in range(10):
        net.train()
        for batch in dy.data.batches(data, 8, shuffle=True, seed=1):
            dy.renew_cg()
            losses = [dy.cross_entropy(net(ids)[:, None], [label]) for ids, label in batch]
            loss = dy.average(losses)
            loss.backward()
            optimizer.update()
        net.eval()
        dy.renew_cg(forward_only=True)
        scores = dy.npvalues([net(ids) for ids, _ in data])
        accuracy = float(np.mean([score.argmax() == label for score, (_, label) in zip(scores, data)]))
        stopping.report(accuracy)
    dy.save_safetensors("net.safetensors", net, optimizer)
    dy.load_safetensors("net.safetensors", net, optimizer)
    rnn = nn.GRU(4, 3, model, init="pytorch")
    rnn.load_pytorch(rnn.pytorch_state_dict())
    print([name for name, parameter in net.named_parameters()][:2], rnn(np.zeros((4, 2))).shape)
    return accuracy


if __name__ == "__main__":
    print(f"accuracy {main():.2f}")
