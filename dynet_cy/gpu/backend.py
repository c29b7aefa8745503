"""The backend as a whole: importing it loads all GPU ops, the executor and the memory of devices.

CUDA is not looked for before `device_count` or `open_device` is called.
"""

from __future__ import annotations

# derived: modules, by tools/derive.py
from dynet_cy.gpu import (  # type: ignore[attr-defined]  # noqa: F401 - register
    conv,
    custom,
    elementwise,
    executor,
    memory,
    products,
    reduce,
    shape,
    softmax,
)

# end of modules
from dynet_cy.gpu.driver import device_count, open_device

__all__ = ["device_count", "open_device"]
