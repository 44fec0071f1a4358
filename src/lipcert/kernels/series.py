"""The polynomials p of SOC: which one runs where, and what is known of |p(iy)|.

The coefficients are computed once by `tools/make_series.py`; a test proves their bounds again from the
numbers that are checked in.
"""

from dataclasses import dataclass

from lipcert.kernels.series_table import TABLE


@dataclass(frozen=True)
class Series:
    """A real polynomial, for skew operators of norm at most `radius`.

    Attributes:
        coefficients: from the constant term up.
        radius: up to which |y| the statement about the modulus holds.
        modulus_error: | |p(iy)| - 1 | never exceeds this for |y| <= radius.
    """

    coefficients: tuple[float, ...]
    radius: float
    modulus_error: float


@dataclass(frozen=True)
class Family:
    """How SOC makes an orthogonal operator: the polynomials by kernel size, and the scale of their argument.

    Attributes:
        training: the polynomial of training mode for each kernel size.
        evaluation: the polynomial of evaluation mode.
        target: the norm that the skew operator is scaled to.
        by_operator_norm: whether that norm is the operator's own, or the smallest of its kernel's reshapes.
    """

    training: dict[int, Series]
    evaluation: dict[int, Series]
    target: dict[int, float]
    by_operator_norm: bool


def _series(name: str) -> Series:
    return Series(*TABLE[name])


def _isometric(name: str) -> Family:
    training, evaluation = _series(f"{name}_train"), _series(name)
    return Family(
        dict.fromkeys(SIZES, training),
        dict.fromkeys(SIZES, evaluation),
        # Power iteration ends a little below the norm: a twentieth of the interval is kept free for that.
        dict.fromkeys(SIZES, evaluation.radius / 1.05),
        by_operator_norm=True,
    )


SIZES = (1, 3, 5)
SERIES: dict[str, Family] = {
    "isometric": _isometric("isometric"),
    "wide": _isometric("wide"),
    "exponential": Family(
        {size: _series(f"exponential_train_{size}") for size in SIZES},
        {size: _series(f"exponential_{size}") for size in SIZES},
        # The operator's norm is at most k times the smallest norm of the kernel's reshapes.
        {1: 1.0, 3: 0.7, 5: 0.7},
        by_operator_norm=False,
    ),
}
