"""`python -m dynet_cy.launch --max-restarts N`: a job that fails is restarted, and gives the undisturbed results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parallel import jobs
from parallel.test_mpi import ENVIRONMENT, needs_mpi

import dynet_cy as dy
from dynet_cy.launch import main
from dynet_cy.parallel.job import Ending, Progress, Signals, Start, supervise
from dynet_cy.train.trainer import note_updates_in

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")

MPI = ["--backend", "mpi"]
BACKENDS = [pytest.param([], id="shared"), pytest.param(MPI, id="mpi", marks=needs_mpi)]


def run(
    folder: Path, *faults: str, n: int = 2, restarts: int = 3, options: Sequence[str] = (), hosts: str = ""
) -> jobs.Result:
    again = ["--max-restarts", str(restarts), "--restart-delay", "0.01", *options]
    folder.mkdir(exist_ok=True)
    variables = {**ENVIRONMENT, "TEST_HOSTS": hosts}
    return jobs.launch(folder, "restarting.py", folder, *faults, n=n, options=again, variables=variables)


def starts(folder: Path, rank: int = 0) -> list[str]:
    return (folder / f"starts-{rank}.txt").read_text().splitlines()


def ends(folder: Path, n: int) -> list[dict[str, Any]]:
    return [jobs.arrays(folder / f"end-{rank}.npz") for rank in range(n)]


def assert_alike(have: list[dict[str, Any]], want: list[dict[str, Any]]) -> None:
    for one, other in zip(have, want):
        assert one.keys() == other.keys()
        for name in other:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of an undisturbed job, by number of ranks."""
    found: dict[int, list[dict[str, Any]]] = {}

    def of(n: int) -> list[dict[str, Any]]:
        if n not in found:
            folder = tmp_path_factory.mktemp(f"undisturbed-{n}")
            assert run(folder, n=n).code == 0
            found[n] = ends(folder, n)
        return found[n]

    return of


# Before the first checkpoint, and in both epochs.
FAULTS = ["0:2:1:kill", "1:8:0:kill", "2:19:1:raise"]


@pytest.mark.parametrize(
    ("n", "faults", "options"),
    [
        (1, ["0:9:0:kill", "1:30:0:raise"], []),
        pytest.param(2, FAULTS, MPI, marks=needs_mpi),
        (3, ["0:6:2:kill", "1:6:1:9", "2:11:0:save"], []),
        pytest.param(3, ["0:6:2:kill", "1:6:1:9", "2:11:0:save"], MPI, marks=[pytest.mark.slow, needs_mpi]),
    ],
)
def test_the_result_is_that_of_an_undisturbed_run(
    tmp_path: Path, undisturbed: Any, options: list[str], n: int, faults: list[str]
) -> None:
    done = run(tmp_path, *faults, n=n, options=options)
    assert done.code == 0, done.err
    for rank in range(n):
        lines = [line.split() for line in starts(tmp_path, rank)]
        told = [f"{k} {k}" for k in range(len(faults) + 1)]
        assert [" ".join(line[:2]) for line in lines] == told
        assert len({line[2] for line in lines}) == 1, "sets have another order after a restart"
    assert_alike(ends(tmp_path, n), undisturbed(n))
    said = [line for line in done.err.splitlines() if line.startswith("dynet_cy.launch: ")]
    assert len(said) == len(faults)
    for number, (line, fault) in enumerate(zip(said, faults), 1):
        after = int(fault.split(":")[1])
        updates = after + fault.endswith("save")
        assert line.endswith(f" after {updates} updates; restart {number} of 3 in {0.01 * 2 ** (number - 1):g} s")


@needs_mpi
def test_ranks_on_several_hosts(tmp_path: Path) -> None:
    """With simulated hosts, every rank makes whole updates, from sums over MPI."""
    assert run(tmp_path / "whole", options=MPI, hosts="yes").code == 0
    done = run(tmp_path / "again", "0:8:1:kill", "1:13:0:raise", options=MPI, hosts="yes")
    assert done.code == 0, done.err
    assert starts(tmp_path / "again")[-1].startswith("2 2")
    assert_alike(ends(tmp_path / "again", 2), ends(tmp_path / "whole", 2))


@pytest.mark.parametrize("options", BACKENDS)
def test_the_same_error_at_the_same_step(tmp_path: Path, options: list[str]) -> None:
    """An error that is raised again at the same step ends the job."""
    done = run(tmp_path, "*:6:1:raise", restarts=9, options=options)
    assert done.code == 1
    assert [line.split()[0] for line in starts(tmp_path)] == ["0", "1"]
    *_, why, last = done.err.splitlines()
    # Open MPI does not end its last line.
    assert why.endswith(
        "dynet_cy.launch: not started again: the job has failed at the same place before, after 6 updates"
    )
    assert "ValueError: bad luck at start 1" in done.err
    assert last.startswith("dynet_cy.launch: ")
    if not options:
        assert last == "dynet_cy.launch: rank 1 ended with exit code 1: ValueError: bad luck at start 1"


@pytest.mark.parametrize("options", BACKENDS)
def test_a_program_that_cannot_start(tmp_path: Path, options: list[str]) -> None:
    """A program that fails before it imports dynet_cy is restarted only once."""
    program = tmp_path / "program.py"
    program.write_text("print('begins')\nimport no_such_module\n")
    again = ["--max-restarts", "9", "--restart-delay", "0", *options]
    done = jobs.launch(tmp_path, program, options=again, variables=ENVIRONMENT)
    assert done.code == 1
    assert "restart 1 of 9" in done.err
    assert "restart 2 of 9" not in done.err
    assert "after 0 updates" in done.err
    assert "No module named 'no_such_module'" in done.err


def test_no_more_restarts_than_allowed(tmp_path: Path) -> None:
    done = run(tmp_path, "0:2:1:kill", "1:5:1:kill", "2:9:1:kill", restarts=2)
    assert done.code == 128 + signal.SIGKILL
    assert len(starts(tmp_path)) == 3
    assert done.err.splitlines()[-2:] == [
        "dynet_cy.launch: not started again: that was restart 2 of 2",
        "dynet_cy.launch: rank 1 was killed by signal 9 (SIGKILL)",
    ]


def test_without_the_option(tmp_path: Path) -> None:
    done = run(tmp_path, "0:2:1:kill", restarts=0)
    assert done.code == 128 + signal.SIGKILL
    assert done.err.splitlines()[-1] == "dynet_cy.launch: rank 1 was killed by signal 9 (SIGKILL)"
    assert len(starts(tmp_path)) == 1


def test_a_rank_that_hangs(tmp_path: Path, undisturbed: Any) -> None:
    done = run(tmp_path, "0:5:1:hang", options=["--timeout", "5"])
    assert done.code == 0, done.err
    assert "rank 1 hangs: others have waited" in done.err
    assert_alike(ends(tmp_path, 2), undisturbed(2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", BACKENDS)
@pytest.mark.parametrize("when", ["running", "between"])
def test_signals_to_the_launcher_end_the_job(
    tmp_path: Path, number: signal.Signals, options: list[str], when: str
) -> None:
    """Also while the launcher waits before a restart."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, time, dynet_cy as dy\n"
        "print('begins', flush=True)\n"
        "time.sleep(1000) if sys.argv[1] == 'running' else sys.exit(3)\n"
    )

    def during(launcher: subprocess.Popen[str], token: str) -> None:
        stream = launcher.stdout if when == "running" else launcher.stderr
        assert stream is not None
        for line in stream:
            if "begins" in line or "restart 1 of 5" in line:
                break
        time.sleep(0.3)
        launcher.send_signal(number)

    again = ["--max-restarts", "5", "--restart-delay", "1000", *options]
    done = jobs.launch(tmp_path, program, when, options=again, during=during, variables=ENVIRONMENT)
    assert done.code == 128 + number, done.err
    assert "restart" not in done.err, "the output that `during` did not read"
    assert done.out.count("begins") <= 2


@needs_mpi
def test_a_killed_launcher_ends_mpi(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import time, dynet_cy as dy\nprint('begins', flush=True)\ntime.sleep(1000)\n")

    def during(launcher: subprocess.Popen[str], token: str) -> None:
        assert launcher.stdout is not None
        assert "begins" in launcher.stdout.readline()
        launcher.kill()

    again = ["--max-restarts", "5", *MPI]
    assert jobs.launch(tmp_path, program, options=again, during=during, variables=ENVIRONMENT).code == -signal.SIGKILL


@pytest.mark.parametrize("options", BACKENDS)
def test_logs(tmp_path: Path, options: list[str]) -> None:
    """Each start has its own log files; the launcher still passes the output on."""
    logs = tmp_path / "logs"
    done = run(tmp_path / "job", "0:6:1:raise", options=[*options, "--log-dir", str(logs)])
    assert done.code == 0, done.err
    (job,) = logs.iterdir()
    who = ["mpi"] if options else ["rank-0", "rank-1"]
    wanted = sorted(f"start-{k}/{name}.{suffix}" for k in (0, 1) for name in who for suffix in ("err", "out"))
    assert sorted(str(p.relative_to(job)) for p in job.rglob("*.*")) == wanted
    assert "this is start 1" in (job / "start-1" / f"{who[-1]}.out").read_text()
    assert "goes on after 5" in (job / "start-1" / f"{who[-1]}.out").read_text()
    assert "ValueError: bad luck at start 0" in (job / "start-0" / f"{who[-1]}.err").read_text()
    assert "bad luck" not in (job / "start-1" / f"{who[-1]}.err").read_text()
    assert "this is start 1" in done.out
    if not options:
        assert (job / "start-1" / "rank-0.out").read_text() == "this is start 1\ngoes on after 5\n"


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    program = tmp_path / "program.py"
    program.write_text("print('much')\n")
    code = (
        "import sys\n"
        "from dynet_cy import launch\n"
        "from dynet_cy.parallel.job import Logs\n"
        "Logs.file = lambda *a: open('/dev/full', 'wb', buffering=0)\n"
        "sys.exit(launch.main(sys.argv[1:]))\n"
    )
    arguments = ["-n", "1", "--max-restarts", "3", "--log-dir", str(tmp_path / "logs"), str(program)]
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == ("dynet_cy.launch: cannot write what workers write: [Errno 28] No space left on device\n")


def test_the_place_is_not_known_on_other_hosts(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """If the progress of ranks is unknown, all restarts are made; the pauses between them grow up to a limit."""
    pauses: list[float] = []
    monkeypatch.setattr(Signals, "pause", lambda self, seconds: pauses.append(seconds))
    runs: list[int] = []

    def fail(start: Start) -> Ending:
        runs.append(start.number)
        return Ending(9, "it failed")

    assert supervise(fail, 8, delay=1, anywhere=True) == 9
    assert runs == list(range(9))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert "it failed; restart 8 of 8 in 60 s" in capfd.readouterr().err
    runs.clear()
    assert supervise(fail, 8, delay=1) == 9
    assert runs == [0, 1]


def test_what_trainers_note() -> None:
    """Trainers note the number of updates after each one, until the launcher stops reading."""
    progress = Progress()
    try:
        progress.reset(known=False)
        assert progress.updates is None
        progress.reset(known=True)
        assert progress.updates == 0
        m = dy.ParameterCollection()
        w = m.add_parameters(2)
        trainer = dy.SimpleSGDTrainer(m)
        numbers = np.zeros(2, np.int64)
        note_updates_in(numbers)
        for _ in range(3):
            dy.renew_cg()
            dy.sum_elems(w).backward()
            trainer.update()
        assert numbers.tolist() == [3, 0]
        note_updates_in(None)
        dy.renew_cg()
        dy.sum_elems(w).backward()
        trainer.update()
        assert numbers.tolist() == [3, 0]
        with pytest.raises(ValueError, match="no room for an int64"):
            note_updates_in(bytearray(4))
    finally:
        note_updates_in(None)
        progress.close()


def test_children_of_workers_note_nothing(tmp_path: Path) -> None:
    """Updates of children are not counted."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, dynet_cy as dy\n"
        "m = dy.ParameterCollection()\n"
        "w = m.add_parameters(2)\n"
        "t = dy.SimpleSGDTrainer(m)\n"
        "def update():\n"
        "    dy.renew_cg()\n"
        "    dy.sum_elems(w).backward()\n"
        "    t.update()\n"
        "update()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    update()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = jobs.launch(tmp_path, program, n=1, options=["--max-restarts", "1", "--restart-delay", "0"])
    assert "after 1 update; restart 1" in done.err


@pytest.mark.parametrize(("text", "number"), [(None, 0), ("0", 0), ("12", 12), ("-1", None), ("x", None), ("", None)])
def test_the_number_of_restarts(monkeypatch: pytest.MonkeyPatch, text: str | None, number: int | None) -> None:
    monkeypatch.delenv("DYNET_CY_RESTART_COUNT", raising=False)
    if text is not None:
        monkeypatch.setenv("DYNET_CY_RESTART_COUNT", text)
    if number is None:
        with pytest.raises(ValueError, match="DYNET_CY_RESTART_COUNT="):
            dy.parallel.restart_count()
    else:
        assert dy.parallel.restart_count() == number


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--max-restarts", "-1", "x.py"], "must be at least 0"),
        (["--max-restarts", "many", "x.py"], "invalid"),
        (["--restart-delay", "-1", "x.py"], "at least 0"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert said in capsys.readouterr().err
