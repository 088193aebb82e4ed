import dataclasses
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
from fedapp.datasets import digits, domainnet, hub, load_node, load_pool, splits
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


def write_domainnet(root: Path, parts: dict[str, list[int]], row_group_size: int) -> np.ndarray:
    """Write JPEGs of any size in DomainNet's schema, several files a split, and return what they decode to."""
    import datasets

    names = list(domainnet.REPOSITORY.domains)
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(num_classes=345),
            "domain": datasets.ClassLabel(names=names),
        }
    )
    rng, expected = np.random.default_rng(1), []
    for split, sizes in parts.items():
        for number, size in enumerate(sizes):
            cells = []
            for _ in range(size):
                pixels = rng.integers(256, size=(*rng.integers(20, 90, size=2), 3), dtype=np.uint8)
                stream = io.BytesIO()
                Image.fromarray(pixels).save(stream, "jpeg")
                cells.append({"bytes": stream.getvalue(), "path": None})
                expected.append(Image.open(stream).convert("RGB").resize((64, 64), Image.Resampling.BILINEAR))
            path = root / "wltjr1007" / "DomainNet" / "data" / f"{split}-{number:05}-of-{len(sizes):05}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = {"image": cells, "label": [7] * size, "domain": [number % 6 for number in range(size)]}
            made = datasets.Dataset.from_dict(rows, features=features)
            made.to_parquet(str(path), batch_size=row_group_size)
    return np.stack([np.asarray(image) for image in expected])


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize(("rows", "chunk"), [(1000, 250), (7, 3), (1, 1)])
def test_batches_of_files_decode_to_what_they_decode_to_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, chunk: int
) -> None:
    monkeypatch.setattr(splits, "ROWS", rows)
    monkeypatch.setattr(hub, "CHUNK", chunk)
    expected = write_domainnet(tmp_path, {"train": [11, 40], "test": [9, 0, 3]}, row_group_size=5)
    drafted = []

    def empty(name: str, shape: tuple[int, ...]) -> np.ndarray:
        drafted.append((name, shape, np.empty(shape, dtype=np.uint8)))
        return drafted[-1][2]

    arrays = hub.decode(domainnet.REPOSITORY, str(tmp_path), empty)
    np.testing.assert_array_equal(arrays["images"], expected)
    assert [(name, shape) for name, shape, _ in drafted] == [("images", (63, 64, 64, 3))]
    assert arrays["images"] is drafted[0][2]  # filled where it is, never copied
    assert arrays["is_test"].tolist() == [False] * 51 + [True] * 12
    assert arrays["domains"].tolist() == [number % 6 for size in (11, 40, 9, 0, 3) for number in range(size)]


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize("dataset", ["domainnet", "domainnet-augmented-once"])
def test_pool_of_many_pictures_is_built_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Any, dataset: str
) -> None:
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "cache"))
    expected = write_domainnet(tmp_path, {"train": [80], "test": [20]}, row_group_size=30)
    saved = []
    save = np.save
    monkeypatch.setattr(np, "save", lambda file, array, **more: (saved.append(array.nbytes), save(file, array, **more)))
    pool = load_pool(DataSettings(dataset=dataset, data_root=str(tmp_path)))
    assert isinstance(pool.inputs, np.memmap)
    assert max(saved) < expected.nbytes / 10  # the images were there already
    same = (pool.inputs == expected).all(axis=(1, 2, 3))
    assert same[80:].all()
    assert same.all() == (dataset == "domainnet")


def test_files_of_other_columns_than_the_first_are_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "uoft-cs" / "cifar10"
    write_split(folder / "train-0.parquet", random_images(1), [0])
    write_split(folder / "train-1.parquet", random_images(1), [0], label="fine_label")
    write_split(folder / "test.parquet", random_images(1), [0])
    with pytest.raises(SettingError, match=r"train-1\.parquet: its columns are not those of train-0\.parquet"):
        load_pool(DataSettings(dataset="cifar10", data_root=str(tmp_path)))


def test_file_cut_short_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "uoft-cs" / "cifar10" / "train.parquet"
    for split in ("test", "train"):
        write_split(path.with_stem(split), random_images(40), [0] * 40)
    whole = path.read_bytes()
    path.write_bytes(b"PAR1" + bytes(len(whole) // 2 - 4) + whole[len(whole) // 2 :])
    with pytest.raises(SettingError, match=r"cannot read .*train\.parquet|image 0 cannot be read"):
        load_pool(DataSettings(dataset="cifar10", data_root=str(tmp_path)))


def test_images_that_are_stored_otherwise_are_an_error_that_names_the_type(tmp_path: Path) -> None:
    import datasets

    for split in ("train", "test"):
        path = tmp_path / "uoft-cs" / "cifar10" / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict({"img": ["a.png"], "label": [0]}).to_parquet(str(path))
    with pytest.raises(SettingError, match="cifar10: images are stored as string; check the copy"):
        load_pool(DataSettings(dataset="cifar10", data_root=str(tmp_path)))


# ---- the hub itself, played by a folder that is laid out like a repository -------------------------

CARD = """---
configs:
- config_name: cropped_digits
  data_files:
{files}
---
"""


@pytest.fixture
def svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hub.Repository:
    """SVHN's repository with three samples a split and a split ``extra`` that is not to be read."""
    import datasets

    folder = tmp_path / "svhn"
    for split, names in (("train", [0, 1, 2]), ("test", [3, 4, 5])):
        write_split(folder / "cropped_digits" / f"{split}-00000-of-00001.parquet", random_images(3), names, "image")
    (folder / "cropped_digits" / "extra-00000-of-00001.parquet").write_bytes(b"not to be read")
    lines = [f"  - split: {split}\n    path: cropped_digits/{split}-*" for split in ("train", "test", "extra")]
    (folder / "README.md").write_text(CARD.format(files="\n".join(lines)))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "library")
    return dataclasses.replace(digits.SVHN, id=str(folder))


@pytest.mark.usefixtures("_no_network")
def test_other_splits_of_the_hub_are_not_fetched(svhn: hub.Repository, tmp_path: Path) -> None:
    arrays = hub.decode(svhn, "")
    np.testing.assert_array_equal(arrays["images"], np.concatenate([random_images(3)] * 2))
    assert arrays["labels"].tolist() == [0, 1, 2, 3, 4, 5]
    assert arrays["is_test"].tolist() == [False] * 3 + [True] * 3
    assert arrays["class_names"].tolist() == CIFAR10_NAMES
    assert not list((tmp_path / "library").rglob("*extra*"))


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize("wanted", [("train", "test", "extra"), ("train", "test"), ("test",)])
def test_the_hub_is_asked_for_the_repositorys_splits_and_no_others(
    svhn: hub.Repository, monkeypatch: pytest.MonkeyPatch, wanted: tuple[str, ...]
) -> None:
    import datasets

    asked: list[Any] = []

    def load_dataset(*names: Any, **options: Any) -> list[datasets.Dataset]:
        asked.append((names, options))
        return [datasets.Dataset.from_dict({"label": [place]}) for place in range(len(options["split"]))]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = hub.fetch(dataclasses.replace(svhn, splits=wanted), "")
    assert list(found) == list(wanted)
    assert [next(split.batches("label")).to_pylist() for split in found.values()] == [[n] for n in range(len(wanted))]
    ((names, options),) = asked
    assert names == (svhn.id, "cropped_digits")
    assert options.pop("split") == list(wanted)
    files = options.pop("data_files", None)
    assert (files is None) == (len(wanted) == 3)  # nothing to keep away
    assert files is None or {split: [Path(path).name for path in files[split]] for split in files} == {
        split: [f"{split}-00000-of-00001.parquet"] for split in wanted
    }
    assert options == ({} if files is None else {"verification_mode": "no_checks"})


@pytest.mark.usefixtures("_no_network")
def test_split_that_the_hub_lacks_is_an_error(svhn: hub.Repository) -> None:
    with pytest.raises(SettingError, match=r"nor on the hub as .*valid"):
        hub.fetch(dataclasses.replace(svhn, splits=("train", "valid")), "")


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


# ---- the hub out of reach ----------------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of a network that is not there."""
    import datasets
    import huggingface_hub

    found: list[str] = []

    class Session:
        def head(self, url: str, timeout: float) -> None:
            found.append("probe")
            raise OSError("no such host")

    def refuse(*_: Any, **__: Any) -> None:
        found.append("library")
        raise ConnectionError("cannot reach it")

    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "library")
    monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
    monkeypatch.setattr(hub, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(hub, "_failed", {})
    return found


ABSENT = dataclasses.replace(digits.SVHN, id="nobody/absent")


def failures(count: int) -> set[str]:
    """The messages of so many clients of one process that ask for what is not there."""
    messages = set()
    for _ in range(count):
        with pytest.raises(SettingError) as caught:
            hub.fetch(ABSENT, "")
        messages.add(str(caught.value))
    return messages


def test_clients_without_a_network_wait_once_and_get_the_same_message(asked: list[str]) -> None:
    (message,) = failures(20)
    assert asked == ["probe"] * hub.PROBES
    assert "nor on the hub as nobody/absent (OSError: no such host)" in message
    assert message.endswith("set data-root, or allow access to the hub")


def test_a_failure_is_forgotten_after_a_while(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "REMEMBERED_SECONDS", 0.0)
    failures(3)
    assert asked == ["probe"] * 3 * hub.PROBES


@pytest.mark.parametrize("place", ["hub/datasets--nobody--absent/snapshots", "library/nobody___absent"])
def test_what_the_library_has_of_it_is_used_without_a_network(asked: list[str], tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    failures(3)
    assert asked == ["library"]
