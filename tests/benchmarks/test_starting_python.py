"""What starts Python finds the installed package, also where the current folder is an unbuilt clone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from own_process import environment

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "tools", "examples", "docs/learn")
# Starts `pip` and the compiler of `ziglang`, which are not in the clone.
OTHERS = {"derive_notebook.py", "cross_compile.py"}

JOB = """
import sys
sys.path.insert(0, {benchmarks!r})
import processes

job = processes.Job(1, "sync", "exchange", [4])
print(len(job.round(1)[0]["update"]))
job.close()
"""


def searches_current_folder(node: ast.AST) -> bool:
    """Whether a node is a command in which Python takes a module or code, and so searches the current folder first."""
    if not isinstance(node, ast.List):
        return False
    words = [ast.unparse(word) for word in node.elts]
    return "sys.executable" in words and bool({"'-m'", "'-c'", "*before", "*arguments"} & set(words))


@pytest.mark.parametrize("folder", FOLDERS)
def test_commands_with_a_module_or_code_run_in_another_folder(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        program = ast.parse(path.read_text(encoding="utf-8"))
        if path.name in OTHERS or not any(map(searches_current_folder, ast.walk(program))):
            continue
        calls = [node for node in ast.walk(program) if isinstance(node, ast.Call)]
        with_folder = [call for call in calls if "cwd" in {word.arg for word in call.keywords}]
        assert with_folder, path
        wrong = [
            call.lineno for call in calls if call not in with_folder and any(map(searches_current_folder, call.args))
        ]
        assert not wrong, f"{path}: lines {wrong} start Python without cwd"


def test_jobs_of_a_benchmark_start_in_an_unbuilt_clone(tmp_path: Path) -> None:
    package, programs = tmp_path / "clone" / "dynet_cy", tmp_path / "programs"
    package.mkdir(parents=True)
    programs.mkdir()
    (package / "__init__.py").write_text("raise ImportError('the unbuilt clone')", encoding="utf-8")
    program = programs / "run.py"
    program.write_text(JOB.format(benchmarks=str(ROOT / "benchmarks")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=package.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "1", done.stderr
