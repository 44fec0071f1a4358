import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from lipcert.data.restricted_pickle import read_restricted_pickle
from lipcert.errors import DataError


class Call:
    """Pickles as a call of any function with any arguments."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.function, self.arguments


class Innocent:
    pass


def read(tmp_path: Path, raw: bytes) -> dict[str, object]:
    path = tmp_path / "data_batch_1"
    path.write_bytes(raw)
    return read_restricted_pickle(path)


def python2_pickle(rows: int, order: bytes = b"|", code: bytes = b"u1") -> bytes:
    """The opcodes of a public batch file, by hand: strings are BINSTRING, the module is numpy.core."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    empty = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        + number(0)
        + b"\x85"
        + text(b"b")
        + b"\x87R"
    )
    dtype = b"cnumpy\ndtype\n" + text(code) + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text(order) + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = (
        empty
        + b"("
        + number(1)
        + number(rows)
        + number(2)
        + b"\x86"
        + dtype
        + b"\x89"
        + text(b"abcdef")
        + b"tb"
    )
    labels = b"](" + number(5) + number(7) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + labels + b"u."


def test_reads_what_python_2_wrote(tmp_path: Path) -> None:
    content = read(tmp_path, python2_pickle(rows=3))
    assert content["labels"] == [5, 7]
    array = content["data"]
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.uint8
    assert array.tolist() == [[97, 98], [99, 100], [101, 102]]


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_survive(tmp_path: Path, dtype: str, order: str) -> None:
    array = np.arange(6).astype(dtype).reshape(2, 3).copy(order=order)
    content = read(tmp_path, pickle.dumps({b"data": array, "name": "x", b"n": 3, b"none": None}, protocol=4))
    np.testing.assert_array_equal(content["data"], array)
    assert (content["name"], content["n"], content["none"]) == ("x", 3, None)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "nest",
    [
        lambda bomb: bomb,
        lambda bomb: {b"data": bomb},
        lambda bomb: {b"data": [1, [2, (bomb,)]]},
        lambda bomb: {bomb: 1},
        lambda bomb: {b"data": np.array([bomb], dtype=object)},
    ],
    ids=["bare", "value", "deep", "key", "object array"],
)
def test_a_crafted_pickle_is_refused_and_never_runs(tmp_path: Path, protocol: int, nest: object) -> None:
    marker = tmp_path / "ran"
    raw = pickle.dumps(nest(Call(os.system, f"touch {marker}")), protocol=protocol)  # type: ignore[operator]
    with pytest.raises(DataError, match=r"data_batch_1: refused.*asks for"):
        read(tmp_path, raw)
    assert not marker.exists()


def test_the_bomb_is_real(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    pickle.loads(pickle.dumps(Call(os.system, f"touch {marker}")))  # noqa: S301
    assert marker.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("numpy", "load"),
        ("numpy", "dtype.__reduce__"),
        ("numpy", "ndarray.tofile"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy.core.numeric", "_frombuffer"),
        ("_codecs", "encode"),
        ("copyreg", "_reconstructor"),
        ("lipcert.data.restricted_pickle", "_ADMITTED"),
    ],
)
def test_every_other_name_is_refused(tmp_path: Path, module: str, name: str) -> None:
    raw = (
        b"\x80\x04\x8c"
        + bytes([len(module)])
        + module.encode()
        + b"\x8c"
        + bytes([len(name)])
        + name.encode()
        + b"\x93."
    )
    with pytest.raises(DataError, match=f"asks for {module}.{name}"):
        read(tmp_path, raw)


NDARRAY = b"cnumpy\nndarray\n"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02" + NDARRAY + b"(J\x01\x00\x00\x00tR.",  # call ndarray
        b"\x80\x02" + NDARRAY + b")\x81.",  # NEWOBJ
        b"\x80\x02(inumpy\nndarray\n.",  # INST
        b"\x80\x02(" + NDARRAY + b"o.",  # OBJ
        b"\x80\x02" + RECONSTRUCT + b"}X\x08\x00\x00\x00__call__K\x01sb.",  # BUILD on a stand-in
        b"\x80\x02" + RECONSTRUCT + b"N}X\x08\x00\x00\x00__call__K\x01s\x86b.",  # BUILD with slot state
        b"\x80\x02\x82\x01.",  # extension registry
        b"Phello\n.",  # persistent id
        b"\x80\x02}X\x04\x00\x00\x00data" + RECONSTRUCT + b"s.",  # a stand-in as value
        b"\x80\x02}X\x04\x00\x00\x00data" + RECONSTRUCT + b"NNN\x87Rs.",  # an array without state
        b"\x80\x02]q\x00h\x00a.",  # a list that holds itself
        b"\x80\x02}X\x04\x00\x00\x00data]q\x00h\x00as.",
        pickle.dumps([1, 2]),
        pickle.dumps({1: b"a number as key"}),
        pickle.dumps({b"data": {1, 2}}),
        python2_pickle(rows=3, code=b"O8"),
        python2_pickle(rows=3, code=b"V1"),
        python2_pickle(rows=3, order=b"O"),
        python2_pickle(rows=4),
        python2_pickle(rows=-3),
        python2_pickle(rows=3)[:-20],
        b"",
        b"not a pickle",
    ],
)
def test_odd_streams_are_refused(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(DataError, match="data_batch_1: refused, it is damaged or not plain data"):
        read(tmp_path, raw)


def test_record_arrays_are_refused(tmp_path: Path) -> None:
    records = np.zeros(2, dtype=[("a", "u1"), ("b", "u1")])
    with pytest.raises(DataError, match="data_batch_1: refused"):
        read(tmp_path, pickle.dumps({b"data": records}, protocol=4))


def test_an_instance_of_any_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"asks for .*Innocent"):
        read(tmp_path, pickle.dumps({b"data": Innocent()}))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: cannot be read: No such file"):
        read_restricted_pickle(tmp_path / "nowhere")
