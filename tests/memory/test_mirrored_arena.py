"""Arenas that are mirrored on a device keep their empty segments as they grow: copies that are under way read them.

The functions that Cython modules import from each other are called by their addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import POINTER, c_int, c_size_t, c_ssize_t, c_uint8, c_uint32, c_void_p
from typing import Any

import pytest

from dynet_cy.memory import arena

pytestmark = pytest.mark.usefixtures("nothing_held")


class Memory(ctypes.Structure):
    """`dy_memory` of include/dynet_cy/arena.h."""

    _fields_ = [
        ("limit", c_size_t), ("used", c_size_t), ("grow", c_void_p), ("extend", c_void_p), ("widen", c_void_p),
        ("rewind", c_void_p), ("around", c_void_p),
    ]  # fmt: skip


class Segment(ctypes.Structure):
    """`dy_segment`."""

    _fields_ = [
        ("p", c_void_p), ("bytes", c_size_t), ("begin", c_size_t), ("charged", c_size_t), ("huge", c_size_t),
        ("gradient", c_ssize_t),
    ]  # fmt: skip


class Arena(ctypes.Structure):
    """`dy_arena`."""

    _fields_ = [
        ("origin", c_size_t), ("top", c_size_t), ("end", c_size_t), ("begin", c_size_t), ("first", c_size_t),
        ("segments", POINTER(Segment)), ("n", c_uint32), ("now", c_uint32), ("capacity", c_uint32),
        ("poison", c_uint8), ("zeroed", c_uint8), ("quiet", c_uint8), ("mirrored", c_uint8), ("foreign", c_uint8),
        ("memory", POINTER(Memory)),
    ]  # fmt: skip


def function(name: str, *arguments: Any) -> Any:
    """A function of arena.pxd that returns nothing."""
    capsule = arena.__pyx_capi__[name]  # type: ignore[attr-defined]
    name_of, address_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.argtypes, name_of.restype = [ctypes.py_object], ctypes.c_char_p
    address_of.argtypes, address_of.restype = [ctypes.py_object, ctypes.c_char_p], c_void_p
    return ctypes.CFUNCTYPE(None, *arguments)(address_of(capsule, name_of(capsule)))


@pytest.fixture
def opened() -> Iterator[Arena]:
    memory, made = Memory(), Arena()
    function("memory_open", POINTER(Memory))(memory)
    function("arena_open", POINTER(Arena), c_int, POINTER(Memory))(made, 0, memory)
    yield made
    function("arena_close", POINTER(Arena))(made)
    assert memory.used == 0


def grow(a: Arena, size: int) -> int:
    return ctypes.CFUNCTYPE(c_void_p, POINTER(Arena), c_size_t)(a.memory.contents.grow)(a, size)


def rewind(a: Arena, top: int) -> None:
    ctypes.CFUNCTYPE(None, POINTER(Arena), c_size_t)(a.memory.contents.rewind)(a, top)


@pytest.mark.parametrize("mirrored", [False, True])
def test_growing_keeps_empty_segments(opened: Arena, mirrored: bool) -> None:
    opened.mirrored = mirrored
    # Others have more address space than was asked for.
    for size in (1 << 18, 1 << 20, 1 << 22) if mirrored else (1 << 18, 1 << 26, 1 << 28):
        place = grow(opened, size)
        ctypes.memset(place, 7, 1 << 18)
    assert opened.n == 3
    before = [(s.p, s.bytes) for s in opened.segments[:3]]
    rewind(opened, 0)
    assert (opened.n, opened.now) == (3, 0)
    assert grow(opened, 1 << 30)  # more than all that there is
    after = [(s.p, s.bytes) for s in opened.segments[: opened.n]]
    if mirrored:
        assert after[:3] == before
        assert ctypes.string_at(place, 1 << 18) == b"\7" * (1 << 18)
    else:
        assert opened.n == 2
        assert after[0] == before[0]
    assert after[-1][1] >= 1 << 30
