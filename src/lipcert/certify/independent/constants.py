"""Lipschitz constants of a proved network, derived without a look at those that its file states.

Matrices and circular convolutions: see `norms`. Zero-padded ones: see `convolution`. Polynomials of skew
operators: see `skew`. A gradient step x - V^T relu(V x + b) has the Jacobian I - V^T S V, S between 0 and 1,
and so the constant max(1, ||V||^2 - 1). Pooling: see `pointwise`. Activations and rearrangements have
constant 1 in exact arithmetic, most functions of one number too.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lipcert.certify.independent.convolution import convolution_norm_bound, same_size
from lipcert.certify.independent.norms import UNIT, UP, circular_norm_bound, norm_bound
from lipcert.certify.independent.pointwise import pool_bound
from lipcert.certify.independent.skew import modulus_bound, skew_norm_bound, skew_taps
from lipcert.certify.independent.tree import SLOPES, Array, Combinator, Leaf, Network, Node


@dataclass(frozen=True)
class Constants:
    """What was derived.

    Attributes:
        leaves: Lipschitz constant of every operator.
        operator_norms: bound on ||A|| where the operator is a polynomial, or a gradient step, of A, else the
            same constant.
        lipschitz: from pixels to the features in front of the last matrix.
        pairs: (K, K), from pixels to the differences of two logits.
    """

    leaves: tuple[float, ...]
    operator_norms: tuple[float, ...]
    lipschitz: float
    pairs: Array


def derive_constants(network: Network) -> Constants:
    """Upper bounds on all constants that a certificate needs."""
    with np.errstate(all="ignore"):
        found = [_leaf(leaf) for leaf in network.leaves]
        leaves = [bound for bound, _ in found]
        features = _features(network.tree, leaves)
        pairs = _pairs(network.tree, leaves, len(network.classes))
    return Constants(tuple(leaves), tuple(norm for _, norm in found), features, pairs)


def _leaf(leaf: Leaf) -> tuple[float, float]:
    """The constant of an operator, and the norm of what it is a polynomial of."""
    v = leaf.values
    if leaf.kind == "SkewPolynomial":
        norm = skew_norm_bound(skew_taps(v), *leaf.input_shape[1:])
        try:
            return modulus_bound(v["coefficients"], norm), norm
        except OverflowError:
            return math.inf, norm
    if leaf.kind == "GradientStep":
        norm = convolution_norm_bound(same_size(v["kernel"]), leaf.input_shape[1:])
        return max(1.0, (norm * norm - 1) * UP), norm
    bound = 1.0
    if leaf.kind == "ChannelAffine":
        bound = float((1 / np.abs(v["std"])).max()) * UP
    elif leaf.kind == "Matrix":
        bound = norm_bound(v["weight"][None])
    elif leaf.kind in ("CircularConvolution", "TransposedConvolution"):
        kernels = np.split(v["kernel"], v["groups"])
        # An adjoint has the norm of the convolution, whose input is the output here.
        larger = v["stride"] if leaf.kind == "TransposedConvolution" else 1
        height, width = (larger * side for side in leaf.input_shape[1:])
        bound = max(circular_norm_bound(k, height, width, v["stride"], v["dilation"]) for k in kernels)
    elif leaf.kind == "Convolution":
        bound = convolution_norm_bound(v, leaf.input_shape[1:])
    elif leaf.kind == "Elementwise":
        bound = max(SLOPES[v["function"]], abs(v["slope"]))
    elif leaf.kind == "Repeat":
        bound = math.sqrt(math.prod(v["block"])) * UP
    elif leaf.kind == "Pool":
        bound = pool_bound(v, leaf.input_shape[1:])
    elif leaf.kind == "SpectralConvolution":
        s = v["spectrum"]
        bound = norm_bound(s[..., 0] + 1j * s[..., 1] if s.ndim == 4 else s)
    return bound, bound


def _lipschitz(node: Node, leaves: list[float]) -> float:
    if isinstance(node, Leaf):
        return leaves[node.number]
    parts = [_lipschitz(part, leaves) for part in node.parts]
    if node.kind == "Sequence":
        return math.prod(parts) * UP ** len(parts)
    if node.kind == "WeightedSum":
        return sum(abs(w) * part for w, part in zip(node.weights, parts, strict=True)) * UP
    slices = [_first_slice(part) for part in node.parts]
    # Parts that read slices without a common channel: the squares of the slices' changes add up to the whole.
    ends = sorted(found for found in slices if found)
    if len(ends) == len(parts) and all(a[1] <= b[0] for a, b in pairwise(ends)):
        return max(parts)
    return math.hypot(*parts) * UP


def _first_slice(node: Node) -> tuple[int, int] | None:
    """First and last channel, plus one, of what a node reads, if it begins with a slice."""
    while not isinstance(node, Leaf):
        if node.kind != "Sequence" or not node.parts:
            return None
        node = node.parts[0]
    return (node.values["start"], node.values["stop"]) if node.kind == "ChannelSlice" else None


def _before_the_last(node: Combinator, leaves: list[float]) -> float:
    return math.prod(_lipschitz(part, leaves) for part in node.parts[:-1]) * UP ** len(node.parts)


def _features(node: Node, leaves: list[float]) -> float:
    """From the input to what enters the last matrix."""
    if isinstance(node, Leaf):
        return 1.0 if node.kind == "Matrix" else leaves[node.number]
    if node.kind == "Sequence" and node.parts:
        return _before_the_last(node, leaves) * _features(node.parts[-1], leaves) * UP
    if node.kind == "WeightedSum":
        parts = [_features(part, leaves) for part in node.parts]
        return sum(abs(w) * part for w, part in zip(node.weights, parts, strict=True)) * UP
    return _lipschitz(node, leaves)


def _pairs(node: Node, leaves: list[float], count: int) -> Array:
    """(K, K): constants of the differences of two outputs, sqrt(2) L unless more is known."""
    if isinstance(node, Leaf) and node.kind == "Matrix":
        rows = node.values["weight"]
        distances = np.array([np.sqrt(((rows - row) ** 2).sum(axis=1)) for row in rows])
        apart = distances * (1 + (rows.shape[1] + 8) * 2 * UNIT) + rows.shape[1] * 2.0**-510
        return np.asarray(apart * (1 - np.eye(count)))
    if not isinstance(node, Leaf) and node.kind == "Sequence" and node.parts:
        return np.asarray(_pairs(node.parts[-1], leaves, count) * _before_the_last(node, leaves) * UP)
    if not isinstance(node, Leaf) and node.kind == "WeightedSum":
        parts = [_pairs(part, leaves, count) for part in node.parts]
        return np.asarray(sum(abs(w) * part for w, part in zip(node.weights, parts, strict=True)) * UP)
    return np.asarray(math.sqrt(2) * _lipschitz(node, leaves) * UP * (1 - np.eye(count)))
