"""A node's own data and configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecall.api.execute import load_federation
from fedrecall.data.export import export_clients
from fedrecall.errors import InputError
from fedrecall.flower.node import Node
from fedrecall.flower.samples import SampleKind
from fedrecall.recipe.layers import load_recipe


def node(client: int = 1, **own: Any) -> Node:
    return Node.of({"partition-id": client, **own}, {})


@pytest.fixture(scope="module")
def whole(recipe_file: str) -> Any:
    return load_federation(load_recipe(recipe_file))


@pytest.mark.parametrize("way", ["its own file", "the app's folder", "the recipe"])
def test_a_node_has_the_samples_of_its_client_in_their_order(
    tmp_path: Path, recipe_file: str, whole: Any, way: str
) -> None:
    export_clients(whole, tmp_path)
    own = {"data": str(tmp_path / "client-2.npz")} if way == "its own file" else {}
    nodes = str(tmp_path) if way == "the app's folder" else None
    made = node(2, **own).federation(load_recipe(recipe_file), SampleKind.of(whole), nodes)
    for found, expected in (
        (made.train_indices(2), whole.train_indices(2)),
        (made.validation_indices(2), whole.validation_indices(2)),
    ):
        np.testing.assert_array_equal(made.train.x[found], whole.train.x[expected])
        np.testing.assert_array_equal(made.train.y[found], whole.train.y[expected])
    assert made.transform == whole.transform  # by the statistics of everyone's images, which the app has
    assert made.beta(2).equal(whole.beta(2))


def test_a_node_can_name_any_data_source(tmp_path: Path) -> None:
    table = "a,b,label\n" + "".join(f"{i},{i * 2},{i % 3}\n" for i in range(50))
    (tmp_path / "own.csv").write_text(table)
    (tmp_path / "own.yaml").write_text(
        f"data: {{name: csv, path: {tmp_path}/own.csv, label: label}}\nvalidation: 0.25\n"
    )
    recipe = load_recipe(
        None, [f"data={{name: csv, path: {tmp_path}/own.csv, label: label}}", "partition.clients=2", "model=mlp"]
    )
    kind = SampleKind.of(load_federation(recipe))
    made = node(0, data=str(tmp_path / "own.yaml")).federation(recipe, kind, None)
    test_share = 50 - len(made.train.y)
    assert len(made.validation_indices(0)) == round(0.25 * (50 - test_share))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"partition-id": "3"}, "partition-id is '3' in the node's configuration"),
        ({}, "partition-id is None"),
        (
            {"partition-id": 0, "forgetting": "yes"},
            "forgetting is 'yes' in the node's configuration",
        ),
        ({"partition-id": 0, "data": 5}, "data is 5 in the node's configuration; a path was expected"),
    ],
)
def test_a_configuration_that_is_none_is_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Node.of(config, {})


@pytest.mark.parametrize(("own", "allows"), [({"data": "own.npz"}, False), ({}, True)])
def test_who_has_data_of_its_own_allows_what_it_says_and_no_more(own: dict[str, Any], allows: bool) -> None:
    made = node(**own)
    assert (made.forgetting, made.class_counts) == (allows, allows)
    said = node(**own, **{"forgetting": not allows, "share-class-counts": not allows})
    assert (said.forgetting, said.class_counts) == (not allows, not allows)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dat: cifar10\n", "there is no key 'dat'; did you mean 'data'?"),
        ("validation: 0.1\n", "the key 'data' is missing"),
        ("data: {name: npz, path: nowhere.npz}\n", "no such file"),
    ],
)
def test_a_file_about_data_that_is_wrong_is_refused(
    tmp_path: Path, recipe_file: str, whole: Any, text: str, sentence: str
) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(InputError) as refused:
        node(data=str(tmp_path / "own.yaml")).federation(load_recipe(recipe_file), SampleKind.of(whole), None)
    assert sentence in str(refused.value)


def test_samples_of_another_kind_are_refused(tmp_path: Path, recipe_file: str, whole: Any) -> None:
    x, y = np.zeros((5, 4), np.float32), np.zeros(5, np.int64)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_validation=x, y_validation=y)
    with pytest.raises(InputError, match=r"a sample is float32 of shape \(4,\); uint8 of shape \(16, 16, 1\)"):
        node(data=str(tmp_path / "own.npz")).federation(load_recipe(recipe_file), SampleKind.of(whole), None)


@pytest.mark.parametrize("name", ["missing.npz", "text.npz", "object.npz", "other.npz"])
def test_a_file_that_is_no_clients_is_refused(tmp_path: Path, recipe_file: str, whole: Any, name: str) -> None:
    (tmp_path / "text.npz").write_text("nothing of the kind")
    np.savez(tmp_path / "object.npz", x_train=np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(InputError, match=name):
        node(data=str(tmp_path / name)).federation(load_recipe(recipe_file), SampleKind.of(whole), None)


def test_a_client_without_a_file_in_the_apps_folder_is_named(tmp_path: Path, recipe_file: str, whole: Any) -> None:
    export_clients(whole, tmp_path)
    with pytest.raises(InputError, match="has no file of client 40"):
        node(40).federation(load_recipe(recipe_file), SampleKind.of(whole), str(tmp_path))


def test_what_a_sample_is_survives_its_file(tmp_path: Path, whole: Any) -> None:
    kind = SampleKind.of(whole)
    kind.write(tmp_path)
    assert SampleKind.read(tmp_path) == kind


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"shape": 3}', '{"shape": [1], "transform": {"name": "os"}}'])
def test_a_damaged_file_about_samples_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "samples.json").write_text(text)
    with pytest.raises(InputError, match=r"samples.json' is damaged"):
        SampleKind.read(tmp_path)
