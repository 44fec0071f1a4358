"""Values from JSON and TOML against types: what is let through, and how the rest is named."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pytest

from lipcert.errors import ArgumentError, CheckpointError
from lipcert.schema import build, read_json, read_lines, read_toml


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.5
    name: str | None = None


class Line(TypedDict):
    ends: tuple[Point, Point]
    label: NotRequired[str]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Point, {"x": 1, "unknown": 2}, Point(1)),
        (Point, {"x": 1, "y": 2, "name": None}, Point(1, 2.0)),
        (Line, {"ends": [{"x": 1}, {"x": 2}], "kept": 3}, {"ends": (Point(1), Point(2)), "kept": 3}),
        (list[int], [1, 2], [1, 2]),
        (tuple[str, ...], ["a"], ("a",)),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Any, [None], [None]),
        (int | None, None, None),
    ],
)
def test_what_fits(kind: Any, value: Any, expected: object) -> None:
    assert build(kind, value) == expected


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Point, [], "content: expected a table, got []"),
        (Point, {}, "content: lacks x"),
        (Point, {"x": True}, "x: expected int, got True"),
        (Point, {"x": 10**30}, "x: expected a finite number, got 1000000"),
        (Point, {"x": 1, "y": 10**400}, "y: expected a number, got 1000000"),
        (Point, {"x": 1, "y": 1e301}, "y: expected a finite number, got 1e+301"),
        (Point, {"x": 1, "y": float("nan")}, "y: expected a finite number, got nan"),
        (Point, {"x": 1, "name": 3}, "name: expected str or nothing, got 3"),
        (Line, {"ends": [{"x": 1}]}, "ends: expected a list, got [{'x': 1}]"),
        (Line, {"ends": [{"x": 1}, {"x": "2"}]}, "ends.1.x: expected int, got '2'"),
        (Line, {"ends": [{"x": 1}, {"x": 2}], "label": 3}, "label: expected str, got 3"),
        (list[int], {"a": 1}, "content: expected a list, got {'a': 1}"),
        (dict[str, int], [], "content: expected a table, got []"),
    ],
)
def test_what_does_not(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        build(kind, value)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[" * 10**5, b"NaN", b"1" * 5000, b"\x00", b'"\\ud800"'],
    ids=lambda c: ascii(c[:9]),
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.file"
    for missing in (read_json, read_lines):
        with pytest.raises(CheckpointError, match=r"a\.file: cannot be read \(No such file"):
            missing(path, int)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.file is damaged \(.*\); do that"):
        read_json(path, int, "do that")
    if content:  # an empty file has no lines, and is an empty table
        with pytest.raises(CheckpointError, match=r"a\.file is damaged"):
            read_lines(path, int)
        with pytest.raises(CheckpointError, match=r"a\.file is damaged"):
            read_toml(path)
