"""Convert a model file of one kind into another: text, the pair of dy.save, safetensors.

Values are kept to the precision of the new format (text has nine digits), and so are the names and kinds of the
parameters. Data that the new format cannot hold is left out and listed: gradients, the state of a trainer, the classes
of a pair.
"""

from __future__ import annotations

import argparse

import numpy as np

from dynet_cy.commands.files import PAIR, SAFETENSORS, TEXT, entries, kind_of, objects, pair
from dynet_cy.files.checkpoint import save_tensors, stored_state
from dynet_cy.files.saving import save
from dynet_cy.files.textfile import LOOKUP, Entry, ModelFileError, write_text_model
from dynet_cy.model import ParameterCollection
from dynet_cy.model.parameters import add_entry

_ENDINGS = {".safetensors": SAFETENSORS, ".st": SAFETENSORS, ".meta": PAIR, ".data": PAIR}
_ELSEWHERE = (".npz", ".npy", ".pt", ".pth", ".bin", ".onnx", ".h5", ".json", ".pkl")  # formats that it cannot write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add both files, and the format for a target whose name does not say it."""
    parser.add_argument("source", help="the file to read")
    parser.add_argument("target", help="the file to write; .safetensors, .st, .meta and .data determine its format")
    parser.add_argument(
        "--to", choices=(TEXT, PAIR, SAFETENSORS), help="its format; by default that of the ending, or text"
    )


def run(args: argparse.Namespace) -> None:
    """Read the whole source, then write the target."""
    ending = next((end for end in _ENDINGS if args.target.endswith(end)), "")
    kind = args.to or _ENDINGS.get(ending, TEXT)
    if not args.to and args.target.endswith(_ELSEWHERE):
        raise ModelFileError(
            "no such kind of file is written; --to text, pair or safetensors says which one", args.target
        )
    found = list(entries(args.source))
    if not found:
        raise ModelFileError("it holds no parameters", args.source)
    if kind == TEXT:
        write_text_model(args.target, found)
    elif kind == SAFETENSORS:
        arrays = {entry.name: _array(entry) for entry in found}
        kinds = {entry.name: "LookupParameters" if entry.kind == LOOKUP else "Parameters" for entry in found}
        if len(arrays) < len(found):
            raise ModelFileError(
                "it has several parameters of one name, which safetensors cannot tell apart", args.source
            )
        save_tensors(args.target, arrays, kinds)
    else:
        collection = ParameterCollection()
        save(pair(args.target)[0][:-5], [add_entry(collection, entry) for entry in found])
    print(f"{args.target}: {len(found)} parameters, {sum(entry.values.size for entry in found):,} numbers")
    for lost in _lost(args.source, kind, found):
        print(f"left out: {lost}")


def _array(entry: Entry) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    values = entry.values.reshape(entry.dim, order="F")
    return np.moveaxis(values, -1, 0) if entry.kind == LOOKUP else values


def _lost(source: str, kind: str, found: list[Entry]) -> list[str]:
    """The contents of the source that the target cannot hold."""
    lost = []
    before = kind_of(source)
    if before == SAFETENSORS and "trainer" in (state := stored_state(source)):
        lost.append(f"the state of {state['trainer']['class']}")
    if before == PAIR:
        classes = [each.kind for each in objects(source) if each.spec]
        lost += [f"how to make {', '.join(classes)}: only their parameters are kept"] if classes else []
    if kind != TEXT and any(entry.grads is not None for entry in found):
        lost.append("gradients")
    return lost
