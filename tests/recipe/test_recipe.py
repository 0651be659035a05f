"""The recipe: its layers, its defaults, its identity."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedrecall import InputError
from fedrecall.recipe.files import shipped_recipes
from fedrecall.recipe.layers import from_words, load_recipe, look_up
from fedrecall.recipe.recipe import Recipe
from fedrecall.recipe.reference import reference
from fedrecall.runs.identity import lengthened

THE_DESIGN = """
data: cifar10
partition: {name: dirichlet, alpha: 0.1, clients: 100, validation: 0.1, seed: 0}
model: {name: lenet}
objective: {name: wsm, tau: 1.0, smoothing: 0.0}
algorithm: {name: fedavg}
rounds: 4000
participation: 0.1
local: {epochs: 3, batch_size: 64, lr: 0.01, momentum: 0.0, weight_decay: 1.0e-4, step: exact}
evaluation: {every: 10, test_last: 100}
forgetting: {every: 0}
checkpoint: {seconds: 60}
seed: 0
execution: {engine: auto, workers: auto}
"""


@pytest.fixture
def recipe_file(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_an_empty_recipe_has_the_documented_defaults(recipe_file) -> None:
    assert load_recipe(recipe_file("")) == load_recipe(recipe_file(THE_DESIGN)) == Recipe()


def test_a_string_stands_for_a_name() -> None:
    assert load_recipe("demo", ["objective=cross_entropy"]).objective == {"name": "cross_entropy"}


def test_the_command_line_is_over_the_file_is_over_the_default(recipe_file) -> None:
    loaded = load_recipe(recipe_file("rounds: 7\nlocal: {lr: 0.5}"), ["local.lr=0.25"])
    assert (loaded.rounds, loaded.local.lr, loaded.local.batch_size) == (7, 0.25, 64)


def test_another_name_drops_the_other_options(recipe_file) -> None:
    file = recipe_file("partition: {name: dirichlet, alpha: 5.0, clients: 7}")
    assert load_recipe(file, ["partition=iid"]).partition["clients"] == 100
    assert load_recipe(file, ["partition=iid", "partition.clients=9"]).partition["clients"] == 9
    assert load_recipe(file, ["partition.clients=9", "partition=iid"]).partition["clients"] == 9


def test_the_same_name_keeps_the_other_options(recipe_file) -> None:
    file = recipe_file("partition: {name: dirichlet, alpha: 5.0, clients: 7}")
    assert load_recipe(file, ["partition.name=dirichlet"]).partition["alpha"] == 5.0


def test_an_option_without_a_name_is_of_the_default(recipe_file) -> None:
    assert load_recipe(recipe_file(""), ["objective.tau=0.5"]).objective == {
        "name": "wsm", "tau": 0.5, "smoothing": 0.0, "distill": 0.0, "prior": "uniform",
    }  # fmt: skip


PAIRS = [  # two keys that exclude each other, and a value for each
    ("participation", 0.3, "clients_per_round", 4),
    ("local.epochs", 2, "local.steps", 9),
    ("forgetting.every", 10, "forgetting.rounds", [3, 5]),
    ("checkpoint.seconds", 5.0, "checkpoint.every", 7),
]


@pytest.mark.parametrize(
    ("below", "lower", "above", "value"), [*PAIRS, *((c, d, a, b) for a, b, c, d in PAIRS)], ids=str
)
def test_one_of_a_pair_drops_the_other_of_a_lower_layer_and_is_refused_beside_it(
    recipe_file, below, lower, above, value
) -> None:
    file = recipe_file(yaml.safe_dump(from_words([f"{below}={lower}"])))
    tree = load_recipe(file, [f"{above}={value}"]).tree()
    assert look_up(tree, above) == value
    assert look_up(tree, below) is None
    with pytest.raises(InputError, match=r"^[\w.]+ and [\w.]+ are both given; they exclude each other$"):
        load_recipe(None, [f"{below}={lower}", f"{above}={value}"])


def test_fast_steps_of_earlier_versions_are_refused_in_one_sentence_that_names_lanes(recipe_file) -> None:
    with pytest.raises(InputError) as refusal:
        load_recipe(recipe_file("local: {step: fast}"))
    assert str(refusal.value).startswith("local.step is 'fast'; ")
    assert "'lanes'" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_number_like_1e_minus_4_is_a_number(recipe_file) -> None:
    assert load_recipe(recipe_file("local: {weight_decay: 1e-4}"), ["local.lr=1e-3"]).local.lr == 0.001


def test_a_recipe_says_every_key_and_reads_itself_again(recipe_file) -> None:
    loaded = load_recipe(
        "demo", ["local.schedule={name: step, factor: 0.5, every: 10}", "model={name: mlp, hidden: [5]}"]
    )
    again = load_recipe(recipe_file(loaded.yaml()))
    assert again == loaded
    assert again.digest() == loaded.digest()
    assert yaml.safe_load(loaded.yaml())["partition"]["held_out"] == 0


def test_the_digest_is_of_what_decides_the_result(recipe_file) -> None:
    base = Recipe().digest()
    assert load_recipe(None, ["execution.engine=serial", "execution.data=/elsewhere"]).digest() == base
    assert load_recipe(None, ["seed=1"]).digest() != base
    assert load_recipe(None, ["local.momentum=0.9"]).digest() != base


def test_every_shipped_recipe_loads_and_says_what_it_is() -> None:
    assert {"demo", "lenet-cifar10"} <= set(shipped_recipes())
    for name, path in shipped_recipes().items():
        assert load_recipe(name).rounds > 0
        assert path.read_text().startswith("# ")


def test_the_reference_names_every_key_and_reads_as_the_default_recipe(recipe_file) -> None:
    text = reference()
    assert load_recipe(recipe_file(text)) == Recipe()
    for key in ("partition", "alpha", "held_out", "smoothing", "test_last", "workers", "partial_batch", "hidden"):
        assert f"{key}:" in text


def test_a_class_of_the_users_own_is_named_by_its_module(tmp_path, monkeypatch) -> None:
    (tmp_path / "my_module.py").write_text(
        "from fedrecall import Objective\n"
        "class Mine(Objective):\n"
        "    def __init__(self, strength: float, mode='plain'):\n        self.strength = strength\n"
    )
    monkeypatch.chdir(tmp_path)
    loaded = load_recipe(None, ["objective=my_module:Mine", "objective.strength=2"])
    assert loaded.objective == {"name": "my_module:Mine", "strength": 2.0, "mode": "plain"}
    assert loaded.create("objective").strength == 2.0
    with pytest.raises(InputError, match=r"'objective\.strength' is missing"):
        load_recipe(None, ["objective=my_module:Mine"])
    with pytest.raises(InputError, match=r"no such function; did you mean 'Mine'\?"):
        load_recipe(None, ["objective=my_module:Mime"])


def test_a_step_that_raises_the_rate_goes_on_for_many_rounds() -> None:
    schedule = {"name": "step", "factor": 1.5, "every": 1000}
    local = Recipe(rounds=4000, local={"lr": 0.01, "schedule": schedule}).local
    assert local.rate(4000, 4000) == 0.01 * 1.5 * 1.5 * 1.5


def test_a_schedule_that_leaves_the_numbers_is_refused_before_the_first_round() -> None:
    schedule = {"name": "exponential", "factor": 2.0}
    assert Recipe(rounds=100, local={"lr": 0.01, "schedule": schedule}).local.rate(100, 100) == 0.01 * 2.0**99
    with pytest.raises(InputError, match=r"local\.schedule\.factor is 2\.0: the rate of round 4000 would be larger"):
        Recipe(rounds=4000, local={"lr": 0.01, "schedule": schedule})


@pytest.mark.parametrize("test_last", [None, 50, 100])
@pytest.mark.parametrize(("before", "after"), [(500, 2000), (990, 991), (10, 20), (1500, 3000)])
def test_a_lengthened_recipe_is_the_one_with_more_rounds(test_last: int | None, before: int, after: int) -> None:
    evaluation = {} if test_last is None else {"test_last": test_last}
    short, long = (Recipe(rounds=rounds, evaluation=evaluation).tree() for rounds in (before, after))
    assert lengthened(short, after) == long
