"""Random programs over the whole API of DyNet, run line by line in DyNet and in dynet_cy.

A program is Python text: a model, inputs, ops with random arguments (most shapes fit, some do not), builders, several
graphs, backward passes and updates. After every line, both libraries must agree: on shapes, types and numbers of
values, errors, and gradients of all expressions and parameters. Each library runs in its own process, because DyNet
changes the arithmetic of its process, and some errors end it.  Lines whose numbers are known to be wrong in DyNet
(`WRONG` in program_meant) are omitted, because everything computed from them would differ.

``python random_programs.py --programs 5000`` runs many and prints the differences; ``--first N --programs 1 --verbose``
prints program N. `MEANT` in program_meant lists intended differences, each with its line of docs/differences.md.
"""

from __future__ import annotations

import argparse
import pickle
import re
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from program_meant import MEANT
from program_ops import OPS
from program_pair import Difference, Entry, Over, Worker
from program_text import Program

TRAINERS = [
    "SimpleSGDTrainer(m, 0.05)",
    "CyclicalSGDTrainer(m, 0.01, 0.1)",
    "MomentumSGDTrainer(m, 0.02, 0.8)",
    "AdagradTrainer(m, 0.05)",
    "AdadeltaTrainer(m)",
    "RMSPropTrainer(m, 0.01)",
    "AdamTrainer(m, 0.01)",
    "AmsgradTrainer(m, 0.01)",
]
BUILDERS = ["SimpleRNNBuilder", "GRUBuilder", "LSTMBuilder", "VanillaLSTMBuilder", "CompactVanillaLSTMBuilder"]
BUILDERS += ["CoupledLSTMBuilder", "FastLSTMBuilder"]
OFTEN = [
    "parameter",
    "lookup",
    "product",
    "affine",
    "plus",
    "number",
    "concatenate",
    "reshape",
    "index",
    "pick",
    "tanh",
]
UNBOUNDED = re.compile(r"square|cube|exp|sinh|cosh|\*|affine|sum|norm|tan\(|distance")


class RandomProgram(Program):
    parameters: list[str]
    tables: list[str]

    def build(self) -> None:
        self.model()
        try:
            for _ in range(self.one([1, 1, 2])):
                self.graph()
        except Over:
            pass

    def model(self) -> None:
        self.parameters, self.tables, self.builders = [], [], []
        self.run("m = dy.ParameterCollection()")
        if self.chance(0.25):
            self.run(f"m.set_weight_decay({self.one(['0.3', '0.05', '0.001'])})")
        for _ in range(2 + self.below(3)):
            name, shape = self.name("p"), self.shape()
            made = self.one(["m.add_parameters({0}, init={1})", "m.parameters_from_numpy({1})"])
            self.run(f"{name} = {made.format(shape, self.A(shape))}")
            self.parameters.append(name)
        for _ in range(1 + self.below(2)):
            name, shape = self.name("t"), self.one([(3,), (2,), (4,), (3, 1), (1, 2), (1,)])
            array = self.A((5, *shape))
            made = self.one(["m.add_lookup_parameters({0}, init={1})", "m.lookup_parameters_from_numpy({1})"])
            self.run(f"{name} = {made.format((5, *shape), array)}")
            self.tables.append(name)
        if self.chance(0.4):
            name, inner, hidden, layers = self.name("b"), self.one([2, 3]), self.one([2, 3]), self.one([1, 1, 2])
            self.run(f"{name} = dy.{self.one(BUILDERS)}({layers}, {inner}, {hidden}, m)")
            self.builders.append((name, inner, hidden, layers))
        seed = self.below(10**6)
        self.run(f"[p.set_value(A({seed} + i, p.shape(), -0.7, 0.7)) for i, p in enumerate(m.parameters_list())]")
        self.run(f"trainer = dy.{self.one(TRAINERS)}")
        if self.chance(0.3):
            self.run(f"trainer.set_clip_threshold({self.one(['0.5', '-1.0', '0'])})")
        if self.chance(0.2):
            self.run("trainer.set_sparse_updates(False)")
        if self.chance(0.15):
            self.run(f"{self.one(self.parameters)}.set_updated(True)")

    def graph(self) -> None:
        self.entries = {}
        self.run("dy.renew_cg()")
        for _ in range(2):
            self.make()
        for part in range(self.one([1, 1, 2])):
            for _ in range(4 + self.below(10)):
                self.step()
            if self.builders and self.chance(0.7):
                self.network()
            if self.chance(0.2):
                self.read(self.get())
            if self.chance(0.25):
                self.settings()
            self.train(last=part)

    def step(self) -> None:
        name = self.one(OFTEN) if self.chance(0.3) else self.one(OPS)
        source = OPS[name](self)
        if source is None:
            return
        e = self.add(source)
        if e is not None and UNBOUNDED.search(source):
            del self.entries[e.name]
            self.add(f"dy.tanh({e.name})")
            self.entries[e.name] = e
            self.entries = {k: self.entries[k] for k in [e.name, *[n for n in self.entries if n != e.name]]}

    def network(self) -> None:
        """Steps of a builder."""
        name, inner, hidden, layers = self.one(self.builders)
        batch = self.size()
        s = self.name("s")
        states = 1 if self.run(f"type({name}).__name__ in ('SimpleRNNBuilder', 'GRUBuilder')")[1] else 2
        start = ""
        if self.chance(0.4):
            start = "[" + ", ".join(self.get((hidden,), batch).name for _ in range(states * layers)) + "]"
        xs = [self.get((inner,), batch).name for _ in range(1 + self.below(4))]
        if self.chance(0.3):
            outs = self.name("o")
            self.run(
                f"{outs} = {name}.initial_state({start}).{self.one(['transduce', 'add_inputs'])}([{', '.join(xs)}])"
            )
            self.add(f"{outs}[-1] if isinstance({outs}[-1], dy.Expression) else {outs}[-1].output()")
            return
        self.run(f"{s} = {name}.initial_state({start})")
        for x in xs:
            self.run(f"{s} = {s}.add_input({x})")
            if self.chance(0.5):
                self.add(f"{s}.{self.one(['output()', 'output()', 'h()[0]', 's()[0]', 's()[-1]'])}")
            if self.chance(0.1) and layers == 1:
                self.run(f"{s} = {s}.set_h([{self.get((hidden,), batch).name}])")
            if self.chance(0.1):
                values = ", ".join(self.get((hidden,), batch).name for _ in range(states * layers))
                self.run(f"{s} = {s}.set_s([{values}])")
            if self.chance(0.1):
                self.run(f"{s}.prev() is None")
        self.add(f"{s}.output()")

    def settings(self) -> None:
        """Change inputs and rows, and compute everything again."""
        inputs = []
        for line in self.lines[len(self.lines) - self.lines[::-1].index("dy.renew_cg()") :]:
            target, _, source = line.partition(" = ")
            if target in self.entries and re.match(
                r"t\d+\[|dy\.lookup|t\d+\.batch|dy\.(inputVector|vecInput|scalarInput)", source
            ):
                inputs.append((target, source))
        if not inputs:
            return
        target, source = self.one(inputs)
        e = self.entries[target]
        if re.match(r"t\d+\[|dy\.lookup\(", source):
            self.run(f"{target}.set({self.below(5)})")
        elif re.match(r"t\d+\.batch|dy\.lookup_batch", source):
            self.run(f"{target}.set({self.indices(5, e.batch)})")
        elif source.startswith("dy.scalarInput"):
            self.run(f"{target}.set({self.number_text()})")
        else:
            self.run(f"{target}.set({self.A(e.shape)}{self.one(['', '.tolist()'])})")
        last = self.add(f"dy.sum_elems({target})")
        if last:
            self.run(f"{last.name}.npvalue(recalculate=True)")

    def read(self, e: Entry) -> None:
        self.run(f"{e.name}.{self.one(['value()', 'npvalue()', 'vec_value()', 'forward()'])}")

    def train(self, last: int) -> None:
        """A loss of some expressions, backward, all gradients, an update."""
        names = list(self.entries)
        chosen = [self.entries[n] for n in names if self.chance(0.6)]
        chosen = chosen or [self.entries[names[-1]]]
        terms = []
        for e in chosen:
            weights = self.name("w")
            array = self.A((*e.shape, e.batch) if e.batch > 1 else e.shape)
            self.run(f"{weights} = dy.inputTensor({array}{', batched=True' if e.batch > 1 else ''})")
            term = self.name("l")
            if self.run(f"{term} = dy.sum_batches(dy.sum_elems(dy.cmult({e.name}, {weights})))") is not None:
                terms.append(term)
        loss = self.name("L")
        if not terms or self.run(f"{loss} = dy.esum([{', '.join(terms)}])") is None:
            return
        if self.run(f"{loss}.{self.one(['value()', 'scalar_value()', 'forward()', 'npvalue()'])}") is None:
            raise Over
        self.look([f"{e.name}.{form}()" for e in self.entries.values() for form in self.forms(e)])
        after = self.add(f"{self.get().name} * 2.0") if self.chance(0.2) else None
        full = self.one(["", "", "full=True", "full=False", "True"])
        self.run(f"{loss}.backward({full})")
        made_before = [name for name in [*self.entries, loss, *terms[:2]] if after is None or name != after.name]
        if "True" not in full or self.number % 2:  # otherwise read for the first time after the update
            self.look([f"{name}.gradient()" for name in [*made_before, *self.parameters]])
        self.of_parameters("grad_as_array()")
        if self.lost:
            raise Over
        if self.chance(0.7):
            self.run("trainer.update()")
            self.of_parameters("as_array()")
            self.of_parameters("grad_as_array()")
            self.look([f"{name}.gradient()" for name in [*made_before, *self.parameters][::2]])
            self.entries = {}
            self.run("dy.renew_cg()")
            self.make()
            self.make()

    def forms(self, e: Entry) -> list[str]:
        """Ways to read a value."""
        forms = ["npvalue", "value", "vec_value"] if self.chance(0.3) else ["npvalue"]
        return [*forms, "scalar_value"] if int(np.prod(e.shape)) * e.batch == 1 and self.chance(0.5) else forms

    def of_parameters(self, what: str) -> None:
        lines = [f"{name}.{what}" for name in [*self.parameters, *self.tables]]
        self.look([*lines, f"[p.{what} for p in m.parameters_list()]"] if self.builders else lines)


class Comparison:
    """The workers, which run one program after the other."""

    def __init__(self) -> None:
        self.theirs, self.ours = Worker("dynet"), Worker("dynet_cy")
        self.noisy = [Worker("dynet_cy", str(seed)) for seed in (1, 2)]
        self.compared = 0
        self.meant: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()

    def run(self, number: int) -> tuple[RandomProgram, list[Difference]]:
        """A program and its unintended differences."""
        program = RandomProgram(self.theirs, self.ours, number)
        program.build()
        program.settle(self.noisy)
        self.compared += program.compared
        self.left_out += program.left_out
        found = []
        for difference in program.differences:
            meant = next((m for m in MEANT if m.covers(difference)), None)
            if meant:
                self.meant[meant.document] += 1
            else:
                found.append(difference)
        return program, found

    def close(self) -> None:
        for worker in (self.theirs, self.ours, *self.noisy):
            worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print the programs")
    parser.add_argument("--save", type=Path, help="file for the pickled differences")
    options = parser.parse_args()
    comparison, everything, start = Comparison(), [], time.time()
    for number in range(options.first, options.first + options.programs):
        program, found = comparison.run(number)
        everything += found
        if options.verbose:
            print("\n".join(program.lines))
        for difference in found:
            print(difference, flush=True)
    comparison.close()
    print(f"{options.programs} programs, {comparison.compared} lines compared, {time.time() - start:.0f} s")
    print(f"{len(everything)} unintended differences, {sum(comparison.meant.values())} intended ones:")
    for document, count in comparison.meant.most_common():
        print(f"{count:8} {document}")
    for document, count in comparison.left_out.most_common():
        print(f"{count:8} left out: {document}")
    for what, count in Counter(f"{d.kind}: {d.function()}" for d in everything).most_common():
        print(f"{count:8} UNINTENDED {what}")
    if options.save:
        options.save.write_bytes(pickle.dumps(everything))
    sys.exit(bool(everything))


if __name__ == "__main__":
    main()
