"""Programs modelled on those of DyNet's authors, in DyNet and dynet_cy, with sparse and dense updates of tables.

    python benchmarks/authors.py --dynet PYTHON [--programs NAME ...] [--rounds N] [--tiny]

The programs are those of github.com/neulab/dynet-benchmark, rewritten with its sizes: Adam, no clipping, one
example or minibatch per update.  Words are drawn by Zipf's law, with vocabularies and lengths of sentences as in the
data sets of the authors (SST, WikiNER, Penn Treebank).  With sparse updates only the rows used in a minibatch change;
with dense ones all rows of a table do, as Adam defines it.

Processes take turns; CPU time of an update on one thread, the mean of the rounds.  The losses of the first round must
be the same to 1e-4.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

import report
from compare import Child, same_losses
from workloads.common import Weights, Workload

UPDATES = 100  # in a round; dense updates are applied to all rows once in 512
FORMS = [f"{updates} {batching}" for updates in ("sparse", "dense") for batching in ("plain", "autobatch")]


class Program(Workload):
    """`dynet` returns a function that maps the number of an update to its loss."""

    items = 1
    vocabulary = 10_000
    tiny = {"vocabulary": 30, "mean": 5}


class Tagger(Program):
    title = "tagger"
    sizes = {"vocabulary": 30_000, "mean": 24, "tags": 9}
    letters = 0

    def prepare(self) -> None:
        self.data = [(s, [w % self.tags for w in s]) for s in self.sentences(10, self.mean, 80, self.vocabulary)]

    def spelling(self, word: int) -> list[int]:
        """The letters of a rare word."""
        return [(word * k) % self.letters for k in range(1, 3 + word % 8)]

    def dynet(self, dy: Any, pc: Any) -> Callable[[int], Any]:
        table = pc.add_lookup_parameters((self.vocabulary, 128))
        if self.letters:
            letters = pc.add_lookup_parameters((self.letters, 20))
            of_letters = [dy.VanillaLSTMBuilder(1, 20, 64, pc) for _ in range(2)]
        hidden, scores = pc.add_parameters((32, 100)), pc.add_parameters((self.tags, 32))
        forward, backward = (dy.VanillaLSTMBuilder(1, 128, 50, pc) for _ in range(2))
        frequent = self.vocabulary // 10

        def embed(word: int) -> Any:
            if not self.letters or word < frequent:
                return table[word]
            spelt = [letters[letter] for letter in self.spelling(word)]
            ends = [b.initial_state().transduce(s)[-1] for b, s in zip(of_letters, (spelt, spelt[::-1]))]
            return dy.concatenate(ends)

        def loss(number: int) -> Any:
            sentence, tags = self.data[number % len(self.data)]
            words = [embed(w) for w in sentence]
            left = forward.initial_state().transduce(words)
            right = backward.initial_state().transduce(words[::-1])[::-1]
            return dy.esum(
                [
                    dy.pickneglogsoftmax(scores * dy.tanh(hidden * dy.concatenate([x, y])), tag)
                    for x, y, tag in zip(left, right, tags)
                ]
            )

        return loss


class TaggerWithLetters(Tagger):
    title = "tagger, rare words by letters"
    letters = 80


class Trees(Program):
    title = "Tree-LSTM, tree by tree"
    sizes = {"vocabulary": 18_000, "mean": 19, "labels": 5, "each": 1}

    def prepare(self) -> None:
        self.data = [self.tree(s) for s in self.sentences(10 * self.each, self.mean, 50, self.vocabulary)]

    def tree(self, words: list[int]) -> Any:
        if len(words) == 1:
            return words[0]
        cut = self.rng.randint(1, len(words))
        return self.tree(words[:cut]), self.tree(words[cut:]), int(self.rng.randint(self.labels))

    def dynet(self, dy: Any, pc: Any) -> Callable[[int], Any]:
        n = 128
        table = pc.add_lookup_parameters((self.vocabulary, n))
        W = [pc.add_parameters((n, n)) for _ in "iou"]
        U = [pc.add_parameters((n, 2 * n)) for _ in "iou"]
        forget = [pc.add_parameters((n, n)) for _ in "lr"]
        bias = [pc.add_parameters(n) for _ in "iouf"]
        scores = pc.add_parameters((self.labels, n))

        def gates(weights: Any, x: Any) -> tuple[Any, Any, Any]:
            i, o, u = (dy.affine_transform([b, w, x]) for b, w in zip(bias, weights))
            return dy.logistic(i), dy.logistic(o), dy.tanh(u)

        def state(tree: Any, states: list) -> tuple[Any, Any]:
            if isinstance(tree, int):
                label = tree % self.labels
                i, o, u = gates(W, table[tree])
                c = dy.cmult(i, u)
            else:
                left, right, label = tree
                (h_left, c_left), (h_right, c_right) = state(left, states), state(right, states)
                i, o, u = gates(U, dy.concatenate([h_left, h_right]))
                f_left = dy.logistic(dy.affine_transform([bias[3], forget[0], h_left]))
                f_right = dy.logistic(dy.affine_transform([bias[3], forget[1], h_right]))
                c = dy.cmult(i, u) + dy.cmult(f_left, c_left) + dy.cmult(f_right, c_right)
            h = dy.cmult(o, dy.tanh(c))
            states.append((h, label))
            return h, c

        def loss(number: int) -> Any:
            states: list = []
            first = number * self.each % len(self.data)
            for tree in self.data[first : first + self.each]:
                state(tree, states)
            return dy.esum([dy.pickneglogsoftmax(scores * h, label) for h, label in states])

        return loss


class TreesInBulk(Trees):
    title = "Tree-LSTM, ten trees an update"
    sizes = {**Trees.sizes, "each": 10}


class LanguageModel(Program):
    title = "LSTM language model, 16 sentences an update"
    sizes = {"vocabulary": 10_000, "mean": 21, "each": 16}

    def prepare(self) -> None:
        lengths = self.lengths(10, self.mean, 60)
        self.data = [[self.words(self.each, self.vocabulary) for _ in range(n)] for n in lengths]

    def dynet(self, dy: Any, pc: Any) -> Callable[[int], Any]:
        table = pc.add_lookup_parameters((self.vocabulary, 128))
        rnn = dy.VanillaLSTMBuilder(1, 128, 128, pc)
        W, b = pc.add_parameters((self.vocabulary, 128)), pc.add_parameters(self.vocabulary)

        def loss(number: int) -> Any:
            state = rnn.initial_state().add_input(dy.lookup_batch(table, [0] * self.each))
            losses = []
            for words in self.data[number % len(self.data)]:
                losses.append(dy.pickneglogsoftmax_batch(dy.affine_transform([b, W, state.output()]), words))
                state = state.add_input(dy.lookup_batch(table, words))
            return dy.sum_batches(dy.esum(losses))

        return loss


PROGRAMS = {
    "tagger": Tagger,
    "letters": TaggerWithLetters,
    "trees": Trees,
    "trees_in_bulk": TreesInBulk,
    "language_model": LanguageModel,
}


def serve(library: str, form: str, name: str, tiny: bool) -> None:
    """Run a round for each line of standard input, like `worker.py`."""
    answers, sys.stdout = sys.stdout, sys.stderr  # DyNet prints
    updates, batching = form.split()
    autobatch = int(batching == "autobatch")
    if library == "dynet":
        import dynet_config

        dynet_config.set(autobatch=autobatch, mem=2048)
        import dynet as dy
    else:
        import dynet_cy as dy
        from dynet_cy import config

        config.set(autobatch=autobatch, threads=1)
    pc = dy.ParameterCollection()
    loss = PROGRAMS[name](tiny).dynet(dy, pc)
    Weights().fill(pc)
    trainer = dy.AdamTrainer(pc)
    trainer.set_clip_threshold(-1)
    trainer.set_sparse_updates(updates == "sparse")
    for _ in sys.stdin:
        total = 0.0
        start = time.process_time()
        for number in range(UPDATES):
            dy.renew_cg()
            expression = loss(number)
            total += expression.value()
            expression.backward()
            trainer.update()
        answer = {"seconds": (time.process_time() - start) / UPDATES, "loss": total}
        print(json.dumps(answer), file=answers, flush=True)


def measure(name: str, form: str, dynet: str | None, rounds: int, options: list[str]) -> list[float]:
    """Milliseconds per update, in dynet_cy and, if its interpreter is given, in DyNet."""
    pythons = {"dynet_cy": sys.executable, **({"dynet": dynet} if dynet else {})}
    children = [
        Child(python, library, form, name, script=Path(__file__), options=["--serve", *options])
        for library, python in pythons.items()
    ]
    try:
        for number in range(rounds + 1):
            for child in children:
                child.round()
            if number == 0:  # later losses differ, since Adam's steps amplify rounding differences
                same_losses(children)
    finally:
        for child in children:
            child.close()
    return [1e3 * statistics.mean(r["seconds"] for r in child.rounds[1:]) for child in children]


def main() -> None:
    if "--serve" in sys.argv:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        return serve(*sys.argv[1:4], tiny="--tiny" in sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--dynet", metavar="PYTHON", help="an interpreter that has DyNet (dyNET38)")
    add(
        "--programs",
        nargs="+",
        metavar="NAME",
        choices=PROGRAMS,
        default=list(PROGRAMS),
        help=f"of {', '.join(PROGRAMS)}",
    )
    add("--rounds", type=int, default=5, help="measured rounds, after one to warm up; default: %(default)s")
    add("--tiny", action="store_true", help="tiny sizes, to check that it works")
    options = parser.parse_args()
    rows = []
    for name in options.programs:
        for form in FORMS:
            times = measure(name, form, options.dynet, options.rounds, ["--tiny"] if options.tiny else [])
            own, peer = times[0], times[1] if len(times) > 1 else None
            updates, batching = form.split()
            row = [PROGRAMS[name].title, updates, batching, report.number(own), report.number(peer)]
            rows.append([*row, report.number(peer / own if peer else None)])
            print(*rows[-1], file=sys.stderr)
    heads = ["program", "updates of tables", "batching", "dynet_cy, ms", "DyNet, ms", "times DyNet"]
    print(report.markdown(heads, rows))


if __name__ == "__main__":
    main()
