"""The CUDA source of a custom op: what the program gives, and kernels that call it.

The program gives a text with functions `forward` and `backward`, which read and write arrays of `cuda/custom.cuh`, or
expressions, from which such functions are made. A program writes them as kernels, so `__global__` means `__device__` in
its text: the kernels that are launched are made here. They take all arrays and numbers as one parameter, and convert
them to the types that the functions declare.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["CudaSource", "source_of"]

_MOST_BYTES = 4096  # of the parameters of a kernel
_ARRAY, _NUMBER = 64, 8


class CudaSource(NamedTuple):
    """The source of the kernels `custom_forward` and, if there is a gradient, `custom_backward`."""

    text: str
    has_backward: bool
    elementwise: bool  # made of expressions: gradients have the shape of the result


def source_of(
    name: str, arguments: Sequence[str], keywords: Sequence[str], cuda: str | Mapping[str, str]
) -> CudaSource:
    """The source of the kernels of an op.

    Args:
        name: of the op, for messages.
        arguments: the names of its arguments.
        keywords: those of its keyword arguments, which kernels get as numbers.
        cuda: as `custom_op` takes it.

    Raises:
        TypeError: `cuda` is neither a text nor a dictionary of texts.
        ValueError: a name in it is not that of something to compute, or there are too many arguments.

    Example:
        >>> from dynet_cy.ops.cuda_source import source_of
        >>> source_of("fourth", ["x"], [], {"y": "x * x * x * x"}).has_backward
        False
    """
    if _ARRAY * (2 + 2 * len(arguments)) + _NUMBER * max(1, len(keywords)) > _MOST_BYTES:
        raise ValueError(f"{name}: {len(arguments)} arguments are too many for one kernel in CUDA")
    if isinstance(cuda, str):
        text, has_backward = _of_text(name, cuda)
    elif isinstance(cuda, Mapping):
        text, has_backward = _of_expressions(name, arguments, keywords, cuda)
    else:
        raise TypeError(
            f"{name}: cuda must be a text with kernels, or a dictionary of expressions, not {type(cuda).__name__}"
        )
    gradients = [f"d{x}" for x in arguments]
    kernels = _kernel(name, "forward", arguments, ["y"], keywords)
    if has_backward:
        kernels += _kernel(name, "backward", ["dy", "y", *arguments], gradients, keywords)
    return CudaSource(f'#include "custom.cuh"\n{text}\n{kernels}', has_backward, not isinstance(cuda, str))


def _line(where: str) -> str:
    """Let the next line be the first one of a file of that name, for messages of the compiler."""
    return '#line 1 "' + "".join(c for c in where if c.isprintable() and c not in '"\\') + '"\n'


def _kernel(name: str, kernel: str, inputs: Sequence[str], outputs: Sequence[str], keywords: Sequence[str]) -> str:
    arrays = [f"In {x}" for x in inputs] + [f"Out {x}" for x in outputs]
    given = [f"{x.split()[0]}(given.arrays[{i}])" for i, x in enumerate(arrays)]
    given += [f"given.numbers[{i}]" for i in range(len(keywords))]
    return (
        f'extern "C" __global__ void custom_{kernel}(const Given<{len(arrays)}, {max(1, len(keywords))}> given) {{\n'
        + _line(f"{name} calls {kernel}({', '.join([*arrays, *keywords])})")
        + f"{kernel}({', '.join(given)});\n}}\n"
    )


def _of_text(name: str, cuda: str) -> tuple[str, bool]:
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", cuda, flags=re.DOTALL)
    if not re.search(r"\bforward\s*\(", code):
        raise ValueError(f"{name}: cuda has no kernel named forward")
    text = (
        '#pragma push_macro("__global__")\n#undef __global__\n#define __global__ __device__\n'
        + _line(f"{name}")
        + f'{cuda}\n#pragma pop_macro("__global__")'
    )
    return text, bool(re.search(r"\bbackward\s*\(", code))


def _of_expressions(
    name: str, arguments: Sequence[str], keywords: Sequence[str], cuda: Mapping[str, str]
) -> tuple[str, bool]:
    for taken in ("y", "dy"):
        if taken in (*arguments, *keywords):
            what = "result" if taken == "y" else "gradient of the result"
            raise ValueError(f"{name}: no argument may be called {taken}, which is the {what} in cuda")
    known = ["y", *[f"d{x}" for x in arguments]]
    for key, value in cuda.items():
        if key not in known:
            raise ValueError(f"{name}: cuda has an expression for {key!r}, which is none of {known}")
        if not isinstance(value, str):
            raise TypeError(f"{name}: cuda[{key!r}] must be a text, not {type(value).__name__}")
    if "y" not in cuda:
        raise ValueError(f"{name}: cuda has no expression for 'y', the result")
    numbers = [f"float {x}" for x in keywords]
    own = [f"n{i}" for i in range(len(keywords))]
    values = [f"x{i}.repeated(y, i, b)" for i in range(len(arguments))]
    text = _function(name, cuda, "y", [*[f"float {x}" for x in arguments], *numbers])
    text += _loop("forward", [f"In x{i}" for i in range(len(arguments))], ["Out y"], own, {"y": ("y", values)})
    gradients = [x for x in arguments if f"d{x}" in cuda]
    if not gradients:
        return text, False
    for x in gradients:
        text += _function(name, cuda, f"d{x}", [f"float {a}" for a in ["dy", "y", *arguments]] + numbers)
    computed = {
        f"dx{i}": (f"d{x}" if x in gradients else "", ["dy.v[k]", "y.v[k]", *values]) for i, x in enumerate(arguments)
    }
    inputs = ["In dy", "In y", *[f"In x{i}" for i in range(len(arguments))]]
    return text + _loop("backward", inputs, [f"Out {x}" for x in computed], own, computed), True


def _function(name: str, cuda: Mapping[str, str], key: str, parameters: Sequence[str]) -> str:
    """A function that returns the value of an expression."""
    return (
        f"static __device__ __forceinline__ float value_of_{key}({', '.join(parameters)}) {{\nreturn (\n"
        + _line(f"{name}, cuda['{key}']")
        + f"{cuda[key]}\n);\n}}\n"
    )


def _loop(
    kernel: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    numbers: Sequence[str],
    computed: Mapping[str, tuple[str, Sequence[str]]],
) -> str:
    """A function that computes arrays of the shape of y: by which expression, and of which values."""
    parameters = ", ".join([*inputs, *outputs, *[f"float {x}" for x in numbers]])
    lines = [
        f"        {array}.v[k] = " + (f"value_of_{key}({', '.join([*values, *numbers])});" if key else "0.f;")
        for array, (key, values) in computed.items()
    ]
    return (
        f"static __device__ void {kernel}({parameters}) {{\n"
        "    for (EACH(k, y.size * y.batch)) {\n"
        "        const size_t b = k / y.size, i = k - b * y.size;\n" + "\n".join(lines) + "\n    }\n}\n"
    )
