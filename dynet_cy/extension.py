"""Paths for building packages with compiled ops; docs/custom-op.md has an example."""

from __future__ import annotations

import os

__all__ = ["get_cython_path", "get_include"]

_PACKAGE = os.path.dirname(os.path.realpath(__file__))


def get_include() -> str:
    """The folder of the C headers, for `include_dirs` of an extension.

    Example:
        >>> import os
        >>> os.path.exists(os.path.join(dy.get_include(), "dynet_cy", "op.h"))
        True
    """
    for root in (_PACKAGE, os.path.dirname(_PACKAGE)):
        folder = os.path.join(root, "include")
        if os.path.exists(os.path.join(folder, "dynet_cy", "op.h")):
            return folder
    raise FileNotFoundError(f"the headers are neither in {_PACKAGE} nor beside it")


def get_cython_path() -> str:
    """The folder in which Cython finds `dynet_cy/extension.pxd`, for `include_path` of `cythonize`.

    Example:
        >>> import os
        >>> os.path.exists(os.path.join(dy.get_cython_path(), "dynet_cy", "extension.pxd"))
        True
    """
    return os.path.dirname(_PACKAGE)
