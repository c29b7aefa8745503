"""The command ``python -m dynet_cy.port FILE...``: see `dynet_cy.hints.port`."""

from __future__ import annotations

from dynet_cy.hints.port import Finding, findings, main

__all__ = ["Finding", "findings", "main"]

if __name__ == "__main__":
    raise SystemExit(main())
