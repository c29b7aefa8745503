"""``python -m dynet_cy``: information about this installation and about files. See docs/command-line.md."""

from dynet_cy.commands import main

if __name__ == "__main__":
    raise SystemExit(main())
