"""docs/devices.md: its numbers are those of the code, and its keys exist."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fedrecall import Federation, Iid
from fedrecall.backend.device import WORTH_A_DEVICE
from fedrecall.client.loss_scale import FIRST
from fedrecall.core.vector import FlatModel
from fedrecall.measure.training_cost import flops_per_sample
from fedrecall.models import MODELS
from fedrecall.recipe.settings import Execution, Local

PAGE = (Path(__file__).parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("model", "words"), [("lenet", "LeNet {}"), ("resnet18", "ResNet-18 on images of 32x32 has {}")]
)
def test_the_operations_of_a_step_are_as_the_page_says(model, words) -> None:
    x, y = np.zeros((20, 32, 32, 3), np.uint8), np.arange(20) % 10
    federation = Federation.from_arrays(x, y, partition=Iid(clients=2), layout="nhwc", num_classes=10)
    flat = FlatModel(MODELS[model]((3, 32, 32), 10))
    operations = 64 * flops_per_sample(flat, federation)
    assert words.format(f"{operations:.0e}".replace("e+0", "e").replace("e+", "e")) in " ".join(PAGE.split())
    assert (operations > WORTH_A_DEVICE) == (model == "resnet18")
    assert f"From {WORTH_A_DEVICE:.0e}".replace("e+0", "e") in PAGE


def test_the_keys_and_defaults_of_the_page_exist() -> None:
    for key in set(re.findall(r"`execution\.(\w+)", PAGE)):
        assert key in Execution.model_fields
    assert "`execution.deterministic: true`, the default" in PAGE
    assert "`execution.tf32: false`, the default" in PAGE
    assert (Execution().deterministic, Execution().tf32, Execution().workers_per_device) == (True, False, 1)
    assert f"at first {FIRST:.0f}" in PAGE
    assert Local(precision="float16").precision == "float16"
