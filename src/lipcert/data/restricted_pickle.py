"""A restricted reader for the pickles of the public CIFAR files: it builds plain values and can call nothing.

A pickle is a program, and `pickle.load` runs it. The public files need three names only: numpy's
`_reconstruct`, `ndarray` and `dtype`. This reader knows these and refuses every other. Nor are the three
numpy's own: each is an inert stand-in that keeps what it is given, and the array is built afterwards from
bytes, shape and a number type that were checked. So a crafted file reaches no code but the few lines below.
"""

import math
import pickle
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lipcert.errors import DataError

Plain = npt.NDArray[Any] | list[Any] | str | bytes | int | float | None

_NUMBER_TYPES: Final = frozenset({"u1", "i1", "i2", "i4", "i8", "f4", "f8"})
_SCALARS: Final = (int, float, str, bytes)


def read_restricted_pickle(path: Path) -> dict[str, Plain]:
    """Read a dictionary of arrays, flat lists, strings and numbers; refuse a file that holds anything else.

    Raises:
        DataError: the file cannot be read, is damaged, or asks for anything but plain data.
    """
    try:
        with path.open("rb") as file:
            content = _RestrictedUnpickler(file, encoding="bytes").load()
        if type(content) is not dict:
            raise pickle.UnpicklingError(f"it holds a {type(content).__name__}, not a dictionary")
        return {_text(key): _plain(value) for key, value in content.items()}
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        # A damaged stream can make the unpickler raise almost any type; the file is at fault in each case.
        raise DataError(
            f"{path}: refused, it is damaged or not plain data ({type(error).__name__}: {error}); "
            "get the file again from a source you trust"
        ) from error


class _RestrictedUnpickler(pickle.Unpickler):
    """Finds the stand-ins below and nothing else."""

    def find_class(self, module: str, name: str) -> object:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


class _Dtype:
    """What a pickle says about a number type: `dtype(code, align, copy)`, then its state."""

    __slots__ = ("code", "order")

    def __init__(self, code: object) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, order, *structure = state
        if structure[:3] != [None, None, None]:
            raise pickle.UnpicklingError("it has an array of records")
        self.order = _text(order)

    def build(self) -> np.dtype[Any]:
        """Return the number type, if it is one."""
        if self.code not in _NUMBER_TYPES or self.order not in ("|", "<", ">", "="):
            raise pickle.UnpicklingError(f"it has an array of {self.order}{self.code}, not of numbers")
        return np.dtype(self.order + self.code)


class _Array:
    """What a pickle says about an array: `_reconstruct(ndarray, (0,), b'b')`, then its state."""

    __slots__ = ("state",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def build(self) -> npt.NDArray[Any]:
        """Return the array, if shape, number type and bytes agree."""
        _version, shape, dtype, by_columns, raw = self.state
        if type(dtype) is not _Dtype or type(raw) is not bytes or type(shape) is not tuple:
            raise pickle.UnpicklingError("it has an array without plain bytes")
        if any(type(length) is not int or length < 0 for length in shape):
            raise pickle.UnpicklingError(f"it has an array of shape {shape}")
        number = dtype.build()
        if math.prod(shape) * number.itemsize != len(raw):
            raise pickle.UnpicklingError(f"it has an array of shape {shape} in {len(raw)} bytes")
        return np.frombuffer(raw, number).reshape(shape, order="F" if by_columns else "C")


class _Reconstruct:
    """Stands in for numpy's `_reconstruct`. An instance without attributes: a pickle cannot alter it."""

    __slots__ = ()

    def __call__(self, subtype: object, shape: object, code: object) -> _Array:
        return _Array()


class _MakeDtype:
    """Stands in for numpy's `dtype`."""

    __slots__ = ()

    def __call__(self, code: object, align: object, copy: object) -> _Dtype:
        return _Dtype(code)


class _NdarrayName:
    """Stands in for numpy's `ndarray`, which is only ever named, never called."""

    __slots__ = ()


_ADMITTED: Final[dict[tuple[str, str], object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _NdarrayName(),
    ("numpy", "dtype"): _MakeDtype(),
}


def _plain(value: object) -> Plain:
    if type(value) is _Array:
        return value.build()
    # Exact types, and flat lists only: the public files have no other, and a list may contain itself.
    if type(value) is list and all(type(item) in _SCALARS for item in value):
        return value
    if value is None or isinstance(value, _SCALARS):
        return value
    raise pickle.UnpicklingError(
        f"it has a {type(value).__name__} that is no array, flat list, string or number"
    )


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        return value
    raise pickle.UnpicklingError(f"it has a {type(value).__name__} where a string belongs")
