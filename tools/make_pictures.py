"""Makes docs/pictures: the demonstration is run, and the tool's own pictures and page are kept.

    python -m tools.make_pictures

The page is photographed by Debian's chromium through playwright.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from shutil import copyfile, which

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/pictures"
LIPCERT = [sys.executable, "-m", "lipcert"]
KEPT = ("curve", "attack", "regions")


def main() -> None:
    """Run the demonstration and keep its record, three pictures and the head of its page."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "demo"
        start = time.monotonic()
        result = json.loads(_lipcert("demo", "--out", str(run), "--json"))
        seconds = time.monotonic() - start
        _lipcert("report", str(run), "--png", str(run / "png"))
        for name in KEPT:
            copyfile(run / "png" / f"{name}.png", PICTURES / f"demo-{name}.png")
        photograph(run / "report.html", PICTURES / "demo-report.png")
        audit = json.loads((run / "audit.json").read_text())
        environment = json.loads((run / "environment.json").read_text())
    record = {
        **{name: result[name] for name in ("images", "standard", "certified", "median_radius", "lipschitz")},
        "certified_images": audit["certified"],
        "points_tried": audit["points_tried"],
        "broken": audit["broken"],
        "seconds": round(seconds, 1),
        "machine": machine(environment),
    }
    (PICTURES / "demo.json").write_text(json.dumps(record, indent=1) + "\n")


def photograph(page: Path, picture: Path, width: int = 1000, height: int = 760) -> None:
    """The first screen of a page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=which("chromium"))
        view = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        view.goto(page.resolve().as_uri())
        view.screenshot(path=picture)
        browser.close()


def machine(environment: dict[str, object]) -> str:
    """Processor and threads, from what the run wrote."""
    threads = environment["threads"]
    return f"{environment['cpu']}, {threads} thread{'' if threads == 1 else 's'}"


def _lipcert(*arguments: str) -> str:
    return subprocess.run([*LIPCERT, *arguments], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
