"""Two interleaved spirals, and a network that tells them apart."""

import math

import torch
from torch import nn
from torch.utils.data import TensorDataset


def spirals(samples: int) -> TensorDataset:
    """Points of the plane and the arm that each one belongs to, the same ones every time."""
    chance = torch.Generator().manual_seed(0)
    arm = torch.randint(0, 2, (samples,), generator=chance)
    radius = torch.rand(samples, generator=chance).sqrt()
    angle = 3 * math.pi * radius + math.pi * arm
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(points + 0.02 * torch.randn(samples, 2, generator=chance), arm)


def network(width: int = 64) -> nn.Module:
    """Its dropout draws random numbers, as most models do in training."""
    return nn.Sequential(
        nn.Linear(2, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(0.05),
        nn.Linear(width, 2),
    )
