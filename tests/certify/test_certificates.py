"""First certificates: radii by hand, what is refused, and accuracy at a radius."""

import math
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lipcert as lc
from lipcert.certify import Certificates, certified_curve, layer_estimates
from lipcert.certify.certificates import certificates_from
from lipcert.certify.curve import shown, shown_bound
from lipcert.errors import ArgumentError, NotProvedError
from lipcert.models.lipconvnet import LipConvnet
from lipcert.nn import ConstantHead, Flatten, Head, Normalize
from lipcert.operators.operator import LARGEST_RADIUS

ROOT = math.sqrt(2)


def by_hand(rows: list[list[float]], bias: list[float], std: float = 0.5) -> nn.Sequential:
    """One image of two pixels, normalised with mean 0, and a head."""
    head = ConstantHead(torch.tensor(rows), torch.tensor(bias))
    return nn.Sequential(Normalize(0.0, std), Flatten(), head)


def image(*pixels: float) -> torch.Tensor:
    return torch.tensor([pixels]).view(1, 1, 1, -1)


def from_logits(logits: torch.Tensor, pair_bounds: torch.Tensor, slack: float = 0.0) -> Certificates:
    lost = torch.full((len(logits),), slack, dtype=torch.float64)
    return certificates_from(logits, pair_bounds, lost, 1.0)


@pytest.fixture
def model() -> LipConvnet:
    return lc.lipconvnet(depth=5, num_classes=4, width=2, image_size=8, in_channels=1)


def test_by_hand_with_orthonormal_rows() -> None:
    # Features (1.5, 0.5): the margin is 1, the rows are sqrt(2) apart, pixels are stretched by 2.
    cert = lc.certify(by_hand([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]), image(0.75, 0.25))
    assert cert.prediction.tolist() == [0]
    assert cert.runner_up.tolist() == [1]
    assert cert.margin.tolist() == [1.0]
    assert cert.lipschitz == 2
    assert cert.radius.item() == pytest.approx(1 / (2 * ROOT), rel=1e-12)
    assert cert.radius.dtype == torch.float64
    assert len(cert) == 1


def test_by_hand_with_free_rows() -> None:
    # Logits 1.5 + 0, 0.5 * 1 + 0.5, -1.5 + 2.5: margins 0.5 and 0.5, but the rows are sqrt(2) and 2 apart.
    cert = lc.certify(by_hand([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], [0.0, 0.5, 2.5]), image(0.75, 0.25))
    assert cert.prediction.tolist() == [0]
    assert cert.runner_up.tolist() == [2]
    assert cert.radius.item() == pytest.approx(0.5 / (2 * 2), rel=1e-12)


def test_radii_round_down() -> None:
    cert = lc.certify(by_hand([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]), image(0.75, 0.25))
    # The true radius is 1 / (2 sqrt(2)), whose square is 1/8.
    assert Fraction(cert.radius.item()) ** 2 < Fraction(1, 8)


@given(seed=st.integers(0, 10_000))
def test_radii_never_exceed_the_exact_quotient(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(20, 2, dtype=torch.float64, generator=generator)
    distance = float(torch.rand((), dtype=torch.float64, generator=generator)) + 0.1
    cert = from_logits(logits, torch.tensor([[0, distance], [distance, 0]], dtype=torch.float64))
    for radius, (a, b) in zip(cert.radius.tolist(), logits.tolist(), strict=True):
        exact = abs(Fraction(a) - Fraction(b)) / Fraction(distance)
        assert exact * (1 - Fraction(1, 2**48)) <= Fraction(radius) <= exact


def test_a_tie_certifies_nothing() -> None:
    cert = lc.certify(by_hand([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]), image(0.5, 0.5))
    assert cert.radius.tolist() == [0.0]
    accuracy = lc.certified_accuracy(cert, cert.prediction, radii=(0.0,))
    assert accuracy.standard == 1
    assert accuracy[0.0] == 0


def test_one_class_never_changes() -> None:
    cert = lc.certify(by_hand([[1.0, 0.0]], [0.0]), image(0.5, 0.5))
    assert cert.radius.tolist() == [math.inf]
    assert cert.runner_up.tolist() == [-1]
    assert cert.margin.tolist() == [math.inf]


def test_the_smallest_std_counts() -> None:
    head = ConstantHead(torch.eye(2), torch.zeros(2))
    network = nn.Sequential(Normalize((0.0, 0.0), (0.5, 0.25)), Flatten(), head)
    cert = lc.certify(network, torch.tensor([0.5, 0.5]).view(1, 2, 1, 1))
    assert cert.lipschitz == 4
    assert cert.radius.item() == pytest.approx(1 / (4 * ROOT))


def test_a_plain_linear_layer_at_the_end() -> None:
    linear = nn.Linear(2, 3)
    cert = lc.certify(nn.Sequential(Flatten(), linear), torch.rand(5, 1, 1, 2))
    assert cert.lipschitz == 1
    assert (cert.radius > 0).all()


def test_the_bound_is_the_product_and_certificates_take_the_body() -> None:
    proved = lc.prove(by_hand([[3.0, 0.0], [0.0, 4.0]], [0.0, 0.0]), (1, 1, 2))
    assert 8 <= proved.operator.lipschitz_bound((1, 1, 2)) <= 8 * (1 + 1e-4)
    assert proved.lipschitz == 2


@pytest.mark.parametrize("head", ["lln", "orthogonal"])
@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_no_point_in_the_ball_is_classified_otherwise(conv: str, head: str) -> None:
    model = (
        lc.lipconvnet(5, conv, num_classes=4, head=head, width=2, image_size=4, in_channels=1).double().eval()
    )
    images = torch.rand(20, 1, 4, 4, dtype=torch.float64)
    cert = lc.certify(model, images)
    assert (cert.radius > 0).any()
    pushed = images.clone()
    for _ in range(20):  # down the margin to the binding class, back on the ball each time
        pushed.requires_grad_()
        logits = model(pushed)
        margin = logits.gather(1, cert.prediction[:, None]) - logits.gather(1, cert.runner_up[:, None])
        (gradient,) = torch.autograd.grad(margin.sum(), pushed)
        step = gradient / gradient.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, 1, 1, 1)
        moved = pushed.detach() - cert.radius.view(-1, 1, 1, 1) * step - images
        length = moved.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, 1, 1, 1)
        pushed = images + moved * (0.9999 * cert.radius.view(-1, 1, 1, 1) / length).clamp(max=1)
        with torch.no_grad():
            assert torch.equal(model(pushed).argmax(1), cert.prediction)


def test_the_model_is_left_as_it_is(model: LipConvnet) -> None:
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    lc.certify(model, torch.rand(3, 1, 8, 8))
    assert model.training
    assert all(m.training for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())


def test_train_mode_autocast_and_batches_make_no_difference(model: LipConvnet) -> None:
    images = torch.rand(7, 1, 8, 8)
    plain = lc.certify(model.eval(), images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other = lc.prove(model.train()).certify(images, batch_size=3)
    torch.testing.assert_close(other.radius, plain.radius, rtol=1e-10, atol=1e-12)
    assert torch.equal(lc.certify(model, images.double()).radius, plain.radius)


def test_predictions_are_those_of_the_model(model: LipConvnet) -> None:
    images = torch.rand(20, 1, 8, 8)
    cert = lc.certify(model, images)
    with torch.no_grad():
        logits = model.double().eval()(images.double())
    assert torch.equal(cert.prediction, logits.argmax(1))
    top = logits.topk(2).values
    assert (cert.margin >= top[:, 0] - top[:, 1] - 1e-12).all()


def test_no_images_no_certificates(model: LipConvnet) -> None:
    cert = lc.certify(model, torch.rand(0, 1, 8, 8))
    assert len(cert) == 0
    assert cert.radius.shape == (0,)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([[0.5]], "images: expected a torch.Tensor, got list"),
        (
            torch.zeros(1, 8, 8),
            r"images: expected a batch \(N, C, H, W\), got shape \(1, 8, 8\); add the batch axis",
        ),
        (torch.zeros(8), r"images: expected a batch \(N, C, H, W\), got shape \(8,\)"),
        (torch.zeros(2, 3, 8, 8), r"images: expected images of shape \(1, 8, 8\).*got \(3, 8, 8\)"),
        (torch.zeros(2, 1, 9, 8), r"images: expected images of shape \(1, 8, 8\).*got \(1, 9, 8\)"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), r"got torch.uint8; use images.float\(\) / 255"),
        (torch.zeros(2, 1, 8, 8).half(), r"got torch.float16; use images.float\(\)"),
        (torch.full((2, 1, 8, 8), math.nan), "images: expected finite pixels, got NaN or infinity"),
        (torch.full((2, 1, 8, 8), math.inf), "images: expected finite pixels, got NaN or infinity"),
        (torch.full((2, 1, 8, 8), 1.5), r"raw pixels in \[0, 1\], got 1.5 to 1.5; do not normalise"),
        (torch.full((2, 1, 8, 8), -0.1), r"raw pixels in \[0, 1\], got -0.1 to -0.1"),
    ],
)
def test_bad_images(model: LipConvnet, images: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        lc.certify(model, images)


def test_bad_batch_size(model: LipConvnet) -> None:
    with pytest.raises(ArgumentError, match="batch_size: expected a positive integer, got 0"):
        lc.prove(model).certify(torch.rand(1, 1, 8, 8), batch_size=0)


def test_unknown_modules_are_refused_by_path_and_name(model: LipConvnet) -> None:
    model.body.stage2.append(nn.GroupNorm(2, 8))  # type: ignore[union-attr, operator]
    with pytest.raises(NotProvedError, match=r"body\.stage2\.2: GroupNorm has no proved bound"):
        lc.certify(model, torch.rand(1, 1, 8, 8))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_damaged_weights_certify_nothing(value: float) -> None:
    network = by_hand([[1.0, 0.0], [0.0, 1.0]], [0.0, value])
    with pytest.raises(NotProvedError, match="2: ConstantHead has weights that are not finite"):
        lc.certify(network, image(0.5, 0.5))


def test_a_model_must_say_its_images() -> None:
    with pytest.raises(ArgumentError, match="input_shape: Sequential does not say which images it takes"):
        lc.prove(by_hand([[1.0, 0.0]], [0.0]))


def records(prediction: list[int], radius: list[float]) -> SimpleNamespace:
    return SimpleNamespace(prediction=torch.tensor(prediction), radius=torch.tensor(radius))


def test_certified_accuracy_by_hand() -> None:
    cert = records([0, 1, 1, 2], [0.2, 0.1, 0.9, 0.3])
    accuracy = lc.certified_accuracy(cert, torch.tensor([0, 1, 0, 2]), radii=(0.15, 0.25))
    assert accuracy.standard == 0.75
    assert accuracy.certified == {0.15: 0.5, 0.25: 0.25}
    assert accuracy.count == 4


def test_a_certificate_of_exactly_the_radius_does_not_count() -> None:
    assert lc.certified_accuracy(records([0], [0.5]), torch.tensor([0]), radii=(0.5,))[0.5] == 0


def test_the_papers_radii_are_the_default() -> None:
    accuracy = lc.certified_accuracy(records([0], [0.3]), torch.tensor([0]))
    assert accuracy.certified == {36 / 255: 1, 72 / 255: 1, 108 / 255: 0}


def test_the_curve_by_hand() -> None:
    radii, accuracy = certified_curve(records([0, 1, 1, 2], [0.3, 0.1, 0.9, 0.2]), torch.tensor([0, 1, 0, 2]))
    torch.testing.assert_close(radii, torch.tensor([0.1, 0.2, 0.3]).double(), rtol=1e-6, atol=0)
    assert accuracy.tolist() == [0.75, 0.5, 0.25]


@pytest.mark.parametrize(
    ("labels", "radii", "message"),
    [
        (torch.tensor([0, 1]), (0.1,), r"labels: expected 1 integers, .* got torch.int64 of shape \(2,\)"),
        (torch.tensor([0.0]), (0.1,), "labels: expected 1 integers"),
        ([True], (0.1,), "labels: expected 1 integers, .* got torch.bool"),
        (["cat"], (0.1,), "labels: expected 1 integers, .* got list"),
        (torch.tensor([0]), (-0.1,), "radii: expected finite radii of at least 0, got -0.1"),
        (torch.tensor([0]), (math.nan,), "radii: expected finite radii"),
        (torch.tensor([0]), 0.5, r"radii: expected several numbers, got 0.5; use radii=\(0.5,\)"),
    ],
)
def test_bad_accuracy_arguments(labels: torch.Tensor, radii: tuple[float, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        lc.certified_accuracy(records([0], [0.5]), labels, radii)


@pytest.mark.parametrize("kind", [list, np.array, np.uint64, torch.tensor])
def test_labels_come_as_people_hold_them(kind: Callable[[list[int]], object]) -> None:
    assert lc.certified_accuracy(records([0, 1], [0.5, 0.1]), kind([0, 1]), (0.2,))[0.2] == 0.5


def test_accuracy_of_nothing() -> None:
    with pytest.raises(ArgumentError, match="labels: expected at least one image"):
        lc.certified_accuracy(records([], []), torch.tensor([], dtype=torch.int64))


def test_radius_from_l1_is_appendix_c() -> None:
    assert lc.radius_from_l1(4, 3072) == pytest.approx(4 / (32 * math.sqrt(3)))
    assert lc.radius_from_l1(4, 16) == 1
    assert lc.radius_from_l1(0, 5) == 0
    assert lc.radius_from_l1(math.inf, 5) == math.inf


@pytest.mark.parametrize("l1_radius", [0.1, 1.0, 4.0, 1e-310, 3.3e17])
@pytest.mark.parametrize("dimension", [1, 2, 3, 7, 3072])
def test_radius_from_l1_rounds_down(l1_radius: float, dimension: int) -> None:
    radius = lc.radius_from_l1(l1_radius, dimension)
    above = math.nextafter(radius, math.inf)
    assert (
        Fraction(radius) ** 2 * dimension <= Fraction(l1_radius) ** 2 < Fraction(above) ** 2 * dimension * 2
    )


@pytest.mark.parametrize(
    ("l1_radius", "dimension", "message"),
    [
        (-1.0, 3, "l1_radius: expected a number of at least 0, got -1.0"),
        (math.nan, 3, "l1_radius: expected a number of at least 0, got nan"),
        (1.0, 0, "dimension: expected a positive integer, got 0"),
        (1.0, 2.5, "dimension: expected a positive integer, got 2.5"),
    ],
)
def test_bad_l1_arguments(l1_radius: float, dimension: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        lc.radius_from_l1(l1_radius, dimension)


@pytest.mark.parametrize("head", ["lln", "orthogonal"])
@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_the_estimate_comes_from_below(conv: str, head: str) -> None:
    model = lc.lipconvnet(5, conv, head=head, num_classes=4, width=2, image_size=4, in_channels=1)
    proved = lc.prove(model)
    bound, estimate = proved.operator.lipschitz_bound(proved.input_shape), lc.lipschitz_estimate(proved)
    assert 0.95 * bound <= estimate <= bound * (1 + 1e-9)


def test_the_estimate_of_known_layers() -> None:
    head = ConstantHead(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.ones(2))
    found = layer_estimates(nn.Sequential(Normalize(0.3, 0.5), Flatten(), head), input_shape=(1, 1, 2))
    assert found == [pytest.approx(2), pytest.approx(1), pytest.approx(4)]


def test_the_estimate_finds_a_layer_that_is_too_large(model: LipConvnet) -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 0.5

    before = lc.lipschitz_estimate(model, iterations=5)
    model.body.stage1.append(Twice())  # type: ignore[union-attr, operator]
    assert lc.lipschitz_estimate(model, iterations=5) == pytest.approx(2 * before)


def test_the_estimate_draws_no_global_random_numbers(model: LipConvnet) -> None:
    before = torch.get_rng_state()
    one = lc.lipschitz_estimate(model, iterations=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert lc.lipschitz_estimate(model, iterations=3) == one


def test_bad_iterations(model: LipConvnet) -> None:
    with pytest.raises(ArgumentError, match="iterations: expected a positive integer, got 0"):
        lc.lipschitz_estimate(model, iterations=0)


def test_heads_have_a_common_form() -> None:
    assert isinstance(lc.NormalizedLinear(2, 2), Head)
    assert isinstance(lc.OrthogonalHead(2, 2), Head)


def test_margins_that_overflow_certify_nothing() -> None:
    with pytest.raises(NotProvedError, match="are not finite, so nothing can be certified"):
        from_logits(torch.tensor([[1e308, -1e308]], dtype=torch.float64), torch.ones(2, 2))


def test_the_rounding_of_a_margin_counts_where_the_slack_nearly_eats_it() -> None:
    """1 - 2^-54 rounds to 1; a slack of 1 - 2^-53 leaves half of what the rounded margin seems to leave."""
    logits = torch.tensor([[1.0, 2.0**-54]], dtype=torch.float64)
    found = from_logits(logits, torch.ones(2, 2, dtype=torch.float64), 1 - 2.0**-53)
    truth = Fraction(1) - Fraction(1, 2**54) - Fraction(1 - 2.0**-53)
    assert Fraction(float(found.radius[0])) <= truth


@given(radius=st.floats(0, 1e6), digits=st.integers(0, 6))
def test_what_is_printed_is_no_more_than_what_is_proved(radius: float, digits: int) -> None:
    printed = Fraction(shown(radius, digits))
    assert printed <= Fraction(radius) < printed + Fraction(1, 10**digits)


def test_a_radius_is_strictly_below_the_quotient_where_numbers_are_subnormal() -> None:
    logits = torch.tensor([[5e-324, 0.0]], dtype=torch.float64)
    assert from_logits(logits, torch.ones(2, 2, dtype=torch.float64)).radius.item() == 0


def test_no_radius_is_claimed_beyond_the_largest() -> None:
    logits = torch.tensor([[1e9, 0.0]], dtype=torch.float64)
    assert from_logits(logits, torch.ones(2, 2, dtype=torch.float64)).radius.item() == LARGEST_RADIUS


def test_the_division_rounds_down_with_a_slack() -> None:
    margin, other, slack, bound = map(
        float.fromhex,
        ("0x1.ae9d25a99ace9p+0", "0x1.02283fe663e7bp-1", "0x1.d7480e5f4b2e6p-9", "0x1.ded90b0e0bd0cp+0"),
    )
    logits = torch.tensor([[margin, other]], dtype=torch.float64)
    found = from_logits(logits, torch.full((2, 2), bound, dtype=torch.float64), slack)
    exact = (Fraction(margin) - Fraction(other) - Fraction(slack)) / Fraction(bound)
    assert Fraction(found.radius.item()) < exact


@pytest.mark.parametrize("digits", [2, 5, 9])
def test_bounds_are_printed_rounded_up(digits: int) -> None:
    for bound in (0.5 + 4 * torch.rand(50, dtype=torch.float64)).tolist():
        printed = Fraction(shown_bound(bound, digits))
        assert 0 <= printed - Fraction(bound) < Fraction(10) ** (2 - digits)


@pytest.mark.parametrize(("gap", "slack", "radius"), [(0.0, 0.0, 0.0), (0.5, 0.75, 0.0), (0.5, 0.25, 0.75)])
def test_classes_with_equal_rows_differ_by_a_constant(gap: float, slack: float, radius: float) -> None:
    logits = torch.tensor([[1.0, 1.0 - gap, 0.0]], dtype=torch.float64)
    distances = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    found = from_logits(logits, distances, slack)
    assert found.radius.item() == pytest.approx(radius)
