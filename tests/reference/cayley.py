"""The Cayley transform by its definition, in numpy."""

import numpy as np
from numpy.typing import NDArray


def cayley(w: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Trockman and Kolter, section 4: (I + A)^-1 (I - A), with the rows below for a tall matrix."""
    rows, columns = w.shape
    if rows < columns:
        return cayley(w.T).T
    u, v = w[:columns], w[columns:]
    identity = np.eye(columns)
    a = u - u.conj().T + v.conj().T @ v
    inverse = np.linalg.inv(identity + a)
    return np.concatenate([inverse @ (identity - a), -2 * v @ inverse])
