"""Loss scaling, which keeps float16 gradients from vanishing."""

from __future__ import annotations

FIRST = 2.0**12
GROWS_AFTER = 2000  # finite steps, as in torch's GradScaler


class LossScale:
    """Multiplies the loss before the backward pass and divides the gradient after it: float16 holds nothing below
    6e-8. On overflow the scale is halved and the batch repeated, so no step is lost. The scale is a power of two,
    which rounds nothing, and is the same for all clients at first."""

    def __init__(self) -> None:
        self.value, self._good = FIRST, 0

    def overflowed(self) -> bool:
        """Halve the scale; return False if it is 1 already, because then the model itself overflows."""
        self._good = 0
        if self.value <= 1:
            return False
        self.value /= 2
        return True

    def held(self) -> None:
        """Count a finite step; double the scale after `GROWS_AFTER` of them."""
        self._good += 1
        if self._good == GROWS_AFTER:
            self.value, self._good = self.value * 2, 0
