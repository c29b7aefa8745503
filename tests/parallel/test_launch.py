"""The launcher: its arguments, the environment of workers, and their output."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from parallel import jobs

import dynet_cy as dy
from dynet_cy.launch import main, parser
from dynet_cy.parallel.job import Output, Stream
from dynet_cy.parallel.start import cores


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """A job with two ranks, and what they recorded."""
    folder = tmp_path_factory.mktemp("looking")
    arguments = [folder, "--dynet-seed", 11, "--dynet-autobatch", "2", "-n", "5"]
    result = jobs.launch(folder, "looking.py", *arguments, options=["--mode", "async"])
    assert result.code == 0, result.err
    return result, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_what_workers_find(looked) -> None:
    _, ranks = looked
    for number, found in enumerate(ranks):
        assert found["argv"][1:] == ["--dynet-seed", "11", "--dynet-autobatch", "2", "-n", "5"]
        assert found["name"] == "__main__"
        assert (found["rank"], found["size"], found["mode"], found["launched"]) == (number, 2, "async", True)
        assert found["autobatch"] == 2
        assert found["threads"] == os.environ.get("OMP_NUM_THREADS", str(max(1, cores() // 2)))
        assert found["child"] == ["0", "1"], "children of workers are no workers"
    assert ranks[1]["input"] == ""
    assert ranks[0]["hash"] == ranks[1]["hash"], "sets must have the same order on all ranks"


def test_random_numbers(looked) -> None:
    """Initial values are the same on all ranks, draws in graphs differ; rank 0 draws like a single process."""
    _, ranks = looked
    assert ranks[0]["seed"] == ranks[1]["seed"] == 11
    assert ranks[0]["initial"] == ranks[1]["initial"]
    assert ranks[0]["noise"] != ranks[1]["noise"]
    dy.reset_random_seed(11)
    assert dy.ParameterCollection().add_parameters((5,)).as_array().tolist() == ranks[0]["initial"]


def test_messages(looked) -> None:
    _, ranks = looked
    for found in ranks:
        assert found["gathered"] == [{"rank": 0}, {"rank": 1}]
        assert found["long"] == [100_000, 200_000]
        assert found["broadcast"] == "from 1"
        assert found["average"] == pytest.approx(5 / 3)


def test_lines_have_ranks(looked) -> None:
    result, _ = looked
    for rank in range(2):
        own = [line for line in result.out.splitlines() if line.startswith(f"[rank {rank}]")]
        assert own == [f"[rank {rank}] {x}" for x in ("first", "second", "third", "", "last without an end")]
        assert f"[rank {rank}] an error\n" in result.err
    assert len(result.out.splitlines()) == 10


def test_lines_in_pieces(tmp_path) -> None:
    """A line may arrive in pieces of any size, even split within its line end."""
    written = b"one\r\ntwo\rthree\n\r\nfour\r\r\nfive"
    for size in (1, 2, 3, len(written)):
        reading, writing = os.pipe()
        target = tmp_path / f"by {size}"
        with open(reading, "rb", buffering=0) as source, open(target, "wb") as written_to:
            stream = Stream(source, Output(written_to.fileno()), b": ")
            for at in range(0, len(written), size):
                os.write(writing, written[at : at + size])
                stream.forward()
            assert not stream.ended
            os.close(writing)
            stream.forward()
            assert stream.ended
        assert target.read_bytes() == b": one\n: two\n: three\n: \n: four\n: \n: five\n"
        assert stream.last == b"five"


def test_long_lines(tmp_path) -> None:
    """A line longer than all buffers is passed on whole, with one prefix."""
    program = tmp_path / "long.py"
    program.write_text("print('x' * 50_000_000)")
    result = jobs.launch(tmp_path, program, n=1)
    assert result.out == "[rank 0] " + "x" * 50_000_000 + "\n"


def test_exit_codes(tmp_path) -> None:
    program = tmp_path / "ending.py"
    program.write_text("import sys; sys.exit(int(sys.argv[1]))")
    assert jobs.launch(tmp_path, program, 0).code == 0
    result = jobs.launch(tmp_path, program, 7)
    assert result.code == 7
    assert "rank " in result.err
    assert "ended with exit code 7" in result.err
    result = jobs.launch(tmp_path, tmp_path / "missing.py", n=1)
    assert result.code == 2
    assert "missing.py" in result.err


def test_module(tmp_path) -> None:
    (tmp_path / "amodule.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    command = [sys.executable, "-m", "dynet_cy.launch", "-n", "1", "-m", "amodule", "-x", "y"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout == "[rank 0] __main__ ['-x', 'y']\n", done.stderr


def test_terminal(tmp_path) -> None:
    """Rank 0 writes to the terminal directly, so progress bars work; lines of other ranks get a prefix."""
    pty = pytest.importorskip("pty")
    program = tmp_path / "writing.py"
    program.write_text(
        "import os, sys, time\n"
        "while 'rank=1' in os.environ['DYNET_CY_LAUNCH'] and not os.path.exists('written'):\n"
        "    time.sleep(0.01)\n"
        "sys.stdout.write(f'{sys.stdout.isatty()} 50%\\r')\n"
        "sys.stdout.flush()\n"
        "open('written', 'w').close()\n"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dynet_cy.launch", "-n", "2", str(program)]
    subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, check=True, cwd=tmp_path)
    os.close(theirs)
    written = os.read(ours, 1000)
    os.close(ours)
    assert written == b"True 50%\r[rank 1] False 50%\r\n"


def test_arguments(capsys) -> None:
    options = parser().parse_args(["-n", "3", "--timeout", "5", "train.py", "--mode", "x", "-n", "7"])
    assert (options.processes, options.timeout, options.mode) == (3, 5.0, "sync")
    assert options.command == ["train.py", "--mode", "x", "-n", "7"]
    for arguments, said in (
        ([], "which program"),
        (["-n", "0", "x.py"], "at least 1 process"),
        (["--timeout", "-1", "x.py"], "at least 0"),
        (["--mode", "other", "x.py"], "invalid choice"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert said in capsys.readouterr().err


JOB = """
import subprocess, sys
import dynet_cy as dy

m = dy.ParameterCollection()
w = m.add_parameters(1, init=1.0)
trainer = dy.parallel.wrap(dy.SimpleSGDTrainer(m, 0.25))
for _ in range(3):
    if _ == 1 and sys.argv[1:] and dy.parallel.rank() == 0:
        for before in (["-m", "dynet_cy.launch", "-n", "3"], []):
            done = subprocess.run([sys.executable, *before, __file__], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            print(done.stdout, end="")
    dy.renew_cg()
    (dy.squared_norm(w) * (dy.parallel.rank() + 1)).backward()
    trainer.update()
print("size", dy.parallel.size(), "value", w.scalar_value())
"""


def test_jobs_beside_and_inside_each_other(tmp_path) -> None:
    """Jobs share no port, no name and no variable: several at once, and one that a worker starts, have their own."""
    program = tmp_path / "job.py"
    program.write_text(JOB)
    command = [sys.executable, "-m", "dynet_cy.launch", "-n"]
    values = {n: (1 - 0.25 * (n + 1)) ** 3 for n in (1, 2, 3)}  # the mean of 2 (rank + 1) is n + 1
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        beside = {n: stack.enter_context(subprocess.Popen([*command, str(n), str(program)], **pipes)) for n in values}
        for job in beside.values():
            stack.callback(job.kill)  # if the test fails; else it has ended
        outer = jobs.launch(tmp_path, program, "inside")
        assert outer.code == 0, outer.err
        for n in values:
            assert f"size {n} value {values[n]}" in outer.out
        for n, job in beside.items():
            out, err = job.communicate(timeout=600)
            assert job.returncode == 0, err
            assert out.count(f"size {n} value {values[n]}") == n
