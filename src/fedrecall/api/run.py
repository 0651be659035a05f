"""Access to a run's folder from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedrecall.api.execute import write_report
from fedrecall.api.run_recipe import load_run_recipe
from fedrecall.backend.torch_state import fixed_torch_state
from fedrecall.config.options import checked_judged_prior
from fedrecall.core.priors import check_length
from fedrecall.display import facts_table
from fedrecall.errors import InputError, short_repr
from fedrecall.models.prior_shift import ShiftedModel, with_shift
from fedrecall.models.weights import read_weights
from fedrecall.objectives import Objective
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.recipe import FROM_PYTHON, Recipe
from fedrecall.report.comparison import group_methods
from fedrecall.report.wording import rounded_share
from fedrecall.runs import files
from fedrecall.runs.reader import RunRecord, is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Run:
    """Reads the metrics, the model and the other results in a run's folder."""

    def __init__(self, path: str | Path, make_model: Callable[[], nn.Module] | None = None) -> None:
        self.path = Path(path)
        self._make_model = make_model

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary per round, as in `metrics.jsonl`."""
        return RunRecord(self.path).metrics

    @property
    def summary(self) -> dict[str, Any]:
        """The results and the final status, as in `summary.json`; empty until the run ends."""
        return RunRecord(self.path).summary

    @property
    def forgetting(self) -> dict[int, dict[str, np.ndarray]]:
        """For each probed round: `before` [k], `after` [i, k], `models` [i], and more (docs/metrics.md)."""
        return RunRecord(self.path).probes

    def to_pandas(self) -> Any:
        """Return the lines of `metrics.jsonl` as a pandas DataFrame, by round; pandas has to be installed."""
        try:
            import pandas
        except ImportError:
            raise InputError("pandas is not installed; pip install pandas, or use run.metrics") from None
        return pandas.DataFrame(self.metrics).set_index("round") if self.metrics else pandas.DataFrame()

    def model(self, prior: str | Sequence[float] = "as_trained", *, trust: bool = False) -> nn.Module:
        """Return the trained global model. For another prior (uniform, pooled, or the class shares of its future
        data), log(prior / training prior) is added to the bias of the last layer or, without one, to the logits.
        `trust` imports code that the folder names, even if the run is not known as your own."""
        with fixed_torch_state():  # as in the run
            model = self._make_model() if self._make_model else self._model_of_recipe(trust=trust)
            model.load_state_dict(read_weights(self.path / files.MODEL))
            shift = self._shift(prior, trust=trust)
            return model.eval() if shift is None else with_shift(model, shift, self._data()["sample_shape"])

    def save_model(self, path: str | Path, prior: str | Sequence[float] = "as_trained", *, trust: bool = False) -> None:
        """Write the model that `model` returns to a safetensors file, under the names of its tensors."""
        model = self.model(prior, trust=trust)
        if isinstance(model, ShiftedModel):
            raise InputError("the model's last layer has no bias to hold the prior; run.model(prior) has it around")
        save_file(model.state_dict(), path)

    def _shift(self, prior: str | Sequence[float], *, trust: bool) -> Tensor | None:
        """Return the shift of the logits for a prior; None if there is none."""
        try:
            wanted = checked_judged_prior(prior)
        except ValueError as error:
            raise InputError(f"prior is {short_repr(prior)}; {error}") from None
        if wanted == "as_trained":
            return None
        record, recipe = RunRecord(self.path), self._recipe(trust=trust)
        counts = record.class_counts
        if counts is None:
            raise InputError(f"{str(self.path)!r} does not say which classes its clients have, as a prior needs it")
        check_length("prior", wanted, counts.shape[1])
        known = recipe.objective["name"] != FROM_PYTHON["name"]
        objective: Objective = recipe.create("objective") if known else Objective()
        training = counts[: len(counts) - record.card.get("held_out", 0)].sum(0)
        return objective.shift_to(wanted, torch.from_numpy(training / training.sum()))

    def _recipe(self, *, trust: bool) -> Recipe:
        return load_run_recipe(self.path, trust=trust, ask="trust=True")

    def _data(self) -> dict[str, Any]:
        """Return what the run recorded about its data."""
        data: dict[str, Any] = RunRecord(self.path).origin.get("data", {})
        return data

    def _model_of_recipe(self, *, trust: bool) -> nn.Module:
        """Return the model that the recipe names, for the sample shape and classes of the run."""
        recipe, data = self._recipe(trust=trust), self._data()
        shape, classes = data.get("sample_shape"), data.get("classes")
        if recipe.model["name"] == FROM_PYTHON["name"] or shape is None or classes is None:
            raise InputError(f"{str(self.path)!r} does not say how its model is built; load {files.MODEL} into yours")
        model: nn.Module = recipe.create("model", sample_shape=tuple(shape), num_classes=classes)
        return model

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report about this run and return its path."""
        return write_report([self.path], path or self.path / files.REPORT)

    def plot(
        self,
        *metrics: str,
        size: str | None = None,
        font_size: float = 9.0,
    ) -> Figure:
        """Return a matplotlib figure of metrics over the rounds, by default of the accuracy.

        `size` is in inches, as "3.5x2.4", or "column" or "page".
        """
        from fedrecall.report.figures.options import FigureOptions  # matplotlib takes a second to import
        from fedrecall.report.figures.write import plot

        methods = group_methods([RunRecord(self.path)], titles())
        return plot(methods, metrics, FigureOptions(size=size, font_size=font_size))

    def facts(self) -> dict[str, str]:
        """Return the method and the results in words or, if the folder cannot be read, the reason."""
        record = RunRecord(self.path)
        try:
            method, summary, rounds = titles().method(record.recipe), record.summary, len(record.metrics)
        except InputError as error:
            return {"folder": str(self.path), "not read": str(error)}
        found = {
            "folder": str(self.path),
            "method": method,
            "rounds": f"{rounds} of {record.recipe.get('rounds')}, {summary.get('status', 'not finished')}",
        }
        for title, key in (("final accuracy", "final_accuracy"), ("forgetting", "forgetting")):
            if is_number(summary.get(key)):
                found[title] = f"{rounded_share(summary[key]):.1f} {'%' if key == 'final_accuracy' else 'points'}"
        return found

    def __repr__(self) -> str:
        return f"Run({'; '.join(f'{key}: {value}' for key, value in self.facts().items())})"

    def _repr_html_(self) -> str:
        return facts_table("Run", self.facts())
