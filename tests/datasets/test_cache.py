import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedapp.datasets import cache
from fedapp.datasets.cache import Arrays, Empty, cached_arrays, drafted_arrays


class Builder:
    """Builds two arrays and counts how often."""

    def __init__(self) -> None:
        self.built = 0

    def __call__(self) -> Arrays:
        self.built += 1
        return {"images": np.arange(2_000_000, dtype=np.uint8), "names": np.array(["a", "bc"])}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_second_call_reads_what_the_first_built(folder: Path) -> None:
    builder = Builder()
    for _ in range(2):
        arrays = cached_arrays("set-v1", builder)
        np.testing.assert_array_equal(arrays["images"], builder()["images"])
        assert arrays["names"].tolist() == ["a", "bc"]
        assert isinstance(arrays["images"], np.memmap)
        builder.built -= 1
    assert builder.built == 1
    assert [path.name for path in folder.iterdir()] == ["set-v1"]


@pytest.mark.parametrize("damage", ["truncated", "garbage", "missing", "index", "wrong shape"])
def test_broken_entry_is_built_anew_with_a_warning(folder: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    builder = Builder()
    cached_arrays("set-v1", builder)
    images = folder / "set-v1" / "images.npy"
    if damage == "truncated":
        images.write_bytes(images.read_bytes()[:1_500_000])
    elif damage == "garbage":
        images.write_bytes(b"garbage")
    elif damage == "missing":
        images.unlink()
    elif damage == "index":
        (folder / "set-v1" / cache.INDEX).write_text("{")
    else:
        np.save(images, np.zeros(3))
    arrays = cached_arrays("set-v1", builder)
    assert builder.built == 2
    assert len(arrays["images"]) == 2_000_000
    assert "built anew" in caplog.text
    cached_arrays("set-v1", builder)
    assert builder.built == 2


def test_unwritable_folder_only_means_building_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "file"))
    builder = Builder()
    for _ in range(2):
        assert len(cached_arrays("set-v1", builder)["images"]) == 2_000_000
    assert builder.built == 2
    assert "kept in memory only" in caplog.text


def test_process_that_comes_second_takes_the_entry_of_the_first(folder: Path) -> None:
    def slow() -> Arrays:
        cached_arrays("set-v1", Builder())
        return {"images": np.zeros(3)}

    assert len(cached_arrays("set-v1", slow)["images"]) == 2_000_000
    assert [path.name for path in folder.iterdir()] == ["set-v1"]


SHAPE = (3000, 1000)


def filled(empty: Empty) -> Arrays:
    """Fill rows one after the other with their number."""
    images = empty("images", SHAPE)
    for number, row in enumerate(images):
        row[:] = number % 256
    return {"images": images, "names": np.array(["a", "bc"])}


def assert_filled(arrays: Arrays) -> None:
    np.testing.assert_array_equal(arrays["images"], np.broadcast_to(np.arange(3000)[:, None] % 256, SHAPE))
    assert arrays["images"].dtype == np.uint8
    assert arrays["names"].tolist() == ["a", "bc"]


def test_draft_is_filled_on_disk_and_becomes_the_entry(folder: Path) -> None:
    given: list[Any] = []

    def build(empty: Empty) -> Arrays:
        arrays = filled(empty)
        given.append(arrays["images"])
        assert not (folder / "set-v1").exists()
        return arrays

    assert_filled(drafted_arrays("set-v1", build))
    assert isinstance(given[0], np.memmap)
    again = drafted_arrays("set-v1", build)
    assert_filled(again)
    assert isinstance(again["images"], np.memmap)
    assert not again["images"].flags.writeable
    assert len(given) == 1
    assert [path.name for path in folder.iterdir()] == ["set-v1"]
    assert sorted(path.name for path in (folder / "set-v1").iterdir()) == ["images.npy", "index.json", "names.npy"]


@pytest.mark.parametrize("rows", [slice(None, None, -1), slice(10, 2500), np.arange(2000)])
def test_part_of_a_draft_may_take_its_place(folder: Path, rows: Any) -> None:
    whole = np.broadcast_to(np.arange(3000)[:, None] % 256, SHAPE)
    for _ in range(2):
        made = drafted_arrays("set-v1", lambda empty: {"images": filled(empty)["images"][rows]})
        np.testing.assert_array_equal(made["images"], whole[rows])


def test_failed_draft_leaves_nothing(folder: Path) -> None:
    def build(empty: Empty) -> Arrays:
        filled(empty)
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        drafted_arrays("set-v1", build)
    assert list(folder.iterdir()) == []


def test_draft_without_room_on_disk_is_filled_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    assert_filled(drafted_arrays("set-v1", filled))
    assert "could not be cached ([Errno 28] No space left on device) and is kept in memory only" in caplog.text


def test_draft_in_an_unwritable_folder_is_filled_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "file"))
    arrays = drafted_arrays("set-v1", filled)
    assert_filled(arrays)
    assert not isinstance(arrays["images"], np.memmap)
    assert "kept in memory only" in caplog.text


def test_draft_that_cannot_be_published_is_still_what_was_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert_filled(drafted_arrays("set-v1", filled))
    assert "kept in memory only" in caplog.text
    assert list(folder.iterdir()) == []


def test_draft_of_a_killed_process_is_cleared_away_after_a_day(folder: Path) -> None:
    old, young, other = (folder / name for name in ("set-v1.abc", "set-v1.def", "set-v2.abc"))
    for left, age in ((old, 2.0), (young, 0.5), (other, 2.0)):
        (left / "set-v1").mkdir(parents=True)
        os.utime(left, (time.time() - age * 24 * 3600,) * 2)
    drafted_arrays("set-v1", filled)
    assert {path.name for path in folder.iterdir()} == {"set-v1", "set-v1.def", "set-v2.abc"}


def test_cache_is_in_the_home_folder_unless_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDAPP_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "fedapp"
