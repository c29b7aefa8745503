"""The common base of workloads: their declaration, generated data, and equal parameters for all libraries."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import numpy as np

# Loss of one update in one of the library's forms: an expression, or a tensor.
Loss = Callable[[str], Any]


class Goal(NamedTuple):
    """A goal for the speed of a workload.

    Attributes:
        text: the goal as the table shows it.
        least: the ratio to reach or exceed.
        over: what the speed is compared with: "peers" (the best form of the best of the
            other libraries), "peak" (of a large product), a form of dynet_cy,
            or "torch_gpu" (the best form of PyTorch on a GPU, for dynet_cy on it).
        form: the form of dynet_cy that has to reach it; "" for its best one.
    """

    text: str
    least: float
    over: str = "peers"
    form: str = ""


class Workload:
    """A program, its sizes and its data.

    A subclass sets the attributes below, fills `data` in `prepare`, and defines
    the program twice: `dynet` and `torch`.  Each makes its parameters and
    returns a function from the name of a form to the loss of one update.

    Forms for DyNet and dynet_cy: "plain" and "autobatch" run the same code, for
    one example at a time, without and with automatic batching; "minibatch",
    where it is natural, is batched by hand; "fused", only for dynet_cy, is
    "autobatch" with ops that DyNet does not have; "map" is "autobatch" through
    `batched_map`.  Forms for PyTorch: "eager", for one example at a time, and
    "batched", in the customary batched or padded form.
    """

    title: str
    unit: str  # of the result: what `items` counts, per second; or a time, see `per_item`
    per_item = 0.0  # if not 0, results are times per item, in units of 1 / per_item seconds
    mode = "train"  # "train" is forward, backward and update; "backward" has no update; "forward" is forward only
    dynet_forms: tuple[str, ...] = ("plain", "autobatch")
    own_forms: tuple[str, ...] = ()  # only of dynet_cy, with different source: never counted as its best
    torch_forms: tuple[str, ...] = ("eager", "batched")
    goals: tuple[Goal, ...] = ()
    sizes: dict[str, int]  # become attributes
    tiny: dict[str, int]  # sizes for tests
    learning_rate = 0.1
    adam = False  # trained with Adam instead of SGD
    convolves = False  # whether most of its operations are those of convolutions
    in_dynet = True  # whether DyNet has everything that the program needs
    repeat = 1  # updates in a round: many if they are short, so that a round lasts long enough

    def __init__(self, tiny: bool = False, **sizes: int) -> None:
        self.rng = np.random.RandomState(1)
        unknown = sizes.keys() - self.sizes.keys()
        if unknown:
            raise ValueError(f"{type(self).__name__} has no size {', '.join(sorted(unknown))}: {', '.join(self.sizes)}")
        vars(self).update({**self.sizes, **(self.tiny if tiny else {}), **sizes})
        self.prepare()

    def prepare(self) -> None:
        """Generate the data."""
        raise NotImplementedError

    @property
    def items(self) -> int:
        """The number of items, as named in `unit`, in an update."""
        raise NotImplementedError

    def multiplications(self) -> float:
        """Multiplications of the matrix products in the forward pass of an update."""
        raise NotImplementedError

    def result(self, seconds: float) -> float:
        """The result for an update that takes this long, in `unit`."""
        return self.per_item * seconds / self.items if self.per_item else self.items / seconds

    def multiplications_of_data(self) -> float:
        """The multiplications of input data, for which no gradient is needed."""
        return 0

    @property
    def flops(self) -> float:
        """Floating-point operations of the products of an update: backward has two products for each of forward."""
        if self.mode == "forward":
            return 2 * self.multiplications()
        return 2 * (3 * self.multiplications() - self.multiplications_of_data())

    def dynet(self, dy: Any, pc: Any) -> Loss:
        """The program for DyNet and dynet_cy."""
        raise NotImplementedError

    def torch(self, torch: Any, weights: TorchWeights) -> Loss:
        """The program for PyTorch."""
        raise NotImplementedError

    # -- data ------------------------------------------------------------------------------------

    def lengths(self, count: int, mean: float, longest: int) -> list[int]:
        """Lengths like those of sentences: a gamma distribution, with most below the mean and some far above."""
        drawn = self.rng.gamma(3, mean / 3, count)
        return [int(n) for n in np.clip(np.round(drawn), 2, longest)]

    def words(self, count: int, vocabulary: int) -> list[int]:
        """Words drawn by Zipf's law; word 0 is the most frequent."""
        shares = np.cumsum(1 / np.arange(3, vocabulary + 3))
        return [int(w) for w in np.searchsorted(shares, self.rng.uniform(0, shares[-1], count))]

    def sentences(self, count: int, mean: float, longest: int, vocabulary: int) -> list[list[int]]:
        return [self.words(n, vocabulary) for n in self.lengths(count, mean, longest)]


def each(dy: Any, form: str) -> Callable[..., list[Any]]:
    """A function that calls another for each item: one after another, or by `batched_map`."""
    return dy.batched_map if form == "map" else lambda function, *items: list(map(function, *items))


# -- parameters ----------------------------------------------------------------------------------


class Weights:
    """Initial values, in the order in which a program makes its parameters; tables are numbered separately."""

    def __init__(self) -> None:
        self._parameters = np.random.RandomState(2)
        self._tables = np.random.RandomState(3)

    def array(self, *shape: int) -> np.ndarray:
        return _uniform(self._parameters, shape)

    def rows(self, *shape: int) -> np.ndarray:
        return _uniform(self._tables, shape)

    def fill(self, pc: Any) -> None:
        """Set all parameters of a collection of DyNet or dynet_cy."""
        for parameter in pc.parameters_list():
            parameter.set_value(self.array(*parameter.shape()))
        for table in pc.lookup_parameters_list():
            table.init_from_array(self.rows(*table.shape()))


def _uniform(rng: np.random.RandomState, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform numbers, which are smaller if a product sums more of them."""
    fan_in = int(np.prod(shape[:-1])) if len(shape) > 2 else shape[-1]
    bound = fan_in**-0.5
    return rng.uniform(-bound, bound, shape).astype(np.float32)


class TorchWeights:
    """Parameters for PyTorch with the numbers that `Weights.fill` writes into a collection, in the same order.

    They are on a device, as PyTorch names it, and so is the data that `tensor` makes.
    """

    def __init__(self, torch: Any, device: str = "cpu") -> None:
        self.torch = torch
        self.device = device
        self.weights = Weights()
        self.made: list[Any] = []  # all trained parameters
        self.sparse: list[Any] = []  # trained parameters with sparse gradients

    def train(self, array: np.ndarray) -> Any:
        """Make a parameter with these values."""
        parameter = self.torch.nn.Parameter(self.torch.from_numpy(np.ascontiguousarray(array)).to(self.device))
        self.made.append(parameter)
        return parameter

    def tensor(self, values: Any) -> Any:
        """Data: numbers, lists of them, or an array."""
        return self.torch.tensor(values, device=self.device)

    def parameter(self, *shape: int) -> Any:
        return self.train(self.weights.array(*shape))

    def filters(self, rows: int, columns: int, inputs: int, outputs: int) -> Any:
        """Filters of a convolution: outputs, inputs, columns, rows, as images are columns by rows here."""
        return self.train(self.weights.array(rows, columns, inputs, outputs).T)

    def linear(self, outputs: int, inputs: int) -> Callable[[Any], Any]:
        W, b = self.parameter(outputs, inputs), self.parameter(outputs)
        return lambda x: self.torch.nn.functional.linear(x, W, b)

    def table(self, rows: int, size: int) -> Callable[[Any], Any]:
        """A lookup table with sparse gradients, as DyNet has them; with dense ones on a GPU, where they are faster."""
        table = self.train(self.weights.rows(rows, size))
        sparse = self.device == "cpu"
        self.sparse += [table] if sparse else []
        return lambda x: self.torch.nn.functional.embedding(x, table, sparse=sparse)

    def _gates(self, module: Any, suffix: str) -> None:
        """Weights of one cell: in DyNet Wx, Wh and b, with gates i, f, o, g, and 1 added to the bias of f."""
        hidden = module.hidden_size
        i, f, o, g = np.arange(4 * hidden).reshape(4, hidden)
        order = np.concatenate([i, f, g, o])  # PyTorch's
        for name in ("weight_ih", "weight_hh", "bias_ih"):
            old = getattr(module, name + suffix)
            array = self.weights.array(*old.shape)[order]
            if name == "bias_ih":
                array[hidden : 2 * hidden] += 1
            setattr(module, name + suffix, self.train(array))
        bias = getattr(module, "bias_hh" + suffix)  # DyNet has one bias
        bias.requires_grad = False
        bias.zero_()

    def lstm(self, layers: int, inputs: int, hidden: int, bidirectional: bool = False) -> Any:
        """The counterpart of `BiRNNBuilder(layers, inputs, 2 * hidden, pc, LSTMBuilder)`, or of an LSTMBuilder."""
        sizes = (inputs, hidden, layers)
        module = self.torch.nn.LSTM(*sizes, batch_first=True, bidirectional=bidirectional, device=self.device)
        with self.torch.no_grad():
            for layer in range(layers):
                for suffix in ("", "_reverse")[: 1 + bidirectional]:
                    self._gates(module, f"_l{layer}{suffix}")
        module.flatten_parameters()  # contiguous, as cuDNN wants them; does nothing on the CPU
        return module

    def lstm_cell(self, inputs: int, hidden: int) -> Any:
        module = self.torch.nn.LSTMCell(inputs, hidden, device=self.device)
        with self.torch.no_grad():
            self._gates(module, "")
        return module


# -- sizes ---------------------------------------------------------------------------------------


def lstm_multiplications(steps: int, inputs: int, hidden: int) -> int:
    return steps * 4 * hidden * (inputs + hidden)


def bilstm_multiplications(steps: int, layers: int, inputs: int, hidden: int) -> int:
    """The multiplications of a BiLSTM; `hidden` is the size of each direction."""
    first = 2 * lstm_multiplications(steps, inputs, hidden)
    return first + (layers - 1) * 2 * lstm_multiplications(steps, 2 * hidden, hidden)
