"""Batches ready for a model: gathered, moved to its device, normalised and augmented."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrecall.backend.device import CPU, Device, to_device
from fedrecall.data.federation import Federation
from fedrecall.data.samples import Samples
from fedrecall.data.transform import Generators, Images, Plain
from fedrecall.models.build import model_input

EVERYWHERE = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
}


class BatchLoader:
    """A federation's samples for a model of one precision on one device.

    All samples of a source are moved at once if they fit, else batch by batch. Normalisation and augmentation run
    on the device, with random numbers drawn on the CPU.
    """

    def __init__(self, federation: Federation, dtype: torch.dtype, device: Device = CPU) -> None:
        self.federation, self.dtype, self.device = federation, dtype, device
        self._there: dict[Samples, tuple[Tensor, Tensor] | None] = {}  # None if it does not fit

    def __call__(self, source: Samples, positions: Tensor, augment: Generators = None) -> tuple[Tensor, Tensor]:
        """Return the samples at these positions and their labels."""
        x, target = source.gather(positions) if self.device.is_cpu else self._gather(source, positions)
        return model_input(self.federation.transform(x, augment), self.dtype), target

    def stored(self, source: Samples, positions: Tensor, augment: Generators = None) -> tuple[Tensor, Tensor]:
        """Return images as the bytes that they are stored as, augmented but not normalised, and their labels."""
        x, target = source.gather(positions)
        transform = self.federation.transform
        assert isinstance(transform, Images)
        return transform.augmented(x, augment), target

    def _gather(self, source: Samples, positions: Tensor) -> tuple[Tensor, Tensor]:
        if source not in self._there:
            self._there[source] = self._sent_whole(source)
        whole = self._there[source]
        if whole is None:
            x, target = source.gather(positions)
            return to_device(castable(x), self.device), to_device(target, self.device)
        there = to_device(positions, self.device)
        return whole[0].index_select(0, there), whole[1].index_select(0, there)

    def _sent_whole(self, source: Samples) -> tuple[Tensor, Tensor] | None:
        if not self.device.has_room(source.x.nbytes + source.y.nbytes):
            return None
        x, target = source.whole()
        return castable(x).to(self.device.torch), target.to(self.device.torch)


def castable(x: Tensor) -> Tensor:
    """Return the samples in a dtype that every device supports."""
    return x if x.dtype in EVERYWHERE else Plain()(x)
