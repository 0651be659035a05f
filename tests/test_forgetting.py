"""Forgetting on matrices small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedrecall.forgetting import client_accuracy, forgetting_matrix, mean_forgetting, mean_learned

BEFORE = np.array([0.5, 0.8, 0.2])
AFTER = np.array([[0.9, 0.6, 0.1], [0.25, 0.3, 0.7]])  # of the models of clients 0 and 1
MODELS = np.array([0, 1])


def test_accuracy_is_of_each_clients_own_samples() -> None:
    correct = np.array([1, 1, 0, 0, 1, 0, 0, 0], bool)
    owners = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    assert client_accuracy(correct, owners, 3) == pytest.approx([2 / 3, 1 / 2, 0])


def test_a_client_without_samples_has_no_accuracy() -> None:
    accuracy = client_accuracy(np.array([True, False, True]), np.array([0, 2, 2]), 4)
    assert np.isnan(accuracy).tolist() == [False, True, False, True]
    assert accuracy[[0, 2]].tolist() == [1.0, 0.5]


def test_the_order_of_the_samples_does_not_matter() -> None:
    correct, owners = np.array([True, False, True, True]), np.array([1, 0, 1, 0])
    assert client_accuracy(correct, owners, 2).tolist() == [0.5, 1.0]


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


@pytest.mark.filterwarnings("error")
def test_models_without_own_validation_data_learned_nothing_that_can_be_measured() -> None:
    assert np.isnan(mean_learned(np.array([[np.nan, 0.1]]), np.array([0])))


def test_a_model_that_did_not_change_forgets_and_learns_nothing() -> None:
    matrix = forgetting_matrix(BEFORE, np.stack([BEFORE, BEFORE]))
    assert mean_forgetting(matrix, MODELS) == 0.0
    assert mean_learned(matrix, MODELS) == 0.0
