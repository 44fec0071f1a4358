"""Reader of proved networks: bytes, hash, types and shapes are checked before a number is used."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lipcert.certify.independent.tree import Array, Combinator, Leaf, Network, Node, output_shape
from lipcert.errors import CheckpointError

FORMAT, KEY = "lipcert proved network 1", "lipcert-proved"
DTYPES = {"F64": "<f8", "F32": "<f4", "BF16": "<u2"}
FIELDS: dict[str, dict[str, str]] = {
    "ChannelAffine": {"mean": "array", "std": "array"},
    "SpaceToDepth": {},
    "Reshape": {"shape": "sides?"},
    "Mirror": {},
    "ChannelPad": {"channels": "int"},
    "ChannelSlice": {"start": "int", "stop": "int"},
    "Matrix": {"weight": "array", "bias": "array?"},
    "Frame": {"margin": "int"},
    "CircularConvolution": {
        "kernel": "array", "bias": "array?", "stride": "int", "dilation": "int", "groups": "int",
    },
    "TransposedConvolution": {
        "kernel": "array", "bias": "array?", "stride": "int", "dilation": "int", "groups": "int",
    },
    "SpectralConvolution": {"spectrum": "array", "bias": "array?", "map_size": "sides"},
    "SkewPolynomial": {
        "centre": "array", "taps": "array", "centre_factor": "float", "factor": "float",
        "coefficients": "floats", "in_channels": "int", "out_channels": "int", "bias": "array?",
    },
    "Convolution": {
        "kernel": "array", "bias": "array?", "stride": "sides", "padding": "ints", "dilation": "sides",
        "groups": "int",
    },
    "GradientStep": {"kernel": "array", "bias": "array?", "in_channels": "int", "out_channels": "int"},
    "Transpose": {"order": "ints"},
    "Repeat": {"block": "sides"},
    "Pool": {"function": "str", "window": "sides", "stride": "sides", "padding": "ints"},
    "Elementwise": {"function": "str", "slope": "float"},
    "GroupSort": {"group": "int"},
    "Householder": {"theta": "array"},
    "HouseholderOrder": {"theta": "array", "widths": "array"},
    "HouseholderND": {"vectors": "array"},
    "Proved": {
        "operator": "leaf", "path": "str", "layer": "str", "input_shape": "sides", "lipschitz": "float",
        "relative": "float", "absolute": "float",
    },
    "Sequence": {"parts": "nodes"},
    "WeightedSum": {"branches": "nodes", "weights": "floats"},
    "Concatenation": {"branches": "nodes"},
}  # fmt: skip
"""Fields of every kind of operator, by type; a question mark allows null."""
COMBINATORS = ("Sequence", "WeightedSum", "Concatenation")


def read_network(path: str | os.PathLike[str]) -> Network:
    """Read a proved network, without torch and without safetensors.

    Raises:
        CheckpointError: no such file, a changed or damaged one, or one of another kind or version.
    """
    try:
        content = Path(path).read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        if not 8 < start <= len(content):
            raise ValueError("its header is not whole")
        header = json.loads(content[8:start])
        description = json.loads(header.pop("__metadata__")[KEY])
        if description["format"] != FORMAT:
            raise ValueError(f"expected the format {FORMAT!r}, got {description['format']!r}")
        stated = description["sha256"]
        _check_hash(content, start, stated)
        reader = _Reader(_arrays(header, content[start:]))
        shape = reader.read("sides", description["input_shape"])
        tree = reader.node(description["operator"])
        if reader.unused:
            raise ValueError(f"no operator has the arrays {', '.join(sorted(reader.unused))}")
        classes = reader.read("strs", description["classes"])
        made = output_shape(tree, shape)
        if made != (len(classes),) or not classes:
            raise ValueError(f"{len(classes)} classes for outputs of shape {made}")
        lipschitz = reader.read("float", description["lipschitz"])
        name = reader.read("str", description["name"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise CheckpointError(f"{path}: not a proved network, or a damaged one ({error})") from error
    return Network(tree, shape, classes, lipschitz, stated, name)


def _check_hash(content: bytes, start: int, stated: Any) -> None:
    """The hash is taken over the whole file, with 64 zeros in its own place in the header."""
    place = content.find(stated.encode(), 0, start) if isinstance(stated, str) and len(stated) == 64 else -1
    if place < 0:
        raise ValueError("it has no hash")
    if hashlib.sha256(content[:place] + b"0" * 64 + content[place + 64 :]).hexdigest() != stated:
        raise ValueError("it has been changed since it was written: its hash does not fit")


def _arrays(header: Mapping[str, Any], numbers: bytes) -> dict[str, Array]:
    """Every array in float64; together they fill the file without a gap."""
    arrays: dict[str, Array] = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        (begin, stop), sides = entry["data_offsets"], entry["shape"]
        kind = np.dtype(DTYPES[entry["dtype"]])
        if not all(type(n) is int and n >= 0 for n in (begin, stop, *sides)):
            raise ValueError(f"array {name} has no proper size")
        if begin != end or stop - begin != math.prod(sides) * kind.itemsize or stop > len(numbers):
            raise ValueError(f"array {name} does not have the size that its shape says")
        raw = np.frombuffer(numbers[begin:stop], dtype=kind)
        if entry["dtype"] == "BF16":  # the upper half of a float32
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        arrays[name], end = raw.astype(np.float64).reshape(sides), stop
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"array {name} has numbers that are not finite")
    if end != len(numbers):
        raise ValueError("it is longer than its arrays")
    return arrays


class _Reader:
    """Nodes from their description; every array is used."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays, self.unused, self.count = arrays, set(arrays), 0

    def node(self, entry: Any) -> Node:
        kind = entry["kind"]
        if kind in COMBINATORS:
            values = self._fields(kind, entry)
            parts = values["parts"] if kind == "Sequence" else values["branches"]
            weights = values.get("weights", ())
            if (kind == "WeightedSum" and len(weights) != len(parts)) or (kind != "Sequence" and not parts):
                raise ValueError(f"{kind} of {len(parts)} branches and {len(weights)} weights")
            return Combinator(kind, parts, weights)
        if kind != "Proved":
            raise ValueError(f"an operator {kind!r} without a proved constant")
        place = self._fields(kind, entry)
        kind, values = place["operator"]
        self.count += 1
        return Leaf(
            self.count - 1, kind, values, place["path"], place["layer"], place["input_shape"],
            place["lipschitz"],
        )  # fmt: skip

    def _fields(self, kind: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        if entry.keys() != {"kind", *FIELDS[kind]}:
            raise ValueError(f"{kind} with fields {sorted(entry)}")
        return {name: self.read(hint, entry[name]) for name, hint in FIELDS[kind].items()}

    def read(self, hint: str, value: Any) -> Any:
        """One field; a TypeError names what it is not."""
        if hint.endswith("?") and value is None:
            return None
        hint = hint.removesuffix("?")
        if hint == "array":
            self.unused.discard(str(value["array"]))
            return self.arrays[str(value["array"])]
        if hint == "leaf":
            if value["kind"] in COMBINATORS or value["kind"] == "Proved":
                raise ValueError(f"a stated constant of a whole {value['kind']}")
            return value["kind"], self._fields(value["kind"], value)
        if hint == "nodes" and isinstance(value, list):
            return tuple(map(self.node, value))
        if hint in ("floats", "ints", "strs") and isinstance(value, list):
            return tuple(self.read(hint.removesuffix("s"), item) for item in value)
        if hint == "sides" and isinstance(value, list) and all(type(s) is int and s > 0 for s in value):
            return tuple(value)
        if hint == "float" and type(value) in (int, float) and math.isfinite(value):
            return float(value)
        if (hint, type(value)) in (("int", int), ("str", str)):
            return value
        raise TypeError(f"expected {hint}, got {value!r:.60}")
