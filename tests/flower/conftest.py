"""A small recipe for tests of a federation. Without the extra `flower` nothing here is collected."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

HAS_FLOWER = find_spec("flwr") is not None
collect_ignore_glob = [] if HAS_FLOWER else ["test_*.py"]

RECIPE = """
data: {{name: npz, path: {path}}}
partition: {{name: classwise, alpha: 0.5, clients: 4, validation: 0.2, min_size: 8}}
model: {{name: mlp, hidden: [16]}}
objective: wsm
algorithm: fedavg
rounds: 3
clients_per_round: 3
local: {{epochs: 1, batch_size: 8, lr: 0.1, momentum: 0.5}}
evaluation: {{every: 1, test_last: 1}}
"""


def pytest_report_header() -> str | None:
    return None if HAS_FLOWER else "tests/flower: not collected, because the extra flower is not installed"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.heavy)


@pytest.fixture(scope="session")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four clients of different sizes with images of 16 x 16, in which a class is a bright row."""
    folder = tmp_path_factory.mktemp("recipe")
    random = np.random.default_rng(0)
    x, y = random.integers(0, 120, (200, 16, 16), dtype=np.uint8), random.integers(0, 4, 200)
    x[np.arange(200), y] += 100
    np.savez(folder / "data.npz", x_train=x[:140], y_train=y[:140], x_test=x[140:], y_test=y[140:])
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(path=folder / "data.npz"))
    return str(path)
