"""Runs that never ran: folders with numbers that a test chooses, written in no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

RECIPE: dict[str, Any] = {
    "data": {"name": "cifar10"},
    "partition": {"name": "dirichlet", "alpha": 0.1, "clients": 6, "validation": 0.1, "seed": 0, "held_out": 0},
    "model": {"name": "lenet"},
    "objective": {"name": "cross_entropy"},
    "algorithm": {"name": "fedavg"},
    "rounds": 8,
    "clients_per_round": 3,
    "local": {"epochs": 3, "batch_size": 64, "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0001},
    "batch_norm": "average",
    "evaluation": {"every": 2, "test_last": 2},
    "forgetting": {"every": 4},
    "seed": 0,
    "execution": {"engine": "auto", "workers": "auto"},
}
CLASSES = ["cat", "dog", "emu", "fox"]


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`; a section with a name replaces the one before."""
    result = dict(below)
    for key, value in above.items():
        inner = isinstance(value, dict) and isinstance(result.get(key), dict) and "name" not in value
        result[key] = merged(result[key], value) if inner else value
    return result


def a_probe(
    random: np.random.Generator, clients: int, models: int, samples: int, scale: float
) -> dict[str, np.ndarray]:
    """Accuracies are multiples of 1 / samples, as measured ones are."""
    chosen = np.sort(random.choice(clients, models, replace=False))
    before = random.integers(samples // 2, samples + 1, clients)
    lost = (random.random((models, clients)) * scale * samples).astype(int)
    after = np.clip(before[None, :] - lost, 0, samples)
    after[np.arange(models), chosen] = samples
    class_before = np.full(len(CLASSES), 0.75)
    present = random.random((models, len(CLASSES))) < 0.5
    return {
        "models": chosen,
        "data": np.arange(clients),
        "before": before / samples,
        "after": after / samples,
        "samples": np.full(clients, samples),
        "class_before": class_before,
        "class_after": np.where(present, 0.9, 0.75 - scale),
        "present": present,
    }


@pytest.fixture
def make_run() -> Callable[..., Path]:
    """`make_run(path, final=0.5, **settings)` writes a run's folder and returns it."""

    def make(
        path: Path,
        *,
        final: float = 0.5,
        scale: float = 0.3,
        finished: bool = True,
        old: bool = False,
        **settings: Any,
    ) -> Path:
        recipe = merged(RECIPE, settings)
        rounds, clients = recipe["rounds"], recipe["partition"]["clients"]
        models, every = recipe["clients_per_round"], recipe["forgetting"]["every"]
        random = np.random.default_rng(recipe["seed"])
        path.mkdir(parents=True)
        (path / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
        lines = []
        for t in range(1, rounds + 1):
            line: dict[str, Any] = {"round": t, "clients": [0, 1], "lr": 0.01, "train_loss": 2.0 / t}
            if t % recipe["evaluation"]["every"] == 0 or t == rounds:
                line["val_accuracy"] = final * t / rounds
                line["val_accuracy_worst"] = final * t / rounds / 2
            if t > rounds - recipe["evaluation"]["test_last"]:
                line["test_accuracy"] = final
            if every and t % every == 0:
                probe = a_probe(random, clients, models, 50, scale)
                kept = ("models", "before", "after") if old else tuple(probe)
                (path / "forgetting").mkdir(exist_ok=True)
                np.savez_compressed(path / "forgetting" / f"round-{t:05d}.npz", **{key: probe[key] for key in kept})
                matrix = probe["before"][None, :] - probe["after"]
                own = probe["models"][:, None] == np.arange(clients)[None, :]
                line |= {"forgetting": float(matrix[~own].mean()), "learned": float(-matrix[own].mean())}
            lines.append(line)
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if not old:
            by_client = {"round": rounds, "client": [0, 1, 2], "val_accuracy": [final, None, final / 2]}
            (path / "clients.jsonl").write_text(json.dumps(by_client) + "\n")
        counts = random.integers(0, 3, (clients, len(CLASSES))) * 10
        counts[:, 0] += 5
        card = {
            "clients": clients,
            "samples": {"total": 1000, "validation": clients * 50},
            "validation_size": {"min": 50, "median": 50.0, "max": 50},
            "classes": len(CLASSES),
            "one_class_clients": {"count": 0, "first": []},
            "class_names": CLASSES,
            "digest": f"{recipe['partition'].get('alpha')}-{recipe['partition']['seed']}",
        }
        (path / "partition.json").write_text(json.dumps(card))
        if not old:
            np.savez_compressed(
                path / "partition.npz",
                client=np.zeros(4, np.int32),
                validation=np.zeros(4, bool),
                class_counts=counts,
            )
        (path / "environment.json").write_text(json.dumps({"fedrecall": "0.1.0", "torch": "2.13.0"}))
        if finished:
            probed = [line for line in lines if "forgetting" in line]
            summary = {
                "status": "finished",
                "rounds": rounds,
                "final_accuracy": final,
                "final_accuracy_rounds": recipe["evaluation"]["test_last"],
                "forgetting": float(np.mean([line["forgetting"] for line in probed])) if probed else None,
                "learned": float(np.mean([line["learned"] for line in probed])) if probed else None,
                "seconds": 61.0,
                "warnings": [],
            }
            (path / "summary.json").write_text(json.dumps(summary))
        return path

    return make
