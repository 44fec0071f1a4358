"""Certificates for pictures of one's own: read them as the network needs them, and say what was found."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipcert.cli.console import make_folder, print_json, print_table, progress, say
from lipcert.cli.network import Source, proved_file
from lipcert.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from lipcert.certify.network import ProvedNetwork


def certify_pictures(
    source: Source,
    network: "ProvedNetwork",
    files: Sequence[Path],
    *,
    resize: bool,
    as_json: bool,
    out: Path | None,
) -> None:
    """Print prediction, radius and runner-up of every picture; with `out`, write records there too.

    Raises:
        DataError: a file is no picture, or has the wrong size and may not be resized.
        ArgumentError: the network takes neither grey nor colour images.
    """
    import torch

    from lipcert.certify.records import Images, rows_of, write_records
    from lipcert.data import to_float

    if out is not None:
        make_folder(out)
    pictures = [read_picture(file, network.input_shape, resize=resize) for file in files]
    pixels = torch.stack([picture for picture, _ in pictures])
    count = f"{len(files):,} picture{'s' * (len(files) != 1)}"
    with progress(f"certifying {count}", quiet=as_json) as advance:
        found = network.certify(to_float(pixels), progress=advance)
    about = Images(
        None,
        pictures_hash(pixels),
        len(files),
        files=[(str(file), size) for file, (_, size) in zip(files, pictures, strict=True)],
    )
    if out is not None:
        write_records(out, found, about, network=network, file=proved_file(source, network, out))
    rows = [
        row
        | {
            "prediction": network.classes[row["prediction"]],
            "runner_up": network.classes[row["runner_up"]] if row["runner_up"] >= 0 else None,
            "network_sha256": network.hash,
        }
        for row in rows_of(found, about)
    ]
    if as_json:
        print_json(rows)
    else:
        _show(rows, network, source)


def pictures_hash(pixels: "Tensor") -> str:
    """SHA-256 of pictures as a network takes them, uint8 (N, C, H, W)."""
    content = f"{tuple(pixels.shape)}".encode() + pixels.numpy().tobytes()
    return hashlib.sha256(content).hexdigest()


def read_picture(file: Path, shape: tuple[int, ...], *, resize: bool) -> "tuple[Tensor, str | None]":
    """A file as a network for images of `shape` takes it, uint8 (C, S, S).

    Also its size before ("640x480"), if that changed.

    Raises:
        DataError: it is no picture, or has another size and may not be resized.
        ArgumentError: the network takes neither grey nor colour images.
    """
    from lipcert.data import read_image

    channels, size, _ = shape
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


def _show(rows: Sequence[dict[str, Any]], network: "ProvedNetwork", source: Source) -> None:
    from lipcert.certify.curve import shown
    from lipcert.report.evidence import PROOF

    print_table(
        f"{source.name}: how far each picture may change (l2, pixel units)",
        ["Picture", "Prediction", "Runner-up", "Radius"],
        [
            [
                row["file"],
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
    size = network.input_shape[1]
    resized = [row for row in rows if row["resized_from"] is not None]
    if resized:
        say(
            f"{len(resized)} of {len(rows)} pictures were cut to their centre square and resized to "
            f"{size}x{size}; a radius speaks of the resized picture."
        )
    say(
        f"No picture within the radius is classified differently ({PROOF}); at a radius of 0 nothing is "
        "certified."
    )
