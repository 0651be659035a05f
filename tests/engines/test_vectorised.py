"""The vectorised engine comes to what the serial one does, up to rounding, or says why it does not run."""

from __future__ import annotations

import itertools
import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedrecall import (
    GMA,
    WSM,
    Centralised,
    CrossEntropy,
    FedAdam,
    FedAvg,
    FedCurv,
    FedDyn,
    Federation,
    FedExP,
    FedNova,
    FedNTD,
    FedProx,
    FedVLS,
    Images,
    InputError,
    Local,
    LocalOnly,
    Moon,
    Scaffold,
    federate,
)
from fedrecall.client.job import Job
from fedrecall.core.labels import Labels
from fedrecall.core.vector import Tensors
from fedrecall.engines.auto import choose_engine
from fedrecall.engines.vectorised import CLIENTS
from fedrecall.recipe.settings import Execution

SIZES = [20, 30, 9, 40, 8, 20, 20]


def federation(sizes=SIZES, images: bool = False) -> Federation:
    random = np.random.default_rng(0)
    clients = []
    for k, n in enumerate(sizes):
        y = random.integers(0, 4, n) if k != 2 else np.full(n, 3)  # one client with one class
        if images:
            x = random.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)
        else:
            x = random.normal(size=(n, 12)).astype(np.float32) + y[:, None] * 0.3
        clients.append((x, y))
    transform = Images((0.5,) * 3, (0.25,) * 3, crop_padding=2, flip=True) if images else None
    return Federation.from_clients(clients, num_classes=4, validation=0.1, transform=transform, layout="nhwc")


def dense(norm: str = "none") -> nn.Module:
    torch.manual_seed(0)
    middle = {"none": nn.Identity(), "batch": nn.BatchNorm1d(10), "layer": nn.LayerNorm(10)}[norm]
    return nn.Sequential(nn.Linear(12, 10), middle, nn.Tanh(), nn.Linear(10, 4))


def both(tmp_path, model, data, **settings) -> float:
    """The largest difference of the weights and statistics that the two engines come to."""
    options = {
        "rounds": 3, "clients_per_round": 5, "objective": WSM(), "seed": 3,
        "local": Local(epochs=2, batch_size=8, lr=0.1, momentum=0.9),
    }  # fmt: skip
    runs = [
        federate(model, data, out=tmp_path / engine, engine=engine, **options | settings)
        for engine in ("serial", "vectorised")
    ]
    for ours, theirs in zip(runs[0].metrics, runs[1].metrics):
        assert ours["clients"] == theirs["clients"]
        assert ours["bytes_up"] == theirs["bytes_up"]
        assert ours["flops"] == theirs["flops"]
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-4)
    if not (runs[0].path / "model.safetensors").exists():
        return abs(runs[0].metrics[-1]["val_accuracy"] - runs[1].metrics[-1]["val_accuracy"])
    first, second = (load_file(run.path / "model.safetensors") for run in runs)
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


def test_both_know_the_labels_of_the_validation_data_where_beta_is_from_them(tmp_path) -> None:
    local = Local(epochs=2, batch_size=8, lr=0.1, beta_from="train+validation")
    assert both(tmp_path, dense(), federation(), local=local) < 1e-5


def pairs(norms: list[str], *parts: object) -> list[object]:
    """Each norm with each part: in turns they are quick, the others slow."""
    return [
        pytest.param(
            part, norm, id=f"{norm}-{type(part).__name__}", marks=() if p % len(norms) == n else pytest.mark.slow
        )
        for (n, norm), (p, part) in itertools.product(enumerate(norms), enumerate(parts))
    ]


ALGORITHMS = FedAvg(), FedProx(), Scaffold(), FedNova(), FedAdam(), FedDyn(), FedExP(), GMA(), FedCurv(), LocalOnly()
OBJECTIVES = CrossEntropy(), WSM(smoothing=0.01, distill=0.3), FedNTD(), FedVLS()


@pytest.mark.parametrize(("algorithm", "norm"), pairs(["batch", "none"], *ALGORITHMS))  # with buffers, and without
def test_every_algorithm_comes_to_the_same(algorithm, norm, tmp_path) -> None:
    # GMA looks at signs: a coordinate that rounding alone moves may turn its mask
    close = 1e-3 if isinstance(algorithm, GMA) else 1e-5
    assert both(tmp_path, dense(norm), federation(), algorithm=algorithm) < close


@pytest.mark.parametrize(("objective", "norm"), pairs(["none", "batch", "layer"], *OBJECTIVES))
def test_every_objective_and_norm_comes_to_the_same(objective, norm, tmp_path) -> None:
    assert both(tmp_path, dense(norm), federation(), objective=objective) < 1e-5


@pytest.mark.parametrize(
    "local",
    [
        Local(epochs=2, batch_size=8, lr=0.05, partial_batch="keep"),
        Local(steps=7, batch_size=8, lr=0.05),
        Local(epochs=1, batch_size=64, lr=0.05),
        Local(epochs=1, batch_size=8, lr=0.05, schedule={"name": "step", "factor": 0.5, "every": 1}),
    ],
    ids=["keep", "steps", "whole", "schedule"],
)
def test_unequal_sizes_and_steps_come_to_the_same(local, tmp_path) -> None:
    # Not batch norm: over a last batch of two samples it blows every rounding up.
    assert both(tmp_path, dense("layer"), federation(), local=local) < 1e-5


def test_augmented_images_come_to_the_same(tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    assert both(tmp_path, model, federation(images=True)) < 1e-5


def test_probes_and_local_statistics_work(tmp_path) -> None:
    run = federate(
        dense("batch"), federation(), engine="vectorised", out=tmp_path / "run", rounds=2, participation=1.0,
        forgetting={"every": 1}, batch_norm="local", local=Local(epochs=1, batch_size=8, lr=0.1),
    )  # fmt: skip
    assert all(np.isfinite(line["forgetting"]) for line in run.metrics)


def test_more_clients_than_fit_in_one_batch_of_models(tmp_path) -> None:
    data = federation([8] * (CLIENTS + 5))
    assert both(tmp_path, dense(), data, clients_per_round=CLIENTS + 3, rounds=2) < 1e-5


@pytest.mark.parametrize(
    ("sizes", "batch_size"),
    [
        pytest.param([8] * 200, 8, id="one batch of models"),
        pytest.param([8, 9, 10, 12] * 3, 64, id="one for each batch size", marks=pytest.mark.slow),
    ],
)
def test_it_has_the_same_bits_on_any_number_of_threads(tmp_path, sizes, batch_size) -> None:
    data = federation(sizes)
    for workers in (1, 2, 3):
        federate(
            dense("batch"), data, engine="vectorised", workers=workers, out=tmp_path / str(workers), rounds=2,
            participation=1.0, local=Local(epochs=1, batch_size=batch_size, lr=0.1),
        )  # fmt: skip
    found = {(tmp_path / str(workers) / "model.safetensors").read_bytes() for workers in (1, 2, 3)}
    assert len(found) == 1


def test_torch_is_left_unpatched_in_the_users_process(tmp_path) -> None:
    before = nn.Module.__call__, nn.Module.__getattr__
    federate(
        dense(), federation(), engine="vectorised", workers=2, out=tmp_path / "run", rounds=1, participation=1.0,
        local=Local(epochs=1, batch_size=64, lr=0.1),
    )  # fmt: skip
    assert (nn.Module.__call__, nn.Module.__getattr__) == before


class Deciding(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        return logits if logits.sum() > 0 else -logits


class Hidden(nn.Linear):
    """Keeps or draws something outside of torch."""

    def __init__(self, how: str) -> None:
        super().__init__(12, 4)
        self.how, self.calls, self.space = how, 0, SimpleNamespace(calls=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "attribute":
            self.calls += 1
        elif self.how == "namespace":
            self.space.calls += 1
        elif self.how == "python":
            x = x * random.random()
        else:
            x = x * np.random.rand()  # noqa: NPY002
        return super().forward(x) * (1 + self.calls + self.space.calls)


SCALE = SimpleNamespace(value=1.0)


class Scaled(nn.Linear):
    """Reads a variable that somebody else changes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * SCALE.value


def test_a_variable_that_changes_between_rounds_ends_the_run_before_the_round_that_looks_at_it(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(SCALE, "value", 1.0)
    with pytest.raises(InputError, match="before round 2 the model's forward is not the one of round 1"):
        federate(
            Scaled(12, 4), federation(), engine="vectorised", rounds=4, participation=1.0, out=tmp_path / "run",
            callbacks=[lambda line: setattr(SCALE, "value", 0.3 + line["round"])],
            local=Local(epochs=2, batch_size=8, lr=0.01),
        )  # fmt: skip
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


class Chosen(WSM):
    """Prepares tensors whose size depends on the client."""

    def prepare(self, labels: Labels) -> Tensors:
        return {"classes": labels.counts.nonzero()[:, 0], **super().prepare(labels)}


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        (nn.Sequential(dense(), nn.Dropout(0.5)), {}, "random operation"),
        (Deciding(12, 4), {}, "data-dependent control flow"),
        (Hidden("attribute"), {}, "its forward changes an attribute of the model \\('calls'\\)"),
        *((Hidden(how), {}, "another one each time") for how in ("namespace", "python", "numpy")),
        (dense(), {"objective": Chosen()}, "vmap"),
        (dense(), {"algorithm": Moon()}, "compares each client with its previous model"),
        (dense(), {"algorithm": Centralised()}, "one client only"),
        (dense(), {"batch_norm": "local", "objective": FedNTD()}, "has a teacher"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(model, settings, reason, tmp_path) -> None:
    with pytest.raises(InputError, match=rf"'vectorised' .*{reason}.*choose 'serial' or 'processes'"):
        federate(model, federation(), engine="vectorised", rounds=1, out=tmp_path / "run", **settings)


def chosen(model: nn.Module, clients: int, **settings) -> str:
    job = Job(lambda: model, settings.get("algorithm", FedAvg()), WSM(), Local(), 0)
    return choose_engine(Execution(), job, model, clients, 10**9, 1000).name


def test_auto_takes_it_for_many_clients_with_narrow_dense_models() -> None:
    assert chosen(nn.Linear(512, 1000), 32) == "vectorised"
    assert chosen(dense(), 32) == "vectorised"
    assert chosen(dense(), 31) != "vectorised"
    assert chosen(dense("batch"), 32) != "vectorised"
    assert chosen(nn.Sequential(nn.Linear(12, 129), nn.ReLU(), nn.Linear(129, 4)), 32) != "vectorised"
    assert chosen(nn.Conv2d(1, 1, 1), 32) != "vectorised"
    assert chosen(dense(), 32, algorithm=Moon()) != "vectorised"
    assert chosen(Deciding(12, 4), 32) != "vectorised"


@pytest.mark.usefixtures("warm_workers")
def test_it_counts_in_the_identity_of_a_run(tmp_path) -> None:
    digests = {}
    for engine in ("serial", "vectorised", "processes"):
        run = federate(dense(), federation(), engine=engine, rounds=1, out=tmp_path / engine)
        note = json.loads((run.path / "checkpoints" / "round-000001.json").read_text())
        digests[engine] = note["recipe_sha256"]
    assert digests["serial"] == digests["processes"] != digests["vectorised"]
