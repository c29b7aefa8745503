"""DyNet's classes that hold input values.

In DyNet, inputs refer to such objects. Here, inputs hold their own values, and the expression's `set` changes them;
these classes exist for programs that use them.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["FloatValue", "FloatVectorValue", "UnsignedValue", "UnsignedVectorValue"]


def _unsigned(value: int) -> int:
    if value != int(value) or not 0 <= value < 2**32:
        raise ValueError(f"an unsigned number is whole and from 0 to 2**32 - 1, not {value!r}")
    return int(value)


class FloatValue:
    """A number.

    Args:
        val: the number (default: 0)

    Example:
        >>> number = dy.FloatValue(1.5)
        >>> number.set(2)
        >>> number.get()
        2.0
    """

    def __init__(self, val: float = 0.0) -> None:
        self.set(val)

    def set(self, val: float) -> None:
        """Change the number.

        Args:
            val: the new number.

        Example:
            >>> number = dy.FloatValue()
            >>> number.set(2)
            >>> number.get()
            2.0
        """
        self._value = float(val)

    def get(self) -> float:
        """The number.

        Example:
            >>> dy.FloatValue(1.5).get()
            1.5
        """
        return self._value


class UnsignedValue:
    """A whole number from 0 to 2**32 - 1.

    Args:
        val: the number (default: 0)

    Raises:
        ValueError: it is not whole, or out of range

    Example:
        >>> number = dy.UnsignedValue(3)
        >>> number.set(2)
        >>> number.get()
        2
    """

    def __init__(self, val: int = 0) -> None:
        self.set(val)

    def set(self, val: int) -> None:
        """Change the number.

        Args:
            val: the new number, whole and not below 0.

        Raises:
            ValueError: it is not whole, or out of range

        Example:
            >>> number = dy.UnsignedValue()
            >>> number.set(2)
            >>> number.get()
            2
        """
        self._value = _unsigned(val)

    def get(self) -> int:
        """The number.

        Example:
            >>> dy.UnsignedValue(3).get()
            3
        """
        return self._value


class FloatVectorValue:
    """A list of numbers.

    Args:
        vals: the numbers

    Example:
        >>> numbers = dy.FloatVectorValue([1, 2])
        >>> numbers.get(), numbers.size()
        ([1.0, 2.0], 2)
    """

    def __init__(self, vals: Iterable[float]) -> None:
        self.set(vals)

    def set(self, newval: Iterable[float]) -> None:
        """Change the numbers.

        Args:
            newval: the new numbers.

        Example:
            >>> numbers = dy.FloatVectorValue([1, 2])
            >>> numbers.set([3])
            >>> numbers.get()
            [3.0]
        """
        self._values = [float(v) for v in newval]

    def get(self) -> list[float]:
        """The numbers, as a new list.

        Example:
            >>> dy.FloatVectorValue([1, 2]).get()
            [1.0, 2.0]
        """
        return list(self._values)

    def size(self) -> int:
        """The number of elements.

        Example:
            >>> dy.FloatVectorValue([1, 2]).size()
            2
        """
        return len(self._values)


class UnsignedVectorValue:
    """A list of whole numbers from 0 to 2**32 - 1.

    Args:
        vals: the numbers

    Raises:
        ValueError: one is not whole, or out of range

    Example:
        >>> numbers = dy.UnsignedVectorValue([1, 2])
        >>> numbers.get(), numbers.size()
        ([1, 2], 2)
    """

    def __init__(self, vals: Iterable[int]) -> None:
        self.set(vals)

    def set(self, newval: Iterable[int]) -> None:
        """Change the numbers.

        Args:
            newval: the new numbers, whole and not below 0.

        Raises:
            ValueError: one is not whole, or out of range

        Example:
            >>> numbers = dy.UnsignedVectorValue([1, 2])
            >>> numbers.set([3])
            >>> numbers.get()
            [3]
        """
        self._values = [_unsigned(v) for v in newval]

    def get(self) -> list[int]:
        """The numbers, as a new list.

        Example:
            >>> dy.UnsignedVectorValue([1, 2]).get()
            [1, 2]
        """
        return list(self._values)

    def size(self) -> int:
        """The number of elements.

        Example:
            >>> dy.UnsignedVectorValue([1, 2]).size()
            2
        """
        return len(self._values)
