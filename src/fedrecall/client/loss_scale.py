"""The factor that keeps float16 gradients from vanishing."""

from __future__ import annotations

FIRST = 2.0**12
GROWS_AFTER = 2000  # good steps, as torch's own scaler does


class LossScale:
    """Float16 holds nothing below 6e-8: the loss is multiplied by this before the backward pass, and the gradient
    divided by it after. Where something overflows, the scale is halved and the same batch taken again, so that no
    step is lost. It is a power of two, so that it rounds nothing; each client begins with the same one."""

    def __init__(self) -> None:
        self.value, self._good = FIRST, 0

    def overflowed(self) -> bool:
        """Halve it; False if it cannot be smaller, because the model itself overflows."""
        self._good = 0
        if self.value <= 1:
            return False
        self.value /= 2
        return True

    def held(self) -> None:
        """A step was finite."""
        self._good += 1
        if self._good == GROWS_AFTER:
            self.value, self._good = self.value * 2, 0
