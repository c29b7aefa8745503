"""The GPU backend: opening devices, the cache of kernels, device memory, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from own_process import environment, run_python

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.memory import arena

MANY = 700_000  # floats: more than the smallest segment of device memory holds


only_emulated = pytest.mark.skipif(
    not os.environ.get("DYNET_CY_GPU_EMULATED"), reason="only the emulated driver has limits and traces"
)


def in_a_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python(Path(tempfile.gettempdir()), code, **environment)


# ---- devices -------------------------------------------------------------------


def test_names(device: str) -> None:
    assert dy.available_devices()[:2] == ["CPU", device]
    info = dy.get_device_info(device)
    assert (info.name, info.id, info.type) == (device, 0, 0)
    with pytest.raises(RuntimeError, match=r"to_device: Invalid device name: GPU:63: GPU:63: the driver shows \d+ dev"):
        dy.to_device(dy.inputVector([1.0]), "GPU:63")


def test_settings(device: str) -> None:
    try:
        config.set(requested_gpus=1)
        assert config.gpu()
        assert config.get()["requested_gpus"] == 1
        assert config.get()["gpu_mask"] == [1]
        model = dy.ParameterCollection()
        assert model.storage.device == 1
        config.set(gpu_mask=[0, 0])
        assert not config.gpu()
        config.set_gpu()
        assert config.gpu()
    finally:
        config.set_gpu(False)
    assert dy.ParameterCollection().storage.device == 0


@pytest.mark.parametrize("option", ["--dynet-gpu", "--dynet-gpus=1", "--dynet-gpu-ids=0", "--dynet-devices=CPU,GPU:0"])
def test_options(device: str, option: str) -> None:
    code = f"import sys; sys.argv.append({option!r}); from dynet_cy import config; print(config.gpu())"
    done = in_a_process(code)
    assert done.stdout == "True\n", done.stderr


def test_nothing_is_loaded_before_a_gpu_is_asked_for() -> None:
    code = "import sys, dynet_cy; print([m for m in sys.modules if 'dynet_cy.gpu' in m or 'pycuda' in m])"
    done = in_a_process(code)
    assert done.stdout == "[]\n", done.stderr


def test_without_pycuda(device: str) -> None:
    code = "import sys; sys.modules['pycuda'] = None; import dynet_cy as dy; dy.get_device_info('GPU:0')"
    done = in_a_process(code)
    assert "PyCUDA is needed for GPUs: pip install 'dynet_cy[cuda]'" in done.stderr


@pytest.mark.skipif(not os.environ.get("DYNET_CY_GPU_EMULATED"), reason="needs several devices")
def test_several_devices(device: str) -> None:
    code = """
import sys
sys.argv.append("--dynet-devices=CPU,GPU:1")
import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
print(dy.available_devices(), config.get()["gpu_mask"])
models = [dy.ParameterCollection(), dy.ParameterCollection()]
tables = [models[0].lookup_parameters_from_numpy([[1.0], [2.0]]),
          models[1].lookup_parameters_from_numpy([[3.0], [4.0]], device="GPU:0")]
for model, table in zip(models, tables):
    dy.renew_cg()
    loss = table[1] * table[0]
    print(loss.value(), model.storage.device)
    loss.backward()
    dy.SimpleSGDTrainer(model, 1.0).update()
    print(table.as_array().ravel().tolist())
print([engine.stats(f"gpu.{i}")["launches"] for i in range(2)])
"""
    done = in_a_process(code, EMU_DEVICES="2")
    expected = ["['CPU', 'GPU:0', 'GPU:1'] [0, 1]", "2.0 2", "[-1.0, 1.0]", "12.0 1", "[-1.0, 1.0]"]
    lines = done.stdout.splitlines()
    assert lines[:5] == expected, done.stderr
    first, second = json.loads(lines[5])
    assert first == second > 3


# ---- kernels ---------------------------------------------------------------------


@pytest.fixture
def cache(device, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("DYNET_CY_CUDA_CACHE", str(tmp_path / "cubins"))
    return tmp_path / "cubins"


def test_kernels_are_kept(cache: Path, monkeypatch) -> None:
    from dynet_cy.gpu import compiler, driver

    architecture = driver.architecture(0)
    code = compiler.cubin("lookup", architecture)
    (kept,) = cache.iterdir()
    assert kept.read_bytes().endswith(code)
    monkeypatch.setattr(compiler, "_compile", None)  # it must not be called
    assert compiler.cubin("lookup", architecture) == code
    # Without a compiler, kernels from the cache are used.
    monkeypatch.setattr(compiler, "nvcc", lambda: None)
    assert compiler.cubin("lookup", architecture) == code
    kept.unlink()
    with pytest.raises(driver.GpuUnavailable, match="there is no nvcc"):
        compiler.cubin("lookup", architecture)


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_damaged_kernels_are_made_anew(cache: Path, damage: bytes | None, monkeypatch) -> None:
    from dynet_cy.gpu import compiler

    monkeypatch.setattr(compiler, "_compile", lambda source, what, *others: b"code of " + what.encode())
    assert compiler.cubin("lookup", "sm_90") == b"code of in cuda/lookup.cu"
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + b"?" if damage is None else damage)
    assert compiler.cubin("lookup", "sm_90") == b"code of in cuda/lookup.cu"
    assert kept.read_bytes() == whole


def test_the_cache_tells_sources_and_architectures_apart(cache: Path, monkeypatch) -> None:
    from dynet_cy.gpu import compiler

    monkeypatch.setattr(
        compiler, "_compile", lambda source, what, architecture, nvcc: f"{what} {architecture}".encode()
    )
    for name in ("lookup", "unary"):
        for architecture in ("sm_80", "sm_90"):
            assert compiler.cubin(name, architecture) == f"in cuda/{name}.cu {architecture}".encode()
    assert len(list(cache.iterdir())) == 4
    monkeypatch.setattr(compiler, "_source_hash", lambda name: "other")
    compiler.cubin("lookup", "sm_90")
    assert len(list(cache.iterdir())) == 5


def test_processes_that_compile_at_the_same_time(cache: Path, tmp_path: Path) -> None:
    code = """
import dynet_cy as dy
model = dy.ParameterCollection()
table = model.lookup_parameters_from_numpy([[1.0], [2.0]], device="GPU:0")
print(table[1].value())
"""
    command = [sys.executable, "-c", code]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True, cwd=tmp_path) for _ in range(3)
    ]
    assert [run.communicate()[0] for run in runs] == ["2.0\n"] * 3
    names = [path.name.partition("-")[0] for path in cache.iterdir()]
    assert sorted(names) == ["base", "lookup"], "no temporary file is left"


def test_kernels_that_do_not_compile(cache: Path, tmp_path: Path, monkeypatch) -> None:
    from dynet_cy.gpu import compiler, driver

    cuda, include = compiler.source_folders()
    (tmp_path / "wrong.cu").write_text("this is no program\n")
    monkeypatch.setattr(compiler, "source_folders", lambda: (tmp_path, include))
    with pytest.raises(driver.GpuError, match=r"the kernels in cuda/wrong.cu do not compile for sm_90"):
        compiler.cubin("wrong", "sm_90")


def test_every_kernel_is_there(device: str) -> None:
    """All modules load, every kernel that is used by name exists, and every file is used."""
    from dynet_cy.gpu import backend, compiler, registry, update  # noqa: F401 - fill the tables

    assert {module for module, _ in registry.kernels()} == set(compiler.module_names())


# ---- memory ----------------------------------------------------------------------


def test_closed_graphs_give_memory_back(on_device: str) -> None:
    from dynet_cy.gpu.driver import memory_info

    with dy.ComputationGraph():
        (dy.constant((10,), 1.0) + 1).value()
    left = memory_info(0)[0]
    graph = dy.ComputationGraph()
    with graph:
        (dy.constant((MANY,), 1.0) + 1).npvalue()
    assert memory_info(0)[0] < left
    del graph
    assert memory_info(0)[0] == left


def test_many_graphs(device: str) -> None:
    """Ten thousand graphs at once use little memory and few addresses of the device, and free what they used."""
    code = """
import gc
import dynet_cy as dy
from dynet_cy.graph.expressions import set_default_device
from dynet_cy.gpu.driver import memory_info
dy.get_device_info("GPU:0"); set_default_device(1)
W = dy.ParameterCollection().add_parameters((5, 5), init=1.0)
graphs = []
for k in range(10_000):
    graphs.append(dy.ComputationGraph())
    with graphs[-1]:
        x = W * dy.inputVector([k, 1, 2, 3, 4])
        dy.squared_norm(dy.tanh(x)).backward()
    graphs[-1] = graphs[-1], x
    if k == 0:
        before = memory_info(0)[0]
print((before - memory_info(0)[0]) // 9999)
for k, (graph, x) in list(enumerate(graphs))[::97]:
    with graph:
        assert x.npvalue().tolist() == [k + 10] * 5
del graphs, graph, x
gc.collect()
print(before - memory_info(0)[0])
"""
    done = in_a_process(code, EMU_STRICT="0")
    assert done.returncode == 0, done.stderr
    bytes_each, left = map(int, done.stdout.split())
    assert bytes_each <= 1 << 17
    assert left <= 0


def test_values_lie_in_many_segments(on_device: str) -> None:
    """Values stay right while graphs grow, shrink and give memory back: host segments are allocated and freed."""
    rng = np.random.default_rng(3)
    model = dy.ParameterCollection()
    p = model.parameters_from_numpy(rng.normal(size=7))
    for sizes in ([5, 40], [3000, 10, 200_000, 7], [20] * 400, [1, 600_000], [20] * 900, [50_000, 3, 3]):
        for give_back in (False, True):
            dy.renew_cg()
            model.zero_gradients()
            xs = [rng.normal(size=n) for n in sizes]
            ys = [dy.tanh(dy.inputVector(x)) for x in xs]
            ys[-1].value()
            (dy.esum([dy.squared_norm(y) for y in ys]) * dy.squared_norm(p)).backward()
            total = 0
            for x, y in zip(xs, ys):
                np.testing.assert_allclose(y.npvalue(), np.tanh(x), rtol=1e-4, atol=1e-5)
                total += (np.tanh(x) ** 2).sum()
            np.testing.assert_allclose(p.grad_as_array(), 2 * total * p.as_array(), rtol=1e-3)
            if give_back:
                dy.renew_cg()
                arena.give_back()


@only_emulated
def test_out_of_memory(device: str) -> None:
    """The error is clear, values computed before stay, and the graph can still be used."""
    code = """
import dynet_cy as dy
from dynet_cy.graph.expressions import set_default_device
dy.get_device_info("GPU:0"); set_default_device(1)
dy.renew_cg()
small = dy.constant((5000,), 1.0) + 1
print(small.npvalue()[0])
try:
    (small + dy.constant((1, 5000), 1.0)).npvalue()
except MemoryError as e:
    print(e)
print(dy.sum_elems(small).value())
"""
    done = in_a_process(code, EMU_MEMORY=str(64 << 20))
    first, message, last = done.stdout.splitlines()
    assert (first, last) == ("2.0", "10000.0"), done.stderr
    assert message.startswith("out of memory of GPU:0 for the values of the graph: ")
    assert "bytes are needed, " in message


@only_emulated
def test_out_of_memory_for_a_trainer(device: str) -> None:
    """A trainer that cannot be made frees its memory, so another one fits."""
    code = """
import warnings
import dynet_cy as dy
from dynet_cy.gpu.driver import memory_info
warnings.simplefilter("ignore")  # of an update without gradients
model = dy.ParameterCollection()
p = model.add_parameters(2500000, device="GPU:0")
if {several}:
    q = model.add_parameters(1000, device="CPU")
    r = model.add_parameters(1000, device="GPU:1")
left = memory_info(0)[0]
for _ in range(3):
    try:
        dy.AmsgradTrainer(model)
    except MemoryError as e:
        print(e)
assert memory_info(0)[0] == left
dy.MomentumSGDTrainer(model).update()
"""
    for several in (False, True):
        done = in_a_process(code.format(several=several), EMU_MEMORY=str(48 << 20), EMU_DEVICES="2")
        assert (done.stdout.count("out of memory of GPU:0 for parameters"), done.stderr) == (3, "")


def test_large_copies(on_device: str) -> None:
    """Large copies go through small buffers, in parts."""
    from dynet_cy.gpu.memory import staging_bytes

    values = np.arange(5 * MANY, dtype=np.float32)
    dy.renew_cg()
    x = dy.inputTensor(values[:-1])
    y = dy.inputTensor(np.arange(3.0))
    assert dy.sum_elems(y + 1).value() == 6
    np.testing.assert_array_equal((x + 1).npvalue(), values[1:])
    model = dy.ParameterCollection()
    p = model.parameters_from_numpy(values)
    np.testing.assert_array_equal(p.as_array(), values)
    assert staging_bytes(0) < 3 * (16 << 20)


def test_launches(on_device: str) -> None:
    """The number of launches for a sum of losses and its gradients does not depend on the number of losses."""

    model = dy.ParameterCollection()
    weights = model.add_parameters((4, 5))
    found = []
    for n in (10, 100):
        dy.renew_cg(autobatching=1)
        losses = [dy.pickneglogsoftmax(weights * dy.inputVector([k, 1, 2, 3, 4]), k % 4) for k in range(n)]
        loss = dy.esum(losses)
        before = engine.stats("gpu.0")
        loss.value()
        loss.backward()
        after = engine.stats("gpu.0")
        found.append({key: after[key] - before[key] for key in after if not key.endswith("bytes")})
    assert max(x.pop("uploads") for x in found) <= 3  # small tables are not sent on their own
    assert found[0] == found[1]
    assert found[0]["launches"] + found[0]["products"] <= 8
    assert found[0]["waits"] == 1


def test_limit(on_device: str, memory_left) -> None:
    """--dynet-mem limits each device."""
    memory_left(1 << 20)
    with dy.ComputationGraph(), pytest.raises(MemoryError, match="raise it with --dynet-mem"):
        (dy.constant((MANY,), 1.0) + 1).npvalue()


# ---- errors ------------------------------------------------------------------------


@pytest.mark.skipif(not os.environ.get("DYNET_CY_GPU_EMULATED"), reason="it would make a real device unusable")
def test_a_fault_of_a_kernel(device: str, tmp_path: Path) -> None:
    """The error names the kernel, and later ones say that the process must be restarted."""
    code = """
import pathlib, shutil, sys
import dynet_cy as dy
from dynet_cy.gpu import compiler
from dynet_cy.graph.expressions import set_default_device
cuda, include = compiler.source_folders()
here = pathlib.Path(sys.argv[1])
for f in cuda.iterdir():
    shutil.copy(f, here)
part = "__shared__ float part[32];"
text = (here / "linalg.cu").read_text()
(here / "linalg.cu").write_text(text.replace(part, part + " if (threadIdx.x) return;"))
compiler.source_folders = lambda: (here, include)
dy.get_device_info("GPU:0"); set_default_device(1)
for _ in range(2):
    dy.renew_cg()
    x = dy.inputVector([1.0] * 40)
    try:
        print(dy.dot_product(x, x).value())
    except RuntimeError as e:
        print(type(e).__name__, e)
"""
    done = run_python(tmp_path, code, str(tmp_path))
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        assert line.startswith("GpuError GPU:0: ")
        assert "dot_forward" in line
        assert "The device cannot be used any more by this process; start it anew" in line


@pytest.mark.skipif(not os.environ.get("DYNET_CY_GPU_EMULATED"), reason="a real device launches every kernel")
def test_errors_of_threads(device: str) -> None:
    """An error of one thread is raised in that thread only, however many others use the device."""
    code = """
import sys, threading
import dynet_cy as dy
from dynet_cy.gpu.driver import GpuError
sys.setswitchinterval(1e-6)
found = {"tanh": [], "sin": [], "square": []}
def work(op, outcomes):
    for k in range(200):
        with dy.ComputationGraph():
            try:
                outcomes.append(op(dy.inputVector([k, 1.0], device="GPU:0")).value() == [k * k, 1])
            except GpuError as error:
                outcomes.append(str(error).split()[2])
threads = [threading.Thread(target=work, args=(getattr(dy, op), found[op])) for op in 2 * list(found)]
for x in threads: x.start()
for x in threads: x.join()
print({name: set(outcomes) for name, outcomes in found.items()})
"""
    done = in_a_process(code, EMU_NO_LAUNCH="unary_forward_tanh,unary_forward_sin")
    found = {"tanh": {"unary_forward_tanh:"}, "sin": {"unary_forward_sin:"}, "square": {True}}
    assert done.stdout == f"{found}\n", done.stdout + done.stderr


def test_threads_that_need_the_same_kernels(device: str) -> None:
    """Threads may compile the same kernels at once; each kernel is loaded once."""
    code = """
import threading
import dynet_cy as dy
from dynet_cy.gpu import compiler, registry
ready, cubin = threading.Barrier(3, timeout=600), compiler.cubin
def at_once(module, architecture):
    if module == "unary":
        ready.wait()
    return cubin(module, architecture)
compiler.cubin = at_once
found = []
def work():
    with dy.ComputationGraph():
        found.append(dy.square(dy.inputVector([3.0, 2.0], device="GPU:0")).value())
threads = [threading.Thread(target=work) for _ in range(3)]
for x in threads: x.start()
for x in threads: x.join()
print(found, len(registry._loaded_code) == len(set(registry._loaded_code)))
"""
    done = in_a_process(code)
    assert done.stdout == "[[9.0, 4.0], [9.0, 4.0], [9.0, 4.0]] True\n", done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork(device: str) -> None:
    """A child gets an error if it uses the parent's device, leaves the device alone, and can compute on the CPU."""
    code = """
import os, sys
import dynet_cy as dy
model = dy.ParameterCollection()
p = model.add_parameters(4, init=1, device="GPU:0")
trainer = dy.SimpleSGDTrainer(model)
graph = dy.ComputationGraph()
for _ in range(3):
    with graph.renew():
        dy.squared_norm(p).backward()
    trainer.update()
before = p.as_array()
child = os.fork()
if child == 0:
    for what in (p.as_array, trainer.update, lambda: dy.inputVector([1.0], device="GPU:0").value(),
                 lambda: dy.get_device_info("GPU:0")):
        try:
            print(what())
        except RuntimeError as e:
            print("this process was forked from one that had used GPUs" in str(e))
    print(dy.inputVector([1.0]).value())
    del p, model, trainer, graph
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (p.as_array() == before).all()
"""
    done = in_a_process(code)
    assert done.stdout == 4 * "True\n" + "1.0\n", done.stderr
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# ---- graphs ------------------------------------------------------------------------


def test_forward_only(on_device: str) -> None:
    """The memory of a loop that keeps only its last value does not grow."""
    from dynet_cy.gpu.driver import memory_info

    dy.renew_cg(forward_only=True)
    x = dy.inputVector(np.ones(1000))
    left = 0
    for k in range(3000):
        x = x + 1
        x.forward()
        if k == 100:
            left = memory_info(0)[0]
    assert x.npvalue()[0] == 3001
    assert memory_info(0)[0] == left


@only_emulated
@pytest.mark.parametrize("poison", [False, True])
def test_what_a_graph_gives_back_is_poison(poison: bool, tmp_path: Path) -> None:
    """A number that the graph before has written, behind the end of what this one takes."""
    code = """
import ctypes, os
import numpy as np
import dynet_cy as dy
from dynet_cy.graph.expressions import set_default_device

set_default_device(1)
W = dy.ParameterCollection().parameters_from_numpy(np.eye(8))
driver = ctypes.CDLL(os.environ["DYNET_CY_LIBCUDA"])
found = np.zeros(8, np.float32)


def run(cells):
    dy.renew_cg()
    x = dy.inputVector(np.ones(8))
    for _ in range(cells):
        x = dy.tanh(W * x)
    x.value()


run(50)
with open(os.environ["EMU_TRACE"]) as trace:
    result = int(trace.read().split(" c ")[-1].split()[0], 16)
for cells in 0, 2:
    if cells:
        run(cells)
    size = ctypes.c_size_t(found.nbytes)
    assert driver.cuMemcpyDtoH_v2(found.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(result), size) == 0
    print(int(np.isnan(found).sum()))
"""
    done = in_a_process(code, EMU_TRACE=str(tmp_path / "trace"), DYNET_CY_POISON=str(int(poison)))
    assert done.stdout.split() == ["0", "8" if poison else "0"], done.stderr
