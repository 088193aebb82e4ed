import numpy as np
import pytest

from fedapp.datasets import rendered


@pytest.mark.parametrize("face", rendered.TRAIN_FONTS + rendered.TEST_FONTS)
def test_chosen_font_draws_ten_different_digits_of_full_height(face: str) -> None:
    assert rendered.draws_digits(face)
    drawn = rendered.glyphs(face)
    assert len({glyph.tobytes() for glyph in drawn}) == 10
    heights = [np.ptp(np.flatnonzero(glyph.max(axis=1) > 0.5)) + 1 for glyph in drawn]
    assert min(heights) >= 0.9 * rendered.GLYPH_HEIGHT
    assert max(heights) < rendered.GLYPH_SIDE - 4


@pytest.mark.parametrize("face", ["cmsy10", "cmex10", "cmmi10", "DejaVuSansDisplay", "STIXNonUni", "no-such-font"])
def test_font_without_lining_digits_is_found_out(face: str) -> None:
    assert not rendered.draws_digits(face)


def test_fonts_of_training_and_test_are_different_families() -> None:
    assert not set(rendered.TRAIN_FONTS) & set(rendered.TEST_FONTS)


def test_missing_font_is_left_out() -> None:
    labels = np.arange(10)
    images, fonts = rendered.render(labels, ("no-such-font", "cmr10"), np.random.RandomState(0))
    assert images.shape == (10, 32, 32, 3)
    assert set(fonts) == {1}


def test_digit_stands_out_from_its_background() -> None:
    images, _ = rendered.render(np.arange(200) % 10, ("DejaVuSans-Bold",), np.random.RandomState(3))
    luminance = images @ np.array([0.299, 0.587, 0.114])
    low, high = np.percentile(luminance.reshape(200, -1), [3, 97], axis=1)
    assert np.all(high - low > 45)


def test_global_random_state_is_neither_read_nor_moved() -> None:
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, _ = rendered.render(np.arange(10), ("cmr10",), np.random.RandomState(0))
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    second, _ = rendered.render(np.arange(10), ("cmr10",), np.random.RandomState(0))
    np.testing.assert_array_equal(first, second)
