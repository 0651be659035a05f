"""Make src/fedrecall/data/fashion_mini.npz: the first images of each class of Fashion-MNIST.

    python tools/make_fashion_mini.py [FOLDER]

FOLDER holds the four idx .gz files; by default it is where Debian's package
dataset-fashion-mnist puts them. The same input gives the same bytes on every run.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
OUTPUT = Path(__file__).resolve().parent.parent / "src/fedrecall/data/fashion_mini.npz"
TRAIN_PER_CLASS = 1000
TEST_PER_CLASS = 200

ARRAYS_SHA256 = "d5b91c929ef64cdf3fac6a13820932f698037ef77030a9584f3d6499a1ccee00"
FILE_SHA256 = "3da019ceeb7abd8aa6e70b9276ae4676ca172d83b9bde8330e4a533cfb0b054e"


def read_idx(path: Path) -> np.ndarray:
    """An idx file: two zero bytes, the type, the number of dimensions, the big-endian shape, the data."""
    raw = gzip.decompress(path.read_bytes())
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">u4", count=dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """Where the first `count` samples of each class are, in file order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(10)]))


def choose(folder: Path) -> dict[str, np.ndarray]:
    chosen = {}
    for split, prefix, count in (("train", "train", TRAIN_PER_CLASS), ("test", "t10k", TEST_PER_CLASS)):
        images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
        keep = first_of_each_class(labels, count)
        chosen[f"x_{split}"], chosen[f"y_{split}"] = images[keep], labels[keep]
    return chosen


def arrays_sha256(arrays: dict[str, np.ndarray]) -> str:
    """Of the pixels and labels alone, which no version of zlib or NumPy can change."""
    digest = hashlib.sha256()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """As np.savez_compressed, but with nothing in it that depends on when or where it was made."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            member.create_system = 3
            member.external_attr = 0o644 << 16
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            file.writestr(member, content.getvalue(), compresslevel=9)
    return archive.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEBIAN)
    parser.add_argument("--out", type=Path, default=OUTPUT)
    options = parser.parse_args()

    if not options.folder.is_dir():
        sys.exit(f"{options.folder}: no such folder; install dataset-fashion-mnist or name where its files are")
    arrays = choose(options.folder)
    if (found := arrays_sha256(arrays)) != ARRAYS_SHA256:
        sys.exit(f"{options.folder}: the arrays have SHA-256 {found}, expected {ARRAYS_SHA256}; nothing written")
    content = npz_bytes(arrays)
    options.out.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    print(f"{options.out}: {len(content)} bytes, SHA-256 {found}, arrays {ARRAYS_SHA256}")
    if found != FILE_SHA256:
        print(f"expected {FILE_SHA256}: the same arrays, compressed by another zlib", file=sys.stderr)


if __name__ == "__main__":
    main()
