"""The command python -m dynet_cy.port: what it finds in programs of PyTorch, TensorFlow and DyNet, and its output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from own_process import environment

from dynet_cy.hints import port
from dynet_cy.hints.differences import DIFFERENCES
from dynet_cy.hints.readings import READINGS

ROOT = Path(__file__).resolve().parents[2]

TORCH = """
import argparse
import math
import numpy as np
import torch
from torch import nn, optim
import torch.nn.functional as F
"""


def found(body: str, head: str = TORCH) -> list[tuple[str, str]]:
    """What is found in a program below its imports: the code, and what to write."""
    text = head + body
    first = len(head.splitlines())
    return [(code, says[-1][1]) for line, code, says in port.findings(text) if line > first]


@pytest.mark.parametrize(
    ("body", "code", "write"),
    [
        ("def f(x, m):\n    return x * m", "x * m", "`x @ y` for the matrix product"),
        ("def f(x, m):\n    x *= m", "x *= m", "`x @ y` for the matrix product"),
        ("a = torch.ones(2, 2) @ W + self.bias", "torch.ones(2, 2) @ W + self.bias", "`b[:, None]` for each column"),
        ("y = x.view(-1, 3)", "x.view(-1, 3)", '`order="F"` by columns'),
        ("y = torch.flatten(x, 1)", "torch.flatten(x, 1)", "`dy.nn.Flatten()(x)`"),
        ("f = nn.Flatten()", "nn.Flatten()", "`dy.nn.Flatten()(x)`"),
        ("y = torch.zeros(3, 4)", "torch.zeros(3, 4)", "a tuple for the shape"),
        ("p = F.softmax(x, dim=1)", "F.softmax(x, dim=1)", "`d=0` (or `axis=0`)"),
        ("l = nn.CrossEntropyLoss()(x, y)", "nn.CrossEntropyLoss()", "`axis=0` for columns"),
        ("l = F.mse_loss(x, y)", "F.mse_loss(x, y)", "`dy.sum_batches(loss).backward()`"),
        ("c = x.argmax(1) == y", "x.argmax(1) == y", "`dy.equal(x, y)`"),
        ("t = optim.SGD(ps, lr=0.1)", "optim.SGD(ps, lr=0.1)", "`trainer.set_clip_threshold(0)` for no clipping"),
        ("t = optim.SGD(ps, lr=0.1)", "lr=0.1", "`learning_rate`"),
        ("t = optim.Adam(ps, weight_decay=0.1)", "optim.Adam(ps, weight_decay=0.1)", "`dy.AdamWTrainer"),
        ("l = nn.LSTM(3, 4, batch_first=True)", "batch_first=True", "nothing: networks take a column"),
        ("l = nn.Linear(in_features=3, out_features=4)", "in_features=3", "`input_dim=`"),
        ("class F(torch.autograd.Function):\n    pass", "torch.autograd.Function", "`dy.custom_op("),
        ("m = nn.parallel.DistributedDataParallel(m)", "nn.parallel.DistributedDataParallel", "`trainer = dy.parallel"),
        ("with torch.profiler.profile() as p:\n    pass", "torch.profiler.profile", "`with dynet_cy.profiling.measure"),
        ("torch.onnx.export(m, (x,), 'm.onnx')", "torch.onnx.export", "`dy.onnx.export(f, {"),
        ("y = torch.ones(2, 2).max(1).values", "torch.ones(2, 2).max(1).values", "`x.max(1)`"),
        ("y = torch.ones(2).masked_fill(m, 0)", "torch.ones(2).masked_fill", "`dy.masked_fill(x, mask, v)`"),
        ("y = torch.ones(2).gather(0, i)", "torch.ones(2).gather", "`dy.gather(x, ...)`"),
        ("e = nn.Embedding(3, 4)", "nn.Embedding(3, 4)", "`dy.nn.Embedding(v, n, pc)`, which has N(0, 1) too"),
        ("t = optim.SGD(ps, weight_decay=0.1)", "weight_decay=0.1", "`trainer.group(pc, weight_decay=d)`, or"),
        ("g = nn.GroupNorm(2, 4)", "nn.GroupNorm", "`nn.GroupNorm(groups, n, pc)`: channels are the last axis"),
        ("e = nn.TransformerDecoderLayer(4, 2)", "nn.TransformerDecoderLayer", "`nn.TransformerDecoderLayer(n, heads"),
        ("e = nn.TransformerEncoder(layer, 2)", "nn.TransformerEncoder", "`nn.TransformerEncoder(2, n,"),
        ("torch.save(state, 'm')", "torch.save", "`pc.save(f)` and `pc.populate(f)`"),
        ("state = torch.load('m')", "torch.load", "`pc.save(f)` and `pc.populate(f)`"),
        ("with torch.autocast('cpu'):\n    pass", "torch.autocast", "nothing: `--dynet-precision bf16`"),
        ("s = torch.cuda.amp.GradScaler()", "torch.cuda.amp.GradScaler", "nothing: `--dynet-precision bf16`"),
        ("y = torch.where(m, x, y)", "torch.where", "`dy.where(c, x, y)`"),
        ("n = x.dim()", "x.dim()", "`len(x.shape)`"),
        ("h = F.dropout(x, 0.5)", "F.dropout(x, 0.5)", "`dy.dropout(x, p)` under `if training:`"),
        ("l = nn.Linear(3, 4)", "nn.Linear(3, 4)", "the transpose"),
        ("l = nn.LSTM(3, 4)", "nn.LSTM", "`dy.nn.LSTM(n, m, pc)`"),
        ("y = x.detach()", "x.detach", "`dy.nobackprop(x)`"),
        ("opt.zero_grad()", "opt.zero_grad", "nothing, as `trainer.update()` clears gradients"),
    ],
)
def test_places_of_pytorch(body: str, code: str, write: str) -> None:
    places = found(body)
    assert any(place == code and text.startswith(write) for place, text in places), places


@pytest.mark.parametrize(
    "body",
    [
        "n = 3\nk = n * 2",
        "def f(n: int, rate=0.5):\n    return n * rate",
        "class A:\n    def __init__(self, w=3):\n        self.w = w\n\n    def f(self):\n        return self.w * 2",
        "for i in range(3):\n    print(i * i)",
        "b, n = x.shape\nm = b * n",
        "y = np.zeros(3, 4) * 2",
        "y = np.round(z)",
        "names = []\nnames.sort()",
        "t = 'a' * 3",
        "if mode == 'train':\n    pass",
        "y = torch.zeros(3)",
        "y = math.sqrt(2) * 3",
        "y = total + 1",
        "args = parse()\nprint(args.data)",
        "args = argparse.ArgumentParser().parse_args()\nprint(args.data, args.norm, args.exp)",
        "def f(args):\n    return args.data\n\nf(argparse.ArgumentParser().parse_args())",
        "class A:\n    def norm(self):\n        return 1\n\n    def f(self):\n        return self.norm()",
        "class A:\n    def __init__(self, x):\n        self.norm = x\n\n    def f(self):\n        self.norm()",
        "config = dict(lr=0.1, betas=1)",
        "print('x.view(2)', 'optim.Adam(lr=1)')",
        "def f():\n    'Call sched.step() and x.view(2).'",
        "def f(x: dict):\n    return x.data",
        "def f(x):\n    return x.values()",
    ],
)
def test_no_places(body: str) -> None:
    assert found(body) == []


def test_transformers_and_peft() -> None:
    head = "from transformers import AutoModel, AutoTokenizer\nfrom peft import LoraConfig, get_peft_model\n"
    body = (
        "t = AutoTokenizer.from_pretrained('f')\nm = AutoModel.from_pretrained('f')\n"
        "x = t(['a'], return_tensors='pt')\nm = get_peft_model(m, LoraConfig())\nm.save_pretrained('g')"
    )
    said = dict(found(body, head))
    for code, write in {
        "AutoTokenizer.from_pretrained": "`dy.pretrained.load(folder, pc)`",
        "AutoModel.from_pretrained": "`dy.pretrained.load(folder, pc)`",
        "return_tensors='pt'": "nothing: texts of any lengths need no padding",
        "get_peft_model": "`dy.pretrained.lora(bert, rank=8)`",
        "m.save_pretrained": "`save(folder)`",
    }.items():
        assert said[code].startswith(write), said


def test_decay_of_adam_is_in_the_gradient() -> None:
    (text,) = [text for code, text in found("t = optim.Adam(ps, weight_decay=0.1)") if code == "weight_decay=0.1"]
    assert "for PyTorch's `Adam`, whose decay is part of the gradient, `0.5 * d * dy.squared_norm(W)`" in text


def test_what_is_loaded_is_no_tensor() -> None:
    assert [code for code, _ in found("ok = torch.load('m').keys()")] == ["torch.load"]


@pytest.mark.parametrize(
    ("made", "write"),
    [
        ("torch.optim.lr_scheduler.CosineAnnealingLR(o, 3)", "`trainer.schedule = dy.CosineSchedule(n)`"),
        ("optim.lr_scheduler.MultiStepLR(o, [3])", "`trainer.schedule = dy.StepSchedule(n)`, of a number or a list"),
        ("torch.cuda.amp.GradScaler()", "nothing: `--dynet-precision bf16`"),
        ("optim.AdamW(ps, weight_decay=0.1)", "`dy.AdamWTrainer`"),
    ],
)
def test_one_text_for_a_name(made: str, write: str) -> None:
    """Nothing of the modules that it is in, nor of arguments that are called so here too."""
    texts = [text for _, text in found(f"s = {made}") if "clip" not in text]
    assert len(texts) == 1, texts
    assert texts[0].startswith(write)


@pytest.mark.parametrize(
    "made",
    ["optim.lr_scheduler.StepLR(o, 3)", "LambdaLR(o, f)", "get_linear_schedule_with_warmup(o, 1, 2)"],
)
def test_schedulers_are_no_trainers(made: str) -> None:
    """Their `step` updates nothing, and nothing is said of clipping, whatever the variable is called."""
    imports = (
        "from torch.optim.lr_scheduler import LambdaLR\nfrom transformers import get_linear_schedule_with_warmup\n"
    )
    body = f"def train(o, s):\n    s.step()\n\no = optim.Adam(ps)\ns = {made}\ns.step()\no.step()\ntrain(o, s)"
    places = found(body, TORCH + imports)
    steps = [(code, text.partition(",")[0]) for code, text in places if code.endswith(".step")]
    assert steps == [(c, "a schedule of the trainer") for c in ("s.step", "s.step")] + [
        ("o.step", "`trainer.update()`")
    ]
    assert [code for code, text in places if "set_clip_threshold" in text] == ["optim.Adam(ps)"]


def test_kinds_come_from_what_names_were_bound_to() -> None:
    """By calls, annotations and attributes of a class; a name in another function is another name."""
    body = (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.exp = nn.Linear(2, 2)\n\n    def forward(self, x: torch.Tensor):\n"
        "        return self.exp(x).exp(), x.data, self.exp.weight\n\n"
        "def f(data):\n    return data\n\ndef g():\n    data = torch.ones(2)\n    return data.data\n"
    )
    codes = [code for code, text in found(body) if "write" not in code]
    assert {"self.exp(x).exp", "x.data", "self.exp.weight", "data.data"} <= set(codes)
    assert "self.exp" not in codes


def test_tensorflow() -> None:
    head = "import tensorflow as tf\n"
    places = found("y = tf.concat([a, b], 0)\nz = tf.ones(2) * x\n", head)
    assert [code for code, _ in places] == ["tf.concat", "tf.ones(2) * x"]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("e = dy.conv2d_bias(x, f, b, [1, 1])", "`conv2d` and `conv2d_bias` of stride 1 and many channels"),
        ("y = np.sum(losses)", "`np.asarray(e)`, `np.array([e, f])`, `np.sum(losses)`"),
        ("p.set_updated(False)", "parameters that are not updated (`set_updated(False)`)"),
        ("a = W.as_array()", "`as_array` and `grad_as_array` of parameters"),
        ("sys.argv += ['--dynet-mem', '512']", "`--dynet-mem MB`"),
        (
            "t = dy.MomentumSGDTrainer(m)",
            "momentum of a table, or rows of it, in a graph that the loss does not depend on",
        ),
        ("y = dy.layer_norm(x, g, b)", "`layer_norm` of a matrix with a gain and bias of one column"),
        ("y = dy.logsumexp_dim(x, 1)", "`logsumexp_dim`"),
        ("from concurrent.futures import ThreadPoolExecutor", "threads"),
        ("t.update_subset([0], [1])", "`update_subset`"),
    ],
)
def test_differences_of_dynet(body: str, what: str) -> None:
    text = f"import sys\nimport numpy as np\nimport dynet as dy\n{body}\n"
    says = [dict(finding.says) for finding in port.findings(text) if finding.line == 4]
    (said,) = [text for text in says if text["difference"] == what]
    row = next(row for row in DIFFERENCES if row.what == what)
    assert (said["DyNet"], said["dynet_cy"]) == (row.there, row.here)


@pytest.mark.parametrize("statement", ["import dynet as dy", "import _dynet as dy", "from dynet import *"])
def test_imports_of_dynet(statement: str) -> None:
    """Batching concerns each program; names are known by every kind of import."""
    call = "dynet.elu(x)" if "*" not in statement else "elu(x)"
    says = [
        dict(finding.says)["difference"] for finding in port.findings(f"{statement}\n{call.replace('dynet', 'dy')}\n")
    ]
    assert says == ["`--dynet-autobatch`", "autobatching of `elu` and `selu`"]


def test_options_in_texts_are_none() -> None:
    text = "'Run it with --dynet-mem 500.'\nimport dynet as dy\nprint('use --dynet-mem')\nargs = ['--dynet-mem=5']\n"
    places = [f.line for f in port.findings(text) if dict(f.says)["difference"] == "`--dynet-mem MB`"]
    assert places == [4]


def test_signs_are_of_differences() -> None:
    """What the command looks for belongs to a row of docs/differences.md, and the module has all rows of the page."""
    rows = [row.what for row in DIFFERENCES]
    assert set(port._SIGNS) <= set(rows)
    page = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.+?) \|", page, re.MULTILINE)
    tables = cells[cells.index("what") :]
    assert [cell for cell in tables if cell not in ("what", "instead of") and cell in rows] == rows


def test_every_row_for_pytorch_can_be_found() -> None:
    """Rows without signs are about types that a program does not show."""
    assert {row.place for row in READINGS if not row.torch and row.differs is None} == set()


def test_program_of_no_library(tmp_path: Path) -> None:
    """By the command."""
    (tmp_path / "a.py").write_text("x = y * z\n")
    done = subprocess.run(
        [sys.executable, "-m", "dynet_cy.port", "a.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    assert (done.stdout, done.stderr) == ("", "no program imports torch, tensorflow or dynet\n")


def test_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text once, with its lines; a module without imports is of the library of the others."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("import torch\n\n\ndef f(x, y):\n    z = x * y\n    return z * x\n")
    (package / "b.py").write_text("def g(x, y):\n    return x * y, x.exp()\n")
    assert port.main([str(package)]) == 0
    text = (
        "\n{}\n  PyTorch:    element by element\n  dynet_cy:   the matrix product\n"
        "  write:      `x @ y` for the matrix product, `dy.cmult(x, y)` element by element\n"
    )
    a, b = text.format(package / "a.py"), text.format(package / "b.py")
    more = "\n  write:      `dy.exp(x)`\n       2  x.exp\n"  # without the path again
    expected = f"{a}       5  x * y\n       6  z * x\n{b}       2  x * y\n{more}\n4 places in 2 files of PyTorch\n"
    assert capsys.readouterr() == (expected, "")


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, missing, binary = tmp_path / "old.py", tmp_path / "missing.py", tmp_path / "binary.py"
    old.write_text("import torch\nprint 'Python 2'\n")
    binary.write_bytes(b"\xff\xfe\x00")
    assert port.main([str(old), str(missing), str(binary)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{old}:2: not a program of Python 3: " in err
    assert f"{missing}: No such file or directory" in err
    assert f"{binary}:1: " in err


@pytest.mark.parametrize(
    "program", sorted(path.name for path in (ROOT / "tests" / "projects" / "programs").glob("*.py"))
)
def test_programs_written_for_dynet(program: str) -> None:
    """Programs like public projects are read without an error."""
    text = (ROOT / "tests" / "projects" / "programs" / program).read_text(encoding="utf-8")
    assert len(port.findings(text, "DyNet")) < 100


def test_examples_of_the_page() -> None:
    """The program of PyTorch on the page for its users."""
    page = (ROOT / "docs" / "dynet-cy-for-pytorch-users.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if block.startswith("# PyTorch")]
    writes = [text for _, text in found("".join(blocks), "")]
    assert any("class Tagger(dy.nn.Layer)" in text for text in writes)
    assert any("`dy.LSTMBuilder`" in text for text in writes)


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffimport torch\nx = torch.ones(2) * torch.ones(2)\n".encode(),
        b"# -*- coding: latin-1 -*-\nimport torch  # caf\xe9\nx = torch.ones(2) * torch.ones(2)\n",
        b"import torch\r\nx = torch.ones(2) * torch.ones(2)\r\n",
        b"import torch\rx = torch.ones(2) * torch.ones(2)\r",
        b"import torch\n\x0c\nx = torch.ones(2) * torch.ones(2)\n",
    ],
)
def test_programs_in_other_encodings(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.py"
    path.write_bytes(content)
    assert port.main([str(path)]) == 0
    assert "  torch.ones(2) * torch.ones(2)" in capsys.readouterr().out
