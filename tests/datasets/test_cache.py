from pathlib import Path

import numpy as np
import pytest

from fedapp.datasets import cache
from fedapp.datasets.cache import Arrays, cached_arrays


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


def test_cache_is_in_the_home_folder_unless_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDAPP_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "fedapp"
