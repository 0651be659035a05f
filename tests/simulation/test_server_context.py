"""What an algorithm has at hand when it aggregates single updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import FedAvg, Federation, Iid, InputError, Run, federate

X = np.random.default_rng(0).normal(size=(60, 5)).astype("float32")
Y = np.arange(60) % 3


@dataclass(frozen=True)
class Looks(FedAvg):
    """FedAvg that keeps what it is shown."""

    needs: ClassVar[frozenset[str]] = frozenset({"clients"})
    discloses: ClassVar[frozenset[str]] = frozenset({"class_counts"})
    seen: list[Any] = field(default_factory=list)

    def aggregate_updates(self, server, updates, context):
        total = sum(update.weights["w"] for update in updates)
        mean = sum(update.weights["w"] / total * update.sent["w"].double() for update in updates)
        self.seen.append((updates, context))
        return {"w": mean}


def run(out: Path, algorithm: FedAvg, **given: Any) -> tuple[Federation, Run]:
    federation = Federation.from_arrays(X, Y, test=(X, Y), partition=Iid(clients=4, validation=0.2, seed=0))
    settings = {"rounds": 2, "participation": 1.0, "local": {"lr": 0.1, "batch_size": 8}, **given}
    return federation, federate(
        lambda: nn.Linear(5, 3), federation, algorithm=algorithm, out=out, engine="serial", progress=False, **settings
    )


def test_it_sees_every_client_with_its_weight_and_the_mean_is_that_of_fedavg(tmp_path: Path) -> None:
    looks = Looks()
    federation, looking = run(tmp_path / "a", looks)
    _, plain = run(tmp_path / "b", FedAvg())
    updates, _ = looks.seen[0]
    assert sorted(update.client for update in updates) == [0, 1, 2, 3]
    for update in updates:
        assert update.samples == update.weights["w"] == len(federation.train_indices(update.client))
    for mine, theirs in zip(looking.model().parameters(), plain.model().parameters()):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_updates_of_a_round_that_is_over_stay_as_they_were(tmp_path: Path) -> None:
    looks = Looks()
    run(tmp_path / "serial", looks)
    again = Looks()
    run(tmp_path / "processes", again)
    for (first, _), (second, _) in zip(looks.seen, again.seen):
        assert [torch.equal(a.sent["w"], b.sent["w"]) for a, b in zip(first, second)] == [True] * 4
    assert not torch.equal(looks.seen[0][0][0].sent["w"], looks.seen[1][0][0].sent["w"])


def test_the_context_has_the_round_a_model_a_stream_counts_and_data(tmp_path: Path) -> None:
    looks, unlabelled = Looks(), np.ones((7, 5), np.float32)
    federation, _ = run(tmp_path / "run", looks, server_data=unlabelled)
    first, second = (context for _, context in looks.seen)
    assert (first.round, second.round, first.clients) == (1, 2, 4)
    assert first.stream().random() == first.stream().random() != second.stream().random()
    counts = np.bincount(Y[federation.train_indices(2)], minlength=3)
    assert first.class_counts(2).tolist() == counts.tolist()
    assert len(first.server_data) == 7
    batch = first.server_data.batch(torch.tensor([0, 3]))
    logits = first.build_model().module(batch)
    assert logits.shape == (2, 3)
    assert torch.equal(batch, torch.ones(2, 5))


def test_a_recipe_names_the_servers_data_and_its_labels_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x_train=X[:6], y_train=np.full(6, 2), x_test=X[:2], y_test=Y[:2])
    looks = Looks()
    run(tmp_path / "run", looks, server_data={"name": "npz", "path": str(tmp_path / "own.npz")})
    np.testing.assert_array_equal(looks.seen[0][1].server_data.batch(torch.arange(6)).numpy(), X[:6])


def test_samples_of_another_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a sample of server_data has the shape \(4,\), but the clients' have \(5,\)"):
        run(tmp_path / "run", Looks(), server_data=np.ones((7, 4), np.float32))


@dataclass(frozen=True)
class Curious(Looks):
    discloses: ClassVar[frozenset[str]] = frozenset()

    def aggregate_updates(self, server, updates, context):
        context.class_counts(0)
        return super().aggregate_updates(server, updates, context)


def test_class_counts_leave_a_client_only_if_that_is_declared(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Curious asks for class counts, which leave a client only if it discloses"):
        run(tmp_path / "run", Curious())
