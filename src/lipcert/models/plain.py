"""Modules of torch as operators, by exact type, as they are in evaluation mode."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lipcert.errors import NotProvedError
from lipcert.operators import (
    ChannelAffine,
    Convolution,
    Elementwise,
    Matrix,
    Operator,
    Pool,
    Repeat,
    Reshape,
    Sequence,
    Shape,
    Transpose,
    WeightedSum,
)

Pair = tuple[int, int]
SOFTPLUS_THRESHOLD = 20
"""Of torch by default: a softplus is 2e-9 larger than its argument there."""


def _flatten(module: nn.Flatten, shape: Shape) -> Operator:
    axes = range(len(shape) + 1)
    if axes[module.start_dim] != 1 or axes[module.end_dim] != len(shape):
        raise NotProvedError("only a flattening of all axes but the batch has a proved bound")
    return Reshape()


def _weights(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Copies of weight and bias, which have to be the module's own."""
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
    if weight is None or "bias" not in module._parameters or weight.is_complex():
        raise NotProvedError(
            "its weight is computed by a hook (as weight_norm, spectral_norm and prune do), or complex; "
            "remove that first (torch.nn.utils.remove_weight_norm, remove_spectral_norm, prune.remove)"
        )
    return weight.detach().clone(), None if bias is None else bias.detach().clone()


def _linear(module: nn.Linear, shape: Shape) -> Operator:
    return Matrix(*_weights(module))


def _convolution(module: nn.Conv2d, shape: Shape) -> Operator:
    weight, bias = _weights(module)
    stride, padding, dilation = (_pair(v) for v in (module.stride, module.padding, module.dilation))
    if module.padding == "valid":
        padding = (0, 0)
    if module.padding == "same":
        weight, dilation = _with_odd_sides(weight, dilation)
        around = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        padding = (around[0] // 2, around[1] // 2)
    if module.padding_mode != "zeros":
        raise NotProvedError(
            f"only a padding of zeros has a proved bound, got padding_mode={module.padding_mode!r}"
        )
    return Convolution(weight, bias, stride, padding, dilation, module.groups)


def _with_odd_sides(kernel: Tensor, dilation: Pair) -> tuple[Tensor, Pair]:
    """A kernel for which padding="same" is equal on both sides, and its dilation.

    Where d (k - 1) is odd, torch pads one pixel more behind the map than in front of it. A tap of zero one
    pixel in front of the first one asks for that pixel there as well.
    """
    for axis in (2, 3):
        step, size = dilation[axis - 2], kernel.shape[axis]
        if step * (size - 1) % 2:
            sides = list(kernel.shape)
            sides[axis] = step * (size - 1) + 2
            places = torch.arange(1, sides[axis], step, device=kernel.device)
            kernel = kernel.new_zeros(sides).index_copy(axis, places, kernel)
            dilation = (1, dilation[1]) if axis == 2 else (dilation[0], 1)
    return kernel, dilation


def _batch_norm(module: nn.BatchNorm2d, shape: Shape) -> Operator:
    """One affine function per channel: a convolution of one pixel, each channel alone."""
    _refuse_training(module)
    mean, variance = module.running_mean, module.running_var
    if mean is None or variance is None:
        raise NotProvedError("it normalises by the batch; use track_running_stats=True")
    scale = 1 / torch.sqrt(variance + module.eps)
    scale = scale if module.weight is None else scale * module.weight.detach()
    shift = -mean * scale if module.bias is None else module.bias.detach() - mean * scale
    return Convolution(scale.view(-1, 1, 1, 1), shift, groups=len(scale))


def _softplus(module: nn.Softplus, shape: Shape) -> Operator:
    """softplus(beta x) / beta; beyond its threshold torch takes x itself: 3e-9 / beta less at most."""
    function, beta = Elementwise("softplus"), float(module.beta)
    if not module.threshold >= SOFTPLUS_THRESHOLD:
        raise NotProvedError(
            f"only a threshold of at least {SOFTPLUS_THRESHOLD} has a proved bound, got {module.threshold}: "
            "the function jumps there"
        )
    if beta == 1:
        return function
    ones = torch.ones(shape[0], dtype=torch.float64, device="cpu")
    scaled = WeightedSum((Sequence(()),), (beta,))
    return Sequence.of(scaled, function, ChannelAffine(0 * ones, beta * ones))


def _pool(name: str) -> Callable[[Any, Shape], Operator]:
    def read(module: Any, shape: Shape) -> Operator:
        if module.ceil_mode or _pair(getattr(module, "dilation", 1)) != (1, 1):
            raise NotProvedError("only windows without ceil_mode and dilation have a proved bound")
        padding = _pair(getattr(module, "padding", 0))
        whole = getattr(module, "count_include_pad", True) or padding == (0, 0)
        if not whole or getattr(module, "divisor_override", None) or getattr(module, "return_indices", False):
            raise NotProvedError(
                "only the plain mean or maximum of a window, padding included, has a proved bound"
            )
        if name == "norm" and module.norm_type != 2:
            raise NotProvedError(f"only the norm of order 2 has a proved bound, got {module.norm_type}")
        stride = module.kernel_size if module.stride is None else module.stride
        return Pool(name, _pair(module.kernel_size), _pair(stride), padding)

    return read


def _adaptive(module: nn.AdaptiveAvgPool2d, shape: Shape) -> Operator:
    if len(shape) != 3:
        raise NotProvedError(f"expected maps (C, H, W), got shape {shape}")
    sides = _pair(module.output_size)
    wanted = tuple(n if side is None else side for side, n in zip(sides, shape[1:], strict=True))
    if any(n % side for n, side in zip(shape[1:], wanted, strict=True)):
        raise NotProvedError(f"only output sizes that divide the map have a proved bound, got {wanted}")
    window = (shape[1] // wanted[0], shape[2] // wanted[1])
    return Pool("average", window, window, (0, 0))


LARGEST_FACTOR = 40
"""Torch finds the nearest pixel by a product with 1 / factor in float32, which is off by one from 41 on."""


def _upsample(module: nn.Upsample, shape: Shape) -> Operator:
    if module.mode != "nearest" or len(shape) != 3:
        raise NotProvedError(
            f"only mode='nearest' of maps has a proved bound, got {module.mode!r} of {shape}"
        )
    sizes = module.size if module.size is None else _pair(module.size)
    factors = (
        _pair(module.scale_factor)
        if sizes is None
        else tuple(wanted / n for wanted, n in zip(sizes, shape[1:], strict=True))
    )
    if not all(factor == int(factor) and 1 <= factor <= LARGEST_FACTOR for factor in factors):
        raise NotProvedError(
            f"only whole factors up to {LARGEST_FACTOR} have a proved bound, got {factors}; upsample twice"
        )
    return Repeat((int(factors[0]), int(factors[1])))


def depth_to_space(block: int, shape: Shape) -> Operator:
    """`nn.PixelShuffle`."""
    channels, height, width = _maps(shape, block**2, 1)
    made = channels // block**2
    parts = Reshape((made, block, block, height, width)), Transpose((0, 3, 1, 4, 2))
    return Sequence.of(*parts, Reshape((made, height * block, width * block)))


def space_to_depth(block: int, shape: Shape) -> Operator:
    """`nn.PixelUnshuffle`."""
    channels, height, width = _maps(shape, 1, block)
    rows, columns = height // block, width // block
    parts = Reshape((channels, rows, block, columns, block)), Transpose((0, 2, 4, 1, 3))
    return Sequence.of(*parts, Reshape((channels * block**2, rows, columns)))


def _maps(shape: Shape, channels: int, side: int) -> Shape:
    if len(shape) != 3 or shape[0] % channels or shape[1] % side or shape[2] % side:
        raise NotProvedError(
            f"expected maps with channels divisible by {channels} and sides by {side}, got shape {shape}"
        )
    return shape


def _pair(value: Any) -> Any:
    """A number stands for two, alone or in a tuple."""
    if not isinstance(value, (tuple, list)):
        return (value, value)
    return tuple(value) * 2 if len(value) == 1 else tuple(value)


def _nothing(module: nn.Module, shape: Shape) -> Operator:
    return Sequence(())


def _dropout(module: nn.Module, shape: Shape) -> Operator:
    _refuse_training(module)
    return Sequence(())


def _refuse_training(module: nn.Module) -> None:
    if module.training:
        raise NotProvedError("it stays in training mode, where its result depends on chance or on the batch")


PLAIN: dict[type[nn.Module], Callable[[Any, Shape], Operator]] = {
    nn.Identity: _nothing,
    nn.Dropout: _dropout,
    nn.Dropout2d: _dropout,
    nn.Flatten: _flatten,
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.BatchNorm2d: _batch_norm,
    nn.ReLU: lambda module, shape: Elementwise("relu"),
    nn.LeakyReLU: lambda module, shape: Elementwise("leaky relu", float(module.negative_slope)),
    nn.Tanh: lambda module, shape: Elementwise("tanh"),
    nn.Sigmoid: lambda module, shape: Elementwise("sigmoid"),
    nn.Softplus: _softplus,
    nn.AvgPool2d: _pool("average"),
    nn.MaxPool2d: _pool("max"),
    nn.LPPool2d: _pool("norm"),
    nn.AdaptiveAvgPool2d: _adaptive,
    nn.PixelShuffle: lambda module, shape: depth_to_space(module.upscale_factor, shape),
    nn.PixelUnshuffle: lambda module, shape: space_to_depth(module.downscale_factor, shape),
    nn.Upsample: _upsample,
}
"""Modules of torch that are known."""


def is_plain_sequence(module: nn.Module) -> bool:
    """Whether a module calls its children one after the other, as a Sequential of torch does."""
    kind = type(module)
    return (
        isinstance(module, nn.Sequential)
        and kind.forward is nn.Sequential.forward
        and kind.__iter__ is nn.Sequential.__iter__  # type: ignore[attr-defined]
    )
