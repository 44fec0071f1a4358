"""The part of the page about one image: Finding -> HTML."""

import base64
import json
import math
from collections.abc import Sequence
from functools import cache
from importlib import resources

import torch
from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from torch import Tensor

from lipcert.certify.curve import shown
from lipcert.explore.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, MarginPlot, margin_plot
from lipcert.explore.state import FLIP_STEP, Finding
from lipcert.report.gallery import data_uri

FAINTEST = 0.0005
"""Changes are amplified as if their largest were at least this: up to a thousandfold."""
FRAME = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}


def render_panel(
    finding: Finding, classes: Sequence[str], *, title: str, note: str = "", label: int | None = None
) -> str:
    """The panel of one image.

    Args:
        finding: about the image.
        classes: their names.
        title: which image it is.
        note: what was done to it first, such as resizing.
        label: its true class, if that is known.
    """
    attack = finding.attack
    plot = None if attack is None else margin_plot(attack, finding.radius)
    difference, gain = (None, 0) if attack is None else amplified(finding.image, attack.image)
    return _template().render(
        title=title,
        note=note,
        label=None if label is None else classes[label],
        right=label == finding.prediction,
        prediction=classes[finding.prediction],
        runner_up=classes[finding.runner_up] if finding.runner_up >= 0 else "-",
        radius=finding.radius,
        image=data_uri(finding.image),
        attack=attack,
        found=None if attack is None else classes[attack.label],
        adversary=None if attack is None else data_uri(to_bytes(attack.image)),
        difference=None if difference is None else data_uri(difference),
        gain=gain,
        size=tuple(finding.image.shape[1:]),
        plot=plot,
        frame=FRAME,
        way=None if plot is None else json.dumps(_way(finding, classes, plot)),
    )


def amplified(image: Tensor, adversary: Tensor) -> tuple[Tensor, int]:
    """The difference of two images on grey, so strong that its largest part is just inside the range.

    .. math:: 1/2 + g\\,(adversary - image), \\quad g \\le 1 / (2 \\max |adversary - image|)

    Args:
        image: (C, H, W), uint8.
        adversary: the same shape, pixels in [0, 1].

    Returns:
        The difference as uint8, and g, an integer of at least 1.
    """
    change = adversary.double() - image.double() / 255
    gain = max(1, math.floor(0.5 / max(float(change.abs().max()), FAINTEST)))
    return to_bytes(0.5 + gain * change), gain


def to_bytes(image: Tensor) -> Tensor:
    """Pixels in [0, 1] as uint8, to the nearest level; what is outside is clipped."""
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)


def levels(distance: float) -> str:
    """A distance in the units of the literature.

    >>> levels(0.2)
    '51.0/255'
    """
    return f"{255 * distance:.1f}/255"


def _way(finding: Finding, classes: Sequence[str], plot: MarginPlot) -> dict[str, object]:
    """The data of the slider, which works without further requests."""
    attack = finding.attack
    assert attack is not None
    change = attack.image.double() - finding.image.double() / 255
    return {
        "shape": list(finding.image.shape),
        "image": _base64(finding.image),
        "change": _base64(change.float()),
        "flip": FLIP_STEP,
        "xs": plot.xs,
        "ys": plot.ys,
        "distance": attack.way.distance.tolist(),
        "label": [classes[k] for k in attack.way.label.tolist()],
        "flipped": (attack.way.label != finding.prediction).tolist(),
        "radius": finding.radius,
    }


def _base64(values: Tensor) -> str:
    array = values.contiguous().numpy()
    # Every browser reads typed arrays in the order of its machine, which is little-endian.
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def asset(name: str) -> str:
    """A file beside this one."""
    return (resources.files("lipcert.explore") / "templates" / name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["levels"] = levels
    environment.filters["shown"] = shown
    return environment.get_template("panel.html")
