"""Which parameters of a network Muon trains, and how each is read as matrices."""

from typing import Any

from torch import nn

from lipcert.nn.convolution import LipschitzConv2d


def muon_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups for `Muon`: a group per layout, then one of all other parameters, for SGD.

    Muon takes what a convolution names in `matrices`. Biases, scales, activations and heads are left to SGD,
    and so are layers that name nothing.

    >>> import lipcert as lc
    >>> model = lc.lipconvnet(depth=5, width=4, num_classes=3)
    >>> [(group.get("layout", "SGD"), len(group["params"])) for group in muon_groups(model)]
    [('taps', 5), ('SGD', 12)]
    """
    layouts = {}
    for module in model.modules():
        if isinstance(module, LipschitzConv2d):
            own = dict(module.named_parameters(recurse=False))
            layouts.update({own[name]: layout for name, layout in module.matrices.items() if name in own})
    groups: dict[str, dict[str, Any]] = {}
    rest: list[nn.Parameter] = []
    for parameter in model.parameters():
        layout = layouts.get(parameter)
        if layout is None:
            rest.append(parameter)
        else:
            groups.setdefault(layout, {"params": [], "layout": layout})["params"].append(parameter)
    return [*groups.values(), *([{"params": rest}] if rest else [])]
