"""What an exported network says about itself: all that is needed to certify its predictions again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lipcert.errors import CheckpointError
from lipcert.nn.lipschitz import Shape

FORMAT = 1
PREFIX = "lipcert."


@dataclass(frozen=True, eq=False)
class Metadata:
    """The entries of `metadata_props`, each a JSON value under "lipcert." and its name.

    Attributes:
        version: of lipcert, when the file was written.
        classes: a name for each logit.
        input_shape: (C, H, W) of one image.
        pixels: what the numbers of an image mean.
        lipschitz: proved bound from pixels to features, of the network in float64.
        distances: (K, K), proved bounds on the distances between the rows of its head.
        rounding: what is subtracted from every margin for the float32 arithmetic; measured, not proved.
        certificate: the rule, in words.
    """

    version: str
    classes: tuple[str, ...]
    input_shape: Shape
    lipschitz: float
    distances: npt.NDArray[np.float64]
    rounding: float
    pixels: str = "raw pixels in [0, 1], float32, (batch, channels, height, width); do not normalise them"
    certificate: str = (
        "radius of the prediction l = min over i != l of (logit_l - logit_i - rounding) / "
        "(lipschitz * distances[l][i]), in l2 and pixel units; lipschitz and distances are proved for the "
        "network in float64, rounding (of float32) is measured, so such a radius is measured, not proved"
    )

    def to_properties(self) -> dict[str, str]:
        """As strings. JSON writes the shortest decimal that reads back as the same float64."""
        values = {**vars(self), "distances": self.distances.tolist(), "format": FORMAT}
        return {f"{PREFIX}{name}": json.dumps(value) for name, value in values.items()}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], file: str) -> "Metadata":
        """Read what `to_properties` wrote.

        Raises:
            CheckpointError: the file is none of lipcert's, of another format, or damaged.
        """
        if f"{PREFIX}format" not in properties:
            raise CheckpointError(f"{file}: an ONNX file, but not one that lipcert wrote: it proves no bound")
        try:
            entries = {
                name.removeprefix(PREFIX): json.loads(text)
                for name, text in properties.items()
                if name.startswith(PREFIX)
            }
            if (found := entries.pop("format")) != FORMAT:
                raise CheckpointError(
                    f"{file}: has format {found}, this version reads {FORMAT}; use lipcert "
                    f"{entries.get('version')} or newer"
                )
            distances = np.array(entries.pop("distances"), dtype=np.float64)
            classes, shape = tuple(entries.pop("classes")), tuple(entries.pop("input_shape"))
            read = cls(**entries, classes=classes, input_shape=shape, distances=distances)
            whole = distances.shape == (len(classes),) * 2 and read.lipschitz > 0 and read.rounding >= 0
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{file}: its description is damaged ({error})") from error
        if not whole:
            raise CheckpointError(f"{file}: its description is damaged (a bound or a distance is missing)")
        return read
