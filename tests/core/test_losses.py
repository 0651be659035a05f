"""The re-weighted loss: options, identities, transforms, precision, errors and the module."""

from __future__ import annotations

import copy
import doctest
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedrecall.core import losses
from fedrecall.core.labels import class_proportions
from fedrecall.core.losses import (
    WSMLoss,
    check_beta,
    check_targets,
    log_weights,
    quick_cross_entropy,
    reweighted_cross_entropy,
    reweighted_cross_entropy_from_logs,
)
from fedrecall.errors import InputError

N, C = 6, 4
BETA = torch.tensor([0.5, 0.3, 0.0, 0.2])
TARGET = torch.tensor([0, 1, 3, 3, 0, 1])
WEIGHT = torch.tensor([1.0, 0.5, 3.0, 2.0])


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(N, C, generator=torch.Generator().manual_seed(0), requires_grad=True)


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits)[0]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"ignore_index": 3},
    {"weight": WEIGHT},
    {"weight": WEIGHT, "ignore_index": 0, "label_smoothing": 0.2},
    {"weight": WEIGHT, "reduction": "sum", "label_smoothing": 0.2},
    {"weight": WEIGHT, "reduction": "none", "label_smoothing": 0.2, "ignore_index": 1},
    {"label_smoothing": 1.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tau_zero_is_cross_entropy(logits: Tensor, options: dict[str, Any]) -> None:
    ours = reweighted_cross_entropy(logits, TARGET, BETA, 0.0, **options)
    torch.testing.assert_close(ours, F.cross_entropy(logits, TARGET, **options))


@pytest.mark.parametrize("options", [o for o in OPTIONS if "ignore_index" not in o], ids=str)
@pytest.mark.parametrize("shape", [(C,), (N, C), (2, C, 3)])
def test_tau_zero_is_cross_entropy_with_soft_targets(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    f, t = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)).unbind()
    ours = reweighted_cross_entropy(f, t.abs(), BETA, 0.0, **options)
    torch.testing.assert_close(ours, F.cross_entropy(f, t.abs(), **options))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_uniform_beta_lowers_cross_entropy_by_log_c(logits: Tensor, label_smoothing: float) -> None:
    uniform = torch.full((C,), 1 / C)
    ours = reweighted_cross_entropy(logits, TARGET, uniform, label_smoothing=label_smoothing)
    plain = F.cross_entropy(logits, TARGET, label_smoothing=label_smoothing)
    torch.testing.assert_close(ours, plain - float(np.log(C)))


def test_uniform_beta_has_the_gradient_of_cross_entropy(logits: Tensor) -> None:
    ours = gradient(reweighted_cross_entropy(logits, TARGET, torch.full((C,), 1 / C)), logits)
    torch.testing.assert_close(ours, gradient(F.cross_entropy(logits, TARGET), logits), atol=1e-6, rtol=0)


@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT, "ignore_index": 1}, {"reduction": "sum"}], ids=str)
def test_gradient_is_that_of_balanced_softmax(logits: Tensor, options: dict[str, Any]) -> None:
    ours = gradient(reweighted_cross_entropy(logits, TARGET, BETA, **options), logits)
    balanced = gradient(F.cross_entropy(logits + BETA.log(), TARGET, **options), logits)
    torch.testing.assert_close(ours, balanced, atol=1e-6, rtol=0)


def test_class_weights_make_a_weighted_mean(logits: Tensor) -> None:
    each = reweighted_cross_entropy(logits, TARGET, BETA, reduction="none")
    ours = reweighted_cross_entropy(logits, TARGET, BETA, weight=WEIGHT)
    torch.testing.assert_close(ours, (each * WEIGHT[TARGET]).sum() / WEIGHT[TARGET].sum())


def test_uint8_labels_mean_what_int64_labels_do(logits: Tensor) -> None:
    ours = reweighted_cross_entropy(logits, TARGET.to(torch.uint8), BETA, weight=WEIGHT)
    torch.testing.assert_close(ours, reweighted_cross_entropy(logits, TARGET, BETA, weight=WEIGHT))


def test_ignored_labels_leave_the_mean(logits: Tensor) -> None:
    some = torch.where(torch.arange(N) % 2 == 0, TARGET, -100)
    ours = reweighted_cross_entropy(logits, some, BETA)
    torch.testing.assert_close(ours, reweighted_cross_entropy(logits[::2], TARGET[::2], BETA))


@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"label_smoothing": 0.1}], ids=str)
@pytest.mark.parametrize("shape", [(), (N,), (0,)])
def test_mean_over_no_label_is_zero_with_zero_gradient(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    f = torch.randn(*shape, C, requires_grad=True)
    loss = WSMLoss(BETA, **options)(f, torch.full(shape, -100))
    assert loss.item() == 0
    assert (gradient(loss, f) == 0).all()


@pytest.mark.parametrize("quick", [False, True])
def test_vmap_over_clients_equals_a_loop(quick: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    f = torch.randn(3, N, C, generator=generator)
    logs = log_weights(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [0.9, 0.1, 0.0, 0.0]]))
    y = torch.randint(0, 2, (3, N), generator=generator)

    def loss(f: Tensor, y: Tensor, logs: Tensor) -> Tensor:
        return quick_cross_entropy(f, y, logs, -logs) if quick else reweighted_cross_entropy_from_logs(f, y, logs)

    mapped = vmap(grad_and_value(loss))(f, y, logs)
    looped = [grad_and_value(loss)(*client) for client in zip(f, y, logs)]
    torch.testing.assert_close(mapped, tuple(torch.stack(parts) for parts in zip(*looped)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tracing_finds_no_branch_and_no_constant(options: dict[str, Any]) -> None:
    def loss(f: Tensor, y: Tensor, beta: Tensor, weight: Tensor) -> Tensor:
        chosen = {**options, "weight": weight} if "weight" in options else options
        return reweighted_cross_entropy(f, y, beta, **chosen).sum()

    step = vmap(grad(loss), in_dims=(0, 0, 0, None))
    f, y, beta = torch.randn(2, N, C), TARGET.expand(2, N), BETA.expand(2, C)
    traced = make_fx(step)(f, y, beta, WEIGHT)
    assert not [node for node in traced.graph.nodes if "_tensor_constant" in str(node.target)]
    inputs = (-f, y.flip(1), beta.flip(1), WEIGHT.flip(0))
    torch.testing.assert_close(traced(*inputs), step(*inputs))


def test_module_under_vmap_falls_back_to_the_whole_formula() -> None:
    f, loss = torch.randn(3, N, C), WSMLoss(BETA, validate=False)
    mapped = vmap(loss, in_dims=(0, None))(f, TARGET)
    torch.testing.assert_close(mapped, torch.stack([loss(client, TARGET) for client in f]))


@pytest.mark.parametrize("options", [*OPTIONS, {"tau": 0.5, "smoothing": 0.1}], ids=str)
def test_module_equals_the_function(logits: Tensor, options: dict[str, Any]) -> None:
    ours = WSMLoss(BETA, **options)(logits, TARGET)
    torch.testing.assert_close(ours, reweighted_cross_entropy(logits, TARGET, BETA, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_changing_the_module_dtype_does_not_round_beta(dtype: torch.dtype) -> None:
    f = torch.zeros(1, 3, dtype=dtype)
    module, changed = WSMLoss([0.1, 0.2, 0.3]), WSMLoss([0.1, 0.2, 0.3]).to(dtype)
    assert changed(f, torch.tensor([0])) == module(f, torch.tensor([0]))


def test_module_buffers_move_but_are_not_saved() -> None:
    module = WSMLoss(BETA, weight=WEIGHT)
    assert {b.device.type for b in copy.deepcopy(module).to("meta").buffers()} == {"meta"}
    assert not module.state_dict()


ABSENT = torch.full((N,), 2)


def test_validate_none_checks_the_first_batch_only(logits: Tensor) -> None:
    module = WSMLoss(BETA)
    with pytest.raises(InputError, match="Label 2"):
        module(logits, ABSENT)
    module(logits, TARGET)
    torch.testing.assert_close(module(logits, ABSENT), reweighted_cross_entropy(logits, ABSENT, BETA))


def test_validate_true_checks_every_batch(logits: Tensor) -> None:
    module = WSMLoss(BETA, validate=True)
    module(logits, TARGET)
    with pytest.raises(InputError, match="Label 2"):
        module(logits, ABSENT)


@pytest.mark.parametrize("options", [{"validate": False}, {"smoothing": 0.01}, {"tau": 0.0}], ids=str)
def test_absent_label_is_accepted_unchecked_smoothed_or_at_tau_zero(logits: Tensor, options: dict[str, Any]) -> None:
    assert WSMLoss(BETA, **options)(logits, ABSENT).isfinite()


@pytest.mark.parametrize("beta", [[1.0], [0.5, 0.5]])
@pytest.mark.parametrize("loss", [WSMLoss, lambda b: lambda f, y: reweighted_cross_entropy(f, y, b)])
def test_beta_of_another_length_than_the_logits_is_refused(logits: Tensor, loss: Any, beta: Any) -> None:
    with pytest.raises(InputError, match="but the logits have 4 classes"):
        loss(beta)(logits, torch.zeros(N, dtype=torch.long))


def test_nan_logits_stay_visible() -> None:
    assert WSMLoss(BETA)(torch.full((N, C), torch.nan), TARGET).isnan()


def test_repr_names_the_settings() -> None:
    assert "tau=0.5, smoothing=0.1" in repr(WSMLoss(BETA, 0.5, smoothing=0.1))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tau": -1.0}, "tau must be .* not -1.0"),
        ({"tau": float("nan")}, "tau must be .* not nan"),
        ({"tau": float("inf")}, "tau must be .* not inf"),
        ({"smoothing": 1.5}, "smoothing must lie .* not 1.5"),
        ({"label_smoothing": -0.1}, "label_smoothing must lie .* not -0.1"),
        ({"reduction": "median"}, "not 'median'"),
    ],
)
def test_bad_settings_are_refused_with_their_value(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        WSMLoss(BETA, **options)


@pytest.mark.parametrize(
    ("beta", "sentence"),
    [
        ([0.0, 0.0], "zero for all 2 classes"),
        ([0.5, -0.5], "class 1 has -0.5"),
        ([0.5, float("nan")], "class 1 has nan"),
        ([float("inf"), 1.0], "class 0 has inf"),
        ([[0.5, 0.5]], r"not the shape \(1, 2\)"),
        ([], r"not the shape \(0,\)"),
        ([0.2, 0.3, 0.5], "3 entries, but there are 2 classes"),
    ],
)
def test_bad_beta_is_refused_with_its_fault(beta: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_beta(beta, num_classes=2)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (torch.tensor([0, 4]), "Label 4 is out of range"),
        (torch.tensor([[0, -1]]), "Label -1 is out of range"),
        (torch.tensor([-100, 1, 2]), "Label 2 has beta = 0"),
        (torch.tensor([[0.5, 0.0, 0.5, 0.0]]), "Label 2 has beta = 0"),
        (torch.tensor([0.0, 0.0, 1.0, 0.0]), "Label 2 has beta = 0"),
        (torch.eye(C).expand(1, C, C), "Label 2 has beta = 0"),
        (torch.ones(2, 3), "3 classes, but beta has 4"),
    ],
)
def test_bad_targets_are_refused_by_label(target: Tensor, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_targets(target, BETA)


@pytest.mark.parametrize("target", [TARGET, torch.tensor([-100, 0]), torch.tensor([[0.5, 0.2, 0.0, 0.3]])])
def test_good_targets_pass(target: Tensor) -> None:
    check_targets(target, BETA)


def test_ignore_index_of_a_class_is_refused_for_soft_targets(logits: Tensor) -> None:
    with pytest.raises(InputError, match="ignore_index = 1"):
        reweighted_cross_entropy(logits, F.one_hot(TARGET).float(), BETA, ignore_index=1)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, lambda v: np.array(v, dtype=np.int16)])
def test_class_proportions_counts_what_is_not_ignored(kind: Any) -> None:
    shares = class_proportions(kind([[0, 0, -100], [3, 0, -100]]), num_classes=C)
    torch.testing.assert_close(shares, torch.tensor([0.75, 0.0, 0.0, 0.25]))


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([], "0 labels"),
        ([-100, -100], "2 labels were given, all of them ignored"),
        ([0, 4], "Label 4 is out of range"),
        ([-1, 0], "Label -1 is out of range"),
        ([0.5, 1.0], "float64 such as 0.5"),
        (torch.tensor([True]), "bool such as True"),
    ],
)
def test_class_proportions_refuses_what_it_cannot_count(labels: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        class_proportions(labels, num_classes=C)


def test_examples_in_the_docstrings_run() -> None:
    results = doctest.testmod(losses)
    assert results.attempted > 8
    assert results.failed == 0
