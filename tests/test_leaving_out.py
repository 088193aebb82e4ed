"""Runs that leave a domain or clients out: what is recorded, what is shown, and how a cut run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import fedapp
from fedapp import datasets, models, runner
from fedapp.checkpoints import newest
from fedapp.config import DataSettings, SettingError
from fedapp.report import write_report
from fedapp.report.records import load, summarise
from tests.report.reading import Page
from tests.test_resume import PowerCutError, config, cut_in_training, outcome, run

QUICK: dict[str, Any] = {
    "local_epochs": 1,
    "batch_size": 16,
    "samples_per_client": 40,
    "feature_dim": 16,
    "learning_rate": 0.05,
}
MODELS = {"fedavg": "separable-cnn", "fedsap": "small-cnn", "fedsaf": "small-cnn,separable-cnn"}
NAMES = {
    "fedavg": {"left-out", "left-out-adapted"},
    "fedsaf": {"left-out", "left-out-prototype", "left-out-adapted", "left-out-adapted-prototype"},
    "fedsap": {"left-out", "left-out-recalibrated"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fedapp.api.Run]:
    out = tmp_path_factory.mktemp("runs")
    where: Any = {"clients": 5, "rounds": 2, "out": out, "leave_domain": "rendered", "domain_map": MAP}
    return {method: fedapp.run(method, models=group, **where, **QUICK) for method, group in MODELS.items()}


MAP = "rendered,mnist,mnistm,rendered,optical"


def left_out_in(result: fedapp.api.Run) -> dict[str, Any]:
    found = result.summary["evaluations"]
    return {name: values for name, values in found.items() if name.startswith("left-out")}


def test_fedavg_answers_on_the_domain_left_out_as_its_final_global_model_does(runs: dict[str, fedapp.api.Run]) -> None:
    result = runs["fedavg"]
    number, state = newest(result.folder)
    assert number == 2
    about = result.described["clients"]["1"]
    model = models.build(
        about["model"], num_classes=10, input_shape=tuple(about["input-shape"]), vocabulary=0, feature_dim=16
    )
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    model.eval()
    settings = DataSettings(samples_per_client=40, domain_map=MAP)
    parts = [datasets.load_node(settings, index, 5).test for index in (0, 3)]
    with torch.no_grad():
        right = sum(int((model.head(model.features(part.x)).argmax(dim=1) == part.y).sum()) for part in parts)
    expected = right / sum(len(part.y) for part in parts)
    assert left_out_in(result)["left-out"]["domains"]["rendered"]["last"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("method", MODELS)
def test_the_records_say_who_was_left_out_and_how_a_newcomer_fares(
    method: str, runs: dict[str, fedapp.api.Run]
) -> None:
    result = runs[method]
    assert result.failures == []
    assert set(left_out_in(result)) == NAMES[method]
    for values in left_out_in(result).values():
        assert values["domains"].keys() == {"rendered"}
        assert 0 <= values["global_mean"]["last"] <= 1
    described = yaml.safe_load((result.folder / "config.yaml").read_text())
    assert list(described["clients"]) == list(result.summary["model_sha256"]) == ["1", "2", "4"]
    assert {client: about["domain"] for client, about in described["left-out"].items()} == result.summary["left_out"]
    assert result.summary["left_out"] == {"0": "rendered", "3": "rendered"}
    assert described["num-clients"] == 5
    assert "rendered" not in result.summary["domains"]
    for line in map(json.loads, (result.folder / "rounds.jsonl").read_text().splitlines()):
        assert line["evaluated"] == line["trained"] == ["1", "2", "4"]
        assert list(line["left_out"]) == ["0", "3"]


def test_what_is_sent_to_newcomers_counts_as_evaluation_traffic(runs: dict[str, fedapp.api.Run]) -> None:
    result = runs["fedavg"]
    table = result.clients
    of_one = int(table["evaluate_payload_down"].iloc[0])
    assert result.summary["bytes"]["evaluate_payload_down"] == 2 * 5 * of_one
    assert result.summary["bytes"]["payload_down"] == 2 * 3 * of_one


@pytest.mark.parametrize("method", MODELS)
def test_the_report_names_the_domain_and_repeats_the_run(method: str, runs: dict[str, fedapp.api.Run]) -> None:
    folder = runs[method].folder
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "Clients 0, 3 of domain rendered took no part in training." in page.text
    assert "--clients 5" in page.text
    assert "--set leave-domain=rendered" in page.text
    assert "could not start" not in page.text
    for name, values in left_out_in(runs[method]).items():
        key = f"evaluations.{name}.domains.rendered.last"
        assert page.values()[key] == repr(values["domains"]["rendered"]["last"])
    assert ("for 5 passes over its own training samples" in page.text) == ("left-out-adapted" in NAMES[method])
    assert ("untrained weights, but the nearest global prototype" in page.text) == (method == "fedsaf")


def test_an_unfinished_run_says_the_same(runs: dict[str, fedapp.api.Run]) -> None:
    records = load(runs["fedsaf"].folder)
    made = summarise(records.config, records.rounds, [])
    assert {key: made[key] for key in ("left_out", "num_clients", "evaluations")} == {
        key: records.summary[key] for key in ("left_out", "num_clients", "evaluations")
    }


def test_the_others_hold_what_they_held_without_leaving_out(runs: dict[str, fedapp.api.Run], tmp_path: Path) -> None:
    whole = fedapp.run(
        "local", clients=5, rounds=0, models="small-cnn", out=tmp_path, domain_map=MAP, report=False, **QUICK
    )
    for client, about in runs["fedsap"].described["clients"].items():
        assert about["label-counts"] == whole.described["clients"][client]["label-counts"]


@pytest.mark.parametrize("method", ["fedavg", "fedsaf"])
def test_newcomers_that_do_not_train_leave_the_same_models_behind(
    method: str, runs: dict[str, fedapp.api.Run], tmp_path: Path
) -> None:
    where: Any = {"clients": 5, "rounds": 2, "out": tmp_path, "leave_domain": "rendered", "domain_map": MAP}
    without = fedapp.run(method, models=MODELS[method], newcomer_epochs=0, report=False, **where, **QUICK)
    assert without.summary["model_sha256"] == runs[method].summary["model_sha256"]
    assert without.summary["accuracy"] == runs[method].summary["accuracy"]
    rest = {name: found for name, found in left_out_in(runs[method]).items() if "adapted" not in name}
    assert left_out_in(without) == rest


@pytest.mark.parametrize("method", ["fedsap", "fedsaf"])
def test_a_cut_run_that_leaves_clients_out_ends_bit_equal(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"leave-clients": "0", "num-server-rounds": 3, "fraction-train": 1.0}
    whole = run(config(tmp_path / "whole", method, "run", **more))
    with monkeypatch.context() as power:
        cut_in_training(2, power)
        with pytest.raises(PowerCutError):
            run(config(tmp_path / "cut", method, "run", **more))
    folder = runner.resume(tmp_path / "cut" / "run", engine="local")
    assert outcome(folder) == outcome(whole)
    assert "left-out" in runner.summary(folder)["evaluations"]


def test_a_domain_that_nobody_holds_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"leave-domain = 'renderd'.*valid names: .*did you mean rendered"):
        fedapp.run("local", clients=4, rounds=1, leave_domain="renderd", out=tmp_path, **QUICK)


def test_clients_that_the_data_name_are_left_out_and_shown_by_these_names(tmp_path: Path) -> None:
    cities = ("berlin", "oslo", "rome")
    rows = [f"{cities[row % 3]},{'ab'[row // 3 % 2]},{row % 7}" for row in range(60)]
    (tmp_path / "own.csv").write_text("city,label,x\n" + "\n".join(rows) + "\n")
    own = {"dataset": "csv", "data_root": str(tmp_path / "own.csv"), "client_column": "city"}
    result = fedapp.run(
        "local", clients=3, rounds=1, models="mlp", feature_dim=8, out=tmp_path, leave_clients="oslo", **own
    )
    described = yaml.safe_load((result.folder / "config.yaml").read_text())
    assert {client: about["name"] for client, about in described["clients"].items()} == {"0": "berlin", "2": "rome"}
    assert {client: about["name"] for client, about in described["left-out"].items()} == {"1": "oslo"}
    assert dict(zip(result.clients["client"], result.clients["name"], strict=True)) == {"0": "berlin", "2": "rome"}
    page = Page(write_report(result.folder).read_text(encoding="utf-8"))
    assert "Client 1 (oslo) took no part in training." in page.text
    assert "0 (berlin)" in page.text
    assert load(result.folder).class_names == ["a", "b"]


def test_scaling_by_the_rows_of_those_left_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("label,x\n" + "a,1\nb,2\n" * 20)
    own: dict[str, Any] = {"dataset": "csv", "data_root": str(tmp_path / "own.csv"), "scaling": "global"}
    with pytest.raises(SettingError, match="those left out included; set scaling to client or none"):
        fedapp.run("local", clients=3, rounds=1, models="mlp", out=tmp_path, leave_clients="0", partition="iid", **own)
