"""The bounds: all data in one place, and no exchange at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import Centralised, CrossEntropy, Federation, InputError, Local, LocalOnly, Natural, federate
from fedrecall.core.rng import Shuffle
from fedrecall.data.federation import EVERYONE

CLIENTS, FEATURES = 3, 16  # 16 features and 2 classes: the flat vector has no padding


@pytest.fixture
def federation() -> Federation:
    random = np.random.default_rng(0)
    sizes = [20, 30, 50]
    x = random.normal(size=(100, FEATURES)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    ids = np.repeat(np.arange(CLIENTS), sizes)
    return Federation.from_arrays(x, y, test=(x[:40], y[:40]), partition=Natural(validation=0.2), ids=ids)


def model(batch_norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    linear = nn.Linear(FEATURES, 2, bias=False)
    return nn.Sequential(nn.BatchNorm1d(FEATURES), linear) if batch_norm else linear


def start(net, federation, out: Path, **settings):
    local = settings.pop("local", Local(epochs=1, batch_size=8, lr=0.1))
    return federate(net, federation, objective=CrossEntropy(), local=local, out=out, engine="serial", **settings)


def test_centralised_takes_the_steps_of_the_sampled_clients(federation, tmp_path) -> None:
    # 16, 24 and 40 training samples in batches of 8: 2 + 3 + 5 steps in a round of all clients.
    run = start(model(), federation, tmp_path / "run", algorithm=Centralised(), rounds=1, participation=1.0)
    net = model()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=1e-4)
    pooled = np.concatenate([federation.train_indices(k) for k in range(CLIENTS)])
    random = Shuffle(0, 1, EVERYONE)
    taken = random.permutation(pooled)[: 10 * 8].reshape(10, 8)
    for at in taken:
        optimiser.zero_grad()
        x, y = torch.from_numpy(np.asarray(federation.train.x[at])), torch.from_numpy(federation.train.y[at])
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    torch.testing.assert_close(run.model().weight, net.weight, rtol=0, atol=1e-6)
    assert run.metrics[0]["clients"] == []


def test_centralised_weighs_by_the_labels_of_everyone(federation) -> None:
    counts = sum(federation.labels(k).counts for k in range(CLIENTS))
    assert torch.equal(federation.labels(EVERYONE).counts, counts)
    assert len(federation.indices(EVERYONE)) == 16 + 24 + 40


def test_centralised_reaches_what_no_client_reaches_alone(federation, tmp_path) -> None:
    accuracies = {}
    for name, algorithm in (("all", Centralised()), ("none", LocalOnly())):
        run = start(
            model(), federation, tmp_path / name, algorithm=algorithm, rounds=20, participation=1.0,
            evaluation={"test_last": 1},
        )  # fmt: skip
        accuracies[name] = run.metrics[-1]["test_accuracy"]
    assert accuracies["all"] > accuracies["none"]


@pytest.mark.parametrize("batch_norm", [False, True])
def test_local_only_is_the_mean_over_clients_that_train_alone(federation, tmp_path, batch_norm) -> None:
    run = start(
        model(batch_norm), federation, tmp_path / "run", algorithm=LocalOnly(), rounds=3, participation=1.0,
        evaluation={"test_last": 1}, local=Local(steps=4, batch_size=64, lr=0.1),
    )  # fmt: skip
    accuracies = []
    for client in range(CLIENTS):
        net = model(batch_norm)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=1e-4)
        at = federation.train_indices(client)
        x, y = torch.from_numpy(np.asarray(federation.train.x[at])), torch.from_numpy(federation.train.y[at])
        for _ in range(3 * 4):  # the batch is all that a client has, so its order does not matter
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
        answers = net.eval()(torch.from_numpy(np.asarray(federation.test.x))).argmax(1).numpy()
        accuracies.append((answers == federation.test.y).mean())
    assert run.metrics[-1]["test_accuracy"] == pytest.approx(np.mean(accuracies))


def test_clients_that_have_not_trained_yet_have_the_initial_model(federation, tmp_path) -> None:
    # At rate zero every model stays the initial one, whether it has trained or not.
    run = start(
        model(), federation, tmp_path / "run", algorithm=LocalOnly(), rounds=1, clients_per_round=1,
        evaluation={"test_last": 1}, local=Local(steps=1, lr=0.0),
    )  # fmt: skip
    answers = model()(torch.from_numpy(np.asarray(federation.test.x))).argmax(1).numpy()
    assert run.metrics[0]["test_accuracy"] == pytest.approx((answers == federation.test.y).mean())


def test_local_only_leaves_no_global_model(federation, tmp_path) -> None:
    run = start(model(), federation, tmp_path / "run", algorithm=LocalOnly(), rounds=1)
    assert not (run.path / "model.safetensors").exists()


@pytest.mark.parametrize("algorithm", [Centralised(), LocalOnly()])
def test_forgetting_has_no_meaning_for_the_bounds(federation, tmp_path, algorithm) -> None:
    with pytest.raises(InputError, match=r"forgetting is what .* there is none"):
        start(model(), federation, tmp_path / "run", algorithm=algorithm, rounds=2, forgetting={"every": 1})


@pytest.mark.parametrize("algorithm", [Centralised(), LocalOnly()])
@pytest.mark.usefixtures("warm_workers")
def test_the_bounds_have_the_same_bits_on_both_engines(federation, tmp_path, algorithm) -> None:
    settings = {"algorithm": algorithm, "rounds": 3, "participation": 0.7, "evaluation": {"every": 1}}
    run = start(model(True), federation, tmp_path / "serial", **settings)
    other = federate(
        model(True), federation, objective=CrossEntropy(), local=Local(epochs=1, batch_size=8, lr=0.1),
        out=tmp_path / "processes", engine="processes", workers=2, **settings,
    )  # fmt: skip
    assert (run.path / "metrics.jsonl").read_bytes() == (other.path / "metrics.jsonl").read_bytes()
