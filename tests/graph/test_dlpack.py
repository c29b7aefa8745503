"""Arrays to and from other libraries by DLPack: what is shared, what is copied, and that nothing dangles."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy


@pytest.fixture(autouse=True)
def _fresh_graph() -> Iterator[None]:
    dy.renew_cg()
    yield
    dy.renew_cg()


class OnlyDLPack:
    """A tensor that supports DLPack and nothing else, possibly on a device."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **asked: Any) -> Any:
        return self.array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)


# ---- out


def test_values_of_expressions_are_copies() -> None:
    """The graph reuses its memory, so each array that is handed out has memory of its own."""
    x = dy.inputTensor(FLOATS) * 2
    found = np.from_dlpack(x)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, 2 * FLOATS)
    again = np.from_dlpack(x)
    assert not np.shares_memory(found, again)
    for k in range(3):
        dy.renew_cg()
        (dy.inputTensor(FLOATS + k) * -7).npvalue()
    np.testing.assert_array_equal(found, 2 * FLOATS)
    batch = np.from_dlpack(dy.inputTensor(FLOATS, batched=True) + 1)
    np.testing.assert_array_equal(batch, FLOATS + 1)


def test_a_value_cannot_be_shared() -> None:
    x = dy.inputVector([1, 2])
    with pytest.raises(BufferError, match="its graph reuses the memory"):
        x.__dlpack__(copy=False)
    with pytest.raises(BufferError, match=r"dl_device is \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="no streams"):
        x.__dlpack__(stream=1)
    assert x.__dlpack_device__() == (1, 0)
    dy.renew_cg()
    with pytest.raises(dy.StaleExpressionError):
        x.__dlpack__()


def test_tensors() -> None:
    np.testing.assert_array_equal(np.from_dlpack(dy.inputTensor(FLOATS).tensor_value()), FLOATS)


def test_parameters_are_shared() -> None:
    model = dy.ParameterCollection()
    W = model.parameters_from_numpy(FLOATS)
    shared = np.from_dlpack(W)
    assert shared.shape == (2, 3)
    assert np.shares_memory(shared, np.from_dlpack(W))
    np.testing.assert_array_equal(shared, FLOATS)
    W.set_value(FLOATS + 5)
    np.testing.assert_array_equal(shared, FLOATS + 5)
    trainer = dy.SimpleSGDTrainer(model, 0.5)
    dy.squared_norm(W).backward()
    trainer.update()
    np.testing.assert_array_equal(shared, W.as_array())
    assert not np.shares_memory(shared, np.from_dlpack(W.as_array()))
    copied = np.array(shared)
    model.add_parameters((1000, 1000))  # more parameters do not move it
    np.testing.assert_array_equal(shared, copied)


def writable(p: Any) -> np.ndarray:
    """The shared memory, writable as in PyTorch: in some versions of NumPy, arrays from DLPack are read-only."""
    found = np.from_dlpack(p)
    address = found.__array_interface__["data"][0]
    memory = (ctypes.c_float * found.size).from_address(address)
    return np.frombuffer(memory, np.float32).reshape(found.shape[::-1]).T


def test_what_is_written_counts() -> None:
    """Writes show in products too, which otherwise read a packed copy from the second use of a matrix on."""
    model = dy.ParameterCollection()
    size = 128  # large enough to be packed
    W = model.add_parameters((size, size))
    x = np.linspace(-1, 1, size)

    def product() -> np.ndarray:
        dy.renew_cg()
        return (W * dy.inputVector(x)).npvalue()

    for _ in range(4):
        product()  # packed by now
    shared = writable(W)
    for k in range(1, 6):
        shared[:] = np.eye(size) * k
        np.testing.assert_allclose(product(), k * x, rtol=1e-6)
        np.testing.assert_allclose(product(), k * x, rtol=1e-6)


def test_lookup_tables_are_shared_rows_first() -> None:
    model = dy.ParameterCollection()
    table = model.lookup_parameters_from_numpy(np.arange(24, dtype=np.float32).reshape(4, 2, 3))
    shared = np.from_dlpack(table)
    assert shared.shape == (4, 2, 3)
    np.testing.assert_array_equal(shared, table.as_array())
    table.init_row(2, np.full((2, 3), 7))
    np.testing.assert_array_equal(shared, table.as_array())


def test_tables_that_decay() -> None:
    """The decay of a shared table is applied to its numbers at once: other libraries do not know its factor."""
    model = dy.ParameterCollection()
    table = model.add_lookup_parameters((3, 2), init=1)
    bias = model.add_parameters(2)
    model.set_weight_decay_lambda(0.25)
    trainer = dy.SimpleSGDTrainer(model, 0.1)

    def step() -> None:
        dy.renew_cg()
        dy.squared_norm(table[0] + bias).backward()
        trainer.update()

    step()
    shared = np.from_dlpack(table)
    for _ in range(3):
        np.testing.assert_array_equal(shared, table.as_array())
        step()
    np.testing.assert_array_equal(shared, table.as_array())


def test_a_view_keeps_the_memory() -> None:
    model = dy.ParameterCollection()
    W = model.parameters_from_numpy(FLOATS)
    gone = weakref.ref(W)
    shared = np.from_dlpack(W)
    del W, model
    gc.collect()
    assert gone() is None
    others = [dy.ParameterCollection().add_parameters((50, 50), init=k) for k in range(20)]
    np.testing.assert_array_equal(shared, FLOATS)
    del shared
    gc.collect()
    assert len(others) == 20


def test_a_plane_that_is_shared_does_not_move() -> None:
    model = dy.ParameterCollection()
    W = model.parameters_from_numpy(FLOATS)
    shared = np.from_dlpack(W)
    room = np.zeros(4096 + 64, np.uint8)
    start = -room.ctypes.data % 64
    mapping = room[start : start + 4096]
    with pytest.raises(BufferError, match="cannot move while arrays of others share them"):
        W.storage.move(W.storage.values, mapping)
    np.testing.assert_array_equal(shared, FLOATS)
    del shared
    gc.collect()
    W.storage.move(W.storage.values, mapping)
    np.testing.assert_array_equal(W.as_array(), FLOATS)


def test_copies_of_parameters() -> None:
    W = dy.ParameterCollection().parameters_from_numpy(FLOATS)
    capsule = W.__dlpack__(copy=True)
    assert "dltensor" in repr(capsule)
    with pytest.raises(BufferError, match="parameter /_0 is given on the CPU"):
        W.__dlpack__(dl_device=(2, 1))


# ---- in


def test_tensors_of_other_libraries_are_values() -> None:
    given = OnlyDLPack(FLOATS)
    np.testing.assert_array_equal(dy.inputTensor(given).npvalue(), FLOATS)
    np.testing.assert_array_equal(dy.inputVector(OnlyDLPack(np.arange(3))).npvalue(), [0, 1, 2])
    x = dy.inputTensor(np.zeros((2, 3)))
    x.set(given)
    np.testing.assert_array_equal(x.npvalue(), FLOATS)
    model = dy.ParameterCollection()
    W, table = model.add_parameters((2, 3)), model.add_lookup_parameters((2, 3))
    W.set_value(given)
    table.init_from_array(given)
    np.testing.assert_array_equal(W.as_array(), FLOATS)
    np.testing.assert_array_equal(table.as_array(), FLOATS)
    np.testing.assert_array_equal(model.parameters_from_numpy(given).as_array(), FLOATS)
    np.testing.assert_array_equal(model.lookup_parameters_from_numpy(given).as_array(), FLOATS)


def test_devices_are_named() -> None:
    for make in (dy.inputTensor, dy.ParameterCollection().parameters_from_numpy):
        with pytest.raises(
            TypeError, match=r"lies on a device \(OnlyDLPack on device 3 of kind 2\); copy it to the CPU"
        ):
            make(OnlyDLPack(FLOATS, (2, 3)))
    W = dy.ParameterCollection().add_parameters((2, 3), init=1)
    with pytest.raises(TypeError, match="set_value.*lies on a device"):
        W.set_value(OnlyDLPack(FLOATS, (10, 0)))
    np.testing.assert_array_equal(W.as_array(), np.ones((2, 3)))


def test_expressions_are_no_numbers() -> None:
    """The gradients of the expressions would be lost silently."""
    with pytest.raises(TypeError, match="must hold real numbers"):
        dy.inputTensor(dy.inputVector([1, 2]))


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="must hold real numbers, not complex64"):
        dy.inputVector(OnlyDLPack(np.zeros(2, np.complex64)))


# ---- PyTorch


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="exchange with PyTorch")


def test_pytorch(torch: Any) -> None:
    model = dy.ParameterCollection()
    W = model.parameters_from_numpy(FLOATS)
    shared = torch.from_dlpack(W)
    shared.mul_(2)  # in place
    np.testing.assert_array_equal(W.as_array(), 2 * FLOATS)
    W.set_value(FLOATS)
    assert torch.equal(shared, torch.from_numpy(FLOATS))
    x = torch.from_dlpack(dy.inputTensor(FLOATS) + 1)
    dy.renew_cg()
    assert torch.equal(x, torch.from_numpy(FLOATS) + 1)
    del model, W
    gc.collect()
    assert torch.equal(shared, torch.from_numpy(FLOATS))


def test_pytorch_as_values(torch: Any) -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    np.testing.assert_array_equal(dy.inputTensor(tensor).npvalue(), FLOATS)
    np.testing.assert_array_equal(dy.inputTensor(tensor.T).npvalue(), FLOATS.T)
    np.testing.assert_array_equal(dy.inputTensor(tensor.to(torch.int64)).npvalue(), FLOATS)
    np.testing.assert_array_equal((dy.zeros((2, 3)) + tensor).npvalue(), FLOATS)
    for wrong in (tensor.requires_grad_(), torch.zeros(2, dtype=torch.bfloat16)):
        with pytest.raises(TypeError, match="inputTensor: .* cannot be read as numbers"):
            dy.inputTensor(wrong)
