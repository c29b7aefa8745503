"""Parameters as entries of text model files."""

import os
import re

import numpy as np

from dynet_cy.core.dynet_rules cimport follows_dynet
from dynet_cy.memory.changes cimport check_change
from dynet_cy.memory.storage cimport value_changed
from dynet_cy.model.parameters cimport (
    LookupParameters, Parameters, _Stored, file_dim, note_whole_gradient, stored_array,
)

from dynet_cy.initializers import NumpyInitializer
from dynet_cy.textfile import LOOKUP, PARAMETER, ModelMismatchError, read_text_model, write_text_model


def check_key(key):
    if " " in key or "#" in key:
        raise ValueError(f"Key could not include ' ' or '#': {key}")


def entry_of(_Stored x not None, str name):
    """The parameter as an entry of a text model file."""
    kind = LOOKUP if isinstance(x, LookupParameters) else PARAMETER
    values = stored_array(x, (x.p.size,))
    grads = x.part(x.storage.grads, 0, (x.p.size,)) if x.has_gradient() else None
    return kind, name, file_dim(x), values, grads


def write_entry(_Stored x not None, fname, key, append):
    """Write one parameter to a text model file."""
    check_key(key)
    write_text_model(fname, [entry_of(x, key or x.name())], append)


def read_entry(_Stored x not None, fname, key):
    """Read one parameter from a text model file."""
    fill_entry(x, find_entry(fname, key, isinstance(x, LookupParameters)), fname)


def fill_entry(_Stored x not None, entry, fname):
    """Fill a parameter from an entry; `fname` is for messages.

    Raises:
        ModelMismatchError: the entry has another shape; nothing is changed then.
    """
    if entry.dim != file_dim(x):
        raise ModelMismatchError(
            f"has dimensions {entry.dim} in the file, {file_dim(x)} in the collection",
            os.fspath(fname), parameter=x.full_name)
    check_change(x.storage, f"populate of {x.full_name}")
    fill(x, entry)


cdef int fill(_Stored x, entry) except -1:
    values = np.ascontiguousarray(entry.values, np.float32)
    x.put(x.storage.values, 0, x.members.decay.meant(x.p.id, values), x.p.size)
    value_changed(x.p)
    x.p.factor = 1
    if entry.grads is not None and x.p.updated:
        x.put(x.storage.grads, 0, np.ascontiguousarray(entry.grads, np.float32), x.p.size)
        note_whole_gradient(x)
    return 0


def fill_entries(collection, entries, fname):
    """Fill a collection from entries of a text model file, matched by kind and position.

    Raises:
        ModelMismatchError: the entries differ from the collection's; nothing is changed then.
    """
    left = {PARAMETER: collection.parameters_list(), LOOKUP: collection.lookup_parameters_list()}
    matched = []
    for entry in entries:
        if not left[entry.kind] or entry.dim != file_dim(left[entry.kind][0]):
            raise ModelMismatchError(
                f"has dimensions {entry.dim}; "
                + (f"{file_dim(left[entry.kind][0])} are needed for {left[entry.kind][0].name()}"
                   if left[entry.kind] else f"no {entry.kind} is left to be filled"),
                os.fspath(fname), parameter=entry.name)
        matched.append((left[entry.kind].pop(0), entry))
    for x, entry in matched:
        fill_entry(x, entry, fname)


def add_entry(collection, entry):
    """Add an entry of a text model file to a collection."""
    cdef _Stored x
    values = entry.values.reshape(entry.dim, order="F")
    name = entry.name.rpartition("/")[2]
    without_number = re.sub(r"_\d+$", "", name)
    if follows_dynet():                     # such programs find parameters in files by names that DyNet has given
        cls, array = (LookupParameters, np.moveaxis(values, -1, 0)) if entry.kind == LOOKUP else (Parameters, values)
        x = collection._add(cls, array.shape, NumpyInitializer(array), "", "", None, None, None, name)
    elif entry.kind == LOOKUP:
        x = collection.lookup_parameters_from_numpy(np.moveaxis(values, -1, 0), without_number)
    else:
        x = collection.parameters_from_numpy(values, without_number)
    fill(x, entry)                          # it is new: no item has used it
    return x


def find_entry(fname, key, lookup):
    kind = LOOKUP if lookup else PARAMETER
    if not key:
        raise ValueError("populate: the key of the parameter in the file must not be empty")
    for entry in read_text_model(fname, lambda k, name: k == kind and name == key):
        return entry
    raise ModelMismatchError(f"could not find key {key} in the model file", os.fspath(fname))
