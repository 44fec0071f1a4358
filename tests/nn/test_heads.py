"""Heads: what they compute, the margin rule each owns, and their refusals."""

import copy
import math

import pytest
import torch
from torch import nn

from lipcert.errors import ArgumentError
from lipcert.nn.contract import LipschitzModule
from lipcert.nn.heads import ConstantHead, Head, NormalizedLinear, OrthogonalHead, find_head
from lipcert.nn.shape import Flatten
from lipcert.operators import Matrix
from tests.contracts.dense import dense_matrix

ROOT = math.sqrt(2)
METHODS = ["soc", "bjorck", "cayley"]


def heads() -> list[object]:
    orthogonal = [pytest.param(lambda m=m: OrthogonalHead(6, 4, method=m), id=m) for m in METHODS]
    constant = pytest.param(lambda: ConstantHead(torch.randn(4, 6), torch.randn(4)), id="constant")
    return [pytest.param(lambda: NormalizedLinear(6, 4), id="lln"), *orthogonal, constant]


def lln(rows: list[list[float]], bias: list[float]) -> NormalizedLinear:
    head = NormalizedLinear(len(rows[0]), len(rows))
    head.load_state_dict({"weight": torch.tensor(rows), "bias": torch.tensor(bias)})
    return head


def test_lln_by_hand() -> None:
    # Rows (3, 4) / 5 and (0, 1); their distance is ||(0.6, -0.2)|| = sqrt(0.4).
    head = lln([[3.0, 4.0], [0.0, 2.0]], [0.5, -0.5])
    logits = head(torch.tensor([[1.0, 2.0]]))
    torch.testing.assert_close(logits, torch.tensor([[2.7, 1.5]]))
    torch.testing.assert_close(head.pair_distances()[0, 1].item(), math.sqrt(0.4))
    torch.testing.assert_close(
        head.certificate(logits, torch.tensor([0])), torch.tensor([1.2 / math.sqrt(0.4)])
    )
    torch.testing.assert_close(
        head.certificate(logits, torch.tensor([1])), torch.tensor([-1.2 / math.sqrt(0.4)])
    )


def test_scaling_the_rows_of_lln_changes_nothing() -> None:
    rows = [[3.0, 4.0], [0.0, 2.0]]
    one, other = lln(rows, [0.0, 0.0]), lln([[300.0, 400.0], [0.0, 0.002]], [0.0, 0.0])
    x = torch.randn(5, 2)
    torch.testing.assert_close(one(x), other(x))
    torch.testing.assert_close(one.pair_distances(), other.pair_distances())


@pytest.mark.parametrize("method", METHODS)
def test_orthonormal_rows_are_root_two_apart(method: str) -> None:
    head = OrthogonalHead(6, 3, method=method).double()
    expected = ROOT * (1 - torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(head.pair_distances(), expected)
    torch.testing.assert_close(head.freeze((6,)).pair_bounds((6,)), expected, rtol=1e-12, atol=0)
    logits = torch.tensor([[5.0, 4.0, 3.0], [2.0, 2.0, 1.0]], dtype=torch.float64)
    result = head.certificate(logits, torch.tensor([0, 0]))
    torch.testing.assert_close(result, torch.tensor([1 / ROOT, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("method", METHODS)
def test_more_classes_than_features_stay_within_root_two(method: str) -> None:
    head = OrthogonalHead(2, 5, method=method).double()
    assert head.freeze((2,)).pair_bounds((2,)).max() <= ROOT * (1 + 1e-12)


@pytest.mark.parametrize("kind", [NormalizedLinear, OrthogonalHead])
def test_device_and_dtype_as_in_torch(kind: type[NormalizedLinear] | type[OrthogonalHead]) -> None:
    head = kind(4, 3, device="meta", dtype=torch.float64)
    assert {(p.device.type, p.dtype) for p in head.parameters()} == {("meta", torch.float64)}


@pytest.mark.parametrize("head", [NormalizedLinear(3, 1), OrthogonalHead(3, 1)], ids=["lln", "orthogonal"])
def test_one_class_has_an_infinite_certificate(head: Head) -> None:
    logits = head(torch.randn(2, 3)).detach()
    assert head.certificate(logits, torch.tensor([0, 0])).tolist() == [math.inf, math.inf]


def test_equal_rows_are_decided_by_their_bias() -> None:
    head = lln([[1.0, 1.0], [2.0, 2.0]], [1.0, 0.0])
    logits = head(torch.randn(3, 2)).detach()
    assert head.certificate(logits, torch.tensor([0, 0, 0])).min() >= 1e6  # infinite, but for rounding


def test_a_row_of_zeros_keeps_its_certificates_right() -> None:
    head = lln([[0.0, 0.0], [0.0, 2.0]], [3.0, 0.0])
    assert head.pair_distances()[0, 1] == 1
    logits = head(torch.tensor([[0.0, 1.0]])).detach()
    assert head.certificate(logits, torch.tensor([0])).item() == 2  # and at (0, 3) the logits are equal


@pytest.mark.parametrize("build", heads())
def test_differences_of_logits_obey_the_bounds(build: type[Head]) -> None:
    head = build().double().eval()
    operator = head.freeze((6,))
    bounds = operator.pair_bounds((6,))
    matrix = dense_matrix(head, (6,))
    true = (matrix[:, None] - matrix[None]).norm(dim=2)
    # The bias drops out of the oracle's differences up to a few eps.
    assert (true <= bounds + 1e-14).all()
    torch.testing.assert_close(true, bounds, rtol=1e-12, atol=1e-12)
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    assert norm * (1 - 1e-14) <= head.lipschitz_bound((6,)) <= norm * (1 + 1e-4)
    assert operator.lipschitz_bound((6,)) == head.lipschitz_bound((6,))
    assert operator.feature_bound((6,)) == 1


@pytest.mark.parametrize("build", heads())
def test_the_certificate_is_reached(build: type[Head]) -> None:
    """Walking straight at the binding class, the prediction holds up to the certificate and not beyond."""
    head = build().double().eval()
    with torch.no_grad():
        z = torch.randn(1, 6, dtype=torch.float64)
        label = head(z).argmax(1)
        radius = head.certificate(head(z), label)
        matrix = dense_matrix(head, (6,))
        gaps = head(z)[0, label] - head(z)[0]
        rows = matrix[label] - matrix
        other = (gaps / rows.norm(dim=1)).nan_to_num(math.inf, posinf=math.inf).argmin()
        step = -rows[other] / rows[other].norm()
        assert head(z + 0.999 * radius * step).argmax(1) == label
        assert head(z + 1.001 * radius * step).argmax(1) != label


@pytest.mark.parametrize("build", heads())
def test_frozen_heads_compute_and_certify_the_same(build: type[Head]) -> None:
    head = build().double().eval()
    operator = head.freeze((6,))
    assert isinstance(operator, Matrix)
    x, labels = torch.randn(3, 6, dtype=torch.float64), torch.tensor([0, 1, 3])
    with torch.no_grad():
        logits = operator.apply(x)
        torch.testing.assert_close(logits, head(x), rtol=0, atol=1e-14)
        frozen = ConstantHead(operator.weight, operator.bias)
        torch.testing.assert_close(frozen.certificate(logits, labels), head.certificate(head(x), labels))
        for parameter in head.parameters():
            parameter.zero_()
        assert torch.equal(operator.apply(x), logits)


@pytest.mark.parametrize("build", heads())
def test_copies_and_state(build: type[Head]) -> None:
    head, other = build(), build()
    other.load_state_dict(head.state_dict())
    x = torch.randn(2, 6)
    assert torch.equal(copy.deepcopy(head)(x), head(x))
    assert torch.equal(other(x), head(x))


@pytest.mark.parametrize("build", heads())
def test_certificate_is_differentiable(build: type[Head]) -> None:
    head = build().double()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2])
    assert torch.autograd.gradcheck(lambda z: head.certificate(head(z), labels), (x,))


def test_lln_gradcheck_in_its_weights() -> None:
    class LogitsAndCertificate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = NormalizedLinear(4, 3).double()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = self.head(x)
            return logits, self.head.certificate(logits, torch.tensor([0, 2]))

    both, x = LogitsAndCertificate(), torch.randn(2, 4, dtype=torch.float64)
    names, values = zip(*both.named_parameters(), strict=True)

    def run(*parameters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.func.functional_call(both, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, values)


def test_repr() -> None:
    assert repr(NormalizedLinear(6, 4)) == "NormalizedLinear(6, 4)"
    assert repr(NormalizedLinear(6, 4, bias=False)) == "NormalizedLinear(6, 4, bias=False)"
    assert "OrthogonalLinear(6, 4, method='cayley'" in repr(OrthogonalHead(6, 4, method="cayley"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NormalizedLinear(0, 3), "in_features: expected a positive integer, got 0"),
        (lambda: NormalizedLinear(3, 0), "num_classes: expected a positive integer, got 0"),
        (lambda: OrthogonalHead(3, True), "num_classes: expected a positive integer, got True"),
        (lambda: OrthogonalHead(3, 2, method="caley"), "did you mean 'cayley'"),
        (
            lambda: NormalizedLinear(3, 2)(torch.zeros(3)),
            r"expected a batch of vectors \(N, D\), got shape \(3,\)",
        ),
        (
            lambda: NormalizedLinear(3, 2)(torch.zeros(1, 4)),
            r"expected vectors of 3 features, got shape \(4,\)",
        ),
        (
            lambda: OrthogonalHead(3, 2)(torch.zeros(1, 4)),
            r"expected vectors of 3 features, got shape \(4,\)",
        ),
        (lambda: ConstantHead(torch.zeros(3), None), r"weight: expected \(num_classes, in_features\)"),
        (
            lambda: ConstantHead(torch.zeros(3, 2), torch.zeros(2)),
            r"bias: expected 3 numbers, got shape \(2,\)",
        ),
    ],
)
def test_bad_arguments(call: type[Head], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_heads_are_found_behind_wrappers_and_live() -> None:
    model = nn.Sequential(Flatten(), NormalizedLinear(4, 2))
    assert find_head(nn.DataParallel(model)) is model[1]


@pytest.mark.parametrize(
    ("model", "got"),
    [
        (nn.Sequential(Flatten()), "got Sequential ending in Flatten"),
        (nn.Sequential(nn.Linear(2, 2)), "got Sequential ending in Linear"),
        (nn.Sequential(), "got Sequential$"),
        (nn.Linear(2, 2), "got Linear$"),
        (NormalizedLinear(2, 2), "got NormalizedLinear$"),
    ],
    ids=repr,
)
def test_models_without_a_head_are_refused(model: nn.Module, got: str) -> None:
    with pytest.raises(ArgumentError, match=rf"model: expected an nn.Sequential that ends in a head .*{got}"):
        find_head(model)


def test_layers_that_do_not_freeze_cannot_be_built() -> None:
    class Mystery(LipschitzModule):
        pass

    with pytest.raises(TypeError, match=r"abstract .*freeze"):
        Mystery()  # type: ignore[abstract]
