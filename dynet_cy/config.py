"""Settings: from the command line, the environment, or `set`. DyNet's module `dynet_config`.

When dynet_cy is imported it reads options from ``sys.argv``, which it leaves unchanged, and environment variables; an
option takes precedence over a variable. `set` changes settings at any time.

===========================  ============================  ==================================================
option                       variable                      value
===========================  ============================  ==================================================
``--dynet-mem``              ``DYNET_CY_MEM``              limit on memory in megabytes; 0 (default) for none
``--dynet-seed``             ``DYNET_CY_SEED``             seed of random numbers; 0 draws one at random
``--dynet-autobatch``        ``DYNET_CY_AUTOBATCH``        0, 1 (default) or 2: see `set`
``--dynet-weight-decay``     ``DYNET_CY_WEIGHT_DECAY``     weight decay of collections; default 0
``--dynet-threads``          ``DYNET_CY_THREADS``          threads that work on one large product: see `set`
``--dynet-flush-denormals``  ``DYNET_CY_FLUSH_DENORMALS``  1 (default) or 0: see `set`
``--dynet-batch-requests``   ``DYNET_CY_BATCH_REQUESTS``   1 (default) or 0: see `set`
``--dynet-precision``        ``DYNET_CY_PRECISION``        ``float32`` (default), ``bf16`` or ``tf32``: see `set`
``--dynet-profiling``        ``DYNET_CY_PROFILING``        0 (default), 1 or 2: see `dynet_cy.profiling`
``--dynet-check``            ``DYNET_CY_CHECK``            (no value) `detect_anomaly` for the whole program
``--dynet-strict``           ``DYNET_CY_STRICT``           (no value) `dynet_cy.strict` for the whole program
``--dynet-devices``          ``DYNET_CY_DEVICES``          names such as ``CPU,GPU:0``; see below
``--dynet-gpus``             ``DYNET_CY_GPUS``             how many GPUs, from GPU:0 on; 0 (default) for none
``--dynet-gpu-ids``          ``DYNET_CY_GPU_IDS``          numbers of GPUs, such as ``0,2``
``--dynet-gpu``                                            (no value) GPU:0; in a job, see below
``--dynet-viz``                                            (no value) accepted: graphs can always be drawn
===========================  ============================  ==================================================

Graphs and collections are made on the default device: the first GPU that one of the options names, else the CPU. GPUs
need ``pip install 'dynet_cy[cuda]'`` and a driver.

Processes that train together divide the GPUs that the options name among themselves; ``--dynet-gpu`` means all GPUs of
the machine. Each process uses one: GPU number (local rank modulo number of GPUs) of those named. So with
``--dynet-devices GPU:1`` all of them use GPU:1.

``--dynet-check`` and ``--dynet-strict`` have no value; ``DYNET_CY_CHECK`` and ``DYNET_CY_STRICT`` are 1 or 0.

Options may be written with underscores (``--dynet_mem``), and with ``=`` before the value. If an option is given twice,
the last one counts. Unknown ones are left to the program, with a warning.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Optional

from dynet_cy import profiling as _profiling
from dynet_cy.core.devices import check_device, count_gpus
from dynet_cy.core.threads import is_dynet as follows_dynet
from dynet_cy.graph import expressions as _expressions
from dynet_cy.hints import strictness as _strictness
from dynet_cy.kernels import kernels as _kernels
from dynet_cy.kernels import pool as _pool
from dynet_cy.memory import arena as _arena
from dynet_cy.model import weight_decay as _weight_decay
from dynet_cy.parallel import runtime as _parallel
from dynet_cy.schedule import speculation as _speculation
from dynet_cy.watch import anomaly as _anomaly
from dynet_cy.watch import instruments as _watch

if TYPE_CHECKING:
    from argparse import ArgumentParser

__all__ = ["DynetParams", "add_options", "get", "gpu", "init", "init_from_params", "set", "set_gpu"]

_SWITCHES = {"check": _anomaly.switch, "strict": _strictness.switch}  # by settings that are True or False
_FLAGS = (*_SWITCHES, "gpu", "viz")  # options without a value
_VALUES = (
    *("mem", "seed", "autobatch", "weight-decay", "threads", "flush-denormals", "batch-requests", "precision"),
    *("profiling", "devices", "gpus", "gpu-ids"),
)

Mem = Optional[object]  # a number, or numbers in a string


def _megabytes(mem: object) -> int:
    """A limit in megabytes as bytes; several numbers, such as DyNet takes for its pools, are added up."""
    try:
        total = sum(float(part) for part in str(mem).split(","))
    except ValueError:
        raise ValueError(f"mem must be megabytes, or several numbers separated by commas, not {mem!r}") from None
    if not 0 <= total < 2**40:
        raise ValueError(f"mem must be between 0 and 2**40 megabytes, not {mem!r}")
    return int(total * 2**20)


def set(
    mem: str | int | float | None = None,
    random_seed: int | None = None,
    autobatch: int | None = None,
    profiling: int | None = None,
    weight_decay: float | None = None,
    shared_parameters: int | None = None,
    requested_gpus: int | None = None,
    gpu_mask: Sequence[int] | None = None,
    threads: int | None = None,
    flush_denormals: bool | None = None,
    check: bool | None = None,
    batch_requests: bool | None = None,
    precision: str | None = None,
    strict: bool | None = None,
) -> None:
    """Change settings; those that are None do not change.

    Args:
        mem: limit in megabytes on the memory of graphs and parameters; 0 for no limit. Graphs drop values
            and compute them again to stay below it (docs/memory.md); where that is too little, MemoryError is raised.
        random_seed: seed of all random numbers; 0 draws one at random.
        autobatch: 0 runs nodes in the order in which they were made, 1 batches them by agenda, 2 by depth.  A graph
            uses the new setting from its next renewal on; the current graph is renewed now if it is empty.
        profiling: 1 measures operations and writes a report to stderr when the process ends, 2 lists every batch
            as well, 0 does neither; see `dynet_cy.profiling`.
        weight_decay: the default for collections made from now on, at least 0; see
            `ParameterCollection.set_weight_decay`.
        shared_parameters: 1 lets the processes of a job of `dynet_cy.launch` change one copy of the parameters, as
            its ``--mode async`` does; set it before a trainer is wrapped.  0 does not change the mode.
        requested_gpus: how many GPUs to use, from GPU:0 on, which becomes the default device; 0 for the CPU.
        gpu_mask: for each GPU, 1 to use it or 0 not to.  The first one in use becomes the default device, or the CPU
            if there is none.  If `requested_gpus` is given too, only that many of them are used.
        threads: how many threads, 1 to 1024, work together on one large product.  0, the default, means one for each
            CPU that this process may use, but at most ``OMP_NUM_THREADS`` if that variable is set.  Results do not
            depend on it.
        flush_denormals: whether denormal numbers (below 1.2e-38), which can be a hundred times as slow as others on a
            CPU, count as 0 during forward, backward and updates, as arguments and as results; True by default.  The
            setting of the calling thread is restored afterwards.
        batch_requests: whether values that a loop asks for one by one are computed together, once the graph has seen
            the same requests before; True by default.  No effect if `autobatch` is 0.
        check: True checks values and gradients for numbers that are not finite, as `detect_anomaly` does in a block;
            False stops that.
        precision: the precision of matrix products: ``"float32"``, the default; ``"bf16"``, which rounds their
            factors to bfloat16, and accumulates in float32; or ``"tf32"``, which rounds them to TF32 on GPUs.  On the
            CPU only products with weights are rounded, that is with parameters that are matrices of at least 8,192
            numbers, and only with AVX-512-BF16.  Parameters, gradients, updates and files stay float32;
            docs/performance.md explains gains and losses.  The precision applies from the next pass on.
        strict: True raises an error where PyTorch or NumPy would mean something else, as `dynet_cy.strict` does in a
            block; False stops that.

    Raises:
        ValueError: a setting is out of range.
        RuntimeError: a requested GPU does not exist; shared parameters are set in a process that the launcher has not
            started; or neither the CPU nor a GPU has the precision, in which case no setting has changed.

    Example:
        >>> config.set(random_seed=3)
        >>> config.get()["seed"]
        3
    """
    _chosen.update({name: value for name, value in locals().items() if value is not None})
    if precision is not None:
        _kernels.check_precision(precision)
    if shared_parameters:
        _parallel.share_parameters()
    if gpu_mask is not None and any(gpu_mask):
        numbers = [i for i, used in enumerate(gpu_mask) if used]
        _use_gpus(numbers[:requested_gpus] if requested_gpus else numbers, f"gpu_mask={gpu_mask!r}")
    elif requested_gpus:
        _use_gpus(list(range(requested_gpus)), f"requested_gpus={requested_gpus!r}")
    elif requested_gpus is not None or gpu_mask is not None:
        _use_gpus([], "")
    if mem is not None:
        _arena.set_limit(_megabytes(mem))
    if random_seed is not None:
        _expressions.reset_random_seed(int(random_seed) or _kernels.random_bits())
    if autobatch is not None:
        _expressions.set_autobatching(autobatch)
    if profiling is not None:
        _profiling.set_level(profiling)
    if weight_decay is not None:
        _weight_decay.set_default_weight_decay(weight_decay)
    if threads is not None:
        _pool.set_threads(threads)
    if flush_denormals is not None:
        if flush_denormals not in (0, 1):
            raise ValueError(f"flush_denormals must be 0 or 1, not {flush_denormals!r}")
        _pool.flush_denormals(bool(flush_denormals))
    if batch_requests is not None:
        if batch_requests not in (0, 1):
            raise ValueError(f"batch_requests must be 0 or 1, not {batch_requests!r}")
        _speculation.switch(bool(batch_requests))
    if precision is not None:
        _kernels.set_precision(precision)
    for name, on in (("check", check), ("strict", strict)):
        if on is not None and bool(on) != _switched[name]:
            _SWITCHES[name](bool(on))
            _switched[name] = bool(on)


# The settings that the program has passed to `set`; `read_again` does not change them.
_chosen: dict[str, Any] = {}


# What `set` has switched on; blocks of `detect_anomaly` and `strict` may have done so too.
_switched = dict.fromkeys(_SWITCHES, False)


# The requested GPUs; the first is the default device.
_gpus: list[int] = []


def _use_gpus(numbers: list[int], what: str) -> None:
    """Open GPUs, in a job only this process's, and make the first the default device; the CPU if there is none."""
    numbers = _parallel.own_part(numbers)
    names = [f"GPU:{number}" for number in numbers]
    if _opened(names, f"dynet_cy.config: {what}") is None:
        numbers = []
    _gpus[:] = numbers
    _expressions.set_default_device(1 + numbers[0] if numbers else 0)


def _opened(names: Sequence[str], where: str) -> list[int] | None:
    """The numbers of devices that a setting names. None, with a warning, where a program that is written for DyNet asks
    for GPUs of a machine that has none: DyNet goes on without them."""
    global _told
    try:
        return [check_device(name, where) for name in names]
    except RuntimeError as error:
        if type(error).__name__ != "GpuUnavailable" or count_gpus() or not _is_for_dynet():
            raise
        if not _told:
            warnings.warn(f"{error}. The program goes on on the CPU", RuntimeWarning, stacklevel=2)
        _told = True
        return None


# Whether `_opened` has warned.
_told = False


def _is_for_dynet() -> bool:
    """Whether the program is written for DyNet: it is known to be, or this module is being imported for
    `dynet_cy.compat`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not follows_dynet():
        importing = frame.f_globals.get("__name__") in ("importlib._bootstrap", "runpy")
        if importing and "dynet_cy.compat" in map(frame.f_locals.get, ("name", "mod_name")):
            return True
        frame = frame.f_back
    return frame is not None


def get() -> dict[str, Any]:
    """The current settings: mem (megabytes, 0 for no limit), seed, autobatch, profiling, weight_decay, shared_params,
    requested_gpus, gpu_mask, threads, flush_denormals, check, batch_requests, precision, strict.

    Example:
        >>> config.get()["check"]
        False
    """
    return {
        "mem": _arena.limit() / 2**20,
        "seed": _kernels.seed(),
        "autobatch": _expressions.autobatching(),
        "profiling": _watch.level(),
        "weight_decay": _weight_decay.get_default_weight_decay(),
        "shared_params": int(_parallel.mode() == "async"),
        "requested_gpus": len(_gpus),
        "gpu_mask": [int(i in _gpus) for i in range(max(_gpus) + 1)] if _gpus else [],
        "threads": _pool.threads(),
        "flush_denormals": _pool.flushes_denormals(),
        "check": _switched["check"],
        "batch_requests": _speculation.is_on(),
        "precision": _kernels.precision(),
        "strict": _switched["strict"],
    }


def _one_gpu() -> list[int]:
    """The GPUs that "a GPU" may mean: the first one; in a job, all."""
    return list(range(count_gpus() or 1)) if _parallel.in_a_job() else [0]


def set_gpu(flag: bool = True) -> None:
    """Make GPU:0 (or the CPU, if `flag` is false) the default device. In a job it is this process's GPU: see above.

    Raises:
        RuntimeError: `flag` is true, and there is no GPU.

    Example:
        >>> config.set_gpu(False)
        >>> config.gpu()
        False
    """
    _chosen.update(requested_gpus=int(flag), gpu_mask=None)
    _use_gpus(_one_gpu() if flag else [], "set_gpu()")


def gpu() -> bool:
    """Whether a GPU is the default device.

    Example:
        >>> config.gpu()
        False
    """
    return bool(_gpus)


# ---- command line and environment --------------------------------------------


def _options(argv: Sequence[str]) -> dict[str, str]:
    """The --dynet options of a command line, by name with dashes."""
    found = {}
    i = 0
    while i < len(argv):
        word, equals, value = argv[i].partition("=")
        word = word.replace("_", "-")
        i += 1
        if not word.startswith("--dynet-"):
            continue
        name = word[len("--dynet-") :]
        if name not in _FLAGS and name not in _VALUES:
            warnings.warn(f"dynet_cy knows no option --dynet-{name}", RuntimeWarning, stacklevel=2)
            continue
        if name in _VALUES and not equals:
            if i == len(argv) or argv[i].startswith("--"):
                raise ValueError(f"--dynet-{name} needs a value")
            value = argv[i]
            i += 1
        found[name] = value
    return found


def add_options(parser: ArgumentParser) -> None:
    """Add the options of dynet_cy to a program's parser, so that it accepts them and ``--help`` lists them.

    dynet_cy has read them already when it was imported.

    Example:
        >>> import argparse
        >>> parser = argparse.ArgumentParser()
        >>> config.add_options(parser)
        >>> parser.parse_args(["--dynet-seed", "3"]).dynet_seed
        '3'
    """
    from argparse import SUPPRESS

    group = parser.add_argument_group("options of dynet_cy")
    for name in (*_VALUES, *_FLAGS):
        text = _HELP[name]
        if name in _VALUES:
            group.add_argument(f"--dynet-{name}", metavar="X", default=SUPPRESS, help=text)
        else:
            group.add_argument(f"--dynet-{name}", action="store_true", default=SUPPRESS, help=text)


_HELP = {
    "check": "look for numbers that are not finite",
    "strict": "raise an error where PyTorch or NumPy would mean something else",
    "gpu": "compute on a GPU",
    "viz": "no effect; DyNet has it",
    "mem": "megabytes of memory at most",
    "seed": "for random numbers",
    "autobatch": "0: run node by node; 1: batch what can run together; 2: by depth",
    "weight-decay": "for new collections",
    "threads": "for large products",
    "flush-denormals": "0 or 1: whether tiny numbers become 0",
    "batch-requests": "0 or 1: whether values that are asked for one by one are computed together",
    "precision": "float32, bf16 or tf32, of matrix products",
    "profiling": "1: print what took how long; 2: each batch too",
    "devices": "devices to use, such as CPU,GPU:1",
    "gpus": "how many GPUs",
    "gpu-ids": "their numbers",
}


def _number(options: Mapping[str, str], name: str, kind: type[int] | type[float]) -> Any:
    """The value of an option, or None."""
    if name not in options:
        return None
    try:
        return kind(options[name])
    except ValueError:
        raise ValueError(f"--dynet-{name} needs a number, not {options[name]!r}") from None


def _settings(options: Mapping[str, str]) -> dict[str, Any]:
    """Arguments for `set` from options."""
    gpus = _asked_for(options)
    if gpus is not None:
        options = {**options, "gpus": str(len(gpus))}
    for part in options.get("mem", "0").split(","):
        _number({"mem": part}, "mem", float)
    found: dict[str, Any] = {
        "mem": options.get("mem"),
        "random_seed": _number(options, "seed", int),
        "autobatch": _number(options, "autobatch", int),
        "weight_decay": _number(options, "weight-decay", float),
        "profiling": _number(options, "profiling", int),
        "threads": _number(options, "threads", int),
        "flush_denormals": _number(options, "flush-denormals", int),
        "batch_requests": _number(options, "batch-requests", int),
        "precision": options.get("precision"),
        "requested_gpus": _number(options, "gpus", int),
    }
    if gpus:
        found["gpu_mask"] = [int(i in gpus) for i in range(max(gpus) + 1)]
    for name in _SWITCHES:
        if name in options:
            found[name] = options[name] not in ("0", "off")
    return {name: value for name, value in found.items() if value is not None}


def _asked_for(options: Mapping[str, str]) -> list[int] | None:
    """The numbers of the GPUs that options name; None if only their count, or nothing, is given."""
    if options.get("gpu-ids"):
        names = [f"GPU:{part.strip()}" for part in options["gpu-ids"].split(",")]
        option = "--dynet-gpu-ids"
    elif options.get("devices"):
        names = [part.strip() for part in options["devices"].split(",")]
        option = "--dynet-devices"
    elif "gpu" in options:
        names, option = [f"GPU:{n}" for n in _one_gpu()], "--dynet-gpu"
    else:
        return None
    own = _parallel.own_part([name for name in dict.fromkeys(names) if name != "CPU"])
    numbers = _opened(own, option) or []
    return sorted({number - 1 for number in numbers if number})


def _from_command_line() -> dict[str, Any]:
    """Arguments for `set` from the options of the command line."""
    return _settings(_options(getattr(sys, "argv", [])[1:]))


def read_again() -> None:
    """Apply what has changed in ``sys.argv`` since its options were read; an option that is gone gets its default.

    Settings that the program has passed to `set` do not change.
    """
    before = dict(_read)
    _read.clear()
    _read.update(_from_command_line())
    without = {**_defaults, **_from_environment()}
    changed = [name for name in {**before, **_read} if before.get(name) != _read.get(name) and name not in _chosen]
    if changed:
        set(**{name: _read.get(name, without[name]) for name in changed})


def _from_environment() -> dict[str, Any]:
    variables = {name: os.environ.get("DYNET_CY_" + name.replace("-", "_").upper()) for name in (*_VALUES, *_SWITCHES)}
    return _settings({name: value for name, value in variables.items() if value is not None})


# ---- DyNet's objects ---------------------------------------------------------


class DynetParams:
    """Settings that are collected first and then applied by `init`.

    Settings that are not given keep their values.

    Example:
        >>> params = dy.DynetParams()
        >>> params.set_random_seed(3)
        >>> params.init()
        >>> config.get()["seed"]
        3
    """

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}

    def from_args(self, shared_parameters: bool | None = None) -> None:
        """Take settings from the options of the command line.

        Args:
            shared_parameters: see `set_shared_parameters`; None: no change

        Raises:
            ValueError: an option has an invalid value

        Example:
            >>> import sys
            >>> sys.argv = ["train.py", "--dynet-seed=3"]       # as if the program had been run this way
            >>> params = dy.DynetParams()
            >>> params.from_args()
            >>> params.init()
            >>> config.get()["seed"]
            3
        """
        self._settings.update(_from_command_line())
        if shared_parameters is not None:
            self.set_shared_parameters(shared_parameters)

    def from_config(self, conf: Mapping[str, Any]) -> None:
        """Take settings from a dictionary with the keys of `get`.

        Args:
            conf: the dictionary; settings that it does not have do not change

        Raises:
            KeyError: there is another key

        Example:
            >>> params = dy.DynetParams()
            >>> params.from_config({"seed": 3, "autobatch": 0})
            >>> params.init()
            >>> config.get()["autobatch"]
            0
        """
        names = {"seed": "random_seed", "shared_params": "shared_parameters"}
        for key in conf:
            if key not in get():
                raise KeyError(f"from_config: {key!r} is no setting; there are {', '.join(get())}")
        self._settings.update({names.get(key, key): value for key, value in conf.items()})

    def init(self) -> None:
        """Apply the settings: the same as ``dynet_cy.config.set(...)`` with them, with its errors.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_threads(1)
            >>> params.init()
            >>> config.get()["threads"]
            1
        """
        set(**self._settings)

    def set_mem(self, mem: int) -> None:
        """Set the limit on memory, in megabytes; 0 for none.

        Args:
            mem: megabytes; 0 for no limit.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_mem(100_000)
            >>> params.init()
            >>> config.get()["mem"]
            100000.0
        """
        self._settings["mem"] = int(mem)

    def set_random_seed(self, random_seed: int) -> None:
        """Set the seed of random numbers; 0 draws one at random.

        Args:
            random_seed: a whole number; 0 draws one at random.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_random_seed(3)
            >>> params.init()
            >>> config.get()["seed"]
            3
        """
        self._settings["random_seed"] = int(random_seed)

    def set_autobatch(self, autobatch: bool | int) -> None:
        """Set whether graphs are batched: True or 1 by agenda, 2 by depth, False or 0 not.

        Args:
            autobatch: 0, 1 or 2.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_autobatch(True)
            >>> params.init()
            >>> config.get()["autobatch"]
            1
        """
        self._settings["autobatch"] = int(autobatch)

    def set_profiling(self, profiling: int) -> None:
        """Set the level of profiling: see `set`.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_profiling(0)
            >>> params.init()
            >>> config.get()["profiling"]
            0
        """
        self._settings["profiling"] = int(profiling)

    def set_threads(self, threads: int) -> None:
        """Set how many threads work on one large product; 0 for as many as there are CPUs.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_threads(1)
            >>> params.init()
            >>> config.get()["threads"]
            1
        """
        self._settings["threads"] = int(threads)

    def set_flush_denormals(self, flush_denormals: bool) -> None:
        """Set whether denormal numbers count as 0: see `set`.

        Args:
            flush_denormals: whether denormal numbers count as zero.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_flush_denormals(False)
            >>> params.init()
            >>> config.get()["flush_denormals"]
            False
        """
        self._settings["flush_denormals"] = bool(flush_denormals)

    def set_precision(self, precision: str) -> None:
        """Set the precision of products, "float32", "bf16" or "tf32": see `set`.

        Args:
            precision: "float32", "bf16" or "tf32".

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_precision("float32")
            >>> params.init()
            >>> config.get()["precision"]
            'float32'
        """
        self._settings["precision"] = precision

    def set_check(self, check: bool) -> None:
        """Set whether values and gradients are checked: see `set`.

        Args:
            check: whether values and gradients are checked.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_check(True)
            >>> params.init()
            >>> config.get()["check"]
            True
        """
        self._settings["check"] = bool(check)

    def set_strict(self, strict: bool) -> None:
        """Set whether an error is raised where PyTorch or NumPy would mean something else: see `set`.

        Args:
            strict: whether it is.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_strict(False)
            >>> params.init()
            >>> config.get()["strict"]
            False
        """
        self._settings["strict"] = bool(strict)

    def set_weight_decay(self, weight_decay: float) -> None:
        """Set the weight decay of collections that are made after `init`, at least 0.

        Args:
            weight_decay: the rate, at least 0.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_weight_decay(0.5)
            >>> params.init()
            >>> dy.ParameterCollection().get_weight_decay()
            0.5
        """
        self._settings["weight_decay"] = float(weight_decay)

    def set_shared_parameters(self, shared_parameters: bool) -> None:
        """Set whether the processes of a job share parameters; see `set`.

        Args:
            shared_parameters: 1 to share them, 0 not to.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_shared_parameters(False)
            >>> params.init()
            >>> config.get()["shared_params"]
            0
        """
        self._settings["shared_parameters"] = bool(shared_parameters)

    def set_requested_gpus(self, requested_gpus: int) -> None:
        """Set how many GPUs to use, from GPU:0 on: see `set`.

        Args:
            requested_gpus: how many, 0 or more.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_requested_gpus(0)
            >>> params.init()
            >>> config.get()["requested_gpus"]
            0
        """
        self._settings["requested_gpus"] = int(requested_gpus)

    def set_gpu_mask(self, gpu_mask: Sequence[int]) -> None:
        """Set which GPUs to use, 1 or 0 for each: see `set`.

        Args:
            gpu_mask: a list with a 1 for each GPU to use and a 0 for each other.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_gpu_mask([0, 0])
            >>> params.init()
            >>> config.get()["gpu_mask"]
            []
        """
        self._settings["gpu_mask"] = list(gpu_mask)

    def set_cpu_mode(self) -> None:
        """Use no GPU.

        Example:
            >>> params = dy.DynetParams()
            >>> params.set_cpu_mode()
            >>> params.init()
            >>> config.get()["requested_gpus"]
            0
        """
        self._settings.update(requested_gpus=0, gpu_mask=[])


def init(shared_parameters: bool | None = None) -> None:
    """Read the options of the command line again and apply them. Importing dynet_cy does that already.

    Args:
        shared_parameters: see `set`

    Raises:
        ValueError: an option has an invalid value
        RuntimeError: `shared_parameters` is true, and the launcher has not started this process

    Example:
        >>> dy.init()
    """
    params = DynetParams()
    params.from_args(shared_parameters)
    params.init()


def init_from_params(params: DynetParams) -> None:
    """Apply settings: ``params.init()``.

    Example:
        >>> params = dy.DynetParams()
        >>> params.set_random_seed(4)
        >>> dy.init_from_params(params)
        >>> config.get()["seed"]
        4
    """
    params.init()


def _explain_in_parsers() -> None:
    """Let a parser of the program that rejects our options say how it accepts them."""
    from argparse import ArgumentParser

    error = ArgumentParser.error

    def explained(self: ArgumentParser, message: str) -> NoReturn:
        if "--dynet" in message:
            message += (
                "; dynet_cy has read its options itself: add dynet_cy.config.add_options(parser) before parse_args"
            )
        error(self, message)

    ArgumentParser.error = explained  # type: ignore[method-assign]


_defaults = {**get(), "random_seed": 0, "threads": 0}
_read = _from_command_line()
if _read:
    _explain_in_parsers()
set(**{"threads": 0, **_from_environment(), **_read})
_chosen.clear()
