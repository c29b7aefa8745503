"""What used to train nothing, or the wrong thing, without a word: errors, and warnings where a program may mean it.

Warnings come once in a process, so each is requested in a process of its own (own_process.run_each).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_process import run_each

import dynet_cy as dy

IMPORT = "import numpy as np\nimport dynet_cy as dy\n"
BEGIN = "model = dy.ParameterCollection()\nx = dy.inputVector([1, 2, 3])\n"
DYNET = "import dynet_cy.compat\ndynet_cy.compat.install()\nimport dynet\n"
TRAIN = "w = model.add_parameters(3)\ntrainer = dy.AdamTrainer(model)\n"


def warnings_of(folder: Path, programs: Iterable[str], begin: str = IMPORT) -> list[list[str]]:
    """What each program warns of."""
    found = []
    for done in run_each(folder, begin, [BEGIN + program for program in programs]):
        assert done.returncode == 0, done.stderr
        found.append([line for line in done.stderr.splitlines() if "Warning" in line])
    return found


SILENT = {
    "empty": ("trainer = dy.AdamTrainer(model)\nfor _ in range(3): trainer.update()", "has no parameters"),
    "no backward": (TRAIN + "for _ in range(3): trainer.update()", "no parameter has a gradient; `loss.backward()`"),
    "another collection": (
        TRAIN + "v = dy.ParameterCollection().add_parameters(3)\n"
        "for _ in range(3):\n    dy.dot_product(v, x).backward()\n    trainer.update()",
        "no parameter has a gradient",
    ),
    "softmax": (
        "for _ in range(3): dy.pickneglogsoftmax(dy.softmax(x), 1)",
        "pickneglogsoftmax: x should be scores, and is an expression of probabilities",
    ),
    "softmax of a batch": ("dy.pickneglogsoftmax(dy.softmax(dy.zeros(3, batch_size=2)), [1, 2])", "should be scores"),
    "softmax of a list": ("dy.pickneglogsoftmax_list([dy.softmax(x)] * 2, [1, 2])", "should be scores"),
    "ctc of scores": (
        "W = model.add_parameters((3, 3))\nfor _ in range(3): dy.ctc_loss(W * dy.zeros((3, 4)), [1, 2])",
        "ctc_loss: log_probs should be log-probabilities, and is an expression of scores",
    ),
    "ctc of joined scores": (
        "W, b = model.add_parameters((3, 3)), model.add_parameters(3)\n"
        "for _ in range(3): dy.ctc_loss(dy.concatenate_cols([W * x + b for _ in range(4)]), [1, 2])",
        "ctc_loss: log_probs should be log-probabilities, and is an expression of scores",
    ),
    "ctc of scores of another shape": (
        "W = model.add_parameters((4, 3))\ndy.ctc_loss(dy.transpose(dy.reshape(W * x + 1, (2, 2)))[:, 0:2], [1])",
        "ctc_loss: log_probs should be log-probabilities, and is an expression of scores",
    ),
    "softmax, joined": (
        "dy.pickneglogsoftmax(dy.concatenate([dy.softmax(x), dy.softmax(x)]), 1)",
        "expression of probabilities",
    ),
    "no output": (
        "rnn = dy.LSTMBuilder(1, 2, 2, model)\nfor _ in range(3): assert rnn.initial_state().output() is None",
        "VanillaLSTMBuilder: `output()` of a state before its first input is None; call `add_input(x)` first",
    ),
    "kl of probabilities": (
        "dy.kl_divergence(dy.log_softmax(x), dy.softmax(x))",
        "kl_divergence: log_q should be log-probabilities, and is an expression of probabilities",
    ),
}


def test_one_warning(tmp_path: Path) -> None:
    found = warnings_of(tmp_path, [program for program, _ in SILENT.values()])
    for (name, (_, says)), lines in zip(SILENT.items(), found):
        assert len(lines) == 1, name
        assert says in lines[0], name


def test_programs_of_dynet_are_left_alone(tmp_path: Path) -> None:
    assert not any(warnings_of(tmp_path, [program for program, _ in SILENT.values()], DYNET + IMPORT))


RIGHT = {
    "training": TRAIN
    + "for _ in range(3):\n    dy.renew_cg()\n    dy.squared_norm(w).backward()\n    trainer.update()",
    "a table": "table = model.add_lookup_parameters((5, 3))\ntrainer = dy.AdamTrainer(model)\n"
    "dy.squared_norm(table[1]).backward()\ntrainer.update()",
    "parameters later": "trainer = dy.AdamTrainer(model)\nw = model.add_parameters(3)\n"
    "dy.squared_norm(w).backward()\ntrainer.update()",
    "a gradient by hand": TRAIN + "w.scale_gradient(0)\ndy.squared_norm(w).backward()\ntrainer.update()",
    "log-probabilities": "dy.pickneglogsoftmax(dy.log_softmax(x), 1)\ndy.kl_divergence(dy.log_softmax(x), dy.log(x))\n"
    "dy.ctc_loss(dy.log_softmax(dy.zeros((3, 4))), [1, 2])",
    "joined log-probabilities": "W = model.add_parameters((3, 3))\n"
    "dy.ctc_loss(dy.concatenate_cols([dy.log_softmax(W * x) for _ in range(4)]), [1, 2])\n"
    "dy.pickneglogsoftmax(dy.concatenate([dy.softmax(x), W * x]), 1)\ndy.pickneglogsoftmax(dy.softmax(x) + W * x, 1)\n"
    "dy.ctc_loss(dy.concatenate_cols([W * x, dy.log_softmax(x)]), [1])",
    "a state that was set": "rnn = dy.LSTMBuilder(1, 2, 2, model)\n"
    "state = rnn.initial_state([dy.zeros(2), dy.zeros(2)])\n"
    "assert state.output() is not None\nassert not rnn.initial_state().h()",
    "input": "dy.pickneglogsoftmax(x, 1)\ndy.pickneglogsoftmax(model.add_parameters(3), 1)",
}


def test_no_warning(tmp_path: Path) -> None:
    assert not any(warnings_of(tmp_path, RIGHT.values()))


RATES = (math.nan, math.inf, -0.1)


def test_learning_rates_of_programs_of_dynet(tmp_path: Path) -> None:
    programs = [f"dy.SimpleSGDTrainer(model, float('{rate}'))" for rate in RATES]
    assert not any(warnings_of(tmp_path, programs, DYNET + IMPORT))


@pytest.mark.parametrize("rate", RATES)
def test_learning_rates(rate: float) -> None:
    model = dy.ParameterCollection()
    says = "learning_rate must be a finite number of at least 0, not"
    for make in (dy.SimpleSGDTrainer, dy.AdamTrainer, dy.CyclicalSGDTrainer):
        with pytest.raises(ValueError, match=says.replace("_rate", "_rate(_min)?")):
            make(model, rate)
    trainer = dy.AdamTrainer(model)
    with pytest.raises(ValueError, match=says):
        trainer.learning_rate = rate
    w = model.add_parameters(2)
    with pytest.raises(ValueError, match=says):
        trainer.group(w, learning_rate=rate)
    with pytest.raises(ValueError, match=says):
        trainer.restart(rate)
    assert trainer.learning_rate == 0.001


def test_output_before_the_first_input() -> None:
    model = dy.ParameterCollection()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first one in a process, see above
        output: Any = dy.LSTMBuilder(1, 2, 2, model).initial_state().output()
    W = model.add_parameters((2, 2))
    for use in (lambda: dy.tanh(output), lambda: W * output, lambda: dy.concatenate([output])):
        with pytest.raises(TypeError, match="`output\\(\\)` of a state before its first input is None"):
            use()


def test_columns_are_not_items() -> None:
    X, y = np.zeros((100, 3)), np.zeros(100)
    with pytest.raises(ValueError, match=r"data is a tuple of 2 arrays.*list\(zip\(\*data\)\)"):
        dy.data.batches((X, y), 32)
    assert len(next(iter(dy.data.batches(list(zip(X, y)), 32)))) == 32
    assert len(list(dy.data.batches((np.zeros(3), np.zeros(4)), 1))) == 2  # of different lengths: two items
    assert len(list(dy.data.batches([X, X], 1))) == 2


class Frame:
    """A table like those of pandas, whose [0] is a column."""

    iloc, columns = (), ("a", "b")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, name: str) -> None:
        raise KeyError(name)


def test_tables_of_pandas() -> None:
    with pytest.raises(TypeError, match=r"not Frame; write data.to_dict\('records'\)"):
        dy.data.batches(Frame(), 2)
