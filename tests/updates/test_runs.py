"""Runs with stages: the same bits in processes and after a resume, bytes as they travel, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import (
    CyclicSampling,
    Dirichlet,
    Federation,
    InputError,
    PoissonSampling,
    Round,
    Run,
    SamplingBySize,
    UniformSampling,
    Update,
    Watcher,
    federate,
)
from fedrecall.runs import files
from fedrecall.runs.client_states import StateFiles

DP = {"name": "dp", "clipping_norm": 0.5, "noise_multiplier": 1.0}
COMPRESSED: dict[str, list[Any]] = {
    "8 bits": [{"name": "quantise", "bits": 8}],
    "4 bits": [{"name": "quantise", "bits": 4, "bucket": 16}],
    "top_k": [{"name": "top_k", "fraction": 0.1}],
    "top_k in 8 bits": [{"name": "top_k", "fraction": 0.1}, "quantise"],
}
PRIVATE: dict[str, list[Any]] = {"private": [DP], "private in 4 bits": [DP, {"name": "quantise", "bits": 4}]}
ROUNDS = 3
NUMBERS = 6 * 8 + 8 + 8 * 4 + 4


def net(norm: bool = False) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU(), nn.Linear(8, 4))


def run(out: Path, engine: str = "serial", model: Any = net, **given: Any) -> Run:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(200, 6)).astype("float32"), random.integers(0, 4, 200)
    x[np.arange(200), y] += 2
    federation = Federation.from_arrays(x, y, partition=Dirichlet(alpha=0.5, clients=8, validation=0.2, seed=0))
    workers = {"workers": 2} if engine == "processes" else {}
    settings = {"participation": 0.5, "evaluation": {"every": 2}, "checkpoint": {"every": 1}, "rounds": ROUNDS}
    local = given.pop("local", {"epochs": 1, "batch_size": 8, "lr": 0.1})
    return federate(
        model, federation, local=local, engine=engine, out=out, progress=False, **{**settings, **workers, **given}
    )


class StopAfter(Watcher):
    def __init__(self, round: int) -> None:
        self.round = round

    def after(self, round: Round) -> None:
        if round.number == self.round:
            raise RuntimeError("stop here")


class Kept(Watcher):
    """Keeps what clients have sent, and the server's vector after each round."""

    def __init__(self) -> None:
        self.updates: dict[int, list[Update]] = {}
        self.server: dict[int, Tensor] = {}
        self.sent: dict[int, Tensor] = {}

    def before(self, round: Round) -> None:
        self.sent[round.number] = round.sent["w"]

    def result(self, round: Round, update: Update) -> None:
        self.updates.setdefault(round.number, []).append(update)

    def after(self, round: Round) -> None:
        self.server[round.number] = round.server["w"]


def bits(run: Run) -> dict[str, bytes]:
    return {name: (run.path / name).read_bytes() for name in ("metrics.jsonl", "clients.jsonl", "model.safetensors")}


def assert_same_bits(tmp_path: Path, **given: Any) -> Run:
    serial = run(tmp_path / "serial", **given)
    assert bits(run(tmp_path / "processes", "processes", **given)) == bits(serial)
    with pytest.raises(RuntimeError, match="stop here"):
        run(tmp_path / "resumed", callbacks=[StopAfter(2)], **given)
    resumed = run(tmp_path / "resumed", resume=True, **given)
    assert bits(resumed) == bits(serial)
    assert resumed.summary.get("privacy") == serial.summary.get("privacy")
    return serial


@pytest.mark.parametrize("name", COMPRESSED)
def test_compression_has_the_same_bits_in_processes_and_after_a_resume(name: str, tmp_path: Path) -> None:
    assert_same_bits(tmp_path, updates=COMPRESSED[name])


def test_bytes_are_those_that_travel(tmp_path: Path) -> None:
    expected = {
        "8 bits": NUMBERS + 4,  # one bucket
        "4 bits": NUMBERS // 2 + 4 * -(-NUMBERS // 16),
        "top_k": 9 * (4 + 4) + 4,  # a tenth of 92; values, positions and the length
        "top_k in 8 bits": 9 * (1 + 4) + 4 + 4,
    }
    for name, size in expected.items():
        made = run(tmp_path / name, updates=COMPRESSED[name], rounds=1)
        assert made.metrics[0]["bytes_up"] == 4 * size, name  # four clients


def test_a_residual_waits_until_its_client_takes_part_again(tmp_path: Path) -> None:
    """A tenth of the entries arrives; the rest is in the client's state of the last round that it took part in."""
    kept = Kept()
    made = run(tmp_path / "run", updates=[{"name": "top_k", "fraction": 0.1}], callbacks=[kept])
    last = {}
    for t, updates in kept.updates.items():
        for update in updates:
            change = update.sent["w"] - kept.sent[t]
            assert int((change.abs() > 1e-6).sum()) <= 9
            last[update.client] = t
    states = StateFiles(made.path / files.STATES)
    for client, t in last.items():
        residual = states.get(client, t)["updates.0.w"]
        assert len(residual) == NUMBERS
        assert int((residual == 0).sum()) >= 9  # those that were sent
        assert int((residual != 0).sum()) > NUMBERS / 2
    assert len(set(last.values())) > 1  # some clients have waited


def test_scaffold_with_compressed_control_variates(tmp_path: Path) -> None:
    made = run(tmp_path / "run", algorithm="scaffold", updates=["quantise"], rounds=2)
    assert made.metrics[0]["bytes_up"] == 4 * 2 * (NUMBERS + 4)
    assert made.metrics[1]["train_loss"] < 3


private = pytest.mark.heavy


@pytest.fixture
def accountant() -> None:
    pytest.importorskip("dp_accounting", reason="needs fedrecall[privacy]")


@private
@pytest.mark.usefixtures("accountant")
@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_run_has_the_same_bits_in_processes_and_after_a_resume(name: str, tmp_path: Path) -> None:
    assert_same_bits(tmp_path, updates=PRIVATE[name])


@private
@pytest.mark.usefixtures("accountant")
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddyn", "fedadam", "moon"])
def test_a_private_run_with_other_algorithms(algorithm: str, tmp_path: Path) -> None:
    made = run(tmp_path / "run", algorithm=algorithm, updates=[{**DP, "noise_multiplier": 0.01}], rounds=2)
    assert np.isfinite(made.metrics[-1]["train_loss"])


@private
@pytest.mark.usefixtures("accountant")
def test_a_private_round_is_that_of_numpy(tmp_path: Path) -> None:
    """Equal weights, updates of at most C = .5, the sum divided by the 4 expected clients, and noise of z C / 4."""
    kept = Kept()
    made = run(tmp_path / "run", updates=[{**DP, "noise_multiplier": 0.2}], rounds=ROUNDS, callbacks=[kept])
    noises = []
    for t in range(1, ROUNDS + 1):
        changes = [update.sent["w"].double() - kept.sent[t].double() for update in kept.updates[t]]
        assert max(float(change.norm()) for change in changes) <= 0.5 * (1 + 1e-9)
        noise = kept.server[t].double() - kept.sent[t].double() - sum(changes) / 4
        noises.append(noise[noise.abs() > 1e-6])
    assert all(len(noise) == NUMBERS for noise in noises)  # the padding gets none
    assert float(torch.cat(noises).std()) == pytest.approx(0.2 * 0.5 / 4, rel=4 / (2 * 3 * NUMBERS) ** 0.5)
    spent = made.summary["privacy"]
    assert (spent["neighboring_relation"], spent["sampling_method"]) == ("replace-one", "without-replacement")
    assert (spent["delta"], spent["releases"], spent["unit"]) == (1e-5, ROUNDS, "client")
    assert spent["epsilon"] > 0
    assert any("metrics" in text for text in spent["not_covered"])


@private
@pytest.mark.usefixtures("accountant")
def test_poisson_rounds_have_noise_even_if_nobody_is_chosen(tmp_path: Path) -> None:
    kept = Kept()
    given = {"participation": PoissonSampling(fraction=0.2), "updates": [DP], "rounds": 6, "algorithm": "scaffold"}
    made = run(tmp_path / "run", callbacks=[kept], **given)
    empty = [line["round"] for line in made.metrics if not line["clients"]]
    assert empty  # with this seed
    for t in empty:
        assert int((kept.server[t] - kept.sent[t]).abs().gt(1e-6).sum()) == NUMBERS
    spent = made.summary["privacy"]
    assert (spent["neighboring_relation"], spent["sampling_method"]) == ("add-or-remove-one", "poisson")
    assert spent["expected_clients"] == 2


def test_a_sampler_that_draws_otherwise_is_not_taken_for_its_base() -> None:
    class FirstOnes(UniformSampling):
        def sample(self, round, population, random):
            return list(range(self.expected(population)))

    class Renamed(UniformSampling):
        pass

    assert FirstOnes.sampling is None
    assert Renamed.sampling == UniformSampling.sampling == "without_replacement"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "batch norm": ({"model": lambda: net(norm=True)}, "batch_norm is 'average', but with the stage 'dp'"),
    "class shares": (
        {"objective": {"name": "wsm", "prior": "pooled"}},
        "objective 'wsm' asks for the class shares of all clients (prior: pooled), which the stage 'dp'",
    ),
    "judged prior": ({"evaluation": {"prior": "uniform"}}, "evaluation.prior is 'uniform', which takes the class"),
    "fisher": ({"algorithm": "fedcurv"}, "algorithm 'fedcurv' sums Fisher information"),
    "facts": ({"algorithm": "fedexp"}, "algorithm 'fedexp' also sends numbers about it (norm2)"),
    "single updates": ({"algorithm": "median"}, "a stage of updates works on sums, but algorithm 'median'"),
    "place": ({"updates": ["quantise", DP]}, "updates has 'dp' in another place than the first"),
    "not Poisson": (
        {"updates": [{**DP, "sampling_method": "poisson"}]},
        "updates.sampling_method is 'poisson', but participation UniformSampling is not that; expected "
        "'without-replacement' or 'no-amplification'",
    ),
    "relation": (
        {"updates": [{**DP, "neighboring_relation": "add-or-remove-one"}]},
        "updates.neighboring_relation is 'add-or-remove-one'; with the sampling method 'without-replacement' "
        "'replace-one' was expected",
    ),
    "relation without amplification": (
        {
            "updates": [
                {**DP, "sampling_method": "no-amplification", "neighboring_relation": "add-or-remove-one"},
            ]
        },
        "but one client less changes which others are chosen",
    ),
    "no norm": ({"updates": [{"name": "dp", "noise_multiplier": 1.0}]}, "the key 'updates.clipping_norm' is missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_privacy_does_not_cover_is_refused(case: str, tmp_path: Path) -> None:
    given, sentence = REFUSED[case]
    with pytest.raises(InputError) as refused:
        run(tmp_path / "run", **{"updates": [DP], **given})
    assert sentence in str(refused.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@private
@pytest.mark.usefixtures("accountant")
def test_a_run_that_would_spend_too_much_is_refused_before_it_starts(tmp_path: Path) -> None:
    stage = {**DP, "noise_multiplier": 4.0, "max_epsilon": 8.0}
    with pytest.raises(InputError) as refused:
        run(tmp_path / "run", updates=[stage], rounds=100)
    assert "updates.max_epsilon is 8, but 100 rounds would spend " in str(refused.value)
    rounds = int(str(refused.value).partition("expected at most ")[2].split()[0])
    assert 1 < rounds < 100
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    made = run(tmp_path / "less", updates=[stage], rounds=2)
    assert made.summary["privacy"]["epsilon"] <= 8.0


@private
@pytest.mark.usefixtures("accountant")
def test_a_delta_that_allows_to_publish_a_client_is_warned_of(tmp_path: Path) -> None:
    made = run(tmp_path / "run", updates=[{**DP, "target_delta": 0.2}], rounds=1)
    assert any("updates.target_delta is 0.2: with 8 clients" in text for text in made.summary["warnings"])


def test_only_samplers_that_choose_as_they_say_are_accounted_with_amplification() -> None:
    class Own(UniformSampling):
        def answering(self, round, clients, random):
            return clients[:1]

    kinds = [UniformSampling, PoissonSampling, SamplingBySize, CyclicSampling, Own]
    assert [kind.sampling for kind in kinds] == ["without_replacement", "poisson", None, None, None]


def test_moments_that_are_averaged_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"local.optimiser.state is 'average'"):
        run(tmp_path / "run", updates=[DP], local={"optimiser": {"name": "adam", "state": "average"}, "lr": 0.01})
