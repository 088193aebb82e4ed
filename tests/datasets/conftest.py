import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedapp.datasets as data

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests out of the user's cache; what is built is built once for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDAPP_CACHE", str(tmp_path_factory.mktemp("cache")))
        _forget()
        yield
    _forget()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, data.Source]]:
    """The registry of data sets, restored after the test, with empty caches before and after it."""
    table = dict(data.DATASETS)
    monkeypatch.setattr(data, "DATASETS", table)
    _forget()
    yield table
    _forget()


@pytest.fixture(scope="session")
def local_copies() -> Path:
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the local copies of public data sets are not beside the repository (../shared/data)")
    return folder


@pytest.fixture
def offline_environment(tmp_path: Path) -> dict[str, str]:
    """Environment of a process that cannot reach the hub and finds none of its cached files."""
    return os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "OMP_NUM_THREADS": "1"}


def _forget() -> None:
    data.forget()
