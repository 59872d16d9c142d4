"""What both towers are made of, and the numbers of their answers."""
import torch
from torch import nn

NUMBERS = ["Zero", "One", "Two", "Three", "Four", "Five", "Six"]


def rms_norm(x, weight=None, eps=1e-6):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight).to(x.dtype)


class Norm(nn.Module):
    def __init__(self, size, value=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), value))

    def forward(self, x):
        return rms_norm(x, self.weight)


class Inner(nn.Module):
    """A matrix under the name that a clipped one has."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        nn.init.normal_(self.linear.weight, std=inputs ** -0.5)

    def forward(self, x):
        return self.linear(x)


class Embedder(nn.Module):
    """Rows of a tower -> soft tokens, of the text model's width"""

    def __init__(self, width, text_width, soft_rms):
        super().__init__()
        self.embedding_projection = nn.Linear(width, text_width, bias=False)
        nn.init.normal_(self.embedding_projection.weight, std=soft_rms * width ** -0.5)

    def forward(self, rows):
        return self.embedding_projection(rms_norm(rows)).float()
