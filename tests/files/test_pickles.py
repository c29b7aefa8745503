"""Pickles and copies of models, builders and trainers."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any, Callable

import numpy as np
import pytest
from arrays import all_equal

import dynet_cy as dy
import dynet_cy.model.parameters
from dynet_cy import rnn

Copier = Callable[[Any], Any]
# Builders that take layers, sizes and a collection.
BUILDERS = [n[: -len("Builder")] for n in rnn.__all__ if issubclass(getattr(rnn, n), rnn._RNNBuilder) and n[0] != "_"]
TRAINERS = [n[: -len("Trainer")] for n in dy.__all__ if n.endswith("Trainer") and n not in ("Trainer", "PythonTrainer")]


@pytest.fixture(params=["deepcopy", *range(2, pickle.HIGHEST_PROTOCOL + 1)])
def copied(request: pytest.FixtureRequest) -> Copier:
    if request.param == "deepcopy":
        return copy.deepcopy
    return lambda x: pickle.loads(pickle.dumps(x, request.param))


def model() -> tuple[dy.ParameterCollection, dy.ParameterCollection, dy.Parameters, dy.LookupParameters]:
    pc = dy.ParameterCollection()
    below = pc.add_subcollection("below")
    pc.add_parameters((), init=1.5)
    pc.add_lookup_parameters((3, 2, 4), name="T")
    w = below.add_parameters((2, 3), name="W")
    return pc, below, w, pc.add_lookup_parameters((6, 2), name="E")


def train(trainer: dy.Trainer, w: dy.Parameters, e: dy.LookupParameters, rows: list[int]) -> None:
    for row in rows:
        dy.renew_cg()
        dy.squared_norm(w * dy.concatenate([e[row], e[0][:1]]) - dy.inputVector([1, 2])).backward()
        trainer.update()


def arrays(pc: dy.ParameterCollection) -> list[np.ndarray]:
    return [p.as_array() for p in [*pc.parameters_list(), *pc.lookup_parameters_list()]]


def assert_same(a: dy.ParameterCollection, b: dy.ParameterCollection) -> None:
    all_equal(arrays(a), arrays(b))


def test_collection(copied: Copier) -> None:
    pc, below, w, e = model()
    pc.set_weight_decay(0.25)
    w.set_updated(False)
    dy.SimpleSGDTrainer(pc).update()
    dy.renew_cg()
    trained = pc.parameters_list()[0]
    (dy.sum_elems(w) + dy.sum_elems(trained) * 2 + dy.sum_elems(e[3]) * 3).backward()
    other = copied(pc)
    names = [x.name() for x in [*pc.parameters_list(), *pc.lookup_parameters_list()]]
    assert [x.name() for x in [*other.parameters_list(), *other.lookup_parameters_list()]] == names
    assert_same(other, pc)
    assert other.get_weight_decay() == 0.25
    assert [p.is_updated() for p in other.parameters_list()] == [True, False]
    np.testing.assert_array_equal(other.parameters_list()[0].grad_as_array(), np.full(trained.shape(), 2))
    assert not other.parameters_list()[1].grad_as_array().any()
    np.testing.assert_array_equal(other.lookup_parameters_list()[1].grad_as_array()[3], [3, 3])
    # The copies are separate and train alike: one row of the table has a gradient.
    for collection in (pc, other):
        dy.AdamTrainer(collection).update()
    assert_same(other, pc)
    w.zero()
    assert other.parameters_list()[1].as_array().any()
    # Numbers in names continue.
    assert other.add_parameters(1).name() == pc.add_parameters(1).name() == "/_1"
    assert other.add_lookup_parameters((2, 1), name="E").name() == "/E_1"
    assert other.add_subcollection("below").name() == "/below_1/"


def test_links_within_a_pickle(copied: Copier) -> None:
    pc, below, w, e = model()
    builder = dy.GRUBuilder(1, 2, 3, below)
    trainer = dy.AdamTrainer(pc, alpha=0.1)
    train(trainer, w, e, [1, 2])
    both = {"trainer": trainer, "w": w, "parts": [below, builder, pc], "e": e, "again": w}
    got = copied(both)
    pc2, below2 = got["parts"][2], got["parts"][0]
    assert got["again"] is got["w"]
    got["w"].set_value(np.ones((2, 3)))
    np.testing.assert_array_equal(pc2.parameters_list()[1].as_array(), np.ones((2, 3)))
    assert below2.storage is pc2.storage is got["w"].storage is got["e"].storage
    assert got["parts"][1].param_collection().storage is pc2.storage
    assert below2.add_parameters(1).name() == "/below/_0"
    assert below2.add_subcollection("gru-builder").name() == "/below/gru-builder_1/"
    got["w"].set_value(w.as_array())
    train(trainer, w, e, [1, 4, 2])
    train(got["trainer"], got["w"], got["e"], [1, 4, 2])
    np.testing.assert_array_equal(got["e"].as_array(), e.as_array())
    np.testing.assert_array_equal(got["w"].as_array(), w.as_array())


def test_a_trainer_keeps_its_collection(copied: Copier) -> None:
    pc, below, w, e = model()
    trainer = dy.AdamTrainer(below)
    del pc, below
    train(trainer, w, e, [1])
    other = copied(trainer)
    other.update()
    trainer.update()


@pytest.mark.parametrize("name", BUILDERS)
def test_builders(copied: Copier, name: str) -> None:
    pc = dy.ParameterCollection()
    builder = getattr(dy, name + "Builder")(2, 3, 4, pc)
    birnn = dy.BiRNNBuilder(1, 3, 4, pc, getattr(dy, name + "Builder"))
    builder.set_dropout(0.5)
    builder.disable_dropout()
    dy.renew_cg()
    xs = [dy.inputVector([1, 2, 3]), dy.inputVector([3, 2, 1])]
    want = [builder.initial_state().transduce(xs)[-1].npvalue(), birnn.transduce(xs)[-1].npvalue()]
    alone, pair = copied(builder), copied((builder, birnn))
    assert pair[0].param_collection().storage is pair[1].param_collection().storage
    del pc, builder, birnn
    np.testing.assert_array_equal(alone.initial_state().transduce(xs)[-1].npvalue(), want[0])
    np.testing.assert_array_equal(pair[0].initial_state().transduce(xs)[-1].npvalue(), want[0])
    np.testing.assert_array_equal(pair[1].transduce(xs)[-1].npvalue(), want[1])
    assert alone.spec == pair[0].spec


def test_a_parameter_alone_carries_its_collection(copied: Copier) -> None:
    pc, below, w, e = model()
    v, t = copied(w), copied(e)
    value, table = w.as_array(), e.as_array()
    del pc, below, w, e
    np.testing.assert_array_equal(v.as_array(), value)
    np.testing.assert_array_equal(t.as_array(), table)
    assert (v.name(), t.name(), type(v), type(t)) == ("/below/W", "/E", dy.Parameters, dy.LookupParameters)
    dy.renew_cg()
    np.testing.assert_array_equal(t[2].npvalue(), table[2])


def test_a_shallow_copy_of_a_parameter_is_the_same_parameter() -> None:
    pc, below, w, e = model()
    copy.copy(w).zero()
    assert not w.as_array().any()


class Tagger(dy.ParameterCollection):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.w = self.add_parameters((size,))
        self.trainer = dy.MomentumSGDTrainer(self)


def test_derived_classes(copied: Copier) -> None:
    tagger = Tagger(3)
    other = copied(tagger)
    assert type(other) is Tagger
    assert other.size == 3
    assert other.trainer._collection is other
    np.testing.assert_array_equal(other.w.as_array(), tagger.w.as_array())
    other.w.zero()
    assert not other.parameters_list()[0].as_array().any()


@pytest.mark.parametrize(
    "init",
    [
        dy.NormalInitializer(1, 2),
        dy.UniformInitializer(3),
        dy.ConstInitializer(4),
        dy.GlorotInitializer(True, 2),
        dy.SaxeInitializer(2),
        dy.IdentityInitializer(),
        dy.FromFileInitializer("f"),
        dy.NumpyInitializer(np.eye(3)),
    ],
    ids=lambda init: type(init).__name__,
)
def test_initializers(copied: Copier, init: Any) -> None:
    other = copied(init)
    assert type(other) is type(init)
    assert vars(other).keys() == vars(init).keys()
    for key, value in vars(init).items():
        np.testing.assert_array_equal(getattr(other, key), value)


def test_functions_and_classes_by_name() -> None:
    for name in dy.__all__:
        public = getattr(dy, name)
        if inspect.isclass(public) or callable(public):
            assert pickle.loads(pickle.dumps(public)) is public, name


def test_what_does_not_pickle(graph: Any) -> None:
    pc, below, w, e = model()
    for expression in (dy.inputVector([1, 2]), w.expr(), e[1], dy.GRUBuilder(1, 2, 2, pc).initial_state()):
        with pytest.raises(TypeError, match="do not pickle"):
            pickle.dumps(expression)


def test_parameters_of_a_deleted_collection(copied: Copier) -> None:
    """Parameters are pickled with the whole collection, so parameters that are pickled together stay connected."""
    pc, below, w, e = model()
    value = w.as_array()
    del pc, below
    w2, e2 = copied((w, e))
    np.testing.assert_array_equal(w2.as_array(), value)
    np.testing.assert_array_equal(e2.as_array(), e.as_array())
    assert w2.storage is e2.storage is not w.storage
    w2.zero()
    np.testing.assert_array_equal(w.as_array(), value)


def test_of_an_earlier_version() -> None:
    """In earlier versions, pickles named the module of collections, which before was that of parameters."""
    model = dy.ParameterCollection()
    model.parameters_from_numpy(np.array([1.0, 2.0]), "w")
    data = pickle.dumps(model, protocol=0)
    assert b"cdynet_cy\n" in data
    for place in (b"collection", b"parameters"):
        restored = pickle.loads(data.replace(b"cdynet_cy\n", b"cdynet_cy.model.%b\n" % place))
        np.testing.assert_array_equal(restored["w"].as_array(), [1, 2])
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dynet_cy.model.parameters.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("module", "value"), [("devices", dy.get_device_info("CPU")), ("search", dy.Hypothesis([1, 2], -0.5, None))]
)
def test_modules_of_earlier_versions(module: str, value: Any) -> None:
    """In earlier versions, these modules were at the top of the package."""
    now = f"c{type(value).__module__}\n".encode()
    data = pickle.dumps(value, protocol=0)
    assert now in data
    restored = pickle.loads(data.replace(now, f"cdynet_cy.{module}\n".encode()))
    assert type(restored) is type(value)
    assert repr(restored) == repr(value)
