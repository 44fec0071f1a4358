"""Whether a PNG holds all of its rows; Pillow fills those that are missing and says nothing."""

import struct
import zlib
from typing import BinaryIO

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a pixel, by colour type."""
WHOLE = ((0, 0, 1, 1),)
INTERLACED = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
"""First column and row of each pass, and the steps between its columns and rows."""
PIECE = 2**20


def has_all_rows(file: BinaryIO) -> bool:
    """Whether the compressed pixels of a PNG are as many as its header says; any other format passes.

    The pixels are unpacked piece by piece and only counted, so memory does not depend on the size.

    Raises:
        struct.error, KeyError, zlib.error: the file is damaged otherwise.
    """
    if file.read(8) != SIGNATURE:
        return True
    expected, found, unpack = 0, 0, zlib.decompressobj()
    while True:
        if len(head := file.read(8)) < 8:
            return False
        length, kind = struct.unpack(">I4s", head)
        content = file.read(length + 4)[:length]  # four bytes of check sum follow
        if kind == b"IHDR":
            expected = _count(*struct.unpack(">IIBBxxB", content))
        elif kind == b"IDAT":
            while content and found < expected and not unpack.eof:
                found += len(unpack.decompress(content, PIECE))
                content = unpack.unconsumed_tail
        elif kind == b"IEND":
            return found >= expected


def _count(width: int, height: int, depth: int, colour: int, interlaced: int) -> int:
    """Bytes of all rows; each begins with a byte for its filter."""
    total = 0
    for left, top, across, down in INTERLACED if interlaced else WHOLE:
        columns, rows = -((left - width) // across), -((top - height) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 - (-columns * depth * CHANNELS[colour] // 8))
    return total
