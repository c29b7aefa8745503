"""``python -m dynet_cy``: what this installation is, and what is in files. See docs/command-line.md."""

from dynet_cy.commands import main

if __name__ == "__main__":
    raise SystemExit(main())
