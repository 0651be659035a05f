"""One model for any class shares: how it is judged, handed out and saved for others than those of its training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedrecall import WSM, CrossEntropy, Dirichlet, Federation, FedVLS, InputError, Local, Run, federate
from fedrecall.cli.output import summary_table

SHARES = np.array([0.6, 0.3, 0.1])


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Three overlapping classes, the first six times as frequent as the last."""
    random = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], (SHARES * 600).astype(int))
    x = (random.normal(size=(600, 4)) + 1.2 * np.eye(3, 4)[y]).astype("float32")
    order = random.permutation(600)
    x, y = x[order], y[order]
    partition = Dirichlet(alpha=0.5, clients=6, validation=0.1, seed=0)
    return Federation.from_arrays(x[:450], y[:450], test=(x[450:], y[450:]), partition=partition)


def trained(federation: Federation, out, model=None, **options) -> Run:
    settings = {"objective": CrossEntropy(), "rounds": 6, "participation": 0.5, "forgetting": {"every": 3}}
    torch.manual_seed(0)
    return federate(
        model or nn.Linear(4, 3), federation, local=Local(lr=0.2, batch_size=16), out=out, **(settings | options)
    )


def pooled_by_hand(federation: Federation) -> np.ndarray:
    counts = sum(np.bincount(federation.train.y[federation.train_indices(k)], minlength=3) for k in range(6))
    return counts / counts.sum()


def answers(run: Run, federation: Federation, shift: np.ndarray) -> np.ndarray:
    """What the saved model says of the test set, with something added to its logits."""
    assert federation.test is not None
    logits = run.model()(torch.from_numpy(np.array(federation.test.x))).detach().numpy()
    return (logits + shift).argmax(1)


def accuracies(run: Run, federation: Federation, shift: np.ndarray) -> tuple[float, float]:
    assert federation.test is not None
    y = np.array(federation.test.y)
    right = answers(run, federation, shift) == y
    return right.mean(), np.mean([right[y == c].mean() for c in range(3)])


def test_cross_entropy_is_moved_from_the_pooled_shares(federation, tmp_path) -> None:
    plain, judged = (
        trained(federation, tmp_path / prior, evaluation={"prior": prior}) for prior in ("as_trained", "uniform")
    )
    shift = -np.log(pooled_by_hand(federation))
    last = judged.metrics[-1]
    assert (last["test_accuracy"], last["test_accuracy_macro"]) == pytest.approx(accuracies(plain, federation, shift))
    assert plain.metrics[-1]["test_accuracy"] == pytest.approx(accuracies(plain, federation, 0 * shift)[0])
    # The model for equal shares is better by class, the one for the frequent classes over samples.
    assert last["test_accuracy_macro"] > plain.metrics[-1]["test_accuracy_macro"]
    assert last["test_accuracy"] < plain.metrics[-1]["test_accuracy"]
    # What is trained is the same.
    assert (plain.path / "model.safetensors").read_bytes() == (judged.path / "model.safetensors").read_bytes()
    assert plain.metrics[-1]["train_loss"] == last["train_loss"]


@pytest.mark.parametrize(
    ("objective", "prior", "shift_of"),
    [
        (WSM(), "pooled", lambda p: np.log(p)),
        (WSM(), "uniform", lambda p: 0 * p),
        (WSM(tau=0), "uniform", lambda p: -np.log(p)),
        (WSM(smoothing=1), "uniform", lambda p: -np.log(p)),
        (WSM(prior="pooled"), "uniform", lambda p: -np.log(p)),
        (WSM(prior=(1, 2, 3)), "pooled", lambda p: np.log(p / [1, 2, 3])),
        (FedVLS(), [0.2, 0.3, 0.5], lambda p: np.log([0.2, 0.3, 0.5])),
    ],
)
def test_what_each_objective_is_trained_for(objective, prior, shift_of) -> None:
    shares = np.array([0.5, 0.3, 0.2])
    moved = objective.shift_to(prior if isinstance(prior, str) else tuple(prior), torch.tensor(shares)).numpy()
    expected = shift_of(shares)
    np.testing.assert_allclose(moved - moved[0], expected - expected[0], atol=1e-6)


def test_a_class_that_nobody_has_keeps_its_logit() -> None:
    pooled = torch.tensor([0.75, 0.25, 0.0])
    np.testing.assert_allclose(CrossEntropy().shift_to("uniform", pooled), [np.log(2 / 3), np.log(2), 0], atol=1e-6)
    assert WSM().shift_to("uniform", pooled).tolist() == [0, 0, 0]


def test_a_class_that_is_never_met_is_never_chosen(federation, tmp_path) -> None:
    run = trained(federation, tmp_path / "run", evaluation={"prior": [0.0, 0.5, 0.5]})
    model = run.model(prior=[0.0, 0.5, 0.5])
    assert 0 not in model(torch.randn(500, 4)).argmax(1)
    assert all(np.isfinite(line["val_nll"]) for line in run.metrics if "val_nll" in line)


def test_the_model_of_a_run_holds_the_prior_in_its_last_bias(federation, tmp_path) -> None:
    run = trained(federation, tmp_path / "run")
    plain, moved = run.model(), run.model(prior="uniform")
    shift = -np.log(pooled_by_hand(federation))
    difference = (moved.bias - plain.bias).detach().numpy()
    np.testing.assert_allclose(difference - difference[0], shift - shift[0], atol=1e-6)
    run.save_model(tmp_path / "moved.safetensors", prior="uniform")
    assert torch.equal(load_file(tmp_path / "moved.safetensors")["bias"], moved.bias)
    with pytest.raises(InputError, match="prior is 'even'; as_trained, uniform, pooled or a list"):
        run.model(prior="even")
    with pytest.raises(InputError, match="prior has 2 shares, but there are 3 classes"):
        run.model(prior=[0.5, 0.5])


class Scaled(nn.Module):
    """Its last linear layer is not the end of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        return 2 * self.inner(x)


@pytest.mark.parametrize("model", [nn.Linear(4, 3, bias=False), Scaled()], ids=["without a bias", "scaled"])
def test_where_no_bias_can_hold_it_the_prior_is_around_the_model(model, federation, tmp_path) -> None:
    run = trained(federation, tmp_path / "run", model)
    x = torch.randn(5, 4)
    difference = (run.model(prior="uniform")(x) - run.model()(x)).detach().numpy()[0]
    shift = -np.log(pooled_by_hand(federation))
    np.testing.assert_allclose(difference - difference[0], shift - shift[0], atol=1e-5)
    with pytest.raises(InputError, match="last layer has no bias to hold the prior"):
        run.save_model(tmp_path / "moved.safetensors", prior="uniform")


def test_both_accuracies_are_shown_with_a_word_on_priors_where_the_test_set_is_not_balanced(
    federation, tmp_path
) -> None:
    run = trained(federation, tmp_path / "run", objective=WSM())
    assert run.summary["meant_for"] == "uniform"
    table = summary_table({"FedAvg + WSM": run.summary})
    assert [column.header for column in table.columns][1:3] == ["final accuracy", "by class"]
    assert "FedAvg + WSM is meant for equal class shares, which favours accuracy by class" in str(table.caption)
    equal = {**run.summary, "final_accuracy_macro": run.summary["final_accuracy"]}
    assert "by class" not in [column.header for column in summary_table({"a": equal}).columns]


def test_wsm_says_that_it_is_meant_for_equal_shares_where_they_are_not(federation, tmp_path) -> None:
    def said(name: str, **options) -> bool:
        found = trained(federation, tmp_path / name, rounds=1, **options).summary["warnings"]
        return any("meant for equal class shares" in text and "prior=pooled" in text for text in found)

    assert said("wsm", objective=WSM())
    assert not said("pooled", objective=WSM(prior="pooled"))
    assert not said("chosen", objective=WSM(), evaluation={"prior": "uniform"})
    assert not said("ce", objective=CrossEntropy())
    x, y = np.random.default_rng(0).normal(size=(90, 4)).astype("float32"), np.arange(90) % 3
    even = Federation.from_arrays(x, y, partition={"name": "iid", "clients": 6}, num_classes=3)
    assert not any("equal class shares" in text for text in trained(even, tmp_path / "even").summary["warnings"])


@pytest.mark.usefixtures("warm_workers")
def test_engines_agree_on_pooled_shares(federation, tmp_path) -> None:
    runs = {
        engine: trained(federation, tmp_path / engine, objective=WSM(prior="pooled", smoothing=0.01), engine=engine)
        for engine in ("serial", "processes", "vectorised")
    }
    weights = {name: load_file(run.path / "model.safetensors")["weight"] for name, run in runs.items()}
    assert torch.equal(weights["serial"], weights["processes"])
    torch.testing.assert_close(weights["serial"], weights["vectorised"], rtol=0, atol=1e-5)


def test_own_models_are_not_judged_for_other_shares(federation, tmp_path) -> None:
    with pytest.raises(InputError, match="each model is trained for its client's own class shares"):
        trained(federation, tmp_path / "run", algorithm="local_only", evaluation={"prior": "pooled"})
    with pytest.raises(InputError, match=r"evaluation\.prior has 2 shares, but there are 3 classes"):
        trained(federation, tmp_path / "run", evaluation={"prior": [0.5, 0.5]})
    with pytest.raises(InputError, match=r"objective\.prior has 2 shares, but there are 3 classes"):
        trained(federation, tmp_path / "run", objective=WSM(prior=(0.5, 0.5)))
