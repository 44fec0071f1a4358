"""Strict reader of certificates.jsonl: records come from strangers, and every type is checked."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lipcert.errors import CheckpointError

FILE, FORMAT = "certificates.jsonl", "lipcert certificates 2"


@dataclass(frozen=True)
class Row:
    """One certificate as it is written; null is infinite in `margin`, `rounding` and `radius`."""

    index: int
    label: int | None
    prediction: int
    runner_up: int
    margin: float
    rounding: float
    radius: float


@dataclass(frozen=True)
class Written:
    """The first line, as far as it can be checked, and the others.

    Attributes:
        network_sha256: of the proved network.
        classes: names of the logits.
        lipschitz: constant from pixels to features.
        layers: path, operator and constant of every operator.
        images: number of images in the whole set.
        rows: one for each certified image.
    """

    network_sha256: str
    classes: tuple[str, ...]
    lipschitz: float
    layers: tuple[tuple[str, str, float], ...]
    images: int
    rows: tuple[Row, ...]


def read_written(path: Path) -> Written:
    """Read certificates.jsonl, or the one of a folder.

    Raises:
        CheckpointError: no such file, or a line that is not of the format.
    """
    path = path / FILE if path.is_dir() else path
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        header, *rows = (json.loads(line, parse_constant=_refuse) for line in lines)
        if _typed(header, "format", str) != FORMAT:
            raise ValueError(f"expected the format {FORMAT!r}, got {header['format']!r:.60}")
        if not rows:
            raise ValueError("expected one line for each image, got none")
        classes, layers = _typed(header, "classes", list), _typed(header, "layers", list)
        return Written(
            _typed(header, "network_sha256", str),
            tuple(map(str, classes)),
            _number(header, "lipschitz"),
            tuple(
                (_typed(e, "path", str), _typed(e, "operator", str), _number(e, "lipschitz")) for e in layers
            ),
            _typed(header, "images", int),
            tuple(map(_row, rows)),
        )
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: no records that can be read ({error})") from error


def _row(entry: Any) -> Row:
    index, prediction, runner_up = (_typed(entry, n, int) for n in ("index", "prediction", "runner_up"))
    label = None if isinstance(entry, dict) and entry.get("label", 0) is None else _typed(entry, "label", int)
    return Row(
        index, label, prediction, runner_up, *(_number(entry, n) for n in ("margin", "rounding", "radius"))
    )


def _typed(entry: Any, name: str, kind: type) -> Any:
    if not isinstance(entry, dict) or name not in entry:
        raise ValueError(f"expected {name} in every line of its kind, got {entry!r:.60}")
    if type(entry[name]) is not kind:
        raise ValueError(f"{name}: expected {kind.__name__}, got {entry[name]!r:.60}")
    return entry[name]


def _number(entry: Any, name: str) -> float:
    """A number that is not negative; null is infinite."""
    if isinstance(entry, dict) and entry.get(name, 0) is None:
        return math.inf
    kind = int if isinstance(entry, dict) and type(entry.get(name)) is int else float
    value = _typed(entry, name, kind)
    if not 0 <= value <= 1e300:
        raise ValueError(f"{name}: expected a number that is not negative, or null, got {value!r:.60}")
    return float(value)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
