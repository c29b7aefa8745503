"""Every row of the table of ops in both libraries: shapes, all forms of values, gradients, updated parameters."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from extra_cases import CASES, Case
from libraries import (
    VALUE_TOL,
    argument,
    both,
    counts,
    differences,
    dynet,
    evaluate,
    public_functions,
)
from purpose import DIFFERENCES, REFUSES, unmeant

pytestmark = pytest.mark.peer

# Functions that tests in these files compare, besides those in the rows.
ELSEWHERE = {
    "HAVE_CUDA": "test_show_peer.py",
    "available_devices": "test_show_peer.py",
    "cg": "test_graph_peer.py",
    "cg_checkpoint": "test_graph_peer.py",
    "cg_revert": "test_graph_peer.py",
    "cg_version": "test_graph_peer.py",
    "const_parameter": "test_model_peer.py",
    "contract3d_1d": "test_differences_peer.py",
    "dump_cg": "test_show_peer.py",
    "forward": "test_graph_peer.py",
    "get_device_info": "test_show_peer.py",
    "init": "test_show_peer.py",
    "init_from_params": "test_show_peer.py",
    "load": "test_saving_peer.py",
    "load_generator": "test_saving_peer.py",
    "lookup": "test_model_peer.py",
    "lookup_batch": "test_model_peer.py",
    "npvalues": "test_graph_peer.py",
    "parameter": "test_model_peer.py",
    "print_text_graphviz": "test_show_peer.py",
    "renew_cg": "test_graph_peer.py",
    "reset_random_seed": "test_random_peer.py",
    "save": "test_saving_peer.py",
    "to_device": "test_show_peer.py",
    "values": "test_graph_peer.py",
}
# Random functions that no setting makes deterministic in both libraries.
RANDOM_ONLY = {"random_gumbel": "test_random_peer.py"}

# Functions of DyNet that cannot be called, and why.
DEAD = {
    "inputMatrix": "raises a DeprecationWarning whatever the filters say",
    "matInput": "raises a DeprecationWarning whatever the filters say",
    "print_graphviz": "an error without --dynet-viz, with which DyNet has no parameters",
}


def purpose(case: Case, sizes, named: bool) -> set[str]:
    """The kinds of intended differences."""
    return set().union(*(d.kinds for d in DIFFERENCES if d.covers(case.id, sizes, named)))


def outcome(case: Case, sizes, named: bool) -> set[str]:
    """The kinds of differences between DyNet's result and ours; ours must not be an error."""
    samples = case.sample(np.random.default_rng(7), sizes)
    theirs, ours = both(named)
    mine = evaluate(ours, case.build, samples)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            other = evaluate(theirs, case.build, samples)
    except Exception:
        return {REFUSES}
    return differences(other, mine, max(VALUE_TOL, case.tol / 2))


def functions_of(case: Case, sizes) -> set[str]:
    library = both()[1]
    library.renew_cg()
    xs = [argument(library, x) for x in case.sample(np.random.default_rng(0), sizes)]
    library.called.clear()
    case.build(library, xs)
    return library.called


def check(case: Case, named: bool) -> None:
    absent = sorted(n for n in functions_of(case, case.batch_sizes()[0]) if not hasattr(dynet, n))
    if absent:
        pytest.skip(f"DyNet has no {', '.join(absent)}")
    for sizes in case.batch_sizes():
        meant = purpose(case, sizes, named)
        found = outcome(case, sizes, named)
        where = f"{case.id} with batch sizes {sizes}"
        assert not unmeant(found, meant), f"{where}: {sorted(unmeant(found, meant))} differ"
        if REFUSES in meant:
            assert found == {REFUSES}, f"{where}: DyNet accepts it"
        elif any(d.certain for d in DIFFERENCES if d.covers(case.id, sizes, named)):
            assert found, f"{where}: no difference any more: update purpose.py and docs/differences.md"
        counts[
            "of both, different on purpose"
            if meant
            else "the same by keyword"
            if named
            else "rows and batch sizes compared"
        ] += 1


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_as_written(case: Case) -> None:
    check(case, named=False)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_by_keyword(case: Case) -> None:
    """All arguments by our names, with our defaults."""
    check(case, named=True)


def compared_functions() -> set[str]:
    """Functions in rows that give the same values in both libraries, as written or by keyword."""
    found: set[str] = set()
    for case in CASES:
        ways = [(s, purpose(case, s, named)) for s in case.batch_sizes() for named in (False, True)]
        sizes = [s for s, meant in ways if not meant & {REFUSES, "value", "dim"}]
        if sizes:
            found |= functions_of(case, sizes[0])
    return found


def test_every_function_is_compared() -> None:
    compared = compared_functions()
    public = set(public_functions())
    for name, file in {**ELSEWHERE, **RANDOM_ONLY}.items():
        text = (Path(__file__).parent / file).read_text()
        assert f".{name}" in text or f'"{name}"' in text, f"{file} does not compare {name}"
    assert sorted(public - compared - set(ELSEWHERE) - set(RANDOM_ONLY)) == sorted(DEAD)
    assert sorted(set(ELSEWHERE) & compared) == [], "in rows already"
    counts["functions of both libraries"] = len(public)
    counts["functions compared by rows"] = len(public & compared)
    counts["functions not compared, as DyNet's cannot be called"] = len(DEAD)
    counts["functions compared elsewhere"] = len(ELSEWHERE) + len(RANDOM_ONLY)


def test_every_difference_is_met() -> None:
    for d in DIFFERENCES:
        for pattern in d.rows:
            one = type(d)(d.document, (pattern,), d.kinds, d.where, d.only_as_written)
            used = any(one.covers(case.id, sizes, False) for case in CASES for sizes in case.batch_sizes())
            assert used, f"{pattern} of {d.document} is no row"
