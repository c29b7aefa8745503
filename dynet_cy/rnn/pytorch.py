"""Weights of PyTorch's recurrent networks, for builders and back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dynet_cy.files.textfile import ModelMismatchError
from dynet_cy.hints.equivalents import KnownArguments
from dynet_cy.model.parameters import settled_array
from dynet_cy.model.weights import Array, Weights, uniform

if TYPE_CHECKING:
    from dynet_cy.rnn.builder import _RNNBuilder

Part = tuple["_RNNBuilder", int, str]


class LikePyTorch(KnownArguments):
    """Base class of builders whose weights may be those of PyTorch."""

    def _pytorch_parts(self) -> Sequence[Part]:
        """For each layer and direction: the builder, the layer in it, and the ending of PyTorch's names."""
        raise NotImplementedError

    def load_pytorch(self, weights: Mapping[str, Any] | str | os.PathLike[str] | Any, prefix: str = "") -> None:
        """Set the parameters to those of PyTorch's network: ``nn.LSTM``, ``nn.GRU``, ``nn.RNN`` with as many layers, or
        ``nn.LSTMCell``, ``nn.GRUCell``, ``nn.RNNCell``. Outputs agree to 1e-5.

        The gates get the order of the builder, the two biases are summed, and the forget bias of an LSTM, which is
        added here, is subtracted. A `GRUBuilder` needs ``reset_after=True``.

        Args:
            weights: the module, its ``state_dict()``, arrays by name, or the name of a safetensors file
            prefix: the beginning of the names of this network, such as `encoder.`; other names are ignored

        Raises:
            ModelMismatchError: an array is missing, has another shape, or has no place here; nothing was changed
            ModelFileError: not a whole safetensors file
            OSError: the file cannot be read
            NotImplementedError: PyTorch has no such network

        Example:
            >>> rnn = dy.LSTMBuilder(1, 3, 4, model)
            >>> other = dy.LSTMBuilder(1, 3, 4, model)
            >>> other.load_pytorch(rnn.pytorch_state_dict())
        """
        found = Weights.of(weights, prefix)
        nonlinearity = getattr(weights, "nonlinearity", "tanh")
        if nonlinearity != "tanh":
            raise ModelMismatchError(f"computes with {nonlinearity}, the builder with tanh", found.source)
        self._take_pytorch(found)
        found.finish()

    def _take_pytorch(self, weights: Weights) -> None:
        """Take the arrays of this network, and assign them to parameters."""
        parts = self._pytorch_parts()
        for builder, layer, ending in parts:
            if len(parts) == 1 and weights.has("weight_ih"):
                ending = ""  # a cell
            parameters = builder._parameters[layer]
            size, n = builder.hidden_dim if layer else builder.input_dim, builder.hidden_dim
            rows = builder._pytorch_gates() * n
            w_ih, w_hh = (weights.pop(f"weight_{k}{ending}", (rows, s)) for k, s in (("ih", size), ("hh", n)))
            if weights.has(f"bias_ih{ending}") or weights.has(f"bias_hh{ending}"):
                b_ih, b_hh = (weights.pop(f"bias_{k}{ending}", (rows,)) for k in ("ih", "hh"))
            else:
                b_ih = b_hh = np.zeros(rows, np.float32)
            for parameter, array in zip(parameters, builder._from_pytorch(w_ih, w_hh, b_ih, b_hh)):
                weights.put(parameter, array)

    def _as_pytorch(self) -> None:
        """Set the initial values of PyTorch, uniform in ±1/sqrt(hidden_dim), if it has such a network."""
        hidden_dim = self._pytorch_parts()[0][0].hidden_dim
        try:
            arrays = self.pytorch_state_dict()
        except NotImplementedError:
            return
        self.load_pytorch({name: uniform(array.shape, hidden_dim**-0.5) for name, array in arrays.items()})

    def pytorch_state_dict(self, prefix: str = "", cell: bool = False) -> dict[str, npt.NDArray[np.float32]]:
        """The parameters as PyTorch's network has them: by its names, in its order of gates, as new arrays. The bias is
        ``bias_ih``, and ``bias_hh`` is zero, except for that of n in a GRU.

        In PyTorch: ``module.load_state_dict({k: torch.from_numpy(a) for k, a in rnn.pytorch_state_dict().items()})``.

        Args:
            prefix: the beginning of the names, such as `encoder.`
            cell: names of a cell: `weight_ih` instead of `weight_ih_l0`; for one layer in one direction

        Raises:
            ValueError: `cell`, and there are several layers or directions
            NotImplementedError: PyTorch has no such network

        Example:
            >>> rnn = dy.LSTMBuilder(1, 3, 4, model)
            >>> {name: array.shape for name, array in rnn.pytorch_state_dict().items()}
            {'weight_ih_l0': (16, 3), 'weight_hh_l0': (16, 4), 'bias_ih_l0': (16,), 'bias_hh_l0': (16,)}
        """
        parts = self._pytorch_parts()
        if cell and len(parts) > 1:
            raise ValueError(
                f"{type(self).__name__}.pytorch_state_dict: argument cell: a cell is one layer in one direction, and "
                f"this has {len(parts)}"
            )
        found = {}
        for builder, layer, ending in parts:
            builder._pytorch_gates()
            arrays = builder._to_pytorch([settled_array(p) for p in builder._parameters[layer]])
            for name, array in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), arrays):
                found[f"{prefix}{name}{'' if cell else ending}"] = np.ascontiguousarray(array, np.float32)
        return found


def rows_of(array: Array, order: Sequence[int]) -> Array:
    """The blocks of rows of an array, in another order."""
    blocks = np.split(array, len(order))
    return np.concatenate([blocks[k] for k in order])
