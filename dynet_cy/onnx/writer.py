"""The ONNX graph under construction, and operations for converters.

Expressions are column-major with the batch last, ONNX tensors row-major. So that the layout in memory is the same, the
order of axes is reversed: axis i of an expression is axis -(i + 1) of the tensor. These axes are preceded by that of
the batch of the expression, if its batch size is not 1, and that in turn by the axis of the examples, in tensors that
differ from example to example.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dynet_cy.onnx import sizes
from dynet_cy.onnx.errors import ExportError
from dynet_cy.onnx.sizes import Size
from dynet_cy.onnx.tracing import Step, Traced

Array = npt.NDArray[Any]

# The name of the number of examples among sizes; no named axis can have it.
EXAMPLES = ""

# The end of a slice that goes down to element 0, inclusive.
BEFORE_THE_FIRST = -(2**62)


class Value(NamedTuple):
    """An expression as a tensor of the file.

    Attributes:
        name: the name of the tensor.
        dims: the sizes of its axes, in the order of the expression.
        batch: its batch size; there is an axis for it if it is not 1.
        each: whether it differs from example to example, and so has an axis for examples.
    """

    name: str
    dims: tuple[Size, ...]
    batch: Size
    each: bool

    @property
    def has_batch(self) -> bool:
        return not sizes.is_one(self.batch)

    @property
    def lead(self) -> int:
        """The number of axes before those of the expression."""
        return self.each + self.has_batch

    @property
    def rank(self) -> int:
        return self.lead + len(self.dims)


class Picked(NamedTuple):
    """Indices as a tensor of int64, with an axis for the batch, if requested, and then one for the indices of a batch
    element; `each` as in Value."""

    name: str
    each: bool


def as_float(word: int) -> float:
    """The float with these bits."""
    found: float = struct.unpack("f", struct.pack("i", word))[0]
    return found


class File:
    """The contents of a file, to which the writers of several functions may add."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self.names: set[str] = set()
        self.constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.parameters: dict[int | None, str] = {}

    def unique(self, name: str) -> str:
        """A name that no tensor has yet."""
        found, k = name, 0
        while found in self.names:
            k += 1
            found = f"{name}_{k}"
        self.names.add(found)
        return found


class Writer:
    """Nodes and initializers of a function, added to a file one after the other."""

    def __init__(self, onnx: Any, file: File, traced: Traced, examples: str | int | None) -> None:
        self.file = file
        self.nodes = file.nodes
        self.helper = onnx.helper
        self.numpy_helper = onnx.numpy_helper
        self.axes = traced.axes
        # For each tensor that is an input of whole numbers: these numbers in the traces.
        self.indices: dict[str, tuple[tuple[int, ...], ...]] = {}
        self.examples = examples
        self.step: Step | None = None
        # For each recurrent network: the tensor of its state at the end.
        self.last_states: dict[int, str] = {}
        # For each named axis along which examples have lengths of their own: the tensor of these lengths.
        self.lengths: dict[str, str] = {}
        self._masks: dict[str | None, str] = {}
        self._sizes: dict[object, str] = {}
        self._sources: dict[str, tuple[str, int]] = {}

    # ---- names, constants, nodes

    def source(self, axis: str, tensor: str, place: int) -> None:
        """Record where the size of a named axis can be read: along this axis of an input tensor."""
        self._sources.setdefault(axis, (tensor, place))

    def refused(self, why: str) -> ExportError:
        """The error of the step that is being written."""
        what, where = ("the graph", "") if self.step is None else (self.step.op, self.step.made_at)
        return ExportError(f"export: {what} {why}{where}")

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; returns the name of its (last) result."""
        step = "" if self.step is None else self.step.op
        names = [self.file.unique(f"{step}/{op}" if step else op) for _ in range(outputs)]
        self.nodes.append(self.helper.make_node(op, inputs, names, name=names[-1], **attributes))
        return names[-1]

    def store(self, name: str, array: Array) -> str:
        """Add an initializer; returns its name, with a number appended if the name is taken."""
        found = self.file.unique(name)
        self.file.initializers[found] = self.numpy_helper.from_array(np.asarray(array, order="C"), found)
        return found

    def constant(self, array: npt.ArrayLike, dtype: type = np.float32) -> str:
        """A constant tensor, int64 for `dtype` int; equal ones are stored once."""
        values: Array = np.asarray(array, np.int64 if dtype is int else dtype)
        key = (str(values.dtype), values.shape, values.tobytes())
        if key not in self.file.constants:
            self.file.constants[key] = self.store("constant", values)
        return self.file.constants[key]

    def ints(self, *numbers: int) -> str:
        """A constant list of whole numbers."""
        return self.constant(numbers, np.int64)

    # ---- attributes of the step

    def word(self, k: int) -> Size:
        """Attribute k as a whole number in each trace."""
        assert self.step is not None
        return tuple(w - (1 << 32) if w >= 1 << 31 else w for w in self.step.attrs[k])

    def whole(self, k: int) -> int:
        """Attribute k, a whole number that must be the same in all traces."""
        found = sizes.constant(self.word(k))
        if found is None:
            raise self.refused(f"has an attribute that depends on the sizes of its inputs: {self.word(k)}")
        return found

    def number(self, k: int) -> float:
        """Attribute k, a float that must be the same in all traces."""
        if sizes.constant(self.word(k)) is None:
            numbers = sorted({f"{as_float(word):g}" for word in self.word(k)})
            raise self.refused(
                f"takes a number that is another one in each run of the function: {', '.join(numbers[:4])}. A file "
                "holds one number"
            )
        return as_float(self.whole(k))

    # ---- sizes

    def size(self, size: Size) -> str:
        """A size as a list of one number, a constant or computed when the file runs."""
        return self.size_list([size])

    def size_list(self, wanted: Iterable[Size | str]) -> str:
        """Sizes as one list; EXAMPLES is the number of examples."""
        parts: list[str] = []
        found: Any = [size if isinstance(size, str) else self._formula(size) for size in wanted]
        for known, run in itertools.groupby(found, lambda x: isinstance(x, int)):
            together = [*run]
            parts += [self.ints(*together)] if known else map(self._measured, together)
        parts = parts or [self.ints()]
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=0)

    def _formula(self, size: Size) -> int | sizes.Formula:
        found = sizes.formula(size, self.axes)
        if found is None:
            of = ", ".join(f"{name} = {list(axis)}" for name, axis in self.axes.items())
            raise self.refused(f"has the sizes {list(size)} for {of}, which is not a simple function of them")
        return found

    def _measured(self, found: sizes.Formula | str) -> str:
        """The value of a formula when the file runs."""
        if found not in self._sizes:
            if isinstance(found, str):
                if isinstance(self.examples, int):
                    self._sizes[found] = self.ints(self.examples)
                    return self._sizes[found]
                if found not in self._sources:
                    raise self.refused(f"needs the size of {found}, which no input has")
                tensor, place = self._sources[found]
                size = self.add("Shape", tensor, start=place, end=place + 1)
            else:
                size = functools.reduce(functools.partial(self.add, "Mul"), map(self._measured, found.axes))
                if found.factor != 1:
                    size = self.add("Mul", size, self.ints(found.factor))
                if found.summand:
                    size = self.add("Add", size, self.ints(found.summand))
            self._sizes[found] = size
        return self._sizes[found]

    # ---- examples of different lengths

    def padded(self, size: Size) -> str | None:
        """The named axis of this size, if examples have lengths of their own along it."""
        if not self.lengths or sizes.constant(size) is not None:
            return None
        found = sizes.formula(size, self.axes)
        if not isinstance(found, sizes.Formula) or len(found.axes) > 1 or found.axes[0] not in self.lengths:
            return None
        if found != sizes.Formula(1, found.axes):
            raise self.refused(f"has an axis of {sizes.text(found)} elements, some of them from padding")
        return found.axes[0]

    def length_of(self, size: Size) -> str:
        """The length of each example along an axis, int64; "" if it is the size of the axis for all."""
        axis = self.padded(size)
        return "" if axis is None else self.lengths[axis]

    def masked(self, x: Value, place: int, size: Size, value: float) -> Value:
        """x with another value beyond the length of each example, along an axis of the file, whose number counts from
        the last one, -1. x gets an axis for examples, if it has none."""
        if not x.each:
            x = x._replace(name=self.add("Unsqueeze", x.name, self.ints(0)), each=True)
        axis = self.padded(size)
        if axis not in self._masks:
            lengths = self.add("Unsqueeze", self.length_of(size), self.ints(1))
            self._masks[axis] = self.add("Less", self.up_to(self.size(size)), lengths)
        others = [k for k in range(1, x.rank) if k != x.rank + place]
        mask = self.add("Unsqueeze", self._masks[axis], self.ints(*others)) if others else self._masks[axis]
        return x._replace(name=self.add("Where", mask, x.name, self.constant(value)))

    def shared_by_length(self, x: Value, size: Size) -> Value:
        """x times the size of an axis, divided by the length of each example along it."""
        float_type = self.helper.TensorProto.FLOAT
        count, lengths = (self.add("Cast", name, to=float_type) for name in (self.size(size), self.length_of(size)))
        factor = self.add("Div", count, lengths)
        factor = self.add("Unsqueeze", factor, self.ints(*range(1, x.rank))) if x.rank > 1 else factor
        return x._replace(name=self.add("Mul", x.name, factor))

    # ---- tensors in other shapes

    def shape_of(self, dims: Sequence[Size], batch: Size, each: bool) -> list[Size | str]:
        """The shape of a tensor with these axes."""
        lead: list[Size | str] = [EXAMPLES] if each else []
        lead += [] if sizes.is_one(batch) else [batch]
        return [*lead, *reversed(dims)]

    def reshape(self, name: str, each: bool, rest: Sequence[Size]) -> str:
        """A tensor reshaped to these sizes, in the order of the file, after the axis for examples if `each`."""
        unknown = [k for k, size in enumerate(rest) if sizes.constant(size) is None]
        if len(unknown) <= 1:
            numbers = [-1 if k in unknown else size[0] for k, size in enumerate(rest)]
            return self.add("Reshape", name, self.ints(*([0] * each), *numbers))
        return self.add("Reshape", name, self.size_list([*([EXAMPLES] * each), *rest]))

    def to(self, name: str, each: bool, dims: Sequence[Size], batch: Size) -> str:
        """A tensor reshaped to that of an expression of these sizes."""
        return self.reshape(name, each, [*([] if sizes.is_one(batch) else [batch]), *reversed(dims)])

    def with_axes(self, x: Value, dims: Sequence[Size]) -> Value:
        """x in another shape with as many elements in each batch element."""
        if tuple(dims) == x.dims:
            return x
        return x._replace(name=self.to(x.name, x.each, dims, x.batch), dims=tuple(dims))

    def with_rank(self, x: Value, n: int) -> Value:
        """x with at least n axes: further ones have size 1."""
        return self.with_axes(x, (*x.dims, *[self.one] * (n - len(x.dims))))

    def flat(self, x: Value) -> Value:
        """x as a vector."""
        if len(x.dims) == 1:
            return x
        n = tuple(int(np.prod([d[t] for d in x.dims], initial=1)) for t in range(len(x.batch)))
        return self.with_axes(x, [n])

    def lifted(self, x: Value, axes: int, has_batch: bool, all_axes: bool = False) -> str:
        """The tensor of x with the axes needed to combine it with tensors that have `axes` axes, and perhaps a batch.
        Axes that x lacks get size 1. Leading axes are left out if broadcasting adds them, unless `all_axes` asks for
        them."""
        missing = axes - len(x.dims)
        where: list[int] = []
        if has_batch and not x.has_batch and (x.each or all_axes):
            where.append(int(x.each))
        if missing > 0 and (x.lead or all_axes):
            start = x.each + (has_batch if where else x.has_batch)
            where += range(start, start + missing)
        return self.add("Unsqueeze", x.name, self.ints(*where)) if where else x.name

    @property
    def one(self) -> Size:
        """The size 1, in each trace."""
        assert self.step is not None
        return tuple(1 for _ in self.step.batch)

    def combine(self, op: str, *xs: Value) -> Value:
        """An elementwise operator of expressions whose shapes broadcast."""
        has_batch, axes = any(x.has_batch for x in xs), max(len(x.dims) for x in xs)
        name = self.add(op, *[self.lifted(x, axes, has_batch) for x in xs])
        sizes_of = [[d for x in xs for d in x.dims[k : k + 1]] for k in range(axes)]
        dims = tuple(next((d for d in found if not sizes.is_one(d)), found[0]) for found in sizes_of)
        batch = next((x.batch for x in xs if x.has_batch), xs[0].batch)
        return Value(name, dims, batch, any(x.each for x in xs))

    def total(self, xs: Sequence[Value]) -> Value:
        return functools.reduce(lambda x, y: self.combine("Add", x, y), xs)

    def together(self, xs: Sequence[Value], axes: int) -> tuple[list[str], bool, bool]:
        """Tensors with the same axes, including those of examples and of the batch, as Concat needs them. Also whether
        there are axes for examples and for the batch."""
        each, has_batch = any(x.each for x in xs), any(x.has_batch for x in xs)
        batch = next((x.batch for x in xs if x.has_batch), xs[0].batch)
        found = []
        for x in xs:
            dims = [*x.dims, *[self.one] * (axes - len(x.dims))]
            alike = (each, has_batch) == (x.each, x.has_batch)
            found.append(
                self.lifted(x, axes, has_batch, all_axes=True) if alike else self.expanded(x, dims, batch, each)
            )
        return found, each, has_batch

    def expanded(self, x: Value, dims: Sequence[Size], batch: Size, each: bool) -> str:
        """x repeated along axes of size 1, the batch and the examples."""
        name = self.lifted(x, len(dims), not sizes.is_one(batch))
        return self.add("Expand", name, self.size_list(self.shape_of(dims, batch, each)))

    def for_examples(self, x: Value) -> str:
        """The tensor of x with an axis for examples, and a value for each of them."""
        return x.name if x.each else self.expanded(x, x.dims, x.batch, True)

    def transpose(self, name: str, order: Sequence[int]) -> str:
        return name if list(order) == list(range(len(order))) else self.add("Transpose", name, perm=list(order))

    def slice(self, name: str, axis: int, start: Size, stop: Size, step: int = 1) -> str:
        """Elements from start up to stop along an axis of the expression."""
        return self.add("Slice", name, self.size(start), self.size(stop), self.ints(-axis - 1), self.ints(step))

    def cut(self, name: str, start: int, stop: int, axis: int = -1) -> str:
        """Elements from start up to stop along an axis of the file."""
        return self.add("Slice", name, self.ints(start), self.ints(stop), self.ints(axis), self.ints(1))

    def up_to(self, size: str) -> str:
        """0, 1, ... up to a size, exclusive."""
        return self.add("Range", self.constant(0, int), self.add("Squeeze", size, self.ints(0)), self.constant(1, int))

    def part(self, x: Value, start: int, count: int) -> str:
        """Some rows of x."""
        if x.dims and sizes.constant(x.dims[0]) == count and start == 0:
            return x.name
        return self.cut(x.name, start, start + count)

    def top(self, name: str, count: str, axis: int, largest: int = 1) -> tuple[str, str]:
        """The greatest elements along an axis of the file, or the smallest, in order; and their places."""
        places = self.add("TopK", name, count, outputs=2, axis=axis, largest=largest, sorted=1)
        return self.nodes[-1].output[0], places

    # ---- indices

    def as_indices(self, x: Value, dims: Sequence[Size] | None = None) -> Value:
        """Indices that are values of the graph, integers or whole numbers in floats, as int64; perhaps reshaped."""
        x = x if dims is None else self.with_axes(x, dims)
        return x._replace(name=self.add("Cast", x.name, to=self.helper.TensorProto.INT64))

    def hot(self, x: Value, n: Size) -> str:
        """Vectors of n elements with a 1 at each of such indices, along the last axis of the file."""
        return self.add("OneHot", self.as_indices(x).name, self.size(n), self.constant([0, 1]), axis=-1)

    def picked(self, count: Size, has_batch: bool, items: tuple[tuple[int, ...], ...] | None = None) -> Picked:
        """The list of the step, or another one, as indices, `count` for each batch element."""
        assert self.step is not None
        items, batch = self.step.items if items is None else items, self.step.batch
        name = next((n for n, columns in self.indices.items() if columns == items and any(map(bool, items))), None)
        if sizes.constant(tuple(map(len, items))) is None and name is None:
            return self._growing(items, has_batch)
        each = self.examples is not None
        if len(set(items)) == 1:
            name, each = self.ints(*items[0]), False
        elif name is None:
            parts = [self._index(column) for column in zip(*items)]
            name = parts[0][0] if len(parts) == 1 else self._side_by_side(parts, each)
            each = each and any(part_each for _, part_each in parts)
        return Picked(self.reshape(name, each, [batch, count]) if has_batch else name, each)

    def _index(self, column: Size) -> tuple[str, bool]:
        """One index as a list of length 1, and whether it differs from example to example."""
        if sizes.constant(column) is not None:
            return self.ints(column[0]), False
        for name, columns in self.indices.items():
            lengths = {len(g) for g in columns}
            for place in range(min(lengths)):
                if all(g[place] == c for g, c in zip(columns, column)):
                    each = self.examples is not None
                    return self.add("Slice", name, self.ints(place), self.ints(place + 1), self.ints(-1)), each
        found = sizes.formula(column, self.axes)
        if found is not None:
            return self.size(column), False
        raise self.refused(
            f"has an index that is {', '.join(map(str, column[:3]))}... for different inputs, which is neither one of "
            "them nor a constant; indices that are computed from inputs cannot be exported"
        )

    def _side_by_side(self, parts: Sequence[tuple[str, bool]], each: bool) -> str:
        if not each or not any(part_each for _, part_each in parts):
            return self.add("Concat", *[name for name, _ in parts], axis=0)
        one = self.size_list([EXAMPLES, (1,) * len(next(iter(self.indices.values())))])
        names = [name if part_each else self.add("Expand", name, one) for name, part_each in parts]
        return self.add("Concat", *names, axis=-1)

    def _growing(self, items: Sequence[tuple[int, ...]], has_batch: bool) -> Picked:
        """Indices that are not an input and whose number depends on sizes: a prefix of the longest list."""
        assert self.step is not None
        # One row per batch element, so that a prefix can be taken along both axes.
        shapes: list[tuple[int, ...]] = [(n, -1) if has_batch else (-1,) for n in self.step.batch]
        name = self._prefix([np.array(words, np.int64).reshape(shape) for words, shape in zip(items, shapes)])
        if name is None:
            raise self.refused(
                f"has indices that depend on the sizes of the inputs, such as {list(items[-1][:5])}, and are not a "
                "prefix of the longest list"
            )
        return Picked(name, False)

    def _prefix(self, tables: Sequence[Array]) -> str | None:
        """A slice of the last table from the beginning of all axes, with the current sizes; None if the other tables
        are no such slices."""
        last = tables[-1]
        if any((table != last[tuple(slice(n) for n in table.shape)]).any() for table in tables):
            return None
        name = self.constant(last, last.dtype.type)
        for axis in range(last.ndim):
            size = tuple(t.shape[axis] for t in tables)
            if sizes.constant(size) is None:
                name = self.add("Slice", name, self.ints(0), self.size(size), self.ints(axis))
        return name

    # ---- leaves

    def input_constant(self, step: Step) -> Value:
        """An input that is not an argument of the function: a constant, which may grow with the named axes."""
        has_batch = not sizes.is_one(step.batch)
        arrays = [
            v.reshape((*[d[t] for d in step.dims], *([step.batch[t]] if has_batch else []))).T
            for t, v in enumerate(step.values)
        ]
        name = self._prefix([np.ascontiguousarray(a) for a in arrays])
        if name is None:
            raise ExportError(
                "export: the function makes an input whose numbers depend on its arguments, which a file cannot do; "
                "compute them with operations, or pass them as an input of their own"
            )
        return Value(name, step.dims, step.batch, False)
