"""The cost of a round's local training in operations, and the geometry of its updates."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedrecall.client.batches import LocalPlan
from fedrecall.client.partial_sums import Contribution
from fedrecall.core.vector import FlatModel
from fedrecall.data.federation import Federation
from fedrecall.measure.live_round import LiveRound, Observer
from fedrecall.models.build import dry_batch, least_samples
from fedrecall.recipe.settings import Local


class Operations(TorchDispatchMode):
    """Counts arithmetic operations by torch's formulas, as FlopCounterMode does, but without loading torch's
    compiler, which takes a second or two."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=out))
        return out


def flops_per_sample(flat: FlatModel, federation: Federation) -> int:
    """Return the FLOPs of one sample's forward and backward pass: products, convolutions and attention.

    They are counted in eval mode, which does not change the model; training has the same ones.
    """
    x = dry_batch(federation, flat.w.dtype)
    was_training = flat.module.training
    with Operations() as counter:
        logits = flat.module.eval()(x)
        if logits.requires_grad:
            logits.sum().backward()
    flat.module.train(was_training)
    flat.g.zero_()
    total: int = counter.total
    return total // len(x)


class TrainingCost(Observer):
    """Measures the FLOPs of each round's local training and the geometry of its updates."""

    def __init__(self, local: Local, flat: FlatModel, federation: Federation, models: int = 1) -> None:
        self.local = local
        self.least = least_samples(flat.module)
        self.flops_per_sample = models * flops_per_sample(flat, federation)  # a client may train two models
        self._trained: Counter[tuple[int, int]] = Counter()  # clients by (samples, steps)

    def of_client(self, samples: int) -> int:
        """Return the FLOPs of a round's local training at a client with this many samples."""
        return self.flops_per_sample * LocalPlan.of(self.local, samples, self.least).samples_seen

    def before(self, live: LiveRound) -> None:
        self._trained.clear()

    def result(self, live: LiveRound, contribution: Contribution) -> None:
        self._trained.update(contribution.trained())

    def after(self, live: LiveRound) -> None:
        samples = sum(
            clients * LocalPlan.of(self.local, n, self.least, steps).samples_seen
            for (n, steps), clients in self._trained.items()
        )
        live.line["flops"] = self.flops_per_sample * samples
        live.line |= live.updates.metrics()
