"""Layers, losses and networks on CUDA tensors that have no numbers: devices, dtypes, layouts, reads.

It takes a torch that is built for CUDA, and no GPU: devices, dtypes, shapes and layouts follow from each
other as they would there, and nothing is computed.
"""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lipcert as lc
from lipcert.data.augment import CropFlip
from lipcert.data.dataset import to_float
from lipcert.kernels import conv_norms
from lipcert.nn import CONVOLUTIONS, soc
from lipcert.nn.contract import HEADS, LipschitzModule
from lipcert.nn.selftest import examples
from lipcert.operators.operator import Shape
from lipcert.optim import muon
from lipcert.training.losses import MarginLoss
from lipcert.training.optimizer import make_optimizer
from tests.devices.fake_cuda import Watch, WrongPlaceError, autocast, backward, moved, moved_operator, on_cuda

on_fakes = pytest.mark.skipif(
    torch.version.cuda is None,
    reason="this torch is built without CUDA and has no CUDA tensors, not even fake ones; "
    "`python -m tools.matrix newest` has one that is built with it",
)
LAYERS = dict(enumerate(examples()))
SPECTRAL = ("BRO", "Cayley", "LOT")
"""Convolutions by Fourier transforms, which torch has in single precision and in one layout."""
MAPS = [place for place, (_, shape) in LAYERS.items() if len(shape) == 3]
LOSSES = [lc.CertificateLoss(0.5, offset=0.1), lc.AnnealingLoss(temperature=0.5), lc.EMMALoss(0.25)]
NETWORKS = ["lipconvnet", "liresnet"]


@pytest.fixture
def _few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred iterations that are all alike are a hundred times the same question."""
    monkeypatch.setattr(soc, "CONVERGED_ITERATIONS", 3)
    monkeypatch.setattr(conv_norms, "LANCZOS_STEPS", 3)


def name(place: int) -> str:
    return f"{type(LAYERS[place][0]).__name__}-{place}"


def batch(shape: Shape, mode: FakeTensorMode, dtype: torch.dtype = torch.float32) -> Tensor:
    """Eight samples, of maps in channels-last order."""
    x = torch.empty(8, *shape, dtype=dtype)
    return on_cuda(x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x, mode)


def fake_layer(place: int, mode: FakeTensorMode) -> tuple[LipschitzModule, Shape]:
    layer, shape = list(examples())[place]
    moved(layer.train(), mode)
    return layer, shape


def network(kind: str, head: str, mode: FakeTensorMode, conv: str = "soc") -> nn.Module:
    if kind == "lipconvnet":
        model: nn.Module = lc.lipconvnet(5, conv, "hh1", head, 4, width=4, image_size=16)
    else:
        model = lc.liresnet(1, 4, "liresnet", "hh1", head, 4, 16)
    return moved(model, mode)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("conv", CONVOLUTIONS)
def test_the_backward_pass_by_hand_is_that_of_torch(conv: str, dtype: torch.dtype) -> None:
    model = lc.lipconvnet(5, conv, "hh2", "orthogonal", 4, width=4, image_size=16).train()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        logits = model(torch.rand(8, 3, 16, 16))
    loss = lc.CertificateLoss(0.5)(model, logits, torch.arange(8) % 4)
    found = backward(loss)
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert torch.allclose(found[parameter], parameter.grad, rtol=1e-4, atol=1e-6)


@on_fakes
def test_the_watch_sees_a_tensor_from_the_cpu_float64_and_a_read() -> None:
    mode = FakeTensorMode()
    x = batch((3,), mode)
    with mode, Watch():
        x.add(1.0).mul(torch.tensor(2.0))
        with pytest.raises(WrongPlaceError, match="on cpu"):
            x + torch.tensor([1.0, 2.0, 3.0], device="cuda")
        with pytest.raises(WrongPlaceError, match="float64"):
            x.double()
        with pytest.raises(Exception, match="_local_scalar_dense"):
            x.sum().item()
    with mode, Watch(double=True, answers=True) as watch:
        assert not x.double().sum().item()
    assert watch.readers == {""}


@on_fakes
@pytest.mark.usefixtures("_few_iterations")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", LAYERS, ids=name)
def test_layers_train_on_their_device_in_their_precision(place: int, dtype: torch.dtype) -> None:
    mode = FakeTensorMode()
    layer, shape = fake_layer(place, mode)
    x = batch(shape, mode, torch.float32 if isinstance(layer, lc.Normalize) else dtype).requires_grad_()
    with mode, autocast(dtype):
        layer(x)  # The first step starts power iterations, from numbers that are drawn on the CPU.
    with mode, Watch():
        with autocast(dtype):
            y = layer(x)
        grads = backward(y.float().square().sum())
    assert all(grads[p].shape == p.shape and grads[p].dtype == p.dtype for p in (x, *layer.parameters()))
    assert y.dtype == x.dtype


@on_fakes
@pytest.mark.usefixtures("_few_iterations")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("place", MAPS, ids=name)
def test_layers_keep_channels_last(place: int, dtype: torch.dtype) -> None:
    """In float16: without a GPU to ask, torch takes a bfloat16 convolution for one that cuDNN lacks."""
    mode = FakeTensorMode()
    layer, shape = fake_layer(place, mode)
    with mode, autocast(dtype):
        y = layer(batch(shape, mode, torch.float32 if isinstance(layer, lc.Normalize) else dtype))
    by_fourier = type(layer).__name__ in SPECTRAL and max(y.shape[2:]) > 2
    assert y.is_contiguous(memory_format=torch.channels_last) != by_fourier


@on_fakes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_losses_stay_on_their_device_in_single_precision(
    loss: MarginLoss, head: str, dtype: torch.dtype
) -> None:
    mode = FakeTensorMode()
    model = moved(nn.Sequential(lc.Normalize((0.5,) * 3, 0.25), lc.Flatten(), HEADS[head](12, 4)), mode)
    images, labels = batch((3, 2, 2), mode), on_cuda(torch.arange(8) % 4, mode)
    with mode, Watch():
        with autocast(dtype):
            logits = model(images)
        value = loss(model, logits, labels, 0.5)
        grads = backward(value)
    assert (logits.dtype, value.dtype) == (dtype, torch.float32)
    assert grads.keys() == set(model.parameters())


@on_fakes
@pytest.mark.usefixtures("_few_iterations")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_whole_training_step_stays_on_its_device(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From pixels to new weights, but for SGD, which is one kernel of torch that fake tensors do not know."""
    monkeypatch.setattr(muon, "_has_bf16", lambda kind: True)
    monkeypatch.setattr(muon, "sgd", lambda *args, **options: None)
    mode = FakeTensorMode()
    model = network(kind, "lln", mode).train()
    pixels = on_cuda(torch.zeros(8, 3, 16, 16, dtype=torch.uint8), mode)
    labels, choices = on_cuda(torch.arange(8) % 4, mode), on_cuda(torch.zeros(8, 3).long(), mode)
    update = make_optimizer(model, lc.TrainConfig(optimizer="muon"), torch.device("cuda"))
    for watch in (nullcontext(), Watch()):
        with mode, watch:
            images = to_float(CropFlip(2).apply(pixels, choices))
            with autocast(dtype):
                logits = model(images)
            grads = backward(lc.CertificateLoss(0.5)(model, logits, labels))
            for parameter in model.parameters():
                parameter.grad = grads[parameter]
            update.step()
    assert logits.dtype == dtype


@on_fakes
@pytest.mark.usefixtures("_few_iterations")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", NETWORKS)
def test_evaluation_reads_only_to_finish_its_kernels(kind: str, dtype: torch.dtype) -> None:
    mode = FakeTensorMode()
    model = network(kind, "orthogonal", mode).eval()
    images = batch((3, 16, 16), mode)
    with mode, torch.no_grad(), Watch(answers=True) as watch, autocast(dtype):
        logits = model(images)
    assert logits.dtype == dtype
    assert watch.readers == ({"settled"} if kind == "lipconvnet" else {"_PolarFactor.forward"})


@on_fakes
@pytest.mark.parametrize("place", LAYERS, ids=name)
def test_frozen_operators_run_on_their_device_in_float64(place: int) -> None:
    layer, shape = LAYERS[place]
    mode = FakeTensorMode()
    operator = moved_operator(layer.double().freeze(shape), mode)
    x = batch(shape, mode, torch.float64)
    with mode, torch.no_grad(), Watch(double=True):
        y = operator.apply(x)
    assert (y.device, y.dtype, y.shape[1:]) == (x.device, x.dtype, operator.output_shape(shape))
