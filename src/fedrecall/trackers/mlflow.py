"""MLflow: a run in one of its stores, local or on a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from fedrecall.errors import InputError, short_repr
from fedrecall.trackers.base import TrackedRun, Tracker, TrackerSession

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

LONGEST_PARAMETER = 6000  # characters, for MLflow
AT_ONCE = 100  # parameters in a call
STATUS = {"finished": "FINISHED", "interrupted": "KILLED"}


@dataclass(frozen=True)
class MLflow(Tracker):
    """A run in an MLflow store; needs the extra `mlflow`."""

    uri: Annotated[str | None, "the store, as sqlite:///mlflow.db or http://..; default: as MLflow is set up"] = None
    experiment: Annotated[str, "the experiment that the run belongs to; made if it is not there"] = "fedrecall"
    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    def place(self) -> str:
        return f"mlflow {self.uri or ''}".strip()

    def open(self, run: TrackedRun) -> TrackerSession:
        from mlflow.tracking import MlflowClient

        for name in ("alembic", "mlflow.store.db.utils"):  # they tell of each table that they make
            logging.getLogger(name).setLevel(logging.WARNING)
        client = MlflowClient(tracking_uri=self.uri)
        return MLflowSession(client, run, run.id or self._new_run(client, run))

    def _new_run(self, client: MlflowClient, run: TrackedRun) -> str:
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else client.create_experiment(self.experiment)
        return str(client.create_run(experiment, run_name=run.name).info.run_id)


class MLflowSession(TrackerSession):
    id: str

    def __init__(self, client: MlflowClient, run: TrackedRun, id: str) -> None:
        from mlflow.exceptions import MlflowException

        self.id, self._client = id, client
        try:
            before = client.get_run(id).data
        except MlflowException as error:
            raise InputError(
                f"the MLflow run {short_repr(id)} of this run's folder cannot be read ({error}); set "
                "MLFLOW_TRACKING_URI to the store that has it, or delete the folder's trackers.json to begin another"
            ) from None
        client.update_run(id, status="RUNNING")
        # Metrics cannot be deleted. Rounds that are made again have the same values, and are not sent twice.
        points = (point for name in before.metrics for point in client.get_metric_history(id, name))
        self.known = max((point.step for point in points), default=0)
        self._log_settings(run, set(before.params))

    def _log_settings(self, run: TrackedRun, known: set[str]) -> None:
        from mlflow.entities import Param

        # A parameter never changes; the recipe as a file does, if a run is made longer.
        new = [Param(key, str(value)[:LONGEST_PARAMETER]) for key, value in run.settings.items() if key not in known]
        for start in range(0, len(new), AT_ONCE):
            self._client.log_batch(self.id, params=new[start : start + AT_ONCE])
        self._client.log_dict(self.id, dict(run.recipe), "recipe.yaml")

    def scalars(self, round: int, values: Mapping[str, float]) -> None:
        if round > self.known:
            self._log(round, values)

    def _log(self, round: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self.id, metrics=[Metric(name, value, now, round) for name, value in values.items()])

    def image(self, name: str, round: int, pixels: np.ndarray) -> None:
        self._client.log_image(self.id, pixels, artifact_file=f"{name}/round-{round:05d}.png")

    def close(self, round: int, summary: Mapping[str, Any], values: Mapping[str, float]) -> None:
        self._log(round, {f"summary/{name}": value for name, value in values.items()})
        self._client.log_dict(self.id, dict(summary), "summary.json")
        self._client.set_terminated(self.id, STATUS.get(str(summary.get("status")), "FAILED"))
