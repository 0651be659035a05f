"""Forgetting, on matrices small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedrecall.measure.forgetting import (
    client_accuracy,
    drops_and_rises,
    forgetting_matrix,
    forgotten_by_model,
    forgotten_on_data,
    global_forgetting,
    global_forgetting_from_best,
    group_mean,
    learned,
    lost_by_aggregation,
    mean_forgetting,
    mean_of_known,
    present_and_absent,
    probe_metrics,
    standard_error,
)

NAN = float("nan")

BEFORE = np.array([0.5, 0.8, 0.2])
AFTER = np.array([[0.9, 0.6, 0.1], [0.25, 0.3, 0.7]])  # of the models of clients 0 and 1
MODELS = np.array([0, 1])


@pytest.mark.parametrize(
    ("correct", "owners", "expected"),
    [
        ([1, 1, 0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 2, 2, 2], [2 / 3, 1 / 2, 0]),
        ([1, 0, 1], [0, 2, 2], [1, NAN, 1 / 2, NAN]),  # clients 1 and 3 have no samples
        ([1, 0, 1, 1], [1, 0, 1, 0], [1 / 2, 1]),  # in any order
    ],
)
def test_accuracy_is_of_each_clients_own_samples(correct: list[int], owners: list[int], expected: list[float]) -> None:
    accuracy = client_accuracy(np.array(correct, bool), np.array(owners), len(expected))
    assert accuracy == pytest.approx(expected, nan_ok=True)


def mean_learned(matrix: np.ndarray, models: np.ndarray) -> float:
    return mean_of_known(learned(matrix, models))


def test_the_matrix_is_before_minus_after() -> None:
    expected = [[-0.4, 0.2, 0.1], [0.25, 0.5, -0.5]]
    np.testing.assert_allclose(forgetting_matrix(BEFORE, AFTER), expected, rtol=0, atol=1e-15)


def test_forgetting_is_the_mean_over_the_others_data() -> None:
    # Model 0 on clients 1 and 2: 0.2, 0.1. Model 1 on clients 0 and 2: 0.25, -0.5. Their sum is 0.05.
    assert mean_forgetting(forgetting_matrix(BEFORE, AFTER), MODELS) == pytest.approx(0.05 / 4)


def test_learned_is_the_mean_gain_on_their_own_data() -> None:
    # Model 0 on client 0: 0.9 - 0.5. Model 1 on client 1: 0.3 - 0.8.
    assert mean_learned(forgetting_matrix(BEFORE, AFTER), MODELS) == pytest.approx((0.4 - 0.5) / 2)


def test_rows_belong_to_the_models_that_are_named() -> None:
    # Models of clients 2 and 0. Others: -0.4 + 0.2 and 0.5 - 0.5. Own: F[0, 2] = 0.1 and F[1, 0] = 0.25.
    matrix, models = forgetting_matrix(BEFORE, AFTER), np.array([2, 0])
    assert mean_forgetting(matrix, models) == pytest.approx(-0.2 / 4)
    assert mean_learned(matrix, models) == pytest.approx(-(0.1 + 0.25) / 2)


def test_clients_without_validation_data_are_left_out_of_the_means() -> None:
    matrix = forgetting_matrix(np.array([0.5, np.nan, 0.2]), np.where([False, True, False], np.nan, AFTER))
    # Others: model 0 on client 2 0.1, model 1 on clients 0 and 2 0.25 and -0.5. Own: model 0 only, 0.4.
    assert mean_forgetting(matrix, MODELS) == pytest.approx(-0.15 / 3)
    assert mean_learned(matrix, MODELS) == pytest.approx(0.4)


def test_a_single_client_forgets_nothing_that_can_be_measured() -> None:
    assert np.isnan(mean_forgetting(np.array([[0.3]]), np.array([0])))


def test_models_without_own_validation_data_learned_nothing_that_can_be_measured() -> None:
    assert np.isnan(mean_learned(np.array([[np.nan, 0.1]]), np.array([0])))


def test_a_model_that_did_not_change_forgets_and_learns_nothing() -> None:
    matrix = forgetting_matrix(BEFORE, np.stack([BEFORE, BEFORE]))
    assert mean_forgetting(matrix, MODELS) == 0.0
    assert mean_learned(matrix, MODELS) == 0.0


# F of BEFORE and AFTER: model 0 has -0.4 (own), 0.2, 0.1; model 1 has 0.25, 0.5 (own), -0.5.
F = np.array([[-0.4, 0.2, 0.1], [0.25, 0.5, -0.5]])


def test_a_models_forgetting_is_its_mean_over_the_others_data() -> None:
    assert forgotten_by_model(F, MODELS) == pytest.approx([(0.2 + 0.1) / 2, (0.25 - 0.5) / 2])


def test_forgetting_on_a_clients_data_is_the_mean_over_the_others_models() -> None:
    # On client 0's data model 1 counts, on client 1's model 0, on client 2's both.
    assert forgotten_on_data(F, MODELS) == pytest.approx([0.25, 0.2, (0.1 - 0.5) / 2])


def test_data_that_only_its_own_client_was_evaluated_on_has_no_forgetting() -> None:
    assert np.isnan(forgotten_on_data(F[:1], MODELS[:1])).tolist() == [True, False, False]


def test_the_columns_may_be_a_sample_of_the_clients() -> None:
    # The columns are the data of clients 7, 1 and 0; the models are those of clients 0 and 1.
    data = np.array([7, 1, 0])
    assert learned(F, MODELS, data) == pytest.approx([-0.1, -0.5])
    assert mean_forgetting(F, MODELS, data) == pytest.approx((-0.4 + 0.2 + 0.25 - 0.5) / 4)
    assert forgotten_by_model(F, MODELS, data) == pytest.approx([(-0.4 + 0.2) / 2, (0.25 - 0.5) / 2])
    assert forgotten_on_data(F, MODELS, data) == pytest.approx([(-0.4 + 0.25) / 2, 0.2, -0.5])


def test_a_model_whose_data_are_no_column_learned_nothing_that_can_be_measured() -> None:
    assert np.isnan(learned(F, np.array([5, 1]))).tolist() == [True, False]
    assert mean_learned(F, np.array([5, 1])) == pytest.approx(-0.5)


def test_learned_is_the_gain_of_each_model_on_its_own_data() -> None:
    assert learned(F, MODELS) == pytest.approx([0.4, -0.5])


def test_drops_and_rises_are_apart() -> None:
    # Of the four pairs 0.2, 0.1, 0.25 are drops and -0.5 is a rise.
    assert drops_and_rises(F, MODELS) == pytest.approx((0.55 / 4, 0.5 / 4))


def test_a_rise_does_not_hide_a_drop() -> None:
    matrix, models = np.array([[0.0, 0.3, -0.3]]), np.array([0])
    assert mean_forgetting(matrix, models) == pytest.approx(0)
    assert drops_and_rises(matrix, models) == pytest.approx((0.15, 0.15))


def test_the_standard_error_is_that_of_the_columns_means() -> None:
    # Columns: 0.25, 0.2, -0.2. Mean 0.25/3; squared deviations (1/6)^2, (7/60)^2, (17/60)^2, their sum 0.121667.
    deviation = (0.121666666666 / 2) ** 0.5
    assert standard_error(F, MODELS) == pytest.approx(deviation / 3**0.5)
    assert standard_error(F, MODELS, population=12) == pytest.approx(deviation / 3**0.5 * 0.75**0.5)
    assert standard_error(F, MODELS, population=3) == 0


def test_one_column_has_no_standard_error() -> None:
    assert np.isnan(standard_error(F[:, :1], np.array([3, 4])))


def test_classes_that_a_client_has_and_lacks_are_apart() -> None:
    before, after = np.array([0.9, 0.5, NAN, 0.2]), np.array([[1.0, 0.1, NAN, 0.0], [0.3, 0.6, NAN, 0.2]])
    present = np.array([[True, False, True, False], [False, True, False, True]])
    # Present: -0.1; -0.1 and 0. Absent: 0.4 and 0.2; 0.6. Class 2 has no sample.
    assert present_and_absent(before, after, present) == pytest.approx((-0.2 / 3, 1.2 / 3))


def test_without_an_absent_class_nothing_absent_is_forgotten() -> None:
    present, absent = present_and_absent(np.array([0.5]), np.array([[0.25]]), np.array([[True]]))
    assert present == 0.25
    assert np.isnan(absent)


def test_aggregation_loses_what_the_models_had_on_average() -> None:
    lost = lost_by_aggregation(np.array([[0.9, NAN, 0.1], [0.3, NAN, 0.7]]), np.array([0.5, NAN, 0.6]))
    assert lost[[0, 2]] == pytest.approx([0.6 - 0.5, 0.4 - 0.6])
    assert np.isnan(lost[1])


def test_global_forgetting_counts_falls_only() -> None:
    # Falls: 0.3 and none; class 2 has no sample.
    assert global_forgetting(np.array([0.8, 0.2, NAN]), np.array([0.5, 0.6, NAN])) == pytest.approx(0.3 / 2)


def test_global_forgetting_from_the_best_looks_at_all_rounds_before() -> None:
    earlier = np.array([[0.9, 0.1, NAN], [0.4, 0.3, NAN]])
    # Class 0 was best at 0.9, class 1 at 0.3, where it is better now.
    assert global_forgetting_from_best(earlier, np.array([0.5, 0.6, NAN])) == pytest.approx((0.4 - 0.3) / 2)


def test_group_means_leave_empty_groups_out() -> None:
    means = group_mean(np.array([1.0, 2.0, 6.0]), np.array([2, 0, 0]), 3)
    assert (means[0], np.isnan(means[1]), means[2]) == (4.0, True, 1.0)


ARRAYS = {
    "models": MODELS,
    "data": np.array([0, 1, 2]),
    "before": BEFORE,
    "after": AFTER,
    "class_before": np.array([0.6, 0.4]),
    "class_after": np.array([[0.7, 0.1], [0.2, 0.4]]),
    "present": np.array([[True, False], [False, True]]),
    "after_aggregation": np.array([0.5, 0.5, 0.5]),
}


def test_the_metrics_of_a_probe_come_from_its_arrays() -> None:
    assert probe_metrics(ARRAYS, measurable=3) == pytest.approx(
        {
            "forgetting": 0.05 / 4,
            "learned": -0.1 / 2,
            "forgotten_drops": 0.55 / 4,
            "forgotten_rises": 0.5 / 4,
            "forgotten_present": (-0.1 + 0.0) / 2,
            "forgotten_absent": (0.3 + 0.4) / 2,
            # The models' means are 0.575, 0.45 and 0.4.
            "lost_by_aggregation": (0.075 - 0.05 - 0.1) / 3,
        }
    )


def test_with_the_sent_statistics_forgetting_is_told_twice() -> None:
    metrics = probe_metrics({**ARRAYS, "after_global_statistics": np.stack([BEFORE, BEFORE])}, measurable=3)
    assert metrics["forgetting_global_statistics"] == 0
    assert metrics["forgetting"] == pytest.approx(0.05 / 4)


def test_on_a_sample_what_is_learned_comes_from_the_models_own_data() -> None:
    own = {"own_before": np.array([0.5, NAN]), "own_after": np.array([0.75, NAN])}
    metrics = probe_metrics({**ARRAYS, **own, "data": np.array([7, 8, 9])}, measurable=12)
    assert metrics["learned"] == 0.25
    # Now all six pairs count, and the columns' means are -0.075, 0.35 and -0.2.
    assert metrics["forgetting"] == pytest.approx(0.15 / 6)
    assert metrics["forgetting_se"] == pytest.approx(np.std([-0.075, 0.35, -0.2], ddof=1) / 2)
