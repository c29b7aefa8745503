"""Sentiment of every phrase of a sentence: a binary Tree-LSTM over its parse, with a loss at each node."""

from __future__ import annotations

from typing import Any, Union

from workloads.common import Goal, Loss, TorchWeights, Workload

Tree = Union[int, tuple]  # a word, or (left, right, label of the phrase)


class TreeLSTM(Workload):
    title = "binary Tree-LSTM, hidden 256, loss at every node, 64 trees"
    unit = "trees/s"
    goals = (Goal("2x the better", 2.0), Goal("faster on a GPU", 1.0, "torch_gpu", "autobatch"))
    own_forms = ("fused",)
    sizes = {"count": 64, "vocabulary": 10_000, "word_dim": 256, "hidden": 256, "labels": 5}
    tiny = {"count": 4, "vocabulary": 50, "word_dim": 6, "hidden": 5}
    learning_rate = 1.0

    def prepare(self) -> None:
        sentences = self.sentences(self.count, 19, 50, self.vocabulary)
        self.leaves = sum(map(len, sentences))
        self.trees = [self.tree(s) for s in sentences]

    def tree(self, words: list[int]) -> Tree:
        """A random binary tree over the words; the label of a word is its remainder."""
        if len(words) == 1:
            return words[0]
        cut = self.rng.randint(1, len(words))
        return self.tree(words[:cut]), self.tree(words[cut:]), int(self.rng.randint(self.labels))

    @property
    def items(self) -> int:
        return self.count

    def multiplications(self) -> float:
        inner = self.leaves - self.count
        cells = self.leaves * 3 * self.word_dim + inner * 5 * 2 * self.hidden
        return self.hidden * (cells + (self.leaves + inner) * self.labels)

    def dynet(self, dy: Any, pc: Any) -> Loss:
        n = self.hidden
        table = pc.add_lookup_parameters((self.vocabulary, self.word_dim))
        W_leaf, b_leaf = pc.add_parameters((3 * n, self.word_dim)), pc.add_parameters(3 * n)
        W_left, W_right = pc.add_parameters((5 * n, n)), pc.add_parameters((5 * n, n))
        b_inner = pc.add_parameters(5 * n)
        W, b = pc.add_parameters((self.labels, n)), pc.add_parameters(self.labels)

        def gate(gates: Any, k: int) -> Any:
            return dy.pick_range(gates, k * n, (k + 1) * n)

        def state(tree: Tree, losses: list) -> tuple[Any, Any]:
            """h and c of a node; its gates are i, o, u and, of an inner one, f for the left and the right child."""
            if isinstance(tree, int):
                label = tree % self.labels
                gates = dy.affine_transform([b_leaf, W_leaf, table[tree]])
                c = dy.cmult(dy.logistic(gate(gates, 0)), dy.tanh(gate(gates, 2)))
            else:
                left, right, label = tree
                h_left, c_left = state(left, losses)
                h_right, c_right = state(right, losses)
                gates = dy.affine_transform([b_inner, W_left, h_left, W_right, h_right])
                c = dy.cmult(dy.logistic(gate(gates, 0)), dy.tanh(gate(gates, 2)))
                c = c + dy.cmult(dy.logistic(gate(gates, 3)), c_left)
                c = c + dy.cmult(dy.logistic(gate(gates, 4)), c_right)
            h = dy.cmult(dy.logistic(gate(gates, 1)), dy.tanh(c))
            losses.append(dy.pickneglogsoftmax(dy.affine_transform([b, W, h]), label))
            return h, c

        def fused_state(tree: Tree, losses: list) -> tuple[Any, Any]:
            """The same with functions that DyNet does not have."""
            if isinstance(tree, int):
                label = tree % self.labels
                cells = []
                gates = dy.tree_lstm_gates([b_leaf, W_leaf, table[tree]], 0)
            else:
                left, right, label = tree
                h_left, c_left = fused_state(left, losses)
                h_right, c_right = fused_state(right, losses)
                cells = [c_left, c_right]
                gates = dy.tree_lstm_gates([b_inner, W_left, h_left, W_right, h_right], 2)
            c = dy.tree_lstm_c(gates, cells)
            h = dy.tree_lstm_h(c, gates)
            losses.append(dy.pickneglogsoftmax(dy.affine_transform([b, W, h]), label))
            return h, c

        def loss(form: str) -> Any:
            losses: list = []
            for tree in self.trees:
                (fused_state if form == "fused" else state)(tree, losses)
            return dy.esum(losses) / len(losses)

        return loss

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        n = self.hidden
        table = weights.table(self.vocabulary, self.word_dim)
        leaf = weights.linear(3 * n, self.word_dim)
        left_right = weights.parameter(5 * n, n), weights.parameter(5 * n, n)
        b_inner = weights.parameter(5 * n)
        scores = weights.linear(self.labels, n)
        linear, cross_entropy = torch.nn.functional.linear, torch.nn.functional.cross_entropy
        levels, labels = self.levels(weights)

        def leaf_cell(words: Any) -> tuple[Any, Any]:
            i, o, u = leaf(table(words)).chunk(3, -1)
            c = i.sigmoid() * u.tanh()
            return o.sigmoid() * c.tanh(), c

        def inner_cell(h_left: Any, c_left: Any, h_right: Any, c_right: Any) -> tuple[Any, Any]:
            gates = linear(h_left, left_right[0], b_inner) + linear(h_right, left_right[1])
            i, o, u, f_left, f_right = gates.chunk(5, -1)
            c = i.sigmoid() * u.tanh() + f_left.sigmoid() * c_left + f_right.sigmoid() * c_right
            return o.sigmoid() * c.tanh(), c

        def state(tree: Tree, losses: list) -> tuple[Any, Any]:
            if isinstance(tree, int):
                label = tree % self.labels
                h, c = leaf_cell(weights.tensor(tree))
            else:
                left, right, label = tree
                h, c = inner_cell(*state(left, losses), *state(right, losses))
            losses.append(cross_entropy(scores(h), weights.tensor(label)))
            return h, c

        def loss(form: str) -> Any:
            if form == "batched":  # all nodes of the same height in all trees at once
                h, c = leaf_cell(levels[0])
                for left, right in levels[1:]:
                    new_h, new_c = inner_cell(h[left], c[left], h[right], c[right])
                    h, c = torch.cat([h, new_h]), torch.cat([c, new_c])
                return cross_entropy(scores(h), labels)
            losses: list = []
            for tree in self.trees:
                state(tree, losses)
            return torch.stack(losses).mean()

        return loss

    def levels(self, weights: TorchWeights) -> tuple[list, Any]:
        """The words; then for each height, the numbers of the left and right children; and all labels."""
        heights: list[list] = []  # for each height, its nodes

        def visit(tree: Tree) -> tuple[int, int]:
            """The height of a node, and its index among the nodes of that height."""
            if isinstance(tree, int):
                node, height = (tree, tree % self.labels), 0
            else:
                left, right, label = tree
                node = (visit(left), visit(right), label)
                height = 1 + max(node[0][0], node[1][0])
            while len(heights) <= height:
                heights.append([])
            heights[height].append(node)
            return height, len(heights[height]) - 1

        for tree in self.trees:
            visit(tree)
        starts = [sum(map(len, heights[:i])) for i in range(len(heights))]
        levels = [weights.tensor([node[0] for node in heights[0]])]
        for nodes in heights[1:]:
            levels.append(weights.tensor([[starts[h] + i for h, i in node[:2]] for node in nodes]).T.unbind())
        return levels, weights.tensor([node[-1] for nodes in heights for node in nodes])


WORKLOAD = TreeLSTM
