import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedapp.config import DataSettings
from fedapp.datasets import DATASETS, digits4, load_pool, rendered
from fedapp.datasets.cache import Arrays
from tests.datasets.conftest import REPOSITORY

HASH = """
import hashlib
from fedapp.datasets import digits4
print(hashlib.sha256(digits4.build()["images"].tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def made() -> Arrays:
    return digits4.arrays()


@pytest.fixture(scope="module")
def mnist() -> tuple[np.ndarray, np.ndarray]:
    return digits4._mnist()


def test_pool_has_ten_classes_in_four_domains_of_like_size() -> None:
    pool = load_pool(DataSettings())
    assert pool.inputs.shape == (8797, 32, 32, 3)
    assert pool.inputs.dtype == np.uint8
    assert pool.labels.dtype == np.int64
    assert pool.native_split_only
    assert pool.domain_names == ("optical", "mnist", "mnistm", "rendered")
    assert pool.domains is not None
    assert pool.is_test is not None
    sizes = {
        name: [int(np.sum((pool.domains == number) & (pool.is_test == part))) for part in (False, True)]
        for number, name in enumerate(pool.domain_names)
    }
    assert sizes == {"optical": [1347, 450], "mnist": [1880, 620], "mnistm": [1880, 620], "rendered": [1500, 500]}
    assert len(np.unique(pool.labels)) == len(pool.class_names) == DATASETS["digits4"].classes


def test_training_comes_before_test(made: Arrays) -> None:
    assert not np.any(np.diff(made["is_test"].astype(int)) < 0)


def test_another_process_makes_the_same_bytes(made: Arrays, tmp_path: Path) -> None:
    environment = os.environ | {"FEDAPP_CACHE": str(tmp_path), "PYTHONHASHSEED": "5", "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", HASH], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == hashlib.sha256(made["images"].tobytes()).hexdigest()


def test_no_source_image_serves_two_domains_or_splits(made: Arrays) -> None:
    digits = np.isin(made["domains"], (1, 2))
    for rows in (digits, made["domains"] == 0, made["domains"] == 3):
        origin = made["origin"][rows]
        assert len(np.unique(origin)) == len(origin)
    assert sorted(made["origin"][digits]) == list(range(5000))


def test_no_mnist_image_is_there_twice(mnist: tuple[np.ndarray, np.ndarray]) -> None:
    digits, _ = mnist
    assert len(np.unique(digits.reshape(len(digits), -1), axis=0)) == 5000


def test_plain_mnist_images_are_the_source_images(made: Arrays, mnist: tuple[np.ndarray, np.ndarray]) -> None:
    digits, labels = mnist
    rows = made["domains"] == 1
    np.testing.assert_array_equal(made["images"][rows][..., 2], digits[made["origin"][rows]])
    np.testing.assert_array_equal(made["labels"][rows], labels[made["origin"][rows]])


def test_blended_image_is_the_difference_of_digit_and_patch(made: Arrays, mnist: tuple[np.ndarray, np.ndarray]) -> None:
    digits, _ = mnist
    photographs = digits4._photographs().astype(int)
    for row in np.flatnonzero(made["domains"] == 2)[::500]:
        photo, top, left = made["material"][row]
        patch = photographs[photo, top : top + 32, left : left + 32]
        digit = digits[made["origin"][row]].astype(int)[..., None]
        np.testing.assert_array_equal(made["images"][row], np.abs(digit - patch))


def test_photo_columns_of_test_patches_appear_in_no_training_patch(made: Arrays) -> None:
    rows = made["domains"] == 2
    columns = made["material"][rows][:, 2:] + np.arange(32)
    is_test = made["is_test"][rows]
    assert not set(columns[is_test].ravel()) & set(columns[~is_test].ravel())


def test_fonts_of_test_images_draw_no_training_image(made: Arrays) -> None:
    rows = made["domains"] == 3
    fonts, is_test = made["material"][rows, 0], made["is_test"][rows]
    assert set(fonts[~is_test]) == set(range(len(rendered.TRAIN_FONTS)))
    assert set(fonts[is_test]) == set(range(len(rendered.TRAIN_FONTS), len(rendered.TRAIN_FONTS + rendered.TEST_FONTS)))


def test_enlarged_optical_digit_keeps_the_range_and_the_mean_of_the_scan(made: Arrays) -> None:
    from sklearn.datasets import load_digits

    rows = made["domains"] == 0
    scans = load_digits().images[made["origin"][rows]]
    means = made["images"][rows].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(means, scans.mean(axis=(1, 2)) * 255 / 16, atol=0.5)
    assert made["images"][rows].max() == 255
