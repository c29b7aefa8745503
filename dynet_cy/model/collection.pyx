"""Collections of named parameters, and how they are pickled."""

import contextlib
import math
import numbers
import os
import sys
import weakref
from math import prod

import numpy as np

cimport cython
from libc.math cimport isfinite
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Dim
from dynet_cy.core.threads cimport Unlocked, acquire_lock, follows_dynet, release_lock
from dynet_cy.kernels.lazy_rows cimport all_current, clear_deferred_shared, lazy_state
from dynet_cy.memory.bridge cimport dim_from_shape, floats_in
from dynet_cy.memory.storage cimport Plane, Storage, default_device
from dynet_cy.model.parameters cimport (
    LookupParameters, Parameters, _Stored, file_dim, floats_like, new_stored, zero_gradient,
)

from dynet_cy.core.cells import settle
from dynet_cy.core.devices import check_device, device_name
from dynet_cy.files.textfile import (
    LOOKUP, PARAMETER, ModelMismatchError, populate_entries, read_text_model, write_text_model,
)
from dynet_cy.kernels.kernels import HostRandom
from dynet_cy.memory.storage import parameter_names as _parameter_names
from dynet_cy.model.dynet_decay import DynetDecay
from dynet_cy.model.initializers import NumpyInitializer, as_initializer
from dynet_cy.model.matching import complaint, matches
from dynet_cy.model.parameters import (
    add_entry, check_key, check_text, entry_of, fill_entry, find_entry, gradient_state, set_array, set_gradient_state,
    settled_array,
)
from dynet_cy.model.weight_decay import checked_weight_decay, get_default_weight_decay
from dynet_cy.model.whole import as_collection

cdef Unlocked users_lock             # of the entries' records of their users


cdef class _Members:
    """The data shared by a root collection, its sub-collections and all their parameters.

    Each of them holds a reference to it, so that the memory stays while any of them is in use.  Entries refer only to
    the storage: there is no reference cycle, and the memory is freed with its last user.

    `content` has the full name of each parameter, table and sub-collection once, in the collection that it belongs to
    directly. Those that have been renamed are in `former`, with their first full names, by which older files know them.
    """

    cdef Storage storage
    cdef dict entries               # by their ids, in the order in which they were added
    cdef dict order                 # their numbers in this order by their ids, which are used again
    cdef int added                  # how many there have been
    cdef tuple numbered             # they as a list, and their numbers in it by their ids; None: something has changed
    cdef dict content               # by the name of a collection, what is in it: entries, or None, by their names
    cdef dict former
    cdef set automatic              # the full names of parameters that were not given, or not given in full
    cdef dict collections           # by name, pairs of number and weak reference: copies have the same name
    cdef int made                   # how many collections there have been
    cdef bint shares                # whether a layer of these collections holds what is not in its own collection
    cdef set sharing                # weak references to all such data that have the same storage
    cdef object __weakref__
    cdef object allowance           # the limit of parameters that may be added now; None: no limit
    cdef readonly object decay      # what weight decay means in programs written for DyNet

    def __init__(self):
        self.storage = Storage(default_device())
        self.entries = {}
        self.order = {}
        self.content = {"/": {}, "removed:/": {}}
        self.former = {}
        self.automatic = set()
        self.collections = {}
        self.decay = DynetDecay()
        self.sharing = {weakref.ref(self)}

    cdef bint is_empty(self) noexcept:
        """Whether there are no parameters, as in the collections of layers like `Dropout`."""
        return not self.entries and not self.shares

    cdef int unite(self, _Members other) except -1:
        """Let two roots have one storage, so that a trainer may train parameters of both."""
        cdef _Members members, first = self, second = other
        if other.storage is self.storage:
            return 0
        if self.storage.top < other.storage.top:
            first, second = other, self
        first.storage.take_over(second.storage)
        first.sharing |= second.sharing
        for reference in second.sharing:
            members = reference()
            if members is not None:
                members.move_to(first.storage, first.sharing)
        return 0

    cdef int move_to(self, Storage storage, set sharing) except -1:
        cdef _Stored entry
        self.storage, self.sharing = storage, sharing
        acquire_lock(&users_lock)
        try:
            for x in self.entries.values():
                entry = x
                entry.storage = storage
                user = None if entry.user is None else entry.user()
                if user is not None:
                    (<_Stored>user).storage = storage
        finally:
            release_lock(&users_lock)
        return 0

    cdef _Stored add(self, int device, cls, const Dim* d, uint32_t rows, str name):
        """A new parameter or table of zeros."""
        cdef Storage storage = self.storage.on(device)
        entry = new_stored(cls, storage, storage.add(d, rows, name), name)
        number = (<_Stored>entry).p.id
        try:
            self.put_in(name, entry)
            self.entries[number] = entry
            self.added += 1
            self.order[number] = self.added
            self.numbered = None
            self.decay.added(number)
            return self.shown(entry)
        except BaseException:                               # such as a lack of memory: all of it or nothing
            self.content.get(_parent(name), {}).pop(name, None)
            self.entries.pop(number, None)
            self.order.pop(number, None)
            self.numbered = None
            raise

    cdef _Stored shown(self, _Stored entry):
        """The Python object of an entry: always the same one, as long as it is referenced."""
        acquire_lock(&users_lock)
        try:
            x = None if entry.user is None else entry.user()
            if x is None:
                x = new_stored(type(entry), entry.storage, entry.p, entry.full_name)
                (<_Stored>x).members = self
                entry.user = weakref.ref(x)
        finally:
            release_lock(&users_lock)
        return x

    cdef int put_in(self, str name, _Stored entry) except -1:
        """Note what a full name is: a parameter or table, or without one a collection."""
        above = _parent(name)
        if above not in self.content:
            self.put_in(above, None)
        self.content[above][name] = entry
        if entry is None:
            self.content.setdefault(name, {})
        return 0

    cdef _Stored entry(self, str name):
        """The parameter or table of a full name, or None."""
        return self.content.get(_parent(name), {}).get(name)

    cdef bint is_used(self, str name):
        return name in self.content.get(_parent(name), ())

    cdef list names_within(self, str name):
        """A full name; of a collection also the names of all in it."""
        found = [name]
        for name in found:                                  # which grows
            found += self.content.get(name, ())
        return found

    cdef list below(self, str name):
        """All entries in a collection, in the order in which they were added."""
        cdef dict found = {}
        for name in self.names_within(name):
            for entry in self.content.get(name, {}).values():
                if entry is not None:
                    found[self.order[(<_Stored>entry).p.id]] = entry
        return [self.shown(found[number]) for number in sorted(found)]

    cdef add_collection(self, collection):
        """Note a collection, whose name is set."""
        if collection._name not in self.content:
            self.put_in(collection._name, None)
        self.made += 1
        self.collections.setdefault(collection._name, []).append((self.made, weakref.ref(collection)))

    cdef list collections_of(self, str name):
        """The collections in use that have a name."""
        return [x for x in [ref() for _, ref in self.collections.get(name, ())] if x is not None]

    cdef tuple tree(self):
        """For the name of each collection, the entries and the names of collections in it; and the collections in use
        by their names."""
        children = {}
        for entry in self.entries.values():
            child, above = entry, _parent((<_Stored>entry).full_name)
            while above not in children and above != _parent(above):
                children[above] = [child]
                child, above = above, _parent(above)
            children.setdefault(above, []).append(child)
        return children, {name: x for name in self.collections for x in self.collections_of(name)}

    cdef str first_name(self, x):
        """The full name under which a parameter or sub-collection was made."""
        if isinstance(x, _Stored):
            return self.former.get((<_Stored>x).full_name, (<_Stored>x).full_name)
        return x._first_name

    cdef str free(self, str name):
        """A full name, with a number appended if it is in use."""
        stem, end = (name[:-1], "/") if name.endswith("/") else (name, "")
        n = 0
        while self.is_used(name):
            n += 1
            name = f"{stem}_{n}{end}"
        return name

    cdef int rename(self, str old, str new, str old_first="", str new_first="") except -1:
        """Change the full name of a parameter; or, where they end with "/", of a sub-collection and all below it.

        First names that begin with `old_first` change too.
        """
        for name, entry in self.taken_out(old):
            to = new + name[len(old):]
            if entry is None:
                self.rename_collections(name, to, old_first, new_first)
            else:
                self.rename_entry(entry, to, old_first, new_first)
            self.put_in(to, entry)
        return 0

    cdef list taken_out(self, str name):
        """Take a full name out, and all names in it: pairs of name and entry, or None for collections."""
        found = [(x, self.content[_parent(x)].pop(x)) for x in self.names_within(name)]
        for x, entry in found:
            if entry is None:
                self.content.pop(x, None)
        return found

    cdef int rename_entry(self, _Stored entry, str to, str old_first, str new_first) except -1:
        first = self.former.pop(entry.full_name, entry.full_name)
        if first.startswith(old_first):
            first = new_first + first[len(old_first):]
        self.automatic.discard(entry.full_name)
        acquire_lock(&users_lock)
        try:
            x = None if entry.user is None else entry.user()
            entry.full_name = to
            if x is not None:
                (<_Stored>x).full_name = to
        finally:
            release_lock(&users_lock)
        _parameter_names[entry.p.id] = to
        if first != to:
            self.former[to] = first
        return 0

    cdef int rename_collections(self, str name, str to, str old_first, str new_first) except -1:
        for collection in self.collections_of(name):
            collection._name = to
            if collection._first_name.startswith(old_first):
                collection._first_name = new_first + collection._first_name[len(old_first):]
        self.collections[to] = self.collections.pop(name, [])
        return 0

    cdef int remove(self, str name) except -1:
        """Forget a parameter, or a sub-collection and all below it.  The memory of these parameters stays allocated.

        The objects of a program can still be used.  Their names no longer begin with "/", as if they had a root of
        their own, so what is added to such a collection is not below this one.
        """
        for x, entry in self.taken_out(name):
            if entry is None:
                self.rename_collections(x, "removed:" + x, "", "")
            else:
                self.rename_entry(entry, "removed:" + x, "", "")
                del self.entries[(<_Stored>entry).p.id], self.order[(<_Stored>entry).p.id]
                self.former.pop("removed:" + x, None)
        self.numbered = None
        return 0

    cdef tuple all_numbered(self):
        """All entries as a list, and their numbers in it by their ids."""
        if self.numbered is None:
            self.numbered = list(self.entries.values()), {number: i for i, number in enumerate(self.entries)}
        return self.numbered

    def reduced(self, _Stored x not None):
        """The function and arguments that restore a parameter from its pickle."""
        number = self.all_numbered()[1].get(x.p.id)
        if number is None:
            raise ValueError(f"{x.full_name} has been removed from its collection and cannot be pickled")
        return _restored_member, (self, number)

    def __reduce__(self):
        return _restored_members, ([_entry_state(x) for x in self.all_numbered()[0]], self.former)


class _Allowance:
    """How many parameters may be added, and how many numbers they may have in total."""

    def __init__(self, count, size, error):
        self.count = count
        self.size = size
        self.error = error

    def charge(self, shape):
        self.count -= 1
        self.size -= math.prod(shape)
        if self.count < 0 or self.size < 0:
            raise self.error


@contextlib.contextmanager
def adding(collection: ParameterCollection, count: int, size: int, error: Exception) -> AbstractContextManager[None]:
    """A block that may add only a limited number of parameters and of their values to a collection.

    One more raises the error, before values are drawn.  Values given as arrays do not count.
    """
    cdef _Members members = collection._members
    before = members.allowance
    members.allowance = _Allowance(count, size, error)
    try:
        yield
    finally:
        members.allowance = before


@contextlib.contextmanager
def rolled_back(collection: ParameterCollection) -> AbstractContextManager[None]:
    """A block whose new parameters and names are removed from the collection if it raises.  The memory of these
    parameters stays allocated."""
    cdef _Members members = collection._members
    added, made = members.added, members.made
    taken, below = len(collection._taken), len(collection._taken_below)
    try:
        yield
    except BaseException:
        new = [name for name, numbered in members.collections.items() if numbered and numbered[0][0] > made]
        for name in new:
            if members.is_used(name):                       # and has not been removed with one above it
                members.remove(name)
        for number in [number for number, order in members.order.items() if order > added]:
            members.remove((<_Stored>members.entries[number]).full_name)
        _forget_names(collection._taken, taken)
        _forget_names(collection._taken_below, below)
        raise


cdef int _forget_names(dict used, Py_ssize_t n) except -1:
    """Keep the first n names, and let those that were numbered after them be numbered so again."""
    while len(used) > n:
        stem, _, number = used.popitem()[0].rpartition("_")
        if number.isdigit() and used.get(stem) == int(number) + 1:
            used[stem] = int(number)
    return 0


def hold(collection: ParameterCollection, parts: dict[str, Parameters | LookupParameters | ParameterCollection]):
    """Note the parameters and collections in the attributes of a collection's layer.

    They may belong to other collections, even to those of another root.
    """
    cdef _Members members = collection._members
    parts = {name: part for name, part in parts.items() if not _members_of(part).is_empty()}
    for part in parts.values():
        if not _is_below(collection, part):
            members.unite(_members_of(part))
            members.shares = True
    collection._parts = parts


def remove_unheld(collection: ParameterCollection, parts: Iterable[Any]) -> bool:
    """Remove the parameters and collections of these parts from a collection, unless its layer still holds them.

    Returns:
        Whether there was anything.
    """
    held = {(<_Stored>x).p.id for part in _all_parts(collection._parts.values()) for x in _entries(part)}
    removed = False
    for part in _all_parts(parts):
        own = _entries(part) if _is_below(collection, part) else []
        free = [x for x in own if (<_Stored>x).p.id not in held]
        for x in free if len(free) < len(own) else [part]:
            if own:
                collection.remove(x)
                removed = True
    return removed


cdef list _all_parts(parts):
    """Parameters and collections, and those that they hold."""
    found = list(dict.fromkeys(parts))
    seen = set(found)
    for part in found:                                      # which grows
        for x in part._parts.values() if isinstance(part, ParameterCollection) else ():
            if x not in seen:
                seen.add(x)
                found.append(x)
    return found


cdef list _entries(part):
    """A parameter, or all that were made in a collection."""
    return [part] if isinstance(part, _Stored) else (<_Members>part._members).below(part._name)


cdef bint _is_below(collection, x):
    """Whether a parameter or collection belongs to a collection, or to one below it."""
    name = (<_Stored>x).full_name if isinstance(x, _Stored) else x._name
    return _members_of(x) is collection._members and name.startswith(collection._name)


cdef _Members _members_of(x):
    return (<_Stored>x).members if isinstance(x, _Stored) else x._members


cdef bint _is_removed(x):
    return (x.full_name if isinstance(x, _Stored) else x._name).startswith("removed:")


cdef class _Paths:
    """The names of all that a collection holds, by the attributes that lead to it from there.

    Each parameter has one name, that of the first path.
    """

    cdef dict found                 # parameters and tables by name
    cdef set numbers                # ids of those found
    cdef set visited                # the collections whose parts have been looked at,
    cdef dict collections           # and the last one at each place
    cdef dict trees                 # what is in each collection, for each root: see `_Members.tree`

    def __init__(self, collection):
        self.found = {}
        self.numbers = set()
        self.visited = set()
        self.collections = {}
        self.trees = {}
        self.follow(collection, "")

    cdef int add(self, str name, _Stored x) except -1:
        cdef int n = 0
        if x.p.id not in self.numbers:
            self.numbers.add(x.p.id)
            free = name
            while free in self.found:
                n += 1
                free = f"{name}_{n}"
            self.found[free] = x
        return 0

    cdef int follow(self, collection, str before) except -1:
        """Add what the attributes of a layer lead to, then what else is in its collection."""
        cdef _Members members = collection._members
        self.collections[before] = collection
        if collection in self.visited or _is_removed(collection):
            return 0
        self.visited.add(collection)
        for name, part in collection._parts.items():
            if not isinstance(part, _Stored):
                self.follow(part, f"{before}{name}/")
            elif _is_below(collection, part):
                self.add(before + (<_Stored>part).full_name[len(collection._name):], part)
            elif not _is_removed(part):
                self.add(before + name, part)
        if members not in self.trees:
            self.trees[members] = members.tree()
        return self.take(members, self.trees[members], collection._name, before)

    cdef int take(self, _Members members, tuple tree, str name, str before) except -1:
        """Add what is in a collection, by its name there."""
        children, collections = tree
        for child in children.get(name, ()):
            if isinstance(child, _Stored):
                self.add(before + (<_Stored>child).full_name[len(name):], members.shown(child))
            elif child in collections:
                self.follow(collections[child], before + child[len(name):])
            else:
                self.take(members, tree, child, before + child[len(name):])
        return 0


def name_members(collection: ParameterCollection, wanted: Iterable[tuple[Any, str]]):
    """Rename parameters and sub-collections whose names were made automatically.

    Args:
        collection: only what belongs to it directly is renamed.
        wanted: pairs of an object and its name, which gets a number if it is in use.
    """
    cdef _Members members = collection._members
    changes = []
    for x, name in wanted:
        old = x._name if isinstance(x, ParameterCollection) else (<_Stored>x).full_name
        if is_unnamed(collection, x):
            end = ""
            if isinstance(x, ParameterCollection):
                x._named, end = True, "/"
            changes.append((old, f"{collection._name}{name}{end}"))
    changes = [(old, new) for old, new in changes if old != new]
    if any([members.is_used(new) for _, new in changes]):           # two may swap their names
        for i, (old, new) in enumerate(changes):
            between = f"{collection._name} {i}" + "/" * old.endswith("/")
            members.rename(old, between)
            changes[i] = between, new
    for old, new in changes:
        members.rename(old, members.free(new))


def is_unnamed(collection: ParameterCollection, x: Any) -> bool:
    """Whether something belongs directly to a collection and has a name that was made automatically."""
    cdef _Members members = collection._members
    if isinstance(x, ParameterCollection):
        return not x._named and x._members is members and _parent(x._name) == collection._name
    return (isinstance(x, _Stored) and (<_Stored>x).members is members
            and (<_Stored>x).full_name in members.automatic and _parent((<_Stored>x).full_name) == collection._name)


def stored(part: Any) -> Any:
    """The collection of a layer or builder; a parameter itself; None for anything else."""
    if isinstance(part, _Stored):
        return part
    method = getattr(type(part), "param_collection", None)
    return None if method is None else method(part)


def are_beside(a: Any, b: Any) -> bool:
    """Whether they are two sub-collections, or two parameters, of the same collection."""
    name, other = _full_name(a), _full_name(b)
    both = _members_of(a) is _members_of(b) and a is not b and "/" not in (name, other)
    return both and _parent(name) == _parent(other)


cdef _settled(made):
    """A new parameter, in place of the one that a cell of a notebook has made in the same variable before."""
    settle(made, sys._getframe(0), stored, are_beside, take_place)
    return made


cdef str _full_name(part):
    return (<_Stored>part).full_name if isinstance(part, _Stored) else part._name


def take_place(new: Any, old: Any):
    """Remove a sub-collection or a parameter, and give its names to another one beside it."""
    cdef _Members members = _members_of(old)
    name = _full_name(old)
    first, own_first = members.first_name(old), members.first_name(new)
    members.remove(name)
    members.rename(_full_name(new), name, own_first, first)


cdef str _parent(str name):
    """The name of the collection that has something of a full name; of a root its own name."""
    return name[:name.rstrip("/").rfind("/") + 1] or name


@cython.embedsignature(False)
class ParameterCollection:
    """Named parameters, lookup tables and sub-collections.

    The memory of a root collection and its sub-collections stays allocated as long as one
    of them, or one of their parameters, exists.

    Example:
        >>> W = model.add_parameters((2, 3), name="W")
        >>> words = model.add_subcollection("words").add_lookup_parameters((100, 3), name="E")
        >>> [p.name() for p in model.parameters_list()], words.name()
        (['/W'], '/words/E')
        >>> (W * words[7]).dim()
        ((2,), 1)
    """

    _named = False              # whether its name follows an attribute
    _parts = {}                 # what the layer of this collection holds, by the names of its attributes; see `hold`

    def __init__(self) -> None:
        self._name = self._first_name = "/"
        self._members = _Members()
        self._taken = {}
        self._taken_below = {}
        self._weight_decay = get_default_weight_decay()
        self._decay_due = 0.0
        (<_Members>self._members).add_collection(self)

    def name(self) -> str:
        """Full name, beginning with the "/" of the root; ends with "/".

        Example:
            >>> model.name(), model.add_subcollection("layer").name()
            ('/', '/layer/')
        """
        return self._name

    @property
    def storage(self) -> Storage:
        """The memory of all parameters below the root: see `Storage.move`. Parameters on further devices have storages
        of their own.

        Example:
            >>> layer = model.add_subcollection()
            >>> layer.storage is model.storage
            True
        """
        return (<_Members>self._members).storage

    def add_subcollection(self, name: str | None = None) -> ParameterCollection:
        """Add a sub-collection; its parameters belong to this collection, too.

        Args:
            name: without "/", "#" and spaces; a number is appended if it is taken.

        Returns:
            ParameterCollection.

        Raises:
            ValueError: the name is not possible.

        Example:
            >>> layer = model.add_subcollection("layer")
            >>> W = layer.add_parameters(2, name="W")
            >>> W.name(), len(model.parameters_list())
            ('/layer/W', 1)
        """
        cdef _Members members = self._members
        below = ParameterCollection.__new__(ParameterCollection)
        free = _free_name(name or "", self._taken_below, "Submodel") + "/"
        below._name, below._first_name = members.free(self._name + free), self._first_name + free
        below._members = members
        below._taken = {}
        below._taken_below = {}
        below._weight_decay = self._weight_decay
        below._decay_due = 0.0
        members.add_collection(below)
        return below

    def add_parameters(
        self, dim: _Shape, init: _Init = None, name="", device="", scale=1.0, mean=0.0, std=1.0
    ) -> Parameters:
        """Add a parameter.

        Args:
            dim: shape, a tuple or one number; if `init` is an array, its shape.
            init: an initializer, a number, an array, or one of "glorot" (the
                default), "uniform", "normal", "he", "identity", "saxe".
            name: without "/", "#" and spaces; a number is appended if it is taken.
            device: "CPU" or "GPU:0" and so on; "" for the default device.
            scale: of "uniform" and "saxe" (default: 1).
            mean: of "normal" (default: 0).
            std: of "normal": the standard deviation (default: 1).

        Returns:
            Parameters.

        Raises:
            ValueError: the shape, name or initializer is not possible.

        Example:
            >>> model.add_parameters((2, 3), init="uniform", scale=0.1, name="W")
            <Parameters /W (2, 3)>
        """
        return _settled(self._add(Parameters, dim, init, name, device, scale, mean, std))

    def add_lookup_parameters(
        self, dim: _Shape, init: _Init = None, name="", device="", scale=1.0, mean=0.0, std=1.0
    ) -> LookupParameters:
        """Add a lookup table.

        Args:
            dim: number of rows, then the shape of a row.
            init, name, device, scale, mean, std: as for `add_parameters`.

        Returns:
            LookupParameters.

        Raises:
            ValueError: the shape, name or initializer is not possible.

        Example:
            >>> model.add_lookup_parameters((100, 3), name="words")[7].dim()
            ((3,), 1)
        """
        return _settled(self._add(LookupParameters, dim, init, name, device, scale, mean, std))

    def parameters_from_numpy(self, array: npt.ArrayLike, name="", device="") -> Parameters:
        """Add a parameter with the shape and values of an array.

        Args:
            array: the values.
            name: see `add_parameters`.
            device: where it is kept; see `add_parameters`.

        Raises:
            ValueError: the shape or name is not possible.

        Example:
            >>> model.parameters_from_numpy(np.array([[1, 2], [3, 4]])).npvalue()
            array([[1., 2.],
                   [3., 4.]])
        """
        array = floats_in(array, "parameters_from_numpy", "array", 8)
        return self.add_parameters(array.shape, NumpyInitializer(array), name, device)

    def lookup_parameters_from_numpy(self, array: npt.ArrayLike, name="", device="") -> LookupParameters:
        """Add a lookup table with the shape and values of an array, the row number first.

        Args:
            array: the values.
            name: see `add_parameters`.
            device: where it is kept; see `add_parameters`.

        Raises:
            ValueError: the shape or name is not possible.

        Example:
            >>> model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4]]))[1].npvalue()
            array([3., 4.])
        """
        array = floats_in(array, "lookup_parameters_from_numpy", "array", 8)
        return self.add_lookup_parameters(array.shape, NumpyInitializer(array), name, device)

    def _add(self, cls, dim, init, name, device, scale, mean, std, own_name=None):
        """`own_name`: the name of one that was loaded, without that of its collection; see `_new_name`."""
        cdef Dim d
        cdef uint32_t rows = 0
        cdef _Stored made
        cdef _Members members = self._members
        is_lookup = cls is LookupParameters
        what = "add_lookup_parameters" if is_lookup else "add_parameters"
        number = check_device(device, what) if device != "" else default_device()
        if isinstance(init, np.ndarray):
            dim = init.shape
        if isinstance(dim, numbers.Real):
            dim = (dim, 1) if is_lookup else (dim,)
        if not isinstance(dim, (tuple, list)):
            raise TypeError(f"{what}: the shape must be a tuple or a number, not {dim!r}")
        shape = tuple(int(n) if isinstance(n, numbers.Real) and isfinite(n) else n for n in dim)
        if is_lookup:
            if not shape or shape[0] == 0:
                raise ValueError(f"{what}: shape {shape} has no rows")
            dim_from_shape(shape[:1], &d, what)
            rows = d.d[0]
            if len(shape) > 7:
                raise ValueError(f"{what}: shape {shape} has {len(shape)} axes, at most 7 fit")
            dim_from_shape(shape[1:], &d, what)
            file_shape = shape[1:] + shape[:1]
        else:
            dim_from_shape(shape, &d, what)
            file_shape = shape
        allowance = members.allowance
        if allowance is not None and not isinstance(init, (np.ndarray, NumpyInitializer)):
            allowance.charge(file_shape)
        initializer = as_initializer(init, shape, lookup=is_lookup, scale=scale, mean=mean, std=std)
        members.storage.check_memory(f"{what} {shape}", prod(file_shape))
        values = np.empty(file_shape, np.float32, order="F")
        initializer.fill(values, HostRandom(), is_lookup)
        free = self._new_name(name, own_name)
        full = members.free(self._name + free)
        made = members.add(number, cls, &d, rows, full)
        if full != self._first_name + free:
            members.former[full] = self._first_name + free
        if not name or free != name:
            members.automatic.add(full)
        made.put(made.storage.values, 0, made.members.decay.meant(made.p.id, values), made.p.size)
        return made

    def _new_name(self, name, own_name):
        """The name of a new parameter in its collection.

        In programs written for DyNet, one that is loaded keeps the name that it has in the file, if it is free, and
        takes the next number of parameters without a name, as DyNet counts.  `_taken` has the names too, after a "/".
        """
        free = _free_name(name, self._taken, "Parameter")
        if follows_dynet():
            if own_name and "/" + own_name not in self._taken:
                free = own_name
            while "/" + free in self._taken:
                free = _free_name(name, self._taken, "Parameter")
            self._taken["/" + free] = 1
        return free

    def remove(self, x: Any):
        """Remove a parameter, a table, or a layer, builder or sub-collection with all its parameters.

        Trainers and files then pass over them, and their names are free.  Expressions can still use them.  Their memory
        stays allocated as long as the collection.

        Args:
            x: what to remove; it is in this collection, or in one below.

        Raises:
            TypeError: it is something else.
            ValueError: it is not in this collection.

        Example:
            >>> W, rnn = model.add_parameters(2, name="W"), dy.LSTMBuilder(1, 2, 3, model)
            >>> model.remove(rnn)
            >>> model.keys()
            ['W']
        """
        cdef _Members members = self._members
        part = x
        if not isinstance(x, (_Stored, ParameterCollection)):
            holds = getattr(type(x), "param_collection", None)
            part = None if holds is None else holds(x)
        if isinstance(part, _Stored):
            name, own = (<_Stored>part).full_name, (<_Stored>part).members
        elif isinstance(part, ParameterCollection):
            name, own = part._name, part._members
        else:
            raise TypeError(f"remove: a parameter, layer, builder or collection is needed, not {type(x).__name__}")
        if own is not members or name == self._name or not name.startswith(self._name):
            raise ValueError(f"remove: {name} is not in {self._name} of this model")
        last = members.first_name(part).rstrip("/").rpartition("/")[2]
        above = _parent(name)
        members.remove(name)
        for collection in members.collections_of(above):
            used = collection._taken if isinstance(part, _Stored) else collection._taken_below
            if used.get(last) == 1:
                del used[last]

    def set_weight_decay(self, lam: float):
        """Make every update of a trainer multiply all values by 1 - lambda, after its step.

        The setting applies to trainers of this collection itself, not of its sub-collections.  Such a trainer decays
        all parameters and all rows of all tables below it, except those that are frozen (`set_updated`) or in a group
        with its own weight decay (`Trainer.group`).  A new sub-collection gets the lambda of the collection in which it
        is made.

        This is DyNet's weight decay.  It does not depend on the learning rate, so a good lambda is the weight
        decay of `AdamWTrainer` times the learning rate: with a learning rate of 0.001, 0.01 there
        corresponds to 0.00001 here.

        Args:
            lam: lambda, at least 0; 0 (the default, unless ``--dynet-weight-decay`` sets
                another) for none.

        Raises:
            ValueError: it is negative or not finite.

        Example:
            >>> W = model.add_parameters(2, init=1)
            >>> model.set_weight_decay(0.5)
            >>> dy.sum_elems(0 * W).backward()
            >>> dy.SimpleSGDTrainer(model).update()
            >>> W.npvalue()
            array([0.5, 0.5])
        """
        self._weight_decay = checked_weight_decay(lam)

    def get_weight_decay(self) -> float:
        """The lambda of `set_weight_decay`.

        Example:
            >>> model.set_weight_decay(1e-5)
            >>> model.get_weight_decay()
            1e-05
        """
        return self._weight_decay

    # DyNet's other names.
    set_weight_decay_lambda = set_weight_decay
    get_weight_decay_lambda = get_weight_decay

    def _decay_state(self) -> tuple[float, float]:
        """Lambda, and the share that has been collected but not applied yet."""
        return self._weight_decay, self._decay_due

    def _set_decay_state(self, state: Sequence[float]) -> None:
        """Restore what `_decay_state` returned."""
        self._weight_decay, self._decay_due = state

    def _take_decay(self, least):
        """The share by which an update of this collection's trainer decays all values.

        Shares smaller than `least` are collected until they are large enough.
        """
        due = self._decay_due + self._weight_decay - self._decay_due * self._weight_decay
        share = 0.0 if due < least else due
        self._decay_due = due - share
        return share

    def zero_gradients(self):
        """Set the gradients of all parameters and tables below to zero.

        This drops what was added up since the last update, for example the gradients of a batch
        that are not finite: `Trainer.update` keeps them when it raises its error.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> dy.squared_norm(W).backward()
            >>> model.zero_gradients()
            >>> W.grad_as_array()
            array([0., 0.], dtype=float32)
        """
        for x in self._below():
            zero_gradient(x)

    def parameters_list(self) -> list[Parameters]:
        """All Parameters of this collection and its sub-collections, in the order in which they were added.

        Example:
            >>> W = model.add_parameters((2, 3), name="W")
            >>> b = model.add_subcollection("layer").add_parameters(2, name="b")
            >>> model.parameters_list()
            [<Parameters /W (2, 3)>, <Parameters /layer/b (2,)>]
        """
        return [x for x in self._below() if isinstance(x, Parameters)]

    def lookup_parameters_list(self) -> list[LookupParameters]:
        """All LookupParameters of this collection and its sub-collections, in the order in which they were added.

        Example:
            >>> words = model.add_lookup_parameters((100, 3), name="words")
            >>> model.lookup_parameters_list()
            [<LookupParameters /words (100, 3)>]
        """
        return [x for x in self._below() if isinstance(x, LookupParameters)]

    def _below(self) -> list[_AnyParameters]:
        """All parameters and tables of this collection: below it, or held by the layers of those below it."""
        cdef _Members members = self._members
        return list((<_Paths>_Paths(self)).found.values()) if members.shares else members.below(self._name)

    def _catch_up(self) -> None:
        """Apply all updates made so far to all rows of all tables of the root, not only those of this collection.

        This makes no Python object, since there may be no memory when a trainer is freed.
        """
        cdef Storage storage
        for storage in self.storage.everywhere():
            for i in range(storage.n_entries):
                all_current(storage.entries[i])

    def _clear_deferred(self, Plane states not None) -> None:
        """Forget the updates that only states in this plane have not had yet, as after `_catch_up`."""
        cdef Storage storage = self.storage
        for i in range(storage.n_entries):
            if lazy_state(storage.entries[i], states.memory()) >= 0:
                clear_deferred_shared(storage.entries[i])

    def parameter_count(self) -> int:
        """Number of trained numbers, those of lookup tables included.

        Example:
            >>> W, words = model.add_parameters((2, 3)), model.add_lookup_parameters((100, 3))
            >>> model.parameter_count()
            306
        """
        return sum((<_Stored>x).p.size for x in self._below())

    # ---- by name

    def _by_name(self) -> dict[str, _AnyParameters]:
        """Parameters and tables by their names relative to this collection, in the order in which they were added.

        What a layer holds, and is not in its collection, has the name of the attributes that lead to it.
        """
        cdef _Members members = self._members
        if members.shares:
            return (<_Paths>_Paths(self)).found
        return {x.name()[len(self._name):]: x for x in members.below(self._name)}

    def _full_names(self) -> dict[str, _AnyParameters]:
        """Parameters and tables by their full names, in the order in which they were added."""
        return {self._name + name: x for name, x in self._by_name().items()}

    def _first_names(self) -> dict[str, str]:
        """The full names of all parameters and tables below, by the full names under which they were made."""
        cdef _Members members = self._members
        return {members.first_name(x): name for name, x in self._full_names().items() if _is_below(self, x)}

    def keys(self) -> list[str]:
        """The names of all parameters and tables below, in the order in which they were added: "W", "encoder/W".

        Example:
            >>> W = model.add_subcollection("encoder").add_parameters(2, name="W")
            >>> model.keys()
            ['encoder/W']
        """
        return list(self._by_name())

    def named_parameters(self) -> Iterator[tuple[str, _AnyParameters]]:
        """Pairs of name and parameter (or table) for all below, in the order in which they were added.

        Example:
            >>> for name, p in model.named_parameters():
            ...     print(name, p.shape)
        """
        yield from self._by_name().items()

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name())

    def __len__(self) -> int:
        return len(self._below())

    def __bool__(self) -> Literal[True]:
        return True                         # also without parameters

    def __contains__(self, name: object) -> bool:
        cdef _Members members = self._members
        if members.shares or not isinstance(name, str):
            return name in self._by_name()
        return members.entry(self._name + name) is not None

    def __getitem__(self, name: str) -> Any:
        """The parameter or table of this name: "W", "encoder/W", or a full name such as "/encoder/W".

        Raises:
            KeyError: there is none.
        """
        cdef _Members members = self._members
        if not isinstance(name, str):
            raise TypeError(f"{self._name}: the name of a parameter is needed, not {name!r}")
        if not members.shares:
            entry = members.entry(self._name + name) or (members.entry(name) if name.startswith(self._name) else None)
            if entry is not None:
                return members.shown(entry)
        own = self._by_name()
        found = own.get(name, own.get(name[len(self._name):]) if name.startswith(self._name) else None)
        if found is None:
            found = next((x for x in own.values() if x.name() in (name, self._name + name)), None)
        if found is None:
            from difflib import get_close_matches

            near = get_close_matches(name, own, 3) or list(own)[:10]
            raise KeyError(f"{self._name} has no parameter {name!r}" + (f"; it has {', '.join(near)}" if near else ""))
        return found

    def state_dict(self, layer="") -> dict[str, _Floats]:
        """The values of all parameters and tables below by name, as new arrays; for tables, rows are the first axis.

        Args:
            layer: the name of a layer or a sub-collection, such as "tagger" or "tagger.encoder": only what is in it, by
                the names that the layer's own `state_dict` has. Default: all

        Raises:
            KeyError: there is no layer of this name; the message names those there are.

        Example:
            >>> W = model.add_parameters(2, init=1, name="W")
            >>> np.savez("model.npz", **model.state_dict())
            >>> model.load_state_dict(np.load("model.npz"))
            Matched(loaded=['W'], missing=[], unexpected=[])
            >>> layer = dy.nn.Linear(3, 2, model)
            >>> list(model.state_dict()), list(model.state_dict("linear"))
            (['W', 'linear/W', 'linear/b'], ['W', 'b'])
        """
        cdef _Paths paths
        if not layer:
            return {name: settled_array(x) for name, x in self._by_name().items()}
        place = layer.replace(".", "/") + "/"
        paths = _Paths(self)
        within = paths.collections.get(place)
        found = within._by_name() if within is not None else {
            name[len(place):]: x for name, x in paths.found.items() if name.startswith(place)}
        if not found:
            layers = dict.fromkeys(name.rpartition("/")[0] for name in paths.found if "/" in name)
            raise KeyError(f"state_dict: {self._name} has no layer {layer!r}, but {', '.join(layers) or 'none'}")
        return {name.replace("/", "."): settled_array(x) for name, x in found.items()}

    def load_state_dict(
        self, state: Mapping[str, npt.ArrayLike], strict=True, prefix="", rename: Renaming = None
    ) -> Matched:
        """Set values from named arrays, such as those of `state_dict`.  Nothing is changed unless all of them fit.

        Args:
            state: a mapping of names to arrays.
            strict: whether all names must be on both sides (default: True).
            prefix: only names that begin with it are used, and it is removed from them.
            rename: a mapping of names in `state`, without the prefix, to names here, or a function of a name.

        Returns:
            A tuple ``(loaded, missing, unexpected)`` of lists of names.

        Raises:
            ValueError: names are missing or unexpected and `strict` is True, or a shape differs.

        Example:
            >>> W, b = model.add_parameters(2, name="W"), model.add_parameters(1, name="b")
            >>> model.load_state_dict({"old/W": np.ones(2)}, strict=False, prefix="old/")
            Matched(loaded=['W'], missing=['b'], unexpected=[])
        """
        return load_arrays(self, state, strict, prefix, rename)

    def copy_from(self, other: CollectionOrLayer, strict=True, rename: Renaming = None) -> Matched:
        """Set values to those of the parameters of the same names in another collection; see `load_state_dict`.

        Args:
            other: the other collection, or a layer.
            strict: whether all names must be on both sides (default: True).
            rename: a mapping of names there to names here, or a function of a name.

        Example:
            >>> pretrained = dy.ParameterCollection()
            >>> V, W = (m.add_parameters(2, init=i, name="W") for i, m in enumerate([pretrained, model]))
            >>> model.copy_from(pretrained)
            Matched(loaded=['W'], missing=[], unexpected=[])
            >>> W.as_array()
            array([0., 0.], dtype=float32)
        """
        other = as_collection(other)
        if not isinstance(other, ParameterCollection):
            raise TypeError(f"copy_from: a ParameterCollection is needed, not {type(other).__name__}")
        return self.load_state_dict(other.state_dict(), strict, "", rename)

    def save(self, fname: _File, name="", append=False):
        """Write all parameters and tables to a text model file, which DyNet can read, too.

        The file is replaced completely or not at all: an interrupted save leaves the
        old file.

        Args:
            fname: name of the file, or a binary file that is open for writing.
            name: replaces this collection's name in the file; begins with "/".
            append: add to the file instead (default: False).

        Raises:
            ValueError: the name is not possible.
            OSError: the file cannot be written.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> model.save("a.model")
            >>> W.zero()
            >>> model.populate("a.model")
            >>> W.npvalue()
            array([3., 3.])
        """
        check_key("name", name)
        if name and not name.startswith("/"):
            raise ValueError(f"Key should start with '/': {name}")
        prefix = self._name if not name else name if name.endswith("/") else name + "/"
        own = [(prefix + path, x) for path, x in self._by_name().items()]
        own.sort(key=lambda pair: isinstance(pair[1], LookupParameters))
        write_text_model(fname, (entry_of(x, path) for path, x in own), append)

    def populate(self, fname: _FileName, key=""):
        """Read all parameters and tables from a text model file, also one written by DyNet.

        Entries are matched by kind and position, as in DyNet.  If file and collection have the same names in another
        order, as after a change of the order of definitions, they are matched by name, unlike in DyNet.
        Nothing is changed unless the whole file fits.

        Args:
            fname: name of the file.
            key: read only the part of the file below this collection.

        Raises:
            ModelFileError: the file is not a model, is truncated, or does not fit.

        Example:
            >>> W = model.add_subcollection("layer").add_parameters(2, init=3)
            >>> model.save("a.model")
            >>> other = dy.ParameterCollection()
            >>> V = other.add_parameters(2)
            >>> other.populate("a.model", key="/layer/")
            >>> V.npvalue()
            array([3., 3.])
        """
        check_text("populate", "key", key)
        parameters, tables = self.parameters_list(), self.lookup_parameters_list()
        wanted = [(name, x, file_dim(x)) for name, x in self._full_names().items()]
        entries = list(populate_entries(
            fname, [(name, dim) for name, x, dim in wanted if isinstance(x, Parameters)],
            [(name, dim) for name, x, dim in wanted if isinstance(x, LookupParameters)], key,
            None if follows_dynet() else self._name))
        for i, entry in entries:
            fill_entry((tables if entry.kind == LOOKUP else parameters)[i], entry, fname)

    def populate_by_name(self, fname: _FileName, key="", strict=True, rename: Renaming = None) -> Matched:
        """Read parameters and tables by name from a text model file, also one written by DyNet.

        This can read a part of a model from the file of another model.  Nothing is changed unless all of it fits.

        Args:
            fname: name of the file.
            key: read only the part of the file below this collection; it is not part of the names.
            strict: whether all names must be on both sides (default: True).
            rename: a mapping of names in the file, below `key`, to names here, or a function of a name.

        Returns:
            A tuple ``(loaded, missing, unexpected)`` of lists of names.

        Raises:
            ModelFileError: the file is not a model or is truncated, names are missing or unexpected and `strict`
                is True, or a shape differs.

        Example:
            >>> pretrained = dy.ParameterCollection()
            >>> V = pretrained.add_parameters(2, name="W")
            >>> pretrained.save("pretrained.model")
            >>> W, out = model.add_parameters(2, name="W"), model.add_parameters((3, 2), name="out")
            >>> report = model.populate_by_name("pretrained.model", strict=False)
            >>> report.loaded, report.missing
            (['W'], ['out'])
        """
        check_text("populate_by_name", "key", key)
        prefix = key if key.endswith("/") else key + "/"
        return fill_by_name(self, read_text_model(fname, lambda kind, name: name.startswith(prefix)), fname,
                            prefix, strict, rename)

    def write_to_textfile(self, fname: _File, key="", append=False):
        """DyNet's other name for `save`.

        Args:
            fname, key, append: as `save` takes them.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> model.write_to_textfile("a.model")
            >>> W.zero()
            >>> model.populate_from_textfile("a.model")
            >>> W.npvalue()
            array([3., 3.])
        """
        self.save(fname, key, append)

    def populate_from_textfile(self, fname: _FileName, key=""):
        """DyNet's other name for `populate`.

        Args:
            fname, key: as `populate` takes them.

        Example:
            >>> W = model.add_parameters(2, init=3)
            >>> model.write_to_textfile("a.model")
            >>> W.zero()
            >>> model.populate_from_textfile("a.model")
            >>> W.npvalue()
            array([3., 3.])
        """
        self.populate(fname, key)

    def load_param(self, fname: _FileName, key: str) -> Parameters:
        """Add a parameter read from a text model file.

        Args:
            fname: name of the file.
            key: name of the parameter in the file; the new parameter gets the last part of it, without
                the number appended to it.

        Returns:
            Parameters.

        Raises:
            ModelFileError: the file has no such parameter, or is not a model.
            OSError: the file cannot be read.

        Example:
            >>> W = model.add_parameters(2, init=3, name="W")
            >>> model.save("a.model")
            >>> dy.ParameterCollection().load_param("a.model", "/W")
            <Parameters /W (2,)>
        """
        return add_entry(self, find_entry(fname, key, False))

    def load_lookup_param(self, fname: _FileName, key: str) -> LookupParameters:
        """Add a lookup table read from a text model file; see `load_param`.

        Args:
            fname: name of the file.
            key: name of the table in the file.

        Example:
            >>> words = model.add_lookup_parameters((100, 3), name="words")
            >>> model.save("a.model")
            >>> dy.ParameterCollection().load_lookup_param("a.model", "/words")
            <LookupParameters /words (100, 3)>
        """
        return add_entry(self, find_entry(fname, key, True))

    def __reduce__(self):
        own = {k: v for k, v in self.__dict__.items() if k not in _RESTORED}
        return _restored_collection, (type(self), {k: getattr(self, k) for k in _RESTORED}), own or None

    def __setstate__(self, state):
        self.__dict__.update(state)
        hold(self, self._parts)

    def __repr__(self):
        return f"<ParameterCollection {self._name} of {len(self)} parameters, {self.parameter_count():,} numbers>"

    def _repr_html_(self) -> str:
        """A table of names, shapes and sizes, for notebooks."""
        from html import escape     # with its entities, it would add 3 ms to `import dynet_cy`

        rows = "".join([
            f"<tr><td>{escape(name)}</td><td>{' x '.join(map(str, x.shape))}</td>"
            f"<td>{(<_Stored>x).p.size:,}</td><td>{type(x).__name__}{'' if x.is_updated() else ', frozen'}</td></tr>"
            for name, x in self._by_name().items()])
        return (f"<table><caption>{escape(repr(self))}</caption>"
                f"<tr><th>name</th><th>shape</th><th>numbers</th><th></th></tr>{rows}</table>")


def named(collection: ParameterCollection, separator="/") -> tuple[dict[str, _AnyParameters], dict[str, str]]:
    """Parameters and tables by their names relative to a collection; and these names by those under which they were
    made, which older files have."""
    below, above = len(collection._name), len(collection._first_name)
    own = {name.replace("/", separator): x for name, x in collection._by_name().items()}
    first = {old[above:].replace("/", separator): new[below:].replace("/", separator)
             for old, new in collection._first_names().items()}
    return own, first


def fill_by_name(
    collection: ParameterCollection, entries: Iterable[Entry], fname: _FileName, prefix: str, strict=True,
    rename: Renaming = None
) -> Matched:
    """Fill a collection from entries of a text model file: see `ParameterCollection.populate_by_name`."""
    own, first = named(collection)
    entries = {entry.name: entry for entry in entries}
    found, report = matches(entries, own, prefix, rename, first)
    words = complaint(report, prefix, {name: entry.dim for name, entry in entries.items()},
                      {name: file_dim(x) for name, x in own.items()})
    if strict and words:
        raise ModelMismatchError(words, os.fspath(fname))
    for name, entry_name in found.items():
        kind = LOOKUP if isinstance(own[name], LookupParameters) else PARAMETER
        if (entries[entry_name].kind, entries[entry_name].dim) != (kind, file_dim(own[name])):
            raise ModelMismatchError(
                f"is a {entries[entry_name].kind} of dimensions {entries[entry_name].dim}, where a {kind} of "
                f"{file_dim(own[name])} is needed for {own[name].name()}", os.fspath(fname), parameter=entry_name)
    for name, entry_name in found.items():
        fill_entry(own[name], entries[entry_name], fname)
    return report


def load_arrays(
    collection: ParameterCollection, state: Mapping[str, npt.ArrayLike], strict: bool, prefix: str,
    rename: Renaming, separator="/"
) -> Matched:
    """Set values from named arrays: see `ParameterCollection.load_state_dict`."""
    own, first = named(collection, separator)
    found, report = matches(state.keys(), own, prefix, rename, first)
    shapes = {name: np.shape(state[name]) for name in report.unexpected} if strict else {}
    words = complaint(report, prefix, shapes, {name: tuple(x.shape) for name, x in own.items()})
    if strict and words:
        raise ValueError(f"load_state_dict of {collection._name}: {words}")
    arrays = {name: floats_like(state[entry_name], f"load_state_dict of {own[name].name()} from {entry_name}",
                                tuple(own[name].shape)) for name, entry_name in found.items()}
    for name, array in arrays.items():
        set_array(own[name], array)
    return report


def _free_name(name, used, what):
    if not isinstance(name, str):
        raise TypeError(f"{what} name must be a string, not {type(name).__name__}")
    if set(name) & set("/ #"):
        raise ValueError(f"{what} name could not include '/', ' ' and '#': {name!r}")
    n = used.get(name, 0)
    if not n and name:
        used[name] = 1
        return name
    # The first use of a name gets no number, but an empty name is always numbered.  A name such as W_1 may have been
    # given by the program, and one made here counts as given.
    while f"{name}_{n}" in used:
        n += 1
    used[name] = n + 1
    used[f"{name}_{n}"] = 1
    return f"{name}_{n}"


# ---- pickling ----------------------------------------------------------------
#
# Collections and parameters are pickled as the `_Members` that they share, and their index in it.
# So objects that are pickled together still share memory when they are restored.

# The attributes restored here; others belong to derived classes.
_RESTORED = ("_name", "_members", "_taken", "_taken_below", "_weight_decay", "_decay_due", "_first_name", "_named")


def _restored_collection(cls, state):
    """A collection from its pickle.  Those of earlier versions have no first name."""
    made = cls.__new__(cls)
    made.__dict__.update({"_first_name": state["_name"], **state})
    (<_Members>made._members).add_collection(made)
    return made


def _restored_members(entries, former=()):
    """The members of a root collection from their pickle."""
    cdef _Members members = _Members()
    members.former.update(former)
    members.storage.check_memory("the parameters of a pickle", sum([value.size for _, _, value, *_ in entries]), False)
    for entry in entries:
        _add_restored(members, *entry)
    return members


def _restored_member(_Members members, number):
    """A parameter or table from its pickle."""
    return members.shown(members.all_numbered()[0][number])


def _entry_state(_Stored x):
    """Name, kind, value, gradient, settings and device ("" for the default device) of a parameter, for its pickle."""
    return (x.name(), isinstance(x, LookupParameters), settled_array(x), gradient_state(x),
            bool(x.p.updated), "" if x.p.device == default_device() else device_name(x.p.device))


def _add_restored(_Members members, str name, bint is_lookup, value, gradient, bint updated, str device=""):
    """Add a parameter from its pickle, on its device; on the default device if that one does not exist."""
    cdef Dim d
    cdef _Stored made
    shape = value.shape
    dim_from_shape(shape[1:] if is_lookup else shape, &d, name)
    try:
        number = check_device(device, name) if device else default_device()
    except RuntimeError:
        number = default_device()
    made = members.add(number, LookupParameters if is_lookup else Parameters, &d, shape[0] if is_lookup else 0, name)
    made.fill(value, made.storage.values)
    made.p.updated = updated
    set_gradient_state(made, gradient)
