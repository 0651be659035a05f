"""Calibrate the last layer of a finished run's model by CCVR, and judge it before and after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from fedrecall.api.execute import load_federation
from fedrecall.api.run import Run
from fedrecall.api.run_recipe import load_run_recipe
from fedrecall.backend.torch_state import fixed_torch_state
from fedrecall.client.predict import EVALUATION_BATCH
from fedrecall.core.rng import stream
from fedrecall.data.federation import Federation
from fedrecall.data.samples import Samples
from fedrecall.errors import InputError
from fedrecall.measure.class_gaussians import draw_features, pooled_statistics, refitted, statistics_of
from fedrecall.models.build import model_input
from fedrecall.models.representation import Representation
from fedrecall.recipe.files import Tree

CALIBRATED = "calibrated.safetensors"


@dataclass(frozen=True)
class Calibration:
    """The test accuracies of a run's model before and after its last layer was refitted."""

    before: float
    after: float
    by_class_before: float  # mean over the classes
    by_class_after: float
    samples: int  # drawn for each class
    model: str  # the file with the calibrated model


def calibrate(
    run: str | Path,
    samples: int = 1000,
    *,
    out: str | Path | None = None,
    execution: Tree | None = None,
    trust: bool = False,
) -> Calibration:
    """Refit the last layer of a run's model and write the model to `out` (RUN/calibrated.safetensors).

    Each training client sends the number of its samples of each class with the mean and the covariance of their
    features (the inputs of the last layer); `samples` features of each class are drawn from the pooled Gaussians.
    """
    run = Path(run)
    if samples < 1:
        raise InputError(f"samples is {samples}; expected a number of at least 1")
    recipe = load_run_recipe(run, (), {"execution": execution} if execution else None, trust=trust)
    federation = load_federation(recipe)
    if federation.test is None:
        raise InputError(f"the data of the run {str(run)!r} has no test set to judge the calibrated model by")
    model = Run(run).model(trust=trust)
    with fixed_torch_state(), torch.no_grad():
        layer = last_layer(model, federation)
        before = accuracy_by_class(model, federation)
        clients = (
            statistics_of(*features_of(model, federation, k), federation.num_classes)
            for k in range(federation.population)
        )
        x, y = draw_features(pooled_statistics(clients), samples, stream(recipe.seed, "calibrate"))
        with torch.enable_grad():
            weight, bias = refitted(layer.weight, layer.bias, torch.from_numpy(x), torch.from_numpy(y))
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
        after = accuracy_by_class(model, federation)
    target = Path(out) if out else run / CALIBRATED
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, target)
    labels = np.bincount(federation.test.y, minlength=federation.num_classes)
    share = labels / labels.sum()
    return Calibration(
        float((before * share).sum()), float((after * share).sum()),
        float(before[labels > 0].mean()), float(after[labels > 0].mean()), samples, str(target),
    )  # fmt: skip


def last_layer(model: nn.Module, federation: Federation) -> nn.Linear:
    """Return the model's last linear layer, whose output has to be the logits."""
    layers = [inner for inner in model.modules() if isinstance(inner, nn.Linear)]
    features, _ = features_of(model, federation, 0)
    chunk = torch.from_numpy(federation.train_indices(0)[:2])
    logits = model(batch(model, federation, federation.train, chunk))
    own = layers[-1](torch.from_numpy(features[:2]).to(logits.dtype)) if layers else None
    if own is None or own.shape != logits.shape or not torch.allclose(own, logits, rtol=1e-4, atol=1e-5):
        raise InputError("the model's logits are not the output of its last nn.Linear, which calibration refits")
    return layers[-1]


def batch(model: nn.Module, federation: Federation, source: Samples, positions: torch.Tensor) -> torch.Tensor:
    x, _ = source.gather(positions)
    return model_input(federation.transform(x, None), next(model.parameters()).dtype)


def features_of(model: nn.Module, federation: Federation, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the features and labels of a client's training samples, without augmentation."""
    hook = Representation(model, None)
    indices, found = federation.train_indices(client), []
    try:
        for chunk in torch.split(torch.from_numpy(indices), EVALUATION_BATCH):
            model(batch(model, federation, federation.train, chunk))
            found.append(hook.take())
    finally:
        hook.remove()
    return torch.cat(found).double().numpy(), federation.train.y[indices]


def accuracy_by_class(model: nn.Module, federation: Federation) -> np.ndarray:
    """Return the accuracy on the test samples of each class; zero for classes without any."""
    test = federation.test
    assert test is not None
    chunks = torch.split(torch.arange(len(test)), EVALUATION_BATCH)
    predicted = torch.cat([model(batch(model, federation, test, chunk)).argmax(1) for chunk in chunks]).numpy()
    counts = np.bincount(test.y, minlength=federation.num_classes)
    right = np.bincount(test.y[predicted == test.y], minlength=federation.num_classes)
    return right / np.maximum(counts, 1)
