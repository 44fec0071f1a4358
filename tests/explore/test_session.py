"""Clicks without a page: every answer is a panel or one kind sentence."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from lipcert.explore.choices import Choices
from lipcert.explore.session import Session, message
from lipcert.explore.state import Explorer
from lipcert.models.lipconvnet import LipConvnet
from lipcert.pictures import as_levels, read_picture


@pytest.fixture(scope="module")
def session(explorer: Explorer, offered: Choices, network: LipConvnet) -> Session:
    return Session(
        explorer, offered, lambda file: as_levels(read_picture(file, explorer.network.input_shape))
    )


def test_a_test_image(session: Session) -> None:
    panel, notice = session.test_image(4.0)
    assert "Test image 4: " in panel
    assert notice == ""


def test_no_such_image(session: Session) -> None:
    panel, notice = session.test_image(360)
    assert panel == ""
    assert notice == message("index: expected a whole number from 0 to 359, got 360")


def test_a_picture_of_ones_own(session: Session, tmp_path: Path) -> None:
    Image.new("RGB", (30, 20), "gray").save(tmp_path / "my <3.png")
    panel, notice = session.own_picture(tmp_path / "my <3.png")
    assert notice == ""
    assert "<h2>my &lt;3.png</h2>" in panel
    assert "resized from 30x20 to 8x8" in panel
    assert "true class unknown" in panel


def test_a_test_image_as_a_file_is_the_same_image(session: Session, tmp_path: Path) -> None:
    image = session.choices.images.images[11]
    Image.fromarray(image[0].numpy()).save(tmp_path / "11.png")
    panel, _ = session.own_picture(tmp_path / "11.png")
    assert "resized" not in panel
    original, _ = session.test_image(11)
    assert panel.partition('id="lc-radius"')[2][:20] == original.partition('id="lc-radius"')[2][:20]


def animation(path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(path, save_all=True, append_images=frames[1:])


@pytest.mark.parametrize(
    ("name", "write", "sentence"),
    [
        ("notes.txt", lambda path: path.write_text("hello"), "notes.txt cannot be read as a picture; please"),
        ("empty.png", lambda path: path.write_bytes(b""), "empty.png cannot be read as a picture; please"),
        ("a.webp", animation, r"a.webp cannot be read as a picture \(it is an animation\); please"),
        ("<b>.png", lambda path: path.write_text("x"), "&lt;b&gt;.png cannot be read"),
    ],
)
def test_a_wrong_file_gets_one_kind_sentence(
    session: Session, tmp_path: Path, name: str, write: object, sentence: str
) -> None:
    assert callable(write)
    write(tmp_path / name)
    panel, notice = session.own_picture(tmp_path / name)
    assert panel == ""
    assert sentence.replace("\\", "") in notice
    assert notice.endswith("drop a PNG, JPEG or WebP file.</p>")
    assert str(tmp_path) not in notice


def test_thumbnails_are_enlarged_by_whole_factors(session: Session) -> None:
    ((found, name),) = session.thumbnails([9])
    assert name == f"9: {session.choices.images.labels[9]}"
    assert found.shape == (64, 64, 3)
    small = torch.from_numpy(found)[::8, ::8, 0]
    assert torch.equal(small, session.choices.images.images[9, 0])
    assert session.thumbnails([]) == []
