"""The quick attack: its projection against a solver, its distance against a patient attack."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lipcert.attacks import pgd
from lipcert.attacks.balls import Balls
from lipcert.attacks.nearest import Nearest
from lipcert.attacks.settings import AttackSettings
from lipcert.data import Dataset, to_float
from lipcert.explore.boundary import attack_quickly, nearest_on_boundary, smallest_in_box
from lipcert.explore.state import Explorer

numbers = st.floats(-2, 2).map(lambda v: round(v, 3))


@given(
    st.lists(st.tuples(numbers, st.floats(0.01, 1), st.floats(0.01, 1)), min_size=1, max_size=6),
    st.floats(-3, 3),
)
def test_projection_is_what_a_solver_finds(entries: list[tuple[float, float, float]], level: float) -> None:
    normal, below, high = (np.array(column) for column in zip(*entries, strict=True))
    low = -below
    # Levels that the box does not reach are cut to the nearest that it does.
    reach = [float(np.sum(np.minimum(normal * low, normal * high)))]
    reach.append(float(np.sum(np.maximum(normal * low, normal * high))))
    reached = min(max(level, reach[0]), reach[1])
    shape = (1, 1, 1, len(normal))
    found = smallest_in_box(
        torch.tensor(normal).view(shape),
        torch.tensor([level], dtype=torch.float64),
        torch.tensor(low).view(shape),
        torch.tensor(high).view(shape),
    )
    point = found.flatten().numpy()
    assert np.all((low <= point) & (point <= high))
    # Twelve Newton steps pass all six corners of the box; what is left is rounding.
    assert float(normal @ point) == pytest.approx(reached, abs=1e-9)
    solved = minimize(
        lambda z: z @ z, point * 0.9, jac=lambda z: 2 * z, bounds=list(zip(low, high, strict=True)),
        constraints={"type": "eq", "fun": lambda z: normal @ z - reached, "jac": lambda z: normal},
        method="SLSQP", options={"ftol": 1e-12},
    )  # fmt: skip
    if solved.success:
        assert float(point @ point) <= float(solved.x @ solved.x) + 1e-5


@pytest.fixture(scope="module", params=(1, 20, 200))
def balls(request: pytest.FixtureRequest, explorer: Explorer, digits: Dataset) -> Balls:
    image = to_float(digits.images[request.param])[None]
    return explorer._balls(image.double(), explorer.network.certify(image))


def test_as_near_as_an_attack_that_takes_hundreds_of_gradients(balls: Balls) -> None:
    patient = Nearest(balls)
    for z in pgd.minimal(balls, AttackSettings(steps=80, box=True), torch.Generator()):
        patient.search(z, "pgd-minimal")
    quick = float(attack_quickly(balls).distance.min())
    # On 25 digits and another network it was at most 0.3% farther, and often nearer.
    assert float(balls.radius[0]) < quick < 1.02 * float(patient.distance.min())


def test_without_a_box_points_may_leave_it(balls: Balls) -> None:
    """Most pixels of a digit are black, and half of all directions leave the box there."""
    free = replace(balls, box=False)
    points = free.points(nearest_on_boundary(free))
    assert float(points.min()) < 0
    assert float(attack_quickly(free).distance.min()) < float(attack_quickly(balls).distance.min())


def test_points_keep_to_the_box(balls: Balls) -> None:
    z = nearest_on_boundary(balls)
    moved = balls.images.float() + balls.scale.float().view(-1, 1, 1, 1) * z
    # One rounding of the division by the scale, one of the product.
    eps = 4 * torch.finfo(torch.float32).eps
    assert -eps <= float(moved.min()) <= float(moved.max()) <= 1 + eps
