"""Samples as scikit-learn hands them out: which picture each row is, and what a radius on it means."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lipcert.certify.certificates import Certificates
from lipcert.certify.resized import ResizeBound, bound_resize
from lipcert.data.dataset import to_float
from lipcert.data.resize import resize_matrix
from lipcert.errors import ArgumentError
from lipcert.proofs.rounding import product_up, sqrt_up

Array = npt.NDArray[Any]
GREY = 0.5
"""Pixels around samples that are no even square: the middle of the range."""


@dataclass(frozen=True)
class InputMap:
    r"""From samples in rows to the images that a network takes, and from radii on these back to samples.

    A sample is scaled to [0, 1] and clipped, laid into the smallest even square that holds it, and surrounded
    by grey. Where the network takes another size the square is resized, :math:`Y = A X A^T`, and clipped;
    where it takes three channels a grey image is taken three times, which multiplies distances by
    :math:`\sqrt 3`.

    Attributes:
        shape: of a sample: (H, W), (H, W, C), or (features,) of a row that is no picture.
        range: the numbers that become 0 and 1; None where they are that already (uint8: 0 and 255).
        image_size: side of the network's images; None is the even square's own.
        channels: of the network's images; None is the sample's own.
    """

    shape: tuple[int, ...]
    range: tuple[float, float] | None
    image_size: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        own = _channels(self.shape)
        if self.channels is not None and own not in (1, self.channels):
            raise ArgumentError(
                f"start_from: its network takes images of {self.channels} channels, but the samples have "
                f"{own}; start from another one"
            )

    def pixels(self, rows: Array) -> Tensor:
        """Samples in rows as float64 images (N, C, S, S) in [0, 1], S even.

        Raises:
            ArgumentError: numbers that are out of range.
        """
        if self.range is None and rows.dtype == np.uint8:
            values = to_float(torch.from_numpy(np.array(rows))).double()
        else:
            values = torch.from_numpy(np.array(rows, dtype=np.float64))
        if self.range is not None:
            low, high = self.range
            values = ((values - low) / (high - low)).clamp(0, 1)
        elif values.numel() and not 0 <= float(values.min()) <= float(values.max()) <= 1:
            low, high = float(values.min()), float(values.max())
            raise ArgumentError(
                f"X: expected uint8, or numbers from 0 to 1, got {rows.dtype} from {low:g} to {high:g}; say "
                f'what black and white are, such as value_range=({low:g}, {high:g}) or value_range="data"'
            )
        square = _even_square(values, self.shape)
        if self._matrix is not None:
            square = (self._matrix @ square @ self._matrix.T).clamp(0, 1)
        if self.channels not in (None, square.shape[1]):
            square = square.expand(-1, self.channels, -1, -1).contiguous()
        return square

    def certificates(self, found: Certificates, dtype: np.dtype[Any]) -> Certificates:
        """Certificates of images as those of samples of this type, in their units."""
        if self._bound is not None:
            radii = [self._bound.radius_before(radius) for radius in found.radius.tolist()]
            radius = torch.tensor(radii, dtype=torch.float64, device="cpu")
            found = replace(found, radius=radius, lipschitz=product_up(found.lipschitz, self._bound.norm))
        if self.range is None and dtype in (np.float16, np.float32, np.float64):
            return found
        eps = torch.finfo(torch.float64).eps
        low, high = self.range or (0.0, 1.0)
        scale = high - low
        if self.range is None and dtype == np.uint8:
            rounded = 2.0**-25  # to_float, on numbers of at most 1
        else:
            # As float64, and by scaling: what is not clipped lies between the ends.
            rounded = eps * (2 + max(abs(low), abs(high)) / scale)
        # Each number is rounded here and anywhere in the ball; clipping brings no two samples farther apart.
        # The factor outweighs the roundings of these lines.
        lost = 2 * rounded * math.sqrt(math.prod(self.shape))
        radius = ((found.radius - lost).clamp(min=0) * scale) * (1 - 8 * eps)
        return replace(found, radius=radius, lipschitz=found.lipschitz / scale * (1 + 4 * eps))

    @cached_property
    def _matrix(self) -> Tensor | None:
        side = _even_side(self.shape)
        if self.image_size in (None, side):
            return None
        return torch.from_numpy(resize_matrix(side, self.image_size).copy())

    @cached_property
    def _bound(self) -> ResizeBound | None:
        """How far resizing, and taking grey for every channel, can pull two samples apart."""
        own = _channels(self.shape)
        channels = own if self.channels is None else self.channels
        if self._matrix is None and channels == own:
            return None
        bound = ResizeBound(1.0, 0.0) if self._matrix is None else bound_resize(self._matrix, channels)
        return replace(bound, norm=product_up(bound.norm, sqrt_up(channels // own)))


def plain(value: Any) -> Any:
    """A number of Python's own: searches over parameters hand out numpy's."""
    return value.item() if isinstance(value, np.generic) else value


def sample_shape(X: Any) -> tuple[int, ...] | None:
    """Shape of one sample of an array or list of images; None for rows of numbers."""
    shape = tuple(getattr(X, "shape", ()))
    if isinstance(X, list | tuple) and len(X) and np.ndim(X[0]) > 1:
        shape = (len(X), *np.shape(X[0]))
    return tuple(map(int, shape[1:])) if len(shape) > 2 else None


def as_rows(X: Any) -> Any:
    """Images laid out as rows; what has two axes is scikit-learn's to judge."""
    shape = sample_shape(X)
    return X if shape is None else np.asarray(X).reshape(len(X), math.prod(shape))


def checked_shape(
    given: tuple[int, ...] | None, wanted: tuple[int, ...] | None, features: int
) -> tuple[int, ...]:
    """Shape of a sample: (H, W), (H, W, C), or (features,) of a row that is no picture."""
    shape = (features,) if given is None else given
    if wanted is not None:
        wanted = tuple(int(plain(side)) for side in wanted)
        if len(wanted) not in (2, 3) or math.prod(wanted) != features or given not in (None, wanted):
            raise ArgumentError(
                f"image_shape: expected (H, W) or (H, W, C) of the samples, which have shape {shape}, got "
                f"{wanted}"
            )
        return wanted
    if len(shape) > 3 or (len(shape) == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3)):
        raise ArgumentError(
            f"X: expected samples (H, W) or (H, W, C), channels last, got {shape}; use np.moveaxis(X, 1, -1)"
        )
    return shape


def checked_range(rows: Array, wanted: tuple[float, float] | str | None) -> tuple[float, float] | None:
    """The numbers that become 0 and 1, or None where they are 0 and 1 already (uint8: 0 and 255)."""
    if wanted is None:
        return None
    if isinstance(wanted, str) and wanted == "data":
        low, high = float(rows.min()), float(rows.max())
        wanted = (low, high) if high > low else (low, max(low + 1, math.nextafter(low, math.inf)))
    try:
        low, high = (float(end) for end in wanted)
    except (TypeError, ValueError):
        low = high = math.nan
    if not -math.inf < low < high < math.inf or high - low == math.inf:
        raise ArgumentError(f'value_range: expected (low, high), "data" or None, got {wanted!r}')
    return low, high


def _channels(shape: tuple[int, ...]) -> int:
    return shape[2] if len(shape) == 3 else 1


def _even_side(shape: tuple[int, ...]) -> int:
    side = math.isqrt(shape[0] - 1) + 1 if len(shape) == 1 else max(shape[:2])
    return side + side % 2


def _even_square(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows as images (N, C, S, S), S the smallest even side that holds a sample; grey around it."""
    count, side = len(values), _even_side(shape)
    if len(shape) == 1:
        square = values.new_full((count, side * side), GREY)
        square[:, : shape[0]] = values
        return square.view(count, 1, side, side)
    height, width, channels = (*shape, 1)[:3]
    square = values.new_full((count, channels, side, side), GREY)
    square[:, :, :height, :width] = values.view(count, height, width, channels).permute(0, 3, 1, 2)
    return square
