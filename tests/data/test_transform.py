"""Expected values are worked out in float64 NumPy, image by image."""

import numpy as np
import pytest
import torch

from fedrecall.data.transform import Images, Plain, SmallerCrops, image_statistics
from fedrecall.errors import InputError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
AUGMENTED = Images(MEAN, STD, crop_padding=4, flip=True)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_images(count=64, height=32, width=32, channels=3, seed=0):
    shape = (count, height, width, channels)
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def normalised(images, mean=MEAN, std=STD):
    """The formula in float64, channels moved to the front."""
    return ((images.astype(np.float64) / 255 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)


def augmented_one_by_one(images, padding, top, left, mirrored):
    height, width = images.shape[1:3]
    result = []
    for image, y, x, mirror in zip(images, top, left, mirrored):
        padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
        crop = padded[y : y + height, x : x + width]
        result.append(crop[:, ::-1] if mirror else crop)
    return np.stack(result)


def drawn(transform, count, seed):
    return [numbers.numpy() for numbers in transform.draw(count, generator(seed))]


# --- normalisation


def test_every_pixel_value_is_normalised_as_the_formula_says():
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3)
    out = Images(MEAN, STD)(torch.from_numpy(ramp))
    np.testing.assert_allclose(out.double().numpy(), normalised(ramp), rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_result_is_float32_channels_first_in_channels_last_memory(channels):
    batch = random_images(5, 8, 6, channels)
    out = Images(MEAN[:channels], STD[:channels])(batch)
    assert out.dtype == torch.float32
    assert out.shape == (5, channels, 8, 6)
    assert out.stride() == (48 * channels, 1, 6 * channels, channels)


def test_augmented_result_is_in_channels_last_memory():
    out = AUGMENTED(random_images(), generator())
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_without_a_generator_nothing_is_augmented():
    batch = random_images()
    assert torch.equal(AUGMENTED(batch), Images(MEAN, STD)(batch))


def test_without_augmentation_the_generator_is_left_alone():
    batch, used = random_images(), generator(3)
    assert torch.equal(Images(MEAN, STD)(batch, used), Images(MEAN, STD)(batch))
    assert torch.equal(used.get_state(), generator(3).get_state())


def test_the_batch_itself_is_not_changed():
    batch = random_images()
    before = batch.clone()
    AUGMENTED(batch, generator())
    AUGMENTED(batch)
    assert torch.equal(batch, before)


@pytest.mark.parametrize("size", [28, 32, 5])
def test_an_image_has_the_same_bits_whatever_batch_it_is_in(size):
    batch = random_images(64, size, size)
    transform = Images(MEAN, STD)
    together = transform(batch)
    for i in (0, 1, 63):
        assert torch.equal(transform(batch[i : i + 1].clone()), together[i : i + 1])


def test_sizes_may_alternate_between_calls():
    transform = Images(MEAN, STD)
    for size in (4, 7, 4):
        batch = random_images(2, size, size)
        np.testing.assert_allclose(transform(batch).numpy(), normalised(batch.numpy()), rtol=0, atol=1e-6)


# --- crops and flips


@pytest.mark.parametrize(
    ("height", "width", "channels", "padding", "flip"),
    [(32, 32, 3, 4, True), (28, 28, 1, 2, True), (5, 9, 3, 1, False), (6, 4, 2, 7, True), (8, 8, 3, 0, True)],
)
def test_augmentation_is_what_one_image_at_a_time_gives(height, width, channels, padding, flip):
    transform = Images(MEAN[:channels], STD[:channels], crop_padding=padding, flip=flip)
    batch = random_images(40, height, width, channels)
    top, left, mirrored = drawn(transform, 40, seed=5)
    expected = augmented_one_by_one(batch.numpy(), padding, top, left, mirrored if flip else 0 * mirrored)
    out = transform(batch, generator(5))
    wanted = normalised(expected, MEAN[:channels], STD[:channels])
    np.testing.assert_allclose(out.double().numpy(), wanted, rtol=0, atol=1e-6)


def test_smaller_crops_are_what_one_image_at_a_time_gives():
    transform = SmallerCrops((0.5,), (0.25,), crop_padding=4, flip=True)
    images = random_images(count=300, height=28, width=28, channels=1)
    top, left, mirrored = drawn(transform, 300, seed=3)
    assert (min(top), max(top), min(left), max(left)) == (0, 12, 0, 12)  # 28 + 2 x 4 - 24: the last place
    wanted = []
    for image, y, x, mirror in zip(images.numpy(), top, left, mirrored):
        crop = np.pad(image, ((4, 4), (4, 4), (0, 0)))[y : y + 24, x : x + 24]
        wanted.append(crop[:, ::-1] if mirror else crop)
    got = transform(images, generator(3))
    assert got.shape == (300, 1, 24, 24)
    np.testing.assert_allclose(got.numpy(), normalised(np.stack(wanted), (0.5,), (0.25,)), rtol=0, atol=1e-6)
    assert transform(images).shape == (300, 1, 28, 28)  # without a generator: as it is evaluated


def test_the_border_is_black_before_normalisation():
    white = torch.full((200, 32, 32, 3), 255, dtype=torch.uint8)
    out = AUGMENTED(white, generator())
    top, _, _ = drawn(AUGMENTED, 200, seed=0)
    cut = out[torch.from_numpy(top == 0)]  # these show the four padding rows above
    assert len(cut) > 0
    black = -np.array(MEAN) / np.array(STD)
    np.testing.assert_allclose(
        cut[:, :, :4].numpy(), np.broadcast_to(black[:, None, None], cut[:, :, :4].shape), atol=1e-6
    )


def test_the_same_seed_gives_the_same_crops_and_another_seed_others():
    batch = random_images()
    assert torch.equal(AUGMENTED(batch, generator(1)), AUGMENTED(batch, generator(1)))
    assert not torch.equal(AUGMENTED(batch, generator(1)), AUGMENTED(batch, generator(2)))


def test_crops_do_not_depend_on_flip():
    for ours, theirs in zip(drawn(AUGMENTED, 50, 0), drawn(Images(MEAN, STD, crop_padding=4), 50, 0)):
        np.testing.assert_array_equal(ours, theirs)


def test_the_global_generator_is_not_touched():
    before = torch.get_rng_state()
    AUGMENTED(random_images(), generator())
    assert torch.equal(torch.get_rng_state(), before)


def observed_placements(count):
    """Crops and flips read off where a bright pixel, and the dimmer one to its right, went."""
    batch = torch.zeros((count, 32, 32, 3), dtype=torch.uint8)
    batch[:, 16, 15], batch[:, 16, 16] = 255, 100
    out = AUGMENTED(batch, generator(11))[:, 0]
    flat = out.flatten(1)
    bright, dim = flat.argmax(1), flat.topk(2, dim=1).indices[:, 1]
    mirrored = (dim < bright).long()
    column = torch.where(mirrored == 1, 31 - bright % 32, bright % 32)
    return (
        (20 - bright // 32).numpy(),
        (19 - column).numpy(),
        mirrored.numpy(),
    )  # padded position - place = edge


def test_all_162_crops_and_flips_are_equally_likely():
    n = 16_200
    top, left, mirrored = observed_placements(n)
    counts = np.bincount((top * 9 + left) * 2 + mirrored, minlength=162)
    assert len(counts) == 162
    chi_square = ((counts - n / 162) ** 2 / (n / 162)).sum()
    assert chi_square < 161 + 5 * np.sqrt(2 * 161)  # mean and 5 standard deviations of 161 degrees of freedom


def test_neighbouring_images_are_cropped_independently():
    for numbers in observed_placements(16_200):
        correlation = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
        assert abs(correlation) < 5 / np.sqrt(16_200)


# --- what is refused


@pytest.mark.parametrize(
    ("batch", "culprit"),
    [
        (torch.zeros(2, 4, 4, 3), "torch.float32"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), r"\(2, 3, 4, 4\)"),
        (torch.zeros(4, 4, 3, dtype=torch.uint8), r"\(4, 4, 3\)"),
    ],
)
def test_what_is_not_a_uint8_image_batch_is_refused(batch, culprit):
    with pytest.raises(InputError, match=culprit):
        AUGMENTED(batch)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ({"mean": (0.5,), "std": (0.5, 0.5)}, "std"),
        ({"mean": (0.5,), "std": (0.0,)}, "std"),
        ({"mean": (0.5,), "std": (0.5,), "crop_padding": -1}, "crop_padding"),
    ],
)
def test_settings_without_a_meaning_are_refused(arguments, culprit):
    with pytest.raises(InputError, match=culprit):
        Images(**arguments)


# --- Plain


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_features_become_float32(dtype):
    out = Plain()(torch.tensor([[1.5, -2.0]], dtype=dtype), generator())
    assert out.dtype == torch.float32
    assert out.tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool])
def test_integers_become_int64(dtype):
    out = Plain()(torch.tensor([[1, 0]], dtype=dtype))
    assert out.dtype == torch.int64
    assert out.tolist() == [[1, 0]]


# --- statistics


@pytest.mark.parametrize("shape", [(700, 32, 32, 3), (3, 5, 7, 1), (1, 800, 700, 3)])
def test_statistics_are_numpys(shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8) // np.arange(1, shape[3] + 1)
    images = images.astype(np.uint8)
    mean, std = image_statistics(images)
    channels = [images[..., c].copy() / 255 for c in range(shape[3])]  # one by one, NumPy sums in pairs
    np.testing.assert_allclose(mean, [channel.mean() for channel in channels], rtol=1e-12)
    np.testing.assert_allclose(std, [channel.std() for channel in channels], rtol=1e-12)


def test_statistics_read_a_memory_map(tmp_path):
    images = random_images(50, 8, 8).numpy()
    mapped = np.memmap(tmp_path / "images", np.uint8, "w+", shape=images.shape)
    mapped[:] = images
    assert image_statistics(mapped) == image_statistics(images)


def test_statistics_are_plain_floats_that_make_a_transform():
    mean, std = image_statistics(random_images(50, 8, 8).numpy())
    assert all(type(number) is float for number in mean + std)
    out = Images(mean, std)(random_images(50, 8, 8)).double()
    np.testing.assert_allclose(out.mean(dim=(0, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(out.std(dim=(0, 2, 3), correction=0), 1, atol=1e-6)


@pytest.mark.parametrize(
    "images", [np.zeros((2, 4, 4, 3)), np.zeros((2, 4, 4), np.uint8), np.zeros((0, 4, 4, 3), np.uint8)]
)
def test_statistics_of_what_is_not_images_are_refused(images):
    with pytest.raises(InputError, match="expected uint8"):
        image_statistics(images)
