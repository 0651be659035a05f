"""The kind of a federation's samples, a file of the app, because no machine has all the data to derive it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.data.federation import Federation
from fedrecall.data.transform import Images, Plain, SmallerCrops, Transform
from fedrecall.errors import InputError
from fedrecall.storage.safe_parsing import json_value, reason_of, regular_file

FILE = "samples.json"
KINDS: dict[str, type[Transform]] = {"plain": Plain, "images": Images, "smaller_crops": SmallerCrops}


@dataclass(frozen=True)
class SampleKind:
    """Shape, dtype, classes and the transform to a model's input, the same on all machines of a federation."""

    shape: tuple[int, ...]  # as stored; images are (H, W, C)
    dtype: str
    num_classes: int
    class_names: tuple[str, ...]
    transform: Transform

    @classmethod
    def of(cls, federation: Federation) -> SampleKind:
        x = federation.train.x
        rest = federation.num_classes, federation.class_names, federation.transform
        return cls(tuple(x.shape[1:]), str(x.dtype), *rest)

    def write(self, folder: Path) -> None:
        names = {kind: name for name, kind in KINDS.items()}
        transform = {"name": names[type(self.transform)], **asdict(self.transform)}
        tree = {**vars(self), "transform": transform}
        (folder / FILE).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> SampleKind:
        path = folder / FILE
        try:
            tree = json_value(regular_file(path).read_text(encoding="utf-8"))
            options = dict(tree["transform"])
            transform = KINDS[options.pop("name")](**{key: tuples(value) for key, value in options.items()})
            return cls(
                tuple(map(int, tree["shape"])),
                str(np.dtype(tree["dtype"])),
                int(tree["num_classes"]),
                tuple(map(str, tree["class_names"])),
                transform,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the file {str(path)!r} is damaged: {reason_of(error)}") from None

    def check(self, x: np.ndarray, y: np.ndarray) -> None:
        """Raise an `InputError` if samples or labels are of another kind."""
        found = (tuple(x.shape[1:]), str(x.dtype))
        if found != (self.shape, self.dtype):
            raise InputError(
                f"a sample is {found[1]} of shape {found[0]}; {self.dtype} of shape {self.shape} was expected"
            )
        if len(y) and not 0 <= y.min() <= y.max() < self.num_classes:
            raise InputError(f"a label is not one of the classes 0 to {self.num_classes - 1}")


def tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
