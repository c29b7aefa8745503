"""A researcher's program of 2018: a tagger with builders, parameters and a state, word by word."""

from __future__ import annotations

import random

import dynet_cy as dy

SENTENCES = [([1, 2, 3], [0, 1, 0]), ([3, 1], [0, 0]), ([2, 2, 1, 3], [1, 1, 0, 0])]


class Tagger:
    def __init__(self, model: dy.Model, words: int, tags: int) -> None:
        self.E = model.add_lookup_parameters((words, 8))
        self.W = model.add_parameters((tags, 16))
        self.b = model.add_parameters(tags, init=0)
        self.fwd = dy.VanillaLSTMBuilder(1, 8, 8, model)
        self.bwd = dy.GRUBuilder(1, 8, 8, model)

    def scores(self, words: list[int]) -> list[dy.Expression]:
        inputs = [dy.lookup(self.E, word) for word in words]
        state = self.fwd.initial_state()
        forward = []
        for x in inputs:
            state = state.add_input(x)
            forward.append(state.output())
        backward = self.bwd.initial_state().transduce(inputs[::-1])[::-1]
        return [dy.affine_transform([self.b, self.W, dy.concatenate([f, b])]) for f, b in zip(forward, backward)]

    def loss(self, words: list[int], tags: list[int]) -> dy.Expression:
        return dy.esum([dy.pickneglogsoftmax(score, tag) for score, tag in zip(self.scores(words), tags)])


def main() -> float:
    random.seed(1)
    model = dy.Model()
    tagger = Tagger(model, 4, 2)
    trainer = dy.SimpleSGDTrainer(model, 0.1)
    trainer.set_clip_threshold(1.0)
    value = 0.0
    for _ in range(60):
        random.shuffle(SENTENCES)
        dy.renew_cg()
        loss = dy.esum([tagger.loss(words, tags) for words, tags in SENTENCES])
        value = loss.scalar_value()
        loss.backward()
        trainer.update()
    model.save("tagger.model")
    model.populate("tagger.model")

    def step(state: dy.RNNState, token: int) -> tuple[dy.RNNState, dy.Expression]:
        after = state.add_input(tagger.E[token])
        return after, dy.log_softmax(dy.pick_range(after.output(), 0, 4))

    dy.renew_cg()
    found = dy.beam_search(step, tagger.fwd.initial_state(), 2, 3, begin=1, one_by_one=True)
    print(found.tokens)
    return value


if __name__ == "__main__":
    print(f"loss {main():.3f}")
