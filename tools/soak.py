"""Runs random programs for a long time: results are recomputed in other ways, and memory must stay flat.

    python tools/soak.py --minutes 60

A round is one random program of one kind (`ROUNDS`).  It depends only on the seed and the number of the round, so
`--round N` repeats it.  Values are compared with NumPy in float64, gradients with finite differences of it, and both
with other schedules, other threads, saved and loaded models, fresh processes and jobs of several processes.  With
``--gpu emulated`` some programs run on the emulated driver of tools/gpu as well, with ``--gpu real`` on GPU:0.  The
exit status is 0 if nothing differed and memory was flat after the first fifth of the time.  The rounds are in
soak_rounds/, by subject.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections import Counter

import numpy as np
from soak_rounds.concurrent import interrupts, sharing, threads
from soak_rounds.maps import changing_maps, maps
from soak_rounds.processes import ENDINGS, FILE, beside, endings, fresh, job, processes, repeat, saves
from soak_rounds.programs import _stop, check
from soak_rounds.requests import builders_that_drop, mixed_requests, shared_batches
from soak_rounds.sizes import PAGE, calls, huge, offsets, sizes
from soak_rounds.training import frozen, gpu, saving, training
from soak_rounds.values import (
    anomalies,
    builders,
    cached_plans,
    changes,
    errors,
    out_of_memory,
    reverts,
    values_and_gradients,
)

import dynet_cy as dy

# Memory growth allowed after the first fifth of the time: allocators keep freed memory.
MOST_GROWTH = 24 << 20
# The kinds of rounds, with their relative frequencies.
ROUNDS = [
    (values_and_gradients, 8), (cached_plans, 2), (anomalies, 2), (out_of_memory, 2), (training, 4), (frozen, 2),
    (saving, 1), (reverts, 3), (errors, 3), (maps, 2), (threads, 2), (builders, 3), (interrupts, 1), (changes, 4),
    (changing_maps, 4), (sharing, 2), (sizes, 4), (offsets, 4), (calls, 4), (huge, 0.5), (fresh, 0.03),
    (mixed_requests, 4), (shared_batches, 2), (builders_that_drop, 2), (processes, 0.03), (beside, 0.03),
    (endings, 0.03),
]  # fmt: skip


def add_gpu(kind):
    """Add rounds that run on a GPU."""
    if kind == "emulated":
        sys.path.insert(0, os.path.join(os.path.dirname(FILE), "gpu"))
        from emulate import environment

        os.environ.update(environment())
        os.environ.setdefault("EMU_STRICT", "1")
    if "GPU:0" not in dy.available_devices():
        raise SystemExit(f"there is no GPU:0; devices: {', '.join(dy.available_devices())}")
    ROUNDS.append((gpu, 1))


def drawn(seed, number):
    """The kind of a round, and its random generator."""
    rng = np.random.default_rng([seed, number])
    weights = np.array([weight for _, weight in ROUNDS])
    return ROUNDS[rng.choice(len(ROUNDS), p=weights / weights.sum())][0], rng


def run_round(seed, number):
    """Run a round; returns its kind."""
    kind, rng = drawn(seed, number)
    kind(rng)
    dy.renew_cg()
    return kind.__name__


def run_apart(seed, number):
    """Run a round in a process of its own, whose end by a signal is a failure as any other; returns its kind."""
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run_round(seed, number)
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    check(code >= 0, f"the process was ended by signal {-code}")
    check(code == 0, "see above")
    return drawn(seed, number)[0].__name__


def memory():
    """Bytes of memory that the process holds after freeing all that it can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def show(fraction, counts, used, begun):
    """The progress bar, on one line of a terminal."""
    if sys.stderr.isatty() or fraction >= 1:
        bar = ("#" * int(30 * fraction)).ljust(30, ".")
        end = "\n" if fraction >= 1 else ""
        sys.stderr.write(f"\r[{bar}] {100 * fraction:5.1f} %  {sum(counts.values()):,} rounds  {used >> 20} MiB{end}")
    else:
        minutes = (time.monotonic() - begun) / 60
        sys.stderr.write(
            f"{minutes:6.1f} min  {100 * fraction:5.1f} %  {sum(counts.values()):,} rounds  {used >> 20} MiB\n"
        )
    sys.stderr.flush()


def soak(minutes, seed, first=0, options=(), apart=False):
    """Run rounds for this many minutes; returns the number of failures."""
    begun = time.monotonic()
    end = begun + 60 * minutes
    counts, failed, failures, samples = Counter(), Counter(), 0, []
    number, next_sample, next_line = first, begun, begun
    while (at := time.monotonic()) < end:
        try:
            counts[(run_apart if apart else run_round)(seed, number)] += 1
        except Exception:
            failures += 1
            failed[drawn(seed, number)[0].__name__] += 1
            again = " ".join(["tools/soak.py", f"--seed {seed} --round {number}", *options])
            sys.stderr.write(f"\nround {number} failed; run it alone: {again}\n")
            traceback.print_exc()
            if failures >= 10 and not apart:
                break
        number += 1
        if at >= next_sample:
            samples.append((at - begun, memory()))
            next_sample = at + minutes * 60 / 200
        if at >= next_line:
            show((at - begun) / (60 * minutes), counts, samples[-1][1], begun)
            next_line = at + (0.5 if sys.stderr.isatty() else 60)
    samples.append((time.monotonic() - begun, memory()))
    show(1, counts, samples[-1][1], begun)
    late = [used for passed, used in samples if passed > 12 * minutes]
    # Some rounds need more memory, so compare minima over many samples: leaked memory is in all of them.
    part = len(late) // 4
    growth = min(late[-part:]) - min(late[:part]) if part else 0
    print(", ".join(f"{name} {n}" for name, n in counts.most_common()))
    if failed:
        print("failed:", ", ".join(f"{name} {n} of {n + counts[name]}" for name, n in failed.most_common()))
    print(
        f"seed {seed}: {sum(counts.values()):,} rounds, {failures} failures; memory {late[0] >> 20} MiB after a fifth "
        f"of the time, {late[-1] >> 20} at the end, {max(u for _, u in samples) >> 20} at most"
    )
    if growth > MOST_GROWTH:
        print(f"memory has grown by {growth:,} bytes")
        failures += 1
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="drawn if it is not given")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--round", type=int, default=None, help="run only this round")
    parser.add_argument(
        "--apart", action="store_true", help="each round in a process of its own, to go on after crashes"
    )
    parser.add_argument("--gpu", choices=["emulated", "real"], help="programs on GPU:0 as well")
    parser.add_argument("--repeat", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--saves", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--ending", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    if args.repeat is not None:
        print(repeat(*args.repeat))
        return 0
    if args.job is not None:
        job(int(args.job[0]), args.job[1])
        return 0
    if args.saves is not None:
        saves(int(args.saves[0]), args.saves[1], int(args.saves[2]))
        return 0
    if args.ending is not None:
        ENDINGS[args.ending[0]](int(args.ending[1]))
        return 0
    if args.gpu:
        add_gpu(args.gpu)
    seed = int.from_bytes(os.urandom(4), "little") if args.seed is None else args.seed
    dy.config.set(random_seed=seed)
    if args.round is not None:
        print(run_round(seed, args.round))
        return 0
    return 1 if soak(args.minutes, seed, args.first, [f"--gpu {args.gpu}"] if args.gpu else [], args.apart) else 0


if __name__ == "__main__":
    sys.exit(main())
