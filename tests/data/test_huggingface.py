"""Hugging Face data sets, from folders that the real package writes. The hub is not reached."""

from __future__ import annotations

import importlib.util
import json
import sys

import numpy as np
import pytest

from fedrecall import Federation, Natural
from fedrecall.data.cache import cache_folder
from fedrecall.data.sources import DATASETS, hf
from fedrecall.errors import InputError

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="the extra hf is not installed"),
]


@pytest.fixture(autouse=True)
def no_network_and_own_caches(tmp_path, monkeypatch):
    import datasets
    import huggingface_hub.constants

    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def save(tmp_path):
    """Writes `train` and `test`, each a dictionary of columns, and returns the folder."""

    def write(train, test=None, **features):
        from datasets import Dataset, DatasetDict

        splits = DatasetDict({"train": Dataset.from_dict(train)})
        if test is not None:
            splits["test"] = Dataset.from_dict(test)
        for name, feature in features.items():
            splits = splits.cast_column(name, feature)
        splits.save_to_disk(tmp_path / "saved")
        return str(tmp_path / "saved")

    return write


def pixels(count, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def pictures(arrays):
    from PIL import Image

    return [Image.fromarray(array) for array in arrays]


def images_with(save, labels, **features):
    """A data set of as many small grey images as there are labels, the same for both splits."""
    columns = {"image": pictures(pixels(len(labels), (3, 2))), "label": labels}
    return save(columns, columns, **features)


@pytest.mark.parametrize("colours", [(), (3,)])
def test_images_become_bytes_with_the_channels_last(save, colours):
    train, test = pixels(5, (3, 2, *colours)), pixels(2, (3, 2, *colours), seed=1)
    columns = {"image": pictures(train), "label": [0, 1, 0, 1, 1]}
    data = hf(save(columns, {"image": pictures(test), "label": [1, 0]}))
    assert data.x_train.dtype == np.uint8
    np.testing.assert_array_equal(data.x_train, train.reshape(5, 3, 2, -1))
    np.testing.assert_array_equal(data.x_test, test.reshape(2, 3, 2, -1))
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 1, 0, 1, 1], [1, 0])


def test_images_are_normalised_by_the_training_images(save):
    train = pixels(5, (3, 2, 3))
    test = {"image": pictures(pixels(2, (3, 2, 3), seed=1)), "label": [0, 1]}
    data = hf(save({"image": pictures(train), "label": [0] * 5}, test))
    np.testing.assert_allclose(data.transform.mean, (train / 255).mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(data.transform.std, (train / 255).std(axis=(0, 1, 2)))


def test_a_data_set_larger_than_a_batch_keeps_its_order(save, monkeypatch):
    monkeypatch.setattr("fedrecall.data.sources.huggingface_columns.BATCH", 4)
    np.testing.assert_array_equal(hf(images_with(save, [0] * 11)).x_train[..., 0], pixels(11, (3, 2)))


@pytest.mark.parametrize(("batch", "words"), [(2, r"\(image 1\).*data\.mode"), (1, "some samples are of shape")])
def test_mixed_colours_need_a_mode(save, monkeypatch, batch, words):
    monkeypatch.setattr("fedrecall.data.sources.huggingface_columns.BATCH", batch)
    path = save({"image": pictures([*pixels(1, (3, 2)), *pixels(1, (3, 2, 3))]), "label": [0, 1]})
    with pytest.raises(InputError, match=words):
        hf(path, test="train")
    data = hf(path, test="train", mode="RGB")
    assert data.x_train.shape == (2, 3, 2, 3)
    np.testing.assert_array_equal(data.x_train[0, ..., 0], data.x_train[0, ..., 2])  # grey stays grey


def test_uint8_arrays_are_images_wherever_their_channels_are(save):
    from datasets import Array3D

    x = pixels(4, (3, 5, 6))
    columns = {"image": x, "label": [0, 1, 2, 0]}
    data = hf(save(columns, columns, image=Array3D((3, 5, 6), "uint8")))
    np.testing.assert_array_equal(data.x_train, x.transpose(0, 2, 3, 1))


NUMBERS = {"age": [30, 41], "size": [1.75, 1.5], "tokens": [[7, 1], [0, 9]], "label": [0, 1]}


def test_columns_of_numbers_become_float32_side_by_side(save):
    data = hf(save(NUMBERS), features=["age", "size"], test="train")
    assert data.x_train.dtype == np.float32
    assert data.x_train.tolist() == [[30.0, 1.75], [41.0, 1.5]]


def test_vectors_become_float32_and_token_ids_stay_whole(save):
    path = save(NUMBERS | {"vector": [[0.5], [2.5]]})
    vectors, tokens = (hf(path, features=name, test="train").x_train for name in ("vector", "tokens"))
    assert (vectors.dtype, tokens.dtype) == (np.float32, np.int64)
    assert (vectors.tolist(), tokens.tolist()) == ([[0.5], [2.5]], [[7, 1], [0, 9]])


def test_a_class_label_keeps_its_names_also_of_classes_without_samples(save):
    from datasets import ClassLabel

    data = hf(images_with(save, [2, 0], label=ClassLabel(names=["tree", "ape", "cat"])))
    assert (data.num_classes, data.class_names) == (3, ("tree", "ape", "cat"))
    assert data.y_train.tolist() == [2, 0]


@pytest.mark.parametrize(("small", "middle", "large"), [("apple", "fig", "pear"), (4, 30, 100)])
def test_other_labels_are_counted_in_sorted_order(save, small, middle, large):
    data = hf(images_with(save, [middle, large, small, large]))
    assert data.class_names == (str(small), str(middle), str(large))
    assert data.y_train.tolist() == [1, 2, 0, 2]


def test_a_class_that_only_the_test_split_has_is_a_class(save):
    data = hf(save({"v": [1.0], "label": ["b"]}, {"v": [1.0], "label": ["a"]}), features="v")
    assert (data.y_train.tolist(), data.y_test.tolist(), data.num_classes) == ([1], [0], 2)


def test_ids_make_the_natural_partition(save):
    writers = ["w_10", "w_9", "w_10", "w_7", "w_9", "w_10"]  # as text, w_10 comes first
    columns = {"image": pictures(pixels(6, (3, 2))), "label": [0, 1] * 3, "writer": writers}
    test = {"image": pictures(pixels(1, (3, 2))), "label": [1]}  # needs no writers
    data = hf(save(columns, test), id_column="writer")
    assert data.ids.tolist() == [0, 2, 0, 1, 2, 0]
    federation = Federation.from_data(data, Natural(validation=0))
    assert [federation.train_indices(k).tolist() for k in range(3)] == [[0, 2, 5], [3], [1, 4]]


def femnist_of_the_hub(save):
    """The columns of flwrlabs/femnist, which has a training split only; the first pixel is the row's number."""
    x = np.repeat(np.arange(60, dtype=np.uint8), 6).reshape(60, 3, 2)
    writers, characters = [f"f{i // 20}" for i in range(60)], [i % 7 for i in range(60)]
    return save({"image": pictures(x), "writer_id": writers, "hsf_id": [0] * 60, "character": characters})


def test_a_share_of_each_clients_samples_can_be_the_test_set(save):
    options = {"label": "character", "id_column": "writer_id", "test_fraction": 0.2}
    path = femnist_of_the_hub(save)
    data = hf(path, **options)
    train, test = data.x_train[:, 0, 0, 0], data.x_test[:, 0, 0, 0]
    assert sorted([*train, *test]) == list(range(60))
    assert np.bincount(test // 20).tolist() == [4, 4, 4]
    assert data.y_train.tolist() == [row % 7 for row in train]
    assert data.y_test.tolist() == [row % 7 for row in test]
    assert data.ids.tolist() == [row // 20 for row in train]
    other = hf(path, **options, split_seed=1).x_test[:, 0, 0, 0]
    assert sorted(test) != sorted(other)
    all_but_one = hf(path, label="character", test_fraction=0.999)  # without ids, of all samples
    assert (len(all_but_one.x_train), len(all_but_one.x_test)) == (1, 59)


def test_the_second_time_the_arrays_come_from_the_cache(save, monkeypatch):
    path = images_with(save, ["a", "b"])
    first = hf(path)
    monkeypatch.setattr("fedrecall.data.sources.huggingface.read_samples", None)
    again = hf(path)
    assert isinstance(again.x_train, np.memmap)
    assert (again.transform, again.class_names) == (first.transform, first.class_names)


def test_each_way_of_reading_is_cached_apart(save):
    path = save(NUMBERS)
    assert hf(path, features="age", test="train").x_train.tolist() == [[30.0], [41.0]]
    assert hf(path, features="size", test="train").x_train.tolist() == [[1.75], [1.5]]


def test_a_folder_of_data_files_is_read_below_the_data_folder(tmp_path):
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "train.csv").write_text("size,kind\n1.5,rose\n2.5,lily")
    (tmp_path / "flowers" / "test.csv").write_text("size,kind\n3.5,rose")
    data = DATASETS["hf"](path="flowers", folder=str(tmp_path), features="size", label="kind")
    assert data.x_train.tolist() == [[1.5], [2.5]]
    assert (data.class_names, data.y_test.tolist()) == (("lily", "rose"), [1])


def test_a_single_saved_split_is_the_training_split(save):
    assert hf(f"{save(NUMBERS)}/train", features="age", test="train").x_train.tolist() == [[30.0], [41.0]]


def test_a_name_on_the_hub_that_cannot_be_reached_is_one_sentence():
    with pytest.raises(InputError, match=r"cannot load 'flwrlabs/femnist', which is no folder here, from the hub") as e:
        hf("flwrlabs/femnist")
    assert "\n" not in str(e.value)


def test_code_of_a_data_set_is_never_trusted(monkeypatch):
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **options: asked.append(options) or {})
    with pytest.raises(InputError, match=r"data\.train"):
        hf("anything")
    assert asked[0]["trust_remote_code"] is False


def test_code_of_a_data_set_is_never_run(tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "evil.py").write_text(f"open({str(ran)!r}, 'w')")
    with pytest.raises(InputError, match=r"cannot load the folder .*evil"):
        hf(str(tmp_path / "evil"))
    assert not ran.exists()


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"data hf needs the extra hf: pip install 'fedrecall\[hf\]'"):
        hf("anything")


WRONG = {
    "column": ({"label": [0, 1]}, {"features": "pixel"}, r"data\.features is 'pixel'.*no such column"),
    "label column": ({"label": [0, 1]}, {"label": "lable"}, r"data\.label is 'lable'.*did you mean 'label'"),
    "id column": ({"label": [0, 1]}, {"id_column": "who"}, r"data\.id_column is 'who'.*no such column"),
    "split": ({"label": [0, 1]}, {"train": "training"}, r"data\.train is 'training'.*name one of train, test"),
    "no test split": ({"label": [0, 1]}, {"test": "dev"}, r"data\.test is 'dev'.*or give data\.test_fraction"),
    "missing label": ({"label": [0, None]}, {}, r"data\.label is 'label'.*not all whole numbers"),
    "float label": ({"label": [0.5, 1.0]}, {}, r"data\.label is 'label'.*not all whole numbers"),
    "missing id": ({"label": [0, 1], "who": ["a", None]}, {"id_column": "who"}, r"data\.id_column is 'who'"),
    "ragged": ({"label": [0, 1], "v": [[1], [1, 2]]}, {"features": "v"}, r"column 'v' .*another length"),
    "text": ({"label": [0, 1], "v": ["a", "b"]}, {"features": "v"}, r"column 'v' .*no number"),
    "missing": ({"label": [0, 1], "v": [1.0, None]}, {"features": "v"}, r"column 'v' .*missing"),
    "infinite": ({"label": [0, 1], "v": [1.0, np.inf]}, {"features": "v"}, r"missing or not finite"),
    "two kinds": ({"label": [0, 1], "v": [[1.0]] * 2}, {"features": ["v", "label"]}, r"several columns"),
    "no feature": ({"label": [0, 1]}, {"features": []}, r"data\.features is empty"),
    "fraction": ({"label": [0, 1]}, {"test_fraction": 1.0}, r"data\.test_fraction is 1\.0"),
    "too little": ({"label": [0, 1]}, {"test_fraction": 0.1}, r"data\.test_fraction is 0\.1.*less than one"),
    "mode": ({"label": [0, 1]}, {"mode": "CMYK"}, r"data\.mode is 'CMYK'"),
    "seed": ({"label": [0, 1]}, {"split_seed": -1}, r"data\.split_seed is -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_named(save, case):
    columns, options, words = WRONG[case]
    columns = {"image": pictures(pixels(2, (3, 2))), **columns}
    path = save(columns, columns)
    with pytest.raises(InputError, match=words):
        hf(path, **options)
    assert not cache_folder().is_dir() or list(cache_folder().iterdir()) == []


def test_an_unlabelled_sample_of_a_class_label_is_refused(save):
    from datasets import ClassLabel

    with pytest.raises(InputError, match=r"data\.label is 'label'.*unlabelled"):
        hf(images_with(save, [-1, 0], label=ClassLabel(names=["a", "b"])))


def test_splits_whose_labels_differ_in_type_are_refused(save):
    with pytest.raises(InputError, match=r"data\.label is 'label', but its type"):
        hf(save({"v": [1.0], "label": ["b"]}, {"v": [1.0], "label": [1]}), features="v")


def test_images_of_16_bits_are_refused(save, monkeypatch):
    monkeypatch.setattr("fedrecall.data.sources.huggingface_columns.BATCH", 2)
    images = pictures([*pixels(3, (3, 2)), np.zeros((3, 2), np.uint16)])
    with pytest.raises(InputError, match=r"image 3 of column 'image' is of Pillow's mode I;16"):
        hf(save({"image": images, "label": [0] * 4}), test="train")


def test_a_recipe_trains_on_a_saved_data_set(save, fedrecall, tmp_path):
    columns = {"image": pictures(pixels(60, (28, 28))), "who": [0, 1, 2] * 20, "label": [0, 1] * 30}
    data = ["data.name=hf", f"data.path={save(columns, columns)}", "data.id_column=who", "partition=natural"]
    finished = fedrecall("run", "demo", *data, "rounds=2", "--json", "--out", tmp_path / "run")
    assert finished.code == 0, finished.err
    assert json.loads((tmp_path / "run" / "partition.json").read_text())["clients"] == 3
