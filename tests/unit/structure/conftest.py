"""Fixtures of the tests of surgery."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.surgery import randomise, train_once
from tests.unit.structure.sample import Model, image


@pytest.fixture
def model() -> nn.Module:
    """Half in training and half in evaluation mode, one layer frozen, gradients present."""
    model = randomise(Model(), 0)
    train_once(model, image(dtype=torch.float64))
    model.bn1.eval()
    model.conv2.requires_grad_(False)
    return model
