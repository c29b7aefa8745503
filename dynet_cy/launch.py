"""Start several processes that train together.

    python -m dynet_cy.launch -n 4 train.py ARGS

Also installed as the command ``dynet-cy-launch``. What workers are told stands in the variable ``DYNET_CY_LAUNCH``, as
words ``name=value``:

- ``pid``: the worker's own process, so that its children do not take themselves for it
- ``rank``, ``size``, ``mode`` ("sync" or "async"), ``backend`` ("shared" or "mpi")
- ``parent``: the launcher's process
- ``fd``: descriptor of the shared memory (backend "shared")
"""

from __future__ import annotations
