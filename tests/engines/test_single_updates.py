"""Who wants to see each client's update gets it on every engine, with tensors of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import FedAvg, Federation, Iid, Local, federate
from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps
from fedrecall.client.update import Update
from fedrecall.core.vector import Tensors
from fedrecall.measure.watcher import Round, Watcher

ENGINES = ["serial", "processes", "vectorised"]


@pytest.fixture(scope="module")
def federation() -> Federation:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(400, 6)).astype(np.float32), random.integers(0, 3, 400)
    return Federation.from_arrays(x, y, partition=Iid(clients=40, validation=0.2))


def train(federation: Federation, out: Path, **settings: Any) -> Any:
    torch.manual_seed(0)
    rest = {"rounds": 2, "participation": 1.0, "local": Local(epochs=1, batch_size=4, lr=0.1), "workers": 2}
    if settings.get("engine") == "serial":
        rest["workers"] = 1
    return federate(nn.Linear(6, 3), federation, out=out, progress=False, **{**rest, **settings})


class Halved:
    """A mixin that halves the gradient."""

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        g.mul_(0.5)


class Negated:
    """A mixin that sends minus the model."""

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        return {"w": -y}, {}


class HalvedFedAvg(Halved, Algorithm):
    pass


class NegatedFedAvg(Negated, FedAvg):
    pass


@pytest.mark.parametrize("algorithm", [HalvedFedAvg, NegatedFedAvg])
def test_what_a_mixin_overrides_counts_on_vectorised_too(algorithm, federation, tmp_path) -> None:
    weights = {
        engine: train(federation, tmp_path / engine, algorithm=algorithm(), engine=engine).model().weight
        for engine in ("serial", "vectorised")
    }
    torch.testing.assert_close(weights["vectorised"], weights["serial"], rtol=1e-4, atol=1e-5)


def test_traits_follow_what_is_overridden() -> None:
    assert HalvedFedAvg.corrects
    assert not NegatedFedAvg.sends_models
    assert not FedAvg.corrects


class Keeps(Watcher):
    """Keeps the model of every client."""

    def __init__(self) -> None:
        self.models: dict[tuple[int, int], Tensor] = {}

    def result(self, round: Round, result: Any) -> None:
        assert isinstance(result, Update)
        self.models[round.number, result.task.client] = result.sent["w"]


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.usefixtures("warm_workers")
def test_kept_models_stay_the_clients(engine, federation, tmp_path) -> None:
    """`auto` is `vectorised` for so many clients of such a model."""
    kept, copied = Keeps(), {}

    class Copies(Watcher):
        def result(self, round: Round, result: Any) -> None:
            copied[round.number, result.task.client] = result.sent["w"].clone()

    run = train(federation, tmp_path / "run", engine=engine, callbacks=[kept, Copies()])
    assert run.summary["engine"] == ("vectorised" if engine == "auto" else engine)
    assert len(kept.models) == 80
    assert all(torch.equal(kept.models[key], copied[key]) for key in copied)
