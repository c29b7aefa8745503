"""Large tables on several devices, with updates of all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import dynet_cy as dy
from dynet_cy.model.parameters import deferred_updates

Tables = list[dy.LookupParameters]


def trained_tables(
    make_trainer: Callable[[dy.ParameterCollection], dy.Trainer],
    places: Sequence[str],
    shape: tuple[int, int],
    before: Callable[[Tables], None] = lambda tables: None,
) -> tuple[list[np.ndarray], list[int], dy.Trainer]:
    """Twelve clipped updates of a table of at least 801 rows on each device, and the number that each has deferred.

    Args:
        make_trainer: makes the trainer of a collection.
        places: the devices, one for each table.
        shape: of each table.
        before: is called with the tables before the first update.
    """
    rng = np.random.default_rng(7)
    model = dy.ParameterCollection()
    tables = [model.lookup_parameters_from_numpy(rng.normal(size=shape), device=place) for place in places]
    before(tables)
    trainer = make_trainer(model)
    trainer.set_clip_threshold(0.5)
    trainer.set_sparse_updates(False)
    for step in range(12):
        dy.renew_cg()
        parts = [dy.squared_norm(t[i]) for t in tables for i in (step, 3, 800 - 2 * step)]
        dy.esum([dy.to_device(e, "CPU") for e in parts]).backward()
        trainer.update()
    return [t.as_array() for t in tables], [deferred_updates(t) for t in tables], trainer
