"""Functions of one number and pooling: constants that are attained, and what libraries round."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from lipcert.certify.independent.pointwise import elementwise
from lipcert.errors import ArgumentError
from lipcert.operators import Elementwise, Operator, Pool, Repeat, Shape, Transpose
from lipcert.operators.elementwise import FUNCTIONS, LIBRARY


def bump(shape: Shape, *place: int) -> Tensor:
    x = torch.zeros(1, *shape, dtype=torch.float64)
    x[(0, *place)] = 1.0
    return x


@pytest.mark.parametrize(
    ("operator", "shape", "direction", "start", "expected"),
    [
        (Elementwise("relu"), (1,), torch.ones(1, 1), 1.0, 1.0),
        (Elementwise("leaky relu", -3.0), (1,), torch.ones(1, 1), -1.0, 3.0),
        (Elementwise("abs"), (1,), torch.ones(1, 1), -1.0, 1.0),
        (Elementwise("tanh"), (1,), torch.ones(1, 1), 0.0, 1.0),
        (Elementwise("sigmoid"), (1,), torch.ones(1, 1), 0.0, 0.25),
        (Elementwise("softplus"), (1,), torch.ones(1, 1), 30.0, 1.0),
        (Pool("max", (2, 2), (2, 2), (0, 0)), (1, 4, 4), bump((1, 4, 4), 0, 1, 1), 0.0, 1.0),
        # A pixel in the middle is the largest number of nine windows; on the rim of a stride, of four.
        (Pool("max", (3, 3), (1, 1), (0, 0)), (1, 5, 5), bump((1, 5, 5), 0, 2, 2), 0.0, 3.0),
        (Pool("max", (3, 3), (2, 2), (1, 1)), (1, 6, 6), bump((1, 6, 6), 0, 1, 1), 0.0, 2.0),
        (Pool("norm", (2, 2), (2, 2), (0, 0)), (1, 4, 4), torch.ones(1, 1, 4, 4), 1.0, 1.0),
        (Pool("norm", (3, 3), (1, 1), (0, 0)), (1, 5, 5), bump((1, 5, 5), 0, 2, 2), 0.0, 3.0),
        (Pool("average", (2, 2), (2, 2), (0, 0)), (1, 4, 4), torch.ones(1, 1, 4, 4), 0.0, 0.5),
        (Pool("average", (4, 4), (4, 4), (0, 0)), (3, 4, 4), torch.ones(1, 3, 4, 4), 0.0, 0.25),
        (Repeat((2, 3)), (2, 2, 2), torch.ones(1, 2, 2, 2), 0.0, math.sqrt(6)),
    ],
    ids=str,
)
def test_constants_are_attained(
    operator: Operator, shape: Shape, direction: Tensor, start: float, expected: float
) -> None:
    bound = operator.lipschitz_bound(shape)
    assert bound == pytest.approx(expected, rel=1e-12)
    before = torch.full((1, *shape), start, dtype=torch.float64)
    after = before + 1e-4 * direction.double()
    grown = torch.linalg.vector_norm(operator.apply(after) - operator.apply(before))
    assert float(grown / torch.linalg.vector_norm(after - before)) == pytest.approx(expected, rel=1e-6)


EXACT: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)) if x < 0 else x + mpmath.log1p(mpmath.exp(-x)),
}


@pytest.mark.parametrize("size", [1, 3_000], ids=["scalar", "vectorised"])
@pytest.mark.parametrize("name", EXACT)
def test_torch_and_numpy_are_within_a_tenth_of_what_is_allowed(name: str, size: int) -> None:
    """Each number against 40 digits. Libraries have other code for a few numbers than for many."""
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(1_500)
    x = signs * torch.logspace(-12, 2.8, 3_000, dtype=torch.float64)
    function = FUNCTIONS[name]
    computed = torch.cat([function.apply(part, 0.0) for part in x.split(size)])
    second, units = elementwise({"function": name, "slope": 0.0}, x.numpy())
    with mpmath.workdps(40):
        exact = [EXACT[name](mpmath.mpf(v)) for v in x.tolist()]
        first_off, second_off = (
            np.array([float(abs(mpmath.mpf(float(c)) - e)) for c, e in zip(values, exact, strict=True)])
            * 2.0**53
            for values in (computed.tolist(), second)
        )
    allowed = function.relative * x.abs().numpy() + function.absolute
    assert first_off.max() > 0
    # Where a result is x itself, one rounding of it is half of what is allowed.
    assert (first_off <= np.maximum(allowed / 10, x.abs().numpy())).all()
    assert (second_off <= units).all()


@pytest.mark.parametrize("name", ["exp", "tanh", "log1p"])
@pytest.mark.parametrize("library", [torch, np, math], ids=["torch", "numpy", "math"])
def test_libraries_are_within_two_units_in_the_last_place(library: Any, name: str) -> None:
    """An eighth of LIBRARY, which leaves room for libraries that nobody has measured."""
    positive = np.logspace(-15, 2.5, 2_000)
    x = positive if name == "log1p" else np.concatenate([-positive, positive])
    function = getattr(library, name)
    computed = [function(v) for v in x.tolist()] if library is math else function(library.asarray(x)).tolist()
    with mpmath.workdps(40):
        exact = [getattr(mpmath, name)(mpmath.mpf(v)) for v in x.tolist()]
        off = [abs((mpmath.mpf(c) - e) / e) for c, e in zip(computed, exact, strict=True)]
    assert 0 < float(max(off)) * 2.0**53 <= LIBRARY / 8


def test_norms_of_nothing_have_a_gradient() -> None:
    """Attacks pass through windows of zeros, where the norm has a corner."""
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(Pool("norm", (2, 2), (2, 2), (0, 0)).apply(x).sum(), x)
    assert torch.equal(gradient, torch.zeros_like(x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Elementwise("exp"), "function: expected one of abs, leaky relu, .*, got 'exp'"),
        (lambda: Elementwise("relu", 0.1), "slope: expected a finite number, and 0 except of a leaky ReLU"),
        (lambda: Elementwise("leaky relu", math.inf), "slope: expected a finite number"),
        (lambda: Pool("median", (2, 2), (2, 2), (0, 0)), "function: expected one of average, max, norm"),
        (lambda: Pool("max", (2, 0), (2, 2), (0, 0)), "window, stride: expected positive sides"),
        (lambda: Pool("max", (3, 3), (2, 2), (2, 2)), "padding: expected 0 to half of the window"),
        (lambda: Repeat((0, 2)), "block: expected positive sides"),
        (lambda: Transpose((0, 0)), "order: expected each axis once"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(build: Callable[[], Operator], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()
