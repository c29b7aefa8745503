"""Counts of what the engine does, and numbers that decide how it does it: for tests and measurements.

Names begin with those of the folder and the module: `"schedule.plan.made"`.
"""

import contextlib
import importlib
import operator

from libc.stdint cimport INT32_MAX, UINT64_MAX, uint64_t, uintptr_t

from dynet_cy.core.threads cimport Number

from dynet_cy.core.threads import _pause_at

cdef dict counts = {}                   # by name: the address, and what it was at the last reset
cdef dict tunables = {}                 # by name: the address, and the largest value


cdef int add_count(str name, const Number* at) except -1:
    counts[name] = <uintptr_t>at, 0
    return 0


cdef int add_tunable(str name, Number* at, uint64_t most=UINT64_MAX) except -1:
    tunables[name] = <uintptr_t>at, most
    return 0


def stats(of: str = "", reset: bool = False) -> dict[str, int]:
    """What the engine has counted, in all threads.

    Args:
        of: only counts of this folder or module, such as `"schedule.plan"`; or of a device that has been opened:
            `"gpu.0"`. Default: all.
        reset: whether these counts begin at zero again, after this call.

    Returns:
        The counts by name, without `of`.

    Raises:
        KeyError: there are none.

    Example:
        >>> from dynet_cy.core import engine
        >>> before = engine.stats("schedule.plan", reset=True)
        >>> dy.esum([dy.sqrt(dy.scalarInput(x)) for x in (4, 9)]).value()
        5.0
        >>> engine.stats("schedule.plan")
        {'made': 1, 'reused': 0}
        >>> engine.stats()["schedule.plan.made"]
        1
    """
    cdef uint64_t now
    found = {}
    start = f"{of}." if of else ""
    for name, (at, before) in list(counts.items()):
        if name.startswith(start):
            now = (<Number*><uintptr_t>at)[0]
            found[name[len(start):]] = now - before
            if reset:
                counts[name] = at, now
    if not found:
        raise KeyError(f"there are no counts of {of!r}; {_near(of, {name.rpartition('.')[0] for name in counts})}")
    return found


def tune(name: str, value: int) -> int:
    """Set a number that decides how the engine works, for passes that begin later, in all threads.

    Args:
        name: its name, `"folder.module.name"`.
        value: the number; 0 or 1 for what is off or on.

    Returns:
        The number before.

    Raises:
        KeyError: there is no such number.
        ValueError: it cannot have this value.

    Example:
        >>> from dynet_cy.core import engine
        >>> before = engine.tune("schedule.plan.most_plans", 0)  # no plan is kept
        >>> engine.tune("schedule.plan.most_plans", before)
        0
    """
    if name not in tunables and name.startswith("gpu."):        # modules for devices are imported when one is used
        with contextlib.suppress(ImportError, ValueError):
            importlib.import_module(f"dynet_cy.{name.rpartition('.')[0]}")
    if name not in tunables:
        raise KeyError(f"there is no {name!r} to tune; {_near(name, tunables)}")
    cdef Number* x
    cdef uint64_t before
    at, most = tunables[name]
    n = operator.index(value)
    if not 0 <= n <= most:
        raise ValueError(f"{name} must be between 0 and {most}, not {value!r}")
    x = <Number*><uintptr_t>at
    before = x[0]
    x[0] = n
    return before


@contextlib.contextmanager
def tuned(values: Mapping[str, int]) -> AbstractContextManager[None]:
    """Set numbers as `tune` does, by name, within a `with` block.

    Example:
        >>> from dynet_cy.core import engine
        >>> with engine.tuned({"schedule.plan.most_plans": 0}):
        ...     dy.scalarInput(2).value()
        2.0
    """
    before = {}
    try:
        for name, value in values.items():
            before[name] = tune(name, value)
        yield
    finally:
        for name, value in before.items():
            tune(name, value)


def _near(name, names):
    from difflib import get_close_matches

    near = get_close_matches(name, names, 3, 0.4) or sorted(names)
    return "similar names: " + ", ".join(near)


add_tunable("core.threads.pause", <Number*><uintptr_t>_pause_at, INT32_MAX)
