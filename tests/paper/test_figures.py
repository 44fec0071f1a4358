"""The figures' regions against the paper's matrices, written out here a second time."""

import math
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread
from torch import Tensor

from lipcert.errors import ArgumentError
from lipcert.kernels.plane import CIRCLE_POINTS, linear_cones
from lipcert.paper.figures import householder, notation, order_two, write_figure

STEP = 2 * math.pi / CIRCLE_POINTS


def j_plus(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, s], [-s, c]], dtype=torch.float64)


def j_minus(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, s], [s, -c]], dtype=torch.float64)


@pytest.mark.parametrize("degrees", [100, 30, 170])
def test_order_one_has_the_identity_below_its_line_and_a_reflection_above(degrees: float) -> None:
    theta = math.radians(degrees)
    reflection, identity = linear_cones(householder(theta))
    assert [reflection.start, identity.start] == pytest.approx([theta / 2, theta / 2 + math.pi], abs=STEP)
    assert torch.allclose(identity.jacobian, torch.eye(2, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(reflection.jacobian, j_minus(theta), atol=1e-12)
    assert (notation(identity), notation(reflection)) == (
        r"$\mathbf{I}$",
        rf"$\mathbf{{J}}^{{-}}({degrees}°)$",
    )


def test_order_two_has_the_four_regions_of_the_theorem() -> None:
    t0, t1, t2 = (math.radians(degrees) for degrees in (20, 150, 210))
    t3 = math.pi + t2 - t1 + t0
    alphas = [2 * t0, 2 * (t1 - t0), 2 * (t2 - t1 + t0), 2 * (t3 - t2 + t1 - t0)]
    expected = [j_minus(alphas[0]), j_plus(alphas[1]), j_minus(alphas[2]), j_plus(alphas[3])]
    found = linear_cones(order_two(t0, t1, t2))
    assert [cone.start for cone in found] == pytest.approx([t0, t1, t2, t3], abs=STEP)
    assert all(torch.allclose(cone.jacobian, j, atol=1e-12) for cone, j in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["figure1", "figure2"])
def test_figures_are_written_in_three_formats(name: str, tmp_path: Path) -> None:
    png, svg, pdf = write_figure(name, tmp_path)
    assert imread(png).std() > 0.05  # not one flat colour
    assert svg.read_text(encoding="utf-8").startswith("<?xml")
    assert pdf.read_bytes().startswith(b"%PDF")


def test_an_unknown_figure_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"got 'figure3'; did you mean 'figure[12]'\?"):
        write_figure("figure3", tmp_path)
