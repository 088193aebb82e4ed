"""Every kind of own data: three clients, of which one lacks a class, and what is bad in them."""

import json
import logging
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedapp.datasets as data
from fedapp.datasets import NodeData, Pool, load_node, load_pool
from tests.datasets.own.examples import (
    GROUPS,
    ROWS,
    function,
    message,
    nodes,
    picture,
    settings,
    write_csv,
    write_images,
)


def assert_third_lacks_dogs(made: list[NodeData]) -> None:
    assert {node.class_names for node in made} == {("cat", "dog")}
    assert {node.num_classes for node in made} == {2}
    assert [(node.label_counts > 0).tolist() for node in made] == [[True, True], [True, True], [True, False]]
    assert len({node.input_shape for node in made}) == 1
    assert all(
        node.train.x.dtype in (torch.float32, torch.int64) and node.train.y.dtype == torch.int64 for node in made
    )
    assert all(torch.isfinite(node.train.x).all() for node in made)


# ---- folder --------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["", "folder"])
def test_folder_of_images_by_domain_or_by_client(tmp_path: Path, column: str) -> None:
    write_images(tmp_path, GROUPS)
    chosen = settings("folder", tmp_path, client_column=column, image_size=8)
    made = nodes(chosen)
    assert_third_lacks_dogs(made)
    assert made[0].input_shape == (3, 8, 8)
    assert [node.domain for node in made] == ([None] * 3 if column else ["amy", "ben", "cem"])
    pool = load_pool(chosen)
    assert (pool.client_names if column else pool.domain_names) == ("amy", "ben", "cem")
    assert pool.inputs[0].tolist() == np.full((8, 8, 3), [0, 0, 255]).tolist()


def test_folder_of_classes_alone_has_no_domains(tmp_path: Path) -> None:
    write_images(tmp_path, {".": ["cat", "dog"]})
    pool = load_pool(settings("folder", tmp_path))
    assert pool.domains is None
    assert pool.clients is None
    assert pool.labels.tolist() == [0] * 4 + [1] * 4


def test_folders_train_and_test_are_the_parts(tmp_path: Path) -> None:
    write_images(tmp_path / "train", GROUPS)
    write_images(tmp_path / "test", GROUPS)
    made = nodes(settings("folder", tmp_path, client_column="folder"))
    assert_third_lacks_dogs(made)
    assert [(len(node.train), len(node.test)) for node in made] == [(8, 8), (8, 8), (4, 4)]


def test_hidden_files_and_folders_are_no_classes(tmp_path: Path) -> None:
    write_images(tmp_path, {".": ["cat", "dog", ".ipynb_checkpoints"]})
    (tmp_path / "cat" / "._0.png").write_bytes(b"no image")
    pool = load_pool(settings("folder", tmp_path))
    assert (len(pool), pool.class_names) == (8, ("cat", "dog"))


def test_folder_of_mixed_depth_is_an_error(tmp_path: Path) -> None:
    write_images(tmp_path, {"amy": ["cat"], ".": ["dog"]})
    assert "lay images out as <class>/*.png, or all as <domain or client>/<class>/*.png" in message(
        settings("folder", tmp_path)
    )


def test_corrupt_image_is_named_and_stops_or_is_skipped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_images(tmp_path, GROUPS)
    broken = tmp_path / "ben" / "cat" / "2.png"
    broken.write_bytes(picture(1)[:40])
    for _ in range(2):  # the second time the images come from the cache
        with caplog.at_level(logging.WARNING):
            pool = load_pool(settings("folder", tmp_path, bad_rows="skip"))
        assert len(pool) == 19
        assert f"1 bad rows or files were skipped: {broken}: the image cannot be read" in caplog.text
        caplog.clear()
        assert f"{broken}: the image cannot be read" in message(settings("folder", tmp_path))
        assert "set bad-rows = skip" in message(settings("folder", tmp_path))
        data.forget()


# ---- csv -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_by_client_column(tmp_path: Path, delimiter: str) -> None:
    write_csv(tmp_path / "pets.csv", ROWS, delimiter=delimiter)
    chosen = settings("csv", tmp_path / "pets.csv", client_column="owner", domain_column="place")
    made = nodes(chosen)
    assert_third_lacks_dogs(made)
    assert made[0].input_shape == (3,)  # age, colour = blue, colour = red
    assert [node.domain for node in made] == ["town", "land", "land"]
    assert load_pool(chosen).categories == {"colour": ("blue", "red")}


def test_scaling_is_fitted_on_each_clients_training_rows_alone(tmp_path: Path) -> None:
    write_csv(tmp_path / "pets.csv", ROWS)
    raw = nodes(settings("csv", tmp_path, client_column="owner", domain_column="place", scaling="none"))
    made = nodes(settings("csv", tmp_path, client_column="owner", domain_column="place"))
    for before, after in zip(raw, made, strict=True):
        ages = before.train.x[:, 0].double()
        mean, deviation = ages.mean(), ages.std(correction=0)
        want = (torch.cat([before.train.x[:, 0], before.test.x[:, 0]]).double() - mean) / deviation
        got = torch.cat([after.train.x[:, 0], after.test.x[:, 0]])
        torch.testing.assert_close(got, want.float(), atol=1e-5, rtol=0)
        assert torch.equal(after.train.x[:, 1:], before.train.x[:, 1:])


def test_global_scaling_is_that_of_all_training_rows(tmp_path: Path) -> None:
    write_csv(tmp_path / "pets.csv", ROWS)
    raw = nodes(settings("csv", tmp_path, client_column="owner", domain_column="place", scaling="none"))
    made = nodes(settings("csv", tmp_path, client_column="owner", domain_column="place", scaling="global"))
    ages = torch.cat([node.train.x[:, 0] for node in raw]).double()
    for before, after in zip(raw, made, strict=True):
        want = (before.test.x[:, 0].double() - ages.mean()) / ages.std(correction=0)
        torch.testing.assert_close(after.test.x[:, 0], want.float(), atol=1e-5, rtol=0)


def test_missing_numbers_become_the_mean_and_missing_categories_nothing(tmp_path: Path) -> None:
    rows = [(1, "red", "cat"), ("NA", "blue", "dog"), (3, "", "cat"), (5, "red", "dog")]
    write_csv(tmp_path / "pets.csv", rows, ("age", "colour", "label"))
    chosen = settings("csv", tmp_path, {"partition": "iid", "train_fraction": 1.0})
    node = load_node(chosen, 0, 1)
    deviation = np.std([1, 3, 5])
    want = {(-2 / deviation, 0, 1), (0, 1, 0), (0, 0, 0), (2 / deviation, 0, 1)}
    got = sorted(node.train.x.tolist())
    np.testing.assert_allclose(got, sorted(map(list, want)), atol=1e-5)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((4, "red", "a"), "it has 3 fields, the header 5"),
        (("four", "red", "a", "town", "cat"), "'four' in column 'age' is no number"),
        (("inf", "red", "a", "town", "cat"), "'inf' in column 'age' is no number"),
        ((4, "red", "a", "town", ""), "it has no label"),
    ],
)
def test_bad_row_of_a_csv_is_named_and_stops_or_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, row: tuple[Any, ...], why: str
) -> None:
    path = write_csv(tmp_path / "pets.csv", [*ROWS[:3], row, *ROWS[3:]])
    assert f"{path}, line 5: {why}; mend it, or set bad-rows = skip" in message(settings("csv", tmp_path))
    with caplog.at_level(logging.WARNING):
        pool = load_pool(settings("csv", tmp_path, bad_rows="skip"))
    assert len(pool) == len(ROWS)
    assert f"csv: 1 bad rows or files were skipped: {path}, line 5: {why}" in caplog.text


def test_given_names_lay_out_labels_and_categories_and_others_are_bad(tmp_path: Path) -> None:
    write_csv(tmp_path / "pets.csv", ROWS)
    given = {"label_names": "fox,dog,cat", "categories": json.dumps({"colour": ["red", "green", "blue"]})}
    pool = load_pool(settings("csv", tmp_path, columns="colour,age", client_column="owner", **given))
    assert pool.class_names == ("fox", "dog", "cat")
    assert pool.labels[:2].tolist() == [2, 1]
    assert pool.inputs[:2].tolist() == [[1, 0, 0, 1], [0, 0, 1, 3]]
    assert "label 'cat' is not among dog, fox" in message(settings("csv", tmp_path, label_names="dog,fox"))
    assert "'blue' in column 'colour' is not among the categories red" in message(
        settings("csv", tmp_path, categories='{"colour": ["red"]}')
    )


def test_files_that_begin_with_test_are_the_test_part(tmp_path: Path) -> None:
    write_csv(tmp_path / "test.csv", ROWS[:3])
    write_csv(tmp_path / "more.csv", ROWS)
    pool = load_pool(settings("csv", tmp_path))
    assert pool.is_test is not None
    assert pool.is_test.tolist() == [False] * 24 + [True] * 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"label_column": "species"}, "label-column = 'species' is no column of"),
        ({"columns": "age,size"}, "columns = 'size' is no column of"),
        ({"categories": '{"size": []}'}, "categories: 'size' is no input column; the inputs are age, colour"),
        ({"categories": "{"}, "cannot be read"),
        ({"label_names": "cat,cat"}, "label-names names 'cat' twice"),
    ],
)
def test_setting_that_does_not_fit_the_table_is_an_error(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    write_csv(tmp_path / "pets.csv", ROWS)
    assert why in message(settings("csv", tmp_path, client_column="owner", **({"domain_column": "place"} | changes)))


def test_texts_of_a_csv_become_token_ids_over_agreed_or_given_words(tmp_path: Path) -> None:
    rows = [("the cat sat", "a", "cat"), ("the dog ran", "a", "dog"), ("a cat", "b", "cat"), ("dog!", "b", "dog"),
            ("the cat", "c", "cat"), ("cat cat", "c", "cat")]  # fmt: skip
    write_csv(tmp_path / "texts.csv", rows * 2, ("text", "owner", "label"))
    chosen = settings("csv", tmp_path, client_column="owner", text_length=3)
    made = nodes(chosen)
    assert_third_lacks_dogs(made)
    pool = load_pool(chosen)
    assert pool.categories == {"text": ("cat", "the", "dog", "a", "ran", "sat")}  # the most frequent first
    assert pool.inputs[:3].tolist() == [[3, 2, 7], [3, 4, 6], [5, 2, 0]]
    assert {node.vocabulary for node in made} == {8}
    (tmp_path / "words.txt").write_text("dog\ncat\n")
    pool = load_pool(
        settings("csv", tmp_path, client_column="owner", vocabulary=str(tmp_path / "words.txt"), text_length=3)
    )
    assert pool.inputs[:3].tolist() == [[1, 3, 1], [1, 2, 1], [1, 3, 0]]


def test_one_long_text_does_not_make_all_cells_long(tmp_path: Path) -> None:
    write_csv(tmp_path / "texts.csv", [("word " * 20_000, "cat"), *[("a dog", "dog")] * 500], ("text", "label"))
    tracemalloc.start()
    pool = load_pool(settings("csv", tmp_path))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(pool) == 501
    assert most < 50e6  # a fixed-width array of the cells would take 400 MB


# ---- parquet and data sets on disk ---------------------------------------------------------------


def hub_table(images: bool) -> Any:
    import datasets

    ages, colours, owners, places, labels = map(list, zip(*ROWS, strict=True))
    columns: dict[str, Any] = {"owner": owners, "place": places, "label": [["cat", "dog"].index(one) for one in labels]}
    columns |= {"image": [{"bytes": picture(age), "path": None} for age in ages]} if images else {"age": ages}
    made = datasets.Dataset.from_dict(columns).cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))
    return made.cast_column("image", datasets.Image()) if images else made.add_column("colour", colours)


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize("kind", ["parquet", "hf-disk"])
def test_parquet_and_hf_disk_by_client_column(tmp_path: Path, kind: str, images: bool) -> None:
    table = hub_table(images)
    if kind == "parquet":
        table.to_parquet(str(tmp_path / "pets.parquet"))
    else:
        table.save_to_disk(str(tmp_path))
    chosen = settings(kind, tmp_path, client_column="owner", domain_column="place", image_size=8)
    made = nodes(chosen)
    assert_third_lacks_dogs(made)
    assert made[0].input_shape == ((3, 8, 8) if images else (3,))
    if images:
        assert load_pool(chosen).inputs[:, 0, 0, 0].tolist() == [row[0] for row in ROWS]


def test_hf_disk_of_parts_keeps_its_test_part(tmp_path: Path) -> None:
    import datasets

    table = hub_table(images=False)
    datasets.DatasetDict({"test": table.select(range(4)), "train": table}).save_to_disk(str(tmp_path))
    pool = load_pool(settings("hf-disk", tmp_path))
    assert pool.is_test is not None
    assert pool.is_test.tolist() == [False] * 24 + [True] * 4


def test_bad_rows_of_parquet_are_named(tmp_path: Path) -> None:
    import pandas as pd

    vectors = [[1.0, 2.0], [3.0, None], [5.0], [7.0, -8.0]]
    path = tmp_path / "vectors.parquet"
    pd.DataFrame({"x": vectors, "label": [0, 1, 0, 1]}).to_parquet(path)
    assert f"{path}, row 1: it holds no finite numbers of shape (2,)" in message(settings("parquet", tmp_path))
    pool = load_pool(settings("parquet", tmp_path, bad_rows="skip"))
    assert pool.inputs.tolist() == [[1, 2], [7, -8]]
    pd.DataFrame({"x": [[None], [None]], "label": [0, 1]}).to_parquet(path)
    assert "holds no list of finite numbers" in message(settings("parquet", tmp_path))
    pd.DataFrame({"age": [1.0, float("inf")], "label": [0, 1]}).to_parquet(path)
    assert f"{path}, row 1: 'inf' in column 'age' is no number" in message(settings("parquet", tmp_path))
    cells = [{"bytes": picture(1), "path": None}, {"bytes": b"no image", "path": None}, None]
    pd.DataFrame({"image": cells, "label": ["cat", "dog", "dog"]}).to_parquet(path)
    assert f"{path}, row 1: the image cannot be read" in message(settings("parquet", tmp_path))
    assert len(load_pool(settings("parquet", tmp_path, bad_rows="skip", label_names="cat,dog"))) == 1


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    assert f"{tmp_path / 'a.parquet'}: it cannot be read" in message(settings("parquet", tmp_path))
    (tmp_path / "a.csv").write_bytes(b"age,label\n\xff\xfe,cat\n")
    assert f"{tmp_path / 'a.csv'}: it cannot be read" in message(settings("csv", tmp_path))
    assert "is no data set on disk" in message(settings("hf-disk", tmp_path))


# ---- callable ------------------------------------------------------------------------------------


def test_callable_by_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "return {'inputs': torch.arange(24.0).reshape(12, 2), 'labels': ['cat', 'dog'] * 4 + ['cat'] * 4,"
        " 'clients': np.repeat([0, 1, 2], 4)}"
    )
    made = nodes(function(tmp_path, monkeypatch, body))
    assert_third_lacks_dogs(made)
    held = torch.cat([part.x for node in made for part in (node.train, node.test)])
    assert sorted(held.flatten().tolist()) == list(range(24))


def test_callable_of_images_and_of_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = load_pool(function(tmp_path, monkeypatch, "return np.zeros((4, 5, 5, 1), np.uint8), [10, 9, 9, 10]"))
    assert pool.class_names == ("9", "10")
    assert pool.labels.tolist() == [1, 0, 0, 1]
    body = "return {'inputs': np.ones((2, 5), int), 'labels': [0, 1], 'vocabulary': 7}"
    pool = load_pool(function(tmp_path, monkeypatch, body))
    assert (pool.inputs.dtype, pool.vocabulary) == (np.int64, 7)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return 3", "returned int; it must return (inputs, labels)"),
        ("return np.zeros((2, 3)), [1]", "returned labels of shape (1,) for 2 inputs; return one each"),
        ("return np.zeros((2, 3)), None", "returned labels of shape () for 2 inputs; return one each"),
        ("return [[1.0, 2.0], [1.0]], [0, 1]", "returned inputs that are no array: setting an array element"),
        ("return torch.zeros(2, 3, requires_grad=True), [0, 1]", "returned inputs that are no array: Can't call numpy"),
        ("return np.array(['a']), [1]", "returned inputs (1,) of <U1; return images as"),
        ("return np.full((1, 2), np.nan), [1]", "row 0: it holds values that are not finite"),
        ("return np.ones((1, 2), int), [1]", "returned token ids 1 to 1 and vocabulary None"),
    ],
)
def test_callable_that_returns_something_else_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    assert why in message(function(tmp_path, monkeypatch, body))


@pytest.mark.parametrize(("name", "why"), [("load", "must be module:function"), ("nowhere:load", "cannot be imported")])
def test_callable_that_is_not_there_is_an_error(name: str, why: str) -> None:
    assert why in message(settings("callable", "", data_callable=name))


def test_own_data_without_a_place_is_an_error() -> None:
    assert "say where it lies with data-root" in message(settings("csv", ""))
    assert "is not there" in message(settings("csv", "/nowhere/at/all"))


def test_domains_of_own_data_are_a_partition(tmp_path: Path) -> None:
    write_csv(tmp_path / "pets.csv", ROWS)
    pool: Pool = load_pool(settings("csv", tmp_path, domain_column="place", columns="age"))
    assert pool.domain_names == ("land", "town")
    made = nodes(settings("csv", tmp_path, domain_column="place", columns="age"), 4)
    assert [node.domain for node in made] == ["land", "town", "land", "town"]
