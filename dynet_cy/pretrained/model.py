"""The base class of pretrained models: settings, names, files, and learning rates by depth."""

from __future__ import annotations

import abc
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, ClassVar, NamedTuple, Optional, TypeVar, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.files.reading import FileName
from dynet_cy.files.replacing import write_file
from dynet_cy.functions.arguments import known_arguments
from dynet_cy.graph import Expression
from dynet_cy.graph.regions import checkpoint
from dynet_cy.model import ParameterCollection
from dynet_cy.nn import Layer
from dynet_cy.pretrained.config import Config
from dynet_cy.pretrained.heads import label_names, labels_of, with_labels
from dynet_cy.pretrained.names import Table, tensor_name
from dynet_cy.pretrained.saving import write_json, write_tensors
from dynet_cy.train import Trainer

_BARE = ("head.", "bias.", "mixtures.", "classifier.")  # the parameters whose names in files have no prefix

ConfigLike = Union[Config, Mapping[str, Any], str]
Fill = Optional[Callable[[Any], None]]


_Function = TypeVar("_Function", bound=Callable[..., Any])


def in_text(function: _Function) -> _Function:
    """Add advice for arguments of `transformers` to the errors of a function."""
    return known_arguments(function, "text")


class Layout(NamedTuple):
    """Names of tensors in files."""

    first_tensor: str
    """A tensor that all files have: what stands before its name is the prefix of all."""
    optional: tuple[str, ...]
    """For each optional part of a model, in the order of the constructor's arguments, a tensor that it has."""
    names: Table | None = None
    """The names of the modules; None: Hugging Face's, which the model has."""


def as_config(config: ConfigLike) -> Config:
    """Settings, from a dictionary or from JSON."""
    try:
        values: Any = json.loads(config) if isinstance(config, str) else config
    except json.JSONDecodeError:
        values = None
    if not isinstance(values, (Config, Mapping)):
        raise ValueError(
            f"argument config: expected the settings in a dictionary or in JSON, got {config!r:.80}; "
            "dy.pretrained.load(folder, model) reads a folder"
        )
    return values if isinstance(values, Config) else Config(values)


class Pretrained(Layer):
    """The base class of `Encoder` and `VisionModel`, of all models from files.

    Args:
        config: the settings in `config.json`
        model: where the parameters go
        spec: further arguments of the constructor, beginning with whether the model has each of its optional parts

    Attributes:
        report: what was read from files, and what was left
        checkpoint: whether the values within blocks are dropped and computed again in backward, for less memory; see
            `dynet_cy.checkpoint`
    """

    model_types: ClassVar[Mapping[str, str]] = {}
    """The values of `model_type` in `config.json` that mean this class, and for each the class in `transformers`."""
    names: Table = {}
    """The names of the modules; see `dynet_cy.pretrained.names`."""
    head_name: ClassVar[str] = "head"
    """The attribute of what makes the scores of labels."""
    new_parts: tuple[str, ...] = ()
    """The attributes of parts after the blocks that have random numbers, as no file had them."""
    prefix: ClassVar[str] = ""
    """The prefix of the names of a model in files of a larger one, such as one with a classifier."""

    labels: list[str]  # see the derived classes

    def __init__(self, config: Config, model: ParameterCollection, *spec: Any) -> None:
        self.config = config
        super().__init__(model, (json.dumps(config.values), *spec))
        self.report = ""
        self.checkpoint = False

    @classmethod
    @abc.abstractmethod
    def _layout(cls) -> Layout:
        """Names of the tensors of such a model in Hugging Face's files."""

    def _read_folder(self, folder: Path) -> None:
        """Read what a folder has besides settings and tensors."""

    def _add_parts(self, names: Iterable[str]) -> None:
        """Make the parts that only some files have, by the names of the tensors."""

    def _run(self, number: int, layer: Any, x: Expression, context: tuple[Expression, ...]) -> Expression:
        """The result of a block."""
        found: Expression = checkpoint(layer, x, *context) if self.checkpoint else layer(x, *context)
        return found

    # ---- training

    def layerwise(self, trainer: Trainer, decay: float) -> None:
        """Give each layer a learning rate of its own: that of the trainer times `decay` in the last block, times
        `decay` squared in the one before, and so on down to the tables (Howard and Ruder, "Universal language model
        fine-tuning", ACL 2018). What comes after the blocks, such as `pooler`, keeps that of the trainer.

        Args:
            trainer: that of this encoder, or of a layer that holds it
            decay: from above 0 to 1

        Raises:
            TypeError: `trainer` is not a trainer, or `decay` not a number
            ValueError: `decay` is something else, or a parameter belongs to another trainer or to a group already; no
                group is made then

        Example:
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model)
            >>> trainer = dy.AdamWTrainer(bert, 1e-4)
            >>> bert.layerwise(trainer, 0.5)
            >>> [group.learning_rate for group in trainer.groups]
            [5e-05, 2.5e-05]
        """
        name = f"{type(self).__name__}.layerwise"
        if not isinstance(trainer, Trainer):
            raise TypeError(f"{name}: argument trainer: expected a trainer, got {trainer!r:.80}")
        if isinstance(decay, bool) or not isinstance(decay, (int, float, np.integer, np.floating)):
            raise TypeError(f"{name}: argument decay: expected a number, got {decay!r:.80}")
        if not 0 < decay <= 1:
            raise ValueError(f"{name}: argument decay: expected above 0 to 1, got {decay!r}")
        parts = self._by_depth()
        grouped = {name for group in trainer.groups for name in group.names}
        inside = [stored for part in parts for layer in _layers_in(part) for stored in layer.parameters()]
        taken = next((stored.name() for stored in inside if stored.name() in grouped), None)
        if taken is not None:
            raise ValueError(
                f"{name}: {taken} is in a group of the trainer already: call `layerwise` before other groups are made, "
                "or give trainer.group_by_name a rule with all settings for each layer, such as "
                f"{{'*layers.0.*.b': {{'learning_rate': {trainer.learning_rate * decay:g}, 'weight_decay': 0}}, ...}}"
            )
        rate = trainer.learning_rate
        for depth, part in enumerate(parts, 1):
            trainer.group(part, learning_rate=rate * decay**depth)

    @abc.abstractmethod
    def _by_depth(self) -> list[Any]:
        """The blocks, from the last one down, and what comes before them."""

    # ---- files

    def save(self, folder: FileName) -> None:
        """Write a folder in Hugging Face's layout, which `load` and `transformers` read: `config.json`,
        `model.safetensors`, and the files of the tokenizer or of the preparation of images.

        Args:
            folder: where to; it is made if it is not there

        Raises:
            ValueError: adapters are in the encoder: merge them first, or save them alone
            OSError: a file cannot be written

        Example:
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model)
            >>> bert.save("folder")
            >>> dy.pretrained.load("folder", model)
            <Bert (...): read 21 tensors of model.safetensors, evaluation mode>
        """
        tensors, place = self._tensors(), Path(folder)
        kind = self.config.get("model_type", next(iter(self.model_types)))
        changed = {"model_type": kind, "architectures": [self._architecture(kind)], "dtype": "float32"}
        settings = {**self._settings_now(), **changed}
        place.mkdir(parents=True, exist_ok=True)
        write_tensors(place / "model.safetensors", tensors)
        write_json(place / "config.json", settings)
        for name, data in self._files().items():
            write_file(place / name, data)

    def _architecture(self, kind: str) -> str:
        """The name in `transformers` of a model of this `model_type`."""
        return self.model_types[kind]

    def _settings_now(self) -> dict[str, Any]:
        """The settings, with the labels that the model has now."""
        self._check_count(self.labels)
        return with_labels(self.config.values, self.labels) if self.labels else self.config.values

    def _assigns(self, name: str, value: Any) -> bool:
        if name == "labels":
            self._check_count(value)
            self._note_labels(label_names(value, type(self).__name__) if self.labels else [])
        return False

    def _check_count(self, labels: Any) -> None:
        """Refuse labels of which there are not as many as scores."""
        count = len(labels_of(self.config)) if self.labels else 0
        if not isinstance(labels, (list, tuple)) or len(labels) != count:
            expected = f"{count} names, one for each score" if count else "none, as there are no scores of labels"
            raise ValueError(f"{type(self).__name__}: attribute labels: expected {expected}, got {labels!r:.80}")

    def _note_labels(self, labels: Sequence[str]) -> None:
        """Write labels into the settings."""
        if labels:
            self.config.values = with_labels(self.config.values, labels)
        self.spec = (json.dumps(self.config.values), *self.spec[1:])

    def _files(self) -> Mapping[str, bytes]:
        """Further files of the folder, such as those of the tokenizer."""
        return {}

    def _extra_names(self) -> Table:
        """Names of parameters that are not in `names`, and that only this library has in its files."""
        return {}

    def _tensors(self) -> dict[str, npt.NDArray[Any]]:
        return {self._name_in_files(name): self.to_file(name, array) for name, array in self.state_dict().items()}

    def _name_in_files(self, parameter: str) -> str:
        """The name of a parameter in the files that `save` writes: with the prefix, in those of a larger model."""
        bare = not self._is_part() or parameter.startswith(_BARE)
        return ("" if bare else self.prefix) + self.tensor_name(parameter)

    def _is_part(self) -> bool:
        """Whether files of this model are those of a larger one."""
        return False

    def to_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The array that files have for a parameter.

        Args:
            parameter: its name in `named_parameters`
            array: its value
        """
        return array

    def from_file(self, parameter: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The value of a parameter.

        Args:
            parameter: its name in `named_parameters`
            array: what files have for it
        """
        return array

    def tensor_name(self, parameter: str, table: Table | None = None) -> str:
        """The name in files of a parameter.

        Args:
            parameter: its name in `named_parameters`
            table: the names of the modules; None, the default: Hugging Face's

        Raises:
            ValueError: files have no name for it

        Example:
            >>> config = dict(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            >>> bert = dy.pretrained.Bert({**config, "intermediate_size": 16}, model)
            >>> bert.tensor_name("layers.0.inner.W")
            'encoder.layer.0.intermediate.dense.weight'
        """
        found = tensor_name({**(table or self.names), **self._extra_names()}, parameter)
        if found is None:
            name = type(self).__name__
            raise ValueError(f"{name}: files have no name for {parameter}; an adapter is merged first, or saved alone")
        return found

    def _count(self) -> str:
        """How many numbers its parameters have, for its text."""
        return f"{sum(int(np.prod(parameter.shape)) for parameter in self.parameters()):,} numbers"

    def _reported(self) -> str:
        return f": {self.report}" if self.report else ""

    def _inside(self) -> list[str]:
        return []


def _layers_in(part: Any) -> list[Any]:
    """A layer, or those of a list."""
    return [part] if isinstance(part, Layer) else list(part)
