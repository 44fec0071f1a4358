"""From a model to a proved network: what takes part in a certificate, what does not, and what is refused."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import lipcert as lc
from lipcert.certify.network import ProvedNetwork, leaves
from lipcert.errors import ArgumentError, LipcertError, NotProvedError
from lipcert.kernels.series import SERIES
from lipcert.models.lipconvnet import LipConvnet
from lipcert.nn.heads import ConstantHead
from lipcert.operators import (
    ChannelAffine,
    Flow,
    GroupSort,
    Householder,
    HouseholderND,
    Matrix,
    Mirror,
    Operator,
    Sequence,
    Shape,
    SkewPolynomial,
    SpaceToDepth,
    WeightedSum,
)
from lipcert.operators.operator import LARGEST_RADIUS
from lipcert.operators.proved import Proved
from tests.operators.cases import Frozen, dense_matrix

SHAPE = (1, 4, 4)


def network() -> LipConvnet:
    return lc.lipconvnet(5, num_classes=3, width=2, image_size=4, in_channels=1)


def double(*rows: list[float]) -> Tensor:
    return torch.tensor(rows if len(rows) > 1 else rows[0], dtype=torch.float64)


def same(found: lc.Certificates, expected: lc.Certificates) -> bool:
    pairs = ((found.prediction, expected.prediction), (found.radius, expected.radius))
    return all(torch.equal(*pair) for pair in pairs) and found.lipschitz == expected.lipschitz


# Bounds of layers


@pytest.mark.parametrize("conv", ["isometric", "wide", "exponential", "bcop", "cayley"])
@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "side"),
    [(3, 3, 3, 1, 3), (2, 9, 3, 2, 2), (5, 1, 1, 1, 2), (2, 5, 3, 1, 1), (3, 8, 1, 2, 3)],
)
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e30])
def test_bounds_of_layers_hold_and_are_tight(
    conv: str, inputs: int, outputs: int, kernel: int, stride: int, side: int, scale: float
) -> None:
    shape = (inputs, side * stride, side * stride)
    options = {"series": conv} if conv in SERIES else {}
    kind = {"bcop": lc.BCOP, "cayley": lc.Cayley}.get(conv, lc.SOC)
    layer = kind(inputs, outputs, kernel, stride=stride, bias=False, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.weight.mul_(scale)  # every weight is normalised: the function must not care
    frozen = layer.freeze(shape)
    bound = frozen.lipschitz_bound(shape)
    truth = float(torch.linalg.matrix_norm(dense_matrix(frozen, shape), 2))
    assert truth * (1 - 1e-12) <= bound <= 1 + 1e-4
    # A narrow layer keeps part of an orthogonal operator, which may be smaller than the whole.
    if outputs >= inputs * stride**2:
        assert bound <= truth * (1 + 2 * layer.orthogonality_error + 1e-4)


@pytest.mark.parametrize("conv", ["soc", "bcop", "cayley"])
def test_a_network_is_bounded_by_little_more_than_its_normalisation(conv: str) -> None:
    model = lc.lipconvnet(10, conv, num_classes=5, width=4, image_size=8, in_channels=3)
    proved = lc.prove(model)
    assert 1 / 0.2507 * (1 - 1e-6) <= proved.lipschitz <= 1 / 0.2507 * (1 + 1e-4)
    x = torch.rand(100, 3, 8, 8, dtype=torch.float64)
    y = x + 10 ** torch.empty(100, 1, 1, 1, dtype=torch.float64).uniform_(-6, 0) * torch.randn_like(x)
    features = Sequence(proved.operator.parts[:-1])  # type: ignore[attr-defined]
    with torch.no_grad():
        gain = (features.apply(x) - features.apply(y)).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
    assert 0.1 * proved.lipschitz <= gain.max() <= proved.lipschitz * (1 + 1e-9)  # nine digits at 1e-6


def test_the_table_of_layers() -> None:
    proved = lc.prove(lc.lipconvnet(5, num_classes=5, width=4, image_size=8, in_channels=1))
    first = [(layer.path, layer.layer, type(layer.operator)) for layer in proved.layers[:3]]
    # The second convolution has a stride, which is a space-to-depth in front.
    assert first == [
        ("normalize", "Normalize", ChannelAffine),
        ("body.stage1.conv1", "SOC", SpaceToDepth),
        ("body.stage1.conv1", "SOC", SkewPolynomial),
    ]
    assert proved.layers[2].relative > 0
    assert math.prod(layer.lipschitz for layer in proved.layers[:-1]) == pytest.approx(proved.lipschitz)
    assert "body.stage1.conv1" in repr(proved)


def test_a_module_that_stands_in_two_places_counts_twice() -> None:
    triple = Frozen(Matrix(3 * torch.eye(4).double(), None))
    proved = lc.prove(
        nn.Sequential(lc.Flatten(), triple, triple, ConstantHead(torch.eye(4), None)), (4, 1, 1)
    )
    assert proved.lipschitz == pytest.approx(9, rel=1e-6)
    assert [layer.path for layer in proved.layers] == ["0", "1", "2", "3"]


# What takes no part


def hook_everywhere(model: nn.Module) -> None:
    for module in model.modules():
        module.register_forward_hook(lambda module, args, output: 10 * output)
        module.register_forward_pre_hook(lambda module, args: (args[0] * 10,))


def patch_forwards(model: nn.Module) -> None:
    for module in model.modules():
        module.forward = lambda x: 10 * x  # type: ignore[method-assign]


def use_train_mode(model: nn.Module) -> None:
    model.train()


def run_forward_first(model: nn.Module) -> None:
    with torch.inference_mode():
        model.eval()(torch.rand(2, *SHAPE))
    model.train()(torch.rand(2, *SHAPE)).sum().backward()


@pytest.mark.parametrize("change", [hook_everywhere, patch_forwards, use_train_mode, run_forward_first])
def test_forwards_hooks_and_modes_take_no_part(change: Callable[[nn.Module], None]) -> None:
    model, images = network().eval(), torch.rand(4, *SHAPE)
    plain = lc.prove(model)
    change(model)
    changed = lc.prove(model)
    assert changed.operator == plain.operator
    assert same(changed.certify(images), plain.certify(images))


@pytest.mark.parametrize("how", ["autocast", "medium", "inference mode", "grad mode", "flush"])
def test_settings_of_torch_take_no_part(how: str) -> None:
    model, images = network(), torch.rand(4, *SHAPE)
    plain = lc.prove(model)
    expected = plain.certify(images)
    contexts = {
        "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
        "inference mode": torch.inference_mode(),
        "grad mode": torch.enable_grad(),
    }
    torch.set_float32_matmul_precision("medium" if how == "medium" else "highest")
    torch.set_flush_denormal(how == "flush")
    try:
        with contexts.get(how, torch.no_grad()):
            proved = lc.prove(model)
            found = proved.certify(images)
            logits = proved.logits(images)
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_flush_denormal(False)
    assert proved.operator == plain.operator
    assert proved.hash == plain.hash
    assert same(found, expected)
    assert torch.equal(logits, plain.logits(images))
    # What was proved in inference mode still serves an attack.
    x = images.double().requires_grad_()
    proved.operator.apply(x).sum().backward()
    assert x.grad is not None


def damage_in_place(model: LipConvnet) -> None:
    with torch.no_grad():
        model.head.weight[0].mul_(-1)  # type: ignore[union-attr, operator]


def damage_through_data(model: LipConvnet) -> None:
    model.body.stage1.conv1.weight.data.normal_()  # type: ignore[union-attr]


def damage_by_loading(model: LipConvnet) -> None:
    torch.manual_seed(1)
    model.load_state_dict(network().state_dict())


def damage_by_a_step(model: LipConvnet) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.eval()(torch.rand(4, *SHAPE)).square().sum().backward()  # fine-tuning in evaluation mode
    optimizer.step()


@pytest.mark.parametrize(
    "change", [damage_in_place, damage_through_data, damage_by_loading, damage_by_a_step]
)
def test_what_is_proved_is_what_the_weights_were(change: Callable[[LipConvnet], None]) -> None:
    model, images = network().eval(), torch.rand(6, *SHAPE)
    before = lc.prove(model)
    expected = before.certify(images)
    with torch.no_grad():
        model(images)  # fills every cache there is
    change(model)
    assert same(before.certify(images), expected), "a later change of the model reached the proof"
    after = lc.prove(model)
    fresh = network()
    fresh.load_state_dict(model.state_dict())
    assert after.operator == lc.prove(fresh).operator
    assert not torch.equal(after.certify(images).radius, expected.radius)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_certified_as_the_numbers_they_are(dtype: torch.dtype) -> None:
    model, images = network().to(dtype), torch.rand(4, *SHAPE)
    proved, wide = lc.prove(model), lc.prove(copy.deepcopy(model).double())
    assert proved.operator == wide.operator
    assert same(proved.certify(images), wide.certify(images))
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert {array.dtype for array in proved.operator.arrays()} == {torch.float64}


def test_a_model_with_a_config_of_its_own_kind() -> None:
    model = nn.Sequential(lc.Flatten(), lc.OrthogonalHead(4, 3))
    model.config = {"name": "mine"}  # type: ignore[assignment]
    assert lc.certify(model, torch.rand(2, 1, 2, 2)).radius.shape == (2,)


# The radius


def test_what_is_taken_off_is_the_error_of_a_difference_at_two_points() -> None:
    proved, images = lc.prove(network()), torch.rand(3, *SHAPE)
    found = proved.certify(images)
    flow = proved.operator.run(Flow.of_images(images.double()), SHAPE)
    # The radius is shorter than the margin over the distance by rounding alone.
    ideal = found.margin / proved.pair_bounds[found.prediction, found.runner_up]
    error = 2 * math.sqrt(2) * (flow.fixed + flow.slope * ideal)
    torch.testing.assert_close(found.rounding, error, rtol=1e-5, atol=0)
    assert (found.radius < ideal).all()
    torch.testing.assert_close(
        found.radius, (found.margin - error) / proved.pair_bounds[found.prediction, found.runner_up]
    )


def test_no_radius_is_larger_than_the_ball_whose_rounding_is_bounded() -> None:
    head = Matrix(double([1.0, 0.0], [1.0, 1e-12]), double([1.0, 0.0]))
    found = lc.prove(nn.Sequential(lc.Flatten(), Frozen(head)), (2, 1, 1)).certify(
        double([0.2, 0.8]).view(1, 2, 1, 1)
    )
    assert found.radius.item() == LARGEST_RADIUS


def test_a_bias_that_cancels_leaves_no_certificate_for_lost_digits() -> None:
    """A constant of 2^50 is added and taken off: what is left of the margin is rounding."""
    size = torch.full((2,), 2.0**50, dtype=torch.float64)
    shift, back = Matrix(torch.eye(2).double(), size), Matrix(torch.eye(2).double(), -size)
    proved = lc.prove(nn.Sequential(lc.Flatten(), Frozen(Sequence.of(shift, back))), (2, 1, 1))
    found = proved.certify(double([0.2, 0.9]).view(1, 2, 1, 1))
    assert found.margin.item() > 0
    assert found.radius.item() == 0


@pytest.mark.slow
@pytest.mark.parametrize("head", ["lln", "orthogonal"])
def test_the_slack_of_a_lipconvnet_5_is_about_1e_7(head: str) -> None:
    found = lc.prove(lc.lipconvnet(5, head=head, num_classes=10)).certify(torch.rand(8, 3, 32, 32))
    assert found.rounding.max() < 2e-7
    assert found.lipschitz < 1 / 0.2507 * (1 + 2e-4)


# Operators of layers of one's own


@pytest.mark.parametrize(
    "operator",
    [
        Householder(torch.linspace(0, 3, 8)),
        HouseholderND(torch.linspace(-1, 2, 16).view(1, 4, 4)),
        Matrix(torch.linspace(-1, 1, 256).view(16, 16), None),
    ],
    ids=["householder", "reflections", "matrix"],
)
def test_numbers_of_lower_precision_are_computed_with_in_float64(operator: Operator) -> None:
    """A layer that freezes to float32 numbers: sine and cosine in float32 are off by 1e-7, not by 1e-14."""
    proved = lc.prove(nn.Sequential(lc.Flatten(), Frozen(operator), nn.Linear(16, 2)), SHAPE)
    layer, x = proved.layers[1], torch.rand(50, 16, dtype=torch.float64)
    exact = layer.operator.to(dtype=torch.float64).apply(x)
    off = (layer.apply(x) - exact).norm(dim=1)
    assert (off <= 2 * (layer.relative * x.norm(dim=1) + layer.absolute)).all()


class Understated(Matrix):
    """A matrix that claims to be flat."""

    def lipschitz_bound(self, input_shape: Shape) -> float:
        return 1e-3

    def pair_bounds(self, input_shape: Shape) -> Tensor:
        return torch.full((2, 2), 1e-3, dtype=torch.float64)


class UnderstatedSum(WeightedSum):
    """A sum that claims to be flat."""

    def lipschitz_bound(self, input_shape: Shape) -> float:
        return 1e-3


class OtherSequence(Sequence):
    """A sequence that computes something else."""

    def apply(self, x: Tensor) -> Tensor:
        return super().apply(x) ** 2


@pytest.mark.parametrize(
    "operator",
    [
        Understated(torch.eye(2).double(), None),
        UnderstatedSum((Sequence(()),), (1.0,)),
        Sequence.of(UnderstatedSum((Sequence(()),), (1.0,)), Matrix(torch.eye(2).double(), None)),
        OtherSequence((Matrix(torch.eye(2).double(), None),)),
    ],
    ids=["matrix", "sum", "sum in a sequence", "sequence"],
)
def test_the_set_of_operators_is_closed(operator: Operator) -> None:
    model = nn.Sequential(lc.Flatten(), Frozen(operator))
    kind = "Understated|UnderstatedSum|OtherSequence"
    with pytest.raises(NotProvedError, match=rf"^1: Frozen freezes to ({kind}), which is none of lipcert's"):
        lc.prove(model, (2, 1, 1))


def test_a_proof_that_a_layer_states_is_not_believed() -> None:
    eye = Matrix(torch.eye(2).double(), None)
    stated = Frozen(Sequence.of(Proved(eye, "head", "Linear", (2,), 1e-3, 0.0, 0.0), eye))
    found = lc.prove(nn.Sequential(lc.Flatten(), stated), (2, 1, 1)).certify(
        double([0.2, 0.9]).view(1, 2, 1, 1)
    )
    # The boundary is where both pixels are equal.
    assert 0.49 < found.radius.item() <= 0.7 / math.sqrt(2)


# What is refused


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (
            nn.Sequential(lc.Flatten(), nn.Sequential(nn.GELU(), nn.BatchNorm1d(16))),
            NotProvedError,
            r"^1\.0: GELU has no proved bound; use a layer of lipcert",
        ),
        (
            nn.Sequential(nn.Flatten(2), nn.Linear(16, 2)),
            NotProvedError,
            "^0: only a flattening of all axes but the batch has a proved bound",
        ),
        (
            nn.Sequential(lc.MaxMin()),
            ArgumentError,
            "^0: MaxMin: expected a number of channels divisible by 2, got 1",
        ),
        (
            nn.Sequential(lc.Flatten(), nn.Linear(9, 2)),
            ArgumentError,
            r"^1: Matrix: expected vectors of 9 numbers, got shape \(16,\)",
        ),
        (
            nn.Sequential(lc.SOC(1, 2, 3)),
            ArgumentError,
            r"model: expected one number per class at its end, got outputs of shape \(2, 4, 4\)",
        ),
        (
            nn.Sequential(Frozen("nothing")),  # type: ignore[arg-type]
            NotProvedError,
            "^0: Frozen freezes to str, no operator",
        ),
    ],
    ids=["gelu", "flatten", "odd channels", "features", "no logits", "no operator"],
)
def test_what_is_not_proved_is_refused_by_path_and_name(
    model: nn.Module, error: type[LipcertError], message: str
) -> None:
    with pytest.raises(error, match=message):
        lc.prove(model, SHAPE)


def test_the_shape_of_images_has_to_be_known() -> None:
    with pytest.raises(ArgumentError, match="input_shape: Sequential does not say which images it takes"):
        lc.prove(nn.Sequential(lc.Flatten(), nn.Linear(16, 2)))


def test_classes_have_one_name_for_each_logit() -> None:
    with pytest.raises(ArgumentError, match="classes: expected 3 names, one for each logit, got 2"):
        lc.prove(network(), classes=["a", "b"])
    assert lc.prove(network()).classes == ("class 0", "class 1", "class 2")


def test_a_network_is_made_of_proved_operators_only() -> None:
    head = Matrix(torch.eye(2).double(), None)
    proved = Proved.of(head, "head", "Linear", (2,))
    with pytest.raises(
        ArgumentError, match=r"operator: expected a tree of proved operators; use lipcert.prove"
    ):
        ProvedNetwork(Sequence.of(GroupSort(2), proved), (2,), ("a", "b"))
    with pytest.raises(ArgumentError, match=r"classes: expected one name per logit, got 3 for \(2,\)"):
        ProvedNetwork(proved, (2,), ("a", "b", "c"))
    assert ProvedNetwork(proved, (2,), ("a", "b")).lipschitz == 1.0


@pytest.mark.parametrize("has_run", [False, True])
@pytest.mark.parametrize(
    "change",
    [nn.utils.weight_norm, nn.utils.spectral_norm, lambda layer: prune.identity(layer, "weight")],
    ids=["weight norm", "spectral norm", "prune"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_a_hook_computes_are_refused(
    change: Callable[[nn.Linear], nn.Module], has_run: bool
) -> None:
    model = nn.Sequential(nn.Flatten(), change(nn.Linear(4, 2)))
    if has_run:
        model(torch.rand(1, 1, 2, 2))  # leaves the weight with a graph, which torch does not copy
    with pytest.raises(NotProvedError, match=r"^1: .*computed by a hook .*remove_spectral_norm"):
        lc.prove(model, (1, 2, 2))


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.head(x.flatten(1))
        if self.training:
            self.features = features
        return features


def test_a_result_that_a_module_keeps_does_not_hinder_a_proof() -> None:
    model, images = Remembers(), torch.rand(3, 1, 2, 2, dtype=torch.float64)
    model(torch.rand(5, 1, 2, 2))
    with torch.no_grad():
        expected = copy.deepcopy(model.head).double()(images.flatten(1))
    torch.testing.assert_close(lc.prove(model, (1, 2, 2)).logits(images), expected, rtol=0, atol=1e-15)


def deep(blocks: int) -> nn.Module:
    body: nn.Module = nn.ReLU()
    for _ in range(blocks):
        body = lc.Residual(nn.Sequential(nn.ReLU(), body))
    return nn.Sequential(body, nn.Flatten())


@pytest.mark.parametrize("blocks", [49, 60, 200])
def test_what_is_nested_too_deeply_for_a_file_is_refused_at_once(blocks: int) -> None:
    expected = r"^model: its blocks are nested more than 100 deep, .*; put them one after the other"
    with pytest.raises(NotProvedError, match=expected):
        lc.prove(deep(blocks), (1, 2, 2))


def test_what_can_be_proved_can_be_saved(tmp_path: Path) -> None:
    proved = lc.prove(deep(48), (1, 2, 2))
    proved.save(tmp_path / "deep.safetensors")
    assert lc.load(tmp_path / "deep.safetensors").operator == proved.operator
    for _ in range(3):
        proved = lc.mirrored(proved)
    with pytest.raises(ArgumentError, match=r"^network: its blocks are nested more than 100 deep, .*; put"):
        proved.save(tmp_path / "deeper.safetensors")


@pytest.mark.parametrize(
    ("model", "shape", "classes", "message"),
    [
        (None, (1, 2, 2), None, "model: expected a torch.nn.Module, got NoneType"),
        (nn.Linear(4, 2), 5, None, r"input_shape: expected integers such as \(3, 32, 32\), got 5"),
        (nn.Linear(4, 2), (0,), None, "input_shape: expected positive sides"),
        (nn.Flatten(), (2, 1, 1), 5, "classes: expected 2 names, one for each logit, got 5"),
        (nn.Linear(4, 2, device="meta"), (1, 1, 4), None, "^model: Linear cannot be copied and converted to"),
        (
            nn.Sequential(nn.Flatten(), nn.Sequential(nn.Tanh(), nn.LazyLinear(2))),
            (1, 2, 2),
            None,
            r"^1\.1: LazyLinear cannot be copied and converted to float64 \(.*uninitialized parameter",
        ),
        (nn.Linear(4, 2), (4,), None, r"input_shape: expected \(C, H, W\) of one image, got \(4,\)"),
    ],
    ids=["none", "number", "empty", "classes", "meta", "lazy", "vectors"],
)
def test_arguments_of_another_kind_are_refused(model: Any, shape: Any, classes: Any, message: str) -> None:
    with pytest.raises(LipcertError, match=message):
        lc.prove(model, shape, classes)


@pytest.mark.parametrize(
    "change", [Tensor.to_sparse, lambda images: images.to("meta")], ids=["sparse", "meta"]
)
def test_images_without_numbers_in_them_are_refused(change: Callable[[Tensor], Tensor]) -> None:
    proved = lc.prove(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2))
    with pytest.raises(ArgumentError, match="images: expected a dense tensor"):
        proved.certify(change(torch.rand(1, 1, 2, 2)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 0.0), (torch.float32, 1e-4)])
def test_the_classifier_as_a_module_has_its_logits_and_gradients(
    dtype: torch.dtype, tolerance: float
) -> None:
    proved = lc.prove(network())
    images = torch.rand(3, *SHAPE, dtype=dtype, requires_grad=True)
    module = proved.module(dtype)
    logits = module(images)
    torch.testing.assert_close(
        logits.detach().double(), proved.logits(images.double()), atol=tolerance, rtol=0
    )
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), images)
    assert gradient.abs().sum() > 0
    assert not module.training
    assert module.float().double()(images.detach().double()).dtype == torch.float64


def test_the_module_of_an_average_has_no_proofs_in_its_branches() -> None:
    """Each branch is in the form that is fast, as the network alone is."""
    proved = lc.prove(network())
    alone, both = proved.module(), lc.mirrored(proved).module()
    kinds = [type(leaf) for leaf in leaves(alone.operator)]
    found = [type(leaf) for leaf in leaves(both.operator)]
    assert Matrix in kinds and SkewPolynomial not in kinds  # noqa: PT018
    assert [kind for kind in found if kind is not Mirror] == 2 * kinds
    images = torch.rand(3, *SHAPE)
    torch.testing.assert_close(both(images).double(), lc.mirrored(proved).logits(images), rtol=0, atol=1e-4)
