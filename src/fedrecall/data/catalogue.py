"""The catalogue of data sets that are read from files: origin, terms, download, and state on this machine.

Sizes are in bytes. The hashes are those published on the `terms_from` pages; those of MNIST are the ones that
torchvision expects from the same address.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Protocol

from fedrecall.data.download import fetch, remove_if_failed, unpack_archive
from fedrecall.data.files.cifar import CIFAR10, CIFAR100
from fedrecall.data.files.femnist import FEMNIST
from fedrecall.data.files.idx import FASHION_MNIST, IDX_FILES, MNIST, OtherLabelsError
from fedrecall.data.places import data_root
from fedrecall.errors import InputError, nearest

CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz"
CIFAR_TERMS = "no licence stated; cite Krizhevsky 2009"
MNIST_PAGE = "https://ossci-datasets.s3.amazonaws.com/mnist"
FASHION_PAGE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FASHION_REPOSITORY = "https://github.com/zalandoresearch/fashion-mnist"
SHIPPED_SHA256 = "3da019ceeb7abd8aa6e70b9276ae4676ca172d83b9bde8330e4a533cfb0b054e"
README_ROOM = 2**20  # for the few files in an archive beside the data


@dataclass(frozen=True)
class Download:
    """A file on a publisher's server."""

    url: str
    md5: str
    size: int

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[1]


def idx_downloads(page: str, *hashes_and_sizes: tuple[str, int]) -> tuple[Download, ...]:
    """Return the four compressed idx files on a page; MD5 and size are in the order of `IDX_FILES`."""
    return tuple(Download(f"{page}/{name}.gz", md5, size) for name, (md5, size) in zip(IDX_FILES, hashes_and_sizes))


class DataFiles(Protocol):
    """The files of a data set in its publisher's layout."""

    def locate(self, folder: str | Path | None) -> Path:
        """Return the folder they should be in, or raise an `InputError` if there is none."""

    def file_names(self) -> list[str]:
        """Return names or patterns; the data set is missing if no file matches one."""

    def check(self, folder: str | Path | None = None) -> None:
        """Raise an `InputError` that names the first missing or damaged file."""


@dataclass(frozen=True)
class Entry:
    """A data set of the catalogue."""

    name: str
    content: str
    terms: str
    terms_from: str
    files: DataFiles
    unpacked_size: int
    downloads: tuple[Download, ...] = ()
    unpacked_in: str = ""  # the folder below the data root that the archives are unpacked in
    otherwise: str = ""  # where it comes from if it is not downloaded

    @property
    def download_size(self) -> int:
        return sum(download.size for download in self.downloads)


class ShippedFile:
    """The file of the embedded data set."""

    def locate(self, folder: str | Path | None) -> Path:
        return Path(str(resources.files("fedrecall") / "data"))

    def file_names(self) -> list[str]:
        return ["fashion_mini.npz"]

    def check(self, folder: str | Path | None = None) -> None:
        path = self.locate(folder) / "fashion_mini.npz"
        if hashlib.sha256(path.read_bytes()).hexdigest() != SHIPPED_SHA256:
            raise InputError(f"{path} is not as it was shipped; install fedrecall again.")


ENTRIES = (
    Entry(
        name="fashion_mini",
        content="12,000 of the images of Fashion-MNIST",
        terms="MIT",
        terms_from=FASHION_REPOSITORY,
        files=ShippedFile(),
        unpacked_size=9_504_000,
        otherwise="shipped with fedrecall",
    ),
    Entry(
        name="cifar10",
        content="60,000 colour images, 32 x 32, of 10 classes",
        terms=CIFAR_TERMS,
        terms_from=f"{CIFAR_PAGE}/cifar.html",
        files=CIFAR10,
        unpacked_size=184_380_000,
        downloads=(Download(f"{CIFAR_PAGE}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),),
    ),
    Entry(
        name="cifar100",
        content="60,000 colour images, 32 x 32, of 100 classes in 20 groups",
        terms=CIFAR_TERMS,
        terms_from=f"{CIFAR_PAGE}/cifar.html",
        files=CIFAR100,
        unpacked_size=184_440_000,
        downloads=(Download(f"{CIFAR_PAGE}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),),
    ),
    Entry(
        name="mnist",
        content="70,000 handwritten digits, 28 x 28",
        terms="CC BY-SA 3.0",
        terms_from="https://www.tensorflow.org/api_docs/python/tf/keras/datasets/mnist/load_data",
        files=MNIST,
        unpacked_size=54_950_048,
        unpacked_in="mnist",
        downloads=idx_downloads(
            MNIST_PAGE,
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
    ),
    Entry(
        name="fashion_mnist",
        content="70,000 images of clothes, 28 x 28, of 10 classes",
        terms="MIT",
        terms_from=FASHION_REPOSITORY,
        files=FASHION_MNIST,
        unpacked_size=54_950_048,
        unpacked_in="fashion-mnist",
        downloads=idx_downloads(
            FASHION_PAGE,
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
    ),
    Entry(
        name="femnist",
        content="800,000 handwritten digits and letters, 28 x 28, of 3,500 writers",
        terms="BSD-2-Clause (LEAF)",
        terms_from="https://github.com/TalwalkarLab/leaf/blob/master/LICENSE.md",
        files=FEMNIST,
        unpacked_size=0,
        otherwise="not downloaded by us: the scripts of https://github.com/TalwalkarLab/leaf make it, "
        "or the extra hf reads it from Hugging Face",
    ),
)
CATALOGUE = {entry.name: entry for entry in ENTRIES}


def find(name: str) -> Entry:
    if name not in CATALOGUE:
        raise InputError(f"there is no data set {name!r} in the catalogue; {nearest(name, CATALOGUE)}")
    return CATALOGUE[name]


def state(entry: Entry, folder: str | Path | None = None) -> str:
    """Read every file and return "here", "missing", or "damaged: " with a sentence that names the file."""
    try:
        place = entry.files.locate(folder)
    except InputError:
        return "missing"
    if not any(any(place.glob(name)) for name in entry.files.file_names()):
        return "missing"
    try:
        entry.files.check(folder)
    except OtherLabelsError as error:
        # Files directly in the data root may belong to another data set of the same layout.
        return "missing" if place == data_root(folder) else f"damaged: {error}"
    except InputError as error:
        return f"damaged: {error}"
    return "here"


def obtain(entry: Entry, folder: str | Path | None = None, *, progress: bool = False) -> Path:
    """Download and unpack a data set below `folder`, unless it is there and intact; return its folder."""
    if state(entry, folder) == "here":
        return entry.files.locate(folder)
    if not entry.downloads:
        raise InputError(f"{entry.name} is {entry.otherwise}.")
    target = data_root(folder) / entry.unpacked_in
    with remove_if_failed(target):
        download_and_unpack(entry, target, progress=progress)
    if (now := state(entry, folder)) != "here":
        raise InputError(f"{entry.name} was downloaded to {target}, but is {now}")
    return entry.files.locate(folder)


def download_and_unpack(entry: Entry, target: Path, *, progress: bool) -> None:
    """Download all archives, then unpack them; delete the archives that were not there before."""
    archives, new = [], []
    try:
        for part in entry.downloads:
            if not (target / part.file_name).exists():
                new.append(target / part.file_name)
            archives.append(fetch(part.url, f"md5:{part.md5}", target, part.file_name, part.size, progress=progress))
        for archive in archives:
            unpack_archive(archive, target, entry.unpacked_size + README_ROOM)
    finally:
        for archive in new:
            with contextlib.suppress(OSError):  # an earlier error says more
                archive.unlink()
