"""Last layers, each with its margin rule: how far features may move before the class can change."""

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipcert.errors import ArgumentError, check_positive
from lipcert.kernels import margins
from lipcert.nn.bias import copied_bias, new_bias
from lipcert.nn.composition import Mirrored
from lipcert.nn.contract import LipschitzModule, register_head
from lipcert.nn.linear import OrthogonalLinear
from lipcert.nn.wrappers import unwrap
from lipcert.operators.linear import Matrix
from lipcert.operators.operator import Shape


class Head(LipschitzModule):
    """A linear map from features to logits, with the distances between its rows.

    The law: for features z and z', |(f_i - f_j)(z) - (f_i - f_j)(z')| <= pair_distances()[i, j] * ||z - z'||
    up to the head's stated orthogonality. What is proved is proved of the matrix that it freezes to.

    Args:
        in_features: length of the feature vector.
        num_classes: number of logits.
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        check_positive(in_features=in_features, num_classes=num_classes)
        self.in_features, self.num_classes = in_features, num_classes

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Map features (N, in_features), already checked, to logits (N, num_classes)."""

    @abstractmethod
    def pair_distances(self) -> Tensor:
        """(K, K): ||W_i - W_j|| of the rows that multiply the features, differentiable in the weights."""

    def certificate(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Signed certificate of each label, min over i != l of (f_l - f_i) / ||W_l - W_i||; differentiable.

        In units of the features: for inputs, divide by the Lipschitz constant of what is in front of the
        head. Infinite if there is one class; 0 for a tie.

        Args:
            logits: (N, num_classes), as this head returned them.
            labels: (N,), integer classes.
        """
        return margins.certificate(logits, labels, self.pair_distances())

    def forward(self, x: Tensor) -> Tensor:
        """Map features (N, in_features) to logits (N, num_classes)."""
        if x.dim() != 2:
            raise ArgumentError(
                f"{type(self).__name__}: expected a batch of vectors (N, D), got shape {tuple(x.shape)}"
            )
        self.output_shape(tuple(x.shape[1:]))
        return self.logits(x)

    def output_shape(self, input_shape: Shape) -> Shape:
        """(num_classes,); raises if the features are not a vector of in_features."""
        if input_shape != (self.in_features,):
            raise ArgumentError(
                f"{type(self).__name__}: expected vectors of {self.in_features} features, "
                f"got shape {tuple(input_shape)}"
            )
        return (self.num_classes,)

    def extra_repr(self) -> str:
        """The sizes, in the form of `nn.Linear`."""
        return f"{self.in_features}, {self.num_classes}"


class ConstantHead(Head):
    """Linear head with fixed rows, whatever they are: Proposition 1 takes their true distances.

    For any linear last layer that is not trained.

    Args:
        weight: (num_classes, in_features); copied.
        bias: (num_classes,) or None; copied.

    >>> head = ConstantHead(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), None)
    >>> head.certificate(torch.tensor([[2.0, -8.0]]), torch.tensor([0]))
    tensor([2.])
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        if weight.dim() != 2:
            raise ArgumentError(
                f"weight: expected (num_classes, in_features), got shape {tuple(weight.shape)}"
            )
        super().__init__(weight.shape[1], weight.shape[0])
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ArgumentError(f"bias: expected {weight.shape[0]} numbers, got shape {tuple(bias.shape)}")
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("bias", copied_bias(bias))

    def logits(self, x: Tensor) -> Tensor:
        """W x + b."""
        return F.linear(x, self.weight, self.bias)

    def pair_distances(self) -> Tensor:
        """Distances between the rows."""
        return margins.pair_distances(self.weight)

    def freeze(self, input_shape: Shape) -> Matrix:
        """The rows and biases."""
        self.output_shape(input_shape)
        return Matrix(self.weight.clone(), copied_bias(self.bias))


class NormalizedLinear(Head):
    r"""Last Layer Normalization (LLN): a linear layer with unit rows, f_i(z) = W_i z / ||W_i|| + b_i.

    The rows may point anywhere; the certificate takes their true distances instead of orthogonality. A row of
    zeros stays zero (rows shorter than 1e-12 are not stretched to unit length), and its certificates stay
    right, since distances are those of the rows that run.

    Guarantee: a Lipschitz constant between 1 and about sqrt(num_classes); certificates take the distances.

    Args:
        in_features: length of the feature vector.
        num_classes: number of logits.
        bias: add a learnable bias per class, uniform in +-1/sqrt(in_features) at first.

    Shape:
        (N, in_features) -> (N, num_classes)

    >>> head = NormalizedLinear(4, 3)
    >>> head.normalized_weight().norm(dim=1).round(decimals=4).tolist()
    [1.0, 1.0, 1.0]

    Paper: section "Last Layer Normalization", Proposition 1.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes)
        limit = in_features**-0.5
        weight = torch.empty(num_classes, in_features, device=device, dtype=dtype).uniform_(-limit, limit)
        self.weight = nn.Parameter(weight)
        self.bias = new_bias(num_classes, limit, device, dtype) if bias else None

    def normalized_weight(self) -> Tensor:
        """The rows that multiply the features, each of unit norm."""
        return F.normalize(self.weight, dim=1)

    def logits(self, x: Tensor) -> Tensor:
        """W x + b with normalised rows."""
        return F.linear(x, self.normalized_weight(), self.bias)

    def pair_distances(self) -> Tensor:
        """Distances between the normalised rows."""
        return margins.pair_distances(self.normalized_weight())

    def freeze(self, input_shape: Shape) -> Matrix:
        """The normalised rows."""
        self.output_shape(input_shape)
        return Matrix(self.normalized_weight().detach(), copied_bias(self.bias))

    def extra_repr(self) -> str:
        """The arguments, in the form of `nn.Linear`."""
        return super().extra_repr() if self.bias is not None else f"{super().extra_repr()}, bias=False"


class OrthogonalHead(Head):
    r"""Head with orthonormal rows, so that every pair of classes is sqrt(2) apart.

    With more classes than features the columns are orthonormal instead; ||W^T (e_i - e_j)|| <= sqrt(2) still
    holds, and so does every certificate.

    Guarantee: rows sqrt(2) apart, up to their rounding, which certificates count.

    Args:
        in_features: length of the feature vector.
        num_classes: number of logits.
        method: how the rows are kept orthonormal: "soc", "bjorck" or "cayley".
        bias: add a learnable bias per class.
        device, dtype: of the parameters.

    Shape:
        (N, in_features) -> (N, num_classes)
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        method: str = "soc",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes)
        self.linear = OrthogonalLinear(
            in_features, num_classes, method=method, bias=bias, device=device, dtype=dtype
        )

    def logits(self, x: Tensor) -> Tensor:
        """The orthogonal linear map."""
        return self.linear(x)  # type: ignore[no-any-return]

    def pair_distances(self) -> Tensor:
        """sqrt(2) off the diagonal."""
        parameter = next(self.linear.parameters())
        ones = torch.ones(self.num_classes, self.num_classes, device=parameter.device, dtype=parameter.dtype)
        return (ones * math.sqrt(2)).fill_diagonal_(0)

    def freeze(self, input_shape: Shape) -> Matrix:
        """The orthonormal rows."""
        return self.linear.freeze(input_shape)


def find_head(model: nn.Module) -> Head:
    """The head that a network ends in, with its live parameters; also inside DDP, fabric or torch.compile.

    Raises:
        ArgumentError: the model does not end in a head, so that no margin rule is known for it.
    """
    model = unwrap(model)
    if isinstance(model, Mirrored):  # a mean of logits of one head
        return find_head(model.model)
    last = next(reversed(model._modules.values()), None) if isinstance(model, nn.Sequential) else None
    if isinstance(last, Head):
        return last
    ending = "" if last is None else f" ending in {type(last).__name__}"
    raise ArgumentError(
        "model: expected an nn.Sequential that ends in a head (NormalizedLinear, OrthogonalHead), "
        f"got {type(model).__name__}{ending}"
    )


register_head("lln", NormalizedLinear)
register_head("orthogonal", OrthogonalHead)
