"""Uses of dynet_cy for type checkers: mypy and pyright check them, nothing runs them.

A line that must be an error has a `type: ignore` with the code: mypy and pyright report comments that are not needed.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import dynet_cy as dy

if TYPE_CHECKING:
    from typing_extensions import assert_type

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class Scorer(dy.nn.Layer):
    def __init__(self, dim: int, model: dy.ParameterCollection) -> None:
        super().__init__(model, (dim,))
        self.out = dy.nn.Linear(dim, 1, self.collection)

    def __call__(self, x: npt.NDArray[np.float64]) -> dy.Expression:
        return self.out(x)


def layers(array: npt.NDArray[np.float64]) -> None:
    model = dy.ParameterCollection()
    net = dy.nn.Linear(4, 3, model)
    assert_type(net(array), dy.Expression)
    assert_type(net([1.0, 2.0, 3.0, 4.0]), dy.Expression)
    assert_type(net.state_dict(), dict[str, Floats])
    trainer = dy.AdamTrainer(net)
    trainer.group([net, model.add_parameters(2)], learning_rate=0.1)
    dy.save_safetensors("m", net, trainer)
    dy.load_safetensors("m", net, trainer, strict=False)
    dy.EarlyStopping(net)
    dy.LSTMBuilder(1, 2, 3, net)
    model.remove(net)
    dy.AdamTrainer(3)  # type: ignore[arg-type]
    dy.nn.Linear(4, 3)  # type: ignore[call-arg]
    dy.LSTMBuilder(1, 4, 3)  # type: ignore[call-arg]
    dy.BiRNNBuilder(1, 4, 2, model)  # type: ignore[call-arg]
    assert_type(net, dy.nn.Linear)
    assert_type(dy.GRUBuilder(1, 4, 3, model), dy.GRUBuilder)
    assert_type(dy.BiRNNBuilder(1, 4, 2, model, dy.GRUBuilder).eval(), dy.BiRNNBuilder)
    assert_type(dy.nn.Linear.from_spec((4, 3, True), model), dy.nn.Linear)
    assert_type(Scorer(4, model), Scorer)
    assert_type(Scorer(4, model).eval()(array), dy.Expression)
    Scorer(4)  # type: ignore[call-arg]


def parameters(array: npt.NDArray[np.float64]) -> None:
    model = dy.ParameterCollection()
    w = model.add_parameters((4, 3), init="glorot", name="w")
    table = model.add_lookup_parameters((10, 3), init=dy.NormalInitializer(0, 0.1))
    assert_type(w, dy.Parameters)
    assert_type(table, dy.LookupParameters)
    assert_type(model.add_subcollection("below"), dy.ParameterCollection)
    assert_type(model.parameters_from_numpy(array), dy.Parameters)
    assert_type(w.as_array(), Floats)
    assert_type(w.shape(), tuple[int, ...])
    assert_type(w.shape[0], int)
    assert_type(w.expr(update=False), dy.Expression)
    assert_type(dy.tanh(table[3]), dy.Expression)
    assert_type(dy.tanh(dy.lookup_batch(table, np.arange(3), update=False)), dy.Expression)
    dy.lookup_batch(table, np.arange(3)).set([1, 2, 3])
    assert_type(dy.parameter(w), dy.Parameters)
    assert_type(dy.parameter(w, table), tuple[dy.Parameters | dy.LookupParameters, ...])
    w.set_value([[1.0] * 3] * 4)
    model.save("model.txt", append=True)
    model.add_parameters("4")  # type: ignore[arg-type]
    dy.lookup(w, 0)  # type: ignore[call-overload]


def expressions(x: dy.Expression, xs: list[dy.Expression], p: dy.Parameters) -> None:
    assert_type(x + 1, dy.Expression)
    assert_type(2.5 * x, dy.Expression)
    assert_type(1 / x - np.float32(3), dy.Expression)
    assert_type(-(p * x), dy.Expression)
    assert_type(x[1], dy.Expression)
    assert_type(x[..., 1:3], dy.Expression)
    assert_type(dy.tanh(p), dy.Expression)
    assert_type(dy.affine_transform([p, p, x]), dy.Expression)
    assert_type(dy.esum(y for y in xs), dy.Expression)
    assert_type(dy.pickneglogsoftmax_batch(x, [1, 2]), dy.Expression)
    assert_type(dy.sum_dim(x, [0, 1], b=True), dy.Expression)
    assert_type(dy.zeros((3, 4), batch_size=2), dy.Expression)
    dy.inputTensor([[1, 2], [3, 4]], batched=True).set(np.zeros((2, 2)))
    x + "1"  # type: ignore[operator]
    dy.tanh(1.0)  # type: ignore[arg-type]
    dy.esum(x, x)  # type: ignore[call-arg]
    dy.dropout(x, p=None)  # type: ignore[arg-type]


def values(x: dy.Expression, xs: list[dy.Expression]) -> None:
    assert_type(x.value(), Any)
    assert_type(x.npvalue(), npt.NDArray[Any])
    assert_type(x.scalar_value(), float)
    assert_type(x.vec_value(), list[Any])
    assert_type(x.dim(), tuple[tuple[int, ...], int])
    assert_type(x.gradient(), Doubles)
    assert_type(dy.npvalues(xs), list[npt.NDArray[Any]])
    with dy.ComputationGraph(autobatching=1) as graph:
        assert_type(graph, dy.ComputationGraph)
    assert_type(dy.renew_cg(check_validity=True), dy.ComputationGraph)


def train(model: dy.Model, x: dy.Expression) -> None:
    for trainer in (dy.AdamTrainer(model, alpha=0.01), dy.SimpleSGDTrainer(model, 0.1)):
        trainer.learning_rate *= 0.5
        trainer.update()
    dy.AdamTrainer(model, learning_rate=0.01)
    dy.AdamTrainer(model, lr=0.01)  # type: ignore[call-arg]
    builder = dy.LSTMBuilder(1, 3, 4, model)
    state = builder.initial_state()
    assert_type(state.add_input(x), dy.RNNState)
    assert_type(state.output(), dy.Expression | Any)
    assert_type(state.transduce([x]), list[dy.Expression])


def tagger(model: dy.ParameterCollection, array: npt.NDArray[np.float32], words: list[int]) -> float:
    """A typical program."""
    table = model.add_lookup_parameters((100, 8))
    builder = dy.LSTMBuilder(1, 8, 16, model)
    w, b = model.add_parameters((5, 16)), model.add_parameters(5)
    state = builder.initial_state()
    losses, scores = [], dy.zeros(5)
    for word in words:
        state = state.add_input(table[word])
        scores = w * state.output() + b
        losses.append(dy.pickneglogsoftmax(scores, 1) * 0.5)
    loss = dy.esum(losses) / len(losses)
    states = dy.concatenate_cols(builder.initial_state().transduce([table[i] for i in words]))
    attention = dy.softmax(states.T @ states, mask=array > 0)
    mixed = (states @ attention).mean(axis=-1)[:, None] + array
    mixed = dy.where(mixed > 0, mixed, 0.1 * mixed)[[0, 2], ..., None].reshape(-1, 2)
    assert_type(mixed.shape, tuple[int, ...])
    assert_type(dy.cross_entropy(w @ states, words, label_smoothing=0.1, ignore_index=-1), dy.Expression)
    assert_type(dy.einsum("dn,dm->nm", states, states), dy.Expression)
    assert_type(dy.split(states, [4, 12]), list[dy.Expression])
    assert_type(dy.topk(scores, 2)[1], dy.Expression)
    assert_type(dy.inputVector([1, 2]), dy.InputExpression)
    assert_type(mixed.sum().item(), float)
    assert_type(f"{loss:.3f}", str)
    if loss < 3.0 and float(abs(loss)) > 0:
        print(mixed.max(0), mixed.batch_size)
    report = model.load_state_dict(model.state_dict(), strict=False, rename={"a": "b"})
    assert_type(report.missing, list[str])
    for name, p in model.named_parameters():
        print(name, p.shape, len(model), name in model)
    states @ 2  # type: ignore[operator]
    loss.backward()
    return loss.item()


def together(model: dy.Model) -> None:
    trainer = dy.parallel.wrap(dy.AdamTrainer(model), reduction="sum")
    assert_type(trainer, dy.AdamTrainer)
    shard = dy.parallel.shard(["a", "b"], shuffle=True)
    assert_type(shard, dy.parallel.Shard[str])
    for word in dy.parallel.progress(shard, desc="words"):
        assert_type(word, str)
    with dy.parallel.join(trainer):
        trainer.update()
    assert_type(dy.parallel.rank(), int)
    dy.parallel.wrap(model)  # type: ignore[type-var]
