"""What an exported network states about itself, and the hash that binds the statement to the graph."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lipcert.errors import CheckpointError
from lipcert.operators.operator import Shape

FORMAT = 2
PREFIX = "lipcert."
SEAL = f"{PREFIX}sha256".encode()
QUOTED = 66
"""Bytes of a SHA-256 as JSON: 64 digits and two quotation marks."""


@dataclass(frozen=True, eq=False)
class Metadata:
    """The entries of `metadata_props`, each a JSON value under "lipcert." and its name.

    All of it is as stated by the file: bounds were proved for the network that the file was made from, which
    the file alone cannot show.

    Attributes:
        version: of lipcert, when the file was written.
        network_sha256: of the proved network that it was made from, `ProvedNetwork.hash`.
        classes: a name for each logit.
        input_shape: (C, H, W) of one image.
        pixels: what the numbers of an image mean.
        lipschitz: constant from pixels to the features in front of the last matrix; for information.
        pair_bounds: (K, K), Lipschitz constants, from pixels, of the differences of two logits.
        rounding: what is subtracted from every margin for the float32 arithmetic; measured, not proved.
        certificate: the rule, in words.
    """

    version: str
    network_sha256: str
    classes: tuple[str, ...]
    input_shape: Shape
    lipschitz: float
    pair_bounds: npt.NDArray[np.float64]
    rounding: float
    pixels: str = "raw pixels in [0, 1], float32, (batch, channels, height, width); do not normalise them"
    certificate: str = (
        "radius of the prediction l = min over i != l of (logit_l - logit_i - rounding) / pair_bounds[l][i], "
        "in l2 and pixel units; pair_bounds are proved for the network in float64 that network_sha256 names, "
        "rounding (of float32) is measured, so such a radius is measured, not proved"
    )

    def to_properties(self) -> dict[str, str]:
        """As strings. JSON writes the shortest decimal that reads back as the same float64."""
        values = {**vars(self), "pair_bounds": self.pair_bounds.tolist(), "format": FORMAT}
        return {f"{PREFIX}{name}": json.dumps(value, allow_nan=False) for name, value in values.items()}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], file: str) -> "Metadata":
        """Read what `to_properties` wrote, in a file that was sealed.

        Raises:
            CheckpointError: the file was not written by lipcert, has another format, or is damaged.
        """
        if f"{PREFIX}format" not in properties:
            raise CheckpointError(f"{file}: an ONNX file, but not one that lipcert wrote: it states no bound")
        try:
            entries = {
                name.removeprefix(PREFIX): json.loads(text)
                for name, text in properties.items()
                if name.startswith(PREFIX)
            }
            if (found := entries.pop("format")) != FORMAT:
                raise CheckpointError(
                    f"{file}: has format {found}, this version reads {FORMAT}; export the network again, or "
                    f"use lipcert {entries.get('version')}"
                )
            del entries["sha256"]  # checked by `is_intact`
            bounds = np.array(entries.pop("pair_bounds"), dtype=np.float64)
            classes, shape = tuple(entries.pop("classes")), tuple(entries.pop("input_shape"))
            read = cls(**entries, classes=classes, input_shape=shape, pair_bounds=bounds)
            if bounds.shape != (len(classes),) * 2 or not (np.isfinite(bounds) & (bounds >= 0)).all():
                raise ValueError(f"pair_bounds: expected a bound for each pair of {len(classes)} classes")
            if not (0 <= read.lipschitz < math.inf and 0 < read.rounding < math.inf):
                raise ValueError("lipschitz, rounding: expected finite numbers, and a rounding above 0")
            if not (len(shape) == 3 and all(type(side) is int and side > 0 for side in shape)):
                raise ValueError(f"input_shape: expected three positive integers, got {shape}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{file}: its description is damaged ({error})") from error
        return read


def seal(content: bytes) -> bytes:
    """An ONNX file with one more entry, `lipcert.sha256`, at its end: the hash of every byte in front of it.

    In protobuf, entries of a repeated field may follow the message that they belong to. So the hash stands
    in the last bytes of the file, and neither writer nor reader depends on how a library orders fields.
    """
    key = b"\x0a" + bytes([len(SEAL)]) + SEAL  # field 1 of an entry: its key
    value = b"\x12" + bytes([QUOTED])  # field 2: its value, which follows
    front = content + b"\x72" + bytes([len(key) + len(value) + QUOTED]) + key + value  # metadata_props: 14
    return front + _quoted_hash(front)


def is_intact(content: bytes) -> bool:
    """Whether a file ends in the hash of all that is in front of it. A hash is no signature."""
    return content[-QUOTED:] == _quoted_hash(memoryview(content)[:-QUOTED])


def _quoted_hash(front: bytes | memoryview) -> bytes:
    return f'"{hashlib.sha256(front).hexdigest()}"'.encode()
