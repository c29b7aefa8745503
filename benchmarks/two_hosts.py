"""Two "hosts" on one machine: network namespaces connected by a veth pair, on which MPI trains as on two machines.

    sudo python benchmarks/two_hosts.py                        # train on one host and on two, and compare
    sudo python benchmarks/two_hosts.py --rate 1gbit --delay 50us --hidden 256      # if the kernel has netem

Each host has its own network and its own host name, and only the pair connects them.  MPI starts processes
on hosts by `ssh`; a replacement for it enters the namespace instead.  All namespaces are removed at the end.  Shared
memory between the two is switched off in MPI, which would otherwise notice that they are one machine.

It needs root, `ip`, `unshare`, `tc` for --rate and --delay, and mpi4py with MPICH or Open MPI.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PROGRAM = Path(__file__).resolve().parents[1] / "tests" / "parallel" / "programs" / "distributed.py"
ADDRESSES = ("10.77.13.1", "10.77.13.2")

SSH = """#!/bin/sh
# Stands in for ssh: [options] HOST COMMAND...
while [ "${1#-}" != "$1" ]; do
    case $1 in -[lpoiFbcDeEIJLmOQRSwW]) shift 2 ;; *) shift ;; esac
done
host=$1; shift
case $host in
    %s) space=%s ;;
    %s) space=%s ;;
    *) echo "no such host: $host" >&2; exit 255 ;;
esac
exec ip netns exec $space unshare --uts sh -c "hostname $space; $*"
"""

# For MPICH (UCX) and Open MPI: send messages over TCP, so that they use the veth pair.
OVER_TCP = {
    "UCX_TLS": "tcp,self",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": "10.77.13.0/24",
}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)}: {done.stderr.strip()}")
    return done


def mpiexec() -> str | None:
    """MPI's launcher: in the folder of this Python, or in PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def why_not() -> str:
    """The missing requirement of two hosts; "" if there is none."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "unshare", "hostname"):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    if mpiexec() is None:
        return "there is no mpiexec"
    name = f"dynet-try-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "netns", "exec", name, "unshare", "--uts", "hostname", name)
    except RuntimeError as error:
        return f"network namespaces are not allowed: {error}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


@dataclass
class Hosts:
    """Two running namespaces, set up by `two_hosts`."""

    spaces: tuple[str, str]
    ssh: Path

    def command(self, n: int, program: Sequence[str]) -> list[str]:
        """The command that runs a program with n processes, half of them on each host."""
        launcher = mpiexec()
        assert launcher is not None
        about = run(launcher, "--version").stdout
        if "Open MPI" in about:
            hosts = ",".join(f"{address}:{n // 2}" for address in ADDRESSES)
            words = [launcher, "--host", hosts, "--map-by", "node", "-n", str(n)]
            words += ["--prtemca", "plm_ssh_agent", str(self.ssh)]
            words += [word for name in [*OVER_TCP, "PYTHONPATH"] if name in os.environ for word in ("-x", name)]
        else:
            hosts = ",".join(f"{address}:{n // 2}" for address in ADDRESSES)
            words = [launcher, "-hosts", hosts, "-launcher", "ssh", "-launcher-exec", str(self.ssh), "-n", str(n)]
        inside = f"hostname {self.spaces[0]}; exec {shlex.join([*words, *program])}"
        return ["ip", "netns", "exec", self.spaces[0], "unshare", "--uts", "sh", "-c", inside]

    def bytes_sent(self) -> int:
        """Bytes sent over the pair so far, in both directions."""
        told = json.loads(run("ip", "-n", self.spaces[0], "-s", "-j", "link", "show", "veth0").stdout)
        counts = told[0]["stats64"]
        return int(counts["rx"]["bytes"] + counts["tx"]["bytes"])


@contextlib.contextmanager
def two_hosts(rate: str | None = None, delay: str | None = None) -> Iterator[Hosts]:
    """Set up the namespaces, and remove them at the end.

    Args:
        rate: limit of the pair in each direction, in the notation of `tc`, such as "1gbit".
        delay: of each packet, such as "50us".
    """
    spaces = (f"dynet-a-{os.getpid()}", f"dynet-b-{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        ssh = Path(folder) / "ssh"
        ssh.write_text(SSH % (ADDRESSES[0], spaces[0], ADDRESSES[1], spaces[1]))
        ssh.chmod(0o755)
        try:
            for space in spaces:
                run("ip", "netns", "add", space)
            run(*f"ip link add veth0 netns {spaces[0]} type veth peer name veth0 netns {spaces[1]}".split())
            for space, address in zip(spaces, ADDRESSES):
                run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "veth0")
                run("ip", "-n", space, "link", "set", "lo", "up")
                run("ip", "-n", space, "link", "set", "veth0", "up")
                if rate or delay:  # needs netem in the kernel
                    shape = ["delay", delay or "0us", *(["rate", rate] if rate else []), "limit", "100000"]
                    run("tc", "-n", space, "qdisc", "add", "dev", "veth0", "root", "netem", *shape)
            for space in spaces:
                until = time.monotonic() + 10
                while " UP " not in run("ip", "-n", space, "-br", "link", "show", "veth0").stdout:
                    if time.monotonic() > until:
                        raise RuntimeError("the veth pair does not come up")
                    time.sleep(0.05)
            yield Hosts(spaces, ssh)
        finally:
            for space in spaces:
                subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def train(command: Sequence[str], folder: Path, hosts: Hosts | None = None) -> tuple[dict, dict[str, np.ndarray]]:
    """Run the program; returns its output, and the parameters at the end."""
    begun = hosts.bytes_sent() if hosts else 0
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **OVER_TCP}, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}")
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"size"')))
    if hosts:
        told["network_bytes"] = hosts.bytes_sent() - begun
    with np.load(folder / "parameters.npz") as file:
        return told, dict(file)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on two hosts that are network namespaces, and on one.")
    add = parser.add_argument
    add("-n", type=int, default=2, help="processes, an even number (default: %(default)s)")
    add("--hidden", type=int, default=128, help="(default: %(default)s)")
    add("--updates", type=int, default=30, help="(default: %(default)s)")
    add("--rate", help="of the network, such as 1gbit")
    add("--delay", help="of the network, such as 50us")
    args = parser.parse_args()
    if reason := why_not():
        sys.exit(f"two_hosts.py: {reason}")
    if importlib.util.find_spec("dynet_cy") is None:  # it is not installed: use the build in the source tree
        os.environ.setdefault("PYTHONPATH", str(PROGRAM.parents[3]))
    # Open MPI does not start anything for root without these.
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    os.environ.update(OVER_TCP)
    with tempfile.TemporaryDirectory() as name, two_hosts(args.rate, args.delay) as hosts:
        folder = Path(name)
        program = [sys.executable, str(PROGRAM), name, str(args.hidden), str(args.updates)]
        results = {"one process": train(program, folder)}
        one_host = [str(mpiexec()), "-n", str(args.n), *program]
        results["one host"] = train(one_host, folder)
        results["two hosts"] = train(hosts.command(args.n, program), folder, hosts)
        late = hosts.command(args.n, ["env", "DYNET_CY_OVERLAP=0", *program])
        results["two hosts, sums after backward"] = train(late, folder, hosts)
    reference = results["one process"][1]
    for what, (told, parameters) in results.items():
        largest = max(float(np.abs(parameters[x] - reference[x]).max()) for x in reference)
        print(f"{what}: {json.dumps(told)}, largest difference from one process {largest:.2g}")


if __name__ == "__main__":
    main()
