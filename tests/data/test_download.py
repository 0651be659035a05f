"""Downloads from a server on this machine, and archives that are damaged or meant to do harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedrecall.data import download
from fedrecall.data.download import fetch, unpack_archive
from fedrecall.errors import InputError

CONTENT = bytes(range(256)) * 1000
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
BY_HAND = "download it by hand, unpack it, and name its folder with --data DIR"


class Handler(BaseHTTPRequestHandler):
    """/whole has the content; the other paths fail as they are called."""

    asked: list[tuple[str, str | None]]
    over: threading.Event

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Accept-Encoding"]))
        if self.path == "/absent":
            return self.send_error(404)
        if self.path == "/silent":
            self.over.wait(10)
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        try:
            if self.path == "/endless":
                while not self.over.is_set():
                    self.wfile.write(CONTENT)
            self.wfile.write(CONTENT[: len(CONTENT) // 2])
            if self.path == "/stuck":
                self.over.wait(10)
            if self.path != "/cut":
                self.wfile.write(CONTENT[len(CONTENT) // 2 :])
        except OSError:  # the client has had enough
            pass

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[str]:
    """The address of a server that ends with the test."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    Handler.asked, Handler.over = [], threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        Handler.over.set()
        http.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "above" / "data"


def check_refused(folder: Path, url: str, complaint: str, known_hash: str = MD5) -> None:
    """One sentence with the file, the address and what to do; and nothing is left."""
    with pytest.raises(InputError) as error:
        fetch(url, known_hash, folder, "set.bin", len(CONTENT))
    sentence = str(error.value)
    assert sentence.startswith("set.bin: ")
    assert complaint in sentence
    assert url in sentence
    assert BY_HAND in sentence
    assert sentence.count("\n") == 0
    assert not folder.parent.exists()


def test_a_file_is_downloaded_whole(server, folder, capfd) -> None:
    path = fetch(f"{server}/whole", MD5, folder, "set.bin", len(CONTENT))
    assert path == folder / "set.bin"
    assert path.read_bytes() == CONTENT
    assert [path.name for path in folder.iterdir()] == ["set.bin"]
    assert capfd.readouterr() == ("", "")


def test_the_bytes_are_asked_for_as_they_lie_there(server, folder) -> None:
    fetch(f"{server}/whole", MD5, folder, "set.bin", len(CONTENT))
    assert Handler.asked == [("/whole", "identity")]


def test_a_file_that_is_there_is_not_downloaded_again(server, folder) -> None:
    folder.mkdir(parents=True)
    (folder / "set.bin").write_bytes(CONTENT)
    assert fetch(f"{server}/whole", MD5, folder, "set.bin", len(CONTENT)).read_bytes() == CONTENT
    assert Handler.asked == []


def test_a_file_of_another_hash_is_downloaded_again(server, folder) -> None:
    folder.mkdir(parents=True)
    (folder / "set.bin").write_bytes(b"old")
    assert fetch(f"{server}/whole", MD5, folder, "set.bin", len(CONTENT)).read_bytes() == CONTENT


def test_another_hash_than_the_known_one_is_refused(server, folder) -> None:
    wrong = "md5:" + 32 * "0"
    check_refused(folder, f"{server}/whole", f"does not have the hash {wrong}", known_hash=wrong)


def test_a_connection_that_is_cut_is_told(server, folder) -> None:
    check_refused(folder, f"{server}/cut", "was cut before the end")


def test_a_file_that_the_server_does_not_have_is_told(server, folder) -> None:
    check_refused(folder, f"{server}/absent", "answered 404 Not Found")


@pytest.mark.parametrize("path", ["silent", "stuck"])
def test_a_server_that_falls_silent_is_given_up(server, folder, monkeypatch, path) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    check_refused(folder, f"{server}/{path}", "did not answer within 0.2 s")


def test_a_server_that_is_not_there_is_told(folder, monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        check_refused(folder, f"http://127.0.0.1:{taken.getsockname()[1]}/whole", "cannot be reached")


def test_an_address_that_is_none_is_told(folder) -> None:
    check_refused(folder, "http://", "cannot be downloaded")


@pytest.mark.parametrize("path", ["whole", "endless"])
def test_more_bytes_than_the_file_has_are_not_taken(server, folder, path) -> None:
    with pytest.raises(InputError, match=f"{server}/{path} sends more than the 1000 bytes"):
        fetch(f"{server}/{path}", MD5, folder, "set.bin", 1000)
    assert not folder.parent.exists()


def test_a_folder_that_cannot_be_written_is_named(server, tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=r"set\.bin: the folder .*file.data cannot be written .*--to DIR"):
        fetch(f"{server}/whole", MD5, tmp_path / "file" / "data", "set.bin", len(CONTENT))


def test_a_bar_is_shown_on_a_terminal(server, folder, monkeypatch, capfd) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal
    fetch(f"{server}/whole", MD5, folder, "set.bin", len(CONTENT), progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "set.bin" in captured.err
    assert "256.0/256.0 kB" in captured.err


def test_the_catalogue_is_read_without_the_parts_that_download() -> None:
    words = "import sys, fedrecall.data.catalogue; sys.exit('pooch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words]).returncode == 0


def plain(name: str, content: bytes = b"x") -> Callable[[tarfile.TarFile], None]:
    def add(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))

    return add


def special(name: str, kind: bytes, target: str = "") -> Callable[[tarfile.TarFile], None]:
    def add(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        tar.addfile(member)

    return add


def archive_of(tmp_path: Path, *members: Callable[[tarfile.TarFile], None]) -> Path:
    path = tmp_path / "set.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as tar:
        for add in members:
            add(tar)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_archive_is_unpacked_with_its_folders(tmp_path, folder) -> None:
    members = special("set", tarfile.DIRTYPE), plain("set/a.bin", b"a"), plain("set/deep/b.bin", b"b")
    unpack_archive(archive_of(tmp_path, *members), folder, 2)
    assert contents(folder) == {"set/a.bin": b"a", "set/deep/b.bin": b"b"}


def test_a_compressed_file_is_unpacked_under_its_name(tmp_path, folder) -> None:
    (tmp_path / "train-labels.gz").write_bytes(gzip.compress(b"content"))
    unpack_archive(tmp_path / "train-labels.gz", folder, 7)
    assert contents(folder) == {"train-labels": b"content"}


def test_files_are_replaced_and_others_stay(tmp_path, folder) -> None:
    (folder / "set").mkdir(parents=True)
    (folder / "set" / "a.bin").write_bytes(b"old")
    (folder / "set" / "mine.txt").write_bytes(b"mine")
    unpack_archive(archive_of(tmp_path, plain("set/a.bin", b"new")), folder, 10)
    assert contents(folder) == {"set/a.bin": b"new", "set/mine.txt": b"mine"}


HARMFUL = {
    "above": plain("../evil"),
    "above, later": plain("set/../../evil"),
    "absolute": plain("/tmp/evil"),
    "above, of another system": plain("..\\evil"),
    "drive": plain("C:evil"),
    "symbolic link": special("set/evil", tarfile.SYMTYPE, "/etc/passwd"),
    "symbolic link inside": special("set/evil", tarfile.SYMTYPE, "a.bin"),
    "hard link": special("set/evil", tarfile.LNKTYPE, "set/a.bin"),
    "device": special("set/evil", tarfile.CHRTYPE),
    "pipe": special("set/evil", tarfile.FIFOTYPE),
    "sparse": special("set/evil", tarfile.GNUTYPE_SPARSE),
}


@pytest.mark.parametrize("harm", HARMFUL)
def test_a_member_that_is_no_plain_file_below_the_folder_spoils_the_archive(tmp_path, folder, harm) -> None:
    archive = archive_of(tmp_path, plain("set/a.bin"), HARMFUL[harm], plain("set/z.bin"))
    with pytest.raises(InputError, match=r"set\.tar\.gz has a member .*evil"):
        unpack_archive(archive, folder, 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["set.tar.gz"]


@pytest.mark.parametrize("second", ["set/a.bin", "set/a.bin/b.bin"])
def test_members_in_each_others_way_spoil_the_archive(tmp_path, folder, second) -> None:
    with pytest.raises(InputError, match=r"set\.tar\.gz cannot be unpacked in .*data: "):
        unpack_archive(archive_of(tmp_path, plain("set/a.bin"), plain(second)), folder, 1000)
    assert not folder.exists()


@pytest.fixture
def unpacked_bytes(monkeypatch) -> list[int]:
    """How many bytes came out of the compressed files."""
    counts = [0]

    class Counted(gzip.GzipFile):
        def read(self, size: int | None = -1) -> bytes:
            content = super().read(size)
            counts[0] += len(content)
            return content

    monkeypatch.setattr(download.gzip, "open", lambda path: Counted(path))
    return counts


ZEROS = bytes(20_000_000)
BOMBS = {
    "one large file": [plain("set/a.bin", ZEROS)],
    "many files": [plain(f"set/{i}.bin", bytes(50_000)) for i in range(100)],
    "many empty files": [plain(f"set/{i}.bin", b"") for i in range(8000)],
    "a long name": [plain("n" * 10_000_000)],
}


@pytest.mark.parametrize("kind", BOMBS)
def test_an_archive_that_blows_up_is_stopped_early(tmp_path, folder, unpacked_bytes, kind) -> None:
    archive = archive_of(tmp_path, *BOMBS[kind])
    with pytest.raises(InputError, match=r"set\.tar\.gz unpacks to more than 1000000 bytes"):
        unpack_archive(archive, folder, 1_000_000)
    assert unpacked_bytes[0] < 1_100_000
    assert not folder.parent.exists()


def test_a_compressed_file_that_blows_up_is_stopped_early(tmp_path, folder, unpacked_bytes) -> None:
    (tmp_path / "labels.gz").write_bytes(gzip.compress(ZEROS))
    with pytest.raises(InputError, match=r"labels\.gz unpacks to more than 1000000 bytes"):
        unpack_archive(tmp_path / "labels.gz", folder, 1_000_000)
    assert unpacked_bytes[0] == 1_000_001
    assert not folder.parent.exists()


def test_exactly_the_allowed_size_is_unpacked(tmp_path, folder) -> None:
    archive = archive_of(tmp_path, plain("a.bin", bytes(600)), plain("b.bin", bytes(400)))
    with pytest.raises(InputError, match="more than 999 bytes"):
        unpack_archive(archive, folder, 999)
    unpack_archive(archive, folder, 1000)
    assert sorted(contents(folder)) == ["a.bin", "b.bin"]


@pytest.mark.parametrize("damage", ["cut", "checksum", "no archive", "not compressed", "empty"])
def test_a_damaged_archive_is_named_and_leaves_what_was_there(tmp_path, folder, damage) -> None:
    archive = archive_of(tmp_path, plain("set/a.bin", CONTENT), plain("set/b.bin", CONTENT))
    raw = archive.read_bytes()
    archive.write_bytes(
        {
            "cut": raw[: len(raw) // 2],
            "checksum": raw[:-8] + bytes([raw[-8] ^ 1]) + raw[-7:],
            "no archive": gzip.compress(b"<html>" * 1000),
            "not compressed": b"<html>" * 1000,
            "empty": gzip.compress(b""),
        }[damage]
    )
    (folder / "set").mkdir(parents=True)
    (folder / "set" / "a.bin").write_bytes(b"old")
    with pytest.raises(InputError, match=r"set\.tar\.gz is damaged: "):
        unpack_archive(archive, folder, 2 * len(CONTENT))
    assert contents(folder) == {"set/a.bin": b"old"}
