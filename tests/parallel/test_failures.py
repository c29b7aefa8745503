"""A worker that fails ends the whole job, says why, and leaves nothing behind; see also `jobs.launch`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

import pytest
from parallel import jobs

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")

# When rank 1 fails, and how: each way in several phases, each phase in several ways.
QUICK = [("start", "kill"), ("batch", "raise"), ("exchange", "kill"), ("saving", "kill"), ("batch", "hang")]
QUICK += [("exchange", "exit"), ("saving", "raise")]
SLOW = [("exchange", "hang"), ("saving", "stop")]


def slowly(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(("phase", "way"), [*QUICK, *(slowly(*case) for case in SLOW)])
def test_failing_worker(tmp_path, phase, way) -> None:
    hangs = way in ("hang", "stop")  # on a busy machine, others seem to hang after a second too
    result = jobs.launch(tmp_path, "failing.py", phase, way, options=["--timeout", "3" if hangs else "600"])
    last = result.err.splitlines()[-1]
    assert not [p for p in tmp_path.iterdir() if p.name != "tmp"], "part of a file is left"
    assert "done" not in result.out
    assert "KeyboardInterrupt" not in result.err, "nobody has interrupted the others: they get SIGTERM"
    if way == "raise":
        assert result.code == 1
        assert "[rank 1] Traceback" in result.err
        assert "[rank 1] ValueError: bad luck" in result.err
        assert last == "dynet_cy.launch: rank 1 ended with exit code 1: ValueError: bad luck"
    elif way == "kill":
        assert result.code == 128 + signal.SIGKILL
        assert last == "dynet_cy.launch: rank 1 was killed by signal 9 (SIGKILL)"
    elif way == "exit":
        assert result.code == 1
        assert "rank 1 has ended" in last
    else:
        assert result.code == 1
        # In the exchange, rank 1 has arrived, and rank 0 hangs.
        late = 0 if phase == "exchange" else 1
        assert f"rank {late} hangs: others have waited" in last
        assert f"[rank {late}] " in result.err
        assert "failing.py" in result.err, "where it hangs"


CHECKED = """
import sys
import dynet_cy as dy

m = dy.ParameterCollection()
W = m.add_parameters((3, 3), name="W", init=1.0)
trainer = dy.parallel.wrap(dy.AdamTrainer(m))
for number in dy.parallel.shard(range(12)):
    dy.renew_cg()
    x = dy.inputVector([1.0, 2.0, 0.0 if sys.argv[1] == str(number) else 3.0])
    dy.squared_norm(W * dy.log(x)).backward()  # here
    trainer.update()
if dy.parallel.rank() == 0:
    print(W.as_array().tobytes().hex())
"""


def test_checks(tmp_path) -> None:
    """--dynet-check in each worker does not change results, and an anomaly in one worker ends the job."""
    program = tmp_path / "program.py"
    program.write_text(CHECKED)
    plain = jobs.launch(tmp_path, program, "none")
    checked = jobs.launch(tmp_path, program, "none", "--dynet-check")
    assert (plain.code, checked.code) == (0, 0), checked.err
    assert plain.out == checked.out
    line = CHECKED.splitlines().index("    dy.squared_norm(W * dy.log(x)).backward()  # here") + 1
    for arguments, variables in ((["--dynet-check"], {}), ([], {"DYNET_CY_CHECK": "1"})):
        found = jobs.launch(tmp_path, program, "7", *arguments, variables=variables)
        assert found.code == 1
        assert f"    made at {program.name}:{line} in <module>\n" in found.err
        last = found.err.splitlines()[-1]
        assert last.startswith("dynet_cy.launch: rank 1 ended with exit code 1: dynet_cy.AnomalyError: log: ")


@pytest.mark.slow
def test_a_worker_that_computes_for_ever(tmp_path) -> None:
    """A worker that computes gets ten times the timeout of an idle one."""
    result = jobs.launch(tmp_path, "failing.py", "batch", "spin", options=["--timeout", "0.5"])
    assert result.code == 1
    waited = re.search(r"rank 1 hangs: others have waited (\d+) s", result.err)
    assert waited, result.err
    assert int(waited[1]) >= 5, "more where the machine is busy"


@pytest.mark.slow
def test_a_worker_whose_child_computes(tmp_path) -> None:
    """A worker whose child computes, such as an evaluation program, is not idle."""
    program = tmp_path / "evaluating.py"
    program.write_text(
        "import subprocess, sys, dynet_cy as dy\n"
        "if dy.parallel.rank():\n"
        "    code = 'import time\\nend = time.time() + 3\\nwhile time.time() < end: pass'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True)\n"
        "dy.parallel.barrier()\n"
    )
    result = jobs.launch(tmp_path, program, options=["--timeout", "1"])
    assert result.code == 0, result.err


def after_failing(number: int):
    """Returns a function that sends a signal to the launcher when rank 1 is about to fail."""

    def during(launcher: subprocess.Popen[str], token: str) -> None:
        assert launcher.stdout is not None
        assert "failing" in launcher.stdout.readline()
        time.sleep(0.05)
        launcher.send_signal(number)

    return during


SIGNALS = [("start", signal.SIGINT), ("exchange", signal.SIGINT), ("exchange", signal.SIGKILL)]
SIGNALS += [("saving", signal.SIGKILL), slowly("batch", signal.SIGTERM), slowly("saving", signal.SIGINT)]


@pytest.mark.parametrize(("phase", "number"), SIGNALS)
def test_signals_to_the_launcher(tmp_path, phase, number) -> None:
    """Ctrl-C ends all processes, and if the launcher is killed, its workers end too."""
    result = jobs.launch(tmp_path, "failing.py", phase, "hang", during=after_failing(number))
    assert result.code == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
    if (phase, number) != ("saving", signal.SIGKILL):  # no process is left to remove the file
        assert not [p for p in tmp_path.iterdir() if p.name != "tmp"]


def test_all_processes_killed(tmp_path) -> None:
    """Launcher and workers are killed at once; shared memory has no name, so none stays behind."""

    def during(launcher: subprocess.Popen[str], token: str) -> None:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        everyone = jobs.processes_with(token)
        assert len(everyone) == 4  # launcher, its guard, workers
        for pid in [launcher.pid, *everyone]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                assert pid != launcher.pid

    assert jobs.launch(tmp_path, "failing.py", "batch", "hang", during=during).code == -signal.SIGKILL


def test_children_die_with_a_killed_launcher(tmp_path) -> None:
    """The kernel kills the workers; the processes they started are killed too."""
    program = tmp_path / "children.py"
    program.write_text(
        "import multiprocessing, subprocess, sys, time\n"
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=(10_000,)).start()\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(10_000)'])\n"
        "print('failing', flush=True)\n"
        "time.sleep(10_000)\n"
    )
    result = jobs.launch(tmp_path, program, during=after_failing(signal.SIGKILL))
    assert result.code == -signal.SIGKILL


def test_raising_beside_a_thread(tmp_path) -> None:
    """Python waits for threads when it ends; a worker with a thread that never ends must not hang the job."""
    program = tmp_path / "thread.py"
    program.write_text(
        "import threading, time, dynet_cy as dy\n"
        "threading.Thread(target=time.sleep, args=(10_000,)).start()\n"
        "if dy.parallel.rank():\n"
        "    raise ValueError('bad luck')\n"
        "dy.parallel.barrier()\n"
    )
    result = jobs.launch(tmp_path, program)
    assert result.code == 1
    assert "[rank 1] ValueError: bad luck" in result.err
    assert result.err.endswith("dynet_cy.launch: rank 1 has raised and does not end: ValueError: bad luck\n")


def test_nohup(tmp_path) -> None:
    program = tmp_path / "long.py"
    program.write_text("import time\nprint('failing', flush=True)\ntime.sleep(0.5)\n")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        result = jobs.launch(tmp_path, program, during=after_failing(signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert result.code == 0, result.err


def test_a_launcher_that_was_stopped(tmp_path) -> None:
    """Workers that waited for a launcher that was stopped, by Ctrl-Z or a full pipe, do not count as hanging."""
    program = tmp_path / "waiting.py"
    program.write_text(
        "import time, dynet_cy as dy\n"
        "if dy.parallel.rank() == 0:\n"
        "    print('failing')\n"
        "    time.sleep(0.5)\n"
        "    print('x' * 200_000)\n"
        "    time.sleep(0.6)\n"
        "dy.parallel.barrier()\n"
    )

    def during(launcher: subprocess.Popen[str], token: str) -> None:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        launcher.send_signal(signal.SIGSTOP)
        time.sleep(7)
        launcher.send_signal(signal.SIGCONT)

    result = jobs.launch(tmp_path, program, during=during, options=["--timeout", "4"])
    assert result.code == 0, result.err


@pytest.mark.parametrize("number", [signal.SIGINT, None])
def test_nobody_reads_the_output(tmp_path, number) -> None:
    """As with a pager: the launcher waits until its output is read, unless a signal ends it."""
    program = tmp_path / "writing.py"
    program.write_text("print('failing')\nprint('x' * 1_000_000)\nprint('done')\n")

    def during(launcher: subprocess.Popen[str], token: str) -> None:
        assert launcher.stdout is not None
        assert "failing" in launcher.stdout.readline()  # from here on, it knows what to do about signals
        time.sleep(1)
        assert launcher.poll() is None
        if number is not None:
            launcher.send_signal(number)
            launcher.wait(600)
        else:
            time.sleep(3)

    result = jobs.launch(tmp_path, program, n=1, during=during)
    assert result.code == (0 if number is None else 128 + number)
    assert ("[rank 0] done" in result.out) == (number is None)


def test_interrupted_workers_may_save(tmp_path) -> None:
    """Workers get KeyboardInterrupt, and a few seconds to save."""
    program = tmp_path / "interrupted.py"
    program.write_text(
        "import time, dynet_cy as dy\n"
        "print('failing', flush=True)\n"
        "try:\n"
        "    time.sleep(10_000)\n"
        "except KeyboardInterrupt:\n"
        "    print('saved by', dy.parallel.rank())\n"
    )
    result = jobs.launch(tmp_path, program, during=after_failing(signal.SIGINT))
    assert result.code == 128 + signal.SIGINT
    assert "saved by" in result.out


def lines_of(result: jobs.Result, rank: int) -> list[list[str]]:
    """The output of a rank of interrupted.py."""
    start = f"[rank {rank}] "
    return [line[len(start) :].split("|") for line in result.out.splitlines() if line.startswith(start)]


def test_an_exception_in_the_middle_of_an_update(tmp_path) -> None:
    """It is raised after all ranks have finished the update, and they go on."""
    result = jobs.launch(tmp_path, "interrupted.py", "values")
    assert result.code == 0, result.err
    first, second = lines_of(result, 0), lines_of(result, 1)
    assert [got for got, _ in first] == ["nothing", "nothing"]
    assert [got for got, _ in second] == ["Stop: ", "nothing"]
    assert [values for _, values in first] == [values for _, values in second]
    assert len({values for _, values in first}) == 2, "both updates were made"


@pytest.mark.parametrize("where", ["arrival", "sum"])
def test_an_exception_that_takes_a_rank_out_of_an_update(tmp_path, where) -> None:
    """All ranks get an error from then on."""
    result = jobs.launch(tmp_path, "interrupted.py", where)
    first, second = lines_of(result, 0), lines_of(result, 1)
    left = "has left what all ranks do together, by an exception"
    assert second[0][0] == "Stop: ", result.err
    assert f"ParallelError: this rank {left}" in second[1][0]
    assert all("ParallelError" in got and left in got and "last checkpoint" in got for got, _ in first)
    assert len({values for _, values in first + second}) == 1, "no rank made the update"
