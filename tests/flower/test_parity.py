"""The same recipe on `serial` and on a federation's messages: the same global model, to the bit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_grid import grid_of, lines, made_app, model, run_app, serial

from fedrecall.algorithms import ALGORITHMS
from fedrecall.errors import InputError
from fedrecall.objectives import OBJECTIVES
from fedrecall.runs import files

# Those that need one client with all data, models of the clients' own, or data at the server are tested elsewhere.
BOUNDS = {name for name, kind in ALGORITHMS.items() if kind.pooled or kind.personal or "server_data" in kind.needs}
PAIRS = [*itertools.product(sorted(set(ALGORITHMS) - BOUNDS), OBJECTIVES), ("scaffold", "pooled")]
KEPT = ("round", "clients", "lr", "train_loss", "bytes_up", "bytes_down", "flops", "val_accuracy", "test_nll")


def both(folder: Path, recipe: str, *words: str, **own: Any) -> tuple[Path, Path]:
    """The folders of the same run on `serial` and on a federation."""
    config = made_app(folder / "app", recipe, *words)
    run_app(folder / "app", config, grid_of(folder / "app", config, state=folder / "state", **own))
    return serial(folder / "serial", recipe, *words), folder / "app" / "run"


@pytest.mark.parametrize(("algorithm", "objective"), PAIRS)
def test_every_algorithm_with_every_objective_has_the_bits_of_serial(
    tmp_path: Path, recipe_file: str, algorithm: str, objective: str
) -> None:
    words = ["objective=wsm", "objective.prior=pooled"] if objective == "pooled" else [f"objective={objective}"]
    own = {"share-class-counts": objective == "pooled" or "class_counts" in ALGORITHMS[algorithm].discloses}
    short = ["rounds=2", "evaluation.every=2"]
    here, there = both(tmp_path, recipe_file, *words, *short, f"algorithm={algorithm}", **own)
    assert model(here) == model(there)
    measured = [[{key: line.get(key) for key in KEPT} for line in lines(run, files.METRICS)] for run in (here, there)]
    assert measured[0] == measured[1]


@pytest.mark.parametrize("statistics", ["average", "local"])
@pytest.mark.parametrize("algorithm", ["fedavg", "moon", "scaffold"])
def test_batch_norm_has_the_bits_of_serial(tmp_path: Path, recipe_file: str, algorithm: str, statistics: str) -> None:
    net = ["model=resnet18", "model.norm=batch", "model.width=8", "local.steps=2"]
    words = [*net, f"algorithm={algorithm}", f"batch_norm={statistics}", "rounds=3", "evaluation.test_last=0"]
    here, there = both(tmp_path, recipe_file, *words)
    assert model(here) == model(there)
    by_client = [[line["val_accuracy"] for line in lines(run, files.CLIENTS)] for run in (here, there)]
    assert by_client[0] == by_client[1]


@pytest.mark.parametrize("words", [["algorithm=scaffold"], ["algorithm=fednova"], ["forgetting.sample=2"]])
def test_the_forgetting_matrix_is_that_of_serial(tmp_path: Path, recipe_file: str, words: list[str]) -> None:
    here, there = both(tmp_path, recipe_file, *words, "forgetting.every=2", forgetting=True)
    expected, found = (np.load(files.probe_file(run, 2)) for run in (here, there))
    for name in ("models", "data", "before", "after", "after_aggregation", "samples"):
        np.testing.assert_array_equal(expected[name], found[name])
    assert not [name for name in found.files if "class" in name or name == "present"]  # labels stay where they are


def test_forgetting_tells_statistics_from_weights_as_serial_does(tmp_path: Path, recipe_file: str) -> None:
    net = ["model=resnet18", "model.norm=batch", "model.width=8", "local.steps=2"]
    here, there = both(tmp_path, recipe_file, *net, "rounds=1", "forgetting.every=1", forgetting=True)
    expected, found = (np.load(files.probe_file(run, 1)) for run in (here, there))
    np.testing.assert_array_equal(expected["after_global_statistics"], found["after_global_statistics"])


def test_augmentation_and_dropout_draw_the_same_numbers(tmp_path: Path, recipe_file: str) -> None:
    here, there = both(tmp_path, recipe_file, "data.augment=true", "rounds=2")
    assert model(here) == model(there)


EXTENSIONS = {
    "stages": ["updates=[signs:Signs, privacy:ClipAndNoise]"],
    "stages and batch norm": [
        "updates=[signs:Signs]", "model=resnet18", "model.norm=batch", "model.width=8", "local.steps=2",
    ],
    "compression": ["updates=[{name: top_k, fraction: 0.1}, {name: quantise, bits: 4}]", "algorithm=scaffold"],
    "privacy": ["updates=[{name: dp, clipping_norm: 0.5, noise_multiplier: 1.0}]"],
    "single updates": ["algorithm=median:Median"],
    "an optimiser": ["local.optimiser=adam:Adam", "local.momentum=0"],
    "clients that do not answer": ["participation.name=unreliable:Unreliable", "participation.dropout=0.5"],
}  # fmt: skip


@pytest.mark.parametrize("name", EXTENSIONS)
def test_extensions_have_the_bits_of_serial(
    tmp_path: Path, recipe_file: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "privacy":
        pytest.importorskip("dp_accounting", reason="needs fedrecall[privacy]")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "extensions")
    here, there = both(tmp_path, recipe_file, *EXTENSIONS[name])
    assert model(here) == model(there)
    sent = [[line["bytes_up"] for line in lines(run, files.METRICS)] for run in (here, there)]
    assert sent[0] == sent[1]


def test_a_head_stays_at_its_node(tmp_path: Path, recipe_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "extensions")
    words = ["algorithm=personal_head:PersonalHead", "evaluation.test_last=0"]
    config = made_app(tmp_path / "app", recipe_file, *words, test="")
    run_app(tmp_path / "app", config, grid_of(tmp_path / "app", config, state=tmp_path / "state"))
    measured = [
        [line["val_accuracy"] for line in lines(run, files.METRICS)]
        for run in (serial(tmp_path / "serial", recipe_file, *words), tmp_path / "app" / "run")
    ]
    assert measured[0] == measured[1]


@pytest.mark.parametrize("algorithm", ["fedper", "fedbn", "ditto"])
def test_models_of_the_clients_own_have_the_bits_of_serial(tmp_path: Path, recipe_file: str, algorithm: str) -> None:
    words = [f"algorithm={algorithm}", "evaluation.test_last=0", "evaluation.personalised.steps=0", "rounds=3"]
    here, there = both(tmp_path, recipe_file, *words)
    by_client = [[line["val_accuracy"] for line in lines(run, files.CLIENTS)] for run in (here, there)]
    assert by_client[0] == by_client[1]
    measured = [[{key: line.get(key) for key in KEPT} for line in lines(run, files.METRICS)] for run in (here, there)]
    assert measured[0] == measured[1]


@pytest.mark.parametrize("bound", ["centralised", "local_only"])
def test_bounds_are_for_simulations(tmp_path: Path, recipe_file: str, bound: str) -> None:
    with pytest.raises(InputError, match=f"algorithm is '{bound}'"):
        made_app(tmp_path / "app", recipe_file, f"algorithm={bound}")
