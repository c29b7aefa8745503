"""A generative parser, a recurrent neural network grammar: it writes a sentence and its tree at once, step by step.

    python rnng.py                                             # on trees made up from a small grammar
    python rnng.py --train train.txt --dev dev.txt             # bracketed trees, one tree per line
    echo "the dog barks" | python rnng.py parse                # print the most probable tree of a sentence

A tree such as `(S (NP the dog) (VP barks))` is written by actions: open a constituent, write a word, close the
constituent that was opened last.  The next action is chosen from the state of an LSTM over a stack of open
constituents, words and closed constituents; closing a constituent replaces its parts by one vector composed of them
(Dyer, Kuncoro, Ballesteros and Smith, Recurrent Neural Network Grammars, NAACL 2016; with the stack alone, as in
Kuncoro and others, EACL 2017).

The parser goes over the words of a sentence with a beam of partial trees that have written the same words
(Stern, Fried and Klein, Effective Inference for Generative Neural Parsing, EMNLP 2017).  The code is written for one
partial tree of one sentence; `batched_map` runs those of all sentences side by side. Trees that are drawn keep their
words in the graph, as indices: only the actions are read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import Tree, Vocabulary, read_trees

SIZES = {
    "word_dim": 48,
    "hidden": 96,  # units of the LSTM over the stack
    "dropout": 0.2,
}

WRITE, CLOSE = 0, 1  # the actions, before those that open
MOST_OPEN, IN_A_ROW = 40, 6  # constituents open at once, and opened without a word between


class Entry(NamedTuple):
    """An element of the stack: the state of the LSTM that has read it, and its vector."""

    state: dy.RNNState
    vector: dy.Expression
    # The word, or its number in the graph, or the closed constituent; None: an open constituent.
    part: str | dy.Expression | Tree | None
    label: str = ""


class State(NamedTuple):
    """A partial tree.  An action makes a new one, so that several can continue the same one."""

    stack: tuple[Entry, ...]
    opened: int = 0  # how many constituents are open
    in_a_row: int = 0  # how many were opened since the last word

    def finished(self) -> bool:
        return not self.opened and len(self.stack) > 1

    def tree(self) -> Tree:
        return self.stack[1].part

    def possible(self, labels: int) -> list[int]:
        """Return the actions that can come next, whatever the sentence."""
        if len(self.stack) > 1 and not self.opened:
            return []
        actions = [] if self.opened >= MOST_OPEN or self.in_a_row >= IN_A_ROW else list(range(2, 2 + labels))
        if self.opened:
            actions.append(WRITE)
            if self.stack[-1].part is not None:
                actions.append(CLOSE)
        return sorted(actions)


class Grammar:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.words, self.labels = Vocabulary(spec["words"], unknown="?"), spec["labels"]
        self.training = False  # whether to apply dropout

        self.pc = pc = dy.ParameterCollection()
        dim, hidden = spec["word_dim"], spec["hidden"]
        self.word_vectors = pc.add_lookup_parameters((len(self.words), dim))
        self.label_vectors = pc.add_lookup_parameters((len(self.labels), dim))
        self.bottom = pc.add_parameters(dim)
        self.stack = dy.LSTMBuilder(1, dim, hidden, pc)
        self.forward = dy.LSTMBuilder(1, dim, dim, pc)  # over the parts of a constituent
        self.backward = dy.LSTMBuilder(1, dim, dim, pc)
        self.compose, self.compose_bias = pc.add_parameters((dim, 2 * dim)), pc.add_parameters(dim, init=0)
        self.choose = pc.add_parameters((2 + len(self.labels), hidden))
        self.choose_bias = pc.add_parameters(2 + len(self.labels), init=0)
        self.word = pc.add_parameters((len(self.words), hidden))
        self.word_bias = pc.add_parameters(len(self.words), init=0)

    def start(self) -> State:
        return State((Entry(self.stack.initial_state().add_input(self.bottom), self.bottom, ""),))

    def seen(self, state: State) -> dy.Expression:
        output = state.stack[-1].state.output()
        return dy.dropout(output, self.spec["dropout"]) if self.training else output

    def action_scores(self, state: State, seen: dy.Expression) -> dy.Expression:
        """Return the log probabilities of the actions, -inf for those that are not possible."""
        scores = dy.affine_transform([self.choose_bias, self.choose, seen])
        return dy.log_softmax(scores, restrict=state.possible(len(self.labels)))

    def word_scores(self, seen: dy.Expression) -> dy.Expression:
        """Return the scores of the words that may be written."""
        return dy.affine_transform([self.word_bias, self.word, seen])

    def apply(self, state: State, action: int, word: str | dy.Expression = "") -> State:
        """Return the partial tree after an action. `word`: the word, or its number as a value of the graph."""
        if action == CLOSE:
            return self.close(state)
        if action == WRITE:
            number = word if isinstance(word, dy.Expression) else self.words[word]
            vector, entry, opened, row = self.word_vectors[number], (word, ""), state.opened, 0
        else:
            label = self.labels[action - 2]
            vector, entry = self.label_vectors[action - 2], (None, label)
            opened, row = state.opened + 1, state.in_a_row + 1
        return State((*state.stack, Entry(state.stack[-1].state.add_input(vector), vector, *entry)), opened, row)

    def close(self, state: State) -> State:
        """Replace the last open constituent, and all after it, by one entry."""
        start = max(i for i, entry in enumerate(state.stack) if entry.part is None)
        opened, parts = state.stack[start], state.stack[start + 1 :]
        tree = Tree(opened.label, tuple(entry.part for entry in parts))
        vectors = [opened.vector, *(entry.vector for entry in parts)]
        ends = [
            self.forward.initial_state().transduce(vectors)[-1],
            self.backward.initial_state().transduce([vectors[0], *vectors[:0:-1]])[-1],
        ]
        vector = dy.tanh(dy.affine_transform([self.compose_bias, self.compose, dy.concatenate(ends)]))
        below = state.stack[start - 1].state.add_input(vector)
        return State((*state.stack[:start], Entry(below, vector, tree)), state.opened - 1, state.in_a_row)

    def loss(self, batch: list[Tree]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch: minus the log probabilities of trees with their words."""
        return dy.esum([self.loss_of_one(tree) for tree in batch]) / sum(len(tree.words()) for tree in batch)

    def loss_of_one(self, tree: Tree) -> dy.Expression:
        state, losses = self.start(), []
        for action, word in actions_of(tree, self.labels):
            seen = self.seen(state)
            losses.append(-dy.pick(self.action_scores(state, seen), action))
            if action == WRITE:
                losses.append(dy.pickneglogsoftmax(self.word_scores(seen), self.words[word]))
            state = self.apply(state, action, word)
        return dy.esum(losses)

    def parse_one(self, words: list[str], width: int) -> tuple[Tree, float]:
        """Return the most probable tree that a beam search finds, and its log probability with the words."""
        beam = [(0.0, self.start())]
        for i, word in enumerate([*words, None]):
            fringe, done = beam, []
            while fringe and len(done) < width:
                ends = [end for own in dy.batched_map(self.expand, fringe, [word] * len(fringe)) for end in own]
                ends.sort(key=lambda end: -end[0])
                fringe = []
                for score, state, action in ends[: 2 * width]:
                    after = (score, self.apply(state, action, word or ""))
                    closed = after[1].finished()
                    if action == WRITE or (closed and word is None):
                        done.append(after)
                    elif not closed:  # otherwise words remain
                        fringe.append(after)
            if not done:
                raise ValueError(f"no tree was found: the beam of {width} is too narrow at word {i + 1}")
            beam = sorted(done, key=lambda end: -end[0])[:width]
        return beam[0][1].tree(), beam[0][0]

    def expand(self, end: tuple[float, State], word: str | None) -> list[tuple[float, State, int]]:
        """Return the possible continuations of a partial tree if `word` comes next; None: the tree has to end."""
        score, state = end
        seen = self.seen(state)
        actions, words = self.action_scores(state, seen), dy.log_softmax(self.word_scores(seen))
        dy.forward([actions, words])
        values, own = actions.npvalue(), words.npvalue()[self.words[word or ""]]
        found = []
        for action in state.possible(len(self.labels)):
            if word is not None or action == CLOSE:
                found.append((score + values[action] + (own if action == WRITE else 0.0), state, action))
        return found

    def parse(self, sentences: list[list[str]], width: int) -> list[Tree]:
        dy.renew_cg(forward_only=True)
        return [tree for tree, _ in dy.batched_map(lambda words: self.parse_one(words, width), sentences)]

    def sample(self, longest: int = 30) -> Tree | None:
        """Draw a tree with its words; None if it becomes too long.

        An action decides what is computed next, so it is read. A word only decides which vector is: it stays in the
        graph, and all words of the tree are read at its end.
        """
        state, words = self.start(), []
        while not state.finished():
            seen = self.seen(state)
            action = int(dy.sample(self.action_scores(state, seen)).value())
            if action == WRITE:
                words.append(dy.sample(self.word_scores(seen)))
            if len(words) > longest:
                return None
            state = self.apply(state, action, words[-1] if action == WRITE else "")
        numbers = dy.concatenate(words).npvalue().astype(int)
        return with_words(state.tree(), iter([self.words.words[number] for number in numbers]))


def with_words(tree: Tree, words: Iterator[str]) -> Tree:
    """Return a tree with other words."""
    parts = [with_words(own, words) if isinstance(own, Tree) else next(words) for own in tree.parts]
    return Tree(tree.label, tuple(parts))


def actions_of(tree: Tree, labels: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the actions that write a tree, with the words."""
    yield 2 + labels.index(tree.label), ""
    for part in tree.parts:
        if isinstance(part, Tree):
            yield from actions_of(part, labels)
        else:
            yield WRITE, part
    yield CLOSE, ""


def train(grammar: Grammar, trees: list[Tree], dev: list[Tree], args: argparse.Namespace) -> None:
    trainer = dy.AdamTrainer(grammar.pc)
    data = dy.data.batches(trees, args.batch, shuffle=True, seed=args.seed)
    words = sum(len(tree.words()) for tree in trees)
    training = commandline.training(args, grammar.pc, data, extra=grammar.spec, unit="words", total=words)
    for epoch in training:
        grammar.training = True
        for batch in epoch:
            trainer.learning_rate = args.learning_rate * (1 - training.done)
            dy.renew_cg()
            loss = grammar.loss(batch)
            epoch.add(loss.value(), sum(len(tree.words()) for tree in batch))
            loss.backward()
            trainer.update()
        grammar.training = False
        epoch.report(F1=f1(grammar, dev, args.beam))


def f1(grammar: Grammar, trees: list[Tree], width: int) -> float:
    """Return the F1 of labelled constituents."""
    found = dy.data.map_batches(lambda sentences: grammar.parse(sentences, width), [tree.words() for tree in trees])
    return dy.metrics.precision_recall([tree.spans() for tree in found], [tree.spans() for tree in trees]).F1


def main(args: argparse.Namespace) -> None:
    if args.command == "parse":
        grammar = dy.load_network(args.model, Grammar)
        for lines in commandline.input_lines(args.file):
            for tree in grammar.parse([line.split() for line in lines if line.strip()], args.beam):
                print(tree, flush=True)
        return
    trees, dev = commandline.read_data(args, read_trees, lambda: dy.data.toy_constituents(1000, args.seed))
    spec = {
        "words": Vocabulary((word for tree in trees for word in tree.words()), min_count=args.least).counts,
        "labels": sorted({label for tree in trees for label, _, _ in tree.spans()}),
        **args.sizes,
    }
    print(f"{len(trees)} training and {len(dev)} dev trees, {len(spec['words'])} words, {len(spec['labels'])} labels")
    train(Grammar(spec), trees, dev, args)
    best = dy.load_network(args.model, Grammar)
    dy.renew_cg(forward_only=True)
    for tree in dy.batched_map(lambda _: best.sample(), range(args.samples)):
        print("sample:", tree or "(too long)")


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a recurrent neural network grammar, or parse with one.",
        data="bracketed trees, one tree per line; else trees are made up",
        command="parse",
        file="a sentence on each line",
        epochs=5,
        patience=3,
        batch=16,
        learning_rate=0.004,  # falls to 0
        sizes=SIZES,
    )
    add = parser.add_argument
    add("--least", type=int, default=1, help="words seen less often are unknown")
    add("--samples", type=int, default=3, help="trees to draw at the end")
    add("--beam", type=int, default=10, help="partial trees kept at each word")
    parser.run(main)
