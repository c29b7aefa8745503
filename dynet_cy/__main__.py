"""``python -m dynet_cy``: information about this installation, about files and about programs. See docs/command-line.md."""

from dynet_cy.commands import main

if __name__ == "__main__":
    raise SystemExit(main())
