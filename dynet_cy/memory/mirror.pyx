"""Memory of devices that mirrors memory of the host."""

from dynet_cy.core.atomic cimport Setting

cdef Mirrors the_mirrors
cdef Setting the_default = 0


cdef Mirrors* mirrors() noexcept:
    return &the_mirrors


cdef int default_device() noexcept nogil:
    return the_default


def get_default_device():
    """The device of new graphs and collections: 0 the CPU, 1 + n GPU number n."""
    return the_default


def set_default_device(int device):
    """Set the device of new graphs and collections.

    Raises:
        RuntimeError: it is a GPU, and none has been opened.
    """
    global the_default
    if device < 0 or (device and the_mirrors.open == NULL):
        raise RuntimeError(f"set_default_device: device {device} is not open")
    the_default = device
