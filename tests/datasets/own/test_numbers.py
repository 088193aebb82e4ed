"""Columns of numbers: all missing, with decimal commas, converted once."""

import logging
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedapp.config import OwnDataSettings
from fedapp.datasets import load_node, load_pool
from fedapp.datasets.own.columns import encode
from fedapp.datasets.own.reading import BadRows
from tests.datasets.own.examples import message, settings, write_csv

NAMES = ("age", "dose", "label")
COMMAS = "a comma is the decimal point in the columns"


@pytest.mark.parametrize("scaling", ["client", "global", "none"])
def test_a_column_without_any_cell_is_one_of_missing_numbers(tmp_path: Path, scaling: str) -> None:
    write_csv(tmp_path / "a.csv", [(n, "", "cat") for n in range(8)], NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool = load_pool(settings("csv", tmp_path))
        node = load_node(settings("csv", tmp_path, {"partition": "iid"}, scaling=scaling), 0, 1)
    assert pool.categories == {}
    assert pool.scaled is not None
    assert pool.scaled.tolist() == [True, True]
    assert np.isnan(pool.inputs[:, 1]).all()
    for part in (node.train, node.test):
        assert part.x[:, 1].tolist() == [0] * len(part)
        assert bool(part.x.isfinite().all())


@pytest.mark.parametrize("only", [False, True])
def test_a_column_without_any_cell_holds_categories_if_it_is_named_so(tmp_path: Path, only: bool) -> None:
    write_csv(tmp_path / "a.csv", [(n, "", "cat") for n in range(3)], NAMES)
    columns = "dose" if only else "age,dose"
    pool = load_pool(settings("csv", tmp_path, columns=columns, categories='{"dose": ["1", "2"]}'))
    assert pool.categories == {"dose": ("1", "2")}
    assert pool.inputs[:, -2:].tolist() == [[0, 0]] * 3
    pool = load_pool(settings("csv", tmp_path, columns=columns, categories='{"dose": []}'))
    assert pool.categories == {"dose": ()}
    assert pool.inputs[:, -1].tolist() == [0] * 3


def test_a_text_column_without_any_text_has_bad_rows(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [("", "cat")] * 3, ("text", "label"))
    assert "line 2: column 'text' holds no word" in message(
        settings("csv", tmp_path, categories='{"text": ["a", "the"]}')
    )


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_decimal_commas_are_read_where_no_comma_separates_fields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, delimiter: str
) -> None:
    rows = [("1,5", "-0,25", "cat"), ("2", "1,5e2", "dog"), ("", ",5", "cat"), ("4", "1,234", "dog")]
    write_csv(tmp_path / "a.csv", rows, NAMES, delimiter)
    with caplog.at_level(logging.WARNING):
        pool = load_pool(settings("csv", tmp_path))
    assert pool.categories == {}
    want = [[1.5, -0.25], [2, 150], [np.nan, 0.5], [4, 1.234]]
    np.testing.assert_array_equal(pool.inputs, np.asarray(want, dtype=np.float32))
    assert [record.getMessage() for record in caplog.records] == [f"{COMMAS} age, dose ('1,5' is 1.5)"]


@pytest.mark.parametrize("cells", [["1,234.5", "1,5", "2,5"], ["1.234,5", "1,5", "2,5"], ["1,234,567", "1,5", "2"]])
def test_separators_of_thousands_are_no_decimal_commas(tmp_path: Path, cells: list[str]) -> None:
    rows = [(cell, number, "cat") for number, cell in enumerate(cells)]
    write_csv(tmp_path / "a.csv", rows, NAMES, ";")
    assert load_pool(settings("csv", tmp_path)).categories == {
        "age": tuple(sorted(cells, key=lambda cell: (cell != "2", cell)))
    }


def test_commas_of_categories_and_of_texts_stay(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [("1,5", "a, b", "cat"), ("2,5", "1,5", "dog"), ("1,5", "c", "cat")], NAMES, ";")
    pool = load_pool(settings("csv", tmp_path, categories='{"age": []}'))
    assert pool.categories == {"age": ("1,5", "2,5"), "dose": ("1,5", "a, b", "c")}


def test_quoted_numbers_with_commas_between_commas_stay_as_they_are(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [("1,5", 1, "cat"), ("2,5", 2, "dog")], NAMES)
    assert load_pool(settings("csv", tmp_path)).categories == {"age": ("1,5", "2,5")}


def test_commas_that_may_separate_thousands_are_an_error_unless_semicolons_separate_fields(tmp_path: Path) -> None:
    rows = [("1,234", 1, "cat"), ("567", 2, "dog"), ("12,000", 3, "dog")]
    write_csv(tmp_path / "a.csv", rows, NAMES, "\t")
    said = message(settings("csv", tmp_path))
    assert "column 'age' holds '1,234', which may be 1.234 or 1234; write decimals with a point" in said
    assert len(load_pool(settings("csv", tmp_path, columns="dose"))) == 3
    write_csv(tmp_path / "a.csv", rows, NAMES, ";")
    inputs = load_pool(settings("csv", tmp_path, columns="age", bad_rows="skip")).inputs
    np.testing.assert_array_equal(inputs, np.asarray([[1.234], [567], [12]], dtype=np.float32))


class Counted:
    """A cell that counts how often it is converted."""

    def __init__(self, value: float) -> None:
        self.value, self.conversions = value, 0

    def __float__(self) -> float:
        self.conversions += 1
        return self.value

    def __str__(self) -> str:
        self.conversions += 1
        return str(self.value)


def test_cells_of_numbers_are_converted_once() -> None:
    cells = [Counted(number) for number in (1.5, -2.0, 3.25)]
    columns = {"x": np.asarray(cells, dtype=object), "y": np.asarray([1.0, 2.0, 3.0], dtype=object)}
    encoded = encode(columns, OwnDataSettings(), str, BadRows("stop"))
    assert encoded.values.tolist() == [[1.5, 1], [-2, 2], [3.25, 3]]
    assert [cell.conversions for cell in cells] == [1, 1, 1]
