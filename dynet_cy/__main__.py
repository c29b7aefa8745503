"""``python -m dynet_cy``: this installation, files, and plans of programs. See docs/command-line.md."""

from dynet_cy.commands import main

if __name__ == "__main__":
    raise SystemExit(main())
