"""The proved Lipschitz bound layer by layer, as a file that reports read."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lipcert.certify.exact import ProvedLayer
from lipcert.errors import CheckpointError
from lipcert.files import write_or_explain

BOUND = "bound.json"


@dataclass(frozen=True)
class LayerBound:
    """What is proved of one layer.

    Attributes:
        path: where it stands in the network.
        name: its kind.
        input_shape: of one sample that enters it.
        bound: proved Lipschitz constant.
        through: proved constant from the pixels to the output of this layer.
    """

    path: str
    name: str
    input_shape: tuple[int, ...]
    bound: float
    through: float


def write_bound(layers: Sequence[ProvedLayer], folder: Path) -> Path:
    """Write bound.json; `through` is rounded up at every layer, as the certificate's constant is."""
    from lipcert.functional.rounding import product_up

    rows, through = [], 1.0
    for layer in layers:
        through = (
            through if layer.bound == 1 else layer.bound if through == 1 else product_up(through, layer.bound)
        )
        rows.append(
            asdict(LayerBound(layer.path, layer.name, tuple(layer.input_shape), layer.bound, through))
        )
    write_or_explain(folder / BOUND, (json.dumps({"layers": rows}, indent=1) + "\n").encode())
    return folder / BOUND


def read_bound(folder: Path) -> tuple[LayerBound, ...]:
    """The layers that `write_bound` wrote; empty if it did not.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = folder / BOUND
    if not path.is_file():
        return ()
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["layers"]
        return tuple(LayerBound(**row | {"input_shape": tuple(row["input_shape"])}) for row in rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); run lipcert certify again") from error
