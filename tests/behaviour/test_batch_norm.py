"""Batch-norm statistics: averaged by samples, or each client's own; never part of an algorithm's arithmetic."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from server_data import at_the_server
from torch import Tensor, nn

from fedrecall import Centralised, CrossEntropy, Federation, FedProx, InputError, Local, LocalOnly, federate
from fedrecall.algorithms import ALGORITHMS

SHIFTS = (0.0, 5.0)  # the clients' features lie apart, so that it matters whose statistics are used
TRAIN = (48, 80)
LR, STEPS = 0.2, 2
W = 16 + 16 + 32 + 16  # floats of the vector: 6 and 6 of batch norm, 18 and 3 of the head, padded to 64 bytes


def network() -> nn.Sequential:
    """Batch norm comes first, so that its statistics are those of the data alone, whatever the weights do."""
    torch.manual_seed(3)
    return nn.Sequential(nn.BatchNorm1d(6, momentum=0.5), nn.Linear(6, 3))


@pytest.fixture
def federation() -> Federation:
    """Two clients with 48 and 80 training samples and 12 and 20 for validation."""
    random = np.random.default_rng(0)
    clients = []
    for shift, n in zip(SHIFTS, (60, 100)):
        x = random.normal(size=(n, 6)).astype(np.float32) + np.float32(shift)
        clients.append((x, (x[:, :3] - shift).argmax(1)))
    return Federation.from_clients(clients, num_classes=3, validation=0.2)


@pytest.fixture
def uneven() -> Federation:
    """A client with 8 samples and one with 24 that are all the same: its batches do not depend on their order."""
    random = np.random.default_rng(1)
    first = random.normal(size=(8, 6)).astype(np.float32), np.arange(8) % 3
    second = np.repeat(random.normal(size=(1, 6)).astype(np.float32), 24, axis=0), np.full(24, 1)
    return Federation.from_clients([first, second], num_classes=3, validation=0)


def start(federation: Federation, out: Path, **settings):
    defaults = {
        "objective": CrossEntropy(),
        "local": Local(steps=STEPS, batch_size=128, lr=LR, weight_decay=0.0),  # a batch is all that a client has
        "rounds": 1,
        "participation": 1.0,
        "evaluation": {"every": 1, "test_last": 0},
        "engine": "serial",
    }
    return federate(network(), federation, **{**defaults, **settings}, out=out)


def samples(federation: Federation, at: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.array(federation.train.x[at])), torch.from_numpy(np.array(federation.train.y[at]))


def trained(net: nn.Module, x: Tensor, y: Tensor, steps: int = STEPS) -> nn.Module:
    """A copy after plain SGD steps."""
    net = copy.deepcopy(net).train()
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net


def mean_weights(nets: list[nn.Module], sizes: tuple[int, ...]) -> list[Tensor]:
    columns = zip(*(net.parameters() for net in nets))
    return [sum(n * p.detach().double() for n, p in zip(sizes, column)) / sum(sizes) for column in columns]


def with_weights(net: nn.Module, weights: list[Tensor]) -> nn.Module:
    """A copy with these parameters and its own statistics."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), weights):
            parameter.copy_(value)
    return net


def right(net: nn.Module, x: Tensor, y: Tensor) -> np.ndarray:
    with torch.no_grad():
        return (copy.deepcopy(net).eval()(x).argmax(1) == y).numpy()


def running(data: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Batch norm's running mean and variance after these batches, by their definition."""
    mean, variance = torch.zeros(6), torch.ones(6)
    for x in data:
        mean, variance = (mean + x.mean(0)) / 2, (variance + x.var(0, unbiased=True)) / 2
    return mean, variance


# --- average ---


@pytest.mark.parametrize("algorithm", [n for n, kind in ALGORITHMS.items() if not (kind.pooled or kind.personal)])
def test_averaged_statistics_are_weighted_by_samples_with_every_algorithm(uneven, tmp_path, algorithm) -> None:
    run = start(
        uneven, tmp_path / "run", algorithm=ALGORITHMS[algorithm](), **at_the_server(algorithm, uneven),
        local=Local(epochs=1, batch_size=8, lr=LR, weight_decay=0.0),
    )  # fmt: skip
    state = load_file(run.path / "model.safetensors")
    first, second = (samples(uneven, uneven.train_indices(k))[0] for k in (0, 1))
    buffers = [running([first]), running([second[:8]] * 3)]  # one step, and three
    for name, mine, yours in zip(("0.running_mean", "0.running_var"), *buffers):
        torch.testing.assert_close(state[name], (8 * mine + 24 * yours) / 32, rtol=1e-5, atol=1e-6)
    assert state["0.num_batches_tracked"] == 3  # the larger, not 8 * 1 + 24 * 3


def test_the_next_round_starts_from_the_averaged_statistics(federation, tmp_path) -> None:
    run = start(federation, tmp_path / "run", rounds=2)
    state = load_file(run.path / "model.safetensors")
    data = [samples(federation, federation.train_indices(k))[0] for k in (0, 1)]
    mean = torch.zeros(6)
    for _ in range(2):
        ends = []
        for x in data:
            after = mean.clone()
            for _ in range(STEPS):
                after = (after + x.mean(0)) / 2
            ends.append(after)
        mean = (48 * ends[0] + 80 * ends[1]) / 128
    torch.testing.assert_close(state["0.running_mean"], mean, rtol=1e-5, atol=1e-6)
    assert state["0.num_batches_tracked"] == 2 * STEPS


STATEFUL = ["scaffold", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "feddyn", "fedexp", "fedcurv", "moon"]


@pytest.mark.parametrize("algorithm", STATEFUL)
def test_what_server_and_clients_remember_has_the_length_of_the_weights(federation, tmp_path, algorithm) -> None:
    run = start(federation, tmp_path / "run", algorithm=ALGORITHMS[algorithm](), rounds=2)
    saved = load_file(run.path / "checkpoints" / "round-000002.safetensors")
    server = {name: tensor.numel() for name, tensor in saved.items() if name.startswith("server.")}
    assert "server.w" in server
    assert set(server.values()) == {W}
    assert saved["buffers.b"].numel() == 32  # two times 6 numbers, padded
    for path in (run.path / "clients").rglob("*.safetensors"):
        state = load_file(path)
        assert {tensor.numel() for name, tensor in state.items() if name not in ("b", "i")} == {W}


def test_a_strong_proximal_term_holds_the_weights_but_not_the_statistics(federation, tmp_path) -> None:
    # With lr mu = 1 every step after the first returns to x plus one gradient step: the weights hardly move.
    free, held = (
        load_file(start(federation, tmp_path / name, algorithm=FedProx(mu=mu)).path / "model.safetensors")
        for name, mu in (("free", 0.0), ("held", 1 / LR))
    )
    for name in ("0.running_mean", "0.running_var"):
        assert torch.equal(free[name], held[name])
    assert not torch.equal(free["1.weight"], held["1.weight"])


# --- local ---


def by_hand(federation: Federation, rounds: int) -> list[tuple[list[Tensor], list[nn.Module], list[nn.Module]]]:
    """FedAvg whose clients keep their statistics: the sent weights, the trained models, and the clients after."""
    own: list[nn.Module] = [network(), network()]
    data = [samples(federation, federation.train_indices(k)) for k in (0, 1)]
    weights, history = [p.detach().clone() for p in network().parameters()], []
    for _ in range(rounds):
        nets = [trained(with_weights(net, weights), *pair) for net, pair in zip(own, data)]
        sent, weights = weights, mean_weights(nets, TRAIN)
        own = [with_weights(net, weights) for net in nets]
        history.append((sent, nets, own))
    return history


def test_local_statistics_stay_with_each_client(federation, tmp_path) -> None:
    run = start(federation, tmp_path / "run", rounds=2, batch_norm="local")
    assert "batch_norm: local" in (run.path / "recipe.yaml").read_text().splitlines()
    _, _, own = by_hand(federation, 2)[-1]
    state = load_file(run.path / "model.safetensors")
    for name, expected in own[0].named_parameters():
        torch.testing.assert_close(state[name], expected.detach(), rtol=1e-5, atol=1e-6)
    for client, net in enumerate(own):
        (path,) = (run.path / "clients").rglob(f"client-{client:06d}-*.safetensors")
        kept = load_file(path)
        torch.testing.assert_close(kept["b"][:6], net[0].running_mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(kept["b"][16:22], net[0].running_var, rtol=1e-5, atol=1e-6)
        assert kept["i"].tolist() == [2 * STEPS]
    assert abs(own[0][0].running_mean - own[1][0].running_mean).max() > 1


def validation(federation: Federation) -> list[tuple[Tensor, Tensor]]:
    return [samples(federation, federation.validation_indices(k)) for k in (0, 1)]


def test_validation_is_judged_with_each_clients_own_statistics(federation, tmp_path) -> None:
    run = start(federation, tmp_path / "run", rounds=2, batch_norm="local")
    apart = []
    for line, (_, _, own) in zip(run.metrics, by_hand(federation, 2), strict=True):
        answers = [right(net, *pair) for net, pair in zip(own, validation(federation))]
        assert line["val_accuracy"] == pytest.approx(np.concatenate(answers).mean())
        swapped = [right(net, *pair) for net, pair in zip(own[::-1], validation(federation))]
        apart.append(np.concatenate(swapped).mean() != np.concatenate(answers).mean())
    assert any(apart)  # else whose statistics they are would not show


def test_a_client_that_has_not_trained_is_judged_with_the_first_statistics(federation, tmp_path) -> None:
    run = start(federation, tmp_path / "run", clients_per_round=1, participation=None, batch_norm="local")
    (client,) = run.metrics[0]["clients"]
    net = trained(network(), *samples(federation, federation.train_indices(client)))
    other = with_weights(network(), [p.detach() for p in net.parameters()])
    nets = [net, other] if client == 0 else [other, net]
    answers = [right(net, *pair) for net, pair in zip(nets, validation(federation))]
    assert run.metrics[0]["val_accuracy"] == pytest.approx(np.concatenate(answers).mean())


def test_forgetting_is_measured_with_the_statistics_of_the_model(federation, tmp_path) -> None:
    run = start(federation, tmp_path / "run", rounds=2, batch_norm="local", forgetting={"every": 1})
    for t, (sent, nets, _) in enumerate(by_hand(federation, 2), start=1):
        probe = run.forgetting[t]
        order = probe["models"].tolist()
        assert sorted(order) == [0, 1]
        after = [[right(nets[i], *pair).mean() for pair in validation(federation)] for i in order]
        np.testing.assert_allclose(probe["after"], after)
        if t == 1:  # all statistics are still the first ones
            before = [right(with_weights(network(), sent), *pair).mean() for pair in validation(federation)]
            np.testing.assert_allclose(probe["before"], before)
    assert all(np.isfinite(line["forgetting"]) for line in run.metrics)


def test_the_pooled_test_set_is_refused_with_the_way_out(federation, tmp_path) -> None:
    x, y = samples(federation, np.arange(160))
    tested = Federation.from_clients(
        [(x[:60].numpy(), y[:60].numpy()), (x[60:].numpy(), y[60:].numpy())],
        test=(x.numpy(), y.numpy()), num_classes=3, validation=0.2,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"batch_norm is 'local'.* test set; say evaluation\.test_last=0"):
        start(tested, tmp_path / "run", batch_norm="local", evaluation={"every": 1, "test_last": 1})
    assert not (tmp_path / "run").exists()
    run = start(tested, tmp_path / "run", batch_norm="local", evaluation={"every": 1, "test_last": 0})
    assert "val_accuracy" in run.metrics[0]
    assert "test_accuracy" not in run.metrics[0]


def test_other_settings_that_need_one_model_are_refused(federation, tmp_path) -> None:
    x, y = samples(federation, np.arange(160))
    thirds = [(x[part].numpy(), y[part].numpy()) for part in (slice(0, 60), slice(60, 120), slice(120, 160))]
    split = Federation.from_clients(thirds, num_classes=3, validation=0.2, held_out=1)
    with pytest.raises(InputError, match=r"batch_norm is 'local', but held-out clients have no statistics"):
        start(split, tmp_path / "run", batch_norm="local")
    with pytest.raises(InputError, match=r"batch_norm is 'local', but algorithm 'centralised' has one client"):
        start(federation, tmp_path / "run", algorithm=Centralised(), batch_norm="local")
    with pytest.raises(InputError, match=r"batch_norm is 'mine'; .*'average' or 'local'"):
        start(federation, tmp_path / "run", batch_norm="mine")


# --- local only ---


def test_alone_a_clients_first_round_starts_from_the_first_statistics(federation, tmp_path) -> None:
    seeds = iter(range(20))
    while True:  # until the two rounds have one client each, and not the same
        seed = next(seeds)
        run = start(
            federation, tmp_path / f"run-{seed}", algorithm=LocalOnly(), rounds=2, clients_per_round=1,
            participation=None, seed=seed,
        )  # fmt: skip
        lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
        if lines[0]["clients"] != lines[1]["clients"]:
            break
    for line in lines:
        (client,) = line["clients"]
        (path,) = (run.path / "clients").rglob(f"client-{client:06d}-*.safetensors")
        state = load_file(path)
        x, _ = samples(federation, federation.train_indices(client))
        mean, variance = running([x] * STEPS)
        torch.testing.assert_close(state["b"][:6], mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(state["b"][16:22], variance, rtol=1e-5, atol=1e-6)
        assert state["i"].tolist() == [STEPS]
