"""Downloads that are checked by hash, unpacked within bounds, and leave nothing incomplete behind."""

from __future__ import annotations

import gzip
import logging
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, TYPE_CHECKING, Any

from fedrecall.display import quiet_logger
from fedrecall.errors import InputError
from fedrecall.storage.scratch import ScratchFolder

if TYPE_CHECKING:
    from rich.progress import Progress

TIMEOUT = 30.0  # seconds without a byte
PIECE = 2**16
BY_HAND = "try again later, or download it by hand, unpack it, and name its folder with --data DIR."
TAR_ROOM = 2**16  # for the headers and the padding of a tar archive


def fetch(
    url: str, known_hash: str, target_folder: Path, file_name: str, most_bytes: int, *, progress: bool = False
) -> Path:
    """Download `url` into `target_folder` unless the file is there with the right hash; return its path.

    `known_hash` is `md5:..` or `sha256:..`. At most `most_bytes` are written.
    """
    import pooch  # type: ignore[import-untyped]  # imports requests, which listing data sets does not need

    bar_shown = download_bar(file_name, shown=progress)
    with remove_if_failed(target_folder), quiet_logger(pooch.get_logger(), logging.WARNING), bar_shown as bar:
        receive = bounded_download(most_bytes, bar)
        try:
            return Path(pooch.retrieve(url, known_hash, file_name, target_folder, downloader=receive))
        except InputError:
            raise
        except OSError as error:
            raise InputError(f"{file_name}: {what_failed(error, url, target_folder)}") from None
        except ValueError:  # from pooch: a wrong hash
            raise InputError(f"{file_name}: what {url} sent does not have the hash {known_hash}; {BY_HAND}") from None


def what_failed(error: OSError, url: str, folder: Path) -> str:
    """Return the end of a sentence about an error of requests, or of the disk."""
    from requests import exceptions

    if not isinstance(error, exceptions.RequestException):
        return f"the folder {folder} cannot be written ({error.strerror or error}); choose another with --to DIR."
    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        problem = f"{url} answered {error.response.status_code} {error.response.reason}"
    elif isinstance(error, exceptions.ChunkedEncodingError):
        problem = f"the connection to {url} was cut before the end"
    elif isinstance(error, exceptions.Timeout) or "timed out" in str(error):
        problem = f"{url} did not answer within {TIMEOUT:g} s"
    elif isinstance(error, exceptions.ConnectionError):
        problem = f"{url} cannot be reached"
    else:
        problem = f"{url} cannot be downloaded ({error})"
    return f"{problem}; {BY_HAND}"


def bounded_download(most_bytes: int, bar: Any) -> Any:
    """Return a downloader for pooch that stops when the server sends too much."""
    import pooch

    # The hash is of the stored file, so neither may the server compress it nor requests unpack it.
    headers = {"Accept-Encoding": "identity"}
    download = pooch.HTTPDownloader(progressbar=bar, chunk_size=PIECE, timeout=TIMEOUT, headers=headers)

    def receive(url: str, output_file: str, owner: Any) -> None:
        with open(output_file, "wb") as file:
            too_much = f"{url} sends more than the {most_bytes} bytes that the file has; it was not kept."
            download(url, Bounded(file, most_bytes, too_much), owner)

    return receive


class Bounded:
    """A file of which at most `most` bytes can be read or written."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, most: int, complaint: str) -> None:
        self.file, self.left, self.complaint = file, most, complaint

    def read(self, size: int) -> bytes:
        return self._counted(self.file.read(min(size, self.left + 1)))

    def write(self, content: bytes) -> None:
        self.file.write(self._counted(content))

    def flush(self) -> None:
        self.file.flush()

    def _counted(self, content: bytes) -> bytes:
        self.left -= len(content)
        if self.left < 0:
            raise InputError(self.complaint)
        return content


def unpack_archive(archive: Path, folder: Path, most_bytes: int) -> None:
    """Unpack a `.tar.gz`, or the one file of a `.gz`, into `folder`; an error leaves nothing there.

    A tar archive may only have plain files and folders below `folder`; any other member is an error.
    """
    with remove_if_failed(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with ScratchFolder("unpacking", folder) as scratch:
                inside = scratch.path / "unpacked"
                inside.mkdir()
                unpack_to(inside, archive, most_bytes)
                move_files(inside, folder)
        except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
            raise InputError(f"{archive} is damaged: {error}.") from None
        except OSError as error:
            raise InputError(f"{archive} cannot be unpacked in {folder}: {error.strerror or error}.") from None


def unpack_to(folder: Path, archive: Path, most_bytes: int) -> None:
    too_much = f"{archive} unpacks to more than {most_bytes} bytes; it was not unpacked."
    with gzip.open(archive) as stream:
        if not archive.name.endswith((".tar.gz", ".tgz")):
            copy(Bounded(stream, most_bytes, too_much), folder / archive.stem)
            return
        bounded = Bounded(stream, most_bytes + TAR_ROOM, too_much)
        # As a stream: seeking in a compressed file starts again at its beginning, uncounted.
        with tarfile.open(fileobj=bounded, mode="r|") as tar:  # type: ignore[call-overload]
            left = most_bytes
            for member in tar:
                left -= member.size
                if left < 0:
                    raise InputError(too_much)
                unpack_member(tar, member, folder, archive)
        while bounded.read(PIECE):  # the checksum is at the end
            pass


def unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, archive: Path) -> None:
    if not is_inside(member.name):
        raise InputError(f"{archive} has a member {member.name!r} outside its folder; it was not unpacked.")
    if member.issparse() or not (member.isfile() or member.isdir()):
        raise InputError(f"{archive} has a member {member.name!r} that is no plain file or folder.")
    path = folder / member.name
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        copy(tar.extractfile(member), path)


def is_inside(name: str) -> bool:
    """Return whether a member's name stays below the folder on every system.

    >>> [is_inside(name) for name in ("a/b.bin", "../b", "/b", "a/../../b", "..\\\\b", "C:b")]
    [True, False, False, False, False, False]
    """
    windows = PureWindowsPath(name)  # splits at both slashes
    return not (PurePosixPath(name).is_absolute() or windows.drive or windows.root or ".." in windows.parts)


def copy(source: Any, path: Path) -> None:
    with path.open("xb") as file:
        shutil.copyfileobj(source, file, PIECE)


def move_files(unpacked: Path, folder: Path) -> None:
    """Move the files one by one, so that other files in the folders stay."""
    for path in [path for path in unpacked.rglob("*") if path.is_file()]:
        target = folder / path.relative_to(unpacked)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


@contextmanager
def remove_if_failed(folder: Path) -> Iterator[None]:
    """After an error, remove the folder and its parents if they are empty and did not exist before."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        for path in made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise


class DownloadBar:
    """A progress bar of rich with the methods that pooch calls."""

    def __init__(self, bar: Progress, title: str) -> None:
        self.bar, self.task = bar, bar.add_task(title, total=None)
        self.total = 0

    def update(self, count: int) -> None:
        self.bar.update(self.task, total=self.total or None, advance=count)

    def reset(self) -> None:
        self.bar.reset(self.task)

    def close(self) -> None:
        pass


@contextmanager
def download_bar(title: str, *, shown: bool) -> Iterator[DownloadBar | bool]:
    """Yield a progress bar if asked for and on a terminal, else False, which pooch takes for none."""
    from rich.console import Console  # listing data sets does not need it
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield False
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        yield DownloadBar(bar, title)
