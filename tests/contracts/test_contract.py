"""`lipcert.contract` on layers that break it: each is caught by the check that is made for it."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lipcert as lc
from lipcert.errors import ArgumentError
from lipcert.nn import ACTIVATIONS, CONVOLUTIONS
from lipcert.nn.selftest import examples
from lipcert.operators import ChannelAffine, Operator, Shape
from lipcert.training.losses import MarginLoss


class Stretch(lc.LipschitzModule):
    """x / std per channel: a layer that keeps the contract, for others to break."""

    def __init__(self) -> None:
        super().__init__()
        self.std = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x / self.std.view(1, -1, 1, 1)

    def output_shape(self, input_shape: Shape) -> Shape:
        if input_shape[0] != 3:
            raise ArgumentError(f"Stretch: expected 3 channels, got shape {input_shape}")
        return input_shape

    def freeze(self, input_shape: Shape) -> Operator:
        self.output_shape(input_shape)
        std = self.std.detach().clone()
        return ChannelAffine(torch.zeros_like(std), std)


class OtherFunction(Stretch):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.001


class OtherGradient(Stretch):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach()) + 0 * x


class UnderstatedOperator(ChannelAffine):
    def lipschitz_bound(self, input_shape: Shape) -> float:
        return 0.9 * super().lipschitz_bound(input_shape)


class Understated(Stretch):
    def freeze(self, input_shape: Shape) -> Operator:
        std = self.std.detach().clone()
        return UnderstatedOperator(torch.zeros_like(std), std)


class Stale(Stretch):
    known: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return super().forward(x)
        if self.known is None:
            self.known = self.std.detach().clone()
        return x / self.known.view(1, -1, 1, 1)


class Forgetful(Stretch):
    """Some of what it computes with is no part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(()), persistent=False)

    def __deepcopy__(self, memo: object) -> "Forgetful":
        twin = Forgetful()
        twin.load_state_dict(self.state_dict())
        twin.to(self.std).train(self.training).register_buffer("factor", self.factor * 2, persistent=False)
        return twin

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


class Shared(Stretch):
    def freeze(self, input_shape: Shape) -> Operator:
        return ChannelAffine(torch.zeros(3, dtype=self.std.dtype), self.std.detach())


class Idle(Stretch):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(1))


class Reading(Stretch):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(self.std.sum()) > 0 else x


class Careless(Stretch):
    def output_shape(self, input_shape: Shape) -> Shape:
        return (3, *input_shape[1:])


BROKEN: dict[type[Stretch], str] = {
    OtherFunction: "Evaluation computes the operator",
    OtherGradient: "The gradient in the input",
    Understated: "The proved bound",
    Stale: "Evaluation depends on nothing",
    Forgetful: "Deepcopy and state_dict",
    Shared: "Freeze changes nothing",
    Idle: "Every parameter gets a finite gradient",
    Reading: "A training step reads nothing",
    Careless: "Inputs of another shape",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_layer_is_reported_by_the_right_check(kind: type[Stretch]) -> None:
    report = lc.contract(kind(), (3, 2, 2))
    assert not report.passed
    assert any(f.check.startswith(BROKEN[kind]) for f in report.findings if not f.passed), report
    assert f"FAIL  {BROKEN[kind]}" in str(report)


def test_a_layer_of_ones_own_passes_and_is_left_alone() -> None:
    layer = Stretch().train()
    numbers, before = torch.get_rng_state(), layer.std.detach().clone()
    report = lc.contract(layer, (3, 2, 2))
    assert report.passed, report
    assert torch.equal(torch.get_rng_state(), numbers)
    assert torch.equal(layer.std, before)
    assert layer.training


class Watched(lc.MaxMin):
    """A layer without numbers of its own, which tells where and how its inputs arrive."""

    seen: ClassVar[set[tuple[str, torch.dtype, bool]]] = set()

    def activate(self, x: Tensor) -> Tensor:
        self.seen.add((x.device.type, x.dtype, torch.backends.cudnn.allow_tf32))
        return super().activate(x)


def test_layers_without_parameters_run_on_the_device_and_without_tf32() -> None:
    before = torch.backends.cudnn.allow_tf32
    assert lc.contract(Watched(), (4, 2, 2)).passed
    assert Watched.seen == {("cpu", torch.float32, False), ("cpu", torch.float64, False)}
    assert torch.backends.cudnn.allow_tf32 == before
    Watched.seen.clear()
    assert lc.contract(Watched(), (4, 2, 2), device="meta").device == "meta"
    assert {device for device, *_ in Watched.seen} == {"meta"}


def test_other_modules_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"input_shape: expected integers such as \(4, 8, 8\), got 4"):
        lc.contract(lc.MaxMin(), 4)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="layer: expected a LipschitzModule, got Linear"):
        lc.contract(nn.Linear(2, 2), (2,))


def test_selftest_has_an_example_of_every_layer() -> None:
    kinds = [type(layer) for layer, _ in examples()]
    assert {*CONVOLUTIONS.values()} <= set(kinds)
    assert {type(build(12)) for build in ACTIVATIONS.values()} <= set(kinds)


@pytest.mark.parametrize(
    "loss",
    [lc.CertificateLoss(0.5), lc.CertificateLoss(0.5, offset=0.1), lc.AnnealingLoss(), lc.EMMALoss(0.25)],
    ids=["certificate", "offset", "annealing", "emma"],
)
@pytest.mark.parametrize("head", ["lln", "orthogonal"])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_forward_loss_and_backward_read_nothing_from_their_device(
    head: str, loss: MarginLoss, autocast: bool
) -> None:
    model = lc.lipconvnet(5, "cayley", "hh1", head, 4, width=4, image_size=16).train()
    mode = FakeTensorMode()
    images, labels = mode.from_tensor(torch.rand(8, 3, 16, 16)), mode.from_tensor(torch.arange(8) % 4)
    for module in model.modules():
        for tensors in (module._parameters, module._buffers, vars(module)):
            fakes = {name: mode.from_tensor(t) for name, t in tensors.items() if isinstance(t, Tensor)}
            tensors.update(fakes)
    with mode:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(images)
        loss(model, logits, labels, 0.5).backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
