from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lipcert.data import load
from lipcert.errors import ArgumentError, DataError


def paint(
    path: Path, colour: tuple[int, int, int] | int = (10, 20, 30), size: tuple[int, int] = (6, 6)
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)
    return path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes of 10 and 5 images; the red level of each image is its number."""
    for number in range(15):
        paint(tmp_path / ("cat" if number < 10 else "dog") / f"{number:02}.png", (number, 100, 200))
    return tmp_path


def test_labels_are_sorted_class_names(pets: Path) -> None:
    train, test = load(pets), load(pets, split="test")
    assert train.classes == ("cat", "dog")
    assert (train.name, train.split, test.split) == (str(pets), "train", "test")
    assert train.image_shape == (3, 6, 6)
    for part in (train, test):
        assert torch.equal(part.labels, (part.images[:, 0, 0, 0] >= 10).long())
        assert (part.images[:, 1:] == torch.tensor([100, 200])[:, None, None]).all()


def test_a_folder_is_split_by_class_once_and_for_all(pets: Path) -> None:
    train, test = load(pets), load(str(pets), split="test")
    assert sorted(torch.cat((train.images, test.images))[:, 0, 0, 0].tolist()) == list(range(15))
    assert test.labels.bincount().tolist() == [2, 1]
    assert load(pets).fingerprint == train.fingerprint


def test_train_and_test_folders_are_kept(tmp_path: Path) -> None:
    for number, part in enumerate(("train/a/x", "train/b/x", "test/a/y", "test/b/y", "test/b/z")):
        paint(tmp_path / f"{part}.png", (number, 0, 0))
    assert load(tmp_path).images[:, 0, 0, 0].tolist() == [0, 1]
    test = load(tmp_path, split="test")
    assert test.images[:, 0, 0, 0].tolist() == [2, 3, 4]
    assert test.labels.tolist() == [0, 1, 1]


def test_train_alone_is_a_class(tmp_path: Path) -> None:
    for part in ("bus/1", "bus/2", "train/1", "train/2"):
        paint(tmp_path / f"{part}.png")
    assert load(tmp_path).classes == ("bus", "train")


def test_hidden_files_are_skipped(pets: Path) -> None:
    before = load(pets).fingerprint
    for name in (".DS_Store", "cat/.hidden", "cat/Thumbs.db", "dog/desktop.ini"):
        (pets / name).write_bytes(b"litter")
    (pets / ".git").mkdir()
    assert load(pets).fingerprint == before


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG", "webp"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    for part in ("a/1", "a/2", "b/1", "b/2"):
        paint(tmp_path / f"{part}.{suffix}", (200, 100, 50))
    pixel = load(tmp_path).images[0, :, 3, 3].tolist()
    # JPEG and WebP lose a little, most of it in colour subsampling.
    assert pixel == pytest.approx([200, 100, 50], abs=0 if suffix == "png" else 6)


def test_images_are_resized(pets: Path) -> None:
    paint(pets / "dog" / "wide.png", (7, 7, 7), size=(31, 9))
    dataset = load(pets, image_size=16)
    assert dataset.image_shape == (3, 16, 16)


def test_mixed_sizes_need_an_image_size(pets: Path) -> None:
    for part in ("cat", "dog"):
        for number in range(10):
            paint(pets / part / f"large{number}.png", size=(8, 6))
    with pytest.raises(DataError, match=r"large\d.png: is 8x6 where \d+.png is 6x6; give an image_size"):
        load(pets)


def damage(pets: Path, name: str) -> str:
    """Spoil the folder in one way and return what the error must say."""
    match name:
        case "corrupt":
            for path in (pets / "dog").iterdir():
                path.write_bytes(b"\x89PNG\r\n\x1a\n broken")
            return r"dog/1\d\.png: cannot be read as a PNG, JPEG or WebP image"
        case "text file":
            (pets / "cat" / "notes.txt").write_text("hello")
            return r"cat/notes\.txt: expected a PNG, JPEG or WebP file; convert it, or move it away"
        case "nested folder":
            paint(pets / "cat" / "more" / "1.png")
            return "cat/more: expected a PNG, JPEG or WebP file"
        case "folder like a file":
            (pets / "cat" / "odd.png").mkdir()
            return r"cat/odd\.png: expected a PNG"
        case "stray file":
            paint(pets / "stray.png")
            return r"stray\.png: expected only class folders"
        case "empty class":
            (pets / "emu").mkdir()
            return "emu: the class has no image; add images, or remove the folder"
        case "only hidden":
            (pets / "emu").mkdir()
            (pets / "emu" / ".keep").touch()
            return "emu: the class has no image"
        case "single image":
            paint(pets / "emu" / "1.png")
            return "emu: expected at least 2 images"
        case "dangling link":
            (pets / "cat" / "gone.png").symlink_to(pets / "nowhere.png")
            return r"cat/gone\.png: expected a PNG"
    raise AssertionError(name)


@pytest.mark.parametrize(
    "name",
    [
        "corrupt",
        "text file",
        "nested folder",
        "folder like a file",
        "stray file",
        "empty class",
        "only hidden",
        "single image",
        "dangling link",
    ],
)
def test_faults_are_named(pets: Path, name: str) -> None:
    message = damage(pets, name)
    with pytest.raises(DataError, match=message):
        load(pets)


def test_one_class_is_not_enough(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected at least 2 class folders, got 0"):
        load(tmp_path)
    paint(tmp_path / "a" / "1.png")
    with pytest.raises(DataError, match="expected at least 2 class folders, got 1"):
        load(tmp_path)


@pytest.mark.parametrize(("here", "missing"), [("train", "test"), ("test", "train")])
def test_one_half_of_a_split_is_named(tmp_path: Path, here: str, missing: str) -> None:
    for part in ("a/x", "a/y", "b/x", "b/y"):
        paint(tmp_path / here / f"{part}.png")
    with pytest.raises(DataError, match=f"has classes in '{here}' but no folder '{missing}'; add it"):
        load(tmp_path)


def test_train_and_test_must_agree(tmp_path: Path) -> None:
    for part in ("train/a/x", "train/b/x", "test/a/y", "test/c/y"):
        paint(tmp_path / f"{part}.png")
    with pytest.raises(DataError, match="class 'b' is in only one of train and test"):
        load(tmp_path)
    paint(tmp_path / "extra" / "x.png")
    with pytest.raises(DataError, match="expected nothing beside train and test, got 'extra'"):
        load(tmp_path)


@pytest.mark.parametrize("path", ["./nowhere", "some/where", Path("nowhere")])
def test_a_missing_folder_is_named(path: str | Path) -> None:
    with pytest.raises(DataError, match=r"where: no such folder"):
        load(path)


def test_a_relative_folder_needs_no_slash(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pets.parent)
    assert load(pets.name).fingerprint == load(pets).fingerprint


def test_a_dataset_s_name_wins_over_a_folder(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pets.rename(pets.parent / "digits")
    monkeypatch.chdir(pets.parent)
    assert load("digits").num_classes == 10
    assert load("./digits").num_classes == 2


def test_bad_arguments_are_refused(pets: Path) -> None:
    with pytest.raises(ArgumentError, match="split: expected one of test, train"):
        load(pets, split="val")
    with pytest.raises(ArgumentError, match="image_size: expected at least 1 pixel, got 0"):
        load(pets, image_size=0)


def test_many_images_keep_their_places(tmp_path: Path) -> None:
    """Threads read them; each must land in its own row."""
    for number in range(120):
        paint(tmp_path / "train" / "ab"[number % 2] / f"{number:03}.png", (number, 0, 0), size=(4, 4))
    for part in "ab":
        paint(tmp_path / "test" / part / "1.png")
    train = load(tmp_path)
    expected = np.concatenate([np.arange(0, 120, 2), np.arange(1, 120, 2)])
    np.testing.assert_array_equal(train.images[:, 0, 0, 0].numpy(), expected)
