"""Detects forwards that change their layers while they run."""

from torch import Tensor, nn

from lipcert.errors import NotProvedError

Settings = tuple[object, ...]


class AtRest:
    """The state of all modules of a model before its forward runs.

    A forward may change a layer between two calls of it, or only while it calls it, as
    `torch.func.functional_call` does. What is read afterwards would then be another function.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[Tensor] = []  # alive, so that no other tensor gets their identity
        self._before = {id(part): self._settings(part) for part in model.modules()}

    def check(self, module: nn.Module) -> None:
        """Raise if a module has changed.

        Raises:
            NotProvedError: the forward has changed its weights, settings, mode or parts.
        """
        for part in module.modules():
            if self._before.get(id(part)) != self._settings(part):
                raise NotProvedError(
                    f"the forward changes a {type(part).__name__} while it runs; what is proved is read "
                    "from the model at rest"
                )

    def _settings(self, module: nn.Module) -> Settings:
        # Not by attributes: a tracer puts symbols in their place.
        tensors = [*module._parameters.items(), *module._buffers.items()]
        self._kept += [tensor for _, tensor in tensors if tensor is not None]
        simple = (bool, int, float, str, tuple, type(None))
        return (
            type(module),
            tuple((name, id(part)) for name, part in module._modules.items()),
            tuple((name, id(tensor), _version(tensor)) for name, tensor in tensors),
            tuple(
                (name, value if isinstance(value, simple) else id(value))
                for name, value in vars(module).items()
                if not name.startswith("_")
            ),
        )


def _version(tensor: Tensor | None) -> int:
    """How often a tensor was changed in place."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version
