"""A vector that training carries from step to step, whose shape comes with the first step."""

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

NAME = "vector"


class CarriesVector(nn.Module):
    """Keeps `vector`, which moves with the module, outside of its buffers and of its `state_dict`.

    Averages of weights that are made before the first step copy buffers or a `state_dict`, and take their
    shapes for constant. `load_state_dict` takes the vector if `complete_state` has added it; otherwise the
    next step finds a new one, as the first step does.
    """

    vector: Tensor

    def carry(self, vector: Tensor) -> None:
        """Keep a vector for the next step; the wrappers of torch.func do not outlive their transform."""
        while is_functorch_wrapped_tensor(vector):
            vector = get_unwrapped(vector)
        self.vector = vector

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.vector = fn(self.vector)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        key = prefix + NAME
        others = {name: value for name, value in state_dict.items() if name != key}
        super()._load_from_state_dict(others, prefix, local_metadata, *rest)
        saved = state_dict.get(key, self.vector.new_empty(0)).detach()
        # As parameters are: either the saved tensor takes the place, or its numbers do.
        assign = local_metadata.get("assign_to_params_buffers", False)
        self.vector = saved.clone() if assign else saved.to(self.vector, copy=True)


def carried_vectors(model: nn.Module) -> dict[str, Tensor]:
    """The vectors that training carries, by the names that `load_state_dict` takes them by."""
    modules = model.named_modules(remove_duplicate=False)
    return {
        f"{path}.{NAME}" if path else NAME: m.vector for path, m in modules if isinstance(m, CarriesVector)
    }


def complete_state(model: nn.Module) -> dict[str, Tensor]:
    """The `state_dict` and the carried vectors: loaded, training goes on to the same bits."""
    return model.state_dict() | carried_vectors(model)
