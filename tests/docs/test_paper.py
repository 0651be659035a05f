"""docs/paper.md: its counts are those of the published numbers, its recipes and settings are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from fedrecall.errors import InputError
from fedrecall.recipe.files import shipped_recipes
from fedrecall.recipe.layers import load_recipe
from fedrecall.report.paper_results import rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text()
WORDS = " ".join(PAGE.split())
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "femnist": "FEMNIST"}
# (accuracy, deviation) by table, data set, norm, algorithm, rate and objective
NUMBERS = {
    (row["table"], row["dataset"], row["norm"], row["algorithm"], row["lr"], row["objective"]): (
        float(row["accuracy"]),
        float(row["std"]),
    )
    for row in rows()
}
RATES = [
    rate
    for table, data, norm, _, rate, kind in NUMBERS
    if (table, data, norm, kind) == ("table4", "cifar10", "batch", "ce")
]
LENET_RATES = [rate for table, data, _, _, rate, kind in NUMBERS if (table, data, kind) == ("table5", "cifar10", "ce")]


def accuracy(data: str, norm: str, rate: str, kind: str, table: str = "table4") -> float:
    return NUMBERS[table, data, norm, "fedavg", rate, kind][0]


def ahead(pairs: Iterable[tuple[float, float]]) -> str:
    """Of pairs of cross-entropy and WSM."""
    pairs = list(pairs)
    won, even = sum(wsm > ce for ce, wsm in pairs), sum(wsm == ce for ce, wsm in pairs)
    return f"{won} of {len(pairs)}" + (f", {even} tie" if even else "")


def like_for_like(data: str, norm: str) -> str:
    return ahead((accuracy(data, norm, rate, "ce"), accuracy(data, norm, rate, "wsm")) for rate in RATES)


def best(data: str, rate: str, kind: str) -> float:
    return max(accuracy(data, norm, rate, kind) for norm in ("batch", "group"))


def points(more: float, less: float) -> str:
    return f"{100 * (more - less):.1f}"


def test_there_are_nine_rates_and_eight_of_lenet() -> None:
    assert (len(RATES), len(LENET_RATES), len(NUMBERS)) == (9, 8, 3 * 9 * 2 * 2 + 2 * 8 * 2 + 4 * 2 * 2)


@pytest.mark.parametrize("data", DATA)
def test_the_count_of_wins_by_norm_is_that_of_table_4(data: str) -> None:
    assert f"| ResNet-18, {DATA[data]} | {like_for_like(data, 'batch')} | {like_for_like(data, 'group')} | |\n" in PAGE


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_the_count_of_wins_of_lenet_is_that_of_table_5(data: str) -> None:
    pairs = [[accuracy(data, "none", rate, kind, "table5") for kind in ("ce", "wsm")] for rate in LENET_RATES]
    assert f"| LeNet, {DATA[data]} | | | {ahead((ce, wsm) for ce, wsm in pairs)} |\n" in PAGE


def test_what_is_said_of_table_1() -> None:
    better = {
        data: sum(accuracy(data, "batch", rate, "ce") > accuracy(data, "group", rate, "ce") for rate in RATES)
        for data in DATA
    }
    assert f"better with batch norm in {sum(better.values())} of them ({better['cifar100']} of the 9 on" in WORDS
    counts = {data: sum(best(data, rate, "wsm") > best(data, rate, "ce") for rate in RATES) for data in DATA}
    assert (
        f"ahead at {counts['cifar10']} of 9 rates on CIFAR-10, {counts['cifar100']} of 9 on CIFAR-100 and "
        f"{counts['femnist']} of 9 on FEMNIST" in WORDS
    )


def test_what_is_said_of_the_improvements() -> None:
    tops = {(data, kind): max(best(data, rate, kind) for rate in RATES) for data in DATA for kind in ("ce", "wsm")}
    shown = {f".{round(1000 * value)}": key for key, value in tops.items()}
    assert f"{points(tops['cifar10', 'wsm'], tops['cifar10', 'ce'])} points on CIFAR-10 (.858 against .836)" in WORDS
    assert f"{points(tops['cifar100', 'wsm'], tops['cifar100', 'ce'])} on CIFAR-100 (.581 against .568" in WORDS
    assert {".858", ".836", ".581", ".568", ".853", ".848"} == set(shown)
    assert max(accuracy("cifar100", "group", rate, "ce") for rate in RATES) == 0.500
    steady = [accuracy("cifar10", "batch", rate, "wsm") for rate in ("0.1", "0.07", "0.05", "0.03")]
    assert (min(steady), max(steady)) == (0.855, 0.858)


def test_what_is_said_of_table_2() -> None:
    table = {key[1:2] + key[3:4] + key[5:]: value for key, value in NUMBERS.items() if key[0] == "table2"}
    assert [table["cifar10", name, kind][0] for kind in ("wsm", "ce") for name in ("fednova", "fedavg")] == [
        0.789, 0.864, 0.780, 0.800,
    ]  # fmt: skip
    ahead_of_fedavg = [
        (data, name)
        for data in ("cifar10", "cifar100")
        for name in ("scaffold", "fedprox")
        if table[data, name, "ce"][0] > table[data, "fedavg", "ce"][0]
    ]
    assert ahead_of_fedavg == [("cifar100", "scaffold")]
    deviations = sorted(deviation for _, deviation in table.values())
    assert deviations[-3:] == [0.033, 0.10, 0.13]


def test_what_is_said_of_lenet() -> None:
    tops = {
        (data, kind): max(accuracy(data, "none", rate, kind, "table5") for rate in LENET_RATES)
        for data in ("cifar10", "cifar100")
        for kind in ("ce", "wsm")
    }
    assert f"is {points(tops['cifar10', 'wsm'], tops['cifar10', 'ce'])} points (.624 against .608)" in WORDS
    assert f"the {points(tops['cifar100', 'wsm'], tops['cifar100', 'ce'])} on CIFAR-100 is right" in WORDS
    smaller = [
        NUMBERS["table5", data, "none", "fedavg", rate, "wsm"][1]
        < NUMBERS["table5", data, "none", "fedavg", rate, "ce"][1]
        for data in ("cifar10", "cifar100")
        for rate in LENET_RATES
    ]
    assert f"the smaller one in {sum(smaller)} of {len(smaller)} pairs" in WORDS


def test_the_numbers_that_stand_twice_do() -> None:
    twice = NUMBERS["table4", "cifar10", "batch", "fedavg", "0.5", "ce"]
    assert twice == NUMBERS["table4", "cifar10", "batch", "fedavg", "0.3", "ce"] == (0.742, 0.004)
    both = {NUMBERS["table4", "cifar100", "batch", "fedavg", "0.007", kind] for kind in ("ce", "wsm")}
    assert both == {(0.568, 0.003)}


def test_every_recipe_and_study_that_is_named_is_shipped() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \|", PAGE, flags=re.MULTILINE)
    assert len(listed) == 8
    assert set(listed) <= set(shipped_recipes())
    studies = {path.stem for path in (ROOT / "src" / "fedrecall" / "studies" / "shipped").glob("*.yaml")}
    assert {name for name in studies if name not in ("table3", "table4")} <= set(re.findall(r"`([\w-]+)`", PAGE))


def fits(words: list[str]) -> bool:
    """Is it a setting over one of the paper's recipes?"""
    for name in shipped_recipes():
        try:
            load_recipe(name, words)
            return True
        except InputError:
            continue
    return False


def test_every_setting_that_gives_the_other_is_one() -> None:
    table = PAGE.split("## Where it contradicts")[1].split("## Their code")[0]
    settings = [words.split() for words in re.findall(r"`([\w.]+=[^`]+)`", table)]
    assert len(settings) > 15
    assert [words for words in settings if not fits(words)] == []


def test_every_command_names_a_recipe_and_settings_over_it() -> None:
    commands = re.findall(r"^    fedrecall run (.+)$", PAGE, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        name, *words = shlex.split(command)
        assert load_recipe(name, words).local.beta_from == "train+validation"


def test_the_recipe_that_inherits_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "mine.yaml").write_text(text)
    mine = load_recipe(str(tmp_path / "mine.yaml"))
    assert yaml.safe_load(text)["base"] == "resnet18-cifar10"
    assert (mine.partition["alpha"], mine.partition["clients"], mine.local.lr, mine.rounds) == (
        0.01,
        100,
        0.03,
        4000,
    )
