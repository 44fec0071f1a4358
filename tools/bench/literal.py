"""The baseline: the paper's network as its description reads, with no thought of speed.

Written here from the paper's text and the facts it leaves out. Never used outside benchmarks and tests.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TRAINING_TERMS, EVALUATION_TERMS = 5, 12
WIDTH = 32
"""Channels of the first stage of every network that is timed."""


class LiteralSOC(nn.Module):
    """Skew orthogonal convolution: full kernel, four power iterations by broadcast products, Taylor terms.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: side of the kernel.
        stride: 1 or 2.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__()
        c = max(stride**2 * in_channels, out_channels)
        self.channels, self.out_channels, self.kernel_size, self.stride = c, out_channels, kernel_size, stride
        self.weight = nn.Parameter(torch.randn(c, c, kernel_size, kernel_size) / math.sqrt(c))
        bound = 1 / math.sqrt(out_channels)
        self.bias = nn.Parameter(torch.empty(out_channels).uniform_(-bound, bound))
        self.steps = 0
        k = kernel_size
        # One (left, right) pair for each way to read the kernel as a matrix; the axes that a vector lacks
        # are 1.
        shapes = [
            ((c, 1, k, 1), (1, c, 1, k)),
            ((c, 1, 1, k), (1, c, k, 1)),
            ((c, 1, k, k), (1, c, 1, 1)),
            ((c, 1, 1, 1), (1, c, k, k)),
        ]
        for index, (left, right) in enumerate(shapes):
            self.register_buffer(f"left{index}", F.normalize(torch.randn(left).flatten(), dim=0).view(left))
            self.register_buffer(
                f"right{index}", F.normalize(torch.randn(right).flatten(), dim=0).view(right)
            )

    def norm(self, kernel: Tensor) -> Tensor:
        """Smallest of the four reshapes' norms; one iteration a training step, fifty every two hundred."""
        norms = []
        iterations = 0 if not self.training else 50 if self.steps % 200 == 0 else 1
        for index in range(4):
            left, right = getattr(self, f"left{index}"), getattr(self, f"right{index}")
            with torch.no_grad():
                for _ in range(iterations):
                    product = (kernel * right).sum([d for d in range(4) if left.shape[d] == 1], keepdim=True)
                    left.copy_(product / product.norm())
                    product = (kernel * left).sum([d for d in range(4) if right.shape[d] == 1], keepdim=True)
                    right.copy_(product / product.norm())
            norms.append((kernel * left.clone() * right.clone()).sum())
        self.steps += int(self.training)
        return torch.stack(norms).min()

    def forward(self, x: Tensor) -> Tensor:
        """exp(A) x by its Taylor series."""
        if self.stride == 2:
            x = F.pixel_unshuffle(x, 2)
        kernel = (self.weight - self.weight.transpose(0, 1).flip(2, 3)) / 2
        kernel = (0.7 if self.kernel_size > 1 else 1.0) * kernel / self.norm(kernel)
        x = F.pad(x, (0, 0, 0, 0, 0, self.channels - x.shape[1]))
        term, total = x, x
        for i in range(1, (TRAINING_TERMS if self.training else EVALUATION_TERMS) + 1):
            term = F.conv2d(term, kernel, padding=self.kernel_size // 2) / i
            total = total + term
        return total[:, : self.out_channels] + self.bias.view(1, -1, 1, 1)


class LiteralMaxMin(nn.Module):
    """MaxMin of the two halves of the channels."""

    def forward(self, x: Tensor) -> Tensor:
        """(max, min) of each pair."""
        a, b = x.chunk(2, dim=1)
        return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim=1)


class LiteralHouseholder(nn.Module):
    """Householder activation of order 1, by its definition."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full((1, channels // 2, 1, 1), math.pi / 2))

    def forward(self, x: Tensor) -> Tensor:
        """The two cases of the definition, then a choice between them."""
        a, b = x.chunk(2, dim=1)
        inside = a * torch.sin(self.theta / 2) - b * torch.cos(self.theta / 2) > 0
        cos, sin = torch.cos(self.theta), torch.sin(self.theta)
        return torch.cat(
            [torch.where(inside, a, a * cos + b * sin), torch.where(inside, b, a * sin - b * cos)], dim=1
        )


class LiteralHead(nn.Module):
    """Last layer normalization."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits with every row of the weight at unit norm."""
        return F.linear(x.flatten(1), F.normalize(self.linear.weight, dim=1), self.linear.bias)


def literal_lipconvnet(depth: int, num_classes: int) -> nn.Sequential:
    """LipConvnet of the paper for 32x32 images that are already normalised."""
    layers: list[nn.Module] = []
    channels, blocks = 3, depth // 5
    for stage in range(5):
        for block in range(blocks):
            last = block == blocks - 1
            out = WIDTH * 2 ** (stage + 1) if last else WIDTH * 2**stage
            kernel = 1 if last and stage == 4 else 3
            layers.append(LiteralSOC(channels, out, kernel, stride=2 if last else 1))
            layers.append(LiteralHouseholder(out))
            channels = out
    return nn.Sequential(*layers, LiteralHead(channels, num_classes))
