import io
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedapp.config import DataSettings, SettingError
from fedapp.datasets import load_node, load_pool
from tests.datasets.conftest import REPOSITORY

CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the network was tried although there is a local copy")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def write_split(path: Path, images: np.ndarray, labels: list[int], image: str = "img", label: str = "label") -> None:
    """Write parquet as the hub has it: Image and ClassLabel features, PNG bytes."""
    import datasets

    path.parent.mkdir(parents=True, exist_ok=True)
    cells = []
    for pixels in images:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="png")
        cells.append({"bytes": buffer.getvalue(), "path": None})
    features = datasets.Features({image: datasets.Image(), label: datasets.ClassLabel(names=CIFAR10_NAMES)})
    datasets.Dataset.from_dict({image: cells, label: labels}, features=features).to_parquet(str(path))


def random_images(count: int, shape: tuple[int, ...] = (32, 32, 3)) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(count, *shape), dtype=np.uint8)


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize("layout", ["{}.parquet", "plain_text/{}-00000-of-00001.parquet"])
@pytest.mark.parametrize("column", ["img", "image"])
def test_local_copy_in_the_hubs_schema_is_read_without_the_network(tmp_path: Path, layout: str, column: str) -> None:
    images = random_images(5)
    folder = tmp_path / "uoft-cs" / "cifar10"
    write_split(folder / layout.format("train"), images[:3], [3, 0, 9], column)
    write_split(folder / layout.format("test"), images[3:], [1, 1], column)
    pool = load_pool(DataSettings(dataset="cifar10", data_root=str(tmp_path)))
    np.testing.assert_array_equal(pool.inputs, images)
    assert pool.labels.tolist() == [3, 0, 9, 1, 1]
    assert pool.is_test is not None
    assert pool.is_test.tolist() == [False, False, False, True, True]
    assert pool.class_names == tuple(CIFAR10_NAMES)
    assert pool.domains is None
    assert not pool.native_split_only


@pytest.mark.usefixtures("_no_network")
def test_grey_images_keep_one_channel(tmp_path: Path) -> None:
    images = random_images(4, (28, 28))
    for split, part in (("train", images[:2]), ("test", images[2:])):
        write_split(tmp_path / "ylecun" / "mnist" / f"{split}.parquet", part, [0, 1], "image")
    pool = load_pool(DataSettings(dataset="mnist", data_root=str(tmp_path)))
    np.testing.assert_array_equal(pool.inputs, images[..., None])


def test_changed_copy_is_decoded_again(tmp_path: Path, registry: Any) -> None:
    for attempt in range(2):
        images = random_images(3)[attempt:]
        for split in ("train", "test"):
            write_split(tmp_path / "uoft-cs" / "cifar10" / f"{split}.parquet", images, [2] * len(images))
        pool = load_pool(DataSettings(dataset="cifar10", data_root=str(tmp_path) + "/" * attempt))
        np.testing.assert_array_equal(pool.inputs[: len(images)], images)


def test_copy_without_its_test_split_is_an_error(tmp_path: Path) -> None:
    write_split(tmp_path / "uoft-cs" / "cifar10" / "train.parquet", random_images(1), [0])
    with pytest.raises(SettingError, match=r"holds no test\*\.parquet"):
        load_pool(DataSettings(dataset="cifar10", data_root=str(tmp_path)))


@pytest.mark.parametrize(
    ("images", "label", "column", "message"),
    [
        (random_images(1, (16, 16, 3)), 0, "label", "image 0 cannot be read"),
        (random_images(1), 0, "fine_label", "no column 'label'"),
        (random_images(1), None, "label", "labels run from -1"),
    ],
)
def test_copy_that_is_something_else_is_an_error(
    tmp_path: Path, images: np.ndarray, label: int | None, column: str, message: str
) -> None:
    for split in ("train", "test"):
        path = tmp_path / "uoft-cs" / "cifar10" / f"{split}.parquet"
        write_split(path, images, [-1 if label is None else label], label=column)
    with pytest.raises(SettingError, match=message):
        load_pool(DataSettings(dataset="cifar10", data_root=str(tmp_path)))


def test_unreadable_copy_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    for split in ("train", "test"):
        path = tmp_path / "uoft-cs" / "cifar10" / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not parquet at all")
    with pytest.raises(SettingError, match=r"cannot read .*train\.parquet.*copy it again"):
        load_pool(DataSettings(dataset="cifar10", data_root=str(tmp_path)))


@pytest.mark.parametrize("has_root", [True, False])
def test_offline_without_a_copy_names_both_places_and_the_way_out(
    tmp_path: Path, offline_environment: dict[str, str], has_root: bool
) -> None:
    root = str(tmp_path) if has_root else ""
    code = (
        "from fedapp.config import DataSettings, SettingError\n"
        "from fedapp.datasets import load_pool\n"
        f"try: load_pool(DataSettings(dataset='cifar100', data_root={root!r}))\n"
        "except SettingError as error: print(error)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=offline_environment,
        capture_output=True,
        text=True,
        check=True,
    )
    place = str(tmp_path / "uoft-cs" / "cifar100") if has_root else "data-root is not set"
    assert place in answer.stdout
    assert "nor on the hub as uoft-cs/cifar100" in answer.stdout
    assert "set data-root, or allow access to the hub" in answer.stdout
    assert "so uoft-cs/cifar100 is taken from the hub" in answer.stderr
    assert answer.stdout.count("\n") == 1


@pytest.mark.usefixtures("_no_network")
def test_copy_of_mnist_is_partitioned_by_the_papers_rule(local_copies: Path) -> None:
    settings = DataSettings(dataset="mnist", data_root=str(local_copies))
    pool = load_pool(settings)
    assert pool.inputs.shape == (30_000, 28, 28, 1)
    assert pool.is_test is not None
    assert pool.is_test.sum() == 10_000
    nodes = [load_node(settings, index, 20) for index in range(20)]
    assert sum(len(node.train) + len(node.test) for node in nodes) == 30_000
    assert all(len(node.train) == int(0.75 * (len(node.train) + len(node.test))) >= 30 for node in nodes)
    assert nodes[0].input_shape == (1, 28, 28)
