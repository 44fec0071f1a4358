"""Certificates for pictures of one's own: read them as the network needs them, and say what was found."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcert.cli.class_names import class_names
from lipcert.cli.console import make_folder, print_json, print_table, say
from lipcert.cli.network import Source
from lipcert.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from lipcert.models.lipconvnet import LipConvnet


def certify_pictures(
    source: Source,
    network: "LipConvnet",
    files: Sequence[Path],
    *,
    precision: str,
    resize: bool,
    as_json: bool,
    out: Path | None,
) -> None:
    """Print prediction, radius and runner-up of every picture; with `out`, write them there too.

    Raises:
        DataError: a file is no picture, or has the wrong size and may not be resized.
        ArgumentError: the network takes neither grey nor colour images.
    """
    import torch

    from lipcert.certify.radii import PROOFS, certify
    from lipcert.data import to_float

    if out is not None:
        make_folder(out)
    pictures = [read_picture(file, network, resize=resize) for file in files]
    pixels = torch.stack([picture for picture, _ in pictures])
    found = certify(network, to_float(pixels), precision=precision)
    classes = class_names(source, network.config.num_classes)
    rows: list[dict[str, Any]] = []
    for place, file in enumerate(files):
        radius, rival = float(found.radius[place]), int(found.runner_up[place])
        rows.append(
            {
                "image": str(file),
                "prediction": classes[int(found.prediction[place])],
                "radius": radius if math.isfinite(radius) else None,
                "runner_up": classes[rival] if rival >= 0 else None,
                "precision": precision,
                "proved": found.proved,
                "resized_from": pictures[place][1],
            }
        )
    if out is not None:
        _write(out, rows)
    if as_json:
        print_json(rows)
    else:
        _show(rows, network, source, PROOFS[precision])


def read_picture(file: Path, network: "LipConvnet", *, resize: bool) -> "tuple[Tensor, str | None]":
    """A file as the network takes it, uint8 (C, S, S), and its size before ("640x480") if that changed.

    Raises:
        DataError: it is no picture, or has another size and may not be resized.
        ArgumentError: the network takes neither grey nor colour images.
    """
    from lipcert.data import read_image

    size, channels = network.config.image_size, network.config.in_channels
    picture = read_image(file)
    height, width = picture.shape[1:]
    changed = None if (height, width) == (size, size) else f"{width}x{height}"
    if changed is not None:
        if not resize:
            raise DataError(
                f"{file}: is {changed}, but the network takes {size}x{size}; leave out --no-resize"
            )
        picture = read_image(file, size)
    if channels == 1:
        # The luma of ITU-R BT.601, as Pillow computes it.
        red, green, blue = (plane.int() for plane in picture)
        picture = ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16)[None].to(picture.dtype)
    elif channels != 3:
        raise ArgumentError(f"images: the network takes {channels} channels, a picture has 1 or 3")
    return picture, changed


def _show(rows: Sequence[dict[str, Any]], network: "LipConvnet", source: Source, proof: str) -> None:
    from lipcert.certify.curve import shown

    print_table(
        f"{source.name}: how far each picture may change (l2, pixel units)",
        ["Picture", "Prediction", "Runner-up", "Radius"],
        [
            [
                row["image"],
                row["prediction"],
                row["runner_up"] or "-",
                "unlimited"
                if row["radius"] is None
                else shown(row["radius"])
                if row["radius"]
                else "0 (none)",
            ]
            for row in rows
        ],
        numbers=1,
    )
    size = network.config.image_size
    resized = [row for row in rows if row["resized_from"] is not None]
    if resized:
        say(
            f"{len(resized)} of {len(rows)} pictures were cut to their centre square and resized to "
            f"{size}x{size}; a radius speaks of the resized picture."
        )
    say(
        f"No picture within the radius is classified differently ({proof}); at a radius of 0 nothing is "
        "certified."
    )


def _write(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    from lipcert.files import write_or_explain

    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_or_explain(folder / "pictures.jsonl", lines.encode())
