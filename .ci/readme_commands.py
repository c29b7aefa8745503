"""Print the commands of README.md: the lines of its ```sh blocks, one command per line."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def commands(text: str) -> list[str]:
    """The non-empty lines of every ```sh block of a Markdown text."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


if __name__ == "__main__":
    print("\n".join(commands(README.read_text(encoding="utf-8"))))
