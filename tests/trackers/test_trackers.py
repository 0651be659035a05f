"""Trackers: what they were told is read back, also after a resume."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedrecall import Federation, InputError, Run, Tracker, federate
from fedrecall.api.run_recipe import load_run_recipe
from fedrecall.data.partition import Dirichlet
from fedrecall.measure.watcher import Round, Watcher
from fedrecall.runs import files
from fedrecall.trackers import TRACKERS, TrackedRun, TrackerSession

ROUNDS = 3


def federation() -> Federation:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 4)).astype("float32"), random.integers(0, 3, 120)
    x[np.arange(120), y] += 2
    return Federation.from_arrays(
        x[:90], y[:90], test=(x[90:], y[90:]), partition=Dirichlet(alpha=0.5, clients=4, validation=0.3, seed=0)
    )


def run(out: Path, rounds: int = ROUNDS, **given: Any) -> Run:
    settings: dict[str, Any] = {"forgetting": {"every": 2}, "evaluation": {"every": 1}, "participation": 1.0}
    local = {"epochs": 1, "batch_size": 8, "lr": 0.1}
    return federate(
        {"name": "mlp", "hidden": [4]},
        federation(),
        rounds=rounds,
        local=local,
        out=out,
        progress=False,
        engine="serial",
        checkpoint={"every": 1},
        **{**settings, **given},
    )


class StopAfter(Watcher):
    def __init__(self, round: int) -> None:
        self.round = round

    def after(self, round: Round) -> None:
        if round.number == self.round:
            raise RuntimeError("stop here")


def stopped_and_resumed(out: Path, **given: Any) -> Run:
    """The stop is before the tracker's turn, so that it has the round twice at most."""
    with pytest.raises(RuntimeError, match="stop here"):
        run(out, callbacks=[StopAfter(2)], **given)
    return run(out, resume=True, **given)


def losses(made: Run) -> list[tuple[int, float]]:
    return [(line["round"], line["train_loss"]) for line in made.metrics]


class Told(TrackerSession):
    """Keeps what it is told."""

    def __init__(self, run: TrackedRun) -> None:
        self.run, self.id, self.known = run, run.id or "first-1", run.rounds_done if run.id else 0
        self.lines: dict[int, Any] = {}
        self.images: list[tuple[str, int, tuple[int, ...]]] = []
        self.closed: list[Any] = []

    def scalars(self, round: int, values: Any) -> None:
        self.lines[round] = dict(values)

    def image(self, name: str, round: int, pixels: np.ndarray) -> None:
        assert pixels.dtype == np.uint8
        assert pixels.std() > 0  # something is drawn
        self.images.append((name, round, pixels.shape))

    def close(self, round: int, summary: Any, values: Any) -> None:
        self.closed.append((round, dict(summary), dict(values)))


class Telling(Tracker):
    def __init__(self) -> None:
        self.sessions: list[Told] = []

    def open(self, run: TrackedRun) -> TrackerSession:
        self.sessions.append(Told(run))
        return self.sessions[-1]


def test_a_tracker_is_told_of_the_recipe_each_line_the_figures_and_the_summary(tmp_path: Path) -> None:
    tracker = Telling()
    made = run(tmp_path / "run", trackers=[tracker])
    (told,) = tracker.sessions
    assert told.run.recipe["local"]["lr"] == told.run.settings["local.lr"] == 0.1
    assert (told.run.name, told.run.rounds_done, told.run.id) == ("run", 0, None)
    numbers = [{key for key, value in line.items() if isinstance(value, float)} for line in made.metrics]
    for line, floats in zip(made.metrics, numbers):
        assert {key: told.lines[line["round"]][key] for key in floats} == {key: line[key] for key in floats}
        assert set(told.lines[line["round"]]) >= floats | {"bytes_up", "lr"}
        assert not {"clients", "round"} & set(told.lines[line["round"]])
    shown = [(name, round) for name, round, _ in told.images]
    assert shown[0] == ("figures/forgetting-matrix", 2)
    assert {name for name, round in shown if round == ROUNDS} == {
        f"figures/{name}" for name in ("forgetting", "convergence", "class-shares")
    }
    ((round, summary, values),) = told.closed
    assert (round, summary["status"]) == (ROUNDS, "finished")
    assert values["final_accuracy"] == made.summary["final_accuracy"]


def test_a_tracker_changes_nothing_and_is_no_part_of_the_identity(tmp_path: Path) -> None:
    with_one, without = run(tmp_path / "a", trackers=[Telling()]), run(tmp_path / "b")
    for name in (files.METRICS, files.CLIENTS, files.MODEL):
        assert (with_one.path / name).read_bytes() == (without.path / name).read_bytes()
    assert with_one.summary["recipe_sha256"] == without.summary["recipe_sha256"]
    assert not (without.path / files.TRACKERS).exists()


def test_a_resumed_run_has_the_id_that_it_began_with(tmp_path: Path) -> None:
    tracker = Telling()
    made = stopped_and_resumed(tmp_path / "run", trackers=[tracker])
    first, second = tracker.sessions
    assert (first.run.id, second.run.id, second.run.rounds_done) == (None, "first-1", 2)
    assert json.loads((made.path / files.TRACKERS).read_text()) == {"telling": "first-1"}
    assert first.closed[0][1]["status"] == "failed"
    assert sorted(second.lines) == [3]


def test_a_tracker_that_is_added_to_a_resumed_run_is_told_of_the_rounds_before(tmp_path: Path) -> None:
    given: dict[str, Any] = {"forgetting": {"every": 0}}
    with pytest.raises(RuntimeError, match="stop here"):
        run(tmp_path / "run", callbacks=[StopAfter(2)], **given)
    tracker = Telling()
    made = run(tmp_path / "run", resume=True, trackers=[tracker], **given)
    assert [(t, line["train_loss"]) for t, line in tracker.sessions[0].lines.items()] == losses(made)


@pytest.mark.parametrize("damage", ['{"telling": 5}', '{"telling": "a/b"}', "[1]", "{", '{"telling": "\\u001b[0m"}'])
def test_a_damaged_file_of_ids_is_refused(damage: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop here"):
        run(tmp_path / "run", callbacks=[StopAfter(2)])
    (tmp_path / "run" / files.TRACKERS).write_text(damage)
    with pytest.raises(InputError, match=r"trackers.json"):
        run(tmp_path / "run", resume=True, trackers=[Telling()])


def test_two_trackers_of_one_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trackers has 'telling' twice; expected different ones"):
        run(tmp_path / "run", trackers=[Telling()], callbacks=[Telling()])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_whose_package_is_not_installed_says_how_to_get_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrecall.trackers.base.find_spec", lambda package: None)
    with pytest.raises(InputError) as refused:
        run(tmp_path / "run", trackers=[name])
    assert f"needs the package {name}; install it with: pip install 'fedrecall[{name}]'" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_run_from_elsewhere_is_not_sent_anywhere_without_trust(tmp_path: Path) -> None:
    made = run(tmp_path / "run", forgetting={"every": 0})
    written = yaml.safe_load((made.path / files.RECIPE).read_text())
    written["trackers"] = [{"name": "mlflow", "uri": "http://127.0.0.1:1"}]
    (made.path / files.RECIPE).write_text(yaml.safe_dump(written))
    with pytest.raises(InputError, match=r"would send its metrics to mlflow, .* look at that tracker, and say --trust"):
        load_run_recipe(made.path, trust=False)
    assert load_run_recipe(made.path, trust=True).trackers[0]["uri"] == "http://127.0.0.1:1"


def test_an_option_that_no_tracker_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no key 'trackers.url'; did you mean 'uri'"):
        run(tmp_path / "run", trackers=[{"name": "mlflow", "url": "x"}])


def test_trackers_import_nothing_before_they_are_opened() -> None:
    made = "import sys, fedrecall as f; f.MLflow(), f.TensorBoard(), f.WandB()"
    script = f"{made}; print({{'mlflow', 'wandb', 'tensorboard'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "set()\n"


def read_tensorboard(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    events.Reload()
    return events


@pytest.mark.heavy
def test_tensorboard_is_read_back(tmp_path: Path) -> None:
    made = stopped_and_resumed(tmp_path / "run", trackers=["tensorboard"])
    events = read_tensorboard(made.path)
    read = [(event.step, event.value) for event in events.Scalars("train_loss")]
    assert read == [(round, pytest.approx(loss, rel=1e-6)) for round, loss in losses(made)]
    last = events.Scalars("summary/final_accuracy")[-1]
    assert (last.step, last.value) == (ROUNDS, pytest.approx(made.summary["final_accuracy"]))
    assert [event.step for event in events.Images("figures/forgetting-matrix")] == [2]
    assert {"figures/convergence", "figures/class-shares"} < set(events.Tags()["images"])
    texts = events.Tags()["tensors"]
    assert {"recipe/text_summary", "summary/text_summary"} <= set(texts)
    recipe = events.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0].decode()
    assert json.loads(recipe)["local"]["lr"] == 0.1
    assert "_hparams_/session_start_info" in events.summary_metadata


@pytest.mark.heavy
def test_tensorboard_forgets_rounds_that_a_resumed_run_makes_again(tmp_path: Path) -> None:
    """Rounds 2 and 3 are written, the newest checkpoint is that of round 1."""
    made = run(tmp_path / "run", trackers=["tensorboard"])
    for path in (made.path / files.CHECKPOINTS).glob("*00003*"):
        path.unlink()
    (made.path / files.SUMMARY).unlink()
    again = run(tmp_path / "run", resume=True, trackers=["tensorboard"])
    read = [event.step for event in read_tensorboard(again.path).Scalars("train_loss")]
    assert read == [1, 2, 3]


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")
    monkeypatch.chdir(tmp_path)  # artifacts of a local store are below the working directory
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.mark.heavy
def test_mlflow_is_read_back(tmp_path: Path, mlflow_store: str) -> None:
    from mlflow.tracking import MlflowClient

    tracker = {"name": "mlflow", "uri": mlflow_store, "experiment": "forgetting"}
    made = stopped_and_resumed(tmp_path / "run", trackers=[tracker])
    client = MlflowClient(tracking_uri=mlflow_store)
    experiment = client.get_experiment_by_name("forgetting")
    (found,) = client.search_runs([experiment.experiment_id])  # one run, although it was resumed
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [(point.step, point.value) for point in history] == losses(made)
    assert found.data.params["local.lr"] == "0.1"
    assert found.data.metrics["summary/final_accuracy"] == made.summary["final_accuracy"]
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    artifacts = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert {"recipe.yaml", "summary.json", "figures"} <= artifacts
    matrices = client.list_artifacts(found.info.run_id, "figures/forgetting-matrix")
    assert [file.path for file in matrices] == ["figures/forgetting-matrix/round-00002.png"]

    longer = run(tmp_path / "run", rounds=5, resume=True, trackers=[tracker])
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [(point.step, point.value) for point in history] == losses(longer)


@pytest.mark.heavy
def test_an_mlflow_run_that_is_gone_is_told(tmp_path: Path, mlflow_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    with pytest.raises(RuntimeError, match="stop here"):
        run(tmp_path / "run", callbacks=[StopAfter(2)], trackers=["mlflow"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store.replace("mlflow.db", "another.db"))
    with pytest.raises(InputError, match=r"the MLflow run .* cannot be read .* delete the folder's trackers.json"):
        run(tmp_path / "run", resume=True, trackers=["mlflow"])


@pytest.mark.heavy
def test_wandb_offline_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    made = stopped_and_resumed(tmp_path / "run", trackers=[{"name": "wandb", "mode": "offline"}])
    first, second = sorted((made.path / "wandb").glob("offline-run-*"))
    name = json.loads((made.path / files.TRACKERS).read_text())["wandb"]
    assert first.name.endswith(name)
    assert second.name.endswith(name)
    history = [row for folder in (first, second) for row in wandb_history(folder, name)]
    read = [(int(row["_step"]), row["train_loss"]) for row in history if "train_loss" in row]
    assert read == losses(made)
    pictures = [*first.glob("files/media/images/figures/*.png"), *second.glob("files/media/images/figures/*.png")]
    assert {path.name.split("_")[0] for path in pictures} == {
        "forgetting-matrix",
        "forgetting",
        "convergence",
        "class-shares",
    }


def wandb_history(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of an offline run's history, in the order of its file."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for content in leveldb_records((folder / f"run-{name}.wandb").read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        items = record.history.item
        if items:
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def leveldb_records(log: bytes, block: int = 32768) -> list[bytes]:
    """Return the records of a log in LevelDB's format, which begins with seven bytes of W&B's."""
    at, found, parts = 7, [], b""
    while at + 7 <= len(log):
        if block - at % block < 7:  # the rest of a block is too small for a header
            at += block - at % block
            continue
        size, kind = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        parts += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found.append(parts)
            parts = b""
    return found
