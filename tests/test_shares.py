"""A run keeps who held which samples, and a continued one holds to it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedapp
from fedapp import datasets, runner, shares
from fedapp.config import DataSettings, OwnDataSettings, SettingError

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


def _table(root: Path, cell: str) -> DataSettings:
    """Write a table of two classes, and return the settings that read it."""
    rows = [f"{'ab'[row % 2]},{row}" for row in range(39)] + [f"b,{cell}"]
    (root / "own.csv").write_text("label,x\n" + "\n".join(rows) + "\n")
    datasets.forget()
    own = OwnDataSettings(label_column="label")
    return DataSettings(dataset="csv", data_root=str(root / "own.csv"), partition="iid", own=own)


def test_one_changed_cell_of_ones_own_data_is_noticed_although_the_lists_are_equal(tmp_path: Path) -> None:
    strategy = type("Strategy", (), {"clients": {"0": type("Info", (), {"num_clients": 2})}})
    before = _table(tmp_path, "1")
    shares.ShareKeeper(tmp_path, before).on_start(strategy)
    shares.ShareKeeper(tmp_path, before).check()
    changed = _table(tmp_path, "2")
    with pytest.raises(SettingError, match="samples, labels or their names are not those that this run began with"):
        shares.ShareKeeper(tmp_path, changed).check()


def test_a_refused_continuation_leaves_the_record_of_a_finished_run_as_it_was(tmp_path: Path) -> None:
    settings = _table(tmp_path, "1")
    own = {"dataset": "csv", "data_root": settings.data_root, "partition": "iid", "out": tmp_path, "report": False}
    made = fedapp.run("fedavg", clients=2, rounds=1, models="mlp", feature_dim=8, local_epochs=1, run_name="q", **own)
    before = (made.folder / "config.yaml").read_text()
    text = Path(settings.data_root).read_text()
    Path(settings.data_root).write_text(
        text.replace("label,x", "label,x,y").replace("\n", ",1\n").replace("y,1", "y", 1)
    )
    with pytest.raises(SettingError, match="are not those that this run began with"):
        runner.resume(made.folder, engine="local", rounds=2)
    assert (made.folder / "config.yaml").read_text() == before
    Path(settings.data_root).write_text(text)
    assert runner.summary(runner.resume(made.folder, engine="local", rounds=2))["rounds"] == 2


def test_a_file_without_a_fingerprint_as_an_earlier_version_wrote_it_is_taken_at_its_lists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = type("Strategy", (), {"clients": {"0": type("Info", (), {"num_clients": 2})}})
    keeper = shares.ShareKeeper(tmp_path, _table(tmp_path, "1"))
    keeper.on_start(strategy)
    np.savez(tmp_path / shares.FILE, **shares.load(tmp_path / shares.FILE))
    keeper.check()
    keeper.on_start(strategy)
    assert "does not tell with which data this run began" in caplog.text


def test_a_damaged_file_is_named_when_a_run_is_continued(tmp_path: Path) -> None:
    strategy = type("Strategy", (), {"clients": {"0": type("Info", (), {"num_clients": 2})}})
    keeper = shares.ShareKeeper(tmp_path, _table(tmp_path, "1"))
    for damage in (b"", b"PK"):
        keeper.path.write_bytes(damage)
        with pytest.raises(SettingError, match=r"partition\.npz cannot be read \(.*\); restore it, or start a new run"):
            keeper.on_start(strategy)


def test_a_large_pool_is_told_by_rows_at_even_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = np.arange(40, dtype=np.float32).reshape(10, 4)
    pool = datasets.Pool(inputs, np.zeros(10, np.int64), ("a",))
    monkeypatch.setattr(shares, "READ_WHOLE", inputs.nbytes // 2)
    changed = [inputs.copy() for _ in range(2)]
    changed[0][4], changed[1][5] = -1, -1
    found = [shares.fingerprint(replace(pool, inputs=one)) == shares.fingerprint(pool) for one in changed]
    assert found == [False, True]  # every second row is read
