"""Data sets from a user's image files, in a folder for each class."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedrecall.config.options import Positive
from fedrecall.data.arrays import split_off
from fedrecall.data.cache import cached_arrays, write_rows
from fedrecall.data.sources.base import DataSet
from fedrecall.data.sources.own_files import (
    Augmented,
    Seed,
    TestFraction,
    check_names,
    name_errors,
    own_path,
    stored_transform,
    write_statistics,
)
from fedrecall.errors import InputError, short_repr

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # no format whose decoder starts another program
DEEP = ("I", "F")  # how the names of Pillow's modes with more than 8 bits begin
LONGEST_SIDE = 4096

Where = Annotated[str, "the folder, in the working folder or below the data folder (--data)"]
TestFolder = Annotated[str | None, "another folder with the same classes, for the test"]
Size = Annotated[
    Positive | tuple[Positive, Positive] | None,
    "resize to this side or [height, width] (default: all have one size)",
]
ByClient = Annotated[bool, "true: a folder for each client (PATH/CLIENT/CLASS), for the partition natural"]
Colour = Annotated[bool, "true: red, green and blue; false: grey"]


def image_folder(
    path: Where,
    folder: str | Path | None = None,
    test: TestFolder = None,
    test_fraction: TestFraction = 0.2,
    seed: Seed = 0,
    size: Size = None,
    colour: Colour = True,
    augment: Augmented = False,
    by_client: ByClient = False,
) -> DataSet:
    """A folder of images for each class: PATH/train/CLASS and PATH/test/CLASS, or PATH/CLASS.

    With `by_client` the training images are in PATH/train/CLIENT/CLASS or PATH/CLIENT/CLASS, and clients are called
    like their folders. Classes are the sorted names of the folders. Without a folder for the test, `test_fraction` of
    the images is drawn for it. Files and folders whose names begin with a dot, and files that do not end like images
    (.png, .jpg, ..), are left out. Images are taken as they are stored: a camera's note on how it was held is not used.
    """
    train_folder, test_folder = folders(own_path("data.path", path, folder), test, folder)
    with name_errors(repr(str(train_folder))):
        clients = client_folders(train_folder) if by_client else [train_folder]
        names = sorted({name for each in clients for name in subfolders(each)})
        check_names(names)
        listed = [list_images(each, names) for each in clients]
    train = [file for files, _ in listed for file in files]
    y_train = np.concatenate([labels for _, labels in listed])
    ids = np.repeat([each.name for each in clients], [len(files) for files, _ in listed]) if by_client else None
    if test_folder is not None:
        with name_errors(repr(str(test_folder))):
            test_files, y_test = list_images(test_folder, names)
    else:
        kept, drawn = split_off(len(train), test_fraction, seed)
        test_files, y_test = [train[i] for i in drawn], y_train[drawn]
        train, y_train, ids = [train[i] for i in kept], y_train[kept], None if ids is None else ids[kept]
    side = sides(size)

    def decode(target: Path) -> None:
        first = read_image(train[0], colour, side).shape
        write_rows(target / "x_train.npy", len(train), pieces(train, colour, side, first))
        write_rows(target / "x_test.npy", len(test_files), pieces(test_files, colour, side, first))
        write_statistics(target, np.load(target / "x_train.npy", mmap_mode="r", allow_pickle=False))

    # The entry's name depends on the files in their order, and here on everything else that decides the pixels.
    entry = f"image_folder-{'rgb' if colour else 'grey'}-{'x'.join(map(str, side))}-{len(train)}"
    arrays = cached_arrays(entry, train + test_files, decode)
    return DataSet(
        name="image_folder",
        x_train=arrays["x_train"],
        y_train=y_train,
        x_test=arrays["x_test"],
        y_test=y_test,
        num_classes=len(names),
        class_names=tuple(names),
        transform=stored_transform(arrays, augment),
        ids=ids,
    )


def folders(root: Path, test: str | None, folder: str | Path | None) -> tuple[Path, Path | None]:
    """Return the folders of the training and the test images; without the latter, the test set is drawn."""
    if test is not None:
        return root, own_path("data.test", test, folder)
    if (root / "train").is_dir() and (root / "test").is_dir():
        return root / "train", root / "test"
    return root, None


def client_folders(root: Path) -> list[Path]:
    """Return the clients' folders, which have folders of classes."""
    found = [root / name for name in subfolders(root)]
    if not found:
        raise InputError("there are no folders in it; one for each client was expected")
    return found


def subfolders(root: Path) -> list[str]:
    """Return the sorted names of the class folders."""
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def list_images(root: Path, names: Sequence[str]) -> tuple[list[Path], np.ndarray]:
    """Return the image files of each class in the order of their names, and their labels."""
    found = subfolders(root)
    if not found:
        raise InputError("there are no folders in it; one for each class was expected")
    files: list[Path] = []
    labels: list[int] = []
    for name in found:
        if name not in names:
            raise InputError(f"the class {short_repr(name)} is not among the training images")
        inside = sorted(file for file in (root / name).iterdir() if is_image(file))
        if not inside:
            raise InputError(f"there are no images in the class folder {short_repr(name)}")
        files += inside
        labels += [names.index(name)] * len(inside)
    return files, np.array(labels, np.int64)


def is_image(file: Path) -> bool:
    return file.suffix.lower() in ENDINGS and not file.name.startswith(".") and file.is_file()


def sides(size: int | tuple[int, int] | None) -> tuple[int, ...]:
    """Return height and width, or nothing if images keep their size."""
    wanted = () if size is None else size if isinstance(size, tuple) else (size, size)
    if wanted and max(wanted) > LONGEST_SIDE:
        raise InputError(f"data.size is {size!r}; sides of at most {LONGEST_SIDE} were expected")
    return wanted


def pieces(files: Sequence[Path], colour: bool, side: tuple[int, ...], first: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Yield one image after the other; all must have the size of the first training image."""
    for file in files:
        pixels = read_image(file, colour, side)
        if pixels.shape != first:
            raise InputError(
                f"the image {str(file)!r} is {pixels.shape[0]} pixels high and {pixels.shape[1]} wide, but the "
                f"first one {first[0]} and {first[1]}; say with data.size what to resize all to"
            )
        yield pixels[None]


def read_image(file: Path, colour: bool, side: tuple[int, ...]) -> np.ndarray:
    """Return an image as uint8 (height, width, channels)."""
    mode: Literal["RGB", "L"] = "RGB" if colour else "L"
    with name_errors(f"the image {str(file)!r}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            opened = Image.open(file, formats=FORMATS)
        except UnidentifiedImageError:
            raise InputError(f"it is not an image of a known kind ({', '.join(FORMATS)})") from None
        with opened as image:
            if image.mode.startswith(DEEP):
                raise InputError("it has more than 8 bits a pixel; convert it first")
            converted = image.convert(mode)
        if side:
            converted = converted.resize((side[1], side[0]), Image.Resampling.BILINEAR)
        return np.asarray(converted, np.uint8).reshape(converted.height, converted.width, len(mode))
