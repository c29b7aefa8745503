"""The code blocks of all guides run: here, or in the test that `ELSEWHERE` names.

The Python blocks of a page run in order in one namespace. Names that a page does not define, such as data, are in
`GIVEN`; `...` in a block is a statement of Python, so it runs too. Blocks in other languages are named in `LANGUAGES`.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import runpy
import shutil
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import trainer_reference

import dynet_cy as dy
from dynet_cy import nn

ROOT = Path(__file__).resolve().parent.parent
# Other folders of docs have pages only after a build of the site.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "lab").glob("*.md"))]

# Checks of blocks that are not Python.
LANGUAGES = {
    "text": "output and diagrams: tests of programs compare what they print with it",
    "sh": "commands of a shell",
    "c": "rows and kernels: tests/test_derived.py finds them in the sources, `test_guides_trainer` reads the rule",
    "cython": "tests/test_custom_op_page.py compiles the op of that page; `test_guides_trainer` runs the trainer",
}
# Pages whose Python blocks run in tests of their own.
ELSEWHERE = {
    "README": "test_project.py",
    "custom-op": "test_custom_op_page.py",
    "debugging": "test_debugging_page.py",
    "decisions": "test_debugging_page.py",
    "dynet-cy-for-pytorch-users": "examples/test_pytorch_page.py",
    "onnx": "onnx/test_onnx_files.py",
    "performance": "test_debugging_page.py",
    "pretrained": "pretrained/test_pretrained_page.py",
    "your-own-data": "test_your_own_data.py",
    "add-a-layer": "test_pages.py",
    "add-an-op": "test_pages.py",
}
# Blocks that need another package, by their first line.
NEEDS = {
    'safetensors.torch.save_file(module.state_dict(), "m.safetensors")  # in PyTorch': "torch",
    "import torch": "torch",
}

MODEL = """
import numpy as np
import dynet_cy as dy
model = dy.ParameterCollection()
"""
TRAINING = """
import random
from pathlib import Path
import dynet_cy as dy
model = m = dy.ParameterCollection()
W = model.add_parameters((2, 4))

def loss_of(example):
    return dy.pickneglogsoftmax(W * dy.inputVector(example), int(sum(example)) % 2)

def accuracy(*anything):
    return 0.5

class Network(dy.nn.Layer):
    def __init__(self):
        super().__init__(model, ())
        self.out = dy.nn.Linear(4, 2, self.collection)

    def loss(self, example):
        return loss_of(example) + dy.squared_norm(self.out(dy.inputVector(example)))

examples = [[k % 3, k % 2, k % 5, 1] for k in range(80)]
"""
GIVEN = {
    "layout": "",
    "data": TRAINING
    + """
import dataclasses
Path("train.conllu").write_text("1\\tDogs\\t_\\tNOUN\\t_\\t_\\t2\\tnsubj\\t_\\t_\\n2\\tbark\\t_\\tVERB\\t_\\t_\\t0\\troot\\t_\\t_\\n\\n")
found_heads, found_relations = [0, 1], ["root", "dep"]
Path("glove.6B.100d.txt").write_text("".join(word + " 0.5" * 100 + "\\n" for word in ("the", "dog", "cat")))
vocabulary = dy.data.Vocabulary(["the", "dog", "bird"])
training = [(["the", "dog"], "noun"), (["the", "cat"], "noun"), (["bark"], "verb")]
text, label = training[0]
scores = dy.inputVector([0.25, 0.75])
values = scores.npvalue()
sentences, trainer = examples, dy.AdamTrainer(model)
""",
    "differences": "",
    "layers": MODEL
    + """
size, sentence, text, longest, word = 50, [1, 2, 3], [4, 5], 4, 0
memory = model.add_parameters((128, 3))
decoder, out = dy.nn.TransformerDecoder(1, 128, 4, 64, model), dy.nn.Linear(128, 50, model)
norm = dy.nn.BatchNorm(8, model)
vocabulary = ["the", "dog"]
import gzip
with gzip.open("cc.en.300.vec.gz", "wt") as file:
    file.write("2 300\\n" + "".join(word + " 0.5" * 300 + "\\n" for word in vocabulary))
""",
    "parallel": TRAINING
    + """
batches = [examples[k : k + 16] for k in range(0, 80, 16)]
dev, sentences, path = examples[:8], examples, Path("point")
left = list(batches)

def next_batch():
    return left.pop() if left else None

def score(example):
    return loss_of(example).value()

best = 0.5
""",
    "not-there": "",
    "rnn": MODEL
    + """
sentence = [1, 2, 3]
table = model.add_lookup_parameters((10, 100))
""",
    "training": TRAINING
    + """
training, dev, network = examples, examples[:8], Network()
batches, dev_loss, dev_score, path = [examples[:16]] * 2, 0.5, 0.5, "point"
data, sizes = dy.data.batches(examples, 16), {"hidden": 4}
import sys
from dynet_cy import commandline
Path("train.tsv").write_text("good\\tfine\\n" * 20)
sys.argv = ["program.py", "--train", "train.tsv"]
""",
    "memory": """\
import dynet_cy as dy

model = dy.ParameterCollection()
W, gain, bias = model.add_parameters((8, 8)), model.add_parameters(8), model.add_parameters(8)
lstm = dy.LSTMBuilder(1, 8, 8, model)
inputs = [dy.inputVector(range(8))] * 3
h = inputs[0]
""",
}


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in re.finditer(r"^( *)(```+)(.*)\n((?:.*\n)*?)\1\2 *$", text, re.M):
        line = text.count("\n", 0, fence.end(3)) + 1
        found.append(Block(fence[3].strip(), line, textwrap.dedent(fence[4])))
    return found


def with_python() -> set[str]:
    return {page.stem for page in PAGES if any(block.language == "python" for block in blocks(page))}


def test_every_block_is_run_or_explained() -> None:
    languages = {block.language for page in PAGES for block in blocks(page)}
    assert languages - {"python"} == set(LANGUAGES)
    assert with_python() == set(GIVEN) | set(ELSEWHERE)
    assert not set(GIVEN) & set(ELSEWHERE)
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / "tests" / test).read_text(encoding="utf-8"), page
    first = {block.text.split("\n", 1)[0] for page in PAGES for block in blocks(page)}
    assert set(NEEDS) <= first


def test_lab_notes_begin_with_a_table_of_what_was_tried() -> None:
    """Before the first section, a page of the lab has one table, of at most a screen."""
    for page in sorted((ROOT / "docs" / "lab").glob("*.md")):
        rows = re.findall(r"^\|.*", page.read_text(encoding="utf-8").partition("\n## ")[0], re.MULTILINE)
        assert page.stem == "index" or 5 < len(rows) < 40, page


def test_rows_of_tables_have_the_cells_of_their_heads() -> None:
    """A stroke splits a cell even within code, unless a backslash is before it."""
    wrong: list[str] = []
    cells: int | None = None
    for page in PAGES:
        for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
            found = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
            if None not in (cells, found) and found != cells:
                wrong.append(f"{page.name}:{number}: {line}")
            cells = found if cells is None or found is None else cells
    assert not wrong


# Blocks are run like cells: a block that assigns a layer to a variable replaces the layer that is there.
@pytest.mark.filterwarnings("ignore:.* was made again")
@pytest.mark.parametrize("name", GIVEN)
def test_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / f"{name}.md"
    known: dict[str, Any] = {"__name__": "__main__"}
    dy.reset_random_seed(1)
    dy.renew_cg()
    exec(GIVEN[name], known)
    for block in blocks(page):
        needed = NEEDS.get(block.text.split("\n", 1)[0])
        if block.language == "python" and (needed is None or importlib.util.find_spec(needed)):
            # Empty lines before it, so that a traceback has the line of the page.
            exec(compile("\n" * block.line + block.text, str(page), "exec"), known)
    dy.renew_cg()


def section(title: str) -> list[Block]:
    """The blocks of a section of docs/add-a-layer.md."""
    page = ROOT / "docs" / "add-a-layer.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(f"## {title}\n")
    begin = before.count("\n")
    end = begin + rest.partition("\n## ")[0].count("\n")
    return [block for block in blocks(page) if begin < block.line <= end + 1]


def test_guides_trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The three parts of the guide's trainer agree, have all that tests demand, and are read by tools/derive.py."""
    parts = {block.language: block.text for block in section("A trainer")}
    # The rule is C that is Python, too; several updates without a gradient amount to what it says.
    rule, idle = (body.replace(";", "") for body in re.findall(r"\{\n(.*?)^\}", parts["c"], re.M | re.S))
    monkeypatch.setattr(trainer_reference, "RULES", {})
    monkeypatch.setattr(trainer_reference, "OTHERS", {})
    exec(parts["python"], vars(trainer_reference).copy())
    ((name, (make, states, _)),) = trainer_reference.RULES.items()
    here: dict[str, Any] = {"s0": 0.0, "lr": 0.1, "b1": 0.75}
    reference, state = make(mom=0.75), {states[0]: np.zeros(1)}
    for g in (1.0, -2.0, 0.5):
        here["g"] = g
        exec(textwrap.dedent(rule), here)
        assert reference(state, np.array([g]), 1, 0.1) == pytest.approx(here["d"])
    steps = np.sum([reference(state, np.zeros(1), 1, 0.1) for _ in range(4)], axis=0)
    here.update(b1_power=0.75**4, sum=sum(0.75**j for j in range(1, 5)))
    exec(textwrap.dedent(idle), here)
    assert (steps[0], state[states[0]][0]) == pytest.approx((here["d"], here["s0"]))
    # The class is Python, so that it can be made here again.
    rules = SimpleNamespace(DY_OPTIM_nesterov=dy.NesterovSGDTrainer._rule)
    known = {"Trainer": dy.Trainer, "kernels": rules, "number": lambda value, name: float(value)}
    exec(parts["cython"], known)
    monkeypatch.setattr(dy, name, known[name], raising=False)
    (example,) = doctest.DocTestFinder(recurse=False).find(
        known[name], name, False, globs={"dy": dy, "model": dy.ParameterCollection()}
    )
    assert example.examples, "a public class needs an example"
    dy.renew_cg()
    assert doctest.DocTestRunner().run(example).failed == 0
    derive = runpy.run_path(str(ROOT / "tools" / "derive.py"))
    source = tmp_path / "trainers.pyx"
    source.write_text(derive["TRAINERS"].read_text(encoding="utf-8") + "\n\n" + parts["cython"], encoding="utf-8")
    derive["trainers"].__globals__["TRAINERS"] = source
    assert name in [trainer for trainer, _, _ in derive["trainers"]()]
    assert f"class {name}(Trainer):" in derive["stub"](derive["compiled"](source), source.name)


def test_guides_layer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The guide's layer passes the tests of all layers, and tools/derive.py finds its name."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "nn"))
    checks = importlib.import_module("test_basic_layers")
    reference = importlib.import_module("layer_reference")
    layer, row, listed = (block.text for block in section("A layer"))
    # Where the guide adds the class, its row, and its row of the list.
    known = vars(nn.basic).copy()
    exec(layer, known)
    (name,) = known.keys() - vars(nn.basic).keys()
    for module in (nn.basic, nn):
        monkeypatch.setattr(module, name, known[name], raising=False)
        monkeypatch.setattr(module, "__all__", [*module.__all__, name])
    rows = vars(reference).copy()
    exec(row, rows)
    ((key, added),) = rows["LAYERS"].items()
    monkeypatch.setitem(reference.LAYERS, key, added)
    monkeypatch.setitem(reference.ROWS, key, reference.of_columns(*added))
    page = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "layers.md").write_text(page.replace("| `Highway(", f"{listed}| `Highway("), encoding="utf-8")
    monkeypatch.setattr(checks, "PAGE", tmp_path / "docs" / "layers.md")
    of_rows = (
        checks.test_values_and_gradients,
        checks.test_a_vector_is_a_column,
        checks.test_arrays_and_lists_are_inputs,
    )
    for check in (*of_rows, checks.test_errors):
        dy.renew_cg()
        check(key)
    checks.test_files_pickles_and_copies(key, True, tmp_path)
    checks.test_every_layer_says_what_it_takes()
    checks.test_every_layer_has_a_row_or_tests_of_its_own()
    checks.test_every_layer_is_in_the_list_of_the_page()
    (example,) = doctest.DocTestFinder(recurse=False).find(known[name], name, False, globs={})
    assert example.examples, "a layer needs an example"
    assert doctest.DocTestRunner().run(example).failed == 0
    # What is derived.
    derive = runpy.run_path(str(ROOT / "tools" / "derive.py"))
    shutil.copytree(derive["LAYERS"], tmp_path / "nn", ignore=shutil.ignore_patterns("__pycache__"))
    source = (tmp_path / "nn" / "basic.py").read_text(encoding="utf-8")
    source = source.replace('__all__ = ["Activation",', f'__all__ = ["{name}", "Activation",') + "\n\n" + layer
    (tmp_path / "nn" / "basic.py").write_text(source, encoding="utf-8")
    derive["layers"].__globals__["LAYERS"] = tmp_path / "nn"
    ((_, derived),) = derive["layers"]()
    assert name in derived.partition("from dynet_cy.nn.basic import ")[2].partition("\nfrom ")[0]
    assert f'    "{name}",\n' in derived
    assert f"`{name}`" in "\n".join(derive["listed_layers"]())
