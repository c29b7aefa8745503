# Written by tools/derive.py
from typing import NamedTuple, final

from typing_extensions import Buffer, Self

def get_default_device() -> int:
    """The device of new graphs and collections: 0 the CPU, 1 + n GPU number n."""

def set_default_device(device: int) -> None:
    """Set the device of new graphs and collections."""

class Change: ...

def waiting() -> int:
    """The number of changes that were interrupted and are not finished yet."""

parameter_names: dict[int, str]

class StorageUsage(NamedTuple):
    """Memory usage of the parameters of one collection on one device, in bytes."""

    device: int
    values: int
    gradients: int
    states: int
    packed: int

def storage_usage() -> list[StorageUsage]:
    """Memory usage of all collections of the process, as a list of StorageUsage."""

@final
class Held:
    """A writable buffer of another object, held until this object is freed."""
    def __new__(cls, mapping: Buffer) -> Self: ...

@final
class Plane:
    """The floats of all entries, each a contiguous range, in the plane's own memory or in a mapping of the caller's."""

@final
class Lent:
    """A part of a plane as a buffer for other libraries; while it exists, the memory does not move."""

@final
class Storage:
    """All parameters of one root collection that are on one device."""

    @property
    def values(self) -> Plane: ...
    @property
    def grads(self) -> Plane: ...
    @property
    def device(self) -> int: ...
    @property
    def other_devices(self) -> dict[int, Storage]: ...
    def __new__(cls, device: int = 0) -> Self: ...
    def check_memory(self, what: str, size: int, drawn: bool = True) -> None:
        """Raise MemoryError if new entries of `size` numbers do not fit into the limit, or, together with the array in which their values are `drawn`, into the machine's memory."""
    def place_on(self, device: int) -> None:
        """Move all planes, which must be empty, to a device."""
    def on(self, device: int) -> Storage:
        """The storage of the same collection for a device; it is created if there is none."""
    def everywhere(self) -> list[Storage]:
        """This storage and those of the same collection on other devices, as a list."""
    def new_plane(self) -> Plane:
        """A new plane of zeros, for the state of a trainer; the collection's other storages get one too."""
    def drop_plane(self, plane: Plane) -> None:
        """Free a plane made by `new_plane`."""
    def n_bytes(self) -> int:
        """Bytes of each plane."""
    def move(self, plane: Plane, mapping: Buffer, copy: bool = True) -> None:
        """Move a plane to memory provided by the caller, such as a shared mapping."""
    def take_over(self, other: Storage) -> None:
        """Move all entries of another storage, and the planes of its trainers, to this one."""
    @property
    def times_changed(self) -> int:
        """How many times values have changed."""
    def changed(self) -> None:
        """Note that values have been written from outside, into the mapping that holds them."""
