"""Paths for building packages with compiled ops; docs/custom-op.md has an example."""

from __future__ import annotations

from pathlib import Path

__all__ = ["get_cython_path", "get_include"]

_PACKAGE = Path(__file__).resolve().parent


def get_include() -> str:
    """The folder of the C headers, for `include_dirs` of an extension.

    Example:
        >>> import os
        >>> os.path.exists(os.path.join(dy.get_include(), "dynet_cy", "op.h"))
        True
    """
    for root in (_PACKAGE, _PACKAGE.parent):
        if (root / "include" / "dynet_cy" / "op.h").exists():
            return str(root / "include")
    raise FileNotFoundError(f"the headers are neither in {_PACKAGE} nor beside it")


def get_cython_path() -> str:
    """The folder in which Cython finds `dynet_cy/extension.pxd`, for `include_path` of `cythonize`.

    Example:
        >>> import os
        >>> os.path.exists(os.path.join(dy.get_cython_path(), "dynet_cy", "extension.pxd"))
        True
    """
    return str(_PACKAGE.parent)
