"""Cells become names: of labels, categories, clients and domains alike."""

import logging
from pathlib import Path
from typing import Any

import pytest

from fedapp.datasets import load_pool
from fedapp.datasets.own.reading import as_text
from tests.datasets.own.examples import ROWS, function, message, settings, write_csv, write_images


@pytest.mark.parametrize(
    ("cell", "name"),
    [("1.0", "1"), ("1.00", "1"), ("-3.0", "-3"), (" 20.0 ", "20"), ("0.0", "0"), ("-0.0", "0"), (-0.0, "0")],
)
def test_whole_numbers_with_a_fraction_of_zeros_are_named_without_it(cell: Any, name: str) -> None:
    assert as_text(cell) == name


@pytest.mark.parametrize("text", ["007", "007.0", "1e3", "1.5", "1.10", "1.0.0", "1.", ".0", "v1.0", "+1.0", "1,0"])
def test_other_texts_are_names_as_they_stand(text: str) -> None:
    assert as_text(text) == text


def test_one_and_one_point_nought_are_one_name_in_every_column(tmp_path: Path) -> None:
    rows = [(5, "1", "1.0", "2", "1"), (6, "1.0", "1", "2.0", "1.0"), (7, "4.0", "3", "2.00", "0")]
    write_csv(tmp_path / "a.csv", rows, ("age", "code", "owner", "place", "label"))
    chosen = settings("csv", tmp_path, client_column="owner", domain_column="place", categories='{"code": []}')
    pool = load_pool(chosen)
    assert pool.class_names == ("0", "1")
    assert pool.client_names == ("1", "3")
    assert pool.domain_names == ("2",)
    assert pool.categories == {"code": ("1", "4")}
    assert pool.inputs.tolist() == [[5, 1, 0], [6, 1, 0], [7, 0, 1]]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_whole_numbers_with_a_decimal_comma_are_one_name_where_no_comma_separates_fields(
    tmp_path: Path, delimiter: str
) -> None:
    rows = [("5,5", "1", "1,0", "2", "1"), ("6,5", "1,0", "1", "2,0", "1,0"), ("7,5", "4,00", "3", "2", "-0,0")]
    write_csv(tmp_path / "a.csv", rows, ("age", "code", "owner", "place", "label"), delimiter)
    write_csv(tmp_path / "b.csv", [(8.5, "4.0", "3.0", 2, "0"), (9.5, 4, "1,0", 2, "1,0")],
              ("age", "code", "owner", "place", "label"))  # fmt: skip
    chosen = settings("csv", tmp_path, client_column="owner", domain_column="place", categories='{"code": []}')
    pool = load_pool(chosen)
    assert pool.class_names == ("0", "1", "1,0")
    assert pool.client_names == ("1", "3", "1,0")
    assert pool.domain_names == ("2",)
    assert pool.categories == {"code": ("1", "4")}
    assert pool.inputs.tolist() == [[5.5, 1, 0], [6.5, 1, 0], [7.5, 0, 1], [8.5, 0, 1], [9.5, 0, 1]]


def test_categories_that_are_found_among_words_are_named_likewise(tmp_path: Path) -> None:
    rows = [("1,0", 1, "a"), ("1", 2, "b"), ("1,5", 1, "a"), *((word, 1, "a") for word in ("fox", "cat", "dog", "emu"))]
    write_csv(tmp_path / "a.csv", rows, ("code", "age", "label"), ";")
    assert load_pool(settings("csv", tmp_path)).categories == {"code": ("1", "1,5", "cat", "dog", "emu", "fox")}


def test_other_names_with_commas_stay_as_they_are(tmp_path: Path) -> None:
    names = ["1,5", "01,0", "1,0,0", "a,0", ",0", "1,"]
    write_csv(tmp_path / "a.csv", [*((1, name) for name in names), (1, "1,000"), (1, "1000")], ("age", "label"), "\t")
    assert set(load_pool(settings("csv", tmp_path)).class_names) == {*names, "1,000", "1000"}
    write_csv(tmp_path / "a.csv", [(1, "1,000"), (1, "1")], ("age", "label"), ";")
    assert load_pool(settings("csv", tmp_path, columns="age")).class_names == ("1",)


def test_given_names_are_those_of_the_cells(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [(5, "1", "1"), (6, "2.0", "2.0")], ("age", "code", "label"))
    given = {"label_names": "2.0,1.0", "categories": '{"code": ["2", "1.0"]}'}
    pool = load_pool(settings("csv", tmp_path, **given))
    assert pool.class_names == ("2", "1")
    assert pool.labels.tolist() == [1, 0]
    assert pool.inputs.tolist() == [[5, 0, 1], [6, 1, 0]]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"label_names": "1,1.0"}, "label-names names both '1' and '1.0', which are one name, '1'; name it once"),
        ({"categories": '{"age": ["1.00", "1"]}'}, "categories of age names both '1.00' and '1', which are one name"),
    ],
)
def test_given_names_that_are_one_are_an_error(tmp_path: Path, given: dict[str, str], why: str) -> None:
    write_csv(tmp_path / "a.csv", [(1, "1"), (2, "1")], ("age", "label"))
    assert why in message(settings("csv", tmp_path, **given))


def test_declared_names_are_those_of_the_cells(tmp_path: Path) -> None:
    import datasets

    made = datasets.Dataset.from_dict({"x": [1.5, 2.5, 3.5], "label": [1, 0, 1]})
    made.cast_column("label", datasets.ClassLabel(names=["1.0", "0"])).save_to_disk(str(tmp_path))
    pool = load_pool(settings("hf-disk", tmp_path))
    assert pool.class_names == ("1", "0")
    assert pool.labels.tolist() == [1, 0, 1]


def test_folders_are_named_as_cells_are(tmp_path: Path) -> None:
    write_images(tmp_path, {"1.0": ["2.0", "3"], "1": ["2"]})
    pool = load_pool(settings("folder", tmp_path, label_names="3.0,2"))
    assert pool.domain_names == ("1",)
    assert pool.class_names == ("3", "2")
    assert pool.labels.tolist() == [1] * 8 + [0] * 4


@pytest.mark.parametrize(
    ("column", "row"), [("client", (4, "red", "", "town", "cat")), ("domain", (4, "red", "a", "NA", "cat"))]
)
def test_a_row_without_client_or_domain_is_bad(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, column: str, row: tuple[Any, ...]
) -> None:
    path = write_csv(tmp_path / "pets.csv", [*ROWS[:3], row, *ROWS[3:]])
    columns = {"client_column": "owner", "domain_column": "place"}
    why = f"{path}, line 5: it names no {column}"
    assert f"{why}; mend it, or set bad-rows = skip" in message(settings("csv", tmp_path, **columns))
    with caplog.at_level(logging.WARNING):
        pool = load_pool(settings("csv", tmp_path, bad_rows="skip", **columns))
    assert (len(pool), pool.client_names, pool.domain_names) == (24, ("a", "b", "c"), ("land", "town"))
    assert why in caplog.text


def test_a_label_of_rows_that_are_nobodys_is_no_class(tmp_path: Path) -> None:
    write_csv(tmp_path / "pets.csv", [*ROWS, (4, "red", "", "town", "fox")])
    pool = load_pool(settings("csv", tmp_path, client_column="owner", columns="age", bad_rows="skip"))
    assert pool.class_names == ("cat", "dog")


def test_a_function_names_the_client_of_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "return {'inputs': np.ones((2, 3)), 'labels': [0, 1], 'clients': ['a', '']}"
    assert "load row 1: it names no client" in message(function(tmp_path, monkeypatch, body))
