"""Bad input: exit code 2 and one sentence that names the culprit, never a traceback, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

# words after `fedrecall`, and what the sentence must name
WORDS = [
    (["demmo"], "'demmo'; did you mean 'demo'?"),
    (["run"], "RECIPE"),
    (["--verson"], "'--verson'; did you mean '--version'?"),
    (["recipes", "shw"], "'shw'; did you mean 'show'?"),
    (["recipes", "show"], "a recipe's name is missing"),
    (["recipes", "copy", "dem"], "'dem'; did you mean 'demo'?"),
    (["run", "dmo"], "'dmo', by name or as a file; did you mean 'demo'?"),
    (["run", "nowhere/a.yaml"], "nowhere/a.yaml"),
    (["run", "demo", "rouns=3"], "'rouns'; did you mean 'rounds'?"),
    (["run", "demo", "lr=3"], "'lr'; did you mean 'local.lr'?"),
    (["run", "demo", "rounds=0"], "rounds is 0;"),
    (["run", "demo", "rounds=many"], "rounds is 'many';"),
    (["run", "demo", "rounds"], "'rounds' is not a setting"),
    (["run", "demo", "--rounds"], "'--rounds' has no value"),
    (["run", "demo", "rounds={a"], "rounds is '{a'"),
    (["run", "demo", "seed=-1"], "seed is -1;"),
    (["run", "demo", "participation=1.5"], "participation is 1.5;"),
    (["run", "demo", "participation=0.1", "clients_per_round=2"], "participation and clients_per_round"),
    (["run", "demo", "clients_per_round=21"], "clients_per_round is 21, but only 20 clients"),
    (["run", "demo", "local.lr=-1"], "local.lr is -1;"),
    (["run", "demo", "local.lr=nan"], "local.lr is 'nan'"),
    (["run", "demo", "local.batchsize=3"], "'local.batchsize'; did you mean 'batch_size'?"),
    (["run", "demo", "local.momentum=1"], "local.momentum is 1;"),
    (["run", "demo", "local.schedule=cos"], "local.schedule.name is 'cos';"),
    (["run", "demo", "local=3"], "local is 3;"),
    (["run", "demo", "objective=wms"], "objective is 'wms', which is not known; did you mean 'wsm'?"),
    (["run", "demo", "objective.tau=-1"], "objective.tau is -1"),
    (["run", "demo", "objective.smoothing=2"], "objective.smoothing is 2"),
    (["run", "demo", "objective.tua=1"], "'objective.tua'; did you mean 'tau'?"),
    (["run", "demo", "objective=[1]"], "objective is [1];"),
    (["run", "demo", "algorithm=fedavgg"], "'fedavgg', which is not known; did you mean 'fedavg'?"),
    (["run", "demo", "model=resnext"], "model is 'resnext'"),
    (["run", "demo", "model=mlp", "model.hidden=[0]"], "model.hidden is [0];"),
    (["run", "demo", "model=no_such:net"], "no module 'no_such'"),
    (["run", "demo", "data=fashion"], "data is 'fashion', which is not known; did you mean 'fashion_mini'?"),
    (["run", "demo", "data=cifar10", "--data", "nowhere"], "nowhere"),
    (["run", "demo", "partition.alpha=0"], "partition.alpha is 0"),
    (["run", "demo", "partition.clients=20000"], "partition.clients is 20000"),
    (["run", "demo", "partition.validation=1"], "partition.validation is 1"),
    (["run", "demo", "partition.held_out=20"], "partition.held_out is 20"),
    (["run", "demo", "partition=natural"], "this data set has no client ids"),
    (["run", "demo", "partition.validation=0"], "partition.validation is 0"),
    (["run", "demo", "forgetting.rounds=[0]"], "forgetting.rounds"),
    (["run", "demo", "--engine", "procs"], "execution.engine is 'procs';"),
    (["run", "demo", "--workers", "none"], "execution.workers is 'none';"),
    (["run", "demo", "--out", "taken"], "taken"),
    (["demo", "--out", "file.txt"], "file.txt"),
    (["partition", "demo", "--out", "file.txt"], "file.txt"),
]

# text of a recipe file, and what the sentence must name
FILES = [
    ("rounds: [", "is not YAML"),
    ("- rounds\n- 3", "is not a list of keys and values"),
    ("3: 4", "it has the key '3', and keys are words"),
    ("rounds: {a: 1}", "rounds is {'a': 1};"),
    ("objective: {tau: 1, name: 5}", "objective.name is 5;"),
    ("objective: {}\nlocal: {epochs: 0}", "local.epochs is 0;"),
    ("local: {epochs: 1, steps: 1}", "local.epochs and local.steps are both given"),
    ("model: {name: lenet, norm: batch}", "'model.norm'"),
    ("!!python/object/apply:os.system ['true']", "it has a value of the type 'os.system'"),
]


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "recipe.yaml").write_text("rounds: 1\n")
    (tmp_path / "file.txt").write_text("mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_one_sentence(finished, named: str) -> None:
    assert finished.code == 2
    assert finished.out == ""
    assert finished.err.startswith("fedrecall: error: ")
    assert finished.err.count("\n") == 1
    assert named in finished.err


@pytest.mark.parametrize(
    ("words", "named"), WORDS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_words_are_one_sentence(fedrecall, tmp_path, words, named) -> None:
    before = contents(tmp_path)
    check_one_sentence(fedrecall(*words), named)
    assert contents(tmp_path) == before
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("text", "named"), FILES)
def test_bad_recipe_files_are_one_sentence(fedrecall, tmp_path, text, named) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    check_one_sentence(fedrecall("run", "bad.yaml"), named)


def test_a_recipe_that_is_not_text_is_one_sentence(fedrecall, tmp_path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00rounds")
    check_one_sentence(fedrecall("run", "bad.yaml"), "bad.yaml")


def test_a_truncated_data_file_is_one_sentence(fedrecall, tmp_path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (folder / name).write_bytes(b"\x01" * 1000)
    check_one_sentence(fedrecall("run", "lenet-cifar10", "--data", tmp_path), "data_batch_1.bin")


def test_copying_over_a_file_is_refused(fedrecall, tmp_path) -> None:
    check_one_sentence(fedrecall("recipes", "copy", "demo", "file.txt"), "file.txt")
    assert (tmp_path / "file.txt").read_text() == "mine\n"
