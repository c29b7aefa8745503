"""A web service under load: `dy.Server`, a thread per request, one request at a time, and PyTorch in micro-batches.

    python serving.py --hidden 512 --torch PYTHON --json serving.json

Each is the web application of `examples/serving/`.  It tags and parses with the networks of `examples/tagger.py` (a
BiLSTM) and `examples/transition_parser.py` (a BiLSTM with two layers, whose states choose the actions), with random
weights.  All services give the same answers, and each runs in its own process.  1 to 256 clients on the loopback
load them in turns, for some seconds each.  Without a rate, each client sends its next request as soon as it has its
answer, so that the service is always busy; with a rate, requests arrive at random times (Poisson).  PyTorch collects
requests for 5 ms, pads them, and makes each step of the parser for all of them at once.  PYTHON is an interpreter with
torch, starlette, uvicorn and dynet_cy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
for folder in ("examples", "examples/serving"):
    sys.path.insert(0, str(HERE.parent / folder))

import client  # noqa: E402

MODES = ["server", "threads", "single", "torch"]
TITLES = {
    "server": "dy.Server",
    "threads": "dynet_cy, a thread per request",
    "single": "dynet_cy, one request at a time",
    "torch": "PyTorch, padded micro-batches of 5 ms",
}
WAIT = 0.005  # seconds during which PyTorch collects requests
LARGEST = 64  # requests in a micro-batch
TAGS, RELATIONS = 17, 45


# -- services ------------------------------------------------------------------------------------


class Analyser:
    """Tags and parses a sentence."""

    def __init__(self, tagging: Any, parser: Any) -> None:
        self.tagging, self.parser = tagging, parser

    def __call__(self, words: list[str]) -> dict:
        from dynet_cy.data import ConlluSentence

        tags = self.tagging.tag_one(words, {})
        heads, relations = self.parser.parse_one(ConlluSentence(words, upos=tags))
        return {"words": words, "tags": tags, "heads": heads, "relations": relations}


def make_analyser(hidden: int) -> Any:
    import tagger
    import transition_parser

    words = dict.fromkeys(client.WORDS, 100)
    tags = [f"T{i}" for i in range(TAGS)]
    spec: dict[str, Any] = {"dropout": 0.0, "word_dropout": 0.0, "seed": 1, "hidden": hidden, "word_dim": 100}
    spec.update(words={word.lower(): 100 for word in words}, frequent=words)
    tagging = tagger.Tagger({**spec, "letters": {"a": 1}, "tags": tags, "letter_dim": 8, "letter_hidden": 50})
    spec.update(
        tags=dict.fromkeys(tags, 1), relations=[f"r{i}" for i in range(RELATIONS)], explore=0.0, tag_column="UPOS"
    )
    parser = transition_parser.Parser({**spec, "tag_dim": 32, "layers": 2, "mlp_dim": hidden})
    rng = np.random.default_rng(1)
    for pc in (tagging.pc, parser.pc):
        for p in [*pc.parameters_list(), *pc.lookup_parameters_list()]:
            p_shape = p.shape()
            bound = 1.0 if len(p_shape) < 2 or p.__class__.__name__ == "LookupParameters" else 1.5 * p_shape[1] ** -0.5
            values = rng.uniform(-bound, bound, p_shape).astype(np.float32)
            p.init_from_array(values) if hasattr(p, "init_from_array") else p.set_value(values)
    return Analyser(tagging, parser)


def server_answer(hidden: int, width: int) -> Callable[[list[str]], Awaitable[dict]]:
    import dynet_cy as dy

    server = dy.Server(make_analyser(hidden), width=width)
    return lambda words: server.call_async(words)


def threads_answer(hidden: int, count: int) -> Callable[[list[str]], Awaitable[dict]]:
    """Answers in threads that wait for requests, which costs less than a new thread for each."""
    import dynet_cy as dy

    analyser, threads = make_analyser(hidden), ThreadPoolExecutor(count)

    def run(words: list[str]) -> dict:
        dy.renew_cg(forward_only=True)
        return analyser(words)

    return lambda words: asyncio.get_running_loop().run_in_executor(threads, run, words)


class TorchAnalyser:
    """The same network with the same weights; sentences are padded and parsed in step."""

    def __init__(self, analyser: Any) -> None:
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.torch, self.analyser = torch, analyser
        tagging, parser = analyser.tagging, analyser.parser

        def tensor(p: Any) -> Any:
            return torch.tensor(p.as_array().astype(np.float32))

        def lstm(pairs: list[tuple[Any, Any]], inputs: int) -> Any:
            hidden = tagging.spec["hidden"]
            module = torch.nn.LSTM(inputs, hidden, len(pairs), batch_first=True, bidirectional=True)
            i, f, o, g = np.arange(4 * hidden).reshape(4, hidden)
            order = np.concatenate([i, f, g, o])
            for layer, pair in enumerate(pairs):
                for suffix, builder in zip(("", "_reverse"), pair):
                    wx, wh, b = (p.as_array().astype(np.float32) for p in builder.get_parameters()[0])
                    b = b.copy()
                    b[hidden : 2 * hidden] += 1
                    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                    for name, array in zip(names, (wx, wh, b, np.zeros_like(b))):
                        getattr(module, f"{name}_l{layer}{suffix}").data = torch.tensor(array[order])
            module.flatten_parameters()
            return module.eval()

        self.tag_words, self.tag_forms = tensor(tagging.word_vectors), tensor(tagging.frequent_vectors)
        inputs = tagging.spec["word_dim"] + 2 * tagging.spec["letter_hidden"]
        self.tag_reader = lstm(tagging.reader.builder_layers, inputs)
        self.tag_w, self.tag_b = tensor(tagging.W), tensor(tagging.b)
        self.parse_words, self.parse_tags = tensor(parser.inputs.word_vectors), tensor(parser.inputs.tag_vectors)
        self.root, self.nothing = tensor(parser.root), tensor(parser.nothing)
        self.parse_reader = lstm(parser.reader.builder_layers, parser.inputs.dim)
        self.looks = torch.cat([tensor(p) for p in parser.looks], 1)
        self.bias, self.choose, self.choose_bias = map(tensor, (parser.bias, parser.choose, parser.choose_bias))

    def read(self, reader: Any, inputs: list[Any]) -> Any:
        rnn = self.torch.nn.utils.rnn
        lengths = self.torch.tensor([len(x) for x in inputs])
        packed = rnn.pack_padded_sequence(rnn.pad_sequence(inputs, True), lengths, True, enforce_sorted=False)
        return rnn.pad_packed_sequence(reader(packed)[0], True)[0]

    def __call__(self, batch: list[list[str]]) -> list[dict]:
        from dynet_cy.data import ArcHybrid

        torch, tagging, parser = self.torch, self.analyser.tagging, self.analyser.parser
        with torch.inference_mode():
            inputs = []
            for words in batch:
                rows = [tagging.words[word.lower()] for word in words]
                forms = [tagging.frequent[word] for word in words]
                inputs.append(torch.cat([self.tag_words[rows], self.tag_forms[forms]], 1))
            best = (self.read(self.tag_reader, inputs) @ self.tag_w.T + self.tag_b).argmax(2).numpy()
            names = tagging.spec["tags"]
            tags = [[names[tag] for tag in row[: len(words)]] for words, row in zip(batch, best)]
            inputs = []
            for words, row in zip(batch, tags):
                rows = [parser.inputs.words[word.lower()] for word in words]
                labels = [parser.inputs.tags[tag] for tag in row]
                vectors = torch.cat([self.parse_words[rows], self.parse_tags[labels]], 1)
                inputs.append(torch.cat([self.root[None], vectors]))
            states = self.read(self.parse_reader, inputs)
            states = torch.cat([self.nothing.expand(len(batch), 1, -1), states], 1)  # at 0: no word
            found = [ArcHybrid(len(words)) for words in batch]
            going = [i for i, now in enumerate(found) if not now.over()]
            while going:
                places = []
                for i in going:
                    now = found[i]
                    stack = [word + 1 for word in now.stack[:-4:-1]]
                    places.append([*stack, *[0] * (3 - len(stack)), now.next + 1 if now.next <= now.length else 0])
                seen = states[torch.tensor(going)[:, None], torch.tensor(places)].flatten(1)
                hidden = torch.relu(seen @ self.looks.T + self.bias)
                scores = (hidden @ self.choose.T + self.choose_bias).numpy()
                for i, values in zip(going, scores):
                    found[i].apply(parser.actions[found[i].best(values, parser.actions)])
                going = [i for i in going if not found[i].over()]
        return [
            {"words": words, "tags": row, "heads": now.heads[1:], "relations": now.relations[1:]}
            for words, row, now in zip(batch, tags, found)
        ]


def torch_answer(hidden: int) -> Callable[[list[str]], Awaitable[dict]]:
    analyser, threads = TorchAnalyser(make_analyser(hidden)), ThreadPoolExecutor(1)
    waiting: list[tuple[list[str], asyncio.Future]] = []
    come = asyncio.Event()
    tasks: list[asyncio.Task] = []

    async def batches() -> None:
        while True:
            await come.wait()
            await asyncio.sleep(WAIT)
            batch, waiting[:] = waiting[:LARGEST], waiting[LARGEST:]
            if not waiting:
                come.clear()
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(threads, analyser, [words for words, _ in batch])
            for (_, future), answer in zip(batch, answers):
                future.set_result(answer)

    async def answer(words: list[str]) -> dict:
        if not tasks:
            tasks.append(asyncio.create_task(batches()))
        future = asyncio.get_running_loop().create_future()
        waiting.append((words, future))
        come.set()
        return await future

    return answer


def serve(mode: str, hidden: int, port: int) -> None:
    import service
    import uvicorn

    from dynet_cy.serving import web

    make = {
        "server": lambda: server_answer(hidden, 256),
        "threads": lambda: threads_answer(hidden, 256),
        "single": lambda: threads_answer(hidden, 1),
        "torch": lambda: torch_answer(hidden),
    }
    answer = make[mode]()
    statistics: Any = dict  # which nothing requests here
    app = web.application("analyse", lambda text: answer(service.split(text)), statistics, lambda: None)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


# -- load ----------------------------------------------------------------------------------------


class Service:
    """A service in its own process."""

    def __init__(self, mode: str, python: str, hidden: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.mode = mode
        command = [python, __file__, "--serve", mode, "--port", str(self.port), "--hidden", str(hidden)]
        self.process = subprocess.Popen(command)
        end = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{mode}: the service has not started") from None
                time.sleep(0.1)

    def load(self, texts: list[str], clients: int, rate: float, seconds: float) -> dict:
        before = self.cpu_seconds()
        found = asyncio.run(client.load("127.0.0.1", self.port, texts, clients, rate, seconds))
        cpu = (self.cpu_seconds() - before) / max(found["statuses"].get(200, 0), 1)
        return {"mode": self.mode, "clients": clients, "arrivals": rate, "cpu": cpu, **found}

    def cpu_seconds(self) -> float:
        """CPU time that the process has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def same_answers(services: list[Service], texts: list[str]) -> None:
    """Raise an error if a service's answers differ from the first one's, except a few, which rounding may change."""

    async def ask(port: int) -> list[dict]:
        connection = client.Client("127.0.0.1", port)
        found = [json.loads((await connection.ask(text))[1]) for text in texts]
        connection.close()
        return found

    answers = [asyncio.run(ask(one.port)) for one in services]
    for one, own in zip(services[1:], answers[1:]):
        others = sum(a != b for a, b in zip(answers[0], own))
        if others > len(texts) // 20:
            raise RuntimeError(f"{one.mode}: {others} of {len(texts)} answers differ from those of {services[0].mode}")


def measure(args: argparse.Namespace) -> list[dict]:
    modes = [mode for mode in args.modes if mode != "torch" or args.torch]
    services = [Service(mode, args.torch if mode == "torch" else sys.executable, args.hidden) for mode in modes]
    texts = client.sentences(300, 1)
    found = []
    try:
        same_answers(services, texts[:40])
        for one in services:
            one.load(texts, 16, 0.0, 2)  # warm-up: threads are started, memory is allocated
        loads = [(clients, 0.0) for clients in args.clients] + [(256, rate) for rate in args.rates]
        for clients, rate in loads:
            rounds: dict[str, list[dict]] = {mode: [] for mode in modes}
            for _ in range(args.rounds):
                for one in services:
                    rounds[one.mode].append(one.load(texts, clients, rate, args.seconds))
            for mode in modes:
                best = min(rounds[mode], key=lambda result: result["p99"] if rate else -result["rate"])
                best.pop("answers")
                found.append(best)
                print(row(best), flush=True)
    finally:
        for one in services:
            one.close()
    return found


def row(found: dict) -> str:
    arrivals = f"{found['arrivals']:g}/s" if found["arrivals"] else "full"
    times = " | ".join(f"{1e3 * found[p]:.1f}" for p in ("p50", "p95", "p99", "cpu"))
    other = {status: n for status, n in found["statuses"].items() if status != 200}
    note = f" {other}" if other else ""
    return f"| {TITLES[found['mode']]} | {found['clients']} | {arrivals} | {found['rate']:.1f} | {times} |{note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--hidden", type=int, default=512, help="of each direction of the LSTMs")
    add("--modes", nargs="+", choices=MODES, default=MODES)
    add("--torch", metavar="PYTHON", help="a Python with torch; without it PyTorch is left out")
    add("--clients", type=int, nargs="*", default=[1, 4, 16, 64, 256])
    add("--rates", type=float, nargs="*", default=[1.0, 4.0], help="requests a second, with 256 clients")
    add("--seconds", type=float, default=8.0)
    add("--rounds", type=int, default=2, help="the best one counts, as other programs may disturb some")
    add("--json", type=Path, help="write the results to this file")
    add("--serve", choices=MODES, help=argparse.SUPPRESS)
    add("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.hidden, args.port)
        return
    columns = ["service", "clients", "arrivals", "answers/s", "p50 ms", "p95 ms", "p99 ms", "CPU ms/answer"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    found = measure(args)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
