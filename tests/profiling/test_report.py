"""Reports: HTML pages made from a profile."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path

import pytest
from measured_steps import measured, train

import dynet_cy as dy
from dynet_cy import profiling


class Page(html.parser.HTMLParser):
    """Checks that tags are closed in order, and collects what a page loads from elsewhere."""

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


def test_report(tmp_path: Path) -> None:
    profile = measured()
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
    """Lines of the program are shown verbatim, and cannot end the script of the page."""
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


def test_report_without_a_timeline(tmp_path: Path) -> None:
    with profiling.measure() as profile:
        train()
    dy.renew_cg()
    profile.save_report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert ("all", "forward", "tanh") in paths(flame(text, "ops"))
    assert "measure(timeline=True) adds it" in text
    assert "measure(lines=True) adds it" in text
    profiling.Profile().save_report(tmp_path / "empty.html")
    assert "Nothing was measured" in (tmp_path / "empty.html").read_text(encoding="utf-8")
