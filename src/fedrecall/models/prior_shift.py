"""A trained model with shifted logits, which adapt it to other class shares than those of its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class ShiftedModel(nn.Module):
    """A model and a shift of its logits, for models whose last layer has no bias to add it to."""

    shift: Tensor

    def __init__(self, model: nn.Module, shift: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("shift", shift)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.model(*inputs, **options) + self.shift


def with_shift(model: nn.Module, shift: Tensor, sample_shape: Sequence[int]) -> nn.Module:
    """Return the model in eval mode with the shift in its last layer's bias or, without a bias, in a wrapper."""
    model.eval()
    last = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.bias is not None]
    if not last or last[-1].out_features != len(shift):
        return ShiftedModel(model, shift)
    bias, before = last[-1].bias, log_probabilities(model, sample_shape)
    with torch.no_grad():
        kept = bias.clone()
        bias.add_(shift)
        after = log_probabilities(model, sample_shape)
        if before is None or after is None or not moved_by(shift, before, after):  # not the model's last layer
            bias.copy_(kept)
            return ShiftedModel(model, shift)
    return model


@torch.no_grad()
def log_probabilities(model: nn.Module, sample_shape: Sequence[int]) -> Tensor | None:
    """Return the log probabilities of a dummy batch; None if the model takes none."""
    shape = torch.Size((4, *sample_shape))
    for batch in (torch.linspace(-1, 1, shape.numel()).view(shape), torch.ones(shape, dtype=torch.int64)):
        try:
            logits = model(batch)
        except (RuntimeError, IndexError, TypeError):
            continue
        return logits.double().log_softmax(-1) if isinstance(logits, Tensor) and logits.dim() == 2 else None
    return None


def moved_by(shift: Tensor, before: Tensor, after: Tensor) -> bool:
    expected = (before + shift.double()).log_softmax(-1)
    return expected.shape == after.shape and torch.allclose(after, expected, rtol=0, atol=1e-4)
