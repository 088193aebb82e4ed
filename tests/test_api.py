"""The Python interface: run, load, take models out."""

from __future__ import annotations

import os
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import fedapp
from fedapp import runner
from fedapp.config import SettingError
from fedapp.environment import RunFailedError
from fedapp.strategies import METHODS

EXAMPLE = Path(__file__).parents[1] / "examples" / "from_python.py"
QUICK = {
    "local_epochs": 1,
    "batch_size": 16,
    "samples_per_client": 40,
    "feature_dim": 16,
    "learning_rate": 0.05,
    "report": False,
}


def one_run(method: str, out: Path, **more: object) -> fedapp.api.Run:
    models = {"fedavg": "separable-cnn", "fedsap": "small-cnn"}.get(method, "small-cnn,separable-cnn")
    return fedapp.run(method, clients=4, rounds=2, models=models, out=out, **{**QUICK, **more})


@pytest.mark.parametrize("method", METHODS)
def test_a_clients_model_answers_as_it_did_in_the_last_round(method: str, tmp_path: Path) -> None:
    result = one_run(method, tmp_path)
    last = result.clients[result.clients["round"] == 2].set_index("client")
    for client in ("0", "3"):
        measured = result.client(client).evaluate()
        assert measured["accuracy"] == pytest.approx(last.loc[client, "accuracy"], abs=1e-9)
        assert measured["loss"] == pytest.approx(last.loc[client, "test_loss"], rel=1e-5)


def test_prediction_by_prototype_is_kept(tmp_path: Path) -> None:
    result = one_run("fedsaf", tmp_path, method_params={"evaluate-by": "both"})
    client = result.client(1)
    recorded = result.rounds["evaluate.prototype-accuracy"].iloc[-1]
    assert 0 <= recorded <= 1
    assert "prototype-accuracy" in client.evaluate()
    assert result.summary["prototype_accuracy"]["last"] == pytest.approx(recorded)
    last = result.clients[result.clients["round"] == 2].set_index("client")
    assert last.loc["1", "prototype_accuracy"] == pytest.approx(client.evaluate()["prototype-accuracy"])


def test_history_is_data_frames_and_other_data_can_be_given(tmp_path: Path) -> None:
    result = one_run("fedproto", tmp_path)
    assert isinstance(result.rounds, pd.DataFrame)
    assert list(result.rounds.index) == [1, 2]
    assert result.rounds["accuracy"].iloc[-1] == result.summary["accuracy"]["last"]
    assert len(result.clients) == 2 * 4
    x = torch.randn(7, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    client = result.client("2")
    labels = client.predict(x)
    assert labels.shape == (7,)
    assert client.evaluate(x, labels)["accuracy"] == 1.0
    again = fedapp.load_run(result.folder)
    assert torch.equal(again.client("2").predict(x), labels)
    assert repr(again).startswith("Run(fedproto, ")
    assert again.failures == []


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no run"):
        fedapp.load_run(tmp_path)
    result = one_run("local", tmp_path)
    with pytest.raises(SettingError, match="unknown client '9'; valid names: 0, 1, 2, 3"):
        result.client(9)
    with pytest.raises(SettingError, match="save-client-models=1"):
        _ = result.client(0, weights="best").model
    with pytest.raises(SettingError, match="unknown setting 'lerning-rate'"):
        fedapp.run("local", lerning_rate=1)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedapp.nothing


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("method", METHODS)
def test_best_weights_answer_as_in_the_best_round(method: str, fraction: float, tmp_path: Path) -> None:
    result = one_run(method, tmp_path, save_client_models=1, fraction_train=fraction)
    best = int(result.rounds["accuracy"].idxmax())
    rows = result.clients[result.clients["round"] == best].set_index("client")
    for client in map(str, range(4)):
        measured = result.client(client, weights="best").evaluate()
        assert measured["accuracy"] == pytest.approx(rows.loc[client, "accuracy"], abs=1e-9)


def test_half_a_sample_and_a_foreign_engine_are_refused(tmp_path: Path) -> None:
    result = one_run("local", tmp_path)
    with pytest.raises(ValueError, match="give both x and y"):
        result.client(0).evaluate(torch.zeros(3, 3, 32, 32))
    with pytest.raises(SettingError, match="unknown engine 'ray'"):
        fedapp.run("local", engine="ray", out=tmp_path)


def test_the_example_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(os.fspath(EXAMPLE))
    assert len(names["saf"].rounds) == 3
    assert (names["saf"].folder / "report.html").is_file()
    assert "client_worst" in capsys.readouterr().out


def test_own_data_that_changed_are_read_anew_by_the_next_run_of_the_same_process(tmp_path: Path) -> None:
    own: dict[str, Any] = {"dataset": "csv", "data_root": str(tmp_path / "own.csv"), "partition": "iid", "rounds": 0}
    seen = []
    for rows in (20, 32):
        (tmp_path / "own.csv").write_text("label,x\n" + "a,1\nb,2\n" * (rows // 2))
        made = fedapp.run("local", clients=2, models="mlp", feature_dim=8, out=tmp_path, report=False, **own)
        seen.append(sum(one["train-examples"] + one["test-examples"] for one in made.described["clients"].values()))
    assert seen == [20, 32]


def test_a_setting_that_does_not_suit_one_client_of_a_simulation_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"1 of 3 nodes cannot take part\n  client 1: SettingError: .*small-gru"):
        fedapp.run("local", clients=3, rounds=1, models="small-cnn,small-gru", feature_dim=8, out=tmp_path)


def test_a_preset_brings_its_settings_and_the_callers_win(tmp_path: Path) -> None:
    more: dict[str, Any] = {"dataset": "digits4", "samples_per_domain": "20", "report": False}
    made = fedapp.run("local", rounds=0, preset="pacs-clean", out=tmp_path, **more)
    settings = made.described["settings"]
    assert len(made.described["clients"]) == 4
    assert (settings["preset"], settings["augment"], settings["dataset"]) == ("pacs-clean", "crop=8,flip", "digits4")


def test_runs_of_two_threads_end_as_one_alone_does(tmp_path: Path) -> None:
    def digests(name: str) -> dict[str, str]:
        made = fedapp.run("fedproto", clients=2, rounds=2, models="mlp", out=tmp_path, run_name=name, **QUICK)
        return made.summary["model_sha256"]

    alone = digests("alone")
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(digests, ("a", "b"))) == [alone, alone]


def test_a_file_of_words_is_found_from_wherever_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.csv").write_text("label,text\n" + "a,good wine\nb,bad beer\n" * 10)
    (tmp_path / "words.txt").write_text("good\nbad\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    own: dict[str, Any] = {"dataset": "csv", "data_root": "own.csv", "partition": "iid", "vocabulary": "words.txt"}
    made = fedapp.run("local", clients=2, rounds=1, models="small-fasttext", out=tmp_path, report=False, **own)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert runner.summary(runner.resume(made.folder, engine="local", rounds=2))["rounds"] == 2
