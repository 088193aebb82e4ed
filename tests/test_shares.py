"""A run keeps who held which samples, and a continued one holds to it."""

from pathlib import Path

import numpy as np
import pytest

import fedapp
from fedapp import datasets, shares
from fedapp.config import DataSettings, SettingError

SETTINGS = {"partition": "dirichlet", "dirichlet_alpha": 1.0, "samples_per_client": 30}
SMALL = {"clients": 2, "rounds": 1, "models": "mlp", "feature_dim": 8, "local_epochs": 1, "report": False}


def test_index_lists_are_those_that_the_clients_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = fedapp.run("local", run_name="one", **SMALL, **SETTINGS)
    kept = shares.load(made.folder / shares.FILE)
    want = datasets.load_shares(DataSettings(**SETTINGS), 2)
    assert sorted(kept) == sorted(f"client_{i}_{part}" for i in range(2) for part in ("train", "test", "validation"))
    for client, share in enumerate(want):
        np.testing.assert_array_equal(kept[f"client_{client}_train"], share.train)
        np.testing.assert_array_equal(kept[f"client_{client}_test"], share.test)
    assert [len(kept[f"client_{i}_train"]) for i in range(2)] == [
        about["train-examples"] for about in made.described["clients"].values()
    ]


def test_changed_data_are_refused_when_a_run_is_continued(tmp_path: Path) -> None:
    class Strategy:
        def __init__(self, clients: int) -> None:
            self.clients = {"0": type("Info", (), {"num_clients": clients})}

    keeper = shares.ShareKeeper(tmp_path, DataSettings(**SETTINGS))
    keeper.on_start(Strategy(2))
    keeper.on_start(Strategy(2))
    with pytest.raises(SettingError, match="restore it, or start a new run"):
        keeper.on_start(Strategy(3))
