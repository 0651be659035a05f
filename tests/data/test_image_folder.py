"""Images of the user's own, a folder for each class."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedrecall import Federation, Iid, Natural
from fedrecall.data.sources import DATASETS, image_folder
from fedrecall.data.transform import Images
from fedrecall.errors import InputError

random = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)


def draw(file: str, *shape: int) -> np.ndarray:
    """An image of random pixels, of 6 x 5 unless a shape is given, and its pixels."""
    pixels = random.integers(0, 256, shape or (6, 5, 3), np.uint8)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)
    return pixels


@pytest.fixture
def split() -> dict[str, np.ndarray]:
    """images/train and images/test with the classes cat and dog, as PNG, which keeps every pixel."""
    names = [
        "train/dog/1.png",
        "train/dog/0.PNG",
        "train/cat/b.png",
        "train/cat/a.png",
        "test/cat/1.png",
        "test/dog/1.png",
    ]
    return {name: draw(f"images/{name}") for name in names}


def pooled() -> None:
    """pool/CLASS, ten images each, without a folder for the test."""
    for name in ("cat", "dog"):
        for i in range(10):
            draw(f"pool/{name}/{i}.png")


def refused(expected: str, path: str = "images", **options: Any) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        image_folder(path, **options)
    assert "\n" not in str(caught.value)


def png(width: int, height: int) -> bytes:
    """A PNG file whose header speaks of that many pixels, and which has none."""
    data = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + data + struct.pack(">I", zlib.crc32(data)) + b"\0\0\0\x09IDAT"


# What is read.


def test_classes_are_the_sorted_folders_and_images_come_in_the_order_of_their_names(split: Any) -> None:
    data = image_folder("images")
    assert data.class_names == ("cat", "dog")
    assert data.num_classes == 2
    expected = [split[f"train/{name}"] for name in ("cat/a.png", "cat/b.png", "dog/0.PNG", "dog/1.png")]
    np.testing.assert_array_equal(data.x_train, expected)
    np.testing.assert_array_equal(data.x_test, [split["test/cat/1.png"], split["test/dog/1.png"]])
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 0, 1, 1], [0, 1])
    assert data.x_train.dtype == np.uint8
    assert data.y_train.dtype == np.int64


def test_images_are_normalised_by_the_training_images(split: Any) -> None:
    train = np.stack([pixels for name, pixels in split.items() if name.startswith("train")]) / 255
    transform = image_folder("images").transform
    assert isinstance(transform, Images)
    np.testing.assert_allclose(transform.mean, train.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(transform.std, train.std(axis=(0, 1, 2)))


def test_decoded_images_are_mapped_and_used_where_they_lie(split: Any) -> None:
    data = image_folder("images")
    federation = Federation.from_data(data, Iid(clients=2))
    assert federation.train.x_path == Path(data.x_train.filename)
    Path("images/train/cat/a.png").touch()
    assert image_folder("images").x_train.filename != data.x_train.filename


def test_another_folder_may_hold_the_test(split: Any) -> None:
    Path("images/test").rename("images/val")
    data = image_folder("images/train", test="images/val")
    np.testing.assert_array_equal(data.x_test, [split["test/cat/1.png"], split["test/dog/1.png"]])
    assert len(data.x_train) == 4


def test_a_class_may_be_missing_in_the_test(split: Any) -> None:
    Path("images/test/dog/1.png").unlink()
    Path("images/test/dog").rmdir()
    assert image_folder("images").y_test.tolist() == [0]


def test_a_class_may_be_called_train() -> None:
    for name in ("bus", "train"):
        draw(f"images/{name}/1.png")
        draw(f"images/{name}/2.png")
    assert image_folder("images").class_names == ("bus", "train")


def test_without_a_test_folder_a_share_is_drawn_and_nothing_is_lost() -> None:
    pooled()
    data = image_folder("pool", test_fraction=0.3)
    assert (len(data.x_train), len(data.x_test)) == (14, 6)
    found = {image.tobytes() for image in (*data.x_train, *data.x_test)}
    assert found == {np.asarray(Image.open(file)).tobytes() for file in Path("pool").rglob("*.png")}
    for image, label in zip(data.x_test, data.y_test):
        inside = Path("pool", data.class_names[label]).iterdir()
        assert image.tobytes() in {np.asarray(Image.open(file)).tobytes() for file in inside}


def test_the_draw_is_a_function_of_its_seed() -> None:
    pooled()
    first, again, other = (image_folder("pool", seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, other.x_test)


def test_images_are_resized_to_height_and_width(split: Any) -> None:
    draw("images/train/cat/large.png", 20, 30, 3)
    assert image_folder("images", size=8).x_train.shape == (5, 8, 8, 3)
    assert image_folder("images", size=(4, 10)).x_train.shape == (5, 4, 10, 3)


def test_resizing_takes_the_mean_of_the_pixels() -> None:
    chequered = np.zeros((8, 8, 3), np.uint8)
    chequered[::2, ::2] = chequered[1::2, 1::2] = 200
    for name in ("a", "b"):
        Path("images", name).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(chequered).save(f"images/{name}/{i}.png")
    assert set(np.unique(image_folder("images", size=1).x_train)) == {100}


def test_grey_is_one_channel(split: Any) -> None:
    grey = image_folder("images", colour=False)
    assert grey.x_train.shape == (4, 6, 5, 1)
    red, green, blue = split["train/cat/a.png"].astype(float).transpose(2, 0, 1)
    np.testing.assert_allclose(grey.x_train[0, ..., 0], 0.299 * red + 0.587 * green + 0.114 * blue, atol=1)
    assert image_folder("images").x_train.shape == (4, 6, 5, 3)  # not the cached grey ones


@pytest.mark.parametrize("ending", ["jpg", "bmp", "gif", "webp", "tif", "ppm"])
def test_other_kinds_of_files_are_read(ending: str) -> None:
    for name in ("cat", "dog"):
        for i in range(2):
            draw(f"images/{name}/{i}.{ending}", 16, 16, 3)
    assert image_folder("images").x_train.shape == (3, 16, 16, 3)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_every_kind_of_8_bits_becomes_red_green_and_blue(split: Any, mode: str) -> None:
    ending = "tif" if mode == "CMYK" else "png"
    Image.new(mode, (5, 6)).save(f"images/train/cat/other.{ending}")
    assert image_folder("images").x_train.shape == (5, 6, 5, 3)


def test_what_is_hidden_or_no_image_is_left_out(split: Any) -> None:
    Path("images/train/.cache").mkdir()
    for name in (".DS_Store", ".hidden.png", "Thumbs.db", "notes.txt"):
        Path("images/train/cat", name).write_bytes(b"?")
    Path("images/train/cat/folder.png").mkdir()
    assert len(image_folder("images").x_train) == 4


def test_a_link_that_moves_to_another_class_changes_the_label(split: Any, tmp_path: Path) -> None:
    store = tmp_path / "store.png"
    Path("images/train/cat/b.png").rename(store)
    Path("images/train/cat/b.png").symlink_to(store)
    assert image_folder("images").y_train.tolist() == [0, 0, 1, 1]
    Path("images/train/cat/b.png").unlink()
    Path("images/train/dog/-.png").symlink_to(store)  # the second of all, as before
    assert image_folder("images").y_train.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("name", ["a 'quoted' \"name\"", "two\nlines", "<b>bold [red]", "ключ", "$x_1$"])
def test_any_text_may_be_the_name_of_a_class(fedrecall: Any, name: str) -> None:
    for folder in (name, "other"):
        for i in range(4):
            draw(f"images/{folder}/{i}.png")
    assert set(image_folder("images").class_names) == {name, "other"}
    finished = fedrecall(
        *("run", "demo", "data=image_folder", "data.path=images", "model=mlp", "model.hidden=[]", "rounds=1"),
        *("partition.clients=2", "clients_per_round=1", "forgetting.every=0", "--engine", "serial", "--json"),
    )
    assert finished.code == 0, finished.err
    assert finished.out.count("\n") == 1


# What is refused.


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "it is not an image"),
        (b"GIF89a, but not really", "it is not an image|cannot be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is not an image"),
        (png(6, 5), "truncated"),
        (png(10_000, 10_000), "decompression bomb"),
        (png(2**31 - 1, 2**31 - 1), "decompression bomb"),
    ],
)
def test_a_broken_image_is_named(split: Any, content: bytes, expected: str) -> None:
    Path("images/train/cat/b.png").write_bytes(content)
    refused(f"the image 'images/train/cat/b.png'.*({expected})")


def test_a_truncated_image_is_named(split: Any) -> None:
    file = Path("images/test/dog/1.png")
    file.write_bytes(file.read_bytes()[:-30])
    refused("the image 'images/test/dog/1.png' cannot be read: .*truncated")


@pytest.mark.parametrize("mode", ["I", "I;16", "F"])
def test_an_image_of_more_than_8_bits_is_not_cut_down(split: Any, mode: str) -> None:
    Image.new(mode, (5, 6)).save("images/train/cat/deep.tif")
    refused("the image 'images/train/cat/deep.tif': it has more than 8 bits")


def test_the_first_image_of_another_size_is_named(split: Any) -> None:
    draw("images/train/dog/0a.png", 7, 5, 3)
    refused("'images/train/dog/0a.png' is 7 pixels high and 5 wide, but the first one 6 and 5; .* data.size")


def test_a_class_that_is_only_in_the_test_is_refused(split: Any) -> None:
    draw("images/test/emu/1.png")
    refused("'images/test': the class 'emu' is not among the training images")


def test_an_empty_class_folder_is_refused(split: Any) -> None:
    Path("images/train/emu").mkdir()
    refused("'images/train': there are no images in the class folder 'emu'")


def test_a_folder_without_classes_is_refused() -> None:
    draw("images/1.png")
    refused("'images': there are no folders in it; one for each class was expected")


def test_a_file_is_no_folder() -> None:
    Path("images").write_text("")
    refused("'images' cannot be read: Not a directory")


def test_a_name_that_is_not_text_is_refused(split: Any) -> None:
    draw("images/train/\udcff/1.png")
    refused(r"'images/train': the class name '\\udcff' is not valid text")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"path": "imges"}, "data.path is 'imges', but there is no such file or folder"),
        ({"test": "tset"}, "data.test is 'tset', but there is no such file or folder"),
        ({"size": 5000}, "data.size is 5000; sides of at most 4096"),
        (
            {"path": "images/train", "test_fraction": 0.0},
            "data.test_fraction is 0.0; it must be above 0 and below 1",
        ),
    ],
)
def test_a_bad_option_is_named(split: Any, options: dict[str, Any], expected: str) -> None:
    refused(expected, **options)


def test_it_is_listed() -> None:
    assert DATASETS["image_folder"] is image_folder


# A folder for each client.


def test_clients_are_called_like_their_folders(split: dict[str, np.ndarray]) -> None:
    pixels = {name: draw(f"shops/{name}") for name in ("Bern/cat/0.png", "Basel/dog/0.png", "Basel/dog/1.png")}
    read = image_folder("shops", test="images/test", by_client=True)
    assert read.class_names == ("cat", "dog")
    assert (read.y_train.tolist(), read.ids.tolist()) == ([1, 1, 0], ["Basel", "Basel", "Bern"])
    np.testing.assert_array_equal(read.x_train[2], pixels["Bern/cat/0.png"])
    federation = Federation.from_data(read, Natural())
    assert [federation.train_indices(k).tolist() for k in range(2)] == [[0, 1], [2]]
    assert list(federation.client_names) == ["Basel", "Bern"]


def test_a_test_drawn_from_clients_leaves_each_image_with_its_client() -> None:
    for client, name in (("Bern", "cat"), ("Basel", "dog")):
        for i in range(10):
            draw(f"shops/{client}/{name}/{i}.png")
    read = image_folder("shops", test_fraction=0.2, by_client=True)
    assert len(read.ids) == len(read.y_train) == 16
    assert {(client, int(label)) for client, label in zip(read.ids, read.y_train)} == {("Bern", 0), ("Basel", 1)}


def test_a_folder_without_clients_is_refused() -> None:
    Path("empty").mkdir()
    refused("one for each client was expected", "empty", by_client=True)
    Path("empty/Bern").mkdir()
    refused("one for each class was expected", "empty", by_client=True)
