"""Wrapping many trainers."""

from __future__ import annotations

import pytest
from parallel import jobs


def test_many_models(tmp_path) -> None:
    result = jobs.launch(tmp_path, "wrapping.py")
    assert result.code == 0, result.err
    lines = [line.partition("] ")[2].partition(" ") for line in result.out.splitlines()]
    used = [int(words) for what, _, words in lines if what == "used"]
    # Two gradients, new values and two states, of four megabytes each; they are freed, not kept for each model.
    assert min(used[:2]) > 19e6
    assert max(used) < 45e6
    values = [words for what, _, words in lines if what == "values"]
    assert len(values) == 2
    first, second = eval(values[0])
    assert first == second
    assert first[0] < 1
    said = [words for what, _, words in lines if what == "said"]
    assert sum("several wrapped trainers" in words for words in said) == 2
    assert sum("parameters need" in words for words in said) == 2


PROGRAM = """
import dynet_cy as dy

m = dy.ParameterCollection()
w = m.add_parameters(2, init=1.0)
trainer = dy.SimpleSGDTrainer(m)
if WRAPPED:
    trainer = dy.parallel.wrap(trainer)
for batch in dy.data.batches(range(5), 1, shard="join"):
    dy.renew_cg()
    dy.squared_norm(w).backward()
    trainer.update()
for item in dy.parallel.shard(range(3), uneven="keep"):
    pass
"""


@pytest.mark.parametrize("wrapped", [False, True])
def test_trainers_that_are_not_wrapped(tmp_path, wrapped: bool) -> None:
    """Processes that train separate models get a warning at the end of their share of the data."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("WRAPPED", str(wrapped)))
    result = jobs.launch(tmp_path, program)
    assert result.code == 0, result.err
    said = result.err.count(
        "RuntimeWarning: each of the 2 processes trains a model of its own on its share of the data"
    )
    assert said == (0 if wrapped else 2)  # one per rank; the second loop makes no updates


CHANGED_AT_THE_END = """
import dynet_cy as dy

m = dy.ParameterCollection()
w = m.add_parameters(2, init=1.0)
trainer = dy.parallel.wrap(dy.AdamWTrainer(m))
rank = dy.parallel.rank()
with dy.parallel.join(trainer):
    for _ in range(4 if rank else 1):
        dy.renew_cg()
        dy.squared_norm(w).backward()
        trainer.update()
        trainer._beta_1, trainer.weight_decay = (0.5, 0.25) if rank else (0.9, 0.01)
print("found", rank, trainer._beta_1, trainer.weight_decay, w.as_array().tolist())
"""


def test_constants_that_change_while_a_rank_has_no_data(tmp_path) -> None:
    """The rank without data adopts the new constants, like all settings."""
    program = tmp_path / "program.py"
    program.write_text(CHANGED_AT_THE_END)
    result = jobs.launch(tmp_path, program)
    assert result.code == 0, result.err
    first, second = sorted(line.partition("found ")[2] for line in result.out.splitlines() if "found " in line)
    assert first.startswith("0 0.5 0.25 ")
    assert first[2:] == second[2:]


DROPPED = """
import gc
import dynet_cy as dy

gc.disable()
for _ in range(2):
    m = dy.ParameterCollection()
    w = m.add_parameters(2, init=1.0)
    trainer = dy.parallel.wrap(dy.SimpleSGDTrainer(m))
    trainer.itself = trainer  # a cycle: the trainer is not freed when the name gets the next one
for _ in dy.parallel.shard(range(3)):
    dy.renew_cg()
    dy.squared_norm(w).backward()
    trainer.update()
"""


def test_trainers_that_were_dropped_do_not_count(tmp_path) -> None:
    """Shares of different lengths need one trainer; one that waits for the garbage collector is not a second one."""
    program = tmp_path / "program.py"
    program.write_text(DROPPED)
    result = jobs.launch(tmp_path, program)
    assert result.code == 0, result.err
