"""Every data set of the papers on a handful of generated rows in its source's real schema."""

import gzip
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedapp.config import DataSettings, SettingError
from fedapp.datasets import DATASETS, Pool, fashion_mnist, load_node, load_pool, office_caltech
from tests.datasets.conftest import REPOSITORY
from tests.datasets.copies import DIGIT_NAMES, write_images, write_table

RNG = np.random.default_rng(0)
TEXTS = ["Wall St. falls again", "The team's 3rd win", "New chip, new phone", "UN talks fail"]


def pixels(count: int, *shape: int) -> np.ndarray:
    return RNG.integers(256, size=(count, *shape), dtype=np.uint8)


def pool_from(root: Path, dataset: str) -> Pool:
    return load_pool(DataSettings(dataset=dataset, data_root=str(root)))


def test_tiny_imagenet_takes_its_valid_split_for_testing_and_grey_images_too(tmp_path: Path) -> None:
    folder, names = tmp_path / "zh-plus" / "tiny-imagenet" / "data", [f"n{number:08}" for number in range(200)]
    write_images(folder / "train-00000-of-00001-1359597a978bc4fa.parquet", [*pixels(3, 64, 64, 3)], [0, 199, 5], names)
    write_images(folder / "valid-00000-of-00001-70d52db3c749a935.parquet", [*pixels(2, 64, 64)], [7, 8], names)
    pool = pool_from(tmp_path, "tiny-imagenet")
    assert pool.inputs.shape == (5, 64, 64, 3)
    assert pool.is_test is not None
    assert pool.is_test.tolist() == [False] * 3 + [True] * 2
    assert pool.class_names == tuple(names)
    np.testing.assert_array_equal(pool.inputs[4, ..., 0], pool.inputs[4, ..., 2])


def test_domainnet_reads_domains_of_class_labels_and_any_size(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=[f"class{number}" for number in range(345)]),
            "domain": datasets.ClassLabel(names=["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]),
        }
    )
    pictures = [Image.fromarray(part) for part in (pixels(1, 80, 50, 3)[0], pixels(1, 30, 40, 3)[0])]
    rows = {"image": pictures, "label": [344, 0], "domain": [5, 2]}
    folder = tmp_path / "wltjr1007" / "DomainNet" / "data"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        datasets.Dataset.from_dict(rows, features=features).to_parquet(str(folder / f"{split}-00000-of-00034.parquet"))
    pool = pool_from(tmp_path, "domainnet")
    assert pool.inputs.shape == (4, 64, 64, 3)
    assert pool.domains is not None
    assert [pool.domain_names[domain] for domain in pool.domains] == ["sketch", "painting"] * 2
    resized = np.asarray(pictures[0].resize((64, 64), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(pool.inputs[0], resized)


def test_pacs_has_domains_by_name_and_no_test_part(tmp_path: Path) -> None:
    names = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
    found = ["sketch", "photo", "cartoon", "art_painting"]
    path = tmp_path / "flwrlabs" / "pacs" / "train.parquet"
    write_images(path, [*pixels(4, 227, 227, 3)], [0, 1, 6, 3], names, domain=found)
    pool = pool_from(tmp_path, "pacs")
    assert pool.inputs.shape == (4, 64, 64, 3)
    assert pool.is_test is None
    assert pool.domains is not None
    assert [pool.domain_names[domain] for domain in pool.domains] == found


def test_strange_domain_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "flwrlabs" / "pacs" / "train.parquet"
    write_images(path, [*pixels(1, 64, 64, 3)], [0], [*"abcdefg"], domain=["oil"])
    with pytest.raises(SettingError, match="column 'domain' holds 'oil', expected art_painting, cartoon"):
        pool_from(tmp_path, "pacs")


def test_femnist_knows_its_writers(tmp_path: Path) -> None:
    names = [*DIGIT_NAMES, *map(chr, range(65, 91)), *map(chr, range(97, 123))]
    writers = ["f0000_14", "f0001_41", "f0000_14"]
    cells = [{"bytes": png_of(image), "path": None} for image in pixels(3, 28, 28)]
    table = {"image": cells, "writer_id": writers, "hsf_id": ["0"] * 3, "character": [61, 0, 10]}
    import datasets

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "writer_id": datasets.Value("string"),
            "hsf_id": datasets.Value("string"),
            "character": datasets.ClassLabel(names=names),
        }
    )
    folder = tmp_path / "flwrlabs" / "femnist" / "data"
    folder.mkdir(parents=True)
    datasets.Dataset.from_dict(table, features=features).to_parquet(str(folder / "train-00000-of-00001.parquet"))
    pool = pool_from(tmp_path, "femnist")
    assert pool.inputs.shape == (3, 28, 28, 1)
    assert pool.clients is not None
    assert [pool.client_names[client] for client in pool.clients] == writers
    assert [pool.class_names[label] for label in pool.labels] == ["z", "0", "A"]


def png_of(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="png")
    return buffer.getvalue()


def write_digits(root: Path, svhn: str = "ufldl-stanford/svhn/cropped_digits") -> None:
    for split in ("train", "test"):
        write_images(root / f"ylecun/mnist/mnist/{split}-00000-of-00001.parquet", [*pixels(3, 28, 28)], [0, 1, 2])
        write_images(root / f"flwrlabs/usps/data/{split}-00000-of-00001.parquet", [*pixels(2, 16, 16)], [3, 4])
        write_images(root / f"{svhn}/{split}-00000-of-00001.parquet", [*pixels(4, 32, 32, 3)], [5, 6, 7, 8])
    for split, digit in (("train", 9), ("train", 0), ("val", 1)):
        (root / "syn" / split / str(digit)).mkdir(parents=True)
        Image.fromarray(pixels(1, 32, 32, 3)[0]).save(root / "syn" / split / str(digit) / f"{digit}_00012.jpg")


def test_digits_join_four_sources_in_the_papers_order(tmp_path: Path) -> None:
    write_digits(tmp_path)
    write_images(tmp_path / "ufldl-stanford/svhn/full_numbers/train-00000-of-00002.parquet", [*pixels(1, 9, 9, 3)], [0])
    pool = pool_from(tmp_path, "digits")
    assert pool.inputs.shape == (21, 32, 32, 3)
    assert pool.domain_names == ("mnist", "usps", "svhn", "syn")
    assert pool.domains is not None
    assert pool.domains.tolist() == [0] * 3 + [1] * 2 + [2] * 4 + [3] * 2 + [0] * 3 + [1] * 2 + [2] * 4 + [3]
    assert pool.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1]
    assert pool.native_split_only


def test_digits_without_syn_say_where_it_belongs_and_what_does_without(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"syn/train/<digit>.*imgs_train as train.*digits-offline"):
        pool_from(tmp_path, "digits")


def test_office_caltech_tests_on_the_last_two_of_ten_sorted_by_class(tmp_path: Path) -> None:
    names, count = [*"abcdefghij"], 25
    labels = RNG.permutation(np.arange(count) % 10)
    marked = np.repeat(np.arange(count, dtype=np.uint8), 32 * 32 * 3).reshape(count, 32, 32, 3)
    path = tmp_path / "local" / "office_caltech10" / "train.parquet"
    write_images(path, [*marked, *marked[:5]], [*labels, *labels[:5]], names, domain=["amazon"] * 25 + ["dslr"] * 5)
    pool = pool_from(tmp_path, "office-caltech10")
    assert pool.is_test is not None
    assert pool.domains is not None
    in_order = sorted(range(count), key=lambda place: (labels[place], place))
    want = [place for rank, place in enumerate(in_order) if rank % 10 in (8, 9)]
    tested = pool.is_test & (pool.domains == office_caltech.REPOSITORY.domains.index("amazon"))
    assert sorted(np.asarray(pool.inputs)[tested][:, 0, 0, 0].tolist()) == sorted(want)
    assert pool.is_test.sum() == 4
    assert not pool.is_test[:26].any()


def test_office_caltechs_test_parts_have_the_papers_sizes() -> None:
    sizes = (1123, 958, 295, 157)
    arrays = {
        "domains": np.repeat(np.arange(4), sizes),
        "labels": np.concatenate([np.arange(size) % 10 for size in sizes]),
        "images": np.zeros(sum(sizes), dtype=np.uint8),
    }
    made = office_caltech.set_aside(arrays)
    assert np.bincount(made["domains"][made["is_test"]]).tolist() == [224, 190, 58, 30]


def test_office_caltech_is_not_sought_on_the_hub() -> None:
    with pytest.raises(SettingError, match=r"hub has no such repository; put train.parquet into <data-root>/local/off"):
        load_pool(DataSettings(dataset="office-caltech10"))


@pytest.mark.parametrize("place", ["parquet", "package"])
def test_fashion_mnist_is_read_from_a_copy_or_debians_package(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = pixels(5, 28, 28), [0, 9, 3, 4, 5]
    monkeypatch.setattr(fashion_mnist, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(fashion_mnist, "VERSION", "test")
    for split, part, rows in (("train", "train", slice(3)), ("test", "t10k", slice(3, 5))):
        if place == "parquet":
            folder = tmp_path / "zalando-datasets" / "fashion_mnist" / "fashion_mnist"
            names = list(fashion_mnist.CLASSES)
            write_images(folder / f"{split}-00000-of-00001.parquet", [*images[rows]], labels[rows], names)
            continue
        (tmp_path / "package").mkdir(exist_ok=True)
        for kind, header, content in (
            ("images-idx3", 16, images[rows]),
            ("labels-idx1", 8, np.array(labels[rows], np.uint8)),
        ):
            (tmp_path / "package" / f"{part}-{kind}-ubyte.gz").write_bytes(
                gzip.compress(bytes(header) + content.tobytes())
            )
    pool = pool_from(tmp_path, "fashion-mnist")
    np.testing.assert_array_equal(pool.inputs, images[..., None])
    assert pool.labels.tolist() == labels
    assert pool.class_names == fashion_mnist.CLASSES
    assert pool.is_test is not None
    assert pool.is_test.sum() == 2


def write_news(root: Path, train: Sequence[str], test: Sequence[str]) -> None:
    names = ["World", "Sports", "Business", "Sci/Tech"]
    for split, texts in (("train", train), ("test", test)):
        path = root / "fancyzhx" / "ag_news" / "data" / f"{split}-00000-of-00001.parquet"
        write_table(path, {"text": list(texts), "label": [index % 4 for index in range(len(texts))]}, names)


def test_ag_news_are_rows_of_the_training_parts_words(tmp_path: Path) -> None:
    write_news(tmp_path, TEXTS, ["The phone falls, twice"] * 2)
    pool = pool_from(tmp_path, "ag-news")
    words = [
        "new",
        "3rd",
        "again",
        "chip",
        "fail",
        "falls",
        "phone",
        "st",
        "talks",
        "team's",
        "the",
        "un",
        "wall",
        "win",
    ]
    ids = {word: number for number, word in enumerate(words, start=2)}
    assert pool.vocabulary == len(words) + 2
    assert pool.inputs.shape == (6, 200)
    assert pool.inputs[2, :5].tolist() == [ids["new"], ids["chip"], ids["new"], ids["phone"], 0]
    assert pool.inputs[4, :5].tolist() == [ids["the"], ids["phone"], ids["falls"], 1, 0]
    assert pool.labels.tolist() == [0, 1, 2, 3, 0, 1]


def test_tokens_reach_a_node_as_int64_with_the_size_of_the_vocabulary(tmp_path: Path, registry: Any) -> None:
    import torch

    write_news(tmp_path, TEXTS * 5, TEXTS)
    node = load_node(DataSettings(dataset="ag-news", data_root=str(tmp_path), partition="iid"), 0, 2)
    assert node.train.x.dtype == torch.int64
    assert node.input_shape == (200,)
    assert node.vocabulary == load_pool(DataSettings(dataset="ag-news", data_root=str(tmp_path))).vocabulary > 2


def test_amazon_reviews_are_bags_of_words_and_pairs_or_rows_of_words(tmp_path: Path) -> None:
    reviews, found = (
        ["Not good, not bad.", "Very good!", "Bad book", "good good good"],
        ["dvd", "books", "kitchen", "books"],
    )
    path = tmp_path / "local" / "amazon_reviews" / "train.parquet"
    write_table(path, {"text": reviews, "label": [0, 1, 0, 1], "domain": found}, ["negative", "positive"])
    bags, rows = (pool_from(tmp_path, name) for name in ("amazon-review", "amazon-review-text"))
    assert bags.inputs.shape == (4, 5000)
    assert bags.inputs.dtype == np.float32
    # words and pairs: not, good, bad, not good, good not, not bad | very, good, very good | ... | good, good good
    assert np.asarray(bags.inputs).sum(axis=1).tolist() == [6, 3, 3, 2]
    assert bags.domains is not None
    assert [bags.domain_names[domain] for domain in bags.domains] == found
    assert rows.inputs.shape == (4, 256)
    assert rows.inputs[0, :5].tolist() == [4, 2, 4, 3, 0]  # good 5 times, bad 2, not 2, book, very
    assert rows.vocabulary == 7


def shakespeare(root: Path, lines: dict[str, str], step: int = 1) -> None:
    rows = [
        (name, text[start : start + 80], text[start + 80])
        for name, text in lines.items()
        for start in range(0, len(text) - 80, step)
    ]
    names, windows, following = zip(*rows, strict=True)
    table = {"character_id": list(names), "x": list(windows), "y": list(following)}
    write_table(root / "flwrlabs" / "shakespeare" / "train.parquet", table, [])


def test_shakespeares_speakers_test_on_what_they_say_last_without_overlap(tmp_path: Path) -> None:
    letters = np.array([*"abcdefghijklmnopqrstuvwxyz ABC,.!"])
    texts = {name: "".join(RNG.choice(letters, size=2080)) for name in ("HAMLET", "KING")}
    shakespeare(tmp_path, texts)
    pool = pool_from(tmp_path, "shakespeare")
    assert pool.client_names == ("HAMLET", "KING")
    assert pool.clients is not None
    assert pool.is_test is not None
    alphabet = dict(enumerate(pool.class_names, start=2))
    for client, text in enumerate(texts.values()):
        own = pool.clients == client
        train, test = (np.asarray(pool.inputs)[own & (pool.is_test == part)] for part in (False, True))
        assert len(train) == 1800
        assert 200 - 80 <= len(test) <= 200 - 60
        assert "".join(alphabet[number] for number in train[0]) == text[:80]
        first = text.index("".join(alphabet[number] for number in test[0]))
        assert first >= 1800 - 1 + 80 - 11
        assert pool.class_names[pool.labels[own & ~pool.is_test][0]] == text[80]


def test_shakespeares_rows_before_a_strange_character_are_left_out(tmp_path: Path) -> None:
    shakespeare(tmp_path, {"HAMLET": "a$" * 45})
    pool = pool_from(tmp_path, "shakespeare")
    assert set(pool.labels.tolist()) == {pool.class_names.index("a")}
    assert set(np.unique(pool.inputs).tolist()) == {1, 2 + pool.class_names.index("a")}


def test_window_of_another_length_is_an_error(tmp_path: Path) -> None:
    table = {"character_id": ["HAMLET"], "x": ["too short"], "y": ["a"]}
    write_table(tmp_path / "flwrlabs" / "shakespeare" / "train.parquet", table, [])
    with pytest.raises(SettingError, match="x must be 80 characters and y one"):
        pool_from(tmp_path, "shakespeare")


OF_THE_HUB = ("pacs", "domainnet", "tiny-imagenet", "ag-news", "shakespeare", "femnist", "digits-offline")


def test_every_absent_set_names_both_places(tmp_path: Path, offline_environment: dict[str, str]) -> None:
    code = (
        "from fedapp.config import DataSettings, SettingError\n"
        "from fedapp.datasets import load_pool\n"
        f"for name in {OF_THE_HUB}:\n"
        f"    try: load_pool(DataSettings(dataset=name, data_root={str(tmp_path)!r}))\n"
        "    except SettingError as error: print(name, error)"
    )
    run: Any = {"cwd": REPOSITORY, "env": offline_environment, "capture_output": True, "text": True, "check": True}
    answers = subprocess.run([sys.executable, "-c", code], **run).stdout.splitlines()
    assert [answer.split()[0] for answer in answers] == list(OF_THE_HUB)
    for answer in answers:
        assert f"found neither in {tmp_path}" in answer
        assert "nor on the hub as" in answer
        assert "and set data-root, or allow access to the hub" in answer


@pytest.mark.parametrize("name", ["office-caltech10", "shakespeare"])
def test_local_copy_has_what_the_registry_says(name: str, local_copies: Path) -> None:
    node = load_node(DataSettings(dataset=name, data_root=str(local_copies)), 1, 4)
    assert node.input_shape == DATASETS[name].shape
    assert node.num_classes == DATASETS[name].classes
    assert node.vocabulary == DATASETS[name].vocabulary
    assert (node.domain is not None) == DATASETS[name].has_domains
