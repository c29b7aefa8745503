"""Reports the numbers of comparisons with DyNet at the end of a run."""

from __future__ import annotations

import sys


def pytest_terminal_summary(terminalreporter) -> None:
    libraries = sys.modules.get("libraries")
    if libraries is not None and any(libraries.counts.values()):
        terminalreporter.section("compared with DyNet")
        for name, count in libraries.counts.items():
            terminalreporter.line(f"{count:6} {name}")
