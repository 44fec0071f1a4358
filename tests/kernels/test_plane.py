"""Cones on which activations are linear, worked out by hand; the paper's figures rest on them."""

import math

import pytest
import torch
from torch import Tensor

from lipcert.kernels.activations import householder
from lipcert.kernels.householder import householder_order
from lipcert.kernels.plane import CIRCLE_POINTS, linear_cones

STEP = 2 * math.pi / CIRCLE_POINTS


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_order_one_reflects_on_one_side_of_a_line() -> None:
    # sigma_theta is the identity on one side of the line at angle theta / 2, a reflection on the other.
    cones = linear_cones(lambda points: householder(points, numbers(math.radians(100))))
    found = {cone.kind: (math.degrees(cone.start) % 360, math.degrees(cone.stop) % 360) for cone in cones}
    assert found["reflected"] == pytest.approx((50, 230), abs=math.degrees(STEP))
    assert found["same"] == pytest.approx((230, 50), abs=math.degrees(STEP))


def test_order_two_reflects_and_turns_by_turns() -> None:
    # Widths of zero are equal shares: sectors of 90 degrees each, and the turn is by twice that.
    widths = torch.zeros(2, 1, 1, dtype=torch.float64)
    cones = linear_cones(lambda points: householder_order(points, numbers(0.0), widths))
    assert [cone.kind for cone in cones].count("reflected") == 2
    assert [cone.stop - cone.start for cone in cones] == pytest.approx([math.pi / 2] * 4, abs=2 * STEP)


@pytest.mark.parametrize(("angle", "kind"), [(0.0, "same"), (1.0, "turned")])
def test_a_linear_map_has_one_cone(angle: float, kind: str) -> None:
    turn = numbers(math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle)).view(2, 2)
    (cone,) = linear_cones(lambda points: points @ turn.T)
    assert (cone.kind, cone.start, cone.stop) == (kind, 0.0, 2 * math.pi)
    assert cone.angle == pytest.approx(-angle)
