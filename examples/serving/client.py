"""Puts load on the web service of `service.py`, and prints how many answers came and how long they took.

    python client.py --clients 64 --rate 200 --seconds 20      # 200 requests a second at random times, from 64 clients
    python client.py --clients 64                              # each client sends as soon as it has its answer

Requests arrive at random times (Poisson), whether or not earlier ones have been answered; the next free client sends
each, and its time counts from its arrival.  Each client keeps one connection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

WORDS = ["the", "a", "dog", "cat", "service", "of", "in", "and", ",", "reads", "they", "Vienna", "1984", "not", "."]


class Client:
    """A connection to the service."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, sentence: str) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        body = sentence.encode()
        head = f"POST /analyse HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        return int(lines[0].split()[1]), await self.reader.readexactly(length)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def sentences(count: int, seed: int, mean: float = 18, longest: int = 100) -> list[str]:
    """Generate sentences with lengths as in texts: most below the mean, some far above it."""
    rng = random.Random(seed)
    lengths = [min(max(round(rng.gammavariate(3, mean / 3)), 1), longest) for _ in range(count)]
    return [" ".join(rng.choices(WORDS, k=length)) for length in lengths]


async def load(
    host: str, port: int, texts: list[str], clients: int, rate: float, seconds: float, seed: int = 1
) -> dict:
    """Send requests for some seconds, wait for all answers, and return counts and times in seconds.

    With a rate of 0, each client sends the next request as soon as it has its answer.
    """
    rng, times, statuses = random.Random(seed), [], Counter()
    answers: dict[str, bytes] = {}
    waiting: asyncio.Queue = asyncio.Queue()
    begun = time.perf_counter()

    async def send(client: Client, text: str, came: float) -> None:
        status, body = await client.ask(text)
        times.append(time.perf_counter() - came)
        statuses[status] += 1
        if status == 200 and answers.setdefault(text, body) != body:
            statuses["other answer than before"] += 1

    async def work() -> None:
        client = Client(host, port)
        try:
            if rate:
                while (request := await waiting.get()) is not None:
                    await send(client, *request)
            else:
                while (now := time.perf_counter()) < begun + seconds:
                    await send(client, rng.choice(texts), now)
        finally:
            client.close()

    async def arrive() -> None:
        at = begun
        while rate and (at := at + rng.expovariate(rate)) < begun + seconds:
            await asyncio.sleep(max(at - time.perf_counter(), 0))
            waiting.put_nowait((rng.choice(texts), at))
        for _ in range(clients):
            waiting.put_nowait(None)

    await asyncio.gather(arrive(), *(work() for _ in range(clients)))
    p50, p95, p99 = np.percentile(times, [50, 95, 99]).tolist() if times else [float("nan")] * 3
    per_second = statuses[200] / (time.perf_counter() - begun)
    return {"answers": answers, "statuses": dict(statuses), "rate": per_second, "p50": p50, "p95": p95, "p99": p99}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Load the web service.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--clients", type=int, default=16)
    add("--rate", type=float, default=0.0, help="requests a second; 0: as fast as the answers come")
    add("--seconds", type=float, default=10.0)
    add("--text", type=Path, metavar="FILE", help="one sentence per line, split into words; else sentences are made up")
    add("--seed", type=int, default=1)
    add("--show", action="store_true", help="print the first answer")
    args = parser.parse_args()
    try:
        texts = args.text.read_text(encoding="utf-8").splitlines() if args.text else sentences(500, args.seed)
        texts = [text for text in texts if text.strip()]
        found = asyncio.run(load(args.host, args.port, texts, args.clients, args.rate, args.seconds, args.seed))
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        sys.exit(f"client.py: {error}")
    except KeyboardInterrupt:
        sys.exit("client.py: interrupted")
    if args.show and found["answers"]:
        print(json.dumps(json.loads(next(iter(found["answers"].values()))), ensure_ascii=False))
    counts = ", ".join(f"{status}: {n}" for status, n in found["statuses"].items())
    print(
        f"{counts}; {found['rate']:.1f} answers/s, half within {1e3 * found['p50']:.1f} ms, 95 % within "
        f"{1e3 * found['p95']:.1f}, 99 % within {1e3 * found['p99']:.1f}"
    )


if __name__ == "__main__":
    main()
