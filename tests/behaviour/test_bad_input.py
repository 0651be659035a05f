"""Bad input: exit code 2 and one sentence that names the culprit, never a traceback, nothing left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from sentences import check_one_sentence

LONG = "x" * 300  # more than a file's name may have
NO_TEXT = os.fsdecode(b"a\xffb")
TO_NO_TEXT = [
    *(["run", "demo", "--out", NO_TEXT], ["demo", "--out", NO_TEXT], ["diagnose", "demo", "--out", NO_TEXT]),
    *(["partition", "demo", "--out", NO_TEXT], ["resume", NO_TEXT], ["report", NO_TEXT]),
]

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
    (["run", "demo", "--workers", "none"], "execution.workers is 'none'; expected a whole number or 'auto'"),
    (["run", "demo", "seed=9223372036854775808"], "seed is 9223372036854775808; expected at most 9223372036854"),
    (["run", "demo", "partition.seed=9223372036854775808"], "partition.seed is 9223372036854775808; it must be"),
    (["run", "demo", "rounds=9223372036854775808"], "rounds is 9223372036854775808;"),
    (["run", "demo", "local.lr=1e39"], "local.lr is '1e39'; expected at most 3.4028234e+38"),
    (["run", "demo", "local.weight_decay=1e308"], "local.weight_decay is '1e308';"),
    (["run", "demo", "local.schedule={name: exponential, factor: 1000}"], "local.schedule.factor is 1000.0: the"),
    (["run", "demo", "local.schedule={name: step, factor: 1e300, every: 5}"], "local.schedule.factor is 1e+300"),
    (["run", "demo", "algorithm=feddyn", "algorithm.alpha=1e39"], "algorithm.alpha is '1e39';"),
    (["run", "demo", "algorithm=fedadam", "algorithm.tau=3.4e38"], "algorithm.tau is '3.4e38';"),
    (["run", "demo", "algorithm=fedcurv", "algorithm.lam=3.4e38"], "algorithm.lam is '3.4e38';"),
    (["run", "demo", "objective=fedntd", "objective.temperature=1e308"], "objective.temperature is '1e308';"),
    (["run", "demo", "local.threads=1000000000"], "local.threads is 1000000000; expected at most 1024"),
    (["run", "demo", "data=npz", "data.path=my.npz", "data.classes=1000000000000"], "data.classes is 10000000000"),
    (["run", "demo", "model=mlp", "model.hidden=[9223372036854775807]"], "model.hidden is [9223372036854775807];"),
    (["run", "demo", "model=mlp", "model.hidden=[16777216, 16777216]"], "there is not enough memory: "),
    (["run", "demo", "local={lr: 1, lr: 2}"], "it has the key 'lr' twice"),
    (["run", "demo", "--out", LONG], "File name too long; choose another with --out"),
    (["run", "demo", "--out", "file.txt/below"], "'file.txt/below' cannot be made or read: Not a directory"),
    (["run", "demo", "--data", NO_TEXT], r"execution.data is 'a\udcffb'; it should be text in UTF-8"),
    (["run", LONG], "File name too long"),
    (["run", "demo", f"init={LONG}"], "File name too long"),
    (["report", LONG], "File name too long"),
    (["resume", LONG], "File name too long"),
    (["diagnose", "demo", "--weights", LONG], "File name too long"),
    *((words, r"'a\udcffb' is not text in UTF-8") for words in TO_NO_TEXT),
    (["run", "demo", "--out", "taken"], "taken"),
    (["demo", "--out", "file.txt"], "file.txt"),
    (["partition", "demo", "--out", "file.txt"], "file.txt"),
]

# text of a recipe file, and what the sentence must name
PAIRS = list(zip("abcdefgh", "bcdefghi"))
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in PAIRS)
MERGE_BOMB = "a: &a {x: 1}\n" + "".join(f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}], {b}: 1}}\n" for a, b in PAIRS)
ODD = 'it\'s "odd"\n[red]<b>&</script>'  # quotes, a new line, and markup of the terminal and of a page
ANCHOR = "it has the anchor or alias 'a'; write the value out in each place\n"
FILES: list[tuple[str | bytes, str]] = [
    (b"rounds: \xff\xfe", "the recipe 'bad.yaml': it is not YAML: it is not text in UTF-8\n"),
    (b"#" * 100_000_000, "the recipe 'bad.yaml': it has more than 131072 characters\n"),
    *((text, ANCHOR) for text in (BOMB, MERGE_BOMB, "rounds: *a", "rounds: &a [*a]")),
    ("local: {<<: {lr: 1}}", "it has a value of the type 'merge'; quote it, if it is a word\n"),
    ("rounds: " + "[" * 400 + "]" * 400, "the recipe 'bad.yaml': it is nested more than 30 deep\n"),
    ("rounds: " + "[" * 100_000, "the recipe 'bad.yaml': it is nested more than 30 deep\n"),
    ("!!python/object/apply:os.system ['true']", "it has a value of the type 'os.system'; quote it"),
    ("seed: 2001-01-01", "it has a value of the type 'timestamp'; quote it, if it is a word\n"),
    ('init: "\\ud800"', "it has half of a character, which is not text\n"),
    (json.dumps({ODD: 1}), r"""there is no key 'it\'s "odd"\n[red]<b>&</script>'; there are"""),
    (json.dumps({"seed": ODD}), r"""seed is 'it\'s "odd"\n[red]<b>&</script>'; expected a whole number"""),
    ("seed: " + "9" * 5000, "the recipe 'bad.yaml': it is not YAML: Exceeds the limit"),
    ("local: {lr: .nan}", "local.lr is nan; expected a finite number\n"),
    ("rounds: [", "is not YAML"),
    ("rounds: 1\nseed: 2\nrounds: 3", "it has the key 'rounds' twice"),
    ("local: {lr: 0.1, steps: 2, lr: 0.2}", "it has the key 'lr' twice"),
    ("- rounds\n- 3", "is a list; keys with values were expected, as in rounds: 80"),
    ("3: 4", "it has the key '3', and keys are words"),
    ("rounds: {a: 1}", "rounds is {'a': 1};"),
    ("objective: {tau: 1, name: 5}", "objective.name is 5;"),
    ("objective: {}\nlocal: {epochs: 0}", "local.epochs is 0;"),
    ("local: {epochs: 1, steps: 1}", "local.epochs and local.steps are both given"),
    ("model: {name: lenet, norm: batch}", "'model.norm'"),
]


@pytest.fixture(autouse=True)
def what_is_taken(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "recipe.yaml").write_text("rounds: 1\n")
    (tmp_path / "file.txt").write_text("mine\n")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "named"), WORDS, ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else ""
)
def test_bad_words_are_one_sentence(fedrecall, tmp_path, words, named) -> None:
    before = contents(tmp_path)
    check_one_sentence(fedrecall(*words), named)
    assert contents(tmp_path) == before
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("text", "named"), FILES, ids=lambda value: ascii(value[:30]))
def test_bad_recipe_files_are_one_sentence(fedrecall, tmp_path, text, named) -> None:
    (tmp_path / "bad.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = contents(tmp_path)
    check_one_sentence(fedrecall("run", "bad.yaml"), named)
    assert contents(tmp_path) == before


def test_a_folder_for_a_recipe_is_one_sentence(fedrecall, tmp_path) -> None:
    (tmp_path / "bad.yaml").mkdir()
    said = "the recipe 'bad.yaml' is a folder; a file was expected, as bad.yaml/recipe.yaml\n"
    check_one_sentence(fedrecall("run", "bad.yaml"), said)


def test_an_empty_recipe_is_one_of_defaults(fedrecall, tmp_path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"")
    assert fedrecall("recipes", "show", "bad.yaml").code == 0


def test_a_truncated_data_file_is_one_sentence(fedrecall, tmp_path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (folder / name).write_bytes(b"\x01" * 1000)
    check_one_sentence(fedrecall("run", "lenet-cifar10", "--data", tmp_path), "data_batch_1.bin")


def test_copying_over_a_file_is_refused(fedrecall, tmp_path) -> None:
    check_one_sentence(fedrecall("recipes", "copy", "demo", "file.txt"), "file.txt")
    assert (tmp_path / "file.txt").read_text() == "mine\n"
