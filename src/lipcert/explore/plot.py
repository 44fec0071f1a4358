"""The margin along the attack as a small drawing: where the certificate ends, and where the label flips."""

from dataclasses import dataclass

from lipcert.explore.state import FLIP_STEP, Attack

WIDTH, HEIGHT = 640.0, 278.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 626.0, 52.0, 232.0
"""The frame inside the drawing; above it is room for the words of the two marks."""
WORDS = 170.0


@dataclass(frozen=True)
class Mark:
    """A vertical line, and on which side of it its words have room."""

    x: float
    anchor: str
    text_x: float


@dataclass(frozen=True)
class MarginPlot:
    """Everything that is drawn, in the units of the drawing.

    Attributes:
        xs, ys: the margin at each step of the way.
        zero: height at which the margin is zero.
        floor: two points; within the certificate the margin is proved to stay above the line between them.
        certificate: end of the certificate, None if there is none.
        flip: where the label flips.
        ticks: positions and distances along the axis.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    zero: float
    floor: tuple[tuple[float, float], tuple[float, float]] | None
    certificate: Mark | None
    flip: Mark
    ticks: tuple[tuple[float, str], ...]


def margin_plot(attack: Attack, radius: float) -> MarginPlot:
    r"""Lay the drawing out.

    The floor: with m_i the margin over class i and s_i = L ||W_l - W_i||, the lead at distance d is at least
    min_i (m_i - s_i d). That is concave in d, equals the lead at d = 0 and is not negative at d = radius, so
    it lies above the chord from (0, lead) to (radius, 0).

    Args:
        attack: with its way.
        radius: certified.
    """
    way = attack.way
    # Clipping may stop the way early, so the end is not always half as far again as the flip.
    end = max(float(way.distance[-1]), attack.distance)
    low, high = min(0.0, float(way.lead.min())), max(0.0, float(way.lead.max()))
    span = (high - low) or 1.0

    def x(distance: float) -> float:
        return LEFT + (RIGHT - LEFT) * distance / end

    def y(lead: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (lead - low + 0.05 * span) / (1.1 * span)

    # An attack never ends inside a certificate, so the mark is inside the frame.
    certified = 0 < radius <= end
    return MarginPlot(
        xs=tuple(round(x(d), 2) for d in way.distance.tolist()),
        ys=tuple(round(y(m), 2) for m in way.lead.tolist()),
        zero=round(y(0), 2),
        floor=((LEFT, y(float(way.lead[0]))), (x(radius), y(0))) if certified else None,
        certificate=_mark(x(radius), "end") if certified else None,
        flip=_mark(x(float(way.distance[FLIP_STEP])), "start"),
        ticks=tuple((round(x(d), 2), f"{d:g}") for d in _ticks(end)),
    )


def _mark(x: float, side: str) -> Mark:
    """Words on one side of a line, or on the other if the drawing ends before them."""
    if side == "end" and x - LEFT < WORDS:
        side = "start"
    elif side == "start" and RIGHT - x < WORDS:
        side = "end"
    return Mark(x, side, x + 5 if side == "start" else x - 5)


def _ticks(end: float) -> list[float]:
    """Round distances from 0 to the end, four to nine of them.

    >>> _ticks(0.37)
    [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35]
    """
    unit = 10.0 ** (len(f"{int(end)}") if end >= 1 else 0)
    while unit > end:
        unit /= 10
    step = next(unit * share for share in (1, 0.5, 0.2, 0.1) if end / (unit * share) >= 4)
    return [round(k * step, 12) for k in range(int(end / step + 1e-9) + 1)]
