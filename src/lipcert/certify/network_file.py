"""The file of a proved network: safetensors with a description in JSON, and a hash over every byte.

Layout: 8 bytes with the length of the header, the header (JSON: names, types, shapes, offsets, and under
`__metadata__` the description), then the numbers. Every array is stored in the narrowest of bfloat16,
float32 and float64 that holds it exactly. The SHA-256 is taken over the whole file with 64 zeros in its own
place, so that any changed byte shows. It is not a signature: the author of a file can state anything in it,
and `lipcert verify` derives what it states again.
"""

import hashlib
import json
import math
import re
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from lipcert.certify.network import ProvedNetwork
from lipcert.errors import ArgumentError, CheckpointError, LipcertError
from lipcert.operators import KINDS, Operator
from lipcert.operators.operator import LARGEST_MAP
from lipcert.schema import parse_json

FORMAT = "lipcert proved network 1"
KEY = "lipcert-proved"
NO_HASH = "0" * 64
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16}
LARGEST_HEADER, DEEPEST = 2**24, 100
"""Bytes of the header, numbers in an image, nested operators: far beyond any network that trains."""
TOO_DEEP = (
    f"its blocks are nested more than {DEEPEST} deep, and a residual block inside another may count twice; "
    "put them one after the other (nn.Sequential) in place of inside one another"
)


def to_bytes(network: ProvedNetwork) -> tuple[bytes, str]:
    """The content of the file, and its SHA-256."""
    arrays: list[Tensor] = []
    description = {
        "sha256": NO_HASH,  # before any name that a user chose, which could look like it
        "format": FORMAT,
        "lipcert": version("lipcert"),
        "input_shape": list(network.input_shape),
        "classes": list(network.classes),
        "name": network.name,
        "pixels": "raw pixels in [0, 1], channels first",
        "lipschitz": network.lipschitz,
        "operator": _describe(network.operator, arrays),
    }
    header: dict[str, Any] = {"__metadata__": {KEY: json.dumps(description, allow_nan=False)}}
    # Wide types first, so that every array is aligned.
    stored = [(str(k), *_narrowest(array)) for k, array in enumerate(arrays)]
    stored.sort(key=lambda entry: -entry[2].element_size())
    offset, chunks = 0, []
    for name, kind, array in stored:
        raw = array.reshape(-1).view(torch.uint8).numpy().tobytes() if array.numel() else b""
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        offset += len(raw)
        chunks.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = b"".join([len(text).to_bytes(8, "little"), text, *chunks])
    digest = hashlib.sha256(content).hexdigest()
    return content.replace(NO_HASH.encode(), digest.encode(), 1), digest


def _narrowest(array: Tensor) -> tuple[str, Tensor]:
    exact = array.detach().cpu().double().contiguous()
    for kind in ("BF16", "F32"):
        narrow = exact.to(DTYPES[kind])
        # Numbers that are subnormal there would be read as zero by processors that flush them.
        normal = (exact == 0) | (exact.abs() >= torch.finfo(DTYPES[kind]).tiny)
        if bool(normal.all()) and torch.equal(narrow.double(), exact):
            return kind, narrow
    return "F64", exact


def _describe(value: Any, arrays: list[Tensor], depth: int = 1) -> Any:
    if isinstance(value, Operator):
        if depth > DEEPEST:
            raise ArgumentError(f"network: {TOO_DEEP}")
        entries = {
            e.name: _describe(getattr(value, e.name), arrays, depth + 1) for e in fields(value) if e.init
        }
        return {"kind": type(value).__name__} | entries
    if isinstance(value, Tensor):
        places = [place for place, array in enumerate(arrays) if array is value]  # of a layer that runs twice
        if not places:
            arrays.append(value)
        return {"array": places[0] if places else len(arrays) - 1}
    if isinstance(value, tuple):
        return [_describe(item, arrays, depth) for item in value]
    return value


def is_proved_file(path: Path) -> bool:
    """Whether the header of a file says that it holds a proved network."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return length <= LARGEST_HEADER and f'"{KEY}"'.encode() in file.read(length)
    except OSError:
        return False


def read_network(path: Path) -> ProvedNetwork:
    """Read what `ProvedNetwork.save` wrote; every byte is checked before anything is built.

    Raises:
        CheckpointError: no such file, a changed or truncated one, or one of another kind or version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    return from_bytes(content, path)


def from_bytes(content: bytes, path: Path) -> ProvedNetwork:
    """The same from the content of the file, whose path is for errors."""
    try:
        header, description, start = _header(content)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a proved network, or a damaged one ({error})") from error
    stated = description["sha256"]
    if description["format"] != FORMAT:
        raise CheckpointError(
            f"{path}: has the format {description['format']!r}, this version reads {FORMAT!r}; use lipcert "
            f"{description.get('lipcert')}"
        )
    if hashlib.sha256(content.replace(stated.encode(), NO_HASH.encode(), 1)).hexdigest() != stated:
        raise CheckpointError(f"{path}: has been changed since it was written (its hash does not fit)")
    try:
        shape = tuple(description["input_shape"])
        if not all(type(side) is int and side > 0 for side in shape) or math.prod(shape) > LARGEST_MAP:
            raise ValueError(f"input_shape {shape}")
        reader = _Reader(header, content, start)
        operator = reader.read(Operator, description["operator"])
        if reader.unused:
            raise ValueError(f"arrays that no operator has: {', '.join(sorted(reader.unused))}")
        classes = tuple(map(str, description["classes"]))
        network = ProvedNetwork(operator, shape, classes, str(description["name"]))
        if network.lipschitz != description["lipschitz"]:
            raise ValueError(
                f"lipschitz is stated as {description['lipschitz']}, but {network.lipschitz} follows"
            )
    except (LipcertError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError,
            RuntimeError) as error:  # fmt: skip
        raise CheckpointError(f"{path}: describes no network that can be built ({error})") from error
    vars(network)["hash"] = stated
    return network


def _header(content: bytes) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The entries of the arrays, the description, and where the numbers begin; sizes are checked."""
    length = int.from_bytes(content[:8], "little")
    start = 8 + length
    if len(content) < 8 or length > LARGEST_HEADER or start > len(content):
        raise ValueError("its header is not whole")
    header = json.loads(content[8:start])
    description = parse_json(header.pop("__metadata__")[KEY])
    if not isinstance(description, dict) or not isinstance(description["format"], str):
        raise TypeError("its description is no table")
    if not re.fullmatch("[0-9a-f]{64}", str(description["sha256"])):
        raise ValueError("it has no hash")
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        count = math.prod(entry["shape"])
        if begin != end or stop - begin != count * DTYPES[entry["dtype"]].itemsize:
            raise ValueError(f"array {name} does not have the size that its shape says")
        end = stop
    if start + end != len(content):
        raise ValueError("it is longer or shorter than its arrays")
    return header, description, start


class _Reader:
    """Builds operators from their description; every array is used."""

    def __init__(self, header: dict[str, Any], content: bytes, start: int) -> None:
        self.header, self.start, self.unused = header, start, set(header)
        self.arrays: dict[str, Tensor] = {}
        self.content = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self.depth = 0

    def read(self, hint: Any, value: Any) -> Any:
        """The value of a field whose type is `hint`.

        Raises:
            TypeError: it is of another type.
        """
        kinds = get_args(hint) if type(None) in get_args(hint) else (hint,)
        if value is None and type(None) in kinds:
            return None
        (kind,) = [k for k in kinds if k is not type(None)]
        if kind is Tensor:
            return self._array(str(value["array"]))
        if kind is Operator:
            return self._operator(value)
        if get_origin(kind) is tuple:
            items = get_args(kind)
            hints = [items[0]] * len(value) if items[-1] is Ellipsis else list(items)
            return tuple(self.read(h, v) for h, v in zip(hints, value, strict=True))
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise TypeError(f"expected {kind.__name__}, got {value!r}")
        if kind is float and not math.isfinite(value):
            raise ValueError("a number is not finite")
        return kind(value)

    def _operator(self, value: dict[str, Any]) -> Operator:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError("its operators are nested too deeply")
        kind = KINDS[value["kind"]]
        hints = {e.name: get_type_hints(kind)[e.name] for e in fields(kind) if e.init}
        if value.keys() != {"kind", *hints}:
            raise ValueError(f"{kind.__name__} has fields {sorted(hints)}, got {sorted(value)}")
        built = kind(**{name: self.read(hint, value[name]) for name, hint in hints.items()})
        self.depth -= 1
        return built

    def _array(self, name: str) -> Tensor:
        self.unused.discard(name)
        if name not in self.arrays:
            entry = self.header[name]
            begin, end = (self.start + offset for offset in entry["data_offsets"])
            raw = self.content[begin:end].clone()
            self.arrays[name] = raw.view(DTYPES[entry["dtype"]]).double().reshape(entry["shape"])
        return self.arrays[name]
