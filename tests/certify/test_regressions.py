"""Ways in which published certificates were false. Each time the naive recipe is broken, and ours is not."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lipcert as lc
from lipcert.certify.certificates import certificates_from
from lipcert.kernels.series import SERIES
from lipcert.kernels.taps import kernel_from_taps, skew_taps
from lipcert.nn import ConstantHead, Flatten, Normalize
from lipcert.nn.carried import carried_vectors, complete_state
from lipcert.operators import SkewPolynomial


def gain(layer: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> float:
    """Norm of the dense Jacobian in float64."""
    size = math.prod(shape)
    with torch.no_grad():
        columns = layer(torch.eye(size, dtype=torch.float64).view(size, *shape))
        columns = columns - layer(torch.zeros(1, *shape, dtype=torch.float64))
    return float(torch.linalg.matrix_norm(columns.flatten(1), 2))


def test_a_fresh_layer_in_evaluation_mode() -> None:
    """Power-iteration vectors of another filter: <u, A v> for unrelated u, v is far below the norm of A."""
    layer = lc.SOC(4, 4, 3, dtype=torch.float64).eval()
    kernel = kernel_from_taps(skew_taps(layer.weight.detach()))
    u, v = (t / t.norm() for t in torch.randn(2, 36, dtype=torch.float64))
    estimate = float((u[:4] @ kernel.reshape(4, -1) @ v).abs())
    family = SERIES["isometric"]
    upper = torch.triu_indices(4, 4, offset=1)
    naive = SkewPolynomial(
        centre=kernel[:, :, 1, 1][tuple(upper)],
        taps=kernel.flatten(2).permute(2, 0, 1)[5:],
        centre_factor=family.target[3] / estimate,
        factor=family.target[3] / estimate,
        coefficients=family.evaluation[3].coefficients,
        in_channels=4,
        out_channels=4,
        bias=None,
    )
    assert torch.equal(naive.kernel(), kernel * (family.target[3] / estimate))
    assert gain(naive.apply, (4, 4, 4)) > 10
    assert gain(layer, (4, 4, 4)) <= layer.lipschitz_bound((4, 4, 4)) <= 1 + 1e-6
    assert naive.lipschitz_bound((4, 4, 4)) >= gain(naive.apply, (4, 4, 4)) * (1 - 1e-12), (
        "even that is bounded truly"
    )


def test_a_checkpoint_with_scaled_vectors() -> None:
    model = lc.lipconvnet(5, num_classes=3, width=2, image_size=4, in_channels=1)
    images = torch.rand(8, 1, 4, 4)
    model.train()(images)  # the vectors are there now
    honest = lc.certify(model, images)
    state, vectors = complete_state(model), carried_vectors(model)
    assert vectors
    assert all(vector.numel() for vector in vectors.values())
    forged = lc.lipconvnet(5, num_classes=3, width=2, image_size=4, in_channels=1)
    forged.load_state_dict({k: v * 1e6 if k in vectors else v for k, v in state.items()})
    forged = lc.certify(forged, images)
    assert torch.equal(forged.radius, honest.radius)
    assert forged.lipschitz == honest.lipschitz


@torch.no_grad()
def nearest_flip(model: nn.Module, image: Tensor, direction: Tensor, limit: float) -> float:
    """Smallest distance (of 4,000 points up to `limit`) along +-direction where the prediction changes."""
    steps = torch.linspace(-limit, limit, 4000, dtype=torch.float64).view(-1, 1, 1, 1)
    points = image.double() + steps * direction / direction.double().norm()
    distances = (points - image.double()).flatten(1).norm(dim=1)
    flips = (model(points).argmax(dim=1) != model(image[None]).argmax()) & (distances <= limit)
    return float(distances[flips].min()) if flips.any() else math.inf


@pytest.mark.parametrize("bits", [40, 46])
def test_a_bias_that_cancels_in_the_last_layer(bits: int) -> None:
    """A constant of 2^bits is added to all features and taken off by the head: no digits are left."""
    torch.manual_seed(0)
    size, weight = 2.0**bits, torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    shift = nn.Linear(2, 2, dtype=torch.float64)
    shift.weight.data, shift.bias.data = torch.eye(2).double(), torch.full((2,), size).double()
    head = ConstantHead(weight, -size * weight.sum(dim=1))
    model = nn.Sequential(Flatten(), shift, head)
    quantum = size * 2.0**-52
    images = 0.5 + quantum * torch.rand(40, 1, 1, 2, dtype=torch.float64) * 4
    with torch.no_grad():
        naive = certificates_from(model(images), head.pair_distances(), torch.zeros(40), 1.0)
    ours = lc.certify(model, images)
    assert torch.equal(ours.prediction, naive.prediction)
    broken = 0
    for image, radius in zip(images, naive.radius, strict=True):
        direction = torch.tensor([1.0, -1.0]).view(1, 1, 2)
        broken += radius > 0 and nearest_flip(model, image, direction, float(radius)) < math.inf
    assert broken > 5, "the naive radius is true after all"
    for image, radius in zip(images, ours.radius, strict=True):
        assert nearest_flip(model, image, torch.tensor([1.0, -1.0]).view(1, 1, 2), float(radius)) == math.inf
    assert (ours.rounding > quantum).all()


def test_bisected_ties() -> None:
    """Between two images of different classes, at the last float64 before the prediction changes."""
    model = lc.lipconvnet(5, num_classes=3, width=2, image_size=4, in_channels=1).double().eval()
    images = torch.rand(64, 1, 4, 4, dtype=torch.float64)
    plain = lc.certify(model, images)
    classify = lc.prove(model).operator.apply
    pairs = [(i, j) for i in range(64) for j in range(i) if plain.prediction[i] != plain.prediction[j]][:12]
    assert len(pairs) == 12
    near = []
    for i, j in pairs:
        low, high = images[i], images[j]
        for _ in range(60):
            middle = (low + high) / 2
            same = classify(middle[None]).argmax() == plain.prediction[i]
            low, high = (middle, high) if same else (low, middle)
        near.append(low)
    cert = lc.certify(model, torch.stack(near))
    assert (cert.margin < 1e-12).all()
    assert (cert.radius == 0).all()


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sectors_leave_no_gap_at_two_pi(order: int, dtype: torch.dtype) -> None:
    """Points within a few ulps of every boundary, the last of which is 2 pi: none may lose its length."""
    layer = lc.HouseholderOrder(2, order=order, dtype=dtype)
    with torch.no_grad():
        layer.theta.normal_()
        layer.widths.normal_()  # type: ignore[union-attr]
    angles = torch.linspace(0, 2 * math.pi, 4001, dtype=torch.float64)
    edges = torch.cat([layer.theta.detach().double() / 2 + k * math.pi for k in range(-2, 3)])
    close = edges[:, None] + 2.0**-24 * torch.arange(-8, 9, dtype=torch.float64)
    angles = torch.cat([angles, close.flatten()])
    points = torch.stack([angles.cos(), angles.sin()], dim=1).to(dtype)
    lengths = layer(points).detach().double().norm(dim=1) / points.double().norm(dim=1)
    assert (lengths - 1).abs().max() <= 1e3 * torch.finfo(dtype).eps


def test_the_largest_std_makes_radii_too_large() -> None:
    """CIFAR-10's stds differ by 7%; in the channel of the smallest one pixels are stretched the most."""
    stds = (0.2470, 0.2435, 0.2616)
    # The decision depends on the second channel alone, through rows (0, 1, 0) and (0, -1, 0).
    head = ConstantHead(torch.tensor([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]]), None)
    model = nn.Sequential(Normalize((0.0, 0.5, 0.0), stds), Flatten(), head).double()
    image = torch.tensor([0.5, 0.75, 0.5], dtype=torch.float64).view(3, 1, 1)
    cert = lc.certify(model, image[None])
    naive = certificates_from(model(image[None]), head.pair_distances() / max(stds), torch.zeros(1), 1.0)
    direction = torch.tensor([0.0, 1.0, 0.0]).view(3, 1, 1)
    assert naive.radius > 1.07 * cert.radius
    assert nearest_flip(model, image, direction, float(naive.radius)) < float(naive.radius)
    assert nearest_flip(model, image, direction, float(cert.radius)) == math.inf
    # The exact answer is 1/4, and it is reached.
    assert 0.25 * (1 - 1e-6) <= cert.radius.item() < 0.25


def test_cached_kernels_do_not_survive_new_weights() -> None:
    model = lc.lipconvnet(5, "bcop", num_classes=3, width=2, image_size=4, in_channels=1).eval()
    images = torch.rand(4, 1, 4, 4)
    with torch.no_grad():
        model(images)
    lc.certify(model, images)
    other = lc.lipconvnet(5, "bcop", num_classes=3, width=2, image_size=4, in_channels=1).eval()
    model.load_state_dict(other.state_dict())
    with torch.no_grad():
        assert torch.equal(model(images), other(images))
    assert torch.equal(lc.certify(model, images).radius, lc.certify(other, images).radius)
