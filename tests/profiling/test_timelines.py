"""Timeline files for browsers, and joining those of several processes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from measured_steps import STEP, measured

from dynet_cy import profiling


def test_file(tmp_path: Path) -> None:
    profile = measured()
    profile.save_timeline(tmp_path / "timeline.json")
    whole = json.loads((tmp_path / "timeline.json").read_text(encoding="utf-8"))
    events = whole["traceEvents"]
    batches = [event for event in events if event["ph"] == "X" and event["name"] == "tanh x 4"]
    assert len(batches) == 2
    args = batches[0]["args"]
    assert (args["nodes"], args["shape"], args["bytes"], args["scope"]) == (4, "{40}", 640, "encoder")
    assert args["lines"].startswith("program.py:10 in ")
    assert {event["pid"] for event in events} == {os.getpid()}
    for event in events:
        assert event["ph"] in "XMC"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] > 0
            assert event["tid"] >= 1
    assert {event["name"] for event in events if event["ph"] == "M"} >= {"process_name", "thread_name"}
    counted = {name for event in events if event["ph"] == "C" for name in event["args"]}
    assert counted == {"values, MiB", "gradients, MiB", "scratch, MiB", "held, MiB"}
    profile.save_timeline(tmp_path / "timeline.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "timeline.json.gz").read_bytes())) == whole


def test_join(tmp_path: Path) -> None:
    one, two, both = tmp_path / "1.json", tmp_path / "2.json.gz", tmp_path / "both.json"
    measured().save_timeline(one)
    whole = json.loads(one.read_text(encoding="utf-8"))
    begin = min(event["ts"] for event in whole["traceEvents"] if "ts" in event)
    for event in whole["traceEvents"]:
        event["pid"] = 7
        if "ts" in event:
            event["ts"] += 1e9
    two.write_bytes(gzip.compress(json.dumps(whole).encode()))
    profiling.join_timelines(both, one, two)
    joined = json.loads(both.read_text(encoding="utf-8"))["traceEvents"]
    assert {event["pid"] for event in joined} == {os.getpid(), 7}
    assert min(event["ts"] for event in joined if "ts" in event) == begin
    whole["otherData"]["machine"] = "another"  # with another clock
    two.write_bytes(gzip.compress(json.dumps(whole).encode()))
    profiling.join_timelines(both, one, two)
    joined = json.loads(both.read_text(encoding="utf-8"))["traceEvents"]
    for pid in (os.getpid(), 7):
        assert min(event["ts"] for event in joined if "ts" in event and event["pid"] == pid) == 0


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"traceEvents": []}', b"\x1f\x8b\x00"])
@pytest.mark.parametrize("name", ["part.json", "part.json.gz"])
def test_join_what_is_no_timeline(content: bytes, name: str, tmp_path: Path) -> None:
    part = tmp_path / name
    part.write_bytes(content)
    with pytest.raises(ValueError, match="join_timelines: .* is no timeline of dynet_cy"):
        profiling.join_timelines(tmp_path / "all.json", part)
    with pytest.raises(ValueError, match="no file to join"):
        profiling.join_timelines(tmp_path / "all.json")
    assert not (tmp_path / "all.json").exists()


def test_processes(tmp_path: Path) -> None:
    program = (
        STEP
        + """
import sys
from dynet_cy import profiling
trainer = dy.parallel.wrap(trainer)
with profiling.measure(timeline=True) as profile:
    for _ in range(3):
        step()
    dy.parallel.average(1.0)
profile.save_timeline(f"{dy.parallel.rank()}.json")
"""
    )
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "dynet_cy.launch", "-n", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    profiling.join_timelines(tmp_path / "all.json", tmp_path / "0.json", tmp_path / "1.json")
    events = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 of train.py", "rank 1 of train.py"]
    for rank in (0, 1):
        own = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
        updates = [event for event in own if event["name"] == "update"]
        exchanges = [event for event in own if event["name"] == "exchange"]
        assert len(updates) == 3
        assert len(exchanges) == 6  # the contribution of each rank, and the sums
        for event in exchanges:
            assert any(u["ts"] <= event["ts"] and event["ts"] + event["dur"] <= u["ts"] + u["dur"] + 1 for u in updates)
        assert len([event for event in own if event["name"] == "gather"]) == 1
