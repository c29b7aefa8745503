"""CUDA graphs of repeated passes give the same results as without them, bit for bit."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from arrays import all_close, all_equal
from test_devices import devices as devices
from training import TRAINERS, Network

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.core import engine
from dynet_cy.graph.expressions import set_autobatching, set_default_device

EMULATED = bool(os.environ.get("DYNET_CY_GPU_EMULATED"))
MANY_NODES = 1 << 16


@pytest.fixture(autouse=True)
def limits(device: str) -> Iterator[None]:
    """GPU:0 is the default device, with a new graph and the default limits."""
    with engine.tuned({"gpu.graphs.most_graphs": 32, "gpu.graphs.most_nodes": MANY_NODES}):
        set_default_device(1)
        with dy.ComputationGraph():
            yield
        set_default_device(0)
        set_autobatching(1)
        dy.renew_cg()


class Counted:
    """Counts the requests to a device within the block."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.found: dict[str, int] = {}

    def __enter__(self) -> Counted:
        dy.get_device_info(f"GPU:{self.number}")
        self.before = engine.stats(f"gpu.{self.number}")
        return self

    def __exit__(self, *_: object) -> None:
        self.found = {key: n - self.before[key] for key, n in engine.stats(f"gpu.{self.number}").items()}

    def __getitem__(self, key: str) -> int:
        return self.found[key]

    @property
    def nodes(self) -> int:
        return self["launches"] + self["products"] + self["fills"]


def alone(run):
    """The result of a function in a new graph, with the same random numbers each time."""
    dy.reset_random_seed(11)
    with dy.ComputationGraph():
        return run()


def without(run):
    """The same without replays."""
    with Counted() as counted, engine.tuned({"gpu.graphs.most_graphs": 0}):
        found = alone(run)
    assert counted["replays"] == counted["captures"] == 0
    return found


def on_the_cpu(run):
    set_default_device(0)
    found = alone(run)
    set_default_device(1)
    return found


def alive() -> int:
    """The number of CUDA graphs that the emulated driver holds."""
    return ctypes.CDLL(os.environ["DYNET_CY_LIBCUDA"]).emu_graphs()


def assert_close(found: list, desired: list) -> None:
    all_close(found, desired, rtol=2e-4, atol=1e-5)


class Words:
    """A network with a table row and an input for each word, a layer with dropout, and a loss for each word."""

    def __init__(self, dropout: float = 0.0) -> None:
        self.model = dy.ParameterCollection()
        self.dropout = dropout
        self.table = self.model.lookup_parameters_from_numpy(self.numbers(9, 6))
        self.W = self.model.parameters_from_numpy(self.numbers(40, 6))
        self.b = self.model.parameters_from_numpy(self.numbers(40))
        self.V = self.model.parameters_from_numpy(self.numbers(4, 40))

    @staticmethod
    def numbers(*shape: int) -> np.ndarray:
        return np.random.RandomState(sum(shape)).uniform(-1, 1, shape)

    def hidden(self, word: int, x: np.ndarray) -> dy.Expression:
        h = dy.tanh(self.W * (self.table[word] + dy.inputVector(x)) + self.b)
        return dy.dropout(h, self.dropout) if self.dropout else h

    def loss(self, step: int, words: int = 3) -> dy.Expression:
        """The loss of an example that differs from step to step; its structure depends only on the number of words."""
        rng = np.random.RandomState(step)
        hidden = [self.hidden(int(rng.randint(9)), rng.uniform(-1, 1, 6)) for _ in range(words)]
        return dy.esum([dy.pickneglogsoftmax(self.V * h, int(rng.randint(4))) for h in hidden])

    def parameters(self) -> list:
        return [self.W, self.b, self.V, self.table]

    def step(self, loss: dy.Expression) -> list:
        """The value and the gradients."""
        value = loss.npvalue()
        loss.backward()
        return [value, *(p.grad_as_array() for p in self.parameters())]

    def values(self) -> list:
        return [p.as_array() for p in self.parameters()]


def updates(trainer: str = "SimpleSGD", strategy: int = 1, sizes=(3,) * 6, dropout: float = 0.0, between=None) -> list:
    """Values, gradients and parameters after updates, one update for each number of words."""
    set_autobatching(strategy)
    network = Words(dropout)
    update = TRAINERS[trainer](network.model)
    found = []
    for step, words in enumerate(sizes):
        dy.renew_cg()
        found += network.step(network.loss(step, words))
        update.update()
        found += network.values()
        if between:
            between(step, network)
    return found


def compared(run, **counts: int) -> list:
    """What a function finds: the same bits without replays, and the numbers of the CPU, which replays nothing."""
    with Counted() as counted:
        found = alone(run)
    assert {key: counted[key] for key in counts} == counts
    assert counted["replays"] > 0
    all_equal(found, without(run))
    assert_close(found, on_the_cpu(run))
    return found


# ---- the same numbers ------------------------------------------------------------


@pytest.mark.parametrize("strategy", [0, 1, 2])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_updates(trainer: str, strategy: int) -> None:
    with Counted() as counted:
        found = updates(trainer, strategy)
    assert counted["captures"] == 2, "forward and backward"
    assert counted["replays"] == 10, "from the second time on"
    all_equal(found, without(lambda: updates(trainer, strategy)))


def test_what_is_counted() -> None:
    """Counts of launches and copies are the same with and without CUDA graphs."""
    network = Words()
    found = []
    for step in range(4):
        dy.renew_cg()
        with Counted() as counted:
            network.loss(step).forward()
        found.append(counted)
    assert [(c.nodes, c["replayed"], c["captures"], c["replays"]) for c in found] == [
        (found[0].nodes, 0, 0, 0),
        (0, found[0].nodes, 1, 1),
        (0, found[0].nodes, 0, 1),
        (0, found[0].nodes, 0, 1),
    ]
    assert len({(c["uploads"], c["uploaded_bytes"]) for c in found}) == 1
    assert not any(c["waits"] for c in found)


def test_examples_differ() -> None:
    """Each step uses its own inputs, rows and labels."""
    assert len({x.tobytes() for x in compared(updates)[::9]}) == 6


def test_dropout() -> None:
    """Masks differ between replayed steps."""

    def masks() -> list:
        found = []
        for _ in range(6):
            dy.renew_cg()
            x = dy.inputVector(np.ones(50))
            kept = [dy.dropout(x * k, 0.5) for k in (1.0, 2.0)]
            found.append((dy.noise(dy.concatenate(kept), 0.0) + dy.random_normal((100,))).npvalue())
            found.append(dy.concatenate(kept).npvalue())
        return found

    assert len({x.tobytes() for x in compared(masks)}) == 12
    compared(lambda: updates(dropout=0.4), replays=10)


def test_parameters_that_are_changed_between_steps(tmp_path: Path) -> None:
    file = str(tmp_path / "model")

    def between(step: int, network: Words) -> None:
        if step == 2:
            network.W.set_value(network.numbers(40, 6) * 0.5)
            network.table.init_row(3, [0.25] * 6)
            network.model.save(file)
        elif step == 4:
            network.model.populate(file)
        elif step == 5:
            network.V.scale(2.0)
            network.b.zero()
        elif step == 6:
            network.table.init_from_array(network.numbers(9, 6) * 2)
            network.b.clip_inplace(-0.1, 0.1)

    compared(lambda: updates(sizes=(3,) * 9, between=between), replays=16)


def test_weight_decay_and_learning_rates() -> None:
    """Weight decay is a number in the launches, so passes do not repeat; learning rates are not."""

    def run(decay: float) -> list:
        network = Words()
        trainer = dy.SimpleSGDTrainer(network.model)
        network.model.set_weight_decay_lambda(decay)
        found = []
        for step in range(5):
            trainer.learning_rate = 0.1 * (step + 1)
            dy.renew_cg()
            found += network.step(network.loss(step))
            trainer.update()
        return found + network.values()

    for decay in (0.0, 0.1):
        compared(lambda decay=decay: run(decay))


def test_parameters_made_anew() -> None:
    """Memory that is freed and allocated again, perhaps at the same address, is not confused."""

    def run() -> list:
        found = []
        for _ in range(4):
            found += updates(sizes=(3,) * 3)
            gc.collect()
        return found

    compared(run)


# ---- what repeats ------------------------------------------------------------------


def test_structures_that_alternate() -> None:
    compared(lambda: updates(sizes=(2, 3, 5) * 5), captures=6, replays=2 * (15 - 3))


def scaled(factor: float) -> float:
    """A pass of more than four launches with a number in one of them."""
    dy.renew_cg(autobatching=0)
    x = dy.inputVector([1.0, 2.0, 3.0])
    return dy.sum_elems(dy.tanh(dy.exp(dy.tanh(dy.square(x))) * 0.0) + x * factor).value()


def test_one_byte() -> None:
    """Passes that differ in a single byte are not the same."""
    near = float(np.nextafter(np.float32(1), np.float32(2)))
    far = 1.0 + 2.0**-8 * 127  # the third byte of the number
    with Counted() as counted:
        for _ in range(3):
            assert scaled(1.0) == 6.0
    assert (counted["captures"], counted["replays"]) == (1, 2)
    with Counted() as counted:
        np.testing.assert_allclose(scaled(far), 6 * far, rtol=1e-6)
        assert scaled(near) == float(np.float32(6) * np.float32(near))
        assert scaled(-1.0) == -6.0
    assert (counted["captures"], counted["replays"]) == (0, 0)
    with Counted() as counted:
        assert scaled(1.0) == 6.0
    assert counted["replays"] == 1


def test_short_passes_are_launched() -> None:
    with Counted() as counted:
        for k in range(5):
            dy.renew_cg()
            assert (dy.inputVector([1.0, k]) * 2.0).value() == [2, 2 * k]
    assert (counted["captures"], counted["launches"]) == (0, 5)


def test_forward_only() -> None:
    def run() -> list:
        network = Words()
        found = []
        for step in range(6):
            dy.renew_cg(forward_only=True)
            found.append(network.loss(step).npvalue())
        return found

    compared(run, captures=1, replays=5)


def test_profiles_time_every_launch(capfd) -> None:
    """Profiles wait for each launch in order to time it, and list batches as on the CPU."""

    def run() -> tuple[dict, list[str]]:
        network = Words()
        with profiling.measure() as profile:
            for step in range(4):
                dy.renew_cg()
                network.step(network.loss(step))
            profiling.set_level(2)
            dy.renew_cg()
            network.loss(4).forward()
        return {(row.op, row.backward): row.nodes for row in profile}, capfd.readouterr().err.splitlines()

    with Counted() as counted:
        found, listed = alone(run)
    assert (counted["captures"], counted["replays"]) == (0, 0)
    assert counted["waits"] > counted.nodes / 2
    assert found["tanh", False] == 15
    assert found["tanh", True] == 12
    assert found["weight gradients", True] > 0
    assert "BatchSize:3 tanh {40}" in listed
    desired, desired_list = on_the_cpu(run)
    # The CPU sums gradients in another way.
    assert {key: n for key, n in found.items() if not key[1]} == {key: n for key, n in desired.items() if not key[1]}
    assert listed == desired_list

    network = Network(("CPU", "GPU:0", "CPU"))
    with profiling.measure():
        profiling.set_level(2)
        dy.renew_cg()
        network.batch_loss().forward()
    listed = capfd.readouterr().err.splitlines()
    assert listed.count("Forward Call") == 1
    assert "BatchSize:12 tanh {40}" in listed


# ---- limits -----------------------------------------------------------------------


def losses(network: Words, sizes) -> list:
    found = []
    for step, words in enumerate(sizes):
        dy.renew_cg()
        found.append(network.loss(step, words).npvalue())
    return found


@pytest.mark.skipif(not EMULATED, reason="only the emulated driver counts CUDA graphs")
def test_the_one_used_last_stays() -> None:
    network = Words()
    engine.tune("gpu.graphs.most_graphs", 2)
    before = alive()
    sizes = (2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 2, 5, 5, 2)  # 3 is dropped
    with Counted() as counted:
        found = losses(network, sizes)
    assert alive() == before + 2
    assert (counted["captures"], counted["replays"]) == (3, 4 + 4 + 1 + 1 + 1)
    with Counted() as counted:
        losses(network, (3, 2, 5))
    assert (counted["captures"], counted["replays"]) == (0, 2)
    all_equal(found, without(lambda: losses(network, sizes)))


@pytest.mark.skipif(not EMULATED, reason="only the emulated driver counts CUDA graphs")
def test_limit_of_nodes() -> None:
    network = Words()
    engine.tune("gpu.graphs.most_graphs", 0)
    nodes = {}
    for words in (2, 5, 20):
        dy.renew_cg(autobatching=0)
        with Counted() as counted:
            network.loss(0, words).forward()
        nodes[words] = counted.nodes
    assert nodes[2] < nodes[5] < nodes[20]
    set_autobatching(0)
    for most, kept in ((nodes[2] + nodes[5], 2), (nodes[2] + nodes[5] - 1, 1), (nodes[2] - 1, 0)):
        engine.tune("gpu.graphs.most_graphs", 32)
        engine.tune("gpu.graphs.most_nodes", most)
        before = alive()
        with dy.ComputationGraph():
            with Counted() as counted:
                found = losses(network, (2,) * 6 + (5,) * 6 + (20,) * 3)
            assert alive() == before + kept
            assert counted["replays"] == 5 * (most >= nodes[2]) + 5 * (most >= nodes[5])
        assert alive() == before
        all_equal(found, without(lambda: losses(network, (2,) * 6 + (5,) * 6 + (20,) * 3)))


def test_thrashing_stops() -> None:
    """If structures evict each other, they must be seen more often before they are captured, up to 64 times."""
    network = Words()
    engine.tune("gpu.graphs.most_graphs", 1)
    sizes = (2, 2, 3, 3) * 40
    with Counted() as counted:
        found = losses(network, sizes)
    # If two were always enough, it would be 80, one for each pair.
    assert 4 <= counted["captures"] <= 14
    assert counted["replays"] + counted["launches"] > 0
    all_equal(found, without(lambda: losses(network, sizes)))
    with Counted() as counted:
        losses(network, (5,) * 66)
    assert counted["captures"] == 1, "a structure that is seen that often is captured"
    assert counted["replays"] > 0


def test_what_pays_may_be_dropped() -> None:
    """If each structure is used often before it is dropped, seeing it twice stays enough."""
    network = Words()
    engine.tune("gpu.graphs.most_graphs", 1)
    sizes = ((2,) * 6 + (3,) * 6) * 5
    with Counted() as counted:
        losses(network, sizes)
    assert (counted["captures"], counted["replays"]) == (10, 50)


def test_switched_off_and_on_again() -> None:
    network = Words()
    desired = without(lambda: losses(network, (3,) * 9))
    found = losses(network, (3,) * 3)
    engine.tune("gpu.graphs.most_graphs", 0)
    with Counted() as counted:
        for step in range(3, 6):
            dy.renew_cg()
            found.append(network.loss(step).npvalue())
    assert counted["replays"] == 0
    engine.tune("gpu.graphs.most_graphs", 32)
    with Counted() as counted:
        for step in range(6, 9):
            dy.renew_cg()
            found.append(network.loss(step).npvalue())
    assert (counted["captures"], counted["replays"]) == (0, 3)
    all_equal(found, desired)


# ---- graphs and devices -----------------------------------------------------------


@pytest.mark.skipif(not EMULATED, reason="only the emulated driver counts CUDA graphs")
def test_closed_graphs_free_theirs() -> None:
    network = Words()
    before = alive()
    for _ in range(3):
        graph = dy.ComputationGraph()
        with graph:
            losses(network, (2, 2, 3, 3, 3))
        assert alive() == before + 2
        del graph
        gc.collect()
        assert alive() == before


# ---- errors ------------------------------------------------------------------------


def test_values_that_are_not_finite() -> None:
    """A pass that found such a value was replayed, and is replayed again."""

    def run() -> list:
        network = Words()
        found = []
        for step in range(8):
            dy.renew_cg(check_validity=True)
            x = dy.inputVector([np.nan if step == 4 else 1.0 + step] * 6)
            loss = dy.pickneglogsoftmax(network.V * dy.tanh(network.W * x + network.b), 1)
            if step == 4:
                with pytest.raises(ValueError, match="is not finite"):
                    loss.value()
            else:
                found += network.step(loss)
        return found

    compared(run, captures=2, replays=7 + 6)


PROGRAM = """
import sys
sys.path[:0] = sys.argv[1].split(":")
import numpy as np
import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.expressions import set_default_device
dy.get_device_info("GPU:0")
set_default_device(1)
model = dy.ParameterCollection()
W = model.parameters_from_numpy(np.linspace(-1, 1, 30).reshape(5, 6))
V = model.parameters_from_numpy(np.linspace(1, -1, 20).reshape(4, 5))
trainer = dy.AdamTrainer(model)
def large():
    x = dy.constant((5000,), 1.0)
    try:
        (x * dy.constant((1, 5000), 1.0)).npvalue()
    except MemoryError as e:
        print("told: MemoryError", file=sys.stderr)
for step in range(6):
    dy.renew_cg()
    x = dy.inputVector(np.arange(6.0) + step)
    loss = dy.pickneglogsoftmax(V * dy.tanh(W * x), step % 4)
    print(loss.value().hex())
    loss.backward()
    trainer.update()
    if "large" in sys.argv and step == 3:
        large()
print(W.as_array().tobytes().hex(), V.as_array().tobytes().hex())
c = engine.stats("gpu.0")
print("told:", c["captures"], c["failed_captures"], c["replays"], file=sys.stderr)
"""


def program(*options: str, **environment: str) -> tuple[str, list[str]]:
    """The results of the program, and its counts of CUDA graphs."""
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, *options],
        env={**os.environ, **environment},
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line[6:] for line in done.stderr.splitlines() if line.startswith("told: ")]


@pytest.fixture(scope="module")
def computed(device: str) -> str:
    """The results of the program with CUDA graphs."""
    found, told = program()
    assert told == ["2 0 10"]
    return found


@pytest.mark.parametrize("off", ["0", ""])
def test_switched_off_by_the_environment(computed: str, off: str) -> None:
    assert program(DYNET_CY_CUDA_GRAPHS=off) == (computed, ["0 0 0"])


@pytest.mark.skipif(not EMULATED, reason="only the emulated driver fails on request")
@pytest.mark.parametrize("where", ["begin", "product", "end", "make"])
def test_captures_that_fail(computed: str, where: str) -> None:
    """A pass that cannot be captured is launched, and nothing is captured afterwards."""
    assert program(EMU_NO_CAPTURE=where) == (computed, ["0 1 0"])


@pytest.mark.skipif(not EMULATED, reason="a real device is too large to fill")
def test_out_of_memory_between_replays(computed: str) -> None:
    found, told = program("large", EMU_MEMORY=str(64 << 20))
    assert found == computed
    assert told == ["MemoryError", "2 0 10"]
