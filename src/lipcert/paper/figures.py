"""Figures 1 and 2 of the paper, drawn from the activations: evaluated, differentiated, coloured."""

import io
import math
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from lipcert.errors import choose
from lipcert.files import write_atomically
from lipcert.kernels.plane import Cone, PlaneMap, jacobians, linear_cones
from lipcert.nn.activations import Householder, HouseholderOrder

# From Okabe and Ito's palette, distinguishable with common colour blindness. Pink is the identity.
BLUE, ORANGE, GREEN, INK = "#0072B2", "#D55E00", "#007A5A", "#222222"
IDENTITY_TINT, TINTS = "#F6D3E3", ("#A9D3EE", "#FBE9A9", "#A6DCC6")
EXTENT = 1.5
REGION_GRID = 400


def householder(theta: float) -> PlaneMap:
    """sigma_theta of the paper (corollary 1) as a function of points."""
    layer = Householder(2, dtype=torch.float64)
    with torch.no_grad():
        layer.theta.fill_(theta)
    return _on_points(layer)


def order_two(theta0: float, theta1: float, theta2: float) -> PlaneMap:
    """sigma_Theta of order 2 (theorem 2) on points; theta_3 = pi + theta_2 - theta_1 + theta_0."""
    layer = HouseholderOrder(2, order=2, dtype=torch.float64)
    reflecting, turning = theta1 - theta0, theta2 - theta1
    assert layer.widths is not None
    with torch.no_grad():
        layer.theta.fill_(2 * theta0)
        # Logarithms relative to the second sector of the same kind; both kinds add up to pi.
        layer.widths[0] = math.log(reflecting / (math.pi - reflecting))
        layer.widths[1] = math.log(turning / (math.pi - turning))
    return _on_points(layer)


def figure1(theta: float = math.radians(100)) -> Figure:
    """sigma_theta: where it is the identity, and where it reflects."""
    function = householder(theta)
    figure, left, right = _panels()
    turn = theta / 2
    for axes, title, offsets in (
        (left, r"Case 1: $z_1\,\sin(\theta/2) - z_2\,\cos(\theta/2) > 0$", (-25, -48, -150)),
        (right, r"Case 2: $z_1\,\sin(\theta/2) - z_2\,\cos(\theta/2) \leq 0$", (25, 48, 150)),
    ):
        _paint(axes, function, labels_at=(turn - math.radians(105), turn + math.radians(105)))
        _axes(axes, title)
        _ray(axes, turn, BLUE)
        _ray(axes, turn + math.pi, BLUE)
        _arc(axes, turn, r"$\theta/2$")
        normal = (math.sin(turn), -math.cos(turn))
        arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.6}
        axes.annotate("", (0.5 * normal[0], 0.5 * normal[1]), (0.0, 0.0), arrowprops=arrow)
        axes.annotate(
            r"$\mathbf{v}$", (0.6 * normal[0], 0.6 * normal[1]), ha="center", va="center", fontsize=13
        )
        for offset, radius in zip(offsets, (1.2, 1.0, 1.25), strict=True):
            angle = turn + math.radians(offset)
            point = torch.tensor([[radius * math.cos(angle), radius * math.sin(angle)]], dtype=torch.float64)
            _image(axes, point, function(point))
    handles, labels = left.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(), unique.keys(), loc="outside lower center", ncols=2, frameon=False, fontsize=12
    )
    figure.suptitle(rf"The Householder activation $\sigma_\theta$ for $\theta = {math.degrees(theta):.0f}°$")
    return figure


def figure2(
    theta: float = math.radians(100),
    phi: float = math.radians(30),
    bounds: tuple[float, float, float] = (math.radians(20), math.radians(150), math.radians(210)),
) -> Figure:
    """Order 2: a second sigma_phi divides the image of sigma_theta; sigma_Theta has four regions at once.

    Args:
        theta: angle of the first activation of the left panel.
        phi: angle of the second.
        bounds: theta_0, theta_1, theta_2 of the right panel; theta_3 follows from continuity.
    """
    figure, left, right = _panels()
    _division(left, theta, phi)
    function = order_two(*bounds)
    _paint(right, function)
    _axes(right, r"$\sigma_\Theta$ of order 2:  $\theta_3 - \theta_2 + \theta_1 - \theta_0 = \pi$")
    for index, cone in enumerate(_in_order(linear_cones(function), bounds[0])):
        _ray(right, cone.start, BLUE, rf"$\theta_{index} = {math.degrees(cone.start) % 360:.0f}°$")
    figure.suptitle("Householder activations of higher order")
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {"figure1": figure1, "figure2": figure2}


def write_figure(name: str, folder: Path) -> tuple[Path, ...]:
    """Draw a figure by name and write it as PNG, SVG and PDF."""
    figure = FIGURES[choose("figure", name, FIGURES)]()
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"{name}.{ending}" for ending in ("png", "svg", "pdf"))
    for path in paths:
        content = io.BytesIO()
        figure.savefig(content, format=path.suffix[1:], dpi=160)
        write_atomically(path, content.getvalue())
    return paths


def _panels() -> tuple[Figure, Axes, Axes]:
    figure = Figure(figsize=(11, 6), layout="constrained")
    left, right = figure.subplots(1, 2)
    return figure, left, right


def _division(axes: Axes, theta: float, phi: float) -> None:
    """The image of sigma_theta, a half plane, and how sigma_phi divides it."""
    first, second = householder(theta), householder(phi)
    _paint(axes, second, inside=lambda points: (first(points) - points).abs().amax(dim=1) < 1e-9)
    _axes(axes, r"The image of $\sigma_\theta$, divided by $\sigma_\phi$")
    _ray(axes, theta / 2, BLUE, rf"$\theta/2 = {math.degrees(theta / 2):.0f}°$")
    _ray(axes, theta / 2 + math.pi, BLUE)
    _ray(axes, phi / 2, ORANGE, rf"$\phi/2 = {math.degrees(phi / 2):.0f}°$")
    beyond = theta / 2 + math.pi / 2
    place = (0.9 * math.cos(beyond), 0.9 * math.sin(beyond))
    axes.text(*place, "never reached\nby $\\sigma_\\theta$", ha="center", va="center", color=INK)


def _on_points(layer: torch.nn.Module) -> PlaneMap:
    def function(points: Tensor) -> Tensor:
        values: Tensor = layer(points)
        return values

    return function


def _paint(
    axes: Axes,
    function: PlaneMap,
    *,
    inside: Callable[[Tensor], Tensor] | None = None,
    labels_at: tuple[float, ...] = (),
) -> None:
    """Colour every point of the plane by the Jacobian there, and write the Jacobian into each region.

    Args:
        axes: to draw on.
        function: evaluated and differentiated at every point of a grid.
        inside: which points to colour; all if None.
        labels_at: angles at which the labels of identity and the other region stand; else in the middle.
    """
    line = torch.linspace(-EXTENT, EXTENT, REGION_GRID, dtype=torch.float64)
    points = torch.cartesian_prod(line, line)
    found = jacobians(function, points)
    cones = sorted(linear_cones(function), key=lambda cone: cone.kind != "same")
    known = torch.stack([cone.jacobian for cone in cones])
    which = (found[:, None] - known).abs().amax(dim=(2, 3)).argmin(dim=1)
    shown = torch.ones(len(points), dtype=torch.bool) if inside is None else inside(points).detach()
    colours = torch.tensor([to_rgb(tint) for tint in (IDENTITY_TINT, *TINTS)])
    image = torch.where(shown[:, None], colours[which], torch.ones(3)).reshape(REGION_GRID, REGION_GRID, 3)
    axes.imshow(
        image.transpose(0, 1).numpy(),
        origin="lower",
        extent=(-EXTENT, EXTENT, -EXTENT, EXTENT),
        interpolation="bilinear",
    )
    for index, cone in enumerate(cones):
        if labels_at:
            centre = (0.95 * math.cos(labels_at[index]), 0.95 * math.sin(labels_at[index]))
        else:
            x, y = points[(which == index) & shown].mean(dim=0).tolist()
            centre = (x, y)
        _label(axes, cone, centre, (IDENTITY_TINT, *TINTS)[index])


def _label(axes: Axes, cone: Cone, centre: tuple[float, float], tint: str) -> None:
    # Adding 0 turns a rounded -0.0 into 0.0.
    (a, b), (c, d) = (cone.jacobian * 100).round().div(100).add(0.0).tolist()
    matrix = f"⎡{a:5.2f} {b:5.2f} ⎤\n⎣{c:5.2f} {d:5.2f} ⎦"
    x, y = centre
    ground = {"boxstyle": "square,pad=0.15", "facecolor": tint, "edgecolor": "none"}
    axes.text(
        x, y, matrix, ha="center", va="top", fontsize=10, family="monospace", linespacing=1.0, bbox=ground
    )
    axes.text(x, y + 0.03, notation(cone), ha="center", va="bottom", fontsize=13, bbox=ground)


def notation(cone: Cone) -> str:
    """The Jacobian of a cone as the paper writes it (equation 2), in degrees."""
    if cone.kind == "same":
        return r"$\mathbf{I}$"
    sign = "-" if cone.kind == "reflected" else "+"
    return rf"$\mathbf{{J}}^{{{sign}}}({round(math.degrees(cone.angle)) % 360}°)$"


def _in_order(cones: list[Cone], first: float) -> list[Cone]:
    """The cones from the one that starts at `first`."""
    distance = [abs(math.remainder(cone.start - first, 2 * math.pi)) for cone in cones]
    begin = distance.index(min(distance))
    return cones[begin:] + cones[:begin]


def _axes(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=12)
    axes.set(xlim=(-EXTENT, EXTENT), ylim=(-EXTENT, EXTENT), aspect="equal", xticks=[], yticks=[])
    axes.axhline(0, color=INK, linewidth=0.6, alpha=0.5)
    axes.axvline(0, color=INK, linewidth=0.6, alpha=0.5)
    axes.text(EXTENT - 0.04, -0.04, "$z_1$", ha="right", va="top", color=INK)
    axes.text(-0.04, EXTENT - 0.04, "$z_2$", ha="right", va="top", color=INK)


def _ray(axes: Axes, angle: float, colour: str, label: str = "") -> None:
    """A half line from the origin to the frame, its label beside it."""
    direction = (math.cos(angle), math.sin(angle))
    reach = EXTENT / max(abs(direction[0]), abs(direction[1]))
    axes.plot([0, reach * direction[0]], [0, reach * direction[1]], color=colour, linewidth=2.2)
    if label:
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": colour, "linewidth": 0.8}
        place = (0.83 * reach * direction[0], 0.83 * reach * direction[1])
        axes.text(*place, label, ha="center", va="center", color=colour, fontsize=10, bbox=box)


def _arc(axes: Axes, angle: float, label: str) -> None:
    """The angle from the first axis to `angle`, with its name."""
    turns = torch.linspace(0, angle, 60)
    axes.plot(0.3 * turns.cos(), 0.3 * turns.sin(), color=BLUE, linewidth=1.4)
    axes.text(
        0.44 * math.cos(angle / 2), 0.44 * math.sin(angle / 2), label, ha="center", va="center", color=BLUE
    )


def _image(axes: Axes, point: Tensor, value: Tensor) -> None:
    """A point, its value, and the way between them."""
    (start,), (end,) = point.tolist(), value.detach().tolist()
    axes.plot([start[0], end[0]], [start[1], end[1]], color=INK, linewidth=1.1, linestyle=":")
    (ring,) = axes.plot(
        *start, linestyle="", marker="o", markersize=13, color=ORANGE, label=r"input $\mathbf{z}$"
    )
    ring.set(markerfacecolor="none", markeredgewidth=2)
    output = r"output $\sigma_\theta(\mathbf{z})$"
    axes.plot(*end, linestyle="", marker="^", markersize=7, color=GREEN, label=output)
