"""The table of derivatives: each operation has a rule from the gradient of its result to those of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dynet_cy.derivatives.steps import Composition, Rule

# A rule takes a step and returns a contribution to the gradient of each live argument.
RULES: dict[str, Rule] = {}

# A composition computes the same as the operation from others that have rules, so theirs are followed instead.
COMPOSITIONS: dict[str, Composition] = {}

_PLACES = "its gradient goes to places that are known only when it runs"
_DRAWS = "it draws its mask itself; layers that drop elements do not after eval()"

# Operations without a second order, and the reason.  docs/training.md lists the others.
NO_SECOND_ORDER = {
    "constrained_softmax": "the rounds it takes depend on its values",
    "lgamma": "its derivative, the digamma function, is no operation",
    "sort": _PLACES,
    "kmax_pooling": _PLACES,
    "adaptive_maxpooling2d": _PLACES,
    "vanilla_lstm_gates_noise": "it draws the noise of its weights itself",
    "residual_layer_norm_dropout": _DRAWS,
    "scaled_dot_product_attention_dropout": _DRAWS,
}

F = TypeVar("F", bound=Callable[..., Any])


def _put(table: dict[str, Any], names: Iterable[str], made: Callable[[F], Any]) -> Callable[[F], F]:
    """Decorator: what is made of the function is the entry of the operations of these names."""

    def put(function: F) -> F:
        for name in names:
            if name in RULES or name in COMPOSITIONS:
                raise RuntimeError(f"operation {name} has two rules")
            table[name] = made(function)
        return function

    return put


def rule(*names: str) -> Callable[[F], F]:
    """Decorator: the function is the rule of the operations of these names."""
    return _put(RULES, names, lambda function: function)


def each(*names: str) -> Callable[[F], F]:
    """Decorator: the function, called with a step and the place of an argument, is the rule of these operations."""

    def for_all(function: F) -> Rule:
        return lambda step: [function(step, i) for i in step.node.live]

    return _put(RULES, names, for_all)


def composed(*names: str) -> Callable[[F], F]:
    """Decorator: the function, called with a step and its arguments, composes these operations of others."""
    return _put(COMPOSITIONS, names, lambda function: function)
