"""Style of the plots, safe for colour-blind readers and grey prints, and their SVG and PNG output."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from lipcert.files import write_atomically

# The palette of Okabe and Ito, distinguishable with every common colour blindness.
BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY = (
    "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9",
)  # fmt: skip
INK, FAINT, PAPER = "#1b1f24", "#d0d4d9", "#fefefe"
"""Text and axes, grid, background. On a page they follow its theme, so nothing else may use them."""

_THEME = {INK: "var(--ink)", FAINT: "var(--rule)", PAPER: "var(--ground)"}


class Stroke(NamedTuple):
    """Style of one series: colour, line and marker, so that colour is never the only difference."""

    colour: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str


STROKES = (
    Stroke(BLUE, "-", "o"),
    Stroke(VERMILLION, (0, (5, 2)), "s"),
    Stroke(GREEN, (0, (5, 1.5, 1, 1.5)), "^"),
    Stroke(ORANGE, (0, (1.2, 1.2)), "D"),
    Stroke(PURPLE, (0, (9, 2)), "v"),
    Stroke(SKY, (0, (3, 1, 1, 1, 1, 1)), "P"),
)

# Any: the names are literals to matplotlib's types, and their list changes from version to version.
_SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": PAPER,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "figure.facecolor": PAPER,
    "figure.edgecolor": PAPER,
    "savefig.facecolor": PAPER,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    # Text stays text: it can be read aloud and searched, and it takes the font of the page.
    "svg.fonttype": "none",
    # Names of runs and classes are text, whatever dollar signs they have.
    "text.parse_math": False,
}


def stroke(position: int) -> Stroke:
    """The look of the series at `position`: after six the colours meet other lines and markers, up to 36."""
    turn, place = divmod(position, len(STROKES))
    other = STROKES[(place + turn) % len(STROKES)]
    return Stroke(STROKES[place].colour, other.line, other.marker)


@contextmanager
def drawing() -> Iterator[None]:
    """The settings under which every figure is made and written."""
    with mpl.rc_context(_SETTINGS):
        yield


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure for slides and papers, on a white ground."""
    content = io.BytesIO()
    with drawing():
        figure.savefig(content, format="png", dpi=200, metadata={"Software": None})
    write_atomically(path, content.getvalue())


def to_svg(figure: Figure, name: str, description: str) -> str:
    """A figure as an `<svg>` element for the inside of a page, in the colours of its theme.

    Args:
        figure: drawn under `drawing`.
        name: unique on the page; all identifiers inside begin with it.
        description: alternative text.
    """
    text = io.StringIO()
    with drawing(), mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _embed(text.getvalue(), name, description)


def _embed(svg: str, name: str, description: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]+"', head)
    assert box is not None, "matplotlib writes the view box of every figure"
    rest = re.sub(r'\bid="', f'id="{name}-', rest)
    rest = re.sub(r'href="#', f'href="#{name}-', rest)
    rest = rest.replace("url(#", f"url(#{name}-")
    rest = re.sub(r"(font: [^;\"]*?px) [^;\"]+", r"\1 var(--sans)", rest)
    for colour, variable in _THEME.items():
        rest = re.sub(colour, variable, rest, flags=re.IGNORECASE)
    title = f"<title>{escape(description)}</title>"
    return f'<svg class="picture" role="img" {box.group()}>{title}{rest.strip()}'
