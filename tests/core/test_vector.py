"""A module as flat vectors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fedrecall.core.vector import FlatModel, materialise
from fedrecall.errors import InputError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(5, 5, bias=False)
        self.out = nn.Linear(5, 5, bias=False)
        self.out.weight = self.into.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.into(x)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 3, batch_first=True)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 2)
    )


MODULES = {
    "tied": (Tied, (7, 5)),
    "gru": (Recurrent, (7, 6, 4)),
    "attention": (Attentive, (7, 6, 4)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(5, 3)), (7, 5)),
    "convolution and batch norm": (convolutional, (7, 3, 8, 8)),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)), (7, 5)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_step_in_the_vectors_is_a_step_of_the_module(name: str) -> None:
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module, x = make(), torch.randn(shape)
    with torch.no_grad():
        module(x)  # gives lazy modules their shapes
    flat = FlatModel(copy.deepcopy(module))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        module(x).square().sum().backward()
        optimiser.step()
        flat.g.zero_()
        flat.module(x).square().sum().backward()
        flat.w.add_(flat.g, alpha=-0.1)
    flat.check_views()
    for key, expected in module.state_dict().items():
        torch.testing.assert_close(flat.module.state_dict()[key], expected, rtol=1e-5, atol=1e-6, msg=key)


def test_a_tied_weight_is_in_the_vector_once() -> None:
    assert FlatModel(Tied()).w.numel() == 32  # 25 weights, padded to 32


def test_every_tensor_starts_on_a_64_byte_boundary() -> None:
    flat = FlatModel(convolutional())
    tensors = [*flat.module.parameters(), *flat.float_buffers.values()]
    tensors += [p.grad for p in flat.module.parameters() if p.grad is not None]
    assert len(tensors) == 6 + 2 + 6
    assert all(t.data_ptr() % 64 == 0 for t in tensors)


def test_the_padding_is_zero_and_stays_zero() -> None:
    flat = FlatModel(nn.Linear(3, 2))
    used = torch.zeros_like(flat.w, dtype=torch.bool)
    for slot in flat.parameter_slots:
        slot.view(used).fill_(True)
    flat.module(torch.randn(4, 3)).sum().backward()
    flat.w.add_(flat.g, alpha=-1.0)
    assert used.sum() == 8
    assert (flat.w[~used] == 0).all()


def test_convolution_weights_are_channels_last_views() -> None:
    flat = FlatModel(convolutional())
    assert flat.module[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert flat.module[0].weight.grad.is_contiguous(memory_format=torch.channels_last)


def test_what_is_saved_is_contiguous_and_apart() -> None:
    flat = FlatModel(Tied())
    state = flat.state_dict()
    assert set(state) == {"into.weight", "out.weight"}
    assert all(tensor.is_contiguous() for tensor in state.values())
    assert len({tensor.data_ptr() for tensor in state.values()}) == 2


def test_frozen_parameters_stay_outside() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    flat = FlatModel(module)
    assert [slot.name for slot in flat.parameter_slots] == ["1.weight", "1.bias"]
    assert "0.weight" in flat.state_dict()


def test_buffers_come_back_as_they_were() -> None:
    flat = FlatModel(convolutional())
    start, w = flat.buffers(), flat.w.clone()
    flat.module.train()(torch.randn(4, 3, 8, 8))
    assert not torch.equal(flat.b, start["b"])
    assert flat.buffers()["i"].tolist() == [1]
    flat.load(w, start)
    assert torch.equal(flat.buffers()["b"], start["b"])
    assert flat.buffers()["i"].tolist() == [0]
    assert flat.module[1].num_batches_tracked.item() == 0


def test_lazy_modules_get_their_shapes_from_a_dry_batch() -> None:
    module = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
    materialise(module, lambda dtype: torch.ones(2, 3, dtype=dtype))
    assert module[0].weight.shape == (2, 3)
    assert module[1].num_batches_tracked.item() == 0
    assert module.training


def test_mixed_dtypes_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'1\.weight' is torch.float64"):
        FlatModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))


class Breaking(nn.Module):
    """Breaks the views in its forward, in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.linear = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "buffer":
            self.seen = self.seen + 1
        if self.how == "gradient":
            self.zero_grad()
        if self.how == "assign":
            state = {key: value.clone() for key, value in self.linear.state_dict().items()}
            self.linear.load_state_dict(state, assign=True)
        if self.how == "data":
            self.linear.weight.data = self.linear.weight.data.clone()
        return self.linear(x)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("buffer", "buffer 'seen'"),
        ("gradient", "gradient of parameter 'linear.weight'"),
        ("assign", "parameter 'linear.weight'"),
        ("data", "storage of parameter 'linear.weight'"),
    ],
)
def test_a_module_that_breaks_the_views_is_told_how(how: str, said: str) -> None:
    flat = FlatModel(Breaking(how))
    flat.module(torch.randn(4, 3)).sum().backward()
    with pytest.raises(InputError, match=said):
        flat.check_views()
