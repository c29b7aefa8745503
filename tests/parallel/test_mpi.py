"""Processes started by MPI, with the MPI library that is installed, on one host and on several simulated hosts."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parallel import lazy_reference
from parallel.jobs import PROGRAMS, left_in_shared_memory, shared_memory

import dynet_cy as dy
from dynet_cy.parallel import runtime
from dynet_cy.parallel.job import Program

TWO_HOSTS = Path(__file__).parents[2] / "benchmarks" / "two_hosts.py"


def mpiexec() -> str | None:
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or mpiexec() is None, reason="needs mpi4py and an MPI library"
)

ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}

IMPORTS = """
import os, sys, time
import numpy as np
import dynet_cy as dy
from dynet_cy.parallel.runtime import current
"""

# Ranks get host names in turn, so that neighbours are on different hosts.
ON_HOSTS = 'r=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; export DYNET_CY_HOST=host$((r %% %d)); exec "$@"'


def run(
    *words: object, n: int = 2, hosts: int = 0, variables: dict[str, str] | None = None, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a Python program by MPI; `hosts`: the number of simulated hosts."""
    before = shared_memory()
    wrapper = ["sh", "-c", ON_HOSTS % hosts, "sh"] if hosts else []
    done = subprocess.run(
        [str(mpiexec()), "-n", str(n), *wrapper, sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT, **(variables or {})},
        timeout=timeout,
    )
    assert not left_in_shared_memory(before)
    return done


def write(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(f"{IMPORTS}rank = dy.parallel.rank()\n{text}\n")
    return path


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"size"')))
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, str(PROGRAMS / "distributed.py"), str(folder)], check=True, capture_output=True)
    with np.load(folder / "parameters.npz") as file:
        return dict(file)


@needs_mpi
@pytest.mark.parametrize(
    ("n", "hosts", "overlap", "stepper"),
    [
        (2, 0, "1", "SharedReducer"),
        (2, 2, "1", "OverlapReducer"),
        (3, 2, "1", "OverlapReducer"),
        (4, 2, "0", "AllreduceReducer"),
        (3, 3, "0", "AllreduceReducer"),
    ],
)
def test_the_same_as_one_process(
    tmp_path: Path, alone: dict[str, np.ndarray], n: int, hosts: int, overlap: str, stepper: str
) -> None:
    done = run(PROGRAMS / "distributed.py", tmp_path, n=n, hosts=hosts, variables={"DYNET_CY_OVERLAP": overlap})
    found = told(done)
    assert (found["size"], found["stepper"]) == (n, stepper)
    with np.load(tmp_path / "parameters.npz") as file:
        for name, want in alone.items():
            np.testing.assert_allclose(file[name], want, rtol=1e-4, atol=1e-6, err_msg=name)


@needs_mpi
@pytest.mark.parametrize(("n", "hosts", "kind"), [(2, 0, "SharedReducer"), (2, 2, "OverlapReducer")])
def test_lazy_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, hosts: int, kind: str) -> None:
    names = [name for name in lazy_reference.lazy.cases(n) if name != "forks"]
    monkeypatch.chdir(tmp_path)
    done = run(PROGRAMS / "lazy.py", tmp_path, *names, n=n, hosts=hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(kind) == n
    lazy_reference.check(tmp_path, kind, n, names)


@needs_mpi
@pytest.mark.parametrize(("n", "hosts"), [(2, 0), (3, 3), (4, 2)])
def test_the_exchange(tmp_path: Path, n: int, hosts: int) -> None:
    program = write(
        tmp_path,
        """
x, n = current(), dy.parallel.size()
x.barrier()
assert x.gather_bytes(b"ab" * rank) == [b"ab" * i for i in range(n)]
assert x.gather_bytes(b"") == [b""] * n
assert dy.parallel.broadcast({"a": rank}, 1) == {"a": 1}
for size in (1000, 7, 100000):
    floats = np.full(size, rank + 1, np.float32)
    x.sum_floats(floats)
    assert (floats == n * (n + 1) / 2).all()
floats = np.full(10, rank, np.float32)
x.broadcast_floats(floats, 1)
assert (floats == 1).all()
for width, table in ((3, 100000), (3, 7)):     # rows are sent as rows, and as the whole table
    rows = np.array([5, rank], np.uint32)
    values = np.stack([np.full(width, 10.0 * rank), np.full(width, 1.0 + rank)]).astype(np.float32)
    want = {i: 0.0 for i in [*range(n), 5]}
    for i in range(n):
        want[5] += 10 * i
        want[i] += 1 + i
    rows, values = x.sum_rows(rows, values, table)
    assert rows.tolist() == sorted(want)
    assert values.tolist() == [[want[k]] * width for k in sorted(want)]
rows, values = x.sum_rows(np.empty(0, np.uint32), np.empty((0, 2), np.float32), 10)
assert len(rows) == 0 and values.shape == (0, 2)
assert sorted(dy.parallel.gather((x.local_rank, x.local_size)))[-1][1] == HOW
print("fine", x.backend, dy.parallel.launched())
""".replace("HOW", str(n // max(hosts, 1))),
    )
    done = run(program, n=n, hosts=hosts)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fine mpi True") == n


@needs_mpi
def test_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cores of a host are divided among its processes without our launcher too; an explicit number is kept."""
    for name in ("OMP_NUM_THREADS", "DYNET_CY_THREADS"):
        monkeypatch.delenv(name, raising=False)
    program = write(tmp_path, "print('threads', dy.config.get()['threads'])")
    share = max(1, (os.cpu_count() or 1) // 2)
    done = run(program)
    found = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(found) == 2, done.stderr
    assert max(found) <= share
    assert run(program, "--dynet-threads", share + 2).stdout.count(f"threads {share + 2}\n") == 2


@needs_mpi
@pytest.mark.parametrize("hosts", [0, 2])
def test_resuming_to_the_last_bit(tmp_path: Path, hosts: int) -> None:
    for what in ("whole", "rest"):
        done = run(PROGRAMS / "resuming.py", tmp_path, what, 4, hosts=hosts)
        assert done.returncode == 0, done.stderr
    for rank in range(2):
        with np.load(tmp_path / f"whole-{rank}.npz") as want, np.load(tmp_path / f"rest-{rank}.npz") as have:
            for name in want:
                np.testing.assert_array_equal(have[name], want[name], err_msg=name)


@needs_mpi
@pytest.mark.parametrize("hosts", [0, 2])
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raise ValueError('bad luck')", ["rank 1 on ", "ValueError: bad luck", "line "]),
        ("sys.exit(0)", ["rank 1 has ended without taking part", "rank 0 waits in 'meeting'"]),
        ("os.kill(os.getpid(), 9)", []),
        pytest.param("time.sleep(10_000)", ["rank 1 hangs", "program.py"], marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_fails_ends_the_job(tmp_path: Path, hosts: int, how: str, says: list[str]) -> None:
    program = write(tmp_path, f"if rank == 1:\n    {how}\ncurrent().barrier('meeting')")
    done = run(program, hosts=hosts, variables={"DYNET_CY_TIMEOUT": "4"})
    assert done.returncode != 0
    for words in says:
        assert words in done.stderr


@needs_mpi
@pytest.mark.parametrize("hosts", [0, 2])
def test_children_of_ranks(tmp_path: Path, hosts: int) -> None:
    """Children are no ranks: calls that need all ranks raise an error, and their end does not end MPI."""
    program = write(
        tmp_path,
        """
m = dy.ParameterCollection()
w = m.add_parameters(3, init=1)
t = dy.parallel.wrap(dy.SimpleSGDTrainer(m, 0.1))
for way in ("multiprocessing", "end", "raise"):
    dy.renew_cg()
    dy.sum_elems(w).backward()
    child = os.fork()
    if not child:
        dy.sum_elems(5 * w).backward()
        said = 0
        for call in (t.update, dy.parallel.barrier, lambda: dy.parallel.gather(1)):
            try:
                call()
            except dy.parallel.ParallelError as error:
                said += f"this is a child of rank {rank}" in str(error)
        if said == 3 and way == "multiprocessing":
            os._exit(7)
        if way == "raise":
            raise ValueError("in a child")
        sys.exit(0)
    print(way, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    t.update()
print("values", [round(float(x), 4) for x in w.as_array()])
""",
    )
    done = run(program, hosts=hosts)
    assert done.returncode == 0, done.stderr
    for said in ("multiprocessing 7", "end 1", "raise 1", "values [0.7, 0.7, 0.7]"):
        assert done.stdout.count(said) == 2, done.stdout + done.stderr
    assert done.stderr.count("a child of this rank has ended like a rank") == 4
    assert done.stderr.count("ValueError: in a child") == 2


@needs_mpi
def test_calls_that_do_not_match(tmp_path: Path) -> None:
    program = write(tmp_path, "current().gather_bytes(b'', 'tea' if rank else 'coffee')")
    done = run(program, hosts=2)
    assert done.returncode != 0
    assert "what needs all ranks must be called by all of them, in one order" in done.stderr


@needs_mpi
def test_the_launcher(tmp_path: Path) -> None:
    program = write(tmp_path, "print('this is', rank, dy.parallel.size(), sys.argv[1:], dy.parallel.mode())")
    command = [sys.executable, "-m", "dynet_cy.launch", "-n", "2", "--backend", "mpi", str(program), "-n", "a b"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}, timeout=600, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"this is {rank} 2 ['-n', 'a b'] sync" in done.stdout


@needs_mpi
def test_asynchronous_training(tmp_path: Path) -> None:
    """It works on one host as without MPI, and is refused on several."""
    program = write(
        tmp_path,
        """
m = dy.ParameterCollection()
w = m.add_parameters(1, init=0)
t = dy.parallel.wrap(dy.SimpleSGDTrainer(m, 1.0))
for turn in range(6):  # in turns: without locks, simultaneous updates may be lost
    if turn % 2 == rank:
        dy.renew_cg()
        (-w).backward()
        t.update()
    dy.parallel.barrier()
assert w.as_array() == 6
""",
    )
    options = ["-n", "2", "--backend", "mpi", "--mode", "async", str(program)]
    for hosts, wanted in (("", ""), ("hosts", "asynchronous training needs one memory")):
        if hosts:
            program.write_text("import os\nos.environ['DYNET_CY_HOST'] = str(os.getpid())\n" + program.read_text())
        done = subprocess.run(
            [sys.executable, "-m", "dynet_cy.launch", *options],
            capture_output=True,
            text=True,
            env={**os.environ, **ENVIRONMENT},
            timeout=600,
            cwd=tmp_path,
        )
        assert (done.returncode != 0) == bool(hosts), done.stderr
        assert wanted in done.stderr


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
def test_two_hosts(tmp_path: Path, alone: dict[str, np.ndarray], n: int) -> None:
    """Two network namespaces joined by a veth pair."""
    spec = importlib.util.spec_from_file_location("two_hosts", TWO_HOSTS)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["two_hosts"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reason = module.why_not()
    if reason:
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch, module.two_hosts() as hosts:
        for name, value in {**ENVIRONMENT, **module.OVER_TCP}.items():
            patch.setenv(name, value)
        program = [sys.executable, str(PROGRAMS / "distributed.py"), str(tmp_path)]
        found, parameters = module.train(hosts.command(n, program), tmp_path, hosts)
    assert (found["size"], found["stepper"]) == (n, "OverlapReducer")
    assert found["network_bytes"] > 10 * found["dense_bytes"]
    for name, want in alone.items():
        np.testing.assert_allclose(parameters[name], want, rtol=1e-4, atol=1e-6, err_msg=name)
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not any(space in left for space in hosts.spaces)


@needs_mpi
@pytest.mark.parametrize(("hosts", "overlap"), [(0, "1"), (2, "1"), (2, "0")])
@pytest.mark.parametrize("where", ["barrier", "gather", "update"])
def test_a_wait_that_a_signal_ends(tmp_path: Path, where: str, hosts: int, overlap: str) -> None:
    """Rank 1 arrives after rank 0 gave up waiting. From then on, collective calls raise an error instead of hanging."""
    program = write(
        tmp_path,
        """
import pathlib, signal
class Stop(Exception): pass
def stop(number, frame): raise Stop
signal.signal(signal.SIGALRM, stop)
gave_up = pathlib.Path(sys.argv[1]) / "gave up"
m = dy.ParameterCollection()
W, E = m.add_parameters((30, 40), init=1.0), m.add_lookup_parameters((30, 40), init=1.0)
trainer = dy.parallel.wrap(dy.AdamTrainer(m))
def update():
    dy.renew_cg()
    (dy.squared_norm(W) + dy.squared_norm(E[rank])).backward()
    trainer.update()
update()
before = W.as_array(), E.as_array()
what = {"barrier": dy.parallel.barrier, "gather": lambda: dy.parallel.gather(rank), "update": update}[sys.argv[2]]
if rank == 0:
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        what()
    except Stop:
        print("stopped", flush=True)
    for x, old in zip((W, E), before):
        assert np.array_equal(x.as_array(), old)
    for more in (dy.parallel.barrier, lambda: dy.parallel.gather(1), update):
        try:
            more()
        except dy.parallel.ParallelError as error:
            print("refused", flush=True)
    dy.renew_cg()
    assert np.isclose(dy.sum_elems(W * 2).value(), 2 * before[0].sum())
    del trainer, m, W, E
    gave_up.touch()
    time.sleep(1)                               # MPI goes on with what rank 1 sends
    print("on", flush=True)
else:
    while not gave_up.exists():
        time.sleep(0.01)
    what()
    print("never", flush=True)
""",
    )
    done = run(program, tmp_path, where, hosts=hosts, variables={"DYNET_CY_OVERLAP": overlap})
    assert done.stdout.count("stopped") == 1, done.stdout + done.stderr
    assert done.stdout.count("refused") == 3, done.stdout + done.stderr
    assert "AssertionError" not in done.stderr
    if hosts:  # with shared memory, rank 1 has ended the job by then
        assert done.stdout.count("on\n") == 1, done.stdout + done.stderr
    if where == "barrier":  # rank 0 arrived at it, and rank 1 cannot know more
        assert "never" in done.stdout
        assert done.returncode == 0
    else:
        assert "never" not in done.stdout
        assert ("has ended without taking part" if hosts else "ParallelError") in done.stderr
        assert done.returncode != 0


# -- without MPI -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "started"),
    [
        ({}, False),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, True),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, False),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, True),
        ({"PMIX_RANK": "0", "SLURM_NTASKS": "8"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, False),  # a Slurm job that is no MPI program
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "DYNET_CY_MPI_PROCESS": "1"}, False),  # a child of a rank
    ],
)
def test_what_starts_a_process(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], started: bool) -> None:
    names = {name for pair in runtime.VARIABLES for name in pair} | {runtime.OWNER, "SLURM_PROCID"}
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert runtime.started_by_mpi() == started
    if started:
        assert os.environ[runtime.OWNER] == str(os.getpid())
        monkeypatch.delenv(runtime.OWNER)


def test_a_child_that_is_forked_before_mpi_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(runtime.OWNER, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons: the process has threads
        child = os.fork()
    if not child:
        os._exit(runtime.started_by_mpi())
    assert os.waitpid(child, 0)[1] == 0
    assert runtime.started_by_mpi()
    monkeypatch.delenv(runtime.OWNER)


def test_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    from dynet_cy.parallel import mpi

    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(dy.parallel.ParallelError, match=r"pip install 'dynet_cy\[mpi\]'"):
        mpi.connect({})


def fake_launcher(folder: Path, name: str, version: str) -> str:
    path = folder / name
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; else echo "$@"; fi\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("name", "version", "prefix"),
    [
        ("mpiexec", "mpirun (Open MPI) 5.0.3", "--output tag"),
        ("mpiexec", "mpirun (Open MPI) 4.1.6", "--tag-output"),
        ("mpiexec", "HYDRA build details:", "-prepend-rank"),
        ("mpiexec", "something else", ""),
        ("srun", "slurm 23.11", "--label"),
    ],
)
def test_the_command(tmp_path: Path, name: str, version: str, prefix: str) -> None:
    launcher = fake_launcher(tmp_path, name, version)
    words = Program(["train.py", "--a"], "7", 3, "async", 5, f"{launcher} --hostfile 'my hosts'").over_mpi()
    assert words[:3] == [launcher, "--hostfile", "my hosts"]
    start = words.index(sys.executable)
    assert words[3:start] == [*prefix.split(), "-n", "3"]
    assert "backend=mpi mode=async timeout=5" in words
    assert words[-2:] == ["train.py", "--a"]
    assert "-n" not in Program(["train.py"], "7", launcher=launcher).over_mpi()


def test_a_launcher_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dynet_cy.launch", "--backend", "mpi", "--mpi", "no-such-mpiexec -x", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no program 'no-such-mpiexec' to start processes by MPI" in done.stderr
