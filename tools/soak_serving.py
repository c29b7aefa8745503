"""Runs a server under mixed load: no call may be lost, no answer may be wrong, and memory must stay flat.

    python tools/soak_serving.py --minutes 30

Threads and asyncio tasks send sentences of all lengths at random times to a network that decides step by step what
to compute next.  Some calls have a deadline, some are cancelled, some make the function fail, some do not wait for
space in the queue.  Meanwhile the model is replaced, and the server is paused and overloaded.  Each call must end
either with the answer that one of the models gives when it runs alone, or with the error that was provoked.  The exit
status is 0 if all calls did and memory was flat after the first fifth of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError

import numpy as np

import dynet_cy as dy

DIM, WORDS, SENTENCES, THREADS, TASKS = 32, 50, 200, 6, 24
MARGIN = 1e-3  # between the best and the second action of a sentence, so that rounding decides nothing
LONGEST = 60.0  # seconds that a call may take
MOST_GROWTH = 24 << 20  # memory growth allowed after the first fifth: allocators keep freed memory
PAGE = os.sysconf("SC_PAGE_SIZE")


class Model:
    """Reads a sentence with an LSTM, then steps through it by actions that depend on values: next, stay or skip one."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.pc = dy.ParameterCollection()
        self.table = self.pc.lookup_parameters_from_numpy(rng.normal(0, 1, (WORDS, DIM)))
        self.reader = dy.LSTMBuilder(1, DIM, DIM, self.pc)
        for parameter in self.pc.parameters_list():
            parameter.set_value(rng.normal(0, 0.3, parameter.shape()))
        self.step = self.pc.parameters_from_numpy(rng.normal(0, 0.3, (DIM, 2 * DIM)))
        self.choose = self.pc.parameters_from_numpy(rng.normal(0, 1, (3, DIM)))

    def __call__(self, sentence: list[int]) -> list[int]:
        return self.walk(sentence)[0]

    def walk(self, sentence: list[int]) -> tuple[list[int], float]:
        """The actions taken, and the smallest margin of a decision."""
        states = self.reader.initial_state().transduce([self.table[word] for word in sentence])
        state, place, actions, margin = states[0], 0, [], float("inf")
        while place < len(sentence) and len(actions) < 3 * len(sentence):
            state = dy.tanh(self.step * dy.concatenate([state, states[place]]))
            scores = (self.choose * state).npvalue()
            first, second = np.sort(scores)[:-3:-1]
            margin = min(margin, float(first - second))
            actions.append(int(scores.argmax()))
            place += (1, 0, 2)[actions[-1]]
            if place == 0 and len(actions) > len(sentence):
                break
        return actions, margin


class Fails(Exception):
    """The error that a call was asked to raise."""


class Load:
    """Sentences, the answers to them, and the results of calls."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.models = [Model(seed), Model(seed + 1)]
        self.sentences: list[list[int]] = []
        self.answers: list[list[list[int]]] = []
        while len(self.sentences) < SENTENCES:
            length = min(max(int(self.rng.gammavariate(3, 6)), 1), 80)
            sentence = [self.rng.randrange(WORDS) for _ in range(length)]
            found = []
            for model in self.models:
                dy.renew_cg(forward_only=True)
                found.append(model.walk(sentence))
            if min(margin for _, margin in found) > MARGIN:
                self.sentences.append(sentence)
                self.answers.append([actions for actions, _ in found])
        self.server = dy.Server(self.functions()[0], queue=64, width=32)
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.ended: Counter[str] = Counter()
        self.begun = 0
        self.wrong: list[str] = []

    def functions(self) -> list:
        def of(model: Model):
            def function(number: int, fails: bool = False) -> list[int]:
                actions = model(self.sentences[number])
                if fails:
                    raise Fails(number)
                return actions

            return function

        return [of(model) for model in self.models]

    def draw(self, rng: random.Random) -> tuple[str, int, tuple, dict]:
        """Draw a kind of call, and its arguments."""
        number = rng.randrange(SENTENCES)
        kind = rng.choices(["plain", "deadline", "cancel", "fails", "refusable"], [80, 5, 5, 5, 5])[0]
        arguments: tuple = (number, True) if kind == "fails" else (number,)
        options: dict = {"deadline": LONGEST}
        if kind == "deadline":
            options["deadline"] = rng.uniform(0.0005, 0.02)
        elif kind == "refusable":
            options["wait"] = False
        return kind, number, arguments, options

    def note(self, kind: str, number: int, result: object, error: BaseException | None) -> None:
        allowed = {
            "plain": (),
            "deadline": (TimeoutError,),
            "cancel": (CancelledError, asyncio.CancelledError),
            "fails": (Fails,),
            "refusable": (dy.ServerFull,),
        }[kind]
        returned = error is None and kind != "fails" and result in self.answers[number]
        right = returned or isinstance(error, allowed)
        with self.lock:
            self.ended[f"{kind}: {'returned' if error is None else type(error).__name__}"] += 1
            if not right:
                self.wrong.append(f"{kind} of sentence {number}: {result!r}, {error!r}")

    def thread(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.over.is_set():
            kind, number, arguments, options = self.draw(rng)
            with self.lock:
                self.begun += 1
            result, error = None, None
            try:
                if kind == "cancel":
                    call = self.server.submit(*arguments, **options)
                    threading.Timer(rng.uniform(0, 0.01), call.cancel).start()
                    result = call.result()
                else:
                    result = self.server(*arguments, **options)
            except (Exception, CancelledError) as raised:
                error = raised
            self.note(kind, number, result, error)
            del error
            time.sleep(rng.expovariate(200))

    async def task(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.over.is_set():
            kind, number, arguments, options = self.draw(rng)
            with self.lock:
                self.begun += 1
            result, error = None, None
            try:
                call = asyncio.ensure_future(self.server.call_async(*arguments, **options))
                if kind == "cancel":
                    await asyncio.sleep(rng.uniform(0, 0.01))
                    call.cancel()
                result = await call
            except (Exception, asyncio.CancelledError) as raised:
                error = raised
            self.note(kind, number, result, error)
            del error
            await asyncio.sleep(rng.expovariate(50))

    def tasks(self, seed: int) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(self.task(seed + k) for k in range(TASKS)))

        asyncio.run(all_of_them())

    def disturb(self, seed: int) -> None:
        """Replace the model, pause the server, and send more calls at once than fit into the queue."""
        rng, functions = random.Random(seed), self.functions()
        while not self.over.wait(rng.uniform(0.05, 0.5)):
            what = rng.randrange(3)
            if what == 0:
                self.server.reload(rng.choice(functions), wait=rng.random() < 0.3)
            elif what == 1:
                with self.server.paused():
                    time.sleep(rng.uniform(0, 0.02))
            else:
                numbers = [rng.randrange(SENTENCES) for _ in range(150)]
                with self.lock:
                    self.begun += len(numbers)
                for number, call in [(n, self.server.submit(n)) for n in numbers]:
                    self.note("plain", number, call.result(LONGEST), None)


def memory() -> int:
    """Bytes of memory that the process holds after freeing all that it can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def soak(minutes: float, seed: int) -> int:
    """Put load on a server for this many minutes; returns the number of failures."""
    begun, load, samples = time.monotonic(), Load(seed), []
    threads = [threading.Thread(target=load.thread, args=(seed + 100 + k,)) for k in range(THREADS)]
    threads += [threading.Thread(target=target, args=(seed + 200,)) for target in (load.tasks, load.disturb)]
    for thread in threads:
        thread.start()
    shown = begun
    try:
        while (passed := time.monotonic() - begun) < 60 * minutes and not load.wrong:
            time.sleep(min(minutes * 60 / 200, 10))
            samples.append((passed, memory()))
            if time.monotonic() > shown + 60:
                shown = time.monotonic()
                print(
                    f"{passed / 60:6.1f} min  {sum(load.ended.values()):,} calls  {samples[-1][1] >> 20} MiB",
                    flush=True,
                )
    finally:
        load.over.set()
        for thread in threads:
            thread.join(2 * LONGEST)
    hanging = sum(thread.is_alive() for thread in threads)
    found = load.server.statistics()
    load.server.close(timeout=LONGEST)
    late = [used for passed, used in samples if passed > 12 * minutes] or [memory()]
    # Memory use varies, so compare minima over many samples: leaked memory is in all of them.
    part = len(late) // 4
    growth = min(late[-part:]) - min(late[:part]) if part else 0
    ended = sum(load.ended.values())
    print(", ".join(f"{name} {n:,}" for name, n in sorted(load.ended.items())))
    print(found)
    print(
        f"seed {seed}: {ended:,} calls, {load.begun - ended} lost, {len(load.wrong)} wrong, {hanging} threads hang; "
        f"memory {late[0] >> 20} MiB after a fifth of the time, {late[-1] >> 20} at the end, grown by {growth:,} bytes"
    )
    for line in load.wrong[:10]:
        print(line)
    return len(load.wrong) + (load.begun - ended) + hanging + (growth > MOST_GROWTH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None, help="drawn if it is not given")
    args = parser.parse_args()
    seed = int.from_bytes(os.urandom(3), "little") if args.seed is None else args.seed
    return 1 if soak(args.minutes, seed) else 0


if __name__ == "__main__":
    sys.exit(main())
