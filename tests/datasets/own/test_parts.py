"""Folders, splits and files that are named train, val and test are the parts of own data."""

import logging
from pathlib import Path
from typing import Any

import pytest

from fedapp.datasets import Pool, load_node, load_pool
from tests.datasets.own.examples import GROUPS, message, settings, write_csv, write_images

LAYOUTS = [  # which parts there are, and whether each holds tests
    ({"train": False, "test": True}, ""),
    ({"Training": False, "TESTING": True}, ""),
    ({"train": False, "val": True}, "val is the test part, since no other is there"),
    ({"train": False, "Validation": True}, "Validation is the test part, since no other is there"),
    ({"train": False, "valid": False, "test": True}, "valid joins the training part"),
]
SIZES = (4, 3, 2)


def write_part(kind: str, root: Path, part: str, size: int) -> None:
    """Write rows, or images of one class, that bear the size of their part."""
    rows = [(size, "cat"), *[(size, "dog")] * (size - 1)]
    if kind == "csv":
        write_csv(root / f"{part}-00.csv", rows, ("age", "label"))
    if kind == "csv in folders":
        (root / part).mkdir()
        write_csv(root / part / "a.csv", rows, ("age", "label"))
    if kind == "parquet":
        import pandas as pd

        pd.DataFrame(rows, columns=["age", "label"]).to_parquet(root / f"{part}_of_mine.parquet")


def write_parts(kind: str, root: Path, parts: list[str]) -> None:
    sizes = dict(zip(parts, SIZES, strict=False))
    if kind == "hf-disk":
        import datasets

        made = {part: {"age": [size] * size, "label": ["cat"] * size} for part, size in sizes.items()}
        datasets.DatasetDict({part: datasets.Dataset.from_dict(made[part]) for part in made}).save_to_disk(str(root))
    for part, size in sizes.items():
        write_part(kind, root, part, size)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("fedapp")]


def assert_line(caplog: pytest.LogCaptureFixture, line: str) -> None:
    """Check that the log holds this line alone, or none."""
    lines = told(caplog)
    assert len(lines) == bool(line)
    assert all(line.split(" ", 1)[1] in said and line.split(" ", 1)[0] in said for said in lines)


@pytest.mark.parametrize("kind", ["csv", "csv in folders", "parquet", "hf-disk"])
@pytest.mark.parametrize(("parts", "line"), LAYOUTS)
def test_parts_of_tables(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, parts: dict[str, bool], line: str
) -> None:
    write_parts(kind, tmp_path, list(parts))
    with caplog.at_level(logging.WARNING):
        pool = load_pool(settings(kind.split()[0], tmp_path))
    assert pool.native_split_only
    assert pool.is_test is not None
    sizes = dict(zip(parts, SIZES, strict=False))
    for part, size in sizes.items():
        assert pool.is_test[pool.inputs[:, 0] == size].tolist() == [parts[part]] * size
    assert pool.is_test.tolist() == sorted(pool.is_test.tolist())  # training samples first
    assert_line(caplog, line)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("parts", "line"), LAYOUTS)
def test_parts_of_a_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, deep: bool, parts: dict[str, bool], line: str
) -> None:
    for part in parts:
        write_images(tmp_path / part, GROUPS if deep else {".": ["cat", "dog"]})
    with caplog.at_level(logging.WARNING):
        pool = load_pool(settings("folder", tmp_path, image_size=8))
    each = 20 if deep else 8
    assert pool.class_names == ("cat", "dog")
    assert pool.domain_names == (("amy", "ben", "cem") if deep else ())
    assert pool.is_test is not None
    assert pool.is_test.tolist() == [False] * (each * (len(parts) - 1)) + [True] * each
    assert_line(caplog, line)


def test_a_test_part_is_what_clients_are_tested_on(tmp_path: Path) -> None:
    write_images(tmp_path / "train", GROUPS)
    write_images(tmp_path / "val", {"amy": ["cat"], "ben": ["dog"], "cem": ["cat"]})
    chosen = settings("folder", tmp_path, client_column="folder", image_size=8)
    assert [(len(load_node(chosen, k, 3).train), len(load_node(chosen, k, 3).test)) for k in range(3)] == [
        (8, 4),
        (8, 4),
        (4, 4),
    ]


@pytest.mark.parametrize(
    "tops", [("train", "bus"), ("val", "test"), ("train_site", "test_site"), ("train", "training")]
)
def test_folders_of_other_names_or_without_a_training_and_another_part_are_domains(
    tmp_path: Path, tops: tuple[str, str]
) -> None:
    write_images(tmp_path, {top: ["cat", "dog"] for top in tops})
    pool = load_pool(settings("folder", tmp_path, image_size=8))
    assert pool.domain_names == tuple(sorted(tops))
    assert pool.is_test is None


@pytest.mark.parametrize("names", [("testimonials", "value"), ("trainers", "paris"), ("test", "test-2"), ("val",)])
def test_files_of_other_names_or_of_tests_alone_are_no_parts(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        write_csv(tmp_path / f"{name}.csv", [(1, "cat"), (2, "dog")], ("age", "label"))
    pool: Pool = load_pool(settings("csv", tmp_path))
    assert pool.is_test is None


@pytest.mark.parametrize(
    ("groups", "parts", "held", "within"),
    [
        ({"amy": ["cat"], ".": ["dog"]}, [""], ["amy/cat/0.png", "dog/0.png"], ""),
        ({"amy": ["cat"], ".": ["dog"]}, ["train", "val"], ["amy/cat/0.png", "dog/0.png"], " within each of"),
        ({"amy/x/y": ["cat"]}, [""], ["amy/x/y/cat/0.png"], ""),
    ],
)
def test_images_of_other_depths_are_named(
    tmp_path: Path, groups: dict[str, Any], parts: list[str], held: list[str], within: str
) -> None:
    for part in parts:
        write_images(tmp_path / part, groups)
    said = message(settings("folder", tmp_path))
    assert f"lay images out{within}" in said
    for path in held:
        assert path.replace("/0.png", "/") in said


def test_images_right_within_parts_are_no_classes(tmp_path: Path) -> None:
    write_images(tmp_path, {".": ["train", "test"]})
    assert "images such as t" in message(settings("folder", tmp_path))
    assert "lay images out within each of train, test as <class>/*.png" in message(settings("folder", tmp_path))
