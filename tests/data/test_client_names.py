"""Names of clients, from every source that has them, to every place that shows them, where they are only text."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import Federation, Iid, Natural, diagnose, federate
from fedrecall.data.sources import csv, npz
from fedrecall.errors import InputError

X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
Y = np.arange(60) % 3
NASTY = "<script>alert(1)</script> $x_1$ & \x1b[31m\n"
NAMES = {NASTY: (X, Y), "Basel": (X, Y), "Bern": (X, Y), "7": (X, Y)}


def test_a_dictionary_of_clients_keeps_their_order_and_names() -> None:
    federation = Federation.from_clients(NAMES, validation=0.2)
    assert federation.client_names == tuple(NAMES)
    assert Federation.from_clients([(X, Y), (X, Y)]).client_names == ()


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([X, Y], r"^client 0 is an array of shape \(60, 3\); a pair \(samples, labels\) was expected$"),
        ((X, Y), r"^client 0 is an array of shape \(60, 3\); a pair"),
        ({"Basel": (X, Y), "Bern": (X, Y, Y)}, r"^client 'Bern' is a tuple of 3; a pair"),
        ({"Basel": X}, r"^client 'Basel' is an array of shape \(60, 3\); a pair"),
        (X, r"^clients is an array of shape \(60, 3\); a list of \(samples, labels\) pairs, or a dictionary of them"),
        (5, r"^clients is 5; a list of"),
        ({}, r"^there are no clients; a list of"),
        ({"Basel": (X, Y[:5])}, r"^there are 60 client 'Basel' samples but 5 client 'Basel' labels$"),
    ],
)
def test_clients_of_another_shape_are_one_sentence(clients, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        Federation.from_clients(clients)


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["b", "a", "c"], ("a", "b", "c")),
        ([30, 10, 20], ("10", "20", "30")),
        ([2, 0, 1], ()),  # the numbers that the clients have anyway
        (["2", "0", "1"], ()),
    ],
)
def test_ids_that_say_more_than_a_number_are_names(ids, names) -> None:
    federation = Federation.from_arrays(X, Y, partition=Natural(validation=0.2), ids=np.repeat(ids, 20))
    assert federation.client_names == names


def test_names_stay_with_their_clients_if_small_ones_are_left_out_and_samples_are_drawn() -> None:
    ids = np.array(["a"] * 20 + ["b"] * 2 + ["c"] * 38)
    partition = Natural(validation=0.2, min_samples=5)
    federation = Federation.from_arrays(X, Y, partition=partition, ids=ids, test_fraction=0.2)
    assert federation.client_names == ("a", "c")
    assert Federation.from_arrays(X, Y, partition=Iid(clients=4), ids=ids).client_names == ()


def test_another_process_gets_the_names() -> None:
    federation = Federation.from_clients(NAMES, validation=0.2)
    assert pickle.loads(pickle.dumps(federation)).client_names == tuple(NAMES)


def test_id_columns_of_files_give_names(tmp_path: Path) -> None:
    rows = [f"{x[0]},{x[1]},{y},{('Zug', 'Aarau')[i % 2]}" for i, (x, y) in enumerate(zip(X, Y))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y,ward", *rows]))
    data = csv(str(tmp_path / "t.csv"), label="y", id="ward")
    assert Federation.from_data(data, Natural()).client_names == ("Aarau", "Zug")
    np.savez(tmp_path / "t.npz", x_train=X, y_train=Y, x_test=X, y_test=Y, ids_train=np.repeat(["u", "v", "w"], 20))
    assert Federation.from_data(npz(str(tmp_path / "t.npz")), Natural()).client_names == ("u", "v", "w")


def play(out: Path, clients, **settings):
    torch.manual_seed(0)
    federation = Federation.from_clients(clients, test=(X, Y), validation=0.2)
    return federate(
        nn.Linear(3, 3), federation, rounds=2, clients_per_round=3, evaluation={"every": 1},
        forgetting={"every": 1}, out=out, **settings,
    )  # fmt: skip


def test_a_run_carries_the_names_and_has_the_bits_of_one_without(tmp_path: Path) -> None:
    named = play(tmp_path / "named", NAMES, engine="serial", report=True)
    bare = play(tmp_path / "bare", list(NAMES.values()), engine="serial")
    other = play(tmp_path / "processes", NAMES, engine="processes", workers=2)
    metrics = [(run.path / "metrics.jsonl").read_bytes() for run in (named, bare, other)]
    assert metrics[0] == metrics[1] == metrics[2]
    assert (named.path / "clients.jsonl").read_bytes() == (other.path / "clients.jsonl").read_bytes()
    cards = [json.loads((run.path / "partition.json").read_text()) for run in (named, bare)]
    assert cards[0]["client_names"] == list(NAMES)
    assert {**cards[0], "client_names": 0} == {**cards[1], "client_names": 0}
    lines = [json.loads((run.path / "clients.jsonl").read_text().splitlines()[-1]) for run in (named, bare)]
    assert lines[0].pop("name") == list(NAMES)
    assert lines[0] == lines[1]
    hashes = [json.loads((run.path / "summary.json").read_text())["recipe_sha256"] for run in (named, bare)]
    assert hashes[0] == hashes[1]

    page = (named.path / "report.html").read_text()
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "Basel (client 1)" in page  # in the bars of clients
    assert "id 7 (client 3)" in page
    bare.report()
    assert '"names":{},"ticks":{}' in (bare.path / "report.html").read_text()
    for suffix in ("png", "pdf", "svg"):
        assert draw(named.path, tmp_path / f"heat.{suffix}")


def draw(run: Path, out: Path) -> int:
    from fedrecall.recipe.display_titles import titles
    from fedrecall.report.comparison import group_methods
    from fedrecall.report.figures.heatmaps import draw_heatmaps
    from fedrecall.report.figures.shares import draw_shares
    from fedrecall.runs.reader import load_run

    methods = group_methods([load_run(run)], titles())
    for figure in (draw_heatmaps(methods, 2), draw_shares(methods)):
        assert figure is not None
        figure.savefig(out)  # a formula or an unknown sign in a name would raise
    texts = [tick.get_text() for tick in draw_heatmaps(methods, 2).axes[0].get_xticklabels()]
    assert sorted(texts) == sorted(["<script>alert…", "Basel", "Bern", "id 7"])
    return out.stat().st_size


def test_a_diagnosis_names_them_on_one_line(tmp_path: Path) -> None:
    x = X.copy()
    x[np.arange(60), Y] += 3
    clients = {name: (x[(c == Y) | (Y == 2)], Y[(c == Y) | (Y == 2)]) for c, name in enumerate(list(NAMES)[:2])}
    federation = Federation.from_clients(clients, validation=0.2)
    model = nn.Linear(3, 3)
    nn.init.eye_(model.weight)  # it knows the classes
    found = diagnose(model, federation, out=tmp_path / "d", local={"lr": 5.0, "steps": 50})
    text = str(found)
    assert "(client " in text
    assert "\x1b" not in text
    assert "<script>" not in found._repr_html_()
    assert "<script>alert" not in found.report.read_text()


def test_the_command_shows_names(fedrecall, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ids = np.repeat(["Basel", "Bern\x1b[31m", "Chur"], 20)
    np.savez("t.npz", x_train=X, y_train=Y, x_test=X, y_test=Y, ids_train=ids)
    done = fedrecall("partition", "demo", "data=npz", "data.path=t.npz", "partition=natural", "--out", "card")
    assert (done.code, done.err) == (0, "")
    assert "Basel (client 0)" in done.out
    assert "\x1b" not in done.out
    assert json.loads(Path("card/partition.json").read_text())["client_names"] == sorted(set(ids.tolist()))
