"""Child processes of a rank are no ranks, and do not disturb the training."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from parallel import jobs

PROGRAM = """
import json, os, sys
import dynet_cy as dy

m = dy.ParameterCollection()
w = m.add_parameters((3, 3), init=0.5)
table = m.add_lookup_parameters((20, 3), init=0.1)
trainer = dy.parallel.wrap(dy.SimpleSGDTrainer(m, 0.01))


def loss(scale, row):
    dy.renew_cg()
    return scale * dy.squared_norm(w) + dy.squared_norm(table[row])


def child():
    # Its own gradients, also in a row that no rank uses, and an update of its own copy.
    loss(100, 7).backward()
    other = dy.SimpleSGDTrainer(m, 0.1)
    if dy.parallel.mode() == "sync":
        other.update()
    said = []
    calls = {
        "update": trainer.update,
        "barrier": dy.parallel.barrier,
        "gather": lambda: dy.parallel.gather(1),
        "wrap": lambda: dy.parallel.wrap(other),
        "shard": lambda: list(dy.parallel.shard(range(4))),
    }
    for name in sys.argv[2:]:
        try:
            loss(1, 1).backward()
            calls[name]()
        except dy.parallel.ParallelError as error:
            said.append([name, str(error)])
    return said


said = None
for i in range(3):
    loss(1, i + dy.parallel.rank()).backward()
    if sys.argv[1] == "forks" and (i == 1 or dy.parallel.mode() == "sync"):
        reading, writing = os.pipe()
        if not os.fork():
            os.write(writing, json.dumps(child()).encode())
            os._exit(0)
        os.wait()
        said = json.loads(os.read(reading, 100000))
    trainer.update()
    dy.parallel.barrier()
found = {"w": w.as_array().tolist(), "table": table.as_array().tolist(), "said": said}
with open(f"{sys.argv[1]}-{dy.parallel.rank()}.json", "w") as file:
    json.dump(found, file)
"""


def run(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> list[dict]:
    (folder / "forking.py").write_text(PROGRAM)
    result = jobs.launch(folder, folder / "forking.py", *arguments, options=options)
    assert result.code == 0, result.err
    return [json.loads((folder / f"{arguments[0]}-{rank}.json").read_text()) for rank in range(2)]


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_children_change_their_own_copy(tmp_path: Path) -> None:
    """A fork between backward and update, while gradients of all ranks are in shared memory, changes nothing."""
    calls = ["update", "barrier", "gather", "wrap", "shard"]
    alone, forking = run(tmp_path, "alone"), run(tmp_path, "forks", *calls)
    for rank in range(2):
        for what in ("w", "table"):
            assert forking[rank][what] == alone[rank][what]
        assert [name for name, _ in forking[rank]["said"]] == calls
        for _, message in forking[rank]["said"]:
            assert f"this is a child of rank {rank}, not the process that the launcher has started" in message


def test_asynchronous_children(tmp_path: Path) -> None:
    """In asynchronous mode, children update the shared parameters with their own gradients."""
    ranks = run(tmp_path, "forks", "update", "barrier", options=("--mode", "async"))
    for found in ranks:
        assert [name for name, _ in found["said"]] == ["barrier"]
        assert max(found["table"][7]) < 0.09999, "only children used it"
        assert found["table"][8] == ranks[0]["table"][8] == [pytest.approx(0.1)] * 3
