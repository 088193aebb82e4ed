"""Columns of numbers: all missing, with decimal commas, converted once."""

import json
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedapp.config import OwnDataSettings
from fedapp.datasets import load_node, load_pool
from fedapp.datasets.own.columns import encode
from fedapp.datasets.own.reading import BadRows
from fedapp.datasets.scaling import apply, fit
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
    np.testing.assert_array_equal(pool.inputs, [[1.5, -0.25], [2, 150], [np.nan, 0.5], [4, 1.234]])
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
    np.testing.assert_array_equal(inputs, [[1.234], [567], [12]])


def test_decimal_commas_are_read_file_by_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_csv(tmp_path / "a.csv", [("1,5", 1, "cat"), ("2,5", 2, "dog")], NAMES, ";")
    write_csv(tmp_path / "b.csv", [("3.5", 3, "cat"), ("4.5", 4, "dog")], NAMES)
    write_csv(tmp_path / "c.csv", [("5.5", 5, "cat"), ("6.5", 6, "dog")], NAMES, ";")
    write_csv(tmp_path / "d.csv", [("7,5", 7, "cat"), ("8,5", 8, "dog")], NAMES, "|")
    with caplog.at_level(logging.WARNING):
        pool = load_pool(settings("csv", tmp_path))
    assert pool.inputs.tolist() == [[number + 0.5, number] for number in range(1, 9)]
    assert [record.getMessage() for record in caplog.records] == [f"{COMMAS} age ('1,5' is 1.5)"]


OFFSETS = {"seconds": 1_700_000_000, "milliseconds": 1_700_000_000_000, "identifiers": 2**52, "negative": -(2**41)}


@pytest.mark.parametrize("scaling", ["client", "global"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_that_differ_by_little_from_a_large_one_keep_their_differences(
    tmp_path: Path, kind: str, scaling: str
) -> None:
    import pandas as pd

    steps = np.random.default_rng(0).permutation(40)
    table = pd.DataFrame({name: offset + steps for name, offset in OFFSETS.items()} | {"step": steps, "label": "cat"})
    table.to_csv(tmp_path / "a.csv", index=False) if kind == "csv" else table.to_parquet(tmp_path / "a.parquet")
    node = load_node(settings(kind, tmp_path, {"partition": "iid"}, scaling=scaling), 0, 1)
    for part in (node.train, node.test):
        assert part.x.dtype == torch.float32
        x = part.x.numpy()
        for column, offset in enumerate(sorted(OFFSETS)):  # the mean is rounded to half the distance of two floats
            rounding = np.spacing(np.float64(abs(OFFSETS[offset]))) / 2 / steps.std()
            np.testing.assert_allclose(x[:, column], x[:, -1], atol=1.2 * rounding + 1e-6)
            np.testing.assert_allclose(np.diff(x[:, column]), np.diff(x[:, -1]), atol=1e-6)


def test_numbers_that_are_not_scaled_are_rounded_to_float32_alone(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [(1_700_000_001, 0.1, "cat"), (1_700_000_002, "", "cat")], NAMES)
    node = load_node(settings("csv", tmp_path, {"partition": "iid", "train_fraction": 1.0}, scaling="none"), 0, 1)
    assert sorted(node.train.x[:, 1].tolist()) == [0, float(np.float32(0.1))]
    assert node.train.x[:, 0].tolist() == [float(np.float32(1_700_000_001))] * 2


@pytest.mark.parametrize("constant", [0.1, 1e9 + 0.1, -1 / 3])
def test_a_constant_column_is_nought_and_not_its_rounding(constant: float) -> None:
    rows = np.full((1001, 1), constant)
    scale = fit(rows, np.ones(1, dtype=np.bool_))
    assert (scale.mean.tolist(), scale.deviation.tolist()) == ([constant], [1])
    assert set(apply(rows, scale).ravel().tolist()) == {0}


def test_what_scaling_makes_larger_than_float32_stays_finite() -> None:
    rows = np.asarray([[0.0], [1e-30], [3e38], [-3e38]])
    scaled = apply(rows, fit(rows[:2], np.ones(1, dtype=np.bool_)))
    largest = np.finfo(np.float32).max
    np.testing.assert_allclose(scaled.ravel(), [-1, 1, largest, -largest], rtol=1e-6)


@pytest.mark.parametrize("cell", ["1e39", "-1e39", "1e400", "9" * 400])
def test_a_number_beyond_float32_is_bad(tmp_path: Path, cell: str) -> None:
    write_csv(tmp_path / "a.csv", [(1, 2, "cat"), (cell, 3, "cat"), (3, 4, "cat")], NAMES)
    assert f"line 3: {cell!r} in column 'age' is no number" in message(settings("csv", tmp_path))


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([f"{1.37 * n:.2f}" for n in range(30)], "holds 30 different numbers in 30 rows"),
        ([f"{1.37 * n:.2f}".replace(".", ",") for n in range(30)], "holds 30 different numbers in 30 rows"),
        ([n % 1001 for n in range(5000)], "holds 1001 different numbers in 5000 rows"),
        ([n % 1000 for n in range(5000)], ""),
        ([n % 21 for n in range(42)], ""),
        (list(range(20)), ""),
        ([f"k{n}" for n in range(2000)], ""),
    ],
)
def test_labels_that_look_like_a_quantity_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, labels: list[object], told: str
) -> None:
    write_csv(tmp_path / "a.csv", [(1, label) for label in labels], ("age", "label"), ";")
    with caplog.at_level(logging.WARNING):
        pool = load_pool(settings("csv", tmp_path))
        assert [told in record.getMessage() for record in caplog.records] == [True] * bool(told)
        caplog.clear()
        load_pool(settings("csv", tmp_path, label_names=json.dumps(pool.class_names)))
    assert not caplog.records  # whoever names the classes knows them


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
