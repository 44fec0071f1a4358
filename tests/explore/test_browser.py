"""The page in a real browser: load, choose, upload, drag, wrong file. Pictures of it stay in artefacts/."""

import importlib.util
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from PIL import Image
from torch import Tensor

from lipcert.data import Dataset
from lipcert.explore.choices import Choices
from lipcert.explore.state import FLIP_STEP, LAST_STEP

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARTEFACTS = Path(__file__).parents[2] / "artefacts"
CHROMIUM = shutil.which("chromium")
MISSING = [
    *(name for name in ("gradio", "playwright") if importlib.util.find_spec(name) is None),
    *([] if CHROMIUM else ["chromium (apt-get install chromium)"]),
]
START_SECONDS, ANSWER_MILLISECONDS = 120, 60_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"the explorer's browser tests need {', '.join(MISSING)}"),
]


class Server(NamedTuple):
    """The command as a user starts it."""

    process: subprocess.Popen[str]
    address: str
    uploads: Path


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tmp")
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "lipcert", "explore", str(run), "--port", str(port)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        yield Server(process, _address(process), folder)
    finally:
        process.kill()
        process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    """Where the page is, as soon as the command says it."""
    assert process.stdout is not None
    said, end = "", time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if select.select([process.stdout], [], [], 1)[0]:
            line = process.stdout.readline()
            said += line
            if found := re.search(r"Open (http://\S+) in", line):
                return found.group(1)
            if not line:
                break
    raise AssertionError(f"the page did not start: {said}")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: "Browser", server: Server) -> Iterator["Page"]:
    """The page, loaded, with its first image; fails if it asked anybody but the command or had an error."""
    page = browser.new_page(viewport={"width": 1360, "height": 1000})
    page.set_default_timeout(ANSWER_MILLISECONDS)
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(server.address)
    page.wait_for_selector("#lc-radius")
    yield page
    page.close()
    own = (server.address, "data:", "blob:")
    assert [url for url in asked if not url.startswith(own)] == []
    assert faults == []


def slide(page: "Page", share: float) -> None:
    """Take the thumb where it is and drag it to a share of the slider, with the mouse."""
    slider = page.locator("#lc-slider")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    thumb = 16
    at, middle = int(slider.input_value()) / LAST_STEP, box["y"] + box["height"] / 2
    places = [box["x"] + thumb / 2 + (box["width"] - thumb) * where for where in (at, share)]
    page.mouse.move(places[0], middle)
    page.mouse.down()
    page.mouse.move(places[1], middle, steps=10)
    page.mouse.up()


def canvas_pixels(page: "Page") -> list[int]:
    """Red of every pixel of the picture at the slider."""
    pixels: list[int] = page.evaluate(
        """() => { const c = document.querySelector(".lc-way canvas");
        const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        return Array.from(d).filter((_, k) => k % 4 === 0); }"""
    )
    return pixels


def wait_for_canvas(page: "Page", image: Tensor) -> None:
    """The slider is back at the start, and its picture is this image."""
    end = time.monotonic() + ANSWER_MILLISECONDS / 1000
    while canvas_pixels(page) != image.flatten().tolist() and time.monotonic() < end:
        page.wait_for_timeout(50)
    assert canvas_pixels(page) == image.flatten().tolist()
    assert page.locator("#lc-slider").input_value() == "0"
    assert "the image itself" in page.locator("#lc-here").inner_text()


def test_load(page: "Page", digits: Dataset) -> None:
    assert page.title() == "digits-tiny · lipcert"
    assert page.locator("#lc-head h1").inner_text() == "digits-tiny on digits"
    label = digits.classes[int(digits.labels[0])]
    assert page.locator("#lc-panel h2").inner_text() == f"Test image 0: {label}"
    assert page.locator("#lc-gallery img").count() == 24
    radius, distance = (float(page.locator(name).inner_text()) for name in ("#lc-radius", "#lc-distance"))
    assert 0 < radius < distance
    wait_for_canvas(page, digits.images[0])
    slide(page, 0.45)
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / "explore.png", full_page=True)


def test_choose_by_picture_and_by_index(page: "Page", digits: Dataset) -> None:
    slide(page, 0.9)
    page.locator("#lc-gallery button:has(img)").nth(5).click()
    page.wait_for_selector("h2:has-text('Test image 5:')")
    assert page.locator("#lc-index input").input_value() == "5"
    name = page.locator("#lc-gallery button:has(img)").nth(5).locator("img").get_attribute("alt")
    assert name == f"5: {digits.classes[int(digits.labels[5])]}"
    wait_for_canvas(page, digits.images[5])
    page.locator("#lc-more").click()
    page.wait_for_timeout(1000)
    page.locator("#lc-gallery button:has(img)").nth(1).click()
    page.wait_for_selector("h2:has-text('Test image 25:')")
    page.locator("#lc-index input").fill("77")
    page.locator("#lc-index input").press("Enter")
    page.wait_for_selector("h2:has-text('Test image 77:')")
    page.locator("#lc-index input").fill("360")
    page.locator("#lc-index input").press("Enter")
    page.wait_for_selector("#lc-message >> text=expected a whole number from 0 to 359, got 360")
    assert "Test image 77:" in page.locator("#lc-panel h2").inner_text()


def test_choose_by_radius_and_class(page: "Page", offered: Choices) -> None:
    def radius_after(order: str) -> float:
        before = page.locator("#lc-panel h2").inner_text()
        page.locator("#lc-order input").click()
        page.get_by_role("option", name=order, exact=True).click()
        page.wait_for_function("t => document.querySelector('#lc-panel h2')?.innerText !== t", arg=before)
        return float(page.locator("#lc-radius").inner_text())

    assert radius_after("smallest radius") < radius_after("largest radius")
    # The surest mistake is the first of all and the first of its class; the largest radius is no mistake.
    wrong = offered.pick("wrong")[0]
    name = offered.images.classes[int(offered.images.labels[wrong])]
    heading = page.locator(f"h2:text-matches('Test image [0-9]+: {name}$')")
    page.locator("#lc-class input").click()
    page.get_by_role("option", name=name, exact=True).click()
    heading.wait_for()
    radius_after("wrong")
    assert page.locator("#lc-panel h2").inner_text() == f"Test image {wrong}: {name}"
    assert page.locator("#lc-panel .lc-bad").inner_text() == f"wrong: it is {name}"


def test_the_last_of_quick_choices_wins(page: "Page", offered: Choices) -> None:
    for order in ("smallest radius", "wrong", "largest radius"):
        page.locator("#lc-order input").click()
        page.get_by_role("option", name=order, exact=True).click()
    page.wait_for_selector(f"h2:has-text('Test image {offered.pick('largest radius')[0]}:')")


def test_drag_the_slider(page: "Page", digits: Dataset) -> None:
    here, way = page.locator("#lc-here"), page.locator(".lc-way")
    assert "the image itself" in here.inner_text()
    prediction = page.locator("#lc-prediction").inner_text()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    slide(page, 0.1)
    assert f"{prediction} at " in here.inner_text()
    assert "certified: no label can change here" in here.inner_text()
    assert way.get_attribute("data-zone") == "safe"
    slide(page, (FLIP_STEP - 2) / LAST_STEP)
    assert "beyond the certificate, same label" in here.inner_text()
    assert canvas_pixels(page) != digits.images[0].flatten().tolist()
    slide(page, 1.0)
    assert "the label has flipped" in here.inner_text()
    assert way.get_attribute("data-zone") == "flipped"
    assert not here.inner_text().startswith(prediction)
    cursor = page.locator(".lc-cursor").get_attribute("transform")
    assert cursor is not None
    assert cursor.startswith("translate(626")
    assert asked == []  # the way is in the page


def test_at_the_flip_the_canvas_is_the_attack(page: "Page") -> None:
    page.locator("#lc-slider").focus()
    for _ in range(FLIP_STEP):
        page.keyboard.press("ArrowRight")
    assert page.locator("#lc-slider").input_value() == str(FLIP_STEP)
    shown: list[int] = page.evaluate(
        """async () => { const i = document.querySelector("#lc-adversary");
        const c = document.createElement("canvas"); c.width = i.naturalWidth; c.height = i.naturalHeight;
        const x = c.getContext("2d"); x.drawImage(i, 0, 0);
        return Array.from(x.getImageData(0, 0, c.width, c.height).data).filter((_, k) => k % 4 === 0); }"""
    )
    # Browsers round halves to even, and the change is float32.
    assert canvas_pixels(page) == pytest.approx(shown, abs=1)


def test_upload_and_wrong_file(page: "Page", tmp_path: Path, server: Server) -> None:
    drop = page.locator("#lc-file input[type=file]")
    Image.new("RGB", (40, 30), (90, 160, 60)).save(tmp_path / "meadow.png")
    drop.set_input_files(tmp_path / "meadow.png")
    page.wait_for_selector("h2:has-text('meadow.png')")
    assert "resized from 40x30 to 8x8" in page.locator("#lc-panel").inner_text()
    (tmp_path / "notes.txt").write_text("no picture at all")
    page.wait_for_selector("#lc-file input[type=file]", state="attached")
    drop.set_input_files(tmp_path / "notes.txt")
    page.wait_for_selector("#lc-message p")
    assert page.locator("#lc-message").inner_text().strip() == (
        "notes.txt cannot be read as a picture; please drop a PNG, JPEG or WebP file."
    )
    assert page.locator("#lc-panel h2").inner_text() == "meadow.png"
    page.screenshot(path=ARTEFACTS / "explore-wrong-file.png", full_page=True)
    page.locator("#lc-gallery button:has(img)").nth(3).click()
    page.wait_for_selector("h2:has-text('Test image 3:')")
    assert page.locator("#lc-message p").count() == 0
    assert list(server.uploads.glob("lipcert-explore-*/**/meadow.png"))


def test_a_narrow_dark_screen(browser: "Browser", server: Server) -> None:
    page = browser.new_page(viewport={"width": 420, "height": 900}, color_scheme="dark")
    page.set_default_timeout(ANSWER_MILLISECONDS)
    page.goto(server.address)
    page.wait_for_selector("#lc-radius")
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    page.screenshot(path=ARTEFACTS / "explore-narrow.png", full_page=True)
    page.close()
    assert overflow <= 0


def test_stops_cleanly_and_keeps_nothing(server: Server) -> None:
    """The last test of this file: it ends the command, as Ctrl-C would."""
    server.process.send_signal(signal.SIGINT)
    said, _ = server.process.communicate(timeout=240)
    assert server.process.returncode == 0
    assert said.strip().endswith("The page is closed.")
    assert list(server.uploads.glob("lipcert-explore-*")) == []
