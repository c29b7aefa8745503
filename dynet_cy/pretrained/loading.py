"""Reads encoders from folders in Hugging Face's layout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np

from dynet_cy.files.textfile import ModelFileError, ModelMismatchError
from dynet_cy.model import ParameterCollection
from dynet_cy.model.parameters import set_array
from dynet_cy.model.whole import CollectionOrLayer, as_collection
from dynet_cy.nn import Layer
from dynet_cy.nn.construction import all_parts
from dynet_cy.pretrained.bart import Bart, Marian
from dynet_cy.pretrained.bert import Albert, Bert, DistilBert, Electra, MPNet, Roberta
from dynet_cy.pretrained.config import Config, read_json
from dynet_cy.pretrained.deberta import Deberta
from dynet_cy.pretrained.encoder import Encoder
from dynet_cy.pretrained.gpt import GPT2
from dynet_cy.pretrained.llama import Llama, Qwen2, Qwen3
from dynet_cy.pretrained.model import Layout, Pretrained
from dynet_cy.pretrained.modernbert import ModernBert
from dynet_cy.pretrained.names import Table, older_name
from dynet_cy.pretrained.resnet import TORCHVISION, ResNet, torchvision_settings
from dynet_cy.pretrained.t5 import T5
from dynet_cy.pretrained.tensors import Tensors, find_files, open_tensors
from dynet_cy.pretrained.vit import ViT

__all__ = ["ARCHITECTURES", "load"]

FileName = Union[str, "os.PathLike[str]"]

_ENCODERS: tuple[type[Encoder], ...] = (Bert, Roberta, Electra, DistilBert, Albert, MPNet, Deberta, ModernBert)
_DECODERS: tuple[type[Encoder], ...] = (GPT2, Llama, Qwen2, Qwen3, T5, Bart, Marian)
_VISION: tuple[type[Pretrained], ...] = (ViT, ResNet)
_CLASSES = (*_ENCODERS, *_DECODERS, *_VISION)
ARCHITECTURES: dict[str, type[Pretrained]] = {name: cls for cls in _CLASSES for name in cls.model_types}
"""The class for each `model_type`."""


def load(path: FileName, model: CollectionOrLayer) -> Any:
    """A pretrained model from files in Hugging Face's layout, with its tokenizer; nothing is fetched.

    The folder has `config.json`, whose `model_type` decides the class; `model.safetensors` or `pytorch_model.bin`, or
    several of them and a `*.index.json`; and the files of the tokenizer. The numbers become float32. Names may have a
    prefix, such as `bert.`. What the encoder has no place for, such as the head of a language model, is left out; the
    encoder's text shows what was read and what was left. The encoder is in evaluation mode.

    A ResNet may also have torchvision's names, in a file alone, without `config.json`: the tensors say its settings.

    Args:
        path: the folder, or a file with tensors in it
        model: where the parameters go

    Raises:
        FileNotFoundError: a file is missing
        ModelFileError: a file is incomplete or something else, a setting is out of its range, or there is no such
            architecture
        ModelMismatchError: a tensor is missing, or has another shape than the settings say
        ImportError: the folder has a tokenizer, and there is no package `tokenizers`
        TypeError: `model` is not a `ParameterCollection`

    Example:
        >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> dy.pretrained.Bert({**config, "intermediate_size": 16}, model).save("folder")
        >>> bert = dy.pretrained.load("folder", model)
        >>> bert([2, 5, 7, 3]).dim()
        ((8, 4), 1)
    """
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(
            f"load: there is no file or folder {os.fspath(path)!r}; models are read from disk, nothing is fetched"
        )
    folder = place if place.is_dir() else place.parent
    file = find_files(folder) if place.is_dir() else place
    tensors = open_tensors(file)
    config, layout = _read_settings(folder / "config.json", tensors, str(file))
    config.numbers = tensors.numbers()
    collection = as_collection(model)
    if not isinstance(collection, ParameterCollection):
        raise TypeError(f"load: argument model: expected a ParameterCollection, got {type(model).__name__}")
    prefix = _prefix(layout.first_tensor, tensors, str(file))

    def fill(model: Pretrained) -> None:
        _fill(model, tensors, prefix, str(file), layout.names)
        model._read_folder(folder)

    # Within the constructor: a model that a cell of a notebook made before is replaced by one without errors only.
    cls: Any = _class_of(config)
    return cls(config, collection, *(prefix + name in tensors or name in tensors for name in layout.optional), fill)


def _read_settings(path: Path, tensors: Tensors, source: str) -> tuple[Config, Layout]:
    """The settings of a model, and how its files name tensors. Files of torchvision come without settings, and those of
    timm with others."""
    config = Config(read_json(path, "the settings of a model"), str(path)) if path.exists() else None
    if config is None or "model_type" not in config.values:
        found = torchvision_settings(tensors, source)
        if found is not None:
            return found, TORCHVISION
    if config is None:
        config = Config(read_json(path, "the settings of a model"), str(path))
    return config, _class_of(config)._layout()


def _class_of(config: Config) -> type[Pretrained]:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        there = ", ".join(sorted(ARCHITECTURES))
        raise ModelFileError(
            f"model_type is {kind!r:.80}; the architectures that can be read are {there}", config.source
        )
    return ARCHITECTURES[kind]


def _fill(encoder: Pretrained, tensors: Tensors, prefix: str, source: str, table: Table) -> None:
    """Set the parameters of a new model to the values of the tensors."""
    encoder._add_parts(tensors)
    goals = []
    for name, parameter in _paths(encoder):
        tensor = encoder.tensor_name(name, table)
        names = (prefix + tensor, prefix + older_name(tensor), tensor)
        full = next((n for n in names if n in tensors), None)
        if full is None:
            raise ModelMismatchError(f"there is no {prefix}{tensor}", source, parameter=prefix + tensor)
        shape, wanted = tensors[full].shape, encoder.to_file(name, np.broadcast_to(0, parameter.shape)).shape
        if shape != wanted:
            expected = f"has shape {shape}, {Path(encoder.config.source).name} says {wanted}"
            raise ModelMismatchError(expected, source, parameter=full)
        goals.append((name, parameter, full))
    for name, parameter, full in goals:
        set_array(parameter, encoder.from_file(name, tensors[full].floats()))
    used = {full for _, _, full in goals}
    encoder.report = _report(tensors, used)


def _paths(layer: Layer, above: str = "") -> Iterator[tuple[str, Any]]:
    """The parameters of a layer with their paths of attributes, which become their names when it is finished."""
    for part, name in all_parts(layer):
        path = above + layer._saved_name(name).replace("/", ".")
        if isinstance(part, Layer):
            yield from _paths(part, f"{path}.")
        else:
            yield path, part


def _prefix(known: str, tensors: Tensors, source: str) -> str:
    """What stands before the names of a model that is part of a larger one, such as `bert.`."""
    found = [name[: -len(known)] for name in tensors if name.endswith(known)]
    found = [prefix for prefix in found if prefix == "" or prefix.endswith(".")]
    if not found:
        raise ModelMismatchError(f"there is no {known}, with any prefix", source, parameter=known)
    return min(found, key=len)


def _report(tensors: Tensors, used: set[str]) -> str:
    # Counts of minibatches say nothing about a model.
    left = [name for name in tensors if name not in used and not name.endswith("num_batches_tracked")]
    return f"read {len(used)} tensors of {', '.join(tensors.files)}" + (f"; left {_listed(left)}" if left else "")


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
