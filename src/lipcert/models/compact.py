"""A network's tensors in few bytes, for networks that ship: bfloat16, and of skew taps only what is free."""

import torch
from torch import Tensor, nn

from lipcert.errors import CheckpointError
from lipcert.nn.soc import SOC

CENTRE, TAPS = "centre", "taps"


def compact(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of `model`, matrices rounded to bfloat16: a quarter of their size, or less.

    Of a SOC layer the skew part of the centre tap is kept as its upper triangle, for the rest of that tap
    moves nothing. Vectors (biases, angles) and buffers (the normalisation) stay exact.
    """
    tensors = {name: t.detach().cpu() for name, t in model.state_dict().items()}
    for prefix, layer in _soc_layers(model):
        weight = tensors.pop(f"{prefix}weight")
        upper = torch.triu_indices(layer.channels, layer.channels, offset=1, device="cpu")
        skew = (weight[0] - weight[0].T) / 2
        tensors[prefix + CENTRE] = skew[tuple(upper)].to(torch.bfloat16)
        tensors[prefix + TAPS] = weight[1:].to(torch.bfloat16)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in tensors and parameter.dim() > 1:
            tensors[name] = tensors[name].to(torch.bfloat16)
    return {name: t.contiguous().clone() for name, t in tensors.items()}  # safetensors refuses shared ones


def expand(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `compact` made, as a state of `model` in float32.

    Raises:
        CheckpointError: the taps of a layer are missing, or not of its size.
    """
    state = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    for prefix, layer in _soc_layers(model):
        c = layer.channels
        try:
            centre, taps = state.pop(prefix + CENTRE), state.pop(prefix + TAPS)
            upper = torch.triu_indices(c, c, offset=1, device="cpu")
            matrix = taps.new_zeros(c, c)
            matrix[tuple(upper)] = centre
            state[f"{prefix}weight"] = torch.cat([(matrix - matrix.T)[None], taps])
        except (KeyError, RuntimeError, IndexError) as error:
            raise CheckpointError(f"{prefix}weight: its taps are missing or of another size") from error
    return state


def _soc_layers(model: nn.Module) -> list[tuple[str, SOC]]:
    modules = model.named_modules(remove_duplicate=False)
    return [(f"{path}.", layer) for path, layer in modules if isinstance(layer, SOC)]
