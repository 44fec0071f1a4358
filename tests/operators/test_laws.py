"""The laws of operators/operator.py, each over the whole table of cases."""

import copy
import dataclasses
import pickle
from collections.abc import Callable

import pytest
import torch

from lipcert.errors import ArgumentError
from lipcert.operators import (
    KINDS,
    ChannelAffine,
    Concatenation,
    GroupSort,
    Matrix,
    Operator,
    Reshape,
    Sequence,
    WeightedSum,
)
from lipcert.operators.proved import Proved
from tests.operators.cases import (
    CASES,
    dense_jacobian,
    dense_matrix,
    every_case,
    inputs,
    jacobian_error,
    norms,
)

ONES = torch.ones(2, dtype=torch.float64)


def parts_of(operator: Operator) -> set[type[Operator]]:
    inner = [getattr(operator, entry.name) for entry in dataclasses.fields(operator) if entry.init]
    flat = [part for value in inner for part in (value if isinstance(value, tuple) else (value,))]
    found: set[type[Operator]] = {type(operator)}
    return found.union(*(parts_of(part) for part in flat if isinstance(part, Operator)))


def test_every_kind_of_operator_is_in_the_table() -> None:
    covered = set().union(*(parts_of(case.build()) for case in CASES.values()))
    assert covered == set(KINDS.values())


@every_case()
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_shape_is_the_one_that_is_said(name: str, count: int) -> None:
    case = CASES[name]
    operator = case.build()
    with torch.no_grad():
        made = operator.apply(inputs(case.shape, count))
    assert made.shape == (count, *operator.output_shape(case.shape))
    assert made.dtype == torch.float64


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        (name, ask)
        for name, case in CASES.items()
        for ask in ("output_shape", "lipschitz_bound")
        # A proved constant is a number; its place in the tree is checked by output_shape.
        if case.wrong is not None and (name, ask) != ("proved", "lipschitz_bound")
    ],
)
def test_other_shapes_are_refused_by_name(name: str, ask: str) -> None:
    case = CASES[name]
    operator = case.build()
    first = operator.parts[0] if isinstance(operator, Sequence) else operator
    while isinstance(first, (WeightedSum, Concatenation)):
        first = next(b for b in first.branches if b != Sequence(()))
        first = first.parts[0] if isinstance(first, Sequence) else first
    # Combinators are refused by the operator inside that cannot take the shape.
    named = type(first).__name__ if case.kind != "tree" else r"\w+"
    with pytest.raises(ArgumentError, match=rf"^{named}: expected .*, got .*shape"):
        getattr(operator, ask)(case.wrong)


@every_case()
def test_no_jacobian_exceeds_the_bound(name: str) -> None:
    case = CASES[name]
    operator = case.build()
    bound = operator.lipschitz_bound(case.shape)
    for _ in range(1 if case.kind in ("affine", "moved") else 4):  # points of several linear pieces
        jacobian = dense_jacobian(operator, case.shape)
        norm = float(torch.linalg.matrix_norm(jacobian, 2))
        assert norm <= bound + jacobian_error(operator, jacobian, case.shape)
        if case.kind == "affine" and case.tight:
            assert bound <= norm * (1 + 1e-3) + jacobian_error(operator, jacobian, case.shape)


@every_case(lambda case: case.kind in ("moved", "activation"))
def test_what_moves_or_reflects_has_the_constant_one(name: str) -> None:
    case = CASES[name]
    operator = case.build()
    assert operator.lipschitz_bound(case.shape) == 1.0
    jacobian = dense_jacobian(operator, case.shape)
    values = torch.linalg.svdvals(jacobian)
    assert float(values.max()) == pytest.approx(1, abs=jacobian_error(operator, jacobian, case.shape))
    if jacobian.shape[0] >= jacobian.shape[1]:  # an isometry; a slice is a projection
        assert float(values.min()) == pytest.approx(1, abs=jacobian_error(operator, jacobian, case.shape))


@every_case()
def test_no_pair_of_inputs_moves_apart_by_more_than_the_bound(name: str) -> None:
    case = CASES[name]
    operator = case.build()
    x = inputs(case.shape, 200)
    # Steps of every size, so that pairs stay within a linear piece, cross one boundary, or many.
    steps = torch.logspace(-5, 1, 200, dtype=torch.float64).view(-1, *(1 for _ in case.shape))
    y = x + torch.randn_like(x) * steps
    error = operator.rounding_error(case.shape)
    with torch.no_grad():
        apart = norms(operator.apply(x) - operator.apply(y))
    rounded = error.relative * (norms(x) + norms(y)) + 2 * error.absolute
    assert (apart <= operator.lipschitz_bound(case.shape) * norms(x - y) * (1 + 1e-14) + rounded).all()


@every_case(lambda case: case.kind in ("affine", "moved"))
def test_forward_and_backward_are_the_same_matrix(name: str) -> None:
    case = CASES[name]
    operator = case.build()
    forward, backward = dense_matrix(operator, case.shape), dense_jacobian(operator, case.shape)
    error = jacobian_error(operator, backward, case.shape) + 4 * operator.rounding_error(case.shape).absolute
    assert float(torch.linalg.vector_norm(forward - backward)) <= 2 * forward.shape[1] ** 0.5 * error


def logits_cases() -> list[str]:
    return [name for name, case in CASES.items() if len(case.build().output_shape(case.shape)) == 1]


@pytest.mark.parametrize("name", logits_cases())
def test_no_difference_of_two_outputs_is_steeper_than_its_pair_bound(name: str) -> None:
    case = CASES[name]
    operator = case.build()
    bounds = operator.pair_bounds(case.shape)
    count = operator.output_shape(case.shape)[0]
    assert bounds.shape == (count, count)
    assert bounds.dtype == torch.float64
    assert torch.equal(bounds, bounds.T)
    assert not bounds.diagonal().any()
    for _ in range(4):
        jacobian = dense_jacobian(operator, case.shape)
        steepness = torch.linalg.vector_norm(jacobian[:, None] - jacobian[None], dim=2)
        error = 2 * jacobian_error(operator, jacobian, case.shape)
        assert (steepness <= bounds + error).all()
        if isinstance(operator, Matrix) or name == "proved":
            assert (bounds <= steepness * (1 + 1e-12) + error + 2.0**-500).all()


def test_pair_bounds_of_a_matrix_and_of_anything_else_by_hand() -> None:
    rows = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    assert float(Matrix(rows, None).pair_bounds((2,))[0, 1]) == pytest.approx(5, rel=1e-14)
    twice = Sequence.of(ChannelAffine(0 * ONES, 0.5 * ONES), Matrix(rows, None))
    assert float(twice.pair_bounds((2,))[0, 1]) == pytest.approx(10, rel=1e-14)
    other = Sequence.of(Matrix(rows, None), GroupSort(2))
    assert float(other.pair_bounds((2,))[0, 1]) == pytest.approx(4 * 2**0.5, rel=1e-6)
    mean = WeightedSum((Matrix(rows, None), Matrix(-rows, None)), (0.25, -0.5))
    assert float(mean.pair_bounds((2,))[0, 1]) == pytest.approx(0.75 * 5, rel=1e-14)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda matrix: matrix, 1.0),
        (lambda matrix: Sequence.of(ChannelAffine(0 * ONES, 0.25 * ONES), matrix), 4.0),
        (lambda matrix: Sequence.of(ChannelAffine(0 * ONES, 0.25 * ONES), matrix, GroupSort(2)), 12.0),
        (lambda matrix: WeightedSum((matrix, matrix), (0.5, 0.5)), 1.0),
        (lambda matrix: WeightedSum((matrix, matrix), (1.0, -1.0)), 2.0),
        (lambda matrix: Proved.of(matrix, "head", "Linear", (2,)), 1.0),
        (lambda matrix: Sequence(()), 1.0),
    ],
    ids=["matrix", "body and matrix", "matrix inside", "average", "difference", "proved", "nothing"],
)
def test_features_are_what_stands_in_front_of_the_last_matrix(
    build: Callable[[Operator], Operator], expected: float
) -> None:
    triple = Matrix(3 * torch.eye(2, dtype=torch.float64), None)
    assert build(triple).feature_bound((2,)) == pytest.approx(expected, rel=1e-6)


@every_case()
def test_apply_depends_on_nothing_that_ran_before_and_changes_no_input(name: str) -> None:
    case = CASES[name]
    operator, fresh = case.build(), case.build()
    x = inputs(case.shape, 64)
    kept = x.clone()
    with torch.no_grad():
        first = operator.apply(x)
        assert torch.equal(x, kept)
        operator.apply(inputs(case.shape, 1))
        operator.lipschitz_bound(case.shape)
        operator.rounding_error(case.shape)
        with torch.inference_mode():
            operator.apply(inputs(case.shape, 2))
        assert torch.equal(operator.apply(x), first)
        assert torch.equal(fresh.apply(x), first)
        alone = torch.cat([operator.apply(sample[None]) for sample in x])
    error = operator.rounding_error(case.shape)
    assert (norms(alone - first) <= 2 * (error.relative * norms(x) + error.absolute)).all()


@every_case()
def test_an_attack_may_follow_inference_mode(name: str) -> None:
    case = CASES[name]
    operator = case.build()
    with torch.inference_mode():
        operator.apply(inputs(case.shape))
    x = inputs(case.shape).requires_grad_()
    y = operator.apply(x)
    (gradient,) = torch.autograd.grad((y * torch.randn_like(y)).sum(), x)
    assert gradient.isfinite().all()
    assert gradient.any() or name == "matrix of zeros"


def through_pickle(operator: Operator) -> Operator:
    found: Operator = pickle.loads(pickle.dumps(operator))  # noqa: S301
    return found


@every_case()
@pytest.mark.parametrize("how", [copy.deepcopy, through_pickle])
def test_copies_are_equal_and_keep_nothing_that_was_made(
    name: str, how: Callable[[Operator], Operator]
) -> None:
    case = CASES[name]
    operator = case.build()
    x = inputs(case.shape)
    with torch.no_grad():
        expected = operator.apply(x)
    twin = how(operator)
    assert twin == operator
    assert not twin._made
    assert twin is not operator
    with torch.no_grad():
        assert torch.equal(twin.apply(x), expected)


@every_case(lambda case: bool(case.build().arrays()))
def test_equality_sees_every_number_and_its_precision(name: str) -> None:
    operator = CASES[name].build()
    assert operator == CASES[name].build()
    for place in range(len(operator.arrays())):
        seen = iter(range(len(operator.arrays())))

        def nudged(array: torch.Tensor, place: int = place, seen: object = seen) -> torch.Tensor:
            result = array.clone()
            if next(seen) == place and array.numel():  # type: ignore[call-overload]
                result.view(-1)[-1] = result.view(-1)[-1] * (1 - 2.0**-52) + 2.0**-1022
            return result

        if operator.arrays()[place].numel():
            assert operator.with_arrays(nudged) != operator
    assert operator.to(dtype=torch.float32) != operator
    assert operator != Reshape((1,))
    assert operator != "operator"


@every_case()
def test_arrays_can_be_replaced_one_by_one(name: str) -> None:
    operator = CASES[name].build()
    before = [array.clone() for array in operator.arrays()]
    assert operator.with_arrays(torch.clone) == operator
    half = operator.to(dtype=torch.float32)
    assert type(half) is type(operator)
    assert [a.dtype for a in half.arrays()] == [torch.float32] * len(before)
    assert all(map(torch.equal, operator.arrays(), before))
    if CASES[name].single:
        assert half.to(dtype=torch.float64) == operator


@every_case(lambda case: case.single)
def test_a_copy_in_single_precision_computes_in_it(name: str) -> None:
    case = CASES[name]
    operator, x = case.build(), inputs(case.shape)
    with torch.no_grad():
        exact, computed = operator.apply(x), operator.to(dtype=torch.float32).apply(x.float())
    assert computed.dtype == torch.float32
    scale = operator.lipschitz_bound(case.shape) * norms(x) + norms(operator.apply(0 * x))
    assert (norms(computed.double() - exact) <= 1e-4 * scale).all()  # eps is 6e-8


@every_case()
def test_the_text_names_the_kind_and_shows_shapes_in_place_of_numbers(name: str) -> None:
    operator = CASES[name].build()
    assert repr(operator).startswith(f"{type(operator).__name__}(")
    assert "tensor" not in repr(operator)
    assert "_made" not in repr(operator)


def test_the_text_of_a_matrix() -> None:
    assert repr(CASES["matrix"].build()) == "Matrix(weight=float64 (7, 30), bias=float64 (7,))"
    assert (
        repr(Sequence.of(Reshape(), GroupSort(2)))
        == "Sequence(parts=(Reshape(shape=None), GroupSort(group=2)))"
    )


@every_case()
def test_operators_are_immutable_and_have_no_hash(name: str) -> None:
    operator = CASES[name].build()
    for entry in dataclasses.fields(operator):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(operator, entry.name, None)
    with pytest.raises(TypeError, match="unhashable"):
        hash(operator)


def test_a_sequence_inside_a_sequence_is_flat() -> None:
    inner = Sequence.of(Reshape(), GroupSort(2))
    assert Sequence.of(inner, Sequence(()), inner) == Sequence((*inner.parts, *inner.parts))
    assert Sequence.of(GroupSort(2)) == GroupSort(2)
    assert Sequence.of() == Sequence(())
