"""Timelines and reports: what ran when, as files for browsers."""

from __future__ import annotations

import gzip
import html.parser
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import dynet_cy as dy
from dynet_cy import profiling

STEP = """
import dynet_cy as dy
model = dy.ParameterCollection()
w = model.add_parameters((40, 40), name="w")
trainer = dy.SimpleSGDTrainer(model)

def step():
    dy.renew_cg()
    with dy.name_scope("encoder"):
        hs = [dy.tanh(w * dy.inputVector([1.0] * 40)) for _ in range(4)]
    dy.esum([dy.squared_norm(h) for h in hs]).backward()
    trainer.update()
"""


@pytest.fixture
def step():
    places: dict = {}
    exec(compile(STEP, "program.py", "exec"), places)
    return places["step"]


def measured(step, n: int = 2) -> profiling.Profile:
    with profiling.measure(timeline=True) as profile:
        for _ in range(n):
            step()
    dy.renew_cg()
    return profile


def test_spans(step) -> None:
    profile = measured(step)
    by_kind: dict[str, list[profiling.Span]] = {}
    for span in profile.timeline:
        by_kind.setdefault(span.kind, []).append(span)
        assert span.begin <= span.end
        assert span.thread == profile.timeline[0].thread
    assert profile.dropped == 0
    for kind in ("making nodes", "forward pass", "backward pass", "update", "scheduling", "weight gradients"):
        assert len(by_kind[kind]) == 2, kind
    assert [span.nodes for span in by_kind["making nodes"]] == [18, 18]  # w, and 4 x (input, matmul, tanh, norm), esum
    tanh = [span for span in by_kind["forward"] if span.op == "tanh"]
    assert len(tanh) == 2
    assert (tanh[0].nodes, tanh[0].bytes, tanh[0].shape, tanh[0].arguments) == (4, 4 * 40 * 4, "{40}", ("{40}",))
    assert tanh[0].origins == (("program.py", 10, "<listcomp>" if sys.version_info < (3, 12) else "step"),)
    assert tanh[0].scope == "encoder"
    assert tanh[0].held >= tanh[0].in_use > 0
    assert len([span for span in by_kind["backward"] if span.op == "tanh"]) == 2
    # Batches lie within their passes, and passes do not overlap.
    inside = [(span, "forward pass") for span in by_kind["forward"] + by_kind["scheduling"]]
    inside += [(span, "backward pass") for span in by_kind["backward"] + by_kind["weight gradients"]]
    for span, kind in inside:
        assert any(outer.begin <= span.begin and span.end <= outer.end for outer in by_kind[kind]), span
    tops = [span for kind in ("making nodes", "forward pass", "backward pass", "update") for span in by_kind[kind]]
    tops.sort(key=lambda span: span.begin)
    assert all(a.end <= b.begin for a, b in zip(tops, tops[1:]))
    assert sum(span.end - span.begin for span in by_kind["forward"]) == pytest.approx(
        sum(row.seconds for row in profile if not row.backward), abs=1e-8
    )


def test_nothing_is_kept_otherwise(step) -> None:
    with profiling.measure(lines=True) as profile:
        step()
    assert profile.timeline == []
    with pytest.raises(ValueError, match="measure it with measure"):
        profile.save_timeline("never.json")
    assert not Path("never.json").exists()
    dy.renew_cg()


def test_one_at_a_time(step) -> None:
    with profiling.measure(timeline=True) as outer:
        with (
            pytest.raises(RuntimeError, match="a timeline is being measured already"),
            profiling.measure(timeline=True),
        ):
            pass
        step()
    assert outer.timeline
    assert measured(step, 1).timeline  # and the next one can be measured


def test_threads(step) -> None:
    def other() -> None:
        with dy.ComputationGraph():
            dy.tanh(dy.inputVector([1.0])).value()

    with profiling.measure(timeline=True) as profile:
        threads = [threading.Thread(target=other) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        step()
    dy.renew_cg()
    assert len({span.thread for span in profile.timeline}) == 3
    for thread in {span.thread for span in profile.timeline}:
        assert "forward pass" in {span.kind for span in profile.timeline if span.thread == thread}


def test_file(step, tmp_path: Path) -> None:
    profile = measured(step)
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
    assert {name for event in events if event["ph"] == "C" for name in event["args"]} == {"in use, MiB", "held, MiB"}
    profile.save_timeline(tmp_path / "timeline.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "timeline.json.gz").read_bytes())) == whole


def test_join(step, tmp_path: Path) -> None:
    one, two, both = tmp_path / "1.json", tmp_path / "2.json.gz", tmp_path / "both.json"
    measured(step).save_timeline(one)
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
    whole["otherData"]["machine"] = "another"  # whose clock is another one
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
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
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
        assert len(exchanges) == 6  # what each rank has, and the sums
        for event in exchanges:
            assert any(u["ts"] <= event["ts"] and event["ts"] + event["dur"] <= u["ts"] + u["dur"] + 1 for u in updates)
        assert len([event for event in own if event["name"] == "gather"]) == 1


# ---- the report -----------------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Whether tags are closed as they were opened, and what is fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag not in {"meta", "link", "img"}:
            self.open.append(tag)
        self.fetched += [value for name, value in attrs if name in {"src", "href"}]

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def flame(text: str, name: str) -> list:
    return json.loads(re.search(rf'getElementById\("{name}"\), (.*?)\);</script>', text)[1])


def paths(part: list, before: tuple[str, ...] = ()) -> dict[tuple[str, ...], float]:
    name, ms, _, parts = part
    found = {(*before, name): ms}
    for one in parts:
        found.update(paths(one, (*before, name)))
    return found


def test_report(step, tmp_path: Path) -> None:
    profile = measured(step)
    report = tmp_path / "report.html"
    profile.save_report(report, title="Steps <1 & 2>")
    text = report.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert "http" not in text
    assert "<title>Steps &lt;1 &amp; 2&gt;</title>" in text
    ops = paths(flame(text, "ops"))
    assert ("all", "forward", "encoder", "tanh", "{40} from {40}") in ops
    assert ("all", "backward", "weight gradients") in ops
    forward = sum(row.seconds for row in profile if not row.backward)
    assert ops["all", "forward"] == pytest.approx(1e3 * forward, abs=1e-3)
    lines = paths(flame(text, "lines"))
    assert any(path[1] == "program.py" and path[-1] == "tanh (gradient)" for path in lines if len(path) > 1)
    assert lines[("all",)] == pytest.approx(1e3 * sum(row.seconds for row in profile.lines), abs=1e-3)
    assert '<svg class="memory"' in text
    assert "<td>encoder</td>" in text


def test_report_of_lines_with_tags(tmp_path: Path) -> None:
    """Lines of the program stand in the page as they are, and do not end its script."""
    program = tmp_path / "program.py"
    program.write_text("def step(dy):\n    return dy.tanh(dy.inputVector([1.0])).value()  # </script><b>\n", "utf-8")
    places: dict = {}
    exec(compile(program.read_text(encoding="utf-8"), str(program), "exec"), places)
    with profiling.measure(lines=True) as profile:
        dy.renew_cg()
        places["step"](dy)
    dy.renew_cg()
    profile.save_report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count("</script>") == text.count("<script>")
    assert any(path[-2].endswith("# </script><b>") for path in paths(flame(text, "lines")) if len(path) > 2)


def test_report_without_a_timeline(step, tmp_path: Path) -> None:
    with profiling.measure() as profile:
        step()
    dy.renew_cg()
    profile.save_report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ("all", "forward", "tanh") in paths(flame(text, "ops"))
    assert "measure(timeline=True) adds it" in text
    assert "measure(lines=True) adds it" in text
    profiling.Profile().save_report(tmp_path / "empty.html")
    assert "Nothing was measured" in (tmp_path / "empty.html").read_text(encoding="utf-8")
