"""Reads models from folders in Hugging Face's layout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dynet_cy.files.reading import FileName
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError
from dynet_cy.model.given import collection_of
from dynet_cy.model.parameters import set_array
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.nn import Layer
from dynet_cy.nn.construction import all_parts
from dynet_cy.pretrained.bart import Bart, Marian
from dynet_cy.pretrained.bert import Albert, Bert, DistilBert, Electra, MPNet, Roberta
from dynet_cy.pretrained.config import Config, read_json
from dynet_cy.pretrained.deberta import Deberta
from dynet_cy.pretrained.decoder import Generator
from dynet_cy.pretrained.encoder import Encoder
from dynet_cy.pretrained.gpt import GPT2
from dynet_cy.pretrained.heads import KINDS, Labels, label_names, with_labels
from dynet_cy.pretrained.llama import Llama, Qwen2, Qwen3, SmolLM3
from dynet_cy.pretrained.model import Layout, Pretrained, in_text
from dynet_cy.pretrained.modernbert import ModernBert
from dynet_cy.pretrained.names import Table, older_name
from dynet_cy.pretrained.resnet import TORCHVISION, ResNet, torchvision_settings
from dynet_cy.pretrained.t5 import T5
from dynet_cy.pretrained.tables import HalfTable
from dynet_cy.pretrained.tensors import Tensors, find_files, open_tensors
from dynet_cy.pretrained.vision import VisionModel
from dynet_cy.pretrained.vit import ViT

_LABELLED = ("sequence", "token")  # the kinds of heads with labels
_ENCODERS: tuple[type[Encoder], ...] = (Bert, Roberta, Electra, DistilBert, Albert, MPNet, Deberta, ModernBert)
_DECODERS: tuple[type[Encoder], ...] = (GPT2, Llama, Qwen2, Qwen3, SmolLM3, T5, Bart, Marian)
_VISION: tuple[type[Pretrained], ...] = (ViT, ResNet)
_CLASSES = (*_ENCODERS, *_DECODERS, *_VISION)
ARCHITECTURES: dict[str, type[Pretrained]] = {name: cls for cls in _CLASSES for name in cls.model_types}
"""The class for each `model_type`."""


@in_text
def load(
    path: FileName,
    model: CollectionOrLayer,
    *,
    head: str | None = None,
    labels: Labels | None = None,
    tables: str = "float32",
) -> Any:
    """A pretrained model from files in Hugging Face's layout, with its tokenizer; nothing is fetched.

    The folder has `config.json`, whose `model_type` decides the class; `model.safetensors` or `pytorch_model.bin`, or
    several of them and a `*.index.json`; and the files of the tokenizer. The numbers become float32. Names may have a
    prefix, such as `bert.`. What the encoder has no place for, such as the head of a language model, is left out; the
    encoder's text shows what was read and what was left. The encoder is in evaluation mode.

    A ResNet may also have torchvision's names, in a file alone, without `config.json`: the tensors say its settings.

    Args:
        path: the folder, or a file with tensors in it
        model: where the parameters go
        head: for encoders, what `scores` computes: None, the default: nothing; "masked": scores of the pieces that may
            stand in each place; "sequence": scores of the labels of a text; "token": scores of the labels of each piece
        labels: their number, or their names, for a new head with random numbers in place of that of the files, or, for
            models of images, a new classifier; None, the default: the files have a head. Whatever else is missing is an
            error.
        tables: for encoders, "bfloat16" for a table of pieces that is kept in half the bytes, and not trained; of XLM-R
            base, 384 MB in place of 768. Rows become float32 when they are looked up. Default: "float32"

    Raises:
        FileNotFoundError: a file is missing
        ModelFileError: a file is incomplete or something else, a setting is out of its range, or there is no such
            architecture
        ModelMismatchError: a tensor is missing, or has another shape than the settings say
        ImportError: the folder has a tokenizer, and there is no package `tokenizers`
        TypeError: `model` is not a `ParameterCollection`
        ValueError: there is no such head, labels are given to another one than those of texts and pieces, two labels
            have one name, there are no such tables, or the table is needed in float32

    Example:
        >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> dy.pretrained.Bert({**config, "intermediate_size": 16}, model).save("folder")
        >>> bert = dy.pretrained.load("folder", model)
        >>> bert([2, 5, 7, 3]).dim()
        ((8, 4), 1)
        >>> tagger = dy.pretrained.load("folder", model, head="token", labels=["noun", "verb", "other"])
        >>> tagger.scores([2, 5, 7, 3]).dim()
        ((3, 4), 1)
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
    collection = collection_of(model, "load")
    cls: Any = _class_of(config)
    prefix = _prefix(layout.first_tensor, tensors, str(file))
    further = _for_encoders(cls, head, tables)
    present = [prefix + name in tensors or name in tensors for name in layout.optional]
    if labels is not None:
        if issubclass(cls, VisionModel):
            present[-1] = True
        elif head not in _LABELLED:
            expected = f"expected head='sequence' or head='token' with it, got head={head!r}"
            raise ValueError(f"load: argument labels: {expected}")
        config.values = with_labels(config.values, label_names(labels, "load"))
    elif head in _LABELLED:
        _check_kind(config, head)

    def fill(model: Pretrained) -> None:
        _fill(model, tensors, prefix, str(file), layout.names, labels is not None)
        model._read_folder(folder)

    # Within the constructor: a model that a cell of a notebook made before is replaced by one without errors only.
    return cls(config, collection, *present, fill, **further)


def _has_heads(cls: type[Pretrained]) -> bool:
    """Whether the models of a class get a head by the argument `head`."""
    return issubclass(cls, Encoder) and not issubclass(cls, Generator)


def _for_encoders(cls: type[Pretrained], head: str | None, tables: str) -> dict[str, str | None]:
    """The arguments that only encoders have."""
    if _has_heads(cls):
        return {"head": head, "tables": tables}
    if head is not None:
        expected = f"encoders of texts have one; the head of {cls.__name__} is read if it is there"
        raise ValueError(f"load: argument head: {expected}")
    if tables != "float32":
        expected = f"only encoders of texts have other tables than float32, got {tables!r:.80} for {cls.__name__}"
        raise ValueError(f"load: argument tables: {expected}")
    return {}


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


def _fill(model: Any, tensors: Tensors, prefix: str, source: str, table: Table | None, new_head: bool) -> None:
    """Set the parameters of a new model to the values of the tensors, perhaps except those of its head."""
    model._add_parts(tensors)
    goals, new = [], set()
    head = f"{model.head_name}."
    for name, parameter in _paths(model):
        tensor = model.tensor_name(name, table)
        names = (prefix + tensor, prefix + older_name(tensor), tensor, older_name(tensor))
        full = next((n for n in names if n in tensors), None)
        top = name.startswith((head, "pooler."))
        if new_head and (name.startswith(head) or (top and full is None)):
            new.add(name.partition(".")[0])
            continue
        if full is None:
            before = "" if name.startswith(head) else prefix
            hint = "; `labels=` makes a new head" if top and _has_heads(type(model)) and model.labels else ""
            raise ModelMismatchError(f"there is no {before}{tensor}{hint}", source, parameter=before + tensor)
        shape, wanted = tensors[full].shape, model.to_file(name, np.broadcast_to(0, parameter.shape)).shape
        if shape != wanted:
            expected = f"has shape {shape}, {Path(model.config.source).name} says {wanted}"
            raise ModelMismatchError(expected, source, parameter=full)
        goals.append((name, parameter, full))
    for name, parameter, full in goals:
        if isinstance(parameter, HalfTable):
            parameter.numbers = tensors[full].halves()
        else:
            set_array(parameter, model.from_file(name, tensors[full].floats()))
    model.new_parts = tuple(sorted(new))
    used = {full for _, _, full in goals}
    model.report = _report(tensors, used) + _advice(model)


def _paths(layer: Layer, above: str = "") -> Iterator[tuple[str, Any]]:
    """The parameters of a layer, and its tables in bfloat16, with their paths of attributes, which become the names of
    parameters when it is finished."""
    for part, name in all_parts(layer):
        path = above + layer._saved_name(name).replace("/", ".")
        if isinstance(part, HalfTable):
            yield f"{path}.table", part
        elif isinstance(part, Layer):
            yield from _paths(part, f"{path}.")
        else:
            yield path, part


def _prefix(known: str, tensors: Tensors, source: str) -> str:
    """The prefix of the names of a model that is part of a larger one, such as `bert.`."""
    found = [name[: -len(known)] for name in tensors if name.endswith(known)]
    found = [prefix for prefix in found if prefix == "" or prefix.endswith(".")]
    if not found:
        raise ModelMismatchError(f"there is no {known}, with any prefix", source, parameter=known)
    return min(found, key=len)


def _report(tensors: Tensors, used: set[str]) -> str:
    # Counts of minibatches say nothing about a model.
    left = [name for name in tensors if name not in used and not name.endswith("num_batches_tracked")]
    return f"read {len(used)} tensors of {', '.join(tensors.files)}" + (f"; left {_listed(left)}" if left else "")


def _advice(model: Any) -> str:
    """How the head is read that is left, if the settings say of which kind it is."""
    kind = next(iter(_kinds(model.config)), None)
    there = kind is not None and _has_heads(type(model)) and model.kind is None
    return f" (head={kind!r} reads the head)" if there else ""


def _kinds(config: Config) -> list[str]:
    """The kinds of heads that files have, as far as the settings say it."""
    classes = config.get("architectures")
    ends = [str(name).partition("For")[2] for name in classes] if isinstance(classes, list) else []
    return [kind for kind, end in KINDS.items() if end in ends]


def _check_kind(config: Config, head: str) -> None:
    """Refuse to read a head for labels of texts as one for those of pieces, or the other way round: their tensors may
    have the same names."""
    there = [kind for kind in _kinds(config) if kind in _LABELLED]
    if there and head not in there:
        hint = f"head={there[0]!r} reads its head, and labels=[...] makes a new one"
        raise config.wrong("architectures", f"one that ends with {KINDS[head]} for head={head!r}: {hint}; this")


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
