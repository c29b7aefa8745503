"""The table of converters: for each operation, the function that writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, Union

from dynet_cy.onnx.tracing import Step
from dynet_cy.onnx.writer import Value, Writer

# A converter adds nodes for a step with these arguments, and returns the tensor of its value, with axes as described in
# writer.py.  It returns a Value if whether that differs from example to example does not follow from the arguments.
Converter = Callable[[Writer, Step, list[Value]], Union[str, Value]]

CONVERTERS: dict[str, Converter] = {}

_DRAW = ["dropout", "dropout_dim", "dropout_batch", "block_dropout", "noise", "sample", "random_normal"]
_DRAW += ["random_uniform", "random_bernoulli", "random_gumbel", "vanilla_lstm_gates_noise"]
_DRAW += ["scaled_dot_product_attention_dropout", "residual_layer_norm_dropout"]

# Operations that cannot be exported, and the reason.  Other ops without a converter are listed in docs/onnx.md.
NOT_EXPORTABLE: dict[str, str] = {
    **dict.fromkeys(
        _DRAW, "draws random numbers, which a file cannot repeat; layers that drop elements do not after eval()"
    ),
    **dict.fromkeys(
        ("crf_log_partition", "crf_loss", "crf_marginals", "crf_viterbi"),
        "is a recurrence over the words, which is not written yet",
    ),
    "gates": "is made of single operations where values are computed, and nothing is computed for a file",
    "lgamma": "has no counterpart in ONNX",
    "inverse": "has no counterpart in ONNX",
    "logdet": "has no counterpart in ONNX but the determinant itself, which soon overflows",
    "constrained_softmax": "takes a number of rounds that depends on its values",
    "label_chain": "is a recurrence over the frames, which is not written yet",
    "continuations": "is a step of `beam_search`, which reads the values of each step",
}


C = TypeVar("C", bound=Converter)


def converts(*names: str) -> Callable[[C], C]:
    """Decorator: the function writes the operations of these names."""

    def put(converter: C) -> C:
        for name in names:
            if name in CONVERTERS:
                raise RuntimeError(f"operation {name} has two converters")
            CONVERTERS[name] = converter
        return converter

    return put
