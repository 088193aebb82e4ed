"""Which files are read, what becomes of those that cannot be, and how a CSV file is split into rows."""

import csv
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from fedapp.datasets import forget, load_pool
from fedapp.datasets.own import csv_files
from tests.datasets.own.examples import GROUPS, message, settings, write_csv, write_images

NAMES = ("age", "label")
ROWS = [(1, "cat"), (2, "dog")]


def write_table(kind: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "csv":
        return write_csv(path, ROWS, NAMES)
    pd.DataFrame(ROWS, columns=NAMES).to_parquet(path)
    return path


# ---- which files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_hidden_tables_are_left_out(tmp_path: Path, kind: str) -> None:
    root = tmp_path / ".mine"  # only what lies below data-root counts
    for name in ("a", ".ipynb_checkpoints/a-checkpoint", "in/.trash/deep/b", "in/._a"):
        write_table(kind, root / f"{name}.{kind}")
    assert len(load_pool(settings(kind, root))) == 2


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_suffixes_are_read_in_any_case(tmp_path: Path, kind: str) -> None:
    for suffix in (kind, kind.upper(), kind.title()):
        write_table(kind, tmp_path / suffix / f"a.{suffix}")
    (tmp_path / f"folder.{kind}").mkdir()
    assert len(load_pool(settings(kind, tmp_path))) == 6


def test_an_image_link_that_leads_nowhere_is_a_bad_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_images(tmp_path, GROUPS)
    link = tmp_path / "amy" / "cat" / "gone.png"
    link.symlink_to(tmp_path / "nowhere.png")
    loop = tmp_path / "amy" / "dog" / "loop.png"
    loop.symlink_to(loop)
    assert f"{link}: the image cannot be read" in message(settings("folder", tmp_path))
    with caplog.at_level(logging.WARNING):
        assert len(load_pool(settings("folder", tmp_path, bad_rows="skip"))) == 20
    assert f"2 bad rows or files were skipped: {link}: the image cannot be read" in caplog.text


# ---- files that cannot be read -------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def latin(path: Path) -> None:
    path.write_bytes("age,label\n3,Kätzchen\n".encode("latin-1"))


def lost(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


BROKEN = [("parquet", cut), ("parquet", emptied), ("parquet", lost), ("csv", emptied), ("csv", latin), ("csv", lost)]


@pytest.mark.parametrize(("kind", "spoil"), BROKEN)
def test_a_table_that_cannot_be_read_is_named_and_stops_or_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, spoil: Callable[[Path], None]
) -> None:
    for name in ("a", "b", "c"):
        write_table(kind, tmp_path / f"{name}.{kind}")
    broken = tmp_path / f"a.{kind}"
    spoil(broken)
    said = message(settings(kind, tmp_path))
    assert said.startswith(f"{broken}: it cannot be read (")
    assert said.endswith("; mend it, or set bad-rows = skip")
    with caplog.at_level(logging.WARNING):
        pool = load_pool(settings(kind, tmp_path, bad_rows="skip"))
    assert pool.inputs.tolist() == [[1], [2]] * 2
    assert f"{kind}: 1 bad rows or files were skipped: {broken}: it cannot be read (" in caplog.text


@pytest.mark.parametrize(("kind", "spoil"), BROKEN)
def test_tables_none_of_which_can_be_read_are_an_error(
    tmp_path: Path, kind: str, spoil: Callable[[Path], None]
) -> None:
    paths = [write_table(kind, tmp_path / f"{name}.{kind}") for name in "ab"]
    for path in paths:
        spoil(path)
    said = message(settings(kind, tmp_path, bad_rows="skip"))
    assert said.startswith(f"no file to train on can be read: {paths[0]}: it cannot be read (")


def test_test_tables_do_not_take_the_place_of_training_tables_that_cannot_be_read(tmp_path: Path) -> None:
    emptied(write_table("csv", tmp_path / "train.csv"))
    write_table("csv", tmp_path / "test.csv")
    assert "no file to train on can be read" in message(settings("csv", tmp_path, bad_rows="skip"))


def test_no_message_holds_an_address(tmp_path: Path) -> None:
    cells = [{"bytes": b"no image", "path": None}]
    pd.DataFrame({"image": cells, "label": ["cat"]}).to_parquet(tmp_path / "a.parquet")
    said = message(settings("parquet", tmp_path))
    assert "cannot identify an image in 8 bytes" in said
    assert " at 0x" not in said


# ---- one CSV file --------------------------------------------------------------------------------


def test_columns_of_other_files_may_come_in_another_order(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [(1, "red", "cat")], ("age", "colour", "label"))
    write_csv(tmp_path / "b.csv", [("dog", 2, "red")], ("label", "age", "colour"))
    pool = load_pool(settings("csv", tmp_path))
    assert pool.inputs.tolist() == [[1, 1], [2, 1]]
    assert [pool.class_names[label] for label in pool.labels] == ["cat", "dog"]
    write_csv(tmp_path / "c.csv", [("dog", 2)], ("label", "age"))
    assert "has the columns label, age" in message(settings("csv", tmp_path, bad_rows="skip"))


UNCLOSED = [
    ["3,fox", '4,"fox', "5,fox", "6,fox"],  # up to the end of the file
    ["3,fox", '4,"fox', "5,fox", '6,"fox"'],  # up to a quote that opens
]


@pytest.mark.parametrize("lines", UNCLOSED)
def test_an_unclosed_quote_is_named_by_its_line_and_costs_that_line_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lines: list[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["age,label", '1,"a\ncat"', "", *lines, ""]))
    assert f"{path}, line 6: its fields cannot be told apart" in message(settings("csv", tmp_path))
    with caplog.at_level(logging.WARNING):
        pool = load_pool(settings("csv", tmp_path, bad_rows="skip"))
    assert pool.inputs.tolist() == [[1], [3], [5], [6]]
    assert pool.class_names == ("a\ncat", "fox")
    assert f"1 bad rows or files were skipped: {path}, line 6: its fields" in caplog.text


def test_a_row_of_too_many_fields_over_several_lines_is_named_by_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('age,label\n1,cat\n2,"fox\n3,fox\n4",fox\n5,dog\n')
    assert f"{path}, lines 3 to 5: it has 3 fields, the header 2" in message(settings("csv", tmp_path))
    assert load_pool(settings("csv", tmp_path, bad_rows="skip")).inputs.tolist() == [[1], [5]]


def test_an_unclosed_quote_in_the_header_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('age,"label\n1,cat\n')
    assert "line 1: its fields cannot be told apart" in message(settings("csv", tmp_path))


def test_quotes_that_are_closed_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('age,label\r\n1,"he said ""x,\r\ny"""\r\n2,5"\r\n')
    assert csv_files.read(tmp_path / "a.csv").rows == [(2, ["1", 'he said "x,\r\ny"']), (4, ["2", '5"'])]


def test_delimiters_within_quotes_of_the_header_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"weight, in ""kg"", dry";label\n1,5;cat\n')
    read = csv_files.read(tmp_path / "a.csv")
    assert (read.delimiter, read.header) == (";", ['weight, in "kg", dry', "label"])


def test_many_rows_without_a_closing_quote_are_read_in_one_go(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,label\n" + '1,"cat\n' * 20_001)
    read = csv_files.read(tmp_path / "a.csv")
    assert (len(read.rows), len(read.broken)) == (0, 20_001)


def test_a_long_cell_is_read_and_the_limit_of_others_stands_again(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    write_csv(tmp_path / "a.csv", [("word " * 40_000, "cat"), ("a dog", "dog")], ("text", "label"))
    assert len(load_pool(settings("csv", tmp_path, text_length=3))) == 2
    assert csv.field_size_limit() == before


# ---- links -----------------------------------------------------------------------------------------


def test_linked_folders_are_read_and_one_that_leads_back_is_not_followed(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "mine", tmp_path / "elsewhere"
    write_images(elsewhere, GROUPS)
    root.mkdir()
    for name in GROUPS:
        (root / name).symlink_to(elsewhere / name)
    assert len(load_pool(settings("folder", root))) == len(load_pool(settings("folder", elsewhere)))
    (elsewhere / next(iter(GROUPS)) / "back").symlink_to(elsewhere)
    forget()
    assert len(load_pool(settings("folder", root))) == len(load_pool(settings("folder", elsewhere)))


def test_a_link_that_now_leads_to_another_image_of_the_same_size_and_time_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "mine" / "cat").mkdir(parents=True)
    for name, grey in (("dark", 10), ("light", 200)):
        Image.new("RGB", (4, 4), (grey, grey, grey)).save(tmp_path / f"{name}.bmp")
        os.utime(tmp_path / f"{name}.bmp", (1, 1))
    link = tmp_path / "mine" / "cat" / "a.bmp"
    seen = []
    for name in ("dark", "light"):
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / f"{name}.bmp")
        forget()
        seen.append(int(load_pool(settings("folder", tmp_path / "mine")).inputs.max()))
    assert seen == [10, 200]
