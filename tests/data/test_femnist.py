"""FEMNIST is read from small files of LEAF's layout; the real ones are read when they are there."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from memory import measurable, printed_by

from fedrecall import Federation, Natural
from fedrecall.data.cache import cache_folder
from fedrecall.data.sources import DATASETS, femnist
from fedrecall.errors import InputError

PIXELS = 784
# Names whose order in the files is not their sorted order; "f_b" is in two training files.
TRAIN = {"all_data_1.json": {"f_c": [3, 61], "f_b": [10]}, "all_data_0.json": {"f_b": [0, 36, 5], "f_a": [35]}}
TEST = {"all_data_0.json": {"f_z": [7], "f_a": [9, 9]}}


def pixel_bytes(name, labels):
    """Random bytes that differ from writer to writer, as LEAF would have seen them."""
    random = np.random.default_rng([sum(name.encode()), *labels])
    return random.integers(0, 256, (len(labels), PIXELS), dtype=np.uint8)


def content(users):
    data = {name: {"x": (pixel_bytes(name, y) / 255).tolist(), "y": y} for name, y in users.items()}
    return {"users": list(users), "num_samples": [len(y) for y in users.values()], "user_data": data}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The folder above femnist/data."""
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    for split, files in (("train", TRAIN), ("test", TEST)):
        folder = tmp_path / "root" / "femnist" / "data" / split
        folder.mkdir(parents=True)
        for name, users in files.items():
            (folder / name).write_text(json.dumps(content(users)))
    return tmp_path / "root"


def path_of(root, name="all_data_0.json", split="train"):
    return root / "femnist" / "data" / split / name


def change(root, edit, **where):
    """Rewrite a file after `edit` has changed its content."""
    path = path_of(root, **where)
    tree = json.loads(path.read_text())
    edit(tree)
    path.write_text(json.dumps(tree))


def test_augmented_as_the_authors_do_it_trains_on_crops_and_tests_whole_images(root):
    plain, augmented = femnist(root), femnist(root, augment=True)
    batch, random = torch.tensor(augmented.x_train), torch.Generator().manual_seed(0)
    assert not plain.transform.is_random
    assert augmented.transform(batch, random).shape == (7, 1, 24, 24)
    assert torch.equal(augmented.transform(batch), plain.transform(batch))
    federations = [Federation.from_data(data, Natural(validation=0)) for data in (plain, augmented)]
    assert federations[0].digest() != federations[1].digest()


def test_pixels_are_the_bytes_that_leaf_divided_by_255(root):
    data = femnist(root)
    wanted = np.concatenate(
        [
            pixel_bytes("f_b", [0, 36, 5]),
            pixel_bytes("f_a", [35]),
            pixel_bytes("f_c", [3, 61]),
            pixel_bytes("f_b", [10]),
        ]
    )
    assert data.x_train.dtype == np.uint8
    np.testing.assert_array_equal(data.x_train, wanted.reshape(7, 28, 28, 1))
    wanted = np.concatenate([pixel_bytes("f_z", [7]), pixel_bytes("f_a", [9, 9])])
    np.testing.assert_array_equal(data.x_test, wanted.reshape(3, 28, 28, 1))


def test_values_rounded_to_few_digits_give_the_same_bytes(root):
    exact = np.array(femnist(root).x_train)

    def rounded(tree):
        for data in tree["user_data"].values():
            data["x"] = np.round(data["x"], 3).tolist()

    for name in TRAIN:
        change(root, rounded, name=name)
    np.testing.assert_array_equal(femnist(root).x_train, exact)


def test_labels_follow_the_files_in_the_order_of_their_names(root, monkeypatch):
    found = Path.glob
    monkeypatch.setattr(Path, "glob", lambda folder, name: sorted(found(folder, name), reverse=True))
    data = femnist(root)
    assert data.y_train.tolist() == [0, 36, 5, 35, 3, 61, 10]
    assert data.y_test.tolist() == [7, 9, 9]
    assert data.y_train.dtype == data.y_test.dtype == np.int64


def test_writers_are_numbered_in_the_order_of_their_names(root):
    """f_a is 0, f_b is 1 in both of its files, f_c is 2; f_z, who has test images only, has no number."""
    assert femnist(root).ids.tolist() == [1, 1, 1, 0, 2, 2, 1]


def test_the_natural_partition_makes_every_writer_a_client(root):
    federation = Federation.from_data(femnist(root), Natural(validation=0))
    assert [federation.train_indices(k).tolist() for k in range(len(federation))] == [[3], [0, 1, 2, 6], [4, 5]]


def test_class_names_are_digits_capitals_small_letters_and_nothing_is_mirrored(root):
    assert not femnist(root).transform.flip
    names = femnist(root).class_names
    assert (len(names), femnist(root).num_classes) == (62, 62)
    assert (names[0], names[9], names[10], names[35], names[36], names[61]) == ("0", "9", "A", "Z", "a", "z")


@pytest.mark.parametrize("below", ["", "femnist", "femnist/data"])
def test_any_folder_on_the_way_may_be_given(root, below):
    assert len(DATASETS["femnist"](folder=str(root / below)).y_train) == 7
    with pytest.raises(InputError, match=r"no folders train and test.*FEDRECALL_DATA"):
        femnist(root.parent)


def test_the_second_time_the_arrays_come_from_the_cache(root, monkeypatch):
    first = np.array(femnist(root).x_train)
    monkeypatch.setattr(sys.modules["fedrecall.data.files.femnist"], "json", None)
    again = femnist(root)
    assert isinstance(again.x_train, np.memmap)
    np.testing.assert_array_equal(again.x_train, first)


def test_spaces_and_the_order_of_keys_do_not_matter(root):
    path = path_of(root)
    tree = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(tree.items())), indent=1))
    assert femnist(root).y_train.tolist() == [0, 36, 5, 35, 3, 61, 10]


def test_names_with_quotes_and_braces_are_names(root):
    name = 'f"}_{b\\'
    path_of(root).write_text(json.dumps(content({name: [4], "ü": [5]})))
    assert femnist(root).y_train.tolist()[:2] == [4, 5]


def test_a_writer_without_samples_is_no_trouble(root):
    path_of(root).write_text(json.dumps(content({"f_b": [], "f_a": [35]})))
    assert femnist(root).y_train.tolist() == [35, 3, 61, 10]
    assert femnist(root).ids.tolist() == [0, 2, 2, 1]


def first_value(tree, value):
    tree["user_data"]["f_b"]["x"][1][7] = value


BAD_DATA = {
    "x is missing": (lambda tree: tree["user_data"]["f_b"].pop("x"), "'x' and 'y' were expected"),
    "a count too high": (lambda tree: tree["num_samples"].__setitem__(0, 4), "num_samples is 4, but 'x' has 3"),
    "a label too few": (lambda tree: tree["user_data"]["f_b"]["y"].pop(), "num_samples is 3, but 'y' has 2"),
    "a short row": (lambda tree: tree["user_data"]["f_b"]["x"][2].pop(), "row of 'x' must have 784 numbers"),
    "text in a row": (lambda tree: first_value(tree, "0.5"), "row of 'x' must have 784 numbers"),
    "nothing in a row": (lambda tree: first_value(tree, None), "row of 'x' must have 784 numbers"),
    "not a number": (lambda tree: first_value(tree, float("nan")), "values that are not between 0 and 1"),
    "above 1": (lambda tree: first_value(tree, 1.001), "values that are not between 0 and 1"),
    "below 0": (lambda tree: first_value(tree, -0.001), "values that are not between 0 and 1"),
    "label 62": (lambda tree: tree["user_data"]["f_b"].update(y=[0, 62, 5]), "whole number from 0 to 61"),
    "label -1": (lambda tree: tree["user_data"]["f_b"].update(y=[0, -1, 5]), "whole number from 0 to 61"),
    "label 1.5": (lambda tree: tree["user_data"]["f_b"].update(y=[0, 1.5, 5]), "whole number from 0 to 61"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_samples_are_refused_with_the_file_and_the_user(root, case):
    edit, words = BAD_DATA[case]
    change(root, edit)
    with pytest.raises(InputError, match=words) as caught:
        femnist(root)
    assert str(path_of(root)) in str(caught.value)
    assert "'f_b'" in str(caught.value)
    assert list(cache_folder().iterdir()) == []


BAD_FILES = {
    "users are missing": (lambda tree: tree.pop("users"), "no lists 'users' and 'num_samples'"),
    "counts are missing": (lambda tree: tree.pop("num_samples"), "no lists 'users' and 'num_samples'"),
    "data are missing": (lambda tree: tree.pop("user_data"), "it has no 'user_data'"),
    "another user": (lambda tree: tree["users"].__setitem__(0, "f_q"), "must be the same users"),
    "a count too few": (lambda tree: tree["num_samples"].pop(), "must be the same users"),
    "a negative count": (lambda tree: tree["num_samples"].__setitem__(0, -3), "not whole numbers"),
}


@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.parametrize("split", ["train", "test"])
def test_files_of_another_layout_are_refused_by_name(root, case, split):
    edit, words = BAD_FILES[case]
    change(root, edit, split=split)
    with pytest.raises(InputError, match=words) as caught:
        femnist(root)
    assert str(path_of(root, split=split)) in str(caught.value)


BAD_TEXTS = """not json
[]
[{"user_data": {}}]
{"user_data": {
{"user_data": {,
{"user_data": {"f_a" 5}}
{"user_data": {"f_a": {"x": [], "y": []}
{"user_data": {"f_a": {"x": [], "y": []} "f_b": {}}}
{"user_data": {"f_a": {"x": [], "y": []}}} more"""


@pytest.mark.parametrize("text", ["", *BAD_TEXTS.splitlines(), '[{"user_data": {}}, ' + "[" * 100_000])
def test_a_file_that_is_not_json_of_leaf_is_refused_by_name(root, text):
    path_of(root).write_text(text)
    with pytest.raises(InputError, match=r"all_data_0\.json (is not a JSON file of LEAF|has no lists)"):
        femnist(root)


def test_damage_within_a_users_data_is_refused_with_the_user(root):
    path = path_of(root)
    path.write_text(path.read_text().replace('"y": [35]', '"y": [35'))
    with pytest.raises(InputError, match=r"all_data_0\.json, user 'f_a': the data are not JSON"):
        femnist(root)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_folder_without_files_is_named(root, split):
    for path in path_of(root, split=split).parent.glob("*.json"):
        path.unlink()
    with pytest.raises(InputError, match=rf"{split} holds no JSON file"):
        femnist(root)


def test_files_without_any_sample_are_refused(root):
    path_of(root, split="test").write_text(json.dumps(content({"f_a": []})))
    with pytest.raises(InputError, match=r"test hold no samples"):
        femnist(root)


READING = """
import sys
import fedrecall.data.federation
from fedrecall.data.sources import femnist
before = peak()
femnist(sys.argv[1])
print(peak() - before)
"""


@measurable
def test_memory_does_not_grow_with_the_number_of_images(root):
    """8000 images: 6.3 MB as bytes, 200 MB as Python floats, and a file of 31 MB, which is mapped."""
    row = json.dumps([1.0] * PIXELS)
    users = [f"w{i:03d}" for i in range(80)]
    data = ", ".join(f'"{user}": {{"x": [{", ".join([row] * 100)}], "y": {[1] * 100}}}' for user in users)
    head = json.dumps({"users": users, "num_samples": [100] * 80})[:-1]
    path_of(root).write_text(f'{head}, "user_data": {{{data}}}}}')
    assert 0 < int(printed_by(READING, root)) < path_of(root).stat().st_size + 30e6


HERE = os.environ.get("FEDRECALL_DATA", "")


def real(test):
    absent = not Path(HERE, "femnist", "data").is_dir()
    return pytest.mark.real_data(pytest.mark.skipif(absent, reason="FEDRECALL_DATA has no folder femnist/data")(test))


@real
def test_the_real_subset_has_its_known_counts_images_and_statistics():
    data = femnist()
    assert data.x_train.shape == (41_130, 28, 28, 1)
    assert data.x_test.shape == (4_687, 28, 28, 1)
    assert np.unique(data.ids).tolist() == list(range(289))
    assert np.unique(data.y_train).tolist() == list(range(62))
    path = sorted(Path(HERE, "femnist", "data", "train").glob("*.json"))[0]
    tree = json.loads(path.read_text())
    rows = tree["user_data"][tree["users"][0]]
    assert data.x_train[0].ravel().tolist() == [round(255 * value) for value in rows["x"][0]]
    assert data.y_train[: len(rows["y"])].tolist() == rows["y"]
    pixels = np.array(data.x_train) / 255
    assert (round(pixels.mean(), 4),) == data.transform.mean
    assert (round(pixels.std(), 4),) == data.transform.std


@pytest.mark.slow
@real
def test_the_natural_recipe_runs_on_the_real_subset(fedrecall, tmp_path):
    words = ["run", "lenet-femnist-natural", "rounds=3", "evaluation.test_last=1", "--json"]
    finished = fedrecall(*words, "--out", tmp_path / "run")
    assert finished.code == 0, finished.err
    card = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert (card["clients"], card["samples"]["total"], card["samples"]["unassigned"]) == (289, 41_130, 0)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [len(line["clients"]) for line in lines] == [10, 10, 10]
    losses = [line["train_loss"] for line in lines]
    assert losses[0] > losses[1] > losses[2] > 0
    # Equal logits have a weighted loss of log sum beta / pi: that of cross-entropy, where all writers are alike.
    assert losses[0] < math.log(62) + 0.5
