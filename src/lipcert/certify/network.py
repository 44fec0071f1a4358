"""The proved network: an immutable classifier that certifies its own predictions."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from lipcert.certify.certificates import Certificates, certificates_from, join
from lipcert.certify.curve import shown_bound
from lipcert.certify.images import as_batch, check_images
from lipcert.errors import ArgumentError, NotProvedError, check_positive
from lipcert.files import write_or_explain
from lipcert.models.freezing import FrozenNetwork, fastest
from lipcert.operators import Flow, Operator, Shape
from lipcert.operators.operator import LARGEST_RADIUS
from lipcert.operators.proved import Proved
from lipcert.operators.tree import children, map_children

if TYPE_CHECKING:
    from lipcert.certify.images import Images

Progress = Callable[[int, int], None]
"""progress(done, total): called after every batch."""
BATCH = 256
"""Images that are certified at once. The last bits of a logit depend on it."""
LARGEST_SIZE = 1e100
"""No computed number may come near the largest float64, 1.8e308, anywhere in a ball."""


@dataclass(frozen=True)
class ProvedNetwork:
    """A classifier made of frozen operators, with everything that a certificate needs as numbers.

    `lipcert.prove` makes it, `save` writes it to one file, `lipcert.load` reads it back. The certified
    classifier is this object: predictions come from its operators in float64, whatever the model that it was
    made from computes. Nothing is proved, copied or hashed when images are certified.

    Args:
        operator: the tree, from images to logits; its leaves are `Proved`.
        input_shape: (C, H, W) of one image, raw pixels in [0, 1].
        classes: names of the logits.
        name: what kind of network it is, to display.
    """

    operator: Operator
    input_shape: Shape
    classes: tuple[str, ...]
    name: str = "network"

    def __post_init__(self) -> None:
        made = self.operator.output_shape(self.input_shape)
        if made != (len(self.classes),):
            raise ArgumentError(f"classes: expected one name per logit, got {len(self.classes)} for {made}")
        if not all(isinstance(leaf, Proved) for leaf in leaves(self.operator)):
            raise ArgumentError("operator: expected a tree of proved operators; use lipcert.prove")

    @property
    def layers(self) -> tuple[Proved, ...]:
        """The operators in the order of execution, each with its path, shape, constant and rounding error."""
        return tuple(leaf for leaf in leaves(self.operator) if isinstance(leaf, Proved))

    @cached_property
    def lipschitz(self) -> float:
        """Proved constant from pixels to the features in front of the last matrix."""
        return self.operator.feature_bound(self.input_shape)

    @cached_property
    def pair_bounds(self) -> Tensor:
        """(K, K): proved Lipschitz constants, from pixels, of the differences of two logits."""
        return self.operator.pair_bounds(self.input_shape)

    @cached_property
    def hash(self) -> str:
        """SHA-256 that names the network in records: that of its file."""
        from lipcert.certify.network_file import to_bytes

        return to_bytes(self)[1]

    @property
    def device(self) -> torch.device:
        """Device of its numbers."""
        return next((t.device for t in self.operator.arrays()), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Self:
        """The same network on another device."""
        if torch.device(device) == self.device:
            return self
        moved = replace(self, operator=self.operator.to(device=device))
        vars(moved)["hash"] = self.hash
        return moved

    def certify(
        self, images: "Images", *, batch_size: int = BATCH, progress: Progress | None = None
    ) -> Certificates:
        r"""Predictions, each with its own radius in l2, proved.

        .. math:: r = \min_{i \ne l} \frac{f_l(x) - f_i(x) - 2 e}{D_{li}}

        with l the predicted class, D the `pair_bounds`, and e the largest rounding error of a difference of
        two logits anywhere in the ball. A tie has radius 0.

        Args:
            images: a tensor (N, C, H, W), float32 or float64 pixels in [0, 1]; or a numpy array, a PIL image
                or a list of such, in which uint8 means 0 to 255 and channels may come last.
            batch_size: images that are in memory at once.
            progress: called as progress(done, total) after every batch.

        Raises:
            ArgumentError: images of another rank, size, type or range, or with NaN or infinity among the
                pixels.
            NotProvedError: logits that are not finite.

        Paper: Proposition 1.
        """
        check_positive(batch_size=batch_size)
        batch = self.checked(images)
        parts = []
        for start in range(0, max(len(batch), 1), batch_size):
            parts.append(self._certify(batch[start : start + batch_size]))
            if progress is not None:
                progress(min(start + batch_size, len(batch)), len(batch))
        return join(parts)

    @torch.no_grad()
    def _certify(self, images: Tensor) -> Certificates:
        start = Flow.of_images(images.to(self.device, torch.float64))
        # Some processors take float32 pixels below 2^-126 for zero.
        flushed = math.sqrt(math.prod(self.input_shape)) * 2.0**-125
        flow = self.operator.run(replace(start, fixed=start.fixed + flushed), self.input_shape)
        logits, fixed = flow.value.cpu(), flow.fixed.cpu()
        if not bool(logits.isfinite().all()):
            raise NotProvedError(
                "model: its logits are not finite, so nothing can be certified; the weights are damaged"
            )
        base, growth = flow.size()
        largest = (
            float(torch.maximum(flow.largest, base + growth * LARGEST_RADIUS).max()) if len(images) else 0.0
        )
        if not largest <= LARGEST_SIZE:
            raise NotProvedError(
                f"model: numbers of up to {largest:.2g} could occur in it, too near to "
                "overflow; its weights are damaged, or a std is far too small"
            )
        # The radius without rounding bounds the ball that the rounding is counted in.
        ideal = certificates_from(logits, self.pair_bounds, torch.zeros_like(fixed), self.lipschitz).radius
        error = fixed + flow.slope * ideal.clamp(max=LARGEST_RADIUS)
        # A difference of two logits errs by sqrt(2) times the length of their error, at two points.
        slack = error * (2 * math.sqrt(2) * (1 + 2.0**-20))
        return certificates_from(logits, self.pair_bounds, slack, self.lipschitz)

    @torch.no_grad()
    def logits(self, images: "Images", *, batch_size: int = BATCH) -> Tensor:
        """Logits (N, K) in float64, the ones that certificates are about."""
        check_positive(batch_size=batch_size)
        batch = self.checked(images)
        parts = [
            self.operator.apply(batch[start : start + batch_size].to(self.device, torch.float64))
            for start in range(0, max(len(batch), 1), batch_size)
        ]
        return torch.cat(parts)

    def module(self, dtype: torch.dtype = torch.float32) -> FrozenNetwork:
        """The classifier as a `torch.nn.Module`, differentiable in its input, for attacks and other tools.

        It takes pixels in [0, 1] and returns logits, in evaluation mode and without parameters. In float64 it
        computes the certified classifier. In float32 it is faster and nearly the same function: check a
        change of class with `certify`.
        """
        operator = self.operator if dtype is torch.float64 else fast_form(self.operator.to(dtype=dtype))
        return FrozenNetwork(operator, self.input_shape).eval()

    def checked(self, images: "Images") -> Tensor:
        """Images as a batch that this network takes, or an ArgumentError."""
        batch = as_batch(images, self.input_shape)
        check_images(batch, self.input_shape)
        return batch.detach()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the network to one file: numbers, bounds, classes and a hash of all of it.

        Raises:
            CheckpointError: the folder does not exist or cannot be written to.
        """
        from lipcert.certify.network_file import to_bytes

        content, vars(self)["hash"] = to_bytes(self)
        write_or_explain(Path(path), content)

    def __repr__(self) -> str:
        rows = [
            (leaf.path, leaf.layer, type(leaf.operator).__name__, _sides(leaf.input_shape),
             shown_bound(leaf.lipschitz, 7))
            for leaf in self.layers
        ]  # fmt: skip
        rows.insert(0, ("path", "layer", "operator", "input", "constant"))
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        table = "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return (
            f"{self.name}: images {_sides(self.input_shape)}, {len(self.classes)} classes, constant "
            f"{shown_bound(self.lipschitz, 7)} from pixels to features, proved\n{table}"
        )


def numbered_classes(count: int) -> tuple[str, ...]:
    """Names for classes that nobody has named: "class 0", "class 1", ..."""
    return tuple(f"class {number}" for number in range(count))


def fast_form(operator: Operator) -> Operator:
    """The leaves without their proofs, each in the form that is fast in float32."""
    if isinstance(operator, Proved):
        return fastest(operator.operator, operator.input_shape)
    return map_children(operator, fast_form)


def leaves(operator: Operator) -> Iterator[Operator]:
    """Every operator of a tree that is no combinator, in the order of execution."""
    inner = children(operator)
    if inner is None:
        yield operator
    else:
        for child in inner:
            yield from leaves(child)


def _sides(shape: Shape) -> str:
    return "x".join(map(str, shape))
