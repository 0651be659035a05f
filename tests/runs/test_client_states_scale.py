"""Ten thousand clients that all have a state: it lies on disk, and memory does not grow with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory import measurable, printed_by

CLIENTS = 10_000
PARAMETERS = 62_006  # of LeNet on images of 32x32 with three channels
GIGABYTE = 10**9

SCRIPT = """
import json, sys
import numpy as np
from fedrecall import CrossEntropy, Federation, Local, Natural, Scaffold, federate
from fedrecall.models.lenet import lenet

clients, out = int(sys.argv[1]), sys.argv[2]
random = np.random.default_rng(0)
ids = np.concatenate([np.arange(clients), np.arange(0, clients, 2)])  # one or two samples each
x = random.integers(0, 256, (len(ids), 32, 32, 3), dtype=np.uint8)
y = np.arange(len(ids)) % 10
federation = Federation.from_arrays(x, y, partition=Natural(validation=0), ids=ids, num_classes=10)
del x
model = lenet((3, 32, 32), 10)
run = federate(
    model, federation, algorithm=Scaffold(), objective=CrossEntropy(), rounds=1, participation=1.0,
    local=Local(steps=1, batch_size=2, lr=0.01), engine="serial", out=out,
)
print(json.dumps({
    "parameters": sum(parameter.numel() for parameter in model.parameters()),
    "clients": len(run.metrics[0]["clients"]),
    "loss": run.metrics[0]["train_loss"],
    "peak": peak(),
}))
"""


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """Removed at once: pytest keeps the folders of its last three sessions."""
    if shutil.disk_usage(tmp_path).free < 4 * GIGABYTE:
        pytest.skip(f"the states of {CLIENTS} clients need 2.5 GB, and less than 4 GB are free at {tmp_path}")
    yield tmp_path / "run"
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


@pytest.mark.slow
@measurable
def test_the_states_of_ten_thousand_clients_lie_on_disk_and_not_in_memory(out: Path, tmp_path: Path) -> None:
    found = json.loads(printed_by(SCRIPT, CLIENTS, out))
    assert found["parameters"] == PARAMETERS
    assert found["clients"] == CLIENTS
    assert found["loss"] > 0
    files = list((out / "clients").rglob("*.safetensors"))
    assert len(files) == CLIENTS
    assert len(list((out / "clients").rglob("*"))) == CLIENTS + 10  # in folders of a thousand; nothing half-written
    # A control variate of 62,006 floats each, and a little for padding and the header.
    sizes = {path.stat().st_size for path in files}
    assert min(sizes) >= 4 * PARAMETERS
    assert max(sizes) <= 4 * PARAMETERS + 1000
    assert sum(path.stat().st_size for path in files) == pytest.approx(2.5 * GIGABYTE, rel=0.02)
    assert 0.1 * GIGABYTE < found["peak"] < GIGABYTE
