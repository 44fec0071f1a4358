import io
import tarfile
from pathlib import Path

import pytest

from lipcert.data import unpack as unpack_module
from lipcert.data.unpack import unpack
from lipcert.errors import DataError

FILES = ("meta", "train")


def entry(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(content)
    return info, content


GOOD = [
    entry("set", kind=tarfile.DIRTYPE),
    entry("set/meta", b"names"),
    entry("set/train", b"pixels"),
    entry("set/readme.html", b"read me"),
]


def pack(path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_unpacks_what_is_asked_for(tmp_path: Path, root: Path) -> None:
    unpack(pack(tmp_path / "a.tar.gz", GOOD), "set", FILES, root)
    assert {path.name: path.read_bytes() for path in (root / "set").iterdir()} == {
        "meta": b"names",
        "train": b"pixels",
    }
    assert [path.name for path in root.iterdir()] == ["set"]


def test_fills_an_incomplete_folder_and_leaves_the_rest(tmp_path: Path, root: Path) -> None:
    (root / "set").mkdir()
    (root / "set" / "mine").write_bytes(b"keep")
    (root / "set" / "meta").write_bytes(b"old")
    unpack(pack(tmp_path / "a.tar.gz", GOOD), "set", FILES, root)
    assert {p.name: p.read_bytes() for p in (root / "set").iterdir()} == {
        "meta": b"names",
        "train": b"pixels",
        "mine": b"keep",
    }


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (entry("../escaped", b"x"), r"entry '\.\./escaped' lies outside the folder set"),
        (entry("set/../../escaped", b"x"), "lies outside the folder set"),
        (entry("/tmp/lipcert-escaped", b"x"), "lies outside the folder set"),
        (entry("set\\..\\escaped", b"x"), "lies outside the folder set"),
        (entry("other/train", b"x"), "entry 'other/train' lies outside the folder set"),
        (entry("settled/train", b"x"), "lies outside the folder set"),
        (
            entry("set/link", kind=tarfile.SYMTYPE, target="/etc/passwd"),
            "entry 'set/link' is neither a file nor a folder",
        ),
        (entry("set/train", kind=tarfile.SYMTYPE, target="../../outside"), "is neither a file nor a folder"),
        (entry("set/hard", kind=tarfile.LNKTYPE, target="set/train"), "is neither a file nor a folder"),
        (entry("set/pipe", kind=tarfile.FIFOTYPE), "is neither a file nor a folder"),
        (entry("set/device", kind=tarfile.CHRTYPE), "is neither a file nor a folder"),
    ],
)
@pytest.mark.parametrize("position", [0, 4])
def test_one_bad_entry_spoils_the_archive(
    tmp_path: Path, root: Path, bad: tuple[tarfile.TarInfo, bytes], message: str, position: int
) -> None:
    archive = pack(tmp_path / "a.tar.gz", [*GOOD[:position], bad, *GOOD[position:]])
    with pytest.raises(DataError, match=rf"a\.tar\.gz: refused, .*{message}"):
        unpack(archive, "set", FILES, root)
    assert list(root.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "root"]


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_ENTRIES"])
def test_size_is_bounded(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(unpack_module, limit, 3)
    with pytest.raises(DataError, match="refused, it unpacks to more than"):
        unpack(pack(tmp_path / "a.tar.gz", GOOD), "set", FILES, root)
    assert list(root.iterdir()) == []


def test_a_missing_file_is_named(tmp_path: Path, root: Path) -> None:
    nested = [GOOD[0], GOOD[1], entry("set/deeper/train", b"x")]
    with pytest.raises(DataError, match="refused, it has no set/train"):
        unpack(pack(tmp_path / "a.tar.gz", nested), "set", FILES, root)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("percent", [0, 5, 50])
def test_a_damaged_archive_leaves_nothing(tmp_path: Path, root: Path, percent: int) -> None:
    archive = pack(tmp_path / "a.tar.gz", GOOD)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size * percent // 100])
    with pytest.raises(DataError, match=r"a\.tar\.gz: (cannot be unpacked|refused)"):
        unpack(archive, "set", FILES, root)
    assert list(root.iterdir()) == []


def test_a_disk_that_refuses_leaves_nothing(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(DataError, match=r"cannot be unpacked to .*set: .*No space left on device"):
        unpack(pack(tmp_path / "a.tar.gz", GOOD), "set", FILES, root)
    assert list(root.iterdir()) == []
