"""Runs in lanes have the same digits on every x86-64 processor with AVX2 and FMA (docs/engines.md)."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fedrecall import federate
from fedrecall.api.execute import load_federation
from fedrecall.recipe.layers import load_recipe
from fedrecall.runs.reader import load_run as load_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the digits are those of x86-64"),
]

RESULTS = Path(__file__).parents[2] / "results" / "demo" / "digests.json"
# What torch, oneDNN and MKL may use: as on older processors, and on others' processors.
INSTRUCTIONS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
}
ALGORITHMS = ["fedprox", "scaffold", "fednova", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "feddyn", "gma",
              "centralised", "local_only"]  # fmt: skip
CASES = {
    "cross-entropy": ["objective=cross_entropy"],
    "wsm": ["objective=wsm", "forgetting.every=1"],
    "wsm with its options": ["objective.tau=0.7", "objective.smoothing=0.01", "objective.prior=pooled"],
    "momentum": ["local.momentum=0.9", "local.weight_decay=0.001", "local.partial_batch=keep"],
    "clients in lanes": ["clients_per_round=10", "local.batch_size=10", "local.steps=5", "--engine", "vectorised"],
    "mlp": ["model=mlp", "clients_per_round=10"],
    "normalised head": ["model.head=normalised", "objective.smoothing=0.03"],
    **{name: [f"algorithm={name}"] for name in ALGORITHMS},
}
# Everything that a run leaves about accuracies, and its loss.
PORTABLE = ("accuracy", "forgetting", "learned", "train_loss")


def digits(run: Path) -> list[str]:
    """What must be the same: digests of the model and of the metrics that docs/engines.md names."""
    model = run / "model.safetensors"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if any(word in key for word in PORTABLE)} for line in lines]
    texts = [model.read_bytes() if model.exists() else b"", json.dumps(kept).encode()]
    return [hashlib.sha256(text).hexdigest() for text in texts]


def print_digits(folder: Path) -> None:
    """In a process of its own: short runs of all cases."""
    found = {}
    for name, words in CASES.items():
        engine = words[-1] if "--engine" in words else "serial"
        settings = [word for word in words if "=" in word]
        recipe = load_recipe("demo", ["rounds=3", "evaluation.every=2", *settings], {})
        tree = {key: value for key, value in recipe.tree().items() if key not in ("data", "partition", "execution")}
        federation = load_federation(recipe)
        run = federate(
            tree.pop("model"), federation, engine=engine, workers=1, out=folder / name, progress=False, **tree
        )
        found[name] = digits(run.path)
    print(json.dumps(found))


@pytest.fixture(scope="module")
def by_instructions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[str]]]:
    found = {}
    for name, variables in INSTRUCTIONS.items():
        folder = tmp_path_factory.mktemp(name)
        done = subprocess.run(
            [sys.executable, __file__, str(folder)], env={**os.environ, **variables},
            capture_output=True, text=True, check=True, timeout=600,
        )  # fmt: skip
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", CASES)
def test_model_accuracies_and_loss_do_not_depend_on_instruction_sets(
    case: str, by_instructions: dict[str, dict[str, list[str]]]
) -> None:
    first, *others = (digests[case] for digests in by_instructions.values())
    assert all(other == first for other in others)


@pytest.mark.parametrize("objective", ["cross_entropy", "wsm"])
def test_the_demo_has_the_digits_of_results(objective: str, tmp_path: Path) -> None:
    (expected,) = (row for row in json.loads(RESULTS.read_text()) if row["objective"] == objective and row["seed"] == 0)
    command = [sys.executable, "-m", "fedrecall.cli.main", "run", "demo", f"objective={objective}", "--no-report"]
    subprocess.run([*command, "--quiet", "--out", str(tmp_path / "run")], check=True, timeout=600)
    run = load_run(tmp_path / "run")
    model = hashlib.sha256((tmp_path / "run" / "model.safetensors").read_bytes()).hexdigest()
    found = {"final_accuracy": run.summary["final_accuracy"], "model_sha256": model}
    assert found == {key: expected[key] for key in found}


if __name__ == "__main__":
    print_digits(Path(sys.argv[1]))
