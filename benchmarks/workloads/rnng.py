"""A generative parser that writes sentences with their trees, and finds the tree of a given sentence by beam search."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from workloads.common import Goal, Loss, TorchWeights, Workload, each, lstm_multiplications

WRITE, CLOSE, FIRST_LABEL = range(3)  # the actions; from FIRST_LABEL on, one to open each label
MOST_OPEN, IN_A_ROW = 12, 3  # constituents open at once, and opened without a word between


class Entry(NamedTuple):
    """An item on the stack: the state of the LSTM that has read it, its vector, and whether it is open."""

    state: Any
    vector: Any
    is_open: bool = False


class Beginning(NamedTuple):
    """A partial tree, with its log probability."""

    score: float
    stack: tuple[Entry, ...]
    opened: int = 0
    in_a_row: int = 0  # how many constituents were opened since the last word

    def possible(self, labels: int) -> list[int]:
        """The actions that can come next."""
        actions = []
        if self.opened:
            actions.append(WRITE)
            if not self.stack[-1].is_open:
                actions.append(CLOSE)
        if self.opened < MOST_OPEN and self.in_a_row < IN_A_ROW:
            actions += range(FIRST_LABEL, FIRST_LABEL + labels)
        return actions

    def ends(self, action: int) -> bool:
        """Whether the tree ends with an action."""
        return action == CLOSE and self.opened == 1

    def parts(self) -> tuple[int, list[Any]]:
        """The start of the constituent to be closed next on the stack, and its vectors."""
        start = max(i for i, entry in enumerate(self.stack) if entry.is_open)
        return start, [entry.vector for entry in self.stack[start:]]


class End(NamedTuple):
    """A possible continuation of a partial tree."""

    score: float
    beginning: Beginning
    action: int


Expand = Callable[[list[Beginning], int], list[list[End]]]
Advance = Callable[[list[End], int], list[Beginning]]


class RNNG(Workload):
    title = "generative parser, beam of 6 for each of 16 sentences, hidden 256"
    unit = "sentences/s"
    mode = "forward"
    own_forms = ("map",)
    goals = (Goal("2x beginning by beginning", 2.0, "autobatch", "map"),)
    sizes = {"count": 16, "width": 6, "vocabulary": 2000, "labels": 10, "dim": 128, "hidden": 256}
    tiny = {"count": 2, "width": 2, "vocabulary": 9, "labels": 2, "dim": 5, "hidden": 6}

    def prepare(self) -> None:
        self.data = self.sentences(self.count, 10, 20, self.vocabulary - 1)

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        """The multiplications for words only; the number of constituents depends on the scores."""
        words = self.width * sum(map(len, self.data))
        scores = self.hidden * (self.vocabulary + self.labels + 2)
        return lstm_multiplications(words, self.dim, self.hidden) + words * scores

    def search(self, start: Beginning, sentence: list[int], expand: Expand, advance: Advance) -> float:
        """The log probability of the best tree of a sentence: the beam goes on when all have written a word."""
        beam = [start]
        for word in [*sentence, -1]:  # -1: the tree ends
            fringe, done = beam, []
            while fringe and len(done) < self.width:
                ends = [end for own in expand(fringe, word) for end in own]
                best = sorted(ends, key=lambda end: -end.score)[: 2 * self.width]
                done += [end for end in best if end.action == WRITE or (word < 0 and end.beginning.ends(end.action))]
                fringe = advance([e for e in best if e.action != WRITE and not e.beginning.ends(e.action)], word)
            kept = sorted(done, key=lambda end: -end.score)[: self.width]
            if word < 0:
                return kept[0].score
            beam = advance(kept, word)
        raise AssertionError

    def ends(self, own: Beginning, word: int, actions: Any, words: Any) -> list[End]:
        """The possible continuations, with their log probabilities."""
        possible = [a for a in own.possible(self.labels) if word >= 0 or a == CLOSE]
        gains = [float(actions[a]) + (float(words[word]) if a == WRITE else 0.0) for a in possible]
        return [End(own.score + gain, own, action) for action, gain in zip(possible, gains)]

    def after(self, end: End, vector: Any, state: Any) -> Beginning:
        """The partial tree after an action, given the vector of the new item and the state of the stack LSTM."""
        own, action = end.beginning, end.action
        if action == CLOSE:
            stack = (*own.stack[: own.parts()[0]], Entry(state, vector))
            return Beginning(end.score, stack, own.opened - 1, own.in_a_row)
        opens = action != WRITE
        stack = (*own.stack, Entry(state, vector, opens))
        return Beginning(end.score, stack, own.opened + opens, own.in_a_row + 1 if opens else 0)

    def below(self, end: End) -> Any:
        """The state of the stack LSTM that reads the vector of an action."""
        stack = end.beginning.stack
        return stack[end.beginning.parts()[0] - 1 if end.action == CLOSE else -1].state

    def dynet(self, dy: Any, pc: Any) -> Loss:
        words = pc.add_lookup_parameters((self.vocabulary, self.dim))
        labels = pc.add_lookup_parameters((self.labels, self.dim))
        bottom = pc.add_parameters(self.dim)
        stack = dy.LSTMBuilder(1, self.dim, self.hidden, pc)
        readers = [dy.LSTMBuilder(1, self.dim, self.dim, pc) for _ in range(2)]
        W_part, b_part = pc.add_parameters((self.dim, 2 * self.dim)), pc.add_parameters(self.dim)
        W_action = pc.add_parameters((self.labels + 2, self.hidden))
        b_action = pc.add_parameters(self.labels + 2)
        W_word, b_word = pc.add_parameters((self.vocabulary, self.hidden)), pc.add_parameters(self.vocabulary)

        def expand(own: Beginning, word: int) -> list[End]:
            seen = own.stack[-1].state.output()
            actions = dy.log_softmax(dy.affine_transform([b_action, W_action, seen]))
            written = dy.log_softmax(dy.affine_transform([b_word, W_word, seen]))
            dy.forward([actions, written])
            return self.ends(own, word, actions.npvalue(), written.npvalue())

        def advance(end: End, word: int) -> Beginning:
            if end.action == WRITE:
                vector = words[word]
            elif end.action == CLOSE:
                _, parts = end.beginning.parts()
                read = zip(readers, (parts, parts[::-1]))
                ends = [reader.initial_state().transduce(vectors)[-1] for reader, vectors in read]
                vector = dy.tanh(dy.affine_transform([b_part, W_part, dy.concatenate(ends)]))
            else:
                vector = labels[end.action - FIRST_LABEL]
            return self.after(end, vector, self.below(end).add_input(vector))

        def loss(form: str) -> Any:
            run = each(dy, form)

            def parse(sentence: list[int]) -> float:
                start = Beginning(0.0, (Entry(stack.initial_state().add_input(bottom), bottom),))
                return self.search(
                    start,
                    sentence,
                    lambda fringe, word: run(expand, fringe, [word] * len(fringe)),
                    lambda ends, word: [advance(end, word) for end in ends],
                )

            return dy.scalarInput(-sum(run(parse, self.data)))

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        words, labels = weights.table(self.vocabulary, self.dim), weights.table(self.labels, self.dim)
        bottom = weights.parameter(self.dim)
        stack = weights.lstm_cell(self.dim, self.hidden)
        reader = weights.lstm(1, self.dim, self.dim, bidirectional=True)
        part_of = weights.linear(self.dim, 2 * self.dim)
        action_scores = weights.linear(self.labels + 2, self.hidden)
        word_scores = weights.linear(self.vocabulary, self.hidden)

        def vector_of(end: End, word: int) -> Any:
            if end.action == WRITE:
                return words(weights.tensor(word))
            if end.action != CLOSE:
                return labels(weights.tensor(end.action - FIRST_LABEL))
            _, (ends, _) = reader(torch.stack(end.beginning.parts()[1])[None])
            return part_of(ends[:, 0].flatten()).tanh()

        def expand(fringe: list[Beginning], word: int) -> list[list[End]]:
            seen = torch.stack([own.stack[-1].state[0] for own in fringe])
            actions = action_scores(seen).log_softmax(1).cpu().numpy()
            written = word_scores(seen).log_softmax(1).cpu().numpy()
            return [self.ends(own, word, *scores) for own, *scores in zip(fringe, actions, written)]

        def advance(ends: list[End], word: int) -> list[Beginning]:
            if not ends:
                return []
            vectors = [vector_of(end, word) for end in ends]
            h, c = map(torch.stack, zip(*map(self.below, ends)))
            states = zip(*(x.unbind() for x in stack(torch.stack(vectors), (h, c))))
            return [self.after(*new) for new in zip(ends, vectors, states)]

        def one_by_one(together: Any) -> Any:
            return lambda own, word: [new for one in own for new in together([one], word)]

        def loss(form: str) -> Any:
            """Batched: the hypotheses of a sentence as rows; constituents are composed one by one."""
            do = (expand, advance) if form == "batched" else (one_by_one(expand), one_by_one(advance))
            total = 0.0
            for sentence in self.data:
                h, c = stack(bottom[None])
                total += self.search(Beginning(0.0, (Entry((h[0], c[0]), bottom),)), sentence, *do)
            return torch.tensor(-total)

        return loss


WORKLOAD = RNNG
