"""Settings in words: what is shared once, what differs by method, and nothing that is not known."""

from __future__ import annotations

import pytest

from fedrecall.report.page.page import title
from fedrecall.report.what_was_run import settings, what_was_run

WSM = {"name": "wsm", "tau": 1.0, "smoothing": 0.0}


def test_shared_settings_are_said_once(methods) -> None:
    shared, own = what_was_run(methods({}, {"objective": WSM}, {"objective": WSM, "local": {"lr": 0.5}}))
    assert dict(shared)["Data"] == "CIFAR-10"
    assert dict(shared)["Algorithm"] == "FedAvg"
    assert [dict(lines)["Objective"] for lines in own] == ["cross-entropy", *["WSM (tau 1, smoothing 0)"] * 2]
    trains = "3 epochs, batches of 64, rate {}, weight decay 0.0001"
    assert [dict(lines)["A client trains"] for lines in own] == [trains.format(r) for r in (0.01, 0.01, 0.5)]
    assert not {"Data", "Model", "Rounds"} & {about for lines in own for about, _ in lines}


def test_of_one_method_everything_is_shared(methods) -> None:
    shared, own = what_was_run(methods({}))
    assert own == [[]]
    assert {"Data", "Objective", "Seeds"} <= set(dict(shared))


def test_all_seeds_are_said(methods) -> None:
    (method,) = methods({"seed": 0}, {"seed": 1}, {"seed": 2})
    assert dict(settings(method))["Seeds"] == "0, 1 and 2 for the runs, 0 for the partition"


@pytest.mark.parametrize(
    ("model", "batch_norm", "said"),
    [
        ({"name": "lenet"}, "average", "none in the model"),
        ({"name": "resnet18", "norm": "group"}, "average", "none in the model"),
        (
            {"name": "resnet18", "norm": "batch"},
            "average",
            "statistics are averaged, weighted by samples (average)",
        ),
        ({"name": "python"}, "average", None),
        ({"name": "mymodel:net"}, "average", None),
        ({"name": "python"}, "local", "statistics stay with the client (local)"),
    ],
)
def test_batch_norm_is_spoken_of_where_it_is_known(methods, model, batch_norm, said) -> None:
    (method,) = methods({"model": model, "batch_norm": batch_norm})
    found = dict(settings(method)).get("Batch norm")
    assert found is None if said is None else (found or "").startswith(said)


@pytest.mark.parametrize(
    ("data", "model", "expected"),
    [
        ({"name": "cifar10"}, {"name": "lenet"}, "LeNet on CIFAR-10"),
        ({"name": "npz", "path": "some/where/my.npz"}, {"name": "mymodel:net"}, "mymodel:net on my.npz"),
        ({"name": "hf", "path": "org/set"}, {"name": "python", "class": "nets:Tiny"}, "nets:Tiny on org/set"),
        ({"name": "python"}, {"name": "python"}, "a model given in Python on data given in Python"),
    ],
)
def test_the_title_names_the_file_or_the_class(methods, data, model, expected) -> None:
    assert title(methods({"data": data, "model": model})) == expected
