"""The tagger, the digit classifier and other examples with `--dynet-gpu` print the same as on the CPU.

They run as users run them, with dropout, on generated data. Masks are the same as on the CPU, so losses agree up to
rounding; they are printed with four digits.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from made_data import write_digits, write_treebank
from programs import numbers, run

pytest.importorskip("tqdm", reason="the examples need tqdm")

TAGGER = ["tagger.py", "--train", "train.conllu.gz", "--dev", "dev.conllu", "--batch", 8, "--letter-hidden", 8]
TAGGER += ["--word-dim", 16, "--letter-dim", 8, "--hidden", 16, "--learning-rate", 0.02, "--epochs", 3]
DIGITS = ["mnist.py", "--data", ".", "--batch", 16, "--epochs", 3]
SMALL_CNN = ["--model", "cnn", "--limit", 40, "--epochs", 2]
TREES = ["tree_lstm.py", "--limit", 40, "--epochs", 2, "--word-dim", 8, "--hidden", 8]
LANGUAGE = ["rnnlm.py", "--train", "text", "--dim", 16, "--hidden", 24, "--batch", 8, "--epochs", 2]
# Prints at the end how many kernels were launched.
COUNT = (
    "import atexit; "
    "atexit.register(lambda: print('launches', sys.modules['dynet_cy.core.engine'].stats('gpu.0')['launches']))"
)
PROGRAMS: dict[str, list[object]] = {
    "tagger": TAGGER,
    "tagger node by node": [*TAGGER, "--dynet-autobatch", 0, "--epochs", 1],
    "mlp, minibatch": [*DIGITS, "--batching", "manual"],
    "mlp, autobatch": [*DIGITS, "--batching", "auto"],
    "cnn, minibatch": [*DIGITS, *SMALL_CNN, "--batching", "manual"],
    "cnn, autobatch": [*DIGITS, *SMALL_CNN, "--batching", "auto"],
    "tree_lstm": TREES,
    "train_tagger": ["parallel/train_tagger.py", *TAGGER[1:]],
    "train_tree_lstm": ["parallel/train_tree_lstm.py", *TREES[1:]],
    "rnnlm": LANGUAGE,
    "xor": ["xor.py", "--steps", 300],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_digits(tmp_path_factory.mktemp("data"))
    write_treebank(made / "train.conllu.gz", 30, seed=1)
    write_treebank(made / "dev.conllu", 10, seed=2)
    (made / "text").write_text("the dog sees a cat\na bird likes the tree\n" * 15, encoding="utf-8")
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_on_the_cpu(name: str, folder: Path, device: str) -> None:
    script, *args = PROGRAMS[name]
    here = run(str(script), *args, cwd=folder)
    there = run(str(script), *args, "--dynet-gpu", cwd=folder, prelude=COUNT)
    assert here.returncode == there.returncode == 0, here.stderr + there.stderr
    for what in (r"loss ([\d.]+)", r"accuracy ([\d.]+)", r"perplexity ([\d.]+)"):
        desired, found = (numbers(what, done.stdout) for done in (here, there))
        assert found == pytest.approx(desired, rel=1e-3, abs=1e-3)
        assert found or "loss" not in what
    assert numbers(r"launches (\d+)", there.stdout)[0] > 50
