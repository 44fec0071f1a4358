"""Read JSON and TOML files, and check the type of every value before it is used."""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from reprlib import repr as brief
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints, is_typeddict

from lipcert.errors import ArgumentError, CheckpointError

T = TypeVar("T")
LARGEST, LARGEST_FLOAT = 2**63, 1e300
"""Limits on numbers: integers fit a tensor, and floats can be scaled and drawn without overflow."""


def read_json(path: Path, kind: type[T], remedy: str = "") -> T:
    """The content of a JSON file as a `kind`, see `build`.

    Raises:
        CheckpointError: the file cannot be read, is not JSON, or not of this kind; `remedy` says what to do.
    """
    return _explained(path, remedy, lambda: cast(T, build(kind, parse_json(path.read_text("utf-8")))))


def read_lines(path: Path, kind: type[T], remedy: str = "") -> list[T]:
    """The lines of a file, each a JSON value that is a `kind`; raises as `read_json` does."""

    def read() -> list[T]:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [build(kind, parse_json(line), f"line {n}") for n, line in enumerate(lines, start=1)]

    return _explained(path, remedy, read)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file; raises as `read_json` does."""
    return _explained(path, "", lambda: parse_toml(path.read_text(encoding="utf-8")))


def parse_json(text: str) -> Any:
    """Strict JSON: NaN, Infinity and halves of characters are refused.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The table that a TOML document is.

    Raises:
        ValueError: it is not TOML, or nested too deeply.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def build(kind: Any, value: Any, name: str = "") -> Any:
    """`value`, which came from JSON or TOML, as a `kind`: a dataclass, a TypedDict, a number, a text, ...

    Entries that a dataclass does not know are left out, so that newer files can be read. An integer is a
    valid float, a bool never a number, and all numbers are finite and not huge.

    Args:
        kind: a type, also `X | None`, `list[X]`, `tuple[X, ...]`, `tuple[X, Y]`, `dict[str, X]` or `Any`.
        value: what was read.
        name: of the value, for the message.

    Raises:
        ArgumentError: a value has another type; names it, what was expected and what was found.

    >>> build(tuple[float, ...], [1, 2.5])
    (1.0, 2.5)
    >>> build(dict[str, int], {"epochs": "3"})
    Traceback (most recent call last):
    ...
    lipcert.errors.ArgumentError: epochs: expected int, got '3'
    """
    if kind is Any:
        return value
    options = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and NoneType in options:
        return None
    (kind,) = (option for option in options if option is not NoneType)
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if is_dataclass(kind) or is_typeddict(kind):
        return _build_record(kind, value, name)
    if origin is dict and isinstance(value, dict):
        return {key: build(parts[1], item, _inside(name, key)) for key, item in value.items()}
    if origin in (list, tuple) and isinstance(value, list | tuple):
        kinds = parts if origin is tuple and parts[-1] is not ... else (parts[0],) * len(value)
        if len(kinds) == len(value):
            items = zip(kinds, value, strict=True)
            return origin(build(part, item, _inside(name, n)) for n, (part, item) in enumerate(items))
    if kind is float and type(value) is int and abs(value) < LARGEST:
        value = float(value)
    if type(value) is not kind:
        expected = " or ".join("nothing" if option is NoneType else _called(option) for option in options)
        raise ArgumentError(f"{name or 'content'}: expected {expected}, got {brief(value)}")
    if (kind is float and not abs(value) <= LARGEST_FLOAT) or (kind is int and not abs(value) < LARGEST):
        raise ArgumentError(f"{name or 'content'}: expected a finite number, got {brief(value)}")
    return value


def _build_record(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name or 'content'}: expected a table, got {brief(value)}")
    hints, needed = _entries(kind)
    if missing := sorted(needed - value.keys()):
        raise ArgumentError(f"{name or 'content'}: lacks {', '.join(missing)}")
    found = {key: build(hints[key], value[key], _inside(name, key)) for key in hints if key in value}
    return {**value, **found} if is_typeddict(kind) else kind(**found)


@cache
def _entries(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Types of all entries of a dataclass or TypedDict, and the names of the required ones."""
    if is_dataclass(kind):
        needed = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
        return get_type_hints(kind), frozenset(needed)
    return get_type_hints(kind), kind.__required_keys__


def _inside(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _called(kind: Any) -> str:
    return {float: "a number", dict: "a table", list: "a list", tuple: "a list"}.get(
        get_origin(kind) or kind, getattr(kind, "__name__", str(kind))
    )


def _explained(path: Path, remedy: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error}){remedy and f'; {remedy}'}") from error


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
