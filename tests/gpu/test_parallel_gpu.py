"""Processes that train together, each with its parameters on a device, which they may share."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from parallel import jobs
from parallel.programs import training
from parallel.test_mpi import ENVIRONMENT, mpiexec

import dynet_cy as dy

EMULATED = bool(os.environ.get("DYNET_CY_GPU_EMULATED"))
PATH = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@pytest.fixture(scope="module")
def alone() -> dict[str, np.ndarray]:
    """The results of one process on the CPU."""
    return training.results()


def compare(ranks: list[dict[str, np.ndarray]], desired: dict[str, np.ndarray]) -> None:
    for name, numbers in desired.items():
        for other in ranks[1:]:
            np.testing.assert_array_equal(ranks[0][name], other[name], err_msg=f"{name}: ranks differ")
        np.testing.assert_allclose(ranks[0][name], numbers, rtol=1e-5, atol=2e-6, err_msg=name)


def test_same_as_alone(device: str, alone, tmp_path: Path) -> None:
    """All trainers and settings give the parameters of one process with larger batches."""
    result = jobs.launch(tmp_path, "training.py", tmp_path, "--dynet-gpu", variables=PATH)
    assert result.code == 0, result.err
    assert result.out.count("AllreduceReducer") == 2
    compare([jobs.arrays(tmp_path / f"{rank}.npz") for rank in range(2)], alone)


def test_several_devices(device: str, alone, tmp_path: Path) -> None:
    """Parameters on the CPU and on a GPU are trained by processes that share memory."""
    result = jobs.launch(tmp_path, "training.py", tmp_path, "devices", variables=PATH)
    assert result.code == 0, result.err
    assert result.out.count("AllreduceReducer") == 2
    compare([jobs.arrays(tmp_path / f"{rank}.npz") for rank in range(2)], alone)


@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or mpiexec() is None, reason="needs mpi4py and an MPI library"
)
@pytest.mark.parametrize(
    ("hosts", "where", "reducer"),
    [
        ("one", "--dynet-gpu", "AllreduceReducer"),
        ("two", "--dynet-gpu", "AllreduceReducer"),
        ("two", "devices", "AllreduceReducer"),
        ("two", "graphs", "OverlapReducer"),
    ],
)
def test_mpi(device: str, alone, tmp_path: Path, hosts: str, where: str, reducer: str) -> None:
    name = {"one": "", "two": "export DYNET_CY_HOST=host${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; "}[hosts]
    command = [str(mpiexec()), "-n", "2", "sh", "-c", name + 'exec "$@"', "sh", sys.executable]
    done = subprocess.run(
        [*command, str(jobs.PROGRAMS / "training.py"), str(tmp_path), where],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT, **PATH},
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(reducer) == 2
    compare([jobs.arrays(tmp_path / f"{rank}.npz") for rank in range(2)], alone)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_emulated_compiler_keeps_nothing_in_temporary_folders(tmp_path: Path) -> None:
    """Jobs have temporary folders of their own, which are empty in the end, also if they are the first to compile."""
    work, own, kept = (tmp_path / name for name in ("work", "tmp", "kept"))
    work.mkdir()
    own.mkdir()
    (tmp_path / "kernel.cu").write_text('extern "C" __global__ void one(float* x) { x[threadIdx.x] = 1.f; }\n')
    compiler = Path(__file__).resolve().parents[2] / "tools" / "gpu" / "emu" / "nvcc_emu"
    variables = {**os.environ, "TMPDIR": str(own), "EMU_OBJECTS": str(kept / "objects")}
    command = [sys.executable, str(compiler), "--cubin", str(tmp_path / "kernel.cu")]
    subprocess.run(command, cwd=work, env=variables, check=True)
    assert (work / "kernel.cubin").exists()
    assert list(own.iterdir()) == []
    objects = [x.name for x in (kept / "objects").glob("*.so") if not x.name.startswith("accesses-")]
    assert len(objects) == 1  # beside the header that all kernels share


def said(result: jobs.Result, rank: int) -> dict[str, str]:
    lines = [line.removeprefix(f"[rank {rank}] ") for line in result.out.splitlines() if f"[rank {rank}]" in line]
    return dict(line.removeprefix("in ").split(": ", 1) for line in lines if line.startswith("in "))


def test_errors(device: str, tmp_path: Path) -> None:
    result = jobs.launch(tmp_path, "on_gpus.py", "--dynet-gpu", variables=PATH)
    assert result.code == 0, result.err
    for rank in (0, 1):
        words = said(result, rank)
        assert "device of the parameters is a GPU on rank 0 and the CPU on rank 1" in words["devices"]
        assert (
            "/c is Parameters of shape (4,), on a GPU on rank 0 and Parameters of shape (4,), on the CPU"
            in words["places"]
        )
        assert words["added"].startswith("AdamTrainer: parameters were added on a device since the trainer was wrapped")
        assert words["infinite"].startswith("Magnitude of gradient is bad: inf; the gradients of /_0 are not finite")


def test_asynchronous(device: str, tmp_path: Path) -> None:
    result = jobs.launch(tmp_path, "on_gpus.py", "--dynet-gpu", options=["--mode", "async"], variables=PATH)
    assert result.code == 0, result.err
    for rank in (0, 1):
        assert "these live on GPUs, where each process has its own" in said(result, rank)["asynchronous"]


@pytest.mark.skipif(not EMULATED, reason="needs several devices")
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--dynet-gpu"], [0, 1, 0]),
        (["--dynet-gpus", "1"], [0, 0, 0]),
        (["--dynet-devices", "CPU,GPU:1,GPU:0"], [1, 0, 1]),
    ],
)
def test_gpus_are_shared_out(device: str, tmp_path: Path, options: list[str], numbers: list[int]) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, dynet_cy as dy\n"
        "from dynet_cy import config\n"
        "number = dy.ParameterCollection().storage.device - 1\n"
        "found = dy.parallel.gather((number, config.get()['gpu_mask']))\n"
        "if dy.parallel.rank() == 0: print(json.dumps(found))\n"
    )
    result = jobs.launch(tmp_path, program, *options, n=3, variables={**PATH, "EMU_DEVICES": "2"})
    assert result.code == 0, result.err
    found = json.loads(result.out.partition("] ")[2])
    assert found == [[n, [0] * n + [1]] for n in numbers]


def test_local_rank_of_mpi(monkeypatch) -> None:
    """The GPU is chosen before MPI is connected."""
    from dynet_cy.parallel import runtime

    for name in (*runtime.LOCAL_RANKS, *(rank for rank, _ in runtime.VARIABLES)):
        monkeypatch.delenv(name, raising=False)
    assert runtime.local_rank_by_mpi() == 0
    monkeypatch.setenv("PMI_RANK", "5")
    assert runtime.local_rank_by_mpi() == 5
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    assert runtime.local_rank_by_mpi() == 1


def test_checkpoints(device: str, tmp_path: Path) -> None:
    """Training resumes from a checkpoint with the same bits."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = jobs.launch(tmp_path, program, "--dynet-gpu", variables=PATH)
    assert result.code == 0, result.err
    assert "the same" in result.out


PROGRAM = """
import numpy as np
import dynet_cy as dy

def make():
    dy.reset_random_seed(3)
    m = dy.ParameterCollection()
    W, E = m.add_parameters((4, 5)), m.add_lookup_parameters((20, 5))
    t = dy.AdamTrainer(m)
    t.exponential_moving_average(0.9)
    return m, W, E, dy.parallel.wrap(t)

def train(m, W, E, t, data, until):
    for number, x in enumerate(data, data.state()["position"]):
        dy.renew_cg()
        dy.pickneglogsoftmax(W * dy.dropout(E[x], 0.3), x % 4).backward()
        t.update()
        if number + 1 == until:
            return

items = list(range(20))
first = make()
data = dy.parallel.shard(items)
train(*first, data, 4)
dy.parallel.save_checkpoint("checkpoint", first[0], first[3], data)
train(*first, data, 0)
second = make()
other = dy.parallel.shard(items)
dy.parallel.load_checkpoint("checkpoint", second[0], second[3], other)
train(*second, other, 0)
for a, b in zip(first[1:3], second[1:3]):
    np.testing.assert_array_equal(a.as_array(), b.as_array())
for a, b in zip(first[3]._state_arrays(), second[3]._state_arrays()):
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x, y)
if dy.parallel.rank() == 0:
    print("the same")
"""


def test_alone_it_is_as_ever(device: str) -> None:
    """Without the launcher, `wrap` does not change the trainer."""
    m = dy.ParameterCollection()
    m.add_parameters(3, device=device)
    trainer = dy.SimpleSGDTrainer(m)
    reducer = trainer._reducer
    assert dy.parallel.wrap(trainer)._reducer is reducer
