"""Files appear complete or not at all, whoever else writes them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lipcert.errors import CheckpointError
from lipcert.files import write_atomically, write_or_explain


def test_writers_of_one_file_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    path, contents = tmp_path / "a", [bytes([65 + writer]) * 100_000 for writer in range(4)]

    def write(content: bytes) -> None:
        for _ in range(30):
            write_or_explain(path, content)

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write, contents))  # raises what a writer raised
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_there_is_kept_under_another_name(tmp_path: Path) -> None:
    path, old = tmp_path / "a", tmp_path / "a.old"
    write_atomically(path, b"first")
    write_atomically(path, b"second", keep=old)
    assert (path.read_bytes(), old.read_bytes()) == (b"second", b"first")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none/a: cannot write there .* create the folder first"):
        write_or_explain(tmp_path / "none" / "a", b"")
