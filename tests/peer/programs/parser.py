"""A transition parser (arc-standard) whose stack and buffer are stack LSTMs, as in Dyer et al., 2015."""

import dynet_config

dynet_config.set(mem=256, random_seed=7, autobatch=0)
import random  # noqa: E402

import dynet as dy  # noqa: E402
import numpy as np  # noqa: E402

SHIFT, LEFT, RIGHT = range(3)


def attach(heads, first, last, head, rng):
    """Attach a random tree of the words from first to last to a head."""
    if first > last:
        return
    root = rng.randint(first, last)
    heads[root] = head
    attach(heads, first, root - 1, root, rng)
    attach(heads, root + 1, last, root, rng)


def make_trees(count, seed):
    """Projective trees: sentences as word numbers, with the head of each word, or -1 for the root."""
    rng = random.Random(seed)
    trees = []
    for _ in range(count):
        n = rng.randint(2, 6)
        heads = [0] * n
        attach(heads, 0, n - 1, -1, rng)
        depth = []
        for i in range(n):
            d, j = 0, i
            while heads[j] >= 0:
                d, j = d + 1, heads[j]
            depth.append(d)
        trees.append(([min(d, 4) * 3 + rng.randint(0, 2) for d in depth], heads))
    return trees


def oracle(heads):
    """The transitions that build a tree."""
    actions, stack, waiting = [], [], [heads.count(i) for i in range(len(heads))]
    for i in range(len(heads)):
        actions.append(SHIFT)
        stack.append(i)
        while len(stack) > 1:
            top, below = stack[-1], stack[-2]
            if heads[below] == top and not waiting[below]:
                actions.append(LEFT)
                del stack[-2]
                waiting[top] -= 1
            elif heads[top] == below and not waiting[top]:
                actions.append(RIGHT)
                stack.pop()
                waiting[below] -= 1
            else:
                break
    return actions


class Parser:
    def __init__(self, model):
        self.words = model.add_lookup_parameters((15, 8))
        self.actions = model.add_lookup_parameters((3, 4))
        self.stack_lstm = dy.LSTMBuilder(1, 8, 10, model)
        self.buffer_lstm = dy.GRUBuilder(1, 8, 10, model)
        self.history_lstm = dy.SimpleRNNBuilder(1, 4, 6, model)
        self.pW_state = model.add_parameters((12, 26))
        self.pb_state = model.add_parameters((12,))
        self.pW_action = model.add_parameters((3, 12))
        self.pW_compose = model.add_parameters((8, 16))
        self.pempty = model.add_parameters((8,))

    def run(self, words, gold=None):
        """The losses of the gold transitions, or the transitions with the best scores."""
        W_state, b_state = dy.parameter(self.pW_state), dy.parameter(self.pb_state)
        W_action, W_compose, empty = [dy.parameter(p) for p in (self.pW_action, self.pW_compose, self.pempty)]
        # The buffer is read from the end, so that the next word is on top.
        state = self.buffer_lstm.initial_state().add_input(empty)
        buffer = []
        for w in reversed(words):
            state = state.add_input(self.words[w])
            buffer.append(self.words[w])
        top = self.stack_lstm.initial_state().add_input(empty)
        stack, losses, taken = [], [], []
        history = self.history_lstm.initial_state().add_input(dy.zeros(4))
        gold = list(gold or [])
        while buffer or len(stack) > 1:
            valid = ([SHIFT] if buffer else []) + ([LEFT, RIGHT] if len(stack) > 1 else [])
            summary = dy.concatenate([top.output(), state.output(), history.output()])
            hidden = dy.rectify(dy.affine_transform([b_state, W_state, summary]))
            scores = dy.log_softmax(W_action * hidden, valid)
            if gold:
                action = gold.pop(0)
                losses.append(-dy.pick(scores, action))
            else:
                values = scores.npvalue()
                action = max(valid, key=lambda a: values[a])
            taken.append(action)
            history = history.add_input(self.actions[action])
            if action == SHIFT:
                stack.append(buffer.pop())
                top = top.add_input(stack[-1])
                state = state.prev()
            else:
                right, left = stack.pop(), stack.pop()
                top = top.prev().prev()
                head, child = (right, left) if action == LEFT else (left, right)
                stack.append(dy.tanh(W_compose * dy.concatenate([head, child])))
                top = top.add_input(stack[-1])
        return losses if losses else taken


def initialize(model, seed):
    rng = np.random.RandomState(seed)
    for p in model.parameters_list():
        p.set_value(rng.normal(0, 0.2, p.shape()))
    for table in model.lookup_parameters_list():
        for i in range(table.shape()[0]):
            table.init_row(i, list(rng.normal(0, 0.2, table.shape()[1])))


def main():
    model = dy.ParameterCollection()
    parser = Parser(model)
    initialize(model, 3)
    trainer = dy.SimpleSGDTrainer(model, learning_rate=0.05)
    trainer.set_clip_threshold(2.0)
    trees = make_trees(30, 4)
    for epoch in range(3):
        total = 0.0
        for words, heads in trees:
            dy.renew_cg(immediate_compute=False, check_validity=False)
            losses = parser.run(words, oracle(heads))
            loss = dy.average(losses)
            total += loss.scalar_value()
            loss.backward()
            trainer.update()
        print("epoch", epoch, "loss", total)
        trainer.learning_rate *= 0.9
    right = count = 0
    for words, heads in trees:
        dy.renew_cg()
        gold = oracle(heads)
        right += sum(a == b for a, b in zip(parser.run(words), gold))
        count += len(gold)
    print("accuracy", right / count)


if __name__ == "__main__":
    main()
