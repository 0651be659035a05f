"""FEMNIST, with its writers as natural clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedrecall.config.titles import titled
from fedrecall.data.files.femnist import CLASS_NAMES, FEMNIST
from fedrecall.data.sources.base import DataSet
from fedrecall.data.transform import Images, SmallerCrops

# Of 41,130 training images of 289 writers; constants, so that any choice of writers is scaled alike.
MEAN, STD = (0.9615,), (0.1642,)

Augment = Annotated[bool, "random crops of 24x24 after padding by 4, and horizontal flips: as the paper's authors"]


@titled("FEMNIST")
def femnist(folder: str | Path | None = None, augment: Augment = False) -> DataSet:
    """FEMNIST as LEAF writes it: `femnist/data/train` and `femnist/data/test` below `folder`.

    Grey as LEAF has it: the paper is white (255), the ink dark. The ids are the writers of the training images,
    numbered in the sorted order of their names; the test images of all writers are one test set.
    """
    return DataSet(
        name="femnist",
        **FEMNIST.arrays(folder),
        num_classes=len(CLASS_NAMES),
        class_names=CLASS_NAMES,
        transform=SmallerCrops(MEAN, STD, crop_padding=4, flip=True) if augment else Images(MEAN, STD),
    )
