"""How far data-parallel training scales: a formula, and a simulation that is checked against two processes.

    python benchmarks/scaling.py                              # the tables of docs/lab/scaling.md, to the terminal
    python benchmarks/scaling.py --write docs/lab/scaling.md  # put them into the page
    python benchmarks/scaling.py --network 'mine 20 5.0'      # another network: latency in us, gigabytes per second

It reads `benchmarks/scaling.json`, which has for each workload the fields of `Workload`, measured on one machine, and
a description of the machine in "measured_on".  `python benchmarks/processes.py --scaling benchmarks/scaling.json`
measures and writes them; `--machine WORDS` here adds the description.  docs/lab/scaling.md explains the model and cites
the sources of its parts.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np

MEASURED = Path(__file__).with_name("scaling.json")
PROCESSES = (2, 8, 64, 512)
BEGIN, END = "<!-- begin: {} -->", "<!-- end: {} -->"


@dataclass(frozen=True)
class Workload:
    """Measurements of a workload.  Times are mean wall times of one process per update, in milliseconds."""

    compute_ms: float
    """Building the graph, forward and backward for one batch, with no other process running."""
    compute_2_ms: float
    """The same while a second process does it too: they share caches and memory."""
    spread: float
    """Standard deviation of `compute_2_ms` among the ranks of one update, over its mean: batches differ."""
    update_ms: float
    """The trainer's rule."""
    exchange_ms: float
    """The exchange between two processes of one host, measured after both have arrived."""
    dense_bytes: float
    """The size of gradients that are exchanged as a whole."""
    sparse_bytes: float
    """The size of the rows of lookup tables that one process touches, with their indices."""
    table_bytes: float
    """The size of all rows of these tables."""
    one_ms: float
    """A whole update, measured with one process..."""
    two_ms: float
    """...and with two, which the simulation must reproduce."""


@dataclass(frozen=True)
class Network:
    """The network between hosts."""

    name: str
    latency_us: float
    gigabytes: float
    """Gigabytes per second, in each direction, per host."""

    @property
    def alpha(self) -> float:
        """Milliseconds until the first byte of a message arrives."""
        return self.latency_us / 1e3

    @property
    def beta(self) -> float:
        """Milliseconds per byte."""
        return 1e3 / (self.gigabytes * 1e9)


NETWORKS = [
    Network("1 Gb/s Ethernet", 50, 0.118),
    Network("10 Gb/s Ethernet", 30, 1.18),
    Network("25 Gb/s Ethernet with RDMA", 5, 2.9),
    Network("100 Gb/s InfiniBand", 1.5, 12),
]
MEMORY = 20.0  # gigabytes per second that all processes of a host together get in the exchange
GAMMA = 1e3 / 8e9  # milliseconds per byte to add received numbers to others: one core, from memory


# -- the formula ---------------------------------------------------------------------------------


def ring(n: float, hosts: int, net: Network) -> float:
    """Reduce-scatter and allgather around a ring: few bytes, many messages."""
    return 2 * (hosts - 1) * net.alpha + (hosts - 1) / hosts * n * (2 * net.beta + GAMMA)


def halving(n: float, hosts: int, net: Network) -> float:
    """Reduce-scatter by recursive halving, allgather by doubling (Rabenseifner): as few bytes, few messages."""
    return 2 * math.ceil(math.log2(hosts)) * net.alpha + (hosts - 1) / hosts * n * (2 * net.beta + GAMMA)


def doubling(n: float, hosts: int, net: Network) -> float:
    """Recursive doubling: fewest messages, each with all bytes."""
    return math.ceil(math.log2(hosts)) * (net.alpha + n * (net.beta + GAMMA))


def rows(m: float, hosts: int, net: Network) -> float:
    """Allgather of the rows of each host, and their sum."""
    return math.ceil(math.log2(hosts)) * net.alpha + (hosts - 1) * m * (net.beta + GAMMA)


def best(n: float, hosts: int, net: Network) -> float:
    """The allreduce that an MPI library would choose for the size."""
    return min(f(n, hosts, net) for f in (ring, halving, doubling)) if hosts > 1 and n else 0.0


def between(w: Workload, hosts: int, local: int, net: Network) -> float:
    """Milliseconds that the exchange between hosts takes."""
    if hosts == 1:
        return 0.0
    mine = min(local * w.sparse_bytes, w.table_bytes)
    return best(w.dense_bytes, hosts, net) + min(rows(mine, hosts, net), best(w.table_bytes, hosts, net))


def inside(w: Workload, local: int) -> float:
    """Milliseconds that the exchange inside a host takes: every process sums a part and reads all parts."""
    if local == 1:
        return 0.0
    traffic = local * 3 * (w.dense_bytes + w.sparse_bytes)
    return max(w.exchange_ms, traffic / (MEMORY * 1e6))


def batch(w: Workload, local: int) -> float:
    """Milliseconds of a batch."""
    return w.compute_ms if local == 1 else w.compute_2_ms


def waiting(w: Workload, processes: int, local: int) -> float:
    """Mean milliseconds for which a process waits for the slowest one if all begin together: the expected maximum of
    P normal numbers, by Blom's approximation (1958)."""
    p = processes
    return batch(w, local) * w.spread * NormalDist().inv_cdf((p - 0.375) / (p + 0.25)) if p > 1 else 0.0


def formula(w: Workload, hosts: int, local: int, net: Network) -> float:
    """Expected milliseconds of one update."""
    exchange = inside(w, local) + between(w, hosts, local, net)
    return batch(w, local) + waiting(w, hosts * local, local) + exchange + w.update_ms


# -- the simulation ------------------------------------------------------------------------------


def simulate(
    w: Workload, hosts: int, local: int, net: Network, updates: int = 400, overlap: float = 0.0, seed: int = 1
) -> float:
    """Mean milliseconds of one update, from simulated training.

    Times of batches are drawn one by one (log-normal, of the measured mean and spread).  Every process goes on when it
    has the result.  If a ring is the cheapest exchange between hosts, its messages are simulated one by one, so that
    a late host delays its neighbours only when they need its data.

    Args:
        overlap: share of the time of a batch during which the dense exchange between hosts can run beside it, from
            0, after backward, to about a half, as soon as gradients are complete.
    """
    rng = np.random.default_rng(seed)
    deviation = math.sqrt(math.log1p(w.spread**2))
    mean = batch(w, local)
    ready = np.zeros((hosts, local))
    sparse = between(replace(w, dense_bytes=0), hosts, local, net)
    dense = best(w.dense_bytes, hosts, net)
    by_ring = hosts > 1 and dense == ring(w.dense_bytes, hosts, net) < halving(w.dense_bytes, hosts, net)
    for _ in range(updates):
        took = mean * np.exp(rng.normal(-(deviation**2) / 2, deviation, ready.shape))
        arrived = (ready + took).max(axis=1) + inside(w, local)
        if by_ring:
            done = ring_of(arrived - overlap * mean, w.dense_bytes, net)
        else:
            done = np.full(hosts, (arrived - overlap * mean).max() + dense)
        done = np.maximum(done, arrived)
        if sparse:
            done[:] = done.max() + sparse
        ready = np.repeat((done + w.update_ms)[:, None], local, axis=1)
    return float(ready.mean()) / updates


def ring_of(start: np.ndarray, n: float, net: Network) -> np.ndarray:
    """The times at which the hosts of a ring finish, given those at which they begin; simulates each message."""
    hosts = len(start)
    part = n / hosts
    now = start
    for step in range(2 * (hosts - 1)):
        work = part * net.beta + (part * GAMMA if step < hosts - 1 else 0)
        now = np.maximum(now, np.roll(now, 1) + net.alpha) + work
    return now


# -- tables --------------------------------------------------------------------------------------


def read(path: Path) -> tuple[dict[str, Workload], str]:
    """The workloads by name, and a description of where they were measured."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    measured_on = stored.pop("measured_on", "an unknown machine")
    wanted = [field.name for field in fields(Workload)]
    found = {}
    for name, values in stored.items():
        missing = [field for field in wanted if field not in values]
        if missing:
            raise ValueError(f"{path}: workload {name} has no {', '.join(missing)}")
        found[name] = Workload(**{field: float(values[field]) for field in wanted})
    return found, measured_on


def check_table(workloads: dict[str, Workload], measured_on: str) -> list[str]:
    """Measured times of two processes on one host, and those predicted by the formula and the simulation."""
    lines = [
        f"Measured on: {measured_on}.",
        "",
        "| | batch, 1 process | batch, 2 at a time | spread | update | exchange | dense | rows | tables |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, w in workloads.items():
        lines.append(
            f"| {name} | {w.compute_ms:.2f} ms | {w.compute_2_ms:.2f} ms | {w.spread:.0%} | {w.update_ms:.2f} ms "
            f"| {w.exchange_ms:.2f} ms | {kilobytes(w.dense_bytes)} | {kilobytes(w.sparse_bytes)} "
            f"| {kilobytes(w.table_bytes)} |"
        )
    lines += [
        "",
        "| ms per update, 2 processes | measured | simulation | formula | speed-up measured | simulated |",
        "|---|---|---|---|---|---|",
    ]
    for name, w in workloads.items():
        simulated = simulate(w, 1, 2, NETWORKS[0], updates=4000)
        lines.append(
            f"| {name} | {w.two_ms:.2f} | {simulated:.2f} | {formula(w, 1, 2, NETWORKS[0]):.2f} "
            f"| {2 * w.one_ms / w.two_ms:.2f} | {2 * w.one_ms / simulated:.2f} |"
        )
    return lines


def kilobytes(n: float) -> str:
    return f"{n / 1024:,.0f} KiB"


def efficiency_table(workloads: dict[str, Workload], networks: list[Network], local: int) -> list[str]:
    """Efficiency by the simulation, and in parentheses by the formula."""
    wanted = [p for p in PROCESSES if p >= local]
    heads = " | ".join(f"{p} processes" for p in wanted)
    lines = [f"| {local} on a host | network | {heads} |", "|---|---|" + "---|" * len(wanted)]
    for name, w in workloads.items():
        for net in networks:
            cells = []
            for p in wanted:
                hosts = p // local
                ideal = w.compute_ms + w.update_ms
                simulated, expected = simulate(w, hosts, local, net), formula(w, hosts, local, net)
                cells.append(f"{ideal / simulated:.0%} ({ideal / expected:.0%})")
            lines.append(f"| {name} | {net.name} | {' | '.join(cells)} |")
    return lines


def tables(path: Path, networks: list[Network]) -> dict[str, list[str]]:
    workloads, measured_on = read(path)
    return {
        "measured": check_table(workloads, measured_on),
        "one process on a host": efficiency_table(workloads, networks, 1),
        "eight processes on a host": efficiency_table(workloads, networks, 8),
    }


def insert(page: str, made: dict[str, list[str]]) -> str:
    """Put tables between their marks."""
    for name, lines in made.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no marks {begin} and {end}")
        page = "\n".join([before + begin, "", *lines, "", end + after])
    return page


def network_of(text: str) -> Network:
    name, latency, gigabytes = text.rsplit(maxsplit=2)
    return Network(name, float(latency), float(gigabytes))


def main() -> None:
    parser = argparse.ArgumentParser(description="Work out how far data-parallel training scales.")
    parser.add_argument("--measured", type=Path, default=MEASURED, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--network", type=network_of, action="append", metavar="'NAME LATENCY_US GB_PER_S'")
    parser.add_argument("--machine", metavar="WORDS", help="description of the machine, to store in the file")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    args = parser.parse_args()
    if args.machine:
        stored = json.loads(args.measured.read_text(encoding="utf-8"))
        args.measured.write_text(json.dumps({**stored, "measured_on": args.machine}, indent=1) + "\n", encoding="utf-8")
    made = tables(args.measured, args.network or NETWORKS)
    if args.write:
        args.write.write_text(insert(args.write.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        print("\n\n".join("\n".join([f"## {name}", "", *lines]) for name, lines in made.items()))


if __name__ == "__main__":
    main()
