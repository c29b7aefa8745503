"""Programs with `import dynet`, run by `python -m dynet_cy.compat` or after `install()`."""

from __future__ import annotations

import signal
import zipfile
from pathlib import Path

import pytest

COMPAT = ("-m", "dynet_cy.compat")


def test_all_modules(run) -> None:
    done = run(
        *COMPAT,
        "program.py",
        program="""
        import dynet_config
        dynet_config.set(random_seed=4)
        import dynet as dy, _dynet, dynet_viz, dynet_cy, dynet_cy.config, dynet_cy.viz
        from dynet import LSTMBuilder
        assert dy.tanh is _dynet.tanh is dynet_viz.tanh is dynet_cy.tanh
        assert dy.dynet_config is dynet_cy.config and dynet_config.set is dynet_cy.config.set
        assert dy.relu is dynet_cy.relu and dynet_viz.dot is dynet_cy.viz.dot
        print(dy.tanh(dy.inputVector([0.0])).value(), dynet_config.get()["seed"])
        """,
    )
    assert (done.stdout, done.stderr) == ("0.0 4\n", "")


PRINTS = """
import sys, os, dynet
print(sys.argv, __name__, __package__, __file__, __spec__ and __spec__.name, type(__loader__).__name__)
print(sys.path[0], sys.modules["__main__"].__dict__ is globals(), __builtins__.__name__)
print(sorted(n for n in globals() if n not in ("sys", "os", "dynet", "__annotations__")))
"""


def as_plain_python(run, *arguments: str) -> None:
    """The output equals that of plain Python with an empty module `dynet`."""
    have = run(*COMPAT, *arguments)
    want = run("-c", STAND_IN, *arguments)
    assert have.stderr == want.stderr == ""
    assert have.stdout.splitlines() == want.stdout.splitlines()


# Runs plain Python with an empty module `dynet` on its path.
STAND_IN = """
import os, subprocess, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    open(os.path.join(folder, "dynet.py"), "w").close()
    environment = {**os.environ, "PYTHONPATH": folder + os.pathsep + os.environ["PYTHONPATH"]}
    raise SystemExit(subprocess.run([sys.executable, *sys.argv[1:]], env=environment).returncode)
"""


@pytest.mark.parametrize("kind", ["script", "path", "module", "package", "folder", "archive"])
def test_main_is_as_with_plain_python(run, tmp_path: Path, kind: str) -> None:
    (tmp_path / "pack" / "inner").mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "inner" / "__init__.py").touch()
    for name in ("program.py", "pack/__main__.py", "pack/inner/tool.py"):
        (tmp_path / name).write_text(PRINTS, encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as archive:
        archive.writestr("__main__.py", PRINTS)
    arguments = {
        "script": ["program.py"],
        "path": ["pack/inner/tool.py"],
        "module": ["-m", "pack.inner.tool"],
        "package": ["-m", "pack"],
        "folder": ["pack"],
        "archive": ["program.zip"],
    }[kind]
    as_plain_python(run, *arguments, "-m", "x", "--dynet-seed", "3", "--", "--help")


FAILS = """
import dynet
def inner():
    1 / 0
try:
    inner()
except ZeroDivisionError:
    dynet.nothing
"""


@pytest.mark.parametrize("arguments", [("program.py",), ("-m", "program")])
def test_traceback_begins_in_the_program(run, arguments: tuple[str, ...]) -> None:
    done = run(*COMPAT, *arguments, program=FAILS)
    assert done.returncode == 1
    files = [line for line in done.stderr.splitlines() if line.startswith("  File")]
    assert len(files) == 3, done.stderr
    assert all("program.py" in line for line in files)
    assert done.stderr.splitlines()[-1].startswith("AttributeError: module 'dynet' has no attribute 'nothing'")


def test_own_excepthook(run) -> None:
    program = """
    import sys, dynet, traceback
    sys.excepthook = lambda kind, value, tb: print("mine", value, len(traceback.extract_tb(tb)))
    raise ValueError("x")
    """
    assert run(*COMPAT, "program.py", program=program).stdout == "mine x 1\n"


@pytest.mark.parametrize(
    ("program", "code", "error"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('bye')", 1, "bye\n"),
        ("import sys; sys.exit()", 0, ""),
        ("import os; os._exit(9)", 9, ""),
    ],
)
def test_exit_codes(run, program: str, code: int, error: str) -> None:
    done = run(*COMPAT, "program.py", program=program)
    assert (done.returncode, done.stderr) == (code, error)


def test_keyboard_interrupt(run) -> None:
    done = run(*COMPAT, "program.py", program="raise KeyboardInterrupt")
    assert done.returncode == -signal.SIGINT
    assert "compat" not in done.stderr


def test_syntax_error(run) -> None:
    done = run(*COMPAT, "program.py", program="x = (\n")
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert "compat" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ((), 2, "usage: python -m dynet_cy.compat"),
        (("-m",), 2, "usage: python -m dynet_cy.compat"),
        (("-x", "program.py"), 2, "usage: python -m dynet_cy.compat"),
        (("nowhere.py",), 2, "can't open file"),
        (("-m", "nowhere"), 1, "No module named nowhere"),
        (("-m", "nowhere.sub"), 1, "No module named nowhere.sub"),
        ((".",), 1, "can't find '__main__' module in '.'"),
    ],
)
def test_nothing_to_run(run, arguments: tuple[str, ...], code: int, error: str) -> None:
    done = run(*COMPAT, *arguments)
    assert done.returncode == code
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_help(run) -> None:
    done = run(*COMPAT, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes(run, method: str) -> None:
    program = f"""
    import multiprocessing, sys
    import dynet as dy

    def work(x):
        dy.renew_cg()
        return dy.inputVector([x, 1.0]).value(), dy.__name__, sys.argv[1:]

    if __name__ == "__main__":
        with multiprocessing.get_context("{method}").Pool(1) as pool:
            print(pool.map(work, [2.0]))
    """
    done = run(*COMPAT, "program.py", "--dynet-seed", "3", program=program)
    assert done.stdout == "[([2.0, 1.0], 'dynet', ['--dynet-seed', '3'])]\n", done.stderr


def test_install_in_a_program(run) -> None:
    program = """
    import pickle, sys
    import dynet_cy.compat
    dynet_cy.compat.install()
    before = list(sys.path)
    dynet_cy.compat.install()
    assert sys.path == before
    import dynet
    print(dynet.__name__, pickle.loads(b"c_dynet\\nGRUBuilder\\n.").__name__)
    """
    assert run("program.py", program=program).stdout == "dynet GRUBuilder\n"


def test_another_dynet_was_imported(run, tmp_path: Path) -> None:
    (tmp_path / "dynet.py").write_text("", encoding="utf-8")
    done = run("program.py", program="import dynet, dynet_cy.compat\ndynet_cy.compat.install()")
    assert done.returncode == 1
    where = tmp_path / "dynet.py"
    assert f"ImportError: dynet_cy.compat: dynet is imported already, from {where}; install() comes" in done.stderr
