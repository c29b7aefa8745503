"""Low-rank adapters for linear layers of a frozen layer; files in the layout of peft."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

import numpy as np

from dynet_cy.files.reading import FileName
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError
from dynet_cy.functions.arguments import positive
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.model.parameters import set_array
from dynet_cy.nn import Dropout, Layer, Linear
from dynet_cy.nn.construction import all_parts
from dynet_cy.nn.layer import share
from dynet_cy.pretrained.config import Config, read_json
from dynet_cy.pretrained.model import Pretrained, in_text
from dynet_cy.pretrained.names import module_name
from dynet_cy.pretrained.saving import write_json, write_tensors
from dynet_cy.pretrained.tensors import Tensors, open_tensors
from dynet_cy.rnn.builder import positive_integer

Names = Union[str, Sequence[str]]

_CONFIG, _WEIGHTS, _OLDER = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_PREFIX = "base_model.model."


class LoRA(Layer):
    """Adds scale B A x to a linear layer (Hu et al., "LoRA: Low-rank adaptation of large language models", ICLR 2022).

    Parameters: those of the linear layer, and A (rank, input_dim), Glorot; B (output_dim, rank), zeros, so that the
    result is that of the linear layer at first.

    Args:
        base: the linear layer
        rank: the number of rows of A
        model: where A and B go
        scale: what the product is multiplied by
        dropout: rate of dropout of x before A, in training mode

    Example:
        >>> base = dy.nn.Linear(3, 2, model)
        >>> layer = dy.pretrained.LoRA(base, 1, model)
        >>> [name for name, p in layer.named_parameters()]
        ['base.W', 'base.b', 'A', 'B']
    """

    def __init__(
        self, base: Linear, rank: int, model: ParameterCollection, scale: float = 1.0, dropout: float = 0.0
    ) -> None:
        super().__init__(model)
        self.base = base
        self.rank = self._size(rank, "rank")
        self.scale = positive(scale, "LoRA", "argument scale")
        self.dropout = Dropout(dropout)
        self.A = self._matrix(self.rank, base.input_dim, "A")
        self.B = self.collection.add_parameters((base.output_dim, self.rank), init=0.0, name="B")

    def __call__(self, x: Expression) -> Expression:
        """The result of the linear layer, plus that of the adapter.

        Args:
            x: shape ``{input_dim}`` or ``{input_dim,n}``
        """
        return self.base(x) + (self.B * (self.A * self.dropout(x))) * self.scale

    def merged(self) -> Linear:
        """The linear layer, after the product of B and A has been added to its matrix.

        Example:
            >>> base = dy.nn.Linear(3, 2, model)
            >>> dy.pretrained.LoRA(base, 1, model).merged() is base
            True
        """
        change = self.scale * (self.B.as_array().astype(np.float64) @ self.A.as_array().astype(np.float64))
        set_array(self.base.W, (self.base.W.as_array() + change).astype(np.float32))
        return self.base


class _Place(NamedTuple):
    """A linear layer that is an attribute."""

    parent: Any
    attribute: str
    path: str
    module: str

    def layer(self) -> Any:
        return getattr(self.parent, self.attribute)

    def is_named(self, name: str) -> bool:
        """Whether a path here, or a name in files, is or ends with some name."""
        return any(full == name or full.endswith("." + name) for full in (self.path, self.module))


class Adapters:
    """The adapters in a layer, as `lora` makes them.

    Attributes:
        holder: the layer
        rank: that of the adapters
        alpha: `rank` times their scale
        dropout: its rate

    Example:
        >>> dy.pretrained.lora(dy.nn.GatedLinear(3, 2, model), 1, "all-linear")
        <Adapters of rank 1 in 2 layers: gate, value>
    """

    def __init__(self, holder: Layer, places: Sequence[_Place], rank: int, alpha: float, dropout: float) -> None:
        self.holder, self.places = holder, list(places)
        self.rank, self.alpha, self.dropout = rank, alpha, dropout

    def __repr__(self) -> str:
        return f"<Adapters of rank {self.rank} in {len(self.places)} layers: {', '.join(self._targets())}>"

    def __iter__(self) -> Iterator[LoRA]:
        return (place.layer() for place in self.places)

    def __len__(self) -> int:
        return len(self.places)

    def merge(self) -> None:
        """Add the adapters to the linear layers, which take their places again; they stay frozen.

        Example:
            >>> layer = dy.nn.GatedLinear(3, 2, model)
            >>> adapters = dy.pretrained.lora(layer, 1, "value")
            >>> adapters.merge()
            >>> list(layer.state_dict())
            ['value.W', 'value.b', 'gate.W', 'gate.b']
        """
        for place in self.places:
            adapter = place.layer()
            linear = adapter.merged()
            for matrix in (adapter.A, adapter.B):
                adapter.collection.remove(matrix)
            setattr(place.parent, place.attribute, linear)
        self.places = []

    def save(self, folder: FileName) -> None:
        """Write the adapters alone, in the layout of peft: `adapter_config.json` and `adapter_model.safetensors`.

        Args:
            folder: where to; it is made if it is not there

        Raises:
            ValueError: there are none, as they have been merged
            OSError: a file cannot be written

        Example:
            >>> layer = dy.nn.GatedLinear(3, 2, model)
            >>> dy.pretrained.lora(layer, 1, "value").save("adapters")
            >>> dy.pretrained.load_lora("adapters", dy.nn.GatedLinear(3, 2, model))
            <Adapters of rank 1 in 1 layers: value>
        """
        if not self.places:
            raise ValueError("Adapters.save: there are no adapters any more: they have been merged; save them before")
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for place in self.places:
            adapter = place.layer()
            tensors[f"{_PREFIX}{place.module}.lora_A.weight"] = adapter.A.as_array()
            tensors[f"{_PREFIX}{place.module}.lora_B.weight"] = adapter.B.as_array()
        write_tensors(where / _WEIGHTS, tensors)
        settings: dict[str, Any] = {"peft_type": "LORA", "task_type": None, "base_model_name_or_path": None}
        settings |= {"r": self.rank, "lora_alpha": self.alpha, "lora_dropout": self.dropout, "bias": "none"}
        write_json(where / _CONFIG, {**settings, "inference_mode": True, "target_modules": self._targets()})

    def _targets(self) -> list[str]:
        """The shortest names that mean these modules and no others: their last parts, or the whole names."""
        modules = {place.module for place in self.places}
        ends = sorted({module.rpartition(".")[2] for module in modules})
        others = (module for *_, module in _linears(self.holder) if module not in modules)
        return sorted(modules) if any(module.rpartition(".")[2] in ends for module in others) else ends


@in_text
def lora(
    holder: Layer,
    rank: int = 8,
    of: Names = ("query", "value"),
    alpha: float | None = None,
    dropout: float = 0.0,
) -> Adapters:
    """Freeze a layer, and give some of the linear layers in it an adapter, which is trained instead of them.

    A new head or classifier of a pretrained model, which has random numbers, is trained beside the adapters and gets
    none, as in peft; one that was read from files is frozen with the rest.

    Args:
        holder: an encoder, or another layer
        rank: the rank of what is added to each matrix
        of: which linear layers: the ends of their paths here, or of their names in files, as peft takes them:
            "query", "attention.output", "output.dense"; "all-linear" for all of them, except those of a new head
        alpha: `rank` times what the adapters are multiplied by; None, the default: `rank`
        dropout: rate of dropout before the adapters, in training mode

    Returns:
        The adapters, with `merge()` and `save(folder)`.

    Raises:
        TypeError: `holder` is not a layer, or `rank` is not an integer
        ValueError: a number is out of its range, there is no linear layer of such a name, or it has an adapter

    Example:
        >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model)
        >>> adapters = dy.pretrained.lora(bert, rank=2)
        >>> [name for name, p in bert.named_parameters() if p.is_updated()][:2]
        ['layers.0.attention.query.A', 'layers.0.attention.query.B']
        >>> adapters.merge()
    """
    if not isinstance(holder, Layer):
        raise TypeError(f"lora: argument holder: expected a layer, got {type(holder).__name__}")
    rank = positive_integer(rank, "lora", "rank")
    alpha = positive(rank if alpha is None else alpha, "lora", "argument alpha")
    return _added(holder, _chosen(holder, [of] if isinstance(of, str) else of), rank, alpha, alpha / rank, dropout)


def load_lora(folder: FileName, holder: Layer) -> Adapters:
    """Load adapters from a folder in the layout of peft into a layer, as `lora` adds them.

    Args:
        folder: the folder
        holder: the encoder that they were made for, or another layer

    Raises:
        FileNotFoundError: a file is missing
        ModelFileError: a file is incomplete or something else, or has adapters of another kind
        ModelMismatchError: there is no such linear layer, or its shape is another
        ValueError: a linear layer has an adapter already

    Example:
        >>> layer = dy.nn.GatedLinear(3, 2, model)
        >>> dy.pretrained.lora(layer, 1, "gate").save("adapters")
        >>> other = dy.nn.GatedLinear(3, 2, model)
        >>> adapters = dy.pretrained.load_lora("adapters", other)
        >>> [name for name, p in other.named_parameters() if p.is_updated()]
        ['gate.A', 'gate.B']
    """
    where = Path(folder)
    config = Config(read_json(where / _CONFIG, "the settings of adapters"), str(where / _CONFIG))
    config.choice("peft_type", ("LORA",))
    config.choice("bias", ("none",), "none")
    config.only("use_dora", False)
    for key in ("rank_pattern", "alpha_pattern", "modules_to_save"):
        if config.get(key):
            raise config.wrong(key, "nothing else")
    rank, alpha = config.size("r"), config.number("lora_alpha")
    file = where / (_OLDER if not (where / _WEIGHTS).exists() and (where / _OLDER).exists() else _WEIGHTS)
    tensors = open_tensors(file)
    scale = alpha / rank**0.5 if config.flag("use_rslora") else alpha / rank
    places = _matched(holder, tensors, rank, str(file))
    found = _added(holder, list(places), rank, scale * rank, scale, config.rate("lora_dropout", 0.0))
    for place, names in places.items():
        adapter = place.layer()
        for parameter, name in zip((adapter.A, adapter.B), names):
            set_array(parameter, tensors[name].floats())
    return found


def _matched(holder: Layer, tensors: Tensors, rank: int, source: str) -> dict[_Place, tuple[str, str]]:
    """For each linear layer with an adapter in the files the names of A and B, after a check of their shapes."""
    modules = {place.module: place for place in _linears(holder)}
    found = {}
    for name in tensors:
        match = re.fullmatch(r"(.*)\.lora_([AB])\.(?:default\.)?weight", name)
        if match is None:
            raise ModelMismatchError("is not a matrix of an adapter", source, parameter=name)
        if match[2] == "B":
            continue
        full = match[1]
        place = next((modules[end] for end in _ends(full) if end in modules), None)
        if place is None:
            raise ModelMismatchError("there is no such linear layer", source, parameter=name)
        other = f"{full}.lora_B{name[len(full) + len('.lora_A') :]}"
        linear = place.layer()
        shapes = {name: (rank, linear.input_dim), other: (linear.output_dim, rank)}
        for one, shape in shapes.items():
            if one not in tensors:
                raise ModelMismatchError(f"there is no {one}", source, parameter=one)
            if tensors[one].shape != shape:
                raise ModelMismatchError(f"has shape {tensors[one].shape}, not {shape}", source, parameter=one)
        found[place] = name, other
    if not len(tensors):
        raise ModelFileError("it has no adapters", source)
    if 2 * len(found) != len(tensors):
        raise ModelFileError("it has matrices B without A", source)
    return found


def _ends(name: str) -> Iterator[str]:
    """A name, and what follows each of its dots."""
    while name:
        yield name
        name = name.partition(".")[2]


def _added(holder: Layer, places: Sequence[_Place], rank: int, alpha: float, scale: float, dropout: float) -> Adapters:
    """Freeze a layer and wrap its linear layers."""
    for place in places:
        if isinstance(place.parent, LoRA):
            raise ValueError(f"lora: {place.path} has an adapter already; merge it first")
    dropout = share(dropout, "lora", "dropout")
    holder.set_updated(False)
    for part in _new_parts(holder):
        part.set_updated(True)
    for place in places:
        adapter = LoRA(place.layer(), rank, place.parent.collection, scale, dropout)
        adapter.train(holder.training)
        setattr(place.parent, place.attribute, adapter)
    return Adapters(holder, places, rank, alpha, dropout)


def _chosen(holder: Layer, names: Sequence[str]) -> list[_Place]:
    """The linear layers of some names."""
    new = {id(layer) for part in _new_parts(holder) for layer in _all_layers(part)}
    there = [place for place in _linears(holder) if id(place.layer()) not in new]
    if not there:
        raise ValueError(f"lora: argument holder: there is no linear layer in {type(holder).__name__}")
    if not names:
        raise ValueError("lora: argument of: expected names of linear layers, got none")
    if list(names) == ["all-linear"]:
        return there
    for name in names:
        if not any(place.is_named(name) for place in there):
            ends = sorted({place.path.rpartition(".")[2] for place in there})
            raise ValueError(f"lora: argument of: no linear layer is named {name!r:.80}; there are {', '.join(ends)}")
    return [place for place in there if any(place.is_named(name) for name in names)]


def _new_parts(holder: Layer) -> list[Layer]:
    """The heads and classifiers with random numbers in pretrained models within a layer."""
    models = [layer for layer in _all_layers(holder) if isinstance(layer, Pretrained)]
    return [getattr(model, name) for model in models for name in model.new_parts if getattr(model, name) is not None]


def _all_layers(holder: Layer) -> Iterator[Layer]:
    """A layer, and all within it."""
    yield holder
    for part in holder.sublayers():
        if isinstance(part, Layer):
            yield from _all_layers(part)


def _linears(holder: Layer) -> Iterator[_Place]:
    """The linear layers within a layer that are attributes, each once. That of an adapter has the adapter's name."""
    table = holder.names if isinstance(holder, Pretrained) else {}
    seen: set[int] = set()

    def below(layer: Any, path: str) -> Iterator[_Place]:
        for part, name in all_parts(layer):
            full = f"{path}{name.replace('/', '.')}"
            if not isinstance(part, Layer) or id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, Linear) and "/" not in name:
                module = full[: -len(".base")] if isinstance(layer, LoRA) else full
                yield _Place(layer, name, module, module_name(table, module) or module)
            yield from below(part, f"{full}.")

    return below(holder, "")
