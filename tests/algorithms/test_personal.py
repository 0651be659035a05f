"""FedPer, FedBN and Ditto, and personal models at the end of a run: against steps taken by torch.optim."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import CrossEntropy, Federation, InputError, Natural, Run, Watcher, federate
from fedrecall.core.rng import Shuffle
from fedrecall.measure.watcher import Round
from fedrecall.runs import files
from fedrecall.runs.client_states import StateFiles

CLIENTS, FEATURES, LR = 3, 4, 0.1
SETTINGS: dict[str, Any] = {
    "local": {"steps": 2, "batch_size": 4, "lr": LR, "weight_decay": 0.0},
    "participation": 1.0,
    "objective": CrossEntropy(),
    "evaluation": {"every": 1, "test_last": 1},
    "checkpoint": {"every": 1},
}


def federation() -> Federation:
    random = np.random.default_rng(0)
    ids = np.repeat(np.arange(CLIENTS), [20, 30, 40])
    x = random.normal(size=(90, FEATURES)).astype(np.float32)
    y = (x[:, 0] + 0.5 * ids * x[:, 1] > 0).astype(np.int64)
    return Federation.from_arrays(x, y, test=(x[:30], y[:30]), partition=Natural(validation=0.3), ids=ids)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 2))


def norm_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def run(out: Path, model: nn.Module, rounds: int = 2, engine: str = "serial", **given: Any) -> Run:
    workers = {} if engine == "serial" else {"workers": 2}
    settings = {**SETTINGS, **given}
    return federate(model, federation(), rounds=rounds, out=out, engine=engine, progress=False, **workers, **settings)


def trained(
    start: nn.Module, client: int, round: int, steps: int = 2, towards: nn.Module | None = None, lam: float = 0
) -> nn.Module:
    """Return the model after torch's SGD on a client's batches of a round, with a pull towards another model."""
    data, model = federation(), copy.deepcopy(start).train()
    optimiser, taken = torch.optim.SGD(model.parameters(), lr=LR), Shuffle(0, round, client)
    indices, positions = data.train_indices(client), np.array([], np.int64)
    while len(positions) < 4 * steps:
        positions = np.concatenate([positions, taken.permutation(indices)[: len(indices) // 4 * 4]])
    for at in positions[: 4 * steps].reshape(steps, 4):
        optimiser.zero_grad()
        x, y = torch.from_numpy(np.asarray(data.train.x[at])), torch.from_numpy(data.train.y[at])
        loss = nn.functional.cross_entropy(model(x), y)
        if towards is not None:
            pairs = zip(model.parameters(), towards.parameters())
            loss = loss + lam / 2 * sum((v - x.detach()).square().sum() for v, x in pairs)
        loss.backward()
        optimiser.step()
    return model


def mean_of(models: list[nn.Module]) -> nn.Module:
    """Return the mean, weighted by the clients' training samples."""
    weights = np.array([len(federation().train_indices(k)) for k in range(CLIENTS)])
    states = [model.state_dict() for model in models]
    mean = copy.deepcopy(models[0])
    mean.load_state_dict(
        {name: sum(w / weights.sum() * state[name] for w, state in zip(weights, states)) for name in states[0]}
    )
    return mean


def accuracy(model: nn.Module, x: np.ndarray, y: np.ndarray) -> float:
    with torch.no_grad():
        return float((model.eval()(torch.from_numpy(np.asarray(x))).argmax(1).numpy() == y).mean())


def on_validation(model: nn.Module, client: int) -> float:
    data = federation()
    at = data.validation_indices(client)
    return accuracy(model, data.train.x[at], data.train.y[at])


def flat_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


class Server(Watcher):
    def __init__(self) -> None:
        self.w: list[Tensor] = []

    def after(self, round: Round) -> None:
        self.w.append(round.server["w"])


def states_of(made: Run) -> list[dict[str, Tensor]]:
    return [StateFiles(made.path / files.STATES).get(k, 2) for k in range(CLIENTS)]


def without_padding(w: Tensor, sizes: list[int]) -> Tensor:
    """Return a flat vector without the padding of each tensor to 16 floats."""
    parts, at = [], 0
    for size in sizes:
        parts.append(w[at : at + size])
        at += -(-size // 16) * 16
    return torch.cat(parts)


def test_fedper_averages_the_body_and_leaves_the_head_at_home(tmp_path: Path) -> None:
    server = Server()
    made = run(tmp_path / "run", net(), algorithm="fedper", callbacks=[server])
    body, heads = net(), [net()[2] for _ in range(CLIENTS)]
    for t in (1, 2):
        starts = [nn.Sequential(body[0], body[1], head) for head in heads]
        models = [trained(start, k, t) for k, start in enumerate(starts)]
        heads, body = [model[2] for model in models], mean_of(models)
    first = net()[2]
    expected = torch.cat([flat_of(body[0]), flat_of(first)])
    torch.testing.assert_close(without_padding(server.w[-1], [20, 5, 10, 2]), expected, rtol=0, atol=1e-6)
    for state, head in zip(states_of(made), heads):
        torch.testing.assert_close(state["own"], flat_of(head), rtol=0, atol=1e-6)
    models = [nn.Sequential(body[0], body[1], head) for head in heads]
    own = np.mean([on_validation(model, k) for k, model in enumerate(models)])
    assert made.metrics[-1]["val_accuracy_mean"] == pytest.approx(own)
    data = federation()
    assert made.metrics[-1]["test_accuracy"] == pytest.approx(
        np.mean([accuracy(model, data.test.x, data.test.y) for model in models])
    )


def test_fedbn_leaves_scales_shifts_and_statistics_at_home(tmp_path: Path) -> None:
    server = Server()
    made = run(tmp_path / "run", norm_net(), algorithm="fedbn", callbacks=[server])
    body, norms = norm_net(), [norm_net()[1] for _ in range(CLIENTS)]
    for t in (1, 2):
        starts = [nn.Sequential(body[0], norm, body[2], body[3]) for norm in norms]
        models = [trained(start, k, t) for k, start in enumerate(starts)]
        norms, body = [model[1] for model in models], mean_of(models)
    expected = torch.cat([flat_of(body[0]), torch.ones(5), torch.zeros(5), flat_of(body[3])])
    torch.testing.assert_close(without_padding(server.w[-1], [20, 5, 5, 5, 10, 2]), expected, rtol=0, atol=1e-6)
    for state, norm in zip(states_of(made), norms):
        torch.testing.assert_close(state["own"], flat_of(norm), rtol=0, atol=1e-6)
        statistics = torch.cat([norm.running_mean, norm.running_var])
        torch.testing.assert_close(without_padding(state["b"], [5, 5]), statistics, rtol=0, atol=1e-6)
    models = [nn.Sequential(body[0], norm, body[2], body[3]) for norm in norms]
    own = np.mean([on_validation(model, k) for k, model in enumerate(models)])
    assert made.metrics[-1]["val_accuracy_mean"] == pytest.approx(own)
    assert not (made.path / files.MODEL).exists()


@pytest.mark.parametrize("make", [net, norm_net])
def test_ditto_trains_a_model_beside_the_one_that_is_sent(make: Any, tmp_path: Path) -> None:
    server, plain = Server(), Server()
    made = run(tmp_path / "run", make(), algorithm={"name": "ditto", "lam": 0.5}, callbacks=[server])
    run(tmp_path / "plain", make(), callbacks=[plain])
    assert [torch.equal(mine, theirs) for mine, theirs in zip(server.w, plain.w)] == [True, True]  # FedAvg
    x, own = make(), [make() for _ in range(CLIENTS)]
    for t in (1, 2):
        own = [trained(v, k, t, towards=x, lam=0.5) for k, v in enumerate(own)]
        x = mean_of([trained(x, k, t) for k in range(CLIENTS)])
    sizes = [parameter.numel() for parameter in x.parameters()]
    for state, v in zip(states_of(made), own):
        torch.testing.assert_close(without_padding(state["v"], sizes), flat_of(v), rtol=0, atol=1e-6)
    mean = np.mean([on_validation(v, k) for k, v in enumerate(own)])
    assert made.metrics[-1]["val_accuracy_mean"] == pytest.approx(mean)
    assert made.metrics[0]["flops"] == 2 * Run(tmp_path / "plain").metrics[0]["flops"]


def test_personal_models_are_those_of_some_steps_from_the_final_model(tmp_path: Path) -> None:
    made = run(tmp_path / "run", net(), evaluation={"test_last": 0, "personalised": {"steps": 7}})
    final = made.model()
    models = [trained(final, k, 3, steps=7) for k in range(CLIENTS)]
    after = np.array([[on_validation(model, k) for k in range(CLIENTS)] for model in models])
    before, others = np.array([on_validation(final, k) for k in range(CLIENTS)]), ~np.eye(CLIENTS, dtype=bool)
    summary = {key: value for key, value in made.summary.items() if key.startswith("personal")}
    assert summary == {
        "personal_steps": 7,
        "personal_accuracy": pytest.approx(after.diagonal().mean()),
        "personal_accuracy_sd": pytest.approx(after.diagonal().std()),
        "personal_accuracy_before": pytest.approx(before.mean()),
        "personal_accuracy_others": pytest.approx(after[others].mean()),
        "personal_forgetting": pytest.approx((before[None] - after)[others].mean()),
    }
    assert after.diagonal().mean() != before.mean()


def test_personal_models_change_nothing_of_the_run(tmp_path: Path) -> None:
    for algorithm in ("scaffold", "ditto", "fedper"):
        given = {"algorithm": algorithm, "rounds": 1}
        with_them = run(tmp_path / f"{algorithm}-a", net(), **given)
        without = run(
            tmp_path / f"{algorithm}-b",
            net(),
            evaluation={**SETTINGS["evaluation"], "personalised": {"steps": 0}},
            **given,
        )
        assert (with_them.path / files.METRICS).read_bytes() == (without.path / files.METRICS).read_bytes()
        found = [sorted(p.name for p in (made.path / files.STATES).glob("*/*")) for made in (with_them, without)]
        assert found[0] == found[1]
        # Fine-tuning is shown beside a personal algorithm, unless it says zero steps.
        assert ("personal_accuracy" in with_them.summary) == (algorithm != "scaffold")
        assert "personal_accuracy" not in without.summary


def test_fine_tuning_beside_ditto_is_that_of_fedavg(tmp_path: Path) -> None:
    given = {"evaluation": {"test_last": 0, "personalised": {"steps": 3}}}
    ditto, plain = (run(tmp_path / name, net(), algorithm=name, **given) for name in ("ditto", "fedavg"))
    keys = ("personal_accuracy", "personal_accuracy_others", "personal_accuracy_sd")
    assert {key: ditto.summary[key] for key in keys} == {key: plain.summary[key] for key in keys}


class Stop(Watcher):
    def after(self, round: Round) -> None:
        if round.number == 1:
            raise RuntimeError("stop here")


def bits(made: Run) -> dict[str, Any]:
    kept = {key: value for key, value in made.summary.items() if key.startswith(("personal", "final", "recipe"))}
    return {**{name: (made.path / name).read_bytes() for name in (files.METRICS, files.CLIENTS)}, "summary": kept}


@pytest.mark.parametrize("algorithm", ["fedper", "fedbn", "ditto", "fedavg"])
@pytest.mark.usefixtures("warm_workers")
def test_the_bits_are_those_of_processes_and_of_a_resumed_run(algorithm: str, tmp_path: Path) -> None:
    given = {"algorithm": algorithm, "evaluation": {"every": 1, "test_last": 1, "personalised": {"steps": 3}}}
    serial = bits(run(tmp_path / "serial", norm_net(), **given))
    assert serial["summary"]["personal_steps"] == 3
    assert bits(run(tmp_path / "processes", norm_net(), engine="processes", **given)) == serial
    with pytest.raises(RuntimeError, match="stop here"):
        run(tmp_path / "resumed", norm_net(), callbacks=[Stop()], **given)
    assert bits(run(tmp_path / "resumed", norm_net(), resume=True, **given)) == serial


@pytest.mark.parametrize("algorithm", ["fedper", "fedbn", "fedavg"])
def test_vectorised_agrees_up_to_rounding(algorithm: str, tmp_path: Path) -> None:
    given = {"algorithm": algorithm, "evaluation": {"every": 1, "test_last": 1, "personalised": {"steps": 3}}}
    serial, vectorised = (run(tmp_path / e, norm_net(), engine=e, **given) for e in ("serial", "vectorised"))
    for mine, theirs in zip(serial.metrics, vectorised.metrics):
        assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
    assert serial.summary["personal_accuracy"] == pytest.approx(vectorised.summary["personal_accuracy"], abs=0.03)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing but a head": ({"algorithm": "fedper", "model": nn.Linear(4, 2)}, "nothing but what stays with a client"),
    "two models and local statistics": (
        {"algorithm": "ditto", "batch_norm": "local"},
        "batch_norm is 'local', but with algorithm 'ditto' each client has two models; 'average' was expected",
    ),
    "one vector for two models": (
        {"algorithm": "ditto", "engine": "vectorised"},
        "the algorithm trains two models of each client; choose 'serial' or 'processes'",
    ),
    "steps below zero": (
        {"evaluation": {"personalised": {"steps": -1}}},
        "evaluation.personalised.steps is -1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused(case: str, tmp_path: Path) -> None:
    given, sentence = REFUSED[case]
    with pytest.raises(InputError) as refused:
        run(tmp_path / "run", given.get("model", net()), **{k: v for k, v in given.items() if k != "model"})
    assert sentence in str(refused.value)


def test_the_way_from_local_statistics_to_fedbn_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="algorithm=fedbn, which tests every client's model"):
        run(tmp_path / "run", norm_net(), batch_norm="local")


def test_fedbn_without_batch_norm_is_fedavg_and_says_so(tmp_path: Path) -> None:
    server, plain = Server(), Server()
    made = run(tmp_path / "run", net(), algorithm="fedbn", callbacks=[server])
    run(tmp_path / "plain", net(), callbacks=[plain])
    assert [torch.equal(mine, theirs) for mine, theirs in zip(server.w, plain.w)] == [True, True]
    assert "the model has no batch norm, so algorithm 'fedbn' is FedAvg" in made.summary["warnings"]
