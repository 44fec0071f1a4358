"""A second implementation of LipConvnets, in numpy and float64, to check the first against.

It reads the .safetensors file itself and shares no layer code with the package: maps are convolved tap by
tap (or by a dense matrix where that is small), BCOP applies its projections one after the other, Cayley
works on the full Fourier grid, activations follow the paper's formulas. From the package it takes data only:
the coefficients of SOC's polynomials. It is slow and obvious, and runs on a few images.
"""

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lipcert.errors import CheckpointError, NotProvedError
from lipcert.functional.series import SERIES

Array = NDArray[np.float64]
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "U8": "u1",
    "BOOL": "?",
}
ITERATIONS = 200
DENSE = 1024


@dataclass(frozen=True)
class NumpyNetwork:
    """The network of a file: its configuration and its tensors, in float64."""

    config: dict[str, Any]
    tensors: dict[str, Array]

    def features(self, images: Array) -> Array:
        """What enters the head, (N, D), for pixels (N, C, H, W)."""
        x = (images - self.tensors["normalize.mean"]) / self.tensors["normalize.std"]
        stage = 1
        while f"body.stage{stage}.conv1.weight" in self.tensors:
            block = 1
            while f"body.stage{stage}.conv{block}.weight" in self.tensors:
                last = f"body.stage{stage}.conv{block + 1}.weight" not in self.tensors
                x = self._convolution(f"body.stage{stage}.conv{block}.", x, 2 if last else 1)
                x = self._activation(f"body.stage{stage}.activation{block}.", x)
                block += 1
            stage += 1
        return x.reshape(len(x), -1)

    def head(self) -> tuple[Array, Array]:
        """Rows (K, D) and biases (K,)."""
        if self.config["head"] == "lln":
            weight, bias = self.tensors["head.weight"], self.tensors["head.bias"]
            return weight / np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), 1e-12), bias
        weight, bias = self.tensors["head.linear.weight"], self.tensors["head.linear.bias"]
        if self.config["conv"] == "soc":
            return rotation(weight)[: self.config["num_classes"], : self._features()], bias
        if self.config["conv"] == "bcop":
            return polar(weight), bias
        return cayley(weight * self.tensors["head.linear.scale"] / np.linalg.norm(weight)), bias

    def _features(self) -> int:
        """Length of the feature vector: every stage halves the map and doubles the width."""
        size, width, stages = self.config["image_size"], self.config["width"], 0
        while size % 2 == 0 and stages < 5:
            size, width, stages = size // 2, width * 2, stages + 1
        return int(width * size * size)

    def _convolution(self, prefix: str, x: Array, stride: int) -> Array:
        if stride == 2:
            n, c, h, w = x.shape
            x = (
                x.reshape(n, c, h // 2, 2, w // 2, 2)
                .transpose(0, 1, 3, 5, 2, 4)
                .reshape(n, 4 * c, h // 2, w // 2)
            )
        kinds = {"soc": self._soc, "bcop": self._bcop, "cayley": self._cayley}
        kind = self.config["conv"]
        if kind not in kinds:
            raise NotProvedError(f"verify: there is no independent form of the convolution {kind!r}")
        bias = self.tensors[prefix + "bias"]
        return kinds[kind](prefix, x, len(bias)) + bias[:, None, None]

    def _soc(self, prefix: str, x: Array, out_channels: int) -> Array:
        weight, family = self.tensors[prefix + "weight"], SERIES[self.config["series"]]
        size = math.isqrt(2 * len(weight) - 1)
        taps = np.concatenate([((weight[0] - weight[0].T) / math.sqrt(2))[None], weight[1:]])
        kernel = np.concatenate([-taps[:0:-1].transpose(0, 2, 1), taps])
        kernel = kernel.transpose(1, 2, 0).reshape(*taps.shape[1:], size, size)
        n, channels, h, w = x.shape
        apply = zero_padded(kernel, h, w)
        if family.by_operator_norm:
            norm = operator_norm(apply, (1, kernel.shape[0], h, w))
        else:
            norm = reshape_norm(kernel)
        scale, coefficients = family.target[size] / norm, family.evaluation[size].coefficients
        padded = np.concatenate([x, np.zeros((n, kernel.shape[0] - channels, h, w))], axis=1)
        power, total = padded, coefficients[0] * padded
        for coefficient in coefficients[1:]:
            power = scale * apply(power)
            total = total + coefficient * power
        return total[:, :out_channels]

    def _bcop(self, prefix: str, x: Array, out_channels: int) -> Array:
        matrix, bases = polar(self.tensors[prefix + "weight"]), self.tensors[prefix + "bases"]
        y = np.einsum("oi,nihw->nohw", matrix, x) if matrix.shape[1] <= matrix.shape[0] else x
        for index, span in enumerate(bases):
            basis = np.linalg.qr(span)[0]
            half = np.einsum("ab,cb,nchw->nahw", basis, basis, y, optimize=True)
            y = y - half + np.roll(half, 1 if index // 2 % 2 == 0 else -1, axis=2 + index % 2)
        return y if matrix.shape[1] <= matrix.shape[0] else np.einsum("oi,nihw->nohw", matrix, y)

    def _cayley(self, prefix: str, x: Array, out_channels: int) -> Array:
        weight = self.tensors[prefix + "weight"]
        kernel = weight * self.tensors[prefix + "scale"] / np.linalg.norm(weight)
        size, (h, w) = kernel.shape[-1], x.shape[2:]
        offsets = np.arange(size) - size // 2
        rows = np.exp(2j * np.pi * np.outer(np.arange(h), offsets) / h)
        columns = np.exp(2j * np.pi * np.outer(np.arange(w), offsets) / w)
        spectrum = np.einsum("oiyx,uy,vx->uvoi", kernel, rows, columns, optimize=True)
        orthogonal = np.array([[cayley(m) for m in row] for row in spectrum])
        result = np.einsum("uvoi,niuv->nouv", orthogonal, np.fft.fft2(x), optimize=True)
        return np.real(np.fft.ifft2(result))

    def _activation(self, prefix: str, z: Array) -> Array:
        name = self.config["activation"]
        theta = self.tensors.get(prefix + "theta")
        if name == "maxmin":
            first, second = np.split(z, 2, axis=1)
            return np.concatenate([np.maximum(first, second), np.minimum(first, second)], axis=1)
        if name == "groupsort4":
            return -np.sort(-z.reshape(len(z), 4, -1, *z.shape[2:]), axis=1).reshape(z.shape)
        if name == "hh1" and theta is not None:
            return reflect(z, theta)
        if name == "chain2" and theta is not None:
            return reflect(reflect(z, theta[0]), theta[1])
        if name in ("hh2", "hh3") and theta is not None:
            return sectors(z, theta, self.tensors[prefix + "widths"])
        if name == "nd4":
            for vectors in self.tensors[prefix + "vectors"]:
                groups = z.reshape(len(z), *vectors.shape, *z.shape[2:])
                v = (vectors / np.sqrt((vectors**2).sum(axis=0))).reshape(1, *vectors.shape, 1, 1)
                z = (groups - 2 * np.minimum((groups * v).sum(axis=1, keepdims=True), 0) * v).reshape(z.shape)
            return z
        raise NotProvedError(f"verify: there is no independent form of the activation {name!r}")


def read_network(path: str | os.PathLike[str]) -> NumpyNetwork:
    """Read a file that `lipcert.save` wrote, without safetensors and without torch.

    Raises:
        CheckpointError: no such file, or not one of a LipConvnet.
    """
    try:
        content = Path(path).read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        config = json.loads(header.pop("__metadata__")["lipcert"])["config"]
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            raw = np.frombuffer(content[start + begin : start + end], dtype=DTYPES[entry["dtype"]])
            if entry["dtype"] == "BF16":  # the upper half of a float32
                raw = (raw.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = raw.astype(np.float64).reshape(entry["shape"])
        _unpack(tensors)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not a network that lipcert.save wrote ({error})") from error
    return NumpyNetwork(config, tensors)


def _unpack(tensors: dict[str, Array]) -> None:
    """Put together the taps of a compact file: the upper triangle of the skew centre, then the others."""
    for name in [name for name in tensors if name.endswith(".taps")]:
        prefix, taps = name.removesuffix("taps"), tensors.pop(name)
        centre = np.zeros(taps.shape[1:])
        centre[np.triu_indices(len(centre), 1)] = tensors.pop(prefix + "centre")
        tensors[prefix + "weight"] = np.concatenate([(centre - centre.T)[None], taps])


def zero_padded(kernel: Array, height: int, width: int) -> Callable[[Array], Array]:
    """The map y[o, p] = sum over i, t of K[o, i, t] x[i, p + t - k // 2], as a matrix where that is small."""
    out_channels, in_channels, size, _ = kernel.shape
    reach = size // 2

    def direct(x: Array) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
        y = np.zeros((len(x), height, width, out_channels))
        for ty, tx in np.ndindex(size, size):
            y += np.moveaxis(padded[:, :, ty : ty + height, tx : tx + width], 1, 3) @ kernel[:, :, ty, tx].T
        return np.moveaxis(y, 3, 1)

    if in_channels * height * width > DENSE:
        return direct
    columns = np.eye(in_channels * height * width).reshape(-1, in_channels, height, width)
    matrix = direct(columns).reshape(len(columns), -1)
    return lambda x: (x.reshape(len(x), -1) @ matrix).reshape(len(x), out_channels, height, width)


def _start(*shape: int) -> Array:
    """The vector that SOC's power iteration starts from: part of the definition of its scale."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").numpy()
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float64)


def _settled(length: float, previous: float | None) -> bool:
    return previous is not None and abs(length - previous) <= 4 * float(np.finfo(np.float64).eps) * length


def operator_norm(apply: Callable[[Array], Array], shape: tuple[int, ...]) -> float:
    """Largest singular value of a skew map by power iteration, as far as SOC iterates."""
    vector, previous, length = _start(*shape), None, 0.0
    for _ in range(ITERATIONS):
        image = apply(vector)
        length = float(np.linalg.norm(image))
        if _settled(length, previous):
            break
        vector, previous = image / length, length
    return length


def reshape_norm(kernel: Array) -> float:
    """The smaller norm of the two matrix reshapes of a skew kernel, as far as SOC iterates."""
    c, size = kernel.shape[0], kernel.shape[-1]
    flat, square = kernel.reshape(c, -1), kernel.transpose(0, 2, 1, 3).reshape(c * size, c * size)
    starts = np.split(_start(c * size**2 + c * size) * math.sqrt(2), [c * size**2])
    norms = []
    for matrix, right in zip((flat, square), starts, strict=True):
        previous = None
        for _ in range(ITERATIONS):
            left = matrix @ right
            left = left / np.linalg.norm(left)
            image = matrix.T @ left
            length = float(np.linalg.norm(image))
            right = image / length
            if _settled(length, previous):
                break
            previous = length
        norms.append(float(left @ (matrix @ right)))
    return min(norms)


def polar(matrix: Array) -> Array:
    """The nearest matrix with orthonormal rows or columns."""
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray(left @ right)


def cayley(matrix: Any) -> Any:
    """[(I + A)^-1 (I - A); -2 V (I + A)^-1], A = U - U^H + V^H V, of [U; V]; a wide one by transposes."""
    if matrix.shape[0] < matrix.shape[1]:
        return cayley(matrix.T).T
    n = matrix.shape[1]
    u, v = matrix[:n], matrix[n:]
    a = u - u.conj().T + v.conj().T @ v
    inverse = np.linalg.inv(np.eye(n) + a)
    return np.concatenate([inverse @ (np.eye(n) - a), -2 * v @ inverse])


def rotation(weight: Array) -> Array:
    """exp(A / norm) for the skew part A of a matrix, by eigenvalues; norm as its layer estimates it."""
    skew = (weight - weight.T) / 2
    n, mean = len(skew), np.linalg.norm(skew) / math.sqrt(len(skew))
    if n < 2:
        return np.ones((1, 1))
    vectors: Array = torch.randn(
        n, min(8, n), dtype=torch.float64, device="cpu", generator=torch.Generator().manual_seed(0)
    ).numpy()
    for _ in range(12):
        vectors = np.linalg.qr(skew @ vectors / mean)[0]
    norm = max(float(np.linalg.norm(skew @ vectors, 2)), float(mean))
    values, basis = np.linalg.eigh(1j * skew / norm)
    return np.real((basis * np.exp(-1j * values)) @ basis.conj().T)


def _pairs(z: Array, parameters: Array) -> tuple[Array, Array, Array]:
    first, second = np.split(z, 2, axis=1)
    return first, second, parameters.reshape(*parameters.shape, *(1,) * (z.ndim - 2))


def reflect(z: Array, theta: Array) -> Array:
    """Corollary 1: pairs with v^T z <= 0 are reflected, v = (sin(theta / 2), -cos(theta / 2))."""
    first, second, theta = _pairs(z, theta)
    inner = np.sin(theta / 2) * first - np.cos(theta / 2) * second
    y1 = np.where(inner > 0, first, first * np.cos(theta) + second * np.sin(theta))
    y2 = np.where(inner > 0, second, first * np.sin(theta) - second * np.cos(theta))
    return np.concatenate([y1, y2], axis=1)


def sectors(z: Array, theta: Array, widths: Array) -> Array:
    """Theorem 2: the sector of a pair's angle decides on its matrix."""
    shares = np.exp(np.concatenate([widths, np.zeros_like(widths[:, :1])], axis=1))
    shares = np.pi * shares / shares.sum(axis=1, keepdims=True)
    angles = np.stack([shares[0], shares[1]], axis=1).reshape(
        -1, widths.shape[-1]
    )  # reflecting, turning, ...
    starts = np.concatenate([theta[None] / 2, theta / 2 + np.cumsum(angles, axis=0)[:-1]])
    first, second, _ = _pairs(z, theta)
    shape = (-1, *(1,) * (z.ndim - 2))
    phase = (np.arctan2(second, first) - starts[0].reshape(shape)) % (2 * np.pi)
    index = sum((phase >= (s - starts[0]).reshape(shape)).astype(int) for s in starts[1:])
    y1, y2 = first, second
    for i in range(len(starts)):
        alpha = 2 * sum((-1) ** j * starts[i - j] for j in range(i + 1))
        c, s, sign = np.cos(alpha).reshape(shape), np.sin(alpha).reshape(shape), (-1) ** i
        here = index == i
        y1 = np.where(here, c * first + s * second, y1)
        y2 = np.where(here, sign * (s * first - c * second), y2)
    return np.concatenate([y1, y2], axis=1)
