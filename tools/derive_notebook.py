"""Makes the notebook for Colab and Kaggle from the first tutorial, after a cell that installs the library."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ABOUT = """# First steps with dynet_cy

This notebook runs the first tutorial; run the cells in order.

If dynet_cy is installed, the next cell only says so. Otherwise it installs the library from a file beside the notebook:

| file | made in a clone by | installing takes |
|---|---|---|
| a wheel | `pip wheel --no-deps .` | seconds |
| an archive of the source | `git archive -o dynet_cy.tar.gz HEAD` | about five minutes on Colab and Kaggle |

Upload the file in the panel *Files* of Colab, or with *Add Input* in Kaggle, or write its address into `SOURCE`. While
the source is compiled, the cell prints a line for each module."""

INSTALL = """import glob
import importlib.util
import subprocess
import sys

SOURCE = ""  # a file or an address for pip, such as "git+https://..."; if it is empty, a file is looked for


def install():
    places = ("", "/content/", "/kaggle/input/**/")
    patterns = [place + name for name in ("dynet_cy*.whl", "dynet_cy*.tar.gz") for place in places]
    files = [path for pattern in patterns for path in sorted(glob.glob(pattern, recursive=True))]
    found = [SOURCE] if SOURCE else files
    if not found:
        raise FileNotFoundError("no dynet_cy*.whl or dynet_cy*.tar.gz: upload one, or write an address into SOURCE")
    command = [sys.executable, "-m", "pip", "install", "-v", found[0]]
    print("installing", found[0], flush=True)
    last = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout:
            last = [*last[-30:], line]
            if line.strip().startswith(("dynet_cy: ", "Successfully installed")):
                print(line.strip(), flush=True)
    if pip.returncode:
        print("".join(last))
        raise RuntimeError("pip could not install it; its last lines are above")


if SOURCE or importlib.util.find_spec("dynet_cy") is None:
    install()
else:
    print("dynet_cy is installed already")"""


def markdown(text: str) -> str:
    """The reStructuredText of a tutorial as Markdown, as far as the first tutorial uses it."""
    text = re.sub(r"^(.+)\n=+$", r"# \1", text, flags=re.MULTILINE)
    text = re.sub(r"\.\. container:: \w+\n\n +\.\. image:: (\S+)", r"![](\1)", text)
    return text.replace("``", "`").strip()


def cells(tutorial: str) -> list[tuple[str, str]]:
    """The kinds and the texts of the cells of a tutorial."""
    head, *blocks = re.split(r"^# %%\n", tutorial, flags=re.MULTILINE)
    found = [("markdown", markdown(head.strip().strip('"')))]
    for block in blocks:
        lines = block.split("\n")
        words = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
        found.append(("markdown", markdown("\n".join(line[2:] for line in lines[:words]))))
        code = "\n".join(lines[words:]).strip("\n")
        if code:
            shown = "\ndrawing" if "drawing.save(" in code else ""  # a picture below the cell
            found.append(("code", code + shown))
    return [(kind, re.sub(r"!\[\]\(\S+\)\n*", "", text)) for kind, text in found]


def notebook(tutorial: Path) -> str:
    """The text of the notebook."""
    all_cells = [("markdown", ABOUT), ("code", INSTALL), *cells(tutorial.read_text(encoding="utf-8"))]
    made: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(all_cells):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        if kind == "code":
            cell.update(execution_count=None, outputs=[])
        made.append({**cell, "source": text.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"
