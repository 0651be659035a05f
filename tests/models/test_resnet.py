"""ResNet-18, against counts worked out by hand, the textbook's arithmetic, and plain torch."""

from __future__ import annotations

import copy
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import Federation, Iid, InputError, Local, federate
from fedrecall.core.vector import FlatModel
from fedrecall.models import resnet18
from fedrecall.models.resnet import BasicBlock, ResNet18
from fedrecall.recipe.layers import load_recipe

NORMS = ["batch", "group", "none"]

# Convolution weights of width 64: two blocks of two 3x3 convolutions a stage, and a 1x1 where channels double.
STEM = 3 * 64 * 9
STAGE1 = 4 * (64 * 64 * 9)
STAGE2 = 64 * 128 * 9 + 3 * (128 * 128 * 9) + 64 * 128
STAGE3 = 128 * 256 * 9 + 3 * (256 * 256 * 9) + 128 * 256
STAGE4 = 256 * 512 * 9 + 3 * (512 * 512 * 9) + 256 * 512
CONVOLUTIONS = STEM + STAGE1 + STAGE2 + STAGE3 + STAGE4
# Channels that these convolutions end in, all together: 1, 4, 5, 5 and 5 of them.
CHANNELS = 64 + 4 * 64 + 5 * 128 + 5 * 256 + 5 * 512
HEAD = 512 * 10 + 10


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def small(norm: str = "batch", shape: tuple[int, ...] = (3, 16, 16), **options) -> ResNet18:
    torch.manual_seed(0)
    return resnet18(shape, 5, norm=norm, **{"width": 4, **options})


def moved(model: ResNet18) -> ResNet18:
    """With every parameter and statistic away from where it starts, so that each of them counts."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand_like(buffer))
    return model


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


# How many parameters there are.


@pytest.mark.parametrize(
    ("options", "a_channel", "expected"),
    [
        ({"norm": "batch"}, 2, 11_173_962),  # a weight and a bias of the norm
        ({"norm": "group"}, 2, 11_173_962),
        ({"norm": "none"}, 1, 11_169_162),  # a bias of the convolution
        ({"variant": "authors"}, 3, 11_178_762),  # both
    ],
)
def test_parameters_are_as_many_as_worked_out_by_hand(options, a_channel: int, expected: int) -> None:
    # 1,728 + 147,456 + 524,288 + 2,097,152 + 8,388,608 of convolutions, 4,800 channels, 5,130 of the head.
    assert CONVOLUTIONS + a_channel * CHANNELS + HEAD == expected
    assert size(resnet18((3, 32, 32), 10, **options)) == expected


def test_width_8_for_62_classes_of_grey_images_has_179638_parameters() -> None:
    stem, stage1 = 1 * 8 * 9, 4 * (8 * 8 * 9)  # 72 and 2,304
    stage2 = 8 * 16 * 9 + 3 * (16 * 16 * 9) + 8 * 16  # 8,192
    stage3 = 16 * 32 * 9 + 3 * (32 * 32 * 9) + 16 * 32  # 32,768
    stage4 = 32 * 64 * 9 + 3 * (64 * 64 * 9) + 32 * 64  # 131,072
    norms = 2 * (8 + 4 * 8 + 5 * 16 + 5 * 32 + 5 * 64)  # 1,200
    head = 64 * 62 + 62  # 4,030
    expected = stem + stage1 + stage2 + stage3 + stage4 + norms + head
    assert expected == 179_638
    assert size(resnet18((1, 28, 28), 62, width=8)) == expected


@pytest.mark.parametrize(
    ("options", "biases"),
    [({"norm": "batch"}, 0), ({"norm": "group"}, 0), ({"norm": "none"}, 20), ({"variant": "authors"}, 20)],
)
def test_the_20_convolutions_have_biases_without_norm_and_in_the_authors_variant_only(options, biases) -> None:
    found = convolutions(small(**options, shape=(3, 32, 32)))
    assert len(found) == 20
    assert sum(convolution.bias is not None for convolution in found) == biases


def test_group_norm_has_two_groups_and_no_buffers() -> None:
    model = small("group")
    groups = [module.num_groups for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert groups == [2] * 20
    assert list(model.buffers()) == []


def test_batch_norm_keeps_a_mean_and_a_variance_a_channel_and_a_counter() -> None:
    buffers = dict(small("batch").named_buffers())
    assert len(buffers) == 3 * 20
    # Width 4 has a sixteenth of width 64's 4,800 channels.
    assert sum(b.numel() for b in buffers.values() if b.is_floating_point()) == 2 * 300


# What it computes.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 16, 16), (2, 17, 23), (4, 41, 30)])
def test_every_shape_gives_a_logit_a_class(shape: tuple[int, ...], norm: str) -> None:
    assert small(norm, shape)(torch.zeros(3, *shape)).shape == (3, 5)


@pytest.mark.parametrize(("side", "expected"), [(32, [32, 16, 8, 4]), (28, [28, 14, 7, 4]), (17, [17, 9, 5, 3])])
def test_stages_halve_the_sides_and_double_the_channels(side: int, expected: list[int]) -> None:
    model = small(shape=(3, side, side))
    x, shapes = torch.zeros(1, 4, side, side), []
    for block in model.blocks:
        x = block(x)
        shapes.append(tuple(x.shape[1:]))
    assert len(shapes) == 8
    assert shapes[1::2] == [(4 * 2**k, s, s) for k, s in enumerate(expected)]
    assert shapes[0::2] == shapes[1::2]  # the first block of a stage changes the shape


def textbook(state: dict[str, Tensor], x: Tensor, norm: str) -> Tensor:
    """The network written out, in evaluation mode."""

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        padding = 1 if weight.shape[2] == 3 else 0
        return F.conv2d(x, weight, state.get(f"{name}.bias"), stride, padding)

    def normed(name: str, x: Tensor) -> Tensor:
        if norm == "none":
            return x
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        if norm == "group":
            return F.group_norm(x, 2, weight, bias)
        return F.batch_norm(x, state[f"{name}.running_mean"], state[f"{name}.running_var"], weight, bias)

    x = F.relu(normed("norm", conv("stem", x)))
    for k, stride in enumerate([1, 1, 2, 1, 2, 1, 2, 1]):
        name = f"blocks.{k}"
        branch = F.relu(normed(f"{name}.norm1", conv(f"{name}.conv1", x, stride)))
        branch = normed(f"{name}.norm2", conv(f"{name}.conv2", branch))
        if stride == 2:
            x = normed(f"{name}.shortcut.2", conv(f"{name}.shortcut.1", x, 2))
        x = F.relu(branch + x)
    return F.linear(x.mean((2, 3)), state["head.weight"], state["head.bias"])


@pytest.mark.parametrize("norm", NORMS)
def test_it_is_the_network_written_out(norm: str) -> None:
    model = moved(small(norm)).double().eval()
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(model(x), textbook(model.state_dict(), x, norm))


@pytest.mark.parametrize("norm", NORMS)
def test_a_block_whose_second_convolution_is_zero_is_relu_of_its_shortcut(norm: str) -> None:
    for block in small(norm).blocks:
        assert isinstance(block, BasicBlock)
        for parameter in block.conv2.parameters():
            nn.init.zeros_(parameter)
        x = torch.randn(2, block.conv1.in_channels, 8, 8)
        assert torch.equal(block(x), F.relu(block.shortcut(x)))


def test_no_1x1_convolution_has_a_stride_because_onednn_corrupts_memory_there() -> None:
    assert [c.stride for c in convolutions(small()) if c.kernel_size == (1, 1)] == [(1, 1)] * 3


@pytest.mark.parametrize("norm", NORMS)
def test_in_eval_mode_a_sample_is_alone(norm: str) -> None:
    model, x = moved(small(norm)), torch.randn(6, 3, 16, 16)
    model.train()(x)
    model.eval()
    with torch.no_grad():
        together = model(x)
        for k in range(6):
            torch.testing.assert_close(model(x[k : k + 1]), together[k : k + 1], rtol=1e-4, atol=1e-4)


# The variant of the authors' code.


@pytest.mark.parametrize(
    ("height", "width", "places"),
    # The last stage has 3, 3, 4, 4, 5 and 8 places a side; AvgPool(3, 2) leaves floor((n - 3) / 2) + 1.
    [(17, 17, 1), (24, 24, 1), (28, 28, 1), (32, 32, 1), (40, 40, 4), (64, 64, 9), (32, 64, 3)],
)
def test_the_authors_pooling_decides_the_size_of_the_head(height: int, width: int, places: int) -> None:
    model = small(variant="authors", shape=(3, height, width))
    assert model.head.in_features == 32 * places
    assert model(torch.zeros(2, 3, height, width)).shape == (2, 5)


def test_the_authors_pooling_leaves_out_the_fourth_row_and_column() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert small(variant="authors", shape=(3, 32, 32)).pool(x).item() == 5.0  # of 0 1 2, 4 5 6, 8 9 10
    assert small(variant="paper", shape=(3, 32, 32)).pool(x).item() == 7.5


# How it starts, and that it trains.


@pytest.mark.parametrize("variant", ["paper", "authors"])
def test_with_a_norm_the_layers_start_as_torch_starts_them(variant: str) -> None:
    model = small("batch", width=8, variant=variant, shape=(3, 32, 32))
    for convolution in convolutions(model):
        bound = (convolution.in_channels * convolution.kernel_size[0] ** 2) ** -0.5
        assert 0.85 * bound < convolution.weight.abs().max() <= bound
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


def test_without_a_norm_convolutions_start_normal_and_those_of_branches_smaller_or_zero() -> None:
    model = small("none", width=32)
    shortcut, branch = model.blocks[6].shortcut[1], model.blocks[6].conv1  # both from 128 to 256 channels
    assert shortcut.weight.std().item() == pytest.approx((2 / 128) ** 0.5, rel=0.03)
    assert branch.weight.std().item() == pytest.approx((2 / (128 * 9) / 8) ** 0.5, rel=0.03)
    assert all((convolution.bias == 0).all() for convolution in convolutions(model))
    assert all((block.conv2.weight == 0).all() for block in model.blocks)


@pytest.mark.parametrize("norm", NORMS)
def test_30_steps_of_sgd_on_random_images_reduce_the_loss(norm: str) -> None:
    model = small(norm, width=16)
    x, y = torch.randn(20, 3, 16, 16), torch.arange(20) % 5
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(31):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize("options", [{"norm": norm} for norm in NORMS] + [{"variant": "authors"}])
def test_a_step_in_the_flat_vectors_is_a_step_of_plain_torch(options) -> None:
    module = moved(small(**options, shape=(3, 24, 24))).double()
    x, y = torch.randn(6, 3, 24, 24, dtype=torch.float64), torch.arange(6) % 5
    flat = FlatModel(copy.deepcopy(module))
    start = flat.w.clone()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
        flat.g.zero_()
        F.cross_entropy(flat.module(x), y).backward()
        flat.w.add_(flat.g, alpha=-0.01)
    flat.check_views()
    assert (flat.w - start).abs().max() > 1e-4
    for key, expected in module.state_dict().items():
        torch.testing.assert_close(flat.module.state_dict()[key], expected, msg=key)


@pytest.mark.parametrize("norm", NORMS)
def test_two_federated_rounds_end_with_finite_numbers(norm: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (48, 3, 16, 16), dtype=np.uint8), np.arange(48) % 5
    federation = Federation.from_arrays(
        x, y, test=(x[:10], y[:10]), partition=Iid(clients=3, validation=0.25), layout="nchw"
    )
    model = small(norm)
    run = federate(
        model,
        federation,
        engine="serial",
        rounds=2,
        clients_per_round=2,
        local=Local(epochs=1, batch_size=4, lr=0.05),
        evaluation={"every": 1, "test_last": 2},
        out=tmp_path / "run",
    )
    assert all(np.isfinite([line["train_loss"], line["test_accuracy"]]).all() for line in run.metrics)
    trained = run.model()
    assert all(torch.isfinite(tensor).all() for tensor in trained.state_dict().values())
    assert not torch.equal(trained.stem.weight, model.stem.weight)
    if norm == "batch":
        assert trained.norm.num_batches_tracked.item() == 2 * 3  # 12 training samples in 4s, in two rounds


# What is refused, and what a recipe says.


@pytest.mark.parametrize("shape", [(28, 28), (784,), (1, 3, 32, 32), (3, 15, 32), (3, 32, 15)])
def test_samples_that_are_not_images_of_16x16_and_more_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=rf"takes images of 16x16 and more, but .* {re.escape(str(shape))}"):
        resnet18(shape, 10)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"width": 0}, "model.width is 0; a width of at least 1"),
        ({"width": 5, "norm": "group"}, "model.width is 5; norm group needs a width that its 2 groups divide"),
        ({"norm": "layer"}, "model.norm is 'layer'; one of batch, group, none"),
        ({"variant": "mine"}, "model.variant is 'mine'; one of paper, authors"),
        ({"variant": "authors"}, r"takes images of 17x17 and more, .* is \(3, 32, 16\)"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options, said: str) -> None:
    with pytest.raises(InputError, match=said):
        resnet18((3, 32, 16), 10, **options)


def test_an_odd_width_is_fine_where_there_are_no_groups() -> None:
    assert small("batch", width=3)(torch.zeros(2, 3, 16, 16)).shape == (2, 5)


def test_a_recipe_names_the_norm_as_a_word() -> None:
    recipe = load_recipe(None, ["model={name: resnet18, norm: none, width: 4}"])
    model = recipe.create("model", sample_shape=(3, 16, 16), num_classes=5)
    assert size(model) == size(small("none"))
    with pytest.raises(InputError, match=r"model\.norm is 'layer'"):
        load_recipe(None, ["model=resnet18", "model.norm=layer"])


@pytest.mark.parametrize(("data", "participation"), [("cifar10", 0.1), ("cifar100", 0.02)])
def test_the_shipped_recipes_have_the_settings_of_table_1(data: str, participation: float) -> None:
    recipe = load_recipe(f"resnet18-{data}")
    wanted = {"name": "resnet18", "norm": "batch", "width": 64, "variant": "paper"}
    assert recipe.model.items() >= wanted.items()
    assert [recipe.data["name"], recipe.objective["name"], recipe.algorithm["name"]] == [data, "wsm", "fedavg"]
    assert [recipe.partition["clients"], recipe.partition["alpha"]] == [100, 0.1]
    assert [recipe.rounds, recipe.participation, recipe.evaluation.test_last] == [4000, participation, 100]
    local = recipe.local
    assert [local.epochs, local.batch_size, local.lr, local.momentum, local.weight_decay] == [3, 64, 0.05, 0, 1e-4]
