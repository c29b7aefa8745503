"""Converters of convolutions and pooling. Images are rows x columns x channels, in files channels x columns x rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynet_cy.onnx import sizes
from dynet_cy.onnx.converters import converts
from dynet_cy.onnx.sizes import Size
from dynet_cy.onnx.tracing import Step
from dynet_cy.onnx.writer import Value, Writer


def images(w: Writer, x: Value, axes: int) -> str:
    """x with exactly one leading axis, as ONNX requires of images."""
    x = w.with_rank(x, axes)
    if x.lead == 1:
        return x.name
    return w.add("Reshape", x.name, w.size_list([(-1,) * len(x.batch), *reversed(x.dims)]))


def from_images(w: Writer, step: Step, name: str, x: Value) -> str:
    """The result in the shape of the step, from one of `images` of x."""
    return name if x.lead == 1 else w.add("Reshape", name, w.size_list(w.shape_of(step.dims, step.batch, x.each)))


def shared(w: Writer, x: Value, what: str) -> Value:
    if x.lead:
        raise w.refused(f"has {what} that differ from example to example")
    return x


def padding(around: Sequence[int] | None) -> dict[str, Any]:
    """The attribute for rows and columns of padding on each side; None: what keeps the size."""
    if around is None:
        return {"auto_pad": "SAME_UPPER"}
    return {"pads": [*around[::-1]] * 2} if any(around) else {"auto_pad": "VALID"}


def halves(w: Writer, k: int) -> tuple[list[int], list[int]]:
    """The lower and the upper halves of attributes k + 1 and k: those of columns first, as in files."""
    words = [w.whole(k + 1), w.whole(k)]
    return [word & 0xFFFF for word in words], [word >> 16 & 0xFFFF for word in words]


def geometry(w: Writer) -> dict[str, Any]:
    """The attributes of a convolution: strides and, in their upper halves, dilations; the padding; groups."""
    strides, dilations = halves(w, 0)
    around = w.whole(2) - 1
    return {
        "strides": strides,
        "dilations": [max(n, 1) for n in dilations],
        **padding(None if around < 0 else (around & 0x7FFF, around >> 15)),
        "group": max(w.whole(3), 1),
    }


def set_pads(w: Writer, x: Value, window: Sequence[Size], how: dict[str, Any]) -> None:
    """Replace `auto_pad` by the number of zeros before columns and rows, and after them, where it does not do.

    onnxruntime does not support it with dilation, and takes negative numbers for strides longer than the window.

    Args:
        window: its columns and rows.
        how: the attributes of the operator, which are changed.
    """
    strides, dilations = how["strides"], how.get("dilations", [1, 1])
    reach = [(n[0] - 1) * dilation + 1 for n, dilation in zip(window, dilations)]
    if how.get("auto_pad") != "SAME_UPPER" or (dilations == [1, 1] and all(r >= s for r, s in zip(reach, strides))):
        return
    columns_and_rows = [*x.dims, w.one, w.one][1::-1]
    pads = [pads_of(w, *along) for along in zip(columns_and_rows, reach, strides)]
    how["auto_pad"] = "NOTSET"
    how["pads"] = [total // 2 for total in pads] + [total - total // 2 for total in pads]


def pads_of(w: Writer, size: Size, reach: int, stride: int) -> int:
    """The zeros before and after an axis, for a window that reaches over so many elements."""
    n = sizes.constant(size)
    if reach == 1:
        return 0
    if n is None:
        raise w.refused("has is_valid=False, with dilation or a stride above the window, for images of unknown size")
    return max((-(-n // stride) - 1) * stride + reach - n, 0)


@converts("conv2d", "conv2d_bias")
def conv2d(w: Writer, step: Step, args: list[Value]) -> str:
    filters = w.with_rank(shared(w, args[1], "filters"), 4)
    more = [w.flat(shared(w, b, "a bias")).name for b in args[2:]]
    how = geometry(w)
    set_pads(w, args[0], [filters.dims[1], filters.dims[0]], how)
    return from_images(w, step, w.add("Conv", images(w, args[0], 3), filters.name, *more, **how), args[0])


@converts("conv_transpose2d")
def conv_transpose2d(w: Writer, step: Step, args: list[Value]) -> str:
    filters = w.with_rank(shared(w, args[1], "filters"), 4)
    how = geometry(w)
    if how.pop("auto_pad") != "VALID":  # the result has the size of x times the stride: crop what exceeds it
        reach = [
            dilation * (size[0] - 1) + 1 for dilation, size in zip(how["dilations"], (filters.dims[1], filters.dims[0]))
        ]
        over = [r - stride for r, stride in zip(reach, how["strides"])]
        begin = [max(n, 0) // 2 for n in over]
        how["pads"] = [*begin, *(max(n, 0) - b for n, b in zip(over, begin))]
        how["output_padding"] = [max(-n, 0) for n in over]
    return from_images(w, step, w.add("ConvTranspose", images(w, args[0], 3), filters.name, **how), args[0])


@converts("maxpooling2d", "avgpooling2d")
def pooling(w: Writer, step: Step, args: list[Value]) -> str:
    """Averages do not count the part of a window outside of the image, as in the library."""
    rows = w.whole(0)
    window = [w.whole(1), abs(rows)]
    strides, around = halves(w, 2)
    how: dict[str, Any] = {"strides": strides, **padding(around[::-1] if rows > 0 else None)}
    set_pads(w, args[0], [(n,) for n in window], how)
    operator = "MaxPool" if step.op == "maxpooling2d" else "AveragePool"
    found = w.add(operator, images(w, args[0], 3), kernel_shape=window, **how)
    in_shape = args[0].lead == 1 and len(step.dims) < 3
    return w.to(found, args[0].each, step.dims, step.batch) if in_shape else from_images(w, step, found, args[0])


@converts("filter1d_narrow")
def filter1d_narrow(w: Writer, step: Step, args: list[Value]) -> str:
    """A matrix is a line of columns, whose rows are channels."""
    filters = w.with_rank(shared(w, args[1], "filters"), 3)
    channels_first = w.transpose(images(w, args[0], 2), [0, 2, 1])
    found = w.add("Conv", channels_first, w.transpose(filters.name, [0, 2, 1]), auto_pad="VALID")
    return from_images(w, step, w.transpose(found, [0, 2, 1]), args[0])


def windows(w: Writer, size: Size, count: Size) -> list[tuple[int, int]]:
    """The beginnings and ends of `count` windows that cover an axis of that size evenly."""
    n, out = sizes.constant(size), sizes.constant(count)
    if n is None or out is None:
        raise w.refused("needs images whose size is known")
    return [(k * n // out, -(-(k + 1) * n // out)) for k in range(out)]


@converts("adaptive_avgpooling2d", "adaptive_maxpooling2d")
def adaptive_pooling(w: Writer, step: Step, args: list[Value]) -> str:
    """Along rows, then along columns; means as products with a matrix."""
    x = w.with_rank(args[0], len(step.dims))
    name = x.name
    for axis in (0, 1):
        cuts = windows(w, x.dims[axis], step.dims[axis])
        if step.op == "adaptive_maxpooling2d":
            parts = []
            for start, stop in cuts:
                part = w.cut(name, start, stop, -axis - 1)
                parts.append(w.add("ReduceMax", part, w.ints(-axis - 1), keepdims=1))
            name = w.add("Concat", *parts, axis=-axis - 1)
            continue
        mean = np.zeros((x.dims[axis][0], len(cuts)))
        for k, (start, stop) in enumerate(cuts):
            mean[start:stop, k] = 1 / (stop - start)
        name = w.add("MatMul", name, w.constant(mean)) if axis == 0 else w.add("MatMul", w.constant(mean.T), name)
    return name
