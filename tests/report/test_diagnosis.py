"""From the arrays of two probes to sentences: matrices worked out by hand, and every way a comparison can go."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fedrecall.report.diagnosis import Findings, findings, opening, sentences

# F = [[-.1, .2, .4], [.1, .0, -.4]] for the models of clients 0 and 2 on the data of clients 0, 1, 2.
# Off the diagonal: .2 .4 | .1 .0, mean .175; by model .3 and .05; on data .1, (.2 + 0) / 2 = .1 and .4.
# Own: .1 and .4 gained. Per class: [[-.05, .4, 0], [.2, 0, -.4]]; client 0 has cats, client 2 emus.
PROBE = {
    "models": np.array([0, 2]),
    "data": np.array([0, 1, 2]),
    "before": np.array([0.8, 0.6, 0.5]),
    "after": np.array([[0.9, 0.4, 0.1], [0.7, 0.6, 0.9]]),
    "samples": np.array([10, 20, 20]),
    "class_before": np.array([0.9, 0.5, 0.4]),
    "class_after": np.array([[0.95, 0.1, 0.4], [0.7, 0.5, 0.8]]),
    "present": np.array([[True, False, False], [False, False, True]]),
    "after_aggregation": np.array([0.8, 0.6, 0.6]),
}
NAMES = ["cat", "dog", "emu"]

BASE = Findings(
    before=0.7,
    averaged=0.72,
    forgetting=0.123,
    learned=0.31,
    drops=0.14,
    rises=0.017,
    absent=0.312,
    present=-0.04,
    causes=((7, 0.241), (2, 0.005)),
    suffers=((3, 0.2),),
    classes=(("shirt", 0.45),),
)


def test_the_numbers_of_a_matrix_worked_out_by_hand() -> None:
    found = findings(PROBE, NAMES, 3)
    assert found.forgetting == pytest.approx(0.175)
    assert found.learned == pytest.approx(0.25)
    assert (found.drops, found.rises) == pytest.approx((0.175, 0))
    assert found.absent == pytest.approx((0.4 + 0 + 0.2 + 0) / 4)
    assert found.present == pytest.approx((-0.05 - 0.4) / 2)
    assert found.before == pytest.approx((8 + 12 + 10) / 50)  # every sample weighing the same
    assert found.averaged == pytest.approx((8 + 12 + 12) / 50)
    assert [client for client, _ in found.causes] == [0, 2]
    assert [client for client, _ in found.suffers] == [2, 0, 1]  # the worst first, then by id
    assert [name for name, _ in found.classes] == ["dog", "cat", "emu"]


def test_a_probe_in_words() -> None:
    found = findings(PROBE, NAMES, 3)
    plain, wsm, change = sentences(found, found)
    assert plain == (
        "Cross-entropy: after local training a client's model is 17.5 points worse on the other clients' data and "
        "25.0 points better on its own, on the average. The training of client 0 costs the others most (30.0 "
        "points), then client 2 (5.0). Client 2 suffers most (40.0 points), then client 0 (10.0) and client 1 "
        "(10.0). Classes that a client lacks lose 15.0 points, those that it has gain 22.5 points. Hit hardest: "
        "dog (20.0) and cat (7.5)."
    )
    assert wsm == plain.replace("Cross-entropy", "WSM")
    assert change == (
        "Averaged, the clients' models have an accuracy of 64.0 % with WSM and 64.0 % with cross-entropy (60.0 % "
        "before the round). WSM changes nothing about the forgetting: 17.5 points with cross-entropy, 17.5 with WSM. "
        "On its own data a client gains 25.0 points with WSM and 25.0 with cross-entropy."
    )


@pytest.mark.parametrize(
    ("plain", "wsm", "said"),
    [
        (0.123, 0.0098, "WSM removes 92 % of the forgetting: 12.3 points with cross-entropy, 1.0 with WSM."),
        (0.5, 0.001, "WSM removes 99 % of the forgetting: 50.0 points with cross-entropy, 0.1 with WSM."),
        (
            0.123,
            -0.02,
            "On balance WSM removes the forgetting: 12.3 points with cross-entropy, none with WSM (drops of 14.0 "
            "points, outweighed by rises of 1.7).",
        ),
        (0.123, 0.2, "WSM forgets more here: 12.3 points with cross-entropy, 20.0 with WSM."),
        (
            0.123,
            0.1231,
            "WSM changes nothing about the forgetting: 12.3 points with cross-entropy, 12.3 with WSM.",
        ),
        (0.006, 0.002, "Little is forgotten in any case: 0.6 points with cross-entropy, 0.2 with WSM."),
        (0.0001, -0.3, "On balance neither cross-entropy nor WSM forgets anything here."),
        (
            -0.01,
            0.05,
            "On balance cross-entropy forgets nothing here, and WSM 5.0 points: it makes this worse.",
        ),
        (np.nan, 0.05, "What WSM changes could not be measured."),
    ],
)
def test_what_wsm_changes(plain: float, wsm: float, said: str) -> None:
    change = sentences(replace(BASE, forgetting=plain), replace(BASE, forgetting=wsm))[2]
    assert change.startswith("Averaged, ")  # accuracies come before what is removed
    assert f"before the round). {said} On its own data" in change


@pytest.mark.parametrize(
    ("plain", "wsm", "said"),
    [
        (0.31, 0.046, "gains 4.6 points with WSM and 31.0 with cross-entropy."),
        (0.31, -0.02, "loses 2.0 points with WSM and gains 31.0 points with cross-entropy."),
        (-0.1, 0.0, "gains nothing with WSM and loses 10.0 points with cross-entropy."),
    ],
)
def test_what_is_learned_stands_beside_it(plain: float, wsm: float, said: str) -> None:
    assert said in sentences(replace(BASE, learned=plain), replace(BASE, learned=wsm))[2]


def test_forgetting_nothing_by_learning_nothing_is_no_merit() -> None:
    change = sentences(BASE, replace(BASE, forgetting=0.0, learned=0.0))[2]
    assert "WSM learns nothing here, and a model that learns nothing forgets nothing." in change


def test_nothing_forgotten() -> None:
    calm = replace(
        BASE,
        forgetting=-0.05,
        learned=0.0,
        absent=0.0003,
        present=-0.1,
        causes=((1, 0.0), (4, -0.1)),
        suffers=((2, -0.05),),
        classes=(("shirt", 0.0),),
    )
    assert sentences(calm, calm)[0] == (
        "Cross-entropy: after local training a client's model is 5.0 points better on the other clients' data and "
        "as good as before on its own, on the average. No client's training costs the others anything on the "
        "average. No client's data suffer on the average. Classes that a client lacks stay as they were, those "
        "that it has gain 10.0 points. No class loses on the average."
    )


def test_one_client_trains() -> None:
    alone = sentences(replace(BASE, causes=((7, 0.241),)), BASE)[0]
    assert "All of it comes from client 7, the only one that trained. Client 3 suffers most (20.0 points)." in alone


def test_clients_that_have_every_class() -> None:
    assert (
        "Every client that trained has every class; the classes gain 4.0 points."
        in (sentences(replace(BASE, absent=np.nan), BASE)[0])
    )


def test_what_could_not_be_measured_is_said() -> None:
    # Client 0, the only one that trained, has no validation data of its own.
    probe = {
        **PROBE,
        "models": np.array([0]),
        "before": np.array([np.nan, 0.5, 0.5]),
        "after": np.array([[np.nan, 0.25, 0.5]]),
        "samples": np.array([0, 4, 4]),
        "class_after": PROBE["class_after"][:1],
        "present": PROBE["present"][:1],
        "after_aggregation": np.array([np.nan, 0.25, 0.5]),
    }
    found = findings(probe, NAMES, 3)
    plain, _, change = sentences(found, found)
    assert "12.5 points worse on the other clients' data, on the average; on its own it could not be" in plain
    assert "On its own data" not in change
    nothing = replace(found, forgetting=np.nan, causes=(), suffers=())
    assert sentences(nothing, nothing)[0].startswith("Cross-entropy: what is forgotten could not be measured")


def test_a_sample_of_the_clients_has_a_standard_error() -> None:
    # Measured on clients 1 and 2 of ten: .2 .4 | .0 and client 2's own, so .2 on the average, .1 and .4 by column.
    probe = {key: PROBE[key] for key in ("models", "class_before", "class_after", "present")}
    columns = {key: PROBE[key][..., 1:] for key in ("data", "before", "after", "samples", "after_aggregation")}
    own = {"own_before": np.array([0.8, 0.5]), "own_after": np.array([0.9, 0.9])}
    found = findings({**probe, **columns, **own}, NAMES, 10)
    assert found.learned == pytest.approx(0.25)
    # deviation of (.1, .4) = .3 / sqrt 2, over sqrt 2, times sqrt(1 - 2/10)
    assert found.standard_error == pytest.approx(0.15 * np.sqrt(0.8))
    assert "20.0 points worse (standard error 13.4) on the other clients' data" in sentences(found, found)[0]


def test_batch_norm_statistics_are_told_apart() -> None:
    statistics = sentences(replace(BASE, global_statistics=0.08), BASE)[0]
    assert "With the batch-norm statistics that it was sent it is 8.0 points worse there." in statistics
    assert "statistics" not in sentences(replace(BASE, global_statistics=0.1231), BASE)[0]


def test_a_model_that_knows_nothing_forgets_nothing() -> None:
    trained = opening("the given model", BASE, 10, 20, 10, initial=False)
    assert trained == (
        "One round with 10 of 20 clients, from the given model (accuracy on the clients' validation data: 70.0 %)."
    )
    new = opening("a new model", BASE, 20, 20, 10, initial=True)
    assert "all 20 clients" in new
    assert "a model that knows nothing forgets nothing: give trained weights (--weights" in new
    guessing = opening("the given model", replace(BASE, before=0.11), 10, 20, 10, initial=False)
    assert guessing.endswith("no better than guessing, and a model that knows nothing forgets nothing.")


def test_a_class_name_cannot_colour_the_terminal() -> None:
    found = findings(PROBE, ["cat", "\x1b[31mdog\n\tdog", "emu"], 3)
    assert found.classes[0][0] == "?[31mdog dog"


share = some.floats(-1, 1)


@settings(max_examples=200, deadline=None)
@given(*[share] * 8)
def test_no_number_contradicts_its_words(a, b, c, d, e, f, g, h) -> None:
    plain = replace(BASE, forgetting=a, learned=b, absent=c, present=d, causes=((1, e),), suffers=((2, f),))
    text = " ".join(sentences(plain, replace(plain, forgetting=g, learned=h)))
    assert not re.search(r"(worse|better|lose|gain)s? 0\.0|\b0\.0 points (worse|better)|nan|-\d", text)


def test_clients_are_called_by_their_names() -> None:
    found = findings(PROBE, NAMES, 3)
    plain = sentences(found, found, ["basel\x1b[31m hospital", "Bern", "17"])[0]
    assert "The training of basel?[31m hospital (client 0) costs the others most (30.0 points)" in plain
    assert "then id 17 (client 2) (5.0). Id 17 (client 2) suffers most" in plain
