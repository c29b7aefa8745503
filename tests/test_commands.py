"""The commands of python -m dynet_cy: their output, conversions and errors."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from arrays import all_equal

import dynet_cy as dy
from dynet_cy.commands import main


@pytest.fixture
def model() -> dy.ParameterCollection:
    pc = dy.ParameterCollection()
    pc.add_parameters((2, 3), name="W")
    pc.add_parameters(4, name="b")
    pc.add_lookup_parameters((5, 3), name="words")
    pc.add_lookup_parameters((3, 2, 2), name="tables")
    return pc


def arrays(pc: dy.ParameterCollection) -> list[np.ndarray]:
    return [x.as_array() for x in [*pc.parameters_list(), *pc.lookup_parameters_list()]]


def loaded(path: Path) -> dy.ParameterCollection:
    """The parameters that the library reads from a converted file."""
    pc = dy.ParameterCollection()
    if path.suffix == ".meta":
        dy.load(str(path.with_suffix("")), pc)
        return pc
    pc.add_parameters((2, 3), name="W")
    pc.add_parameters(4, name="b")
    pc.add_lookup_parameters((5, 3), name="words")
    pc.add_lookup_parameters((3, 2, 2), name="tables")
    if path.suffix == ".st":
        dy.load_safetensors(path, pc)
    else:
        pc.populate(str(path))
    return pc


def write(path: Path, pc: dy.ParameterCollection) -> None:
    if path.suffix == ".meta":
        dy.save(str(path.with_suffix("")), [*pc.parameters_list(), *pc.lookup_parameters_list()])
    elif path.suffix == ".st":
        dy.save_safetensors(path, pc)
    else:
        pc.save(str(path))


@pytest.mark.parametrize(("source", "target"), list(itertools.product(["a.txt", "a.meta", "a.st"], repeat=2)))
def test_convert(tmp_path: Path, capsys, model, source: str, target: str) -> None:
    write(tmp_path / source, model)
    path = tmp_path / "converted" / target
    path.parent.mkdir()
    assert main(["convert", str(tmp_path / source), str(path)]) == 0
    assert f"{path}: 4 parameters, 37 numbers" in capsys.readouterr().out
    all_equal(arrays(loaded(path)), arrays(model))


def test_convert_does_not_write_text_under_another_name(tmp_path: Path, capsys, model) -> None:
    model.save(str(tmp_path / "a.model"))
    assert main(["convert", str(tmp_path / "a.model"), str(tmp_path / "b.npz")]) == 1
    assert "b.npz: no such kind of file is written; --to text" in capsys.readouterr().err
    assert not (tmp_path / "b.npz").exists()
    assert main(["convert", str(tmp_path / "a.model"), str(tmp_path / "b.npz"), "--to", "text"]) == 0


def test_convert_says_what_is_left_out(tmp_path: Path, capsys, model) -> None:
    trainer = dy.AdamTrainer(model)
    dy.save_safetensors(tmp_path / "a.st", model, trainer)
    assert main(["convert", str(tmp_path / "a.st"), str(tmp_path / "b.txt")]) == 0
    assert "left out: the state of AdamTrainer" in capsys.readouterr().out
    builder = dy.LSTMBuilder(1, 2, 3, model)
    dy.save(str(tmp_path / "pair"), [builder])
    assert main(["convert", str(tmp_path / "pair"), str(tmp_path / "c"), "--to", "safetensors"]) == 0
    assert "left out: how to make _dynet.VanillaLSTMBuilder" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "c")]) == 0
    assert "safetensors file" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a.txt", "a.meta", "a.st"])
def test_inspect(tmp_path: Path, capsys, model, name: str) -> None:
    model.parameters_list()[1].set_value([1, 2, np.nan, -3])
    write(tmp_path / name, model)
    assert main(["inspect", str(tmp_path / name)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["parameter", "shape", "numbers", "least", "greatest", "not", "finite"]
    table = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[2:6]}
    assert table["/b"] == "{4} 4 -3 2 1"
    assert table["/words"].startswith("5 rows of {3} 15 ")
    assert table["/tables"].startswith("3 rows of {2,2} 12 ")
    assert "4 parameters, 37 numbers" in lines[6]


def test_inspect_the_state_of_a_trainer(tmp_path: Path, capsys, model) -> None:
    trainer = dy.MomentumSGDTrainer(model, 0.25)
    dy.save_safetensors(tmp_path / "a.st", model, trainer, extra={"epoch": 3})
    assert main(["inspect", str(tmp_path / "a.st")]) == 0
    out = capsys.readouterr().out
    assert "trainer: MomentumSGDTrainer" in out
    assert "  learning_rate: 0.25" in out
    assert 'extra: {"epoch": 3}' in out
    assert "trainer:0" not in out, "the state of a trainer is not listed as parameters"


class Bomb:
    """An object whose pickle creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_inspect_runs_nothing(tmp_path: Path, capsys, model) -> None:
    write(tmp_path / "a.meta", model)
    (tmp_path / "a.meta").write_bytes(pickle.dumps((Bomb(tmp_path / "made"), [1], "/x")))
    assert main(["inspect", str(tmp_path / "a.meta")]) == 0
    assert "open(" in capsys.readouterr().out, "it says what would be called"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a", b"", "neither a text model file"),
        ("a.st", b"\x20\0\0\0\0\0\0\0{" + b"x" * 40, "not a safetensors file"),
        ("a.txt", b"#Parameter# /W {2} 34 ZERO_GRAD\n+1.0 \n", "parameter /W"),
        ("a.meta", b"\x80\x04nonsense", "not a .meta file"),
        ("nowhere", None, "nowhere'; wanted is a model file"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, capsys, name: str, data: bytes | None, message: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    (tmp_path / "a.data").write_bytes(b"")
    for command in (["inspect", str(tmp_path / name)], ["convert", str(tmp_path / name), str(tmp_path / "out")]):
        if name == "a.meta" and command[0] == "convert":
            continue  # its .data file is empty: another error
        assert main(command) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


PROGRAM = """
import sys
import dynet_cy as dy
W = dy.ParameterCollection().add_parameters((3, 3))
for number in range(int(sys.argv[1])):
    dy.renew_cg()
    print("pass", number, __name__, sys.argv[2:])
    try:
        dy.sum_elems(dy.tanh(W if number else W * W)).backward()
    except Exception:
        print("caught")
if "fails" in sys.argv:
    open("nowhere")
sys.exit(sys.argv[1] == "0" and 3)
"""


def test_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")

    def run(*args: str) -> tuple[object, str, str]:
        before = sys.argv[:], sys.path[:]
        try:
            status: object = main(["plan", *args])
        except SystemExit as end:
            status = end.code
        assert (sys.argv, sys.path) == before
        dy.renew_cg()
        return status, *capsys.readouterr()

    status, out, err = run(str(program), "5", "--all", "x")
    assert (status, err) == (0, "pass 0 __main__ ['--all', 'x']\n")
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["matmul", "tanh", "sum"]
    status, out, err = run("--all", "--pass", "2", str(program), "5")
    assert (status, err.count("pass")) == (0, 2)
    assert [line.split()[1] for line in out.splitlines()[1:3]] == ["tanh", "sum"]
    assert "program.py:9" in out
    assert run("--pass", "2", str(program), "1")[0] == (
        f"python -m dynet_cy plan: {program} has run 1 backward pass only: there is no pass 2"
    )
    assert run(str(program), "0")[:2] == (3, "")
    status, out, err = run("--pass", "2", str(program), "1", "fails")
    assert (status, out) == (1, "")
    assert err.splitlines()[-1].startswith("FileNotFoundError: [Errno 2]")
    assert "runpy" not in err
    assert run(str(tmp_path / "nowhere.py"))[0] == 1
    assert run("--pass", "0", str(program))[0] == 2


def test_info_bench_and_exit_codes(tmp_path: Path) -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dynet_cy", *args], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    info = run("info")
    assert (info.returncode, info.stderr) == (0, "")
    for word in (dy.__version__, "OpenBLAS", "kernels", "settings", "numpy"):
        assert word in info.stdout
    bench = run("bench", "--seconds", "0.1")
    assert (bench.returncode, bench.stderr) == (0, "")
    assert "GFLOP/s" in bench.stdout
    assert "sentences/s" in bench.stdout
    assert run("--help").returncode == 0
    assert run("inspect").returncode == 2
    assert run("bench", "--seconds", "-1").returncode == 2
    assert run().returncode == 2
