import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp import config, server_app
from fedapp.augment import Augmentation, augment, parse
from fedapp.settings import SettingError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(batch: int, channels: int = 3, height: int = 6, width: int = 5) -> torch.Tensor:
    return torch.rand(batch, channels, height, width, generator=generator(1)) * 2 - 1


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", Augmentation()),
        ("crop", Augmentation(crop=4)),
        ("crop=8 flip", Augmentation(crop=8, flip=True)),
        ("flip,crop=1", Augmentation(crop=1, flip=True)),
    ],
)
def test_setting_is_read(text: str, want: Augmentation) -> None:
    assert parse(text) == want


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flop", "unknown augmentation 'flop'.*did you mean flip"),
        ("crop=0", "'crop=0' cannot be read"),
        ("flip=1", "'flip=1' cannot be read"),
    ],
)
def test_setting_that_cannot_be_read_is_an_error(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse(text)


@settings(max_examples=20, deadline=None)
@given(batch=st.integers(1, 5), crop=st.integers(0, 3), flip=st.booleans(), seed=st.integers(0, 2**31))
def test_every_image_is_a_crop_of_itself_or_its_mirror_image_padded_with_black(
    batch: int, crop: int, flip: bool, seed: int
) -> None:
    x = images(batch)
    before = x.clone()
    made = augment(x, Augmentation(crop, flip), generator(seed))
    assert torch.equal(x, before)
    for original, result in zip(x, made, strict=True):
        candidates = []
        for source in [original, original.flip(-1)] if flip else [original]:
            padded = torch.full((3, 6 + 2 * crop, 5 + 2 * crop), -1.0)
            padded[:, crop : crop + 6, crop : crop + 5] = source
            shifts = range(2 * crop + 1)
            candidates += [padded[:, top : top + 6, left : left + 5] for top in shifts for left in shifts]
        # mirroring before or after the shift gives the same set of candidates
        assert any(torch.equal(result, candidate) for candidate in candidates)


def test_draws_cover_every_shift_and_half_of_the_mirrors() -> None:
    x = torch.arange(9.0).view(1, 1, 3, 3).expand(4000, 1, 3, 3)
    made = augment(x, Augmentation(crop=1, flip=True), generator())
    distinct, counts = made.flatten(1).unique(dim=0, return_counts=True)
    assert len(distinct) == 18
    assert counts.min() > 4000 / 18 * 0.7
    assert counts.max() < 4000 / 18 * 1.3


def test_same_generator_gives_the_same_images_and_none_the_batch_itself() -> None:
    x = images(7)
    first, again = (augment(x, Augmentation(2, True), generator(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, augment(x, Augmentation(2, True), generator(4)))
    assert augment(x, Augmentation(), generator()) is x


def test_samples_that_are_no_images_are_an_error() -> None:
    with pytest.raises(SettingError, match=r"needs images, .* got samples of shape \(200,\)"):
        augment(torch.zeros(3, 200), Augmentation(flip=True), generator())


def test_a_misspelt_augmentation_is_refused_before_a_run_begins() -> None:
    with pytest.raises(SettingError, match=r"unknown augmentation 'crp'.*did you mean crop"):
        server_app.check(config.parse(config.RunConfig, {"augment": "crp"}))
