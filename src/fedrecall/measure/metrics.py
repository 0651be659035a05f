"""The metrics: their definitions and units, as docs and report show them, and their computation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedrecall.measure.forgetting import group_mean, mean_of_known

if TYPE_CHECKING:
    from fedrecall.client.predictions import Predictions

BINS = 15  # of the calibration error
WORST = 0.1  # the share of the clients in `val_accuracy_worst`

Better = Literal["higher", "lower"]
Unit = Literal["%", "points", ""]


@dataclass(frozen=True)
class Metric:
    """A metric: its name in the files, its definition, and its better direction, if any.

    Files hold shares of samples; readers see accuracies in percent and their differences in points.
    """

    name: str
    words: str
    better: Better | None = None
    unit: Unit = ""
    signed: bool = False  # shown with its sign even if it is positive

    @property
    def factor(self) -> float:
        """The factor from a number in the files to the metric's unit."""
        return 100.0 if self.unit else 1.0

    def heading(self, title: str) -> str:
        """Return the title with the unit, as in `val accuracy, %`."""
        return f"{title}, {self.unit}" if self.unit else title


# Two frequent kinds: an accuracy, and a difference of accuracies that may have either sign.
accuracy = partial(Metric, better="higher", unit="%")
difference = partial(Metric, unit="points", signed=True)

# A definition names the model, the data, the clients, their weights and the rounds.
# "Evaluated" rounds are every `evaluation.every` rounds and the last one, "tested" rounds the last
# `evaluation.test_last`, "probed" rounds those of `forgetting`.
OF_A_ROUND = (
    Metric("round", "The number of the round, counted from 1."),
    Metric("clients", "The clients that trained in the round, in the order of the server's sum."),
    Metric("lr", "The local learning rate of the round."),
    Metric(
        "train_loss",
        "The clients' mean objective over their local steps, on their training batches, weighted by their training "
        "samples, in every round. WSM drops a constant (log beta_y), so its loss may be below zero; it does not "
        "compare with that of another objective.",
        "lower",
    ),
    Metric("bytes_up", "Bytes of the tensors that the round's clients sent to the server, all together.", "lower"),
    Metric("bytes_down", "Bytes of the tensors that the server sent to the round's clients, all together.", "lower"),
    Metric(
        "flops",
        "Floating-point operations of the round's local training: the forward and backward pass of one sample, times "
        "the samples of all local steps of all clients.",
        "lower",
    ),
    Metric(
        "simulated_seconds",
        "Seconds that the round would take by the simulated clock, until the server has the last update that it waits "
        "for, if the recipe has a `clock`.",
        "lower",
    ),
    accuracy(
        "val_accuracy",
        "Accuracy of the global model after the round on the pooled validation data of all training clients, every "
        "sample weighing the same, at evaluated rounds.",
    ),
    accuracy(
        "val_accuracy_mean",
        "Mean over the training clients, each weighing the same, of the global model's accuracy on the client's "
        "validation data, at evaluated rounds.",
    ),
    accuracy(
        "val_accuracy_worst",
        "Mean of the same accuracies over the worst tenth of the training clients (rounded up), at evaluated rounds.",
    ),
    Metric(
        "val_accuracy_sd",
        "Standard deviation of the same accuracies over the training clients, at evaluated rounds.",
        "lower",
        unit="points",
    ),
    accuracy(
        "val_accuracy_macro",
        "Mean over the classes, each weighing the same, of the global model's accuracy on the class's samples in the "
        "pooled validation data, at evaluated rounds.",
    ),
    Metric(
        "val_nll",
        "Mean negative log-likelihood of the labels under the global model on the pooled validation data, every "
        "sample weighing the same, at evaluated rounds.",
        "lower",
    ),
    Metric(
        "val_ece",
        "Expected calibration error of the global model on the pooled validation data: the mean over samples of the "
        "gap between confidence and accuracy in 15 bins of equal width, at evaluated rounds.",
        "lower",
        unit="points",
    ),
    accuracy(
        "held_out_accuracy",
        "Accuracy of the global model after the round on all data of the held-out clients, every sample weighing the "
        "same, at evaluated rounds.",
    ),
    accuracy("test_accuracy", "Accuracy of the global model after the round on the test set, at tested rounds."),
    accuracy(
        "test_accuracy_macro",
        "Mean over the classes, each weighing the same, of the global model's accuracy on the class's samples in the "
        "test set, at tested rounds.",
    ),
    Metric(
        "test_nll",
        "Mean negative log-likelihood of the labels under the global model on the test set, at tested rounds.",
        "lower",
    ),
    Metric(
        "test_ece",
        "Expected calibration error (15 bins) of the global model on the test set, at tested rounds.",
        "lower",
        unit="points",
    ),
    Metric(
        "update_norm",
        "Mean over the round's clients of the Euclidean norm of the client's update y - x, weights only, at evaluated "
        "rounds.",
    ),
    Metric(
        "update_cosine",
        "Mean over the pairs of the round's clients of the cosine between their updates y - x, at evaluated rounds.",
    ),
    difference(
        "forgetting",
        "What local training loses on others: mean over the pairs of a client i of the round and another client k of "
        "F[i, k], the accuracy of the global model before the round less that of client i's model after its local "
        "steps, on client k's validation data, at probed rounds.",
        "lower",
    ),
    Metric(
        "forgetting_se",
        "Standard error of the forgetting that comes from measuring it on a sample of the clients' data.",
        unit="points",
    ),
    difference(
        "learned",
        "What local training gains on its own: mean over the round's clients i of the accuracy of client i's model "
        "after its local steps less that of the global model before the round, on client i's validation data, at "
        "probed rounds.",
        "higher",
    ),
    Metric(
        "forgotten_drops",
        "The drops alone: mean of max(F[i, k], 0) over the pairs of `forgetting`.",
        "lower",
        unit="points",
    ),
    Metric(
        "forgotten_rises",
        "The rises alone: mean of max(-F[i, k], 0) over the pairs of `forgetting`.",
        "higher",
        unit="points",
    ),
    difference(
        "forgotten_present",
        "Forgetting per class, where the client has it: mean over the pairs of a client i of the round and a class in "
        "its training data of the accuracy on the class that its training lost, on the pooled validation data, at "
        "probed rounds.",
        "lower",
    ),
    difference(
        "forgotten_absent",
        "Forgetting per class, where the client lacks it: the same mean over the pairs of a client i and a class that "
        "is not in its training data.",
        "lower",
    ),
    difference(
        "forgetting_global_statistics",
        "Forgetting by the weights alone: the same as `forgetting`, of client i's weights with the batch-norm "
        "statistics that it was sent.",
        "lower",
    ),
    difference(
        "lost_by_aggregation",
        "What averaging loses: mean over the clients k of the mean accuracy of the round's client models less that of "
        "the new global model, on client k's validation data, at probed rounds.",
        "lower",
    ),
    Metric(
        "global_forgetting",
        "Mean over the classes of the global model's loss of accuracy since the evaluated round before, a gain "
        "counting as zero, on the pooled validation data, at evaluated rounds.",
        "lower",
        unit="points",
    ),
    difference(
        "global_forgetting_from_best",
        "Mean over the classes of the best accuracy at any earlier evaluated round less that of the global model now, "
        "on the pooled validation data, at evaluated rounds.",
        "lower",
    ),
)
METRICS = {metric.name: metric for metric in OF_A_ROUND}
OF_A_RUN = (
    accuracy("final_accuracy", "Mean of `test_accuracy` over the tested rounds."),
    Metric(
        "final_accuracy_sd", "Standard deviation of `test_accuracy` over the tested rounds.", "lower", unit="points"
    ),
    Metric("final_accuracy_rounds", "How many rounds the final accuracy is the mean of."),
    accuracy("final_accuracy_best", "The best `test_accuracy` of the tested rounds, as some papers report it."),
    accuracy(
        "final_accuracy_ema_60",
        "Exponential moving average of `test_accuracy` over the tested rounds, of which each round keeps 0.6 (FedNTD).",
    ),
    accuracy("final_accuracy_ema_90", "The same, of which each round keeps 0.9 (FedMLB)."),
    accuracy(
        "final_accuracy_macro", "Mean of `test_accuracy_macro` over the tested rounds: every class weighs the same."
    ),
    accuracy("last_val_accuracy", "`val_accuracy` of the last evaluated round."),
    difference(
        "forgetting_from_best",
        "`global_forgetting_from_best` of the last evaluated round: FedNTD's forgetting, on validation data.",
        "lower",
    ),
    replace(METRICS["forgetting"], words="Mean of `forgetting` over the probed rounds."),
    replace(METRICS["learned"], words="Mean of `learned` over the probed rounds."),
    Metric(
        "rounds_to_target", "The first evaluated round whose `val_accuracy` is at least `evaluation.target`.", "lower"
    ),
    Metric("bytes_to_target", "`bytes_up` and `bytes_down` of all rounds up to that one.", "lower"),
    Metric("flops_to_target", "`flops` of all rounds up to that one.", "lower"),
    Metric("simulated_seconds", "`simulated_seconds` of all rounds, if the recipe has a `clock`.", "lower"),
    Metric("simulated_seconds_to_target", "`simulated_seconds` of all rounds up to that one.", "lower"),
    Metric(
        "personal_accuracy",
        "Mean over the training clients, each weighing the same, of the accuracy of the client's personal "
        "model on its own validation data. The personal model is that after `personal_steps` local steps from"
        " the final model, if `evaluation.personalised` or a personal algorithm asks for it.",
        "higher",
        unit="%",
    ),
    Metric(
        "personal_accuracy_sd",
        "Standard deviation of the same accuracies over the training clients.",
        "lower",
        unit="points",
    ),
    Metric(
        "personal_accuracy_before",
        "The same mean before those steps: of the final global model or, with a personal algorithm, of the "
        "clients' own models.",
        "higher",
        unit="%",
    ),
    Metric(
        "personal_accuracy_others",
        "Mean over all pairs of a personal model and another client of the model's accuracy on that client's "
        "validation data.",
        "higher",
        unit="%",
    ),
    Metric(
        "personal_forgetting",
        "Mean over the same pairs of the final global model's accuracy on that client's validation data minus"
        " the personal model's; absent where the clients have no one model.",
        "lower",
        unit="points",
    ),
)
SUMMARY = {metric.name: metric for metric in OF_A_RUN}
# The metrics that may decide when a run ends and which model is kept: those on validation data.
DECIDING = {name: metric for name, metric in METRICS.items() if name.startswith("val_") and metric.better}


def metric_of(name: str) -> Metric:
    """Return the metric of a round or a run; any other name is a user's own metric.

    >>> metric_of("val_accuracy").unit, metric_of("forgetting").unit, metric_of("train_loss").unit
    ('%', 'points', '')
    """
    return METRICS.get(name) or SUMMARY.get(name) or Metric(name, "A metric of the user's own.")


def pooled_metrics(predictions: Predictions, labels: np.ndarray, classes: int) -> dict[str, float]:
    """Return the metrics of one model on pooled samples, all with equal weight (except in `accuracy_macro`)."""
    return {
        "accuracy": float(predictions.correct.mean()),
        "accuracy_macro": mean_of_known(group_mean(predictions.correct, labels, classes)),
        "nll": float(predictions.nll.mean(dtype=np.float64)),
        "ece": calibration_error(predictions.confidence, predictions.correct),
    }


def counted_metrics(predictions: Predictions) -> dict[str, float]:
    """Return the metrics of pooled samples of which clients report accuracy and likelihood only; samples of a
    client that does not answer are NaN and left out."""
    if np.isnan(predictions.correct).all():
        return {}
    return {"accuracy": mean_of_known(predictions.correct), "nll": mean_of_known(predictions.nll)}


def client_metrics(accuracy: np.ndarray) -> dict[str, float]:
    """Return the metrics over clients, from one accuracy each; clients without data are NaN and left out.

    >>> client_metrics(np.array([0.5, 1.0, np.nan, 0.0]))
    {'accuracy_mean': 0.5, 'accuracy_worst': 0.0, 'accuracy_sd': 0.408248290463863}
    """
    known = np.sort(accuracy[~np.isnan(accuracy)])
    # In floating point, a product like 0.1 * 30 is a little more than 3.
    worst = known[: math.ceil(WORST * len(known) - 1e-9)]
    return {
        "accuracy_mean": float(known.mean()),
        "accuracy_worst": float(worst.mean()),
        "accuracy_sd": float(known.std()),
    }


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Guo et al., "On Calibration of Modern Neural Networks", ICML 2017: bins (0, 1/15], (1/15, 2/15], ..

    >>> calibration_error(np.array([0.9, 0.9]), np.array([True, False]))    # 0.9 sure, right half of the time
    0.4
    """
    if not np.isfinite(confidence).all():
        return float("nan")
    confidence = confidence.astype(np.float64)
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=confidence - correct, minlength=BINS)  # samples times (confidence - accuracy)
    return float(np.abs(gaps).sum() / len(confidence))
