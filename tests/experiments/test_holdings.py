"""``fedapp partition``: tables and picture of who holds what."""

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.config import DataSettings, OwnDataSettings
from fedapp.experiments import holdings


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [("a", "town", "cat")] * 4 + [("b", "land", "dog")] * 6 + [("c", "land", "cat"), ("c", "land", "dog")] * 2
    with (tmp_path / "pets.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("age", "who", "place", "label"), *((n, *row) for n, row in enumerate(rows))])
    return tmp_path


def settings(table: Path) -> DataSettings:
    own = OwnDataSettings(client_column="who", domain_column="place")
    return DataSettings(dataset="csv", data_root=str(table), own=own)


def test_counts_are_those_of_the_data(table: Path) -> None:
    held = holdings.holdings(settings(table), 3)
    assert held.class_names == ("cat", "dog")
    assert held.classes.tolist() == [[4, 0], [0, 6], [2, 2]]
    assert held.domain_names == ("land", "town")
    assert held.domains.tolist() == [[0, 4], [6, 0], [4, 0]]
    assert held.parts.tolist() == [[3, 0, 1], [4, 0, 2], [3, 0, 1]]


def test_tables_show_every_client_and_leave_zeros_out(table: Path) -> None:
    classes, domains = holdings.tables(holdings.holdings(settings(table), 3))
    assert classes.header == ("client", "train", "validation", "test", "cat", "dog")
    assert classes.body == (
        ("0 (a)", "3", "0", "1", "4", ""),
        ("1 (b)", "4", "0", "2", "", "6"),
        ("2 (c)", "3", "0", "1", "2", "2"),
    )
    assert classes.notes == ("a client holds 1 to 2 of 2 classes",)
    assert [row[4:] for row in domains.body] == [("", "4"), ("6", ""), ("4", "")]


def test_many_classes_are_summed_up() -> None:
    names = tuple(f"class{number}" for number in range(40))
    classes = np.zeros((1, 40), dtype=np.int64)
    classes[0, [3, 7, 9, 30]] = [5, 1, 8, 2]
    held = holdings.Holdings(
        "many", np.array([[16, 0, 0]]), classes, names, np.zeros((1, 0), dtype=np.int64), (), ("0",)
    )
    (shown,) = holdings.tables(held)
    assert shown.body == (("0", "16", "0", "0", "4", "class9 8, class3 5, class30 2"),)


def test_command_prints_and_draws(table: Path) -> None:
    words = ["partition", "--clients", "3", "--set", "dataset=csv", "--set", f"data-root={table}"]
    words += ["--set", "client-column=who", "--set", "domain-column=place"]
    done = CliRunner().invoke(app, [*words, "--plot", str(table / "who.svg")])
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert "clients by class" in words
    assert "clients by domain" in words
    assert f"Written: {table / 'who.svg'}" in done.output
    assert "<svg" in (table / "who.svg").read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--plot", "who.txt"], "the name must end in .svg"),
        (["--set", "partition=flwr-exponential", "--clients", "50"], "use at most"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(words: list[str], why: str) -> None:
    done = CliRunner().invoke(app, ["partition", *words])
    assert done.exit_code == 2
    assert why in done.output
