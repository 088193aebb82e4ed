"""Trackers: the contract with each package, by fakes of its real signatures, and TensorBoard for real."""

from __future__ import annotations

import importlib.machinery
import json
import logging
import sys
from types import ModuleType

import pytest

from fedapp import runner, server_app, tracking
from fedapp.config import RunConfig, SettingError, parse
from fedapp.local_grid import LocalGrid
from fedapp.node import client_app, client_id
from fedapp.recorder import Recorder
from fedapp.strategies import FedAvg
from tests.conftest import setup, tiny


def module(name: str, monkeypatch, **functions) -> None:
    fake = ModuleType(name)
    fake.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(fake).update(functions)
    monkeypatch.setitem(sys.modules, name, fake)


@pytest.fixture
def calls():
    return []


@pytest.fixture
def wandb(monkeypatch, calls):
    class Run:
        def log(self, data, step=None, commit=None):
            calls.append(("log", data, step))

        def finish(self, exit_code=None):
            calls.append(("finish",))

    def init(entity=None, project=None, dir=None, id=None, name=None, config=None, mode=None):
        calls.append(("init", project, name, config, dir))
        return Run()

    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    module("wandb", monkeypatch, init=init)


@pytest.fixture
def mlflow(monkeypatch, calls):
    def set_tracking_uri(uri):
        calls.append(("uri", uri))

    def set_experiment(experiment_name=None, experiment_id=None):
        calls.append(("experiment", experiment_name))

    def start_run(run_id=None, experiment_id=None, run_name=None, nested=False):
        calls.append(("start", run_name))

    def log_params(params, synchronous=None, run_id=None):
        calls.append(("params", params))

    def log_metrics(metrics, step=None, synchronous=None, run_id=None, timestamp=None):
        calls.append(("log", metrics, step))

    def end_run(status="FINISHED"):
        calls.append(("finish",))

    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    module(
        "mlflow", monkeypatch, set_tracking_uri=set_tracking_uri, set_experiment=set_experiment, start_run=start_run,
        log_params=log_params, log_metrics=log_metrics, end_run=end_run,
    )  # fmt: skip


@pytest.fixture
def trackio(monkeypatch, calls):
    def init(project, name=None, group=None, space_id=None, config=None, resume="never"):
        calls.append(("init", project, name, config))

    def log(metrics, step=None):
        calls.append(("log", metrics, step))

    def finish():
        calls.append(("finish",))

    module("trackio", monkeypatch, init=init, log=log, finish=finish)


def load(context):
    client = client_id(context)
    return setup(client, domain="sketch: pen" if client == "0" else "photo")


def run(folder, track: str, rounds: int = 2) -> Recorder:
    recorder = Recorder(RunConfig(method="fedavg", out=str(folder), run_name="r", track=track))
    observers = [recorder, *tracking.observers(recorder)]
    server = FedAvg(run="r", memory=str(folder), build=lambda client, name: tiny(), observers=observers)
    server.start(LocalGrid(client_app(load), 2), num_rounds=rounds)
    return recorder


def expected(recorder: Recorder, number: int) -> dict[str, float]:
    line = recorder.rounds[number - 1]
    return {
        "accuracy": line["accuracy"],
        "client_mean": line["client_mean"],
        "client_worst": line["client_worst"],
        "train/loss": line["train"]["loss"],
        "evaluate/loss": line["evaluate"]["loss"],
        "domains/photo": line["domains"]["photo"],
        "domains/sketch_ pen": line["domains"]["sketch: pen"],
        "bytes/payload_up": line["bytes"]["payload_up"],
        "seconds/train": line["seconds"]["train"],
        "failures": 0,
    }


def check_logs(calls, recorder: Recorder) -> None:
    logs = [call for call in calls if call[0] == "log"]
    assert [step for _, _, step in logs] == [1, 2, 2]
    for number in (1, 2):
        assert expected(recorder, number).items() <= logs[number - 1][1].items()
    assert all(type(value) in (int, float) for _, values, _ in logs for value in values.values())
    assert logs[2][1]["summary/accuracy/best"] == recorder.summary["accuracy"]["best"]
    assert all(name.startswith("summary/") for name in logs[2][1])
    assert calls[-1] == ("finish",)


# ---- each package ----------------------------------------------------------------------------------


def test_wandb_gets_settings_rounds_and_summary(tmp_path, wandb, calls):
    recorder = run(tmp_path, "wandb")
    kind, project, name, config, folder = calls[0]
    assert (kind, project, name, folder) == ("init", "fedapp", "r", str(recorder.folder))
    assert config["method"] == "fedavg"
    assert config["learning-rate"] == 0.01
    assert config["method-params/weighting"] == "samples"
    check_logs(calls, recorder)


def test_wandb_keeps_to_the_project_of_the_environment(tmp_path, wandb, calls, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    run(tmp_path, "wandb", rounds=1)
    assert calls[0][1] == "mine"


def test_mlflow_gets_settings_rounds_and_summary(tmp_path, mlflow, calls):
    recorder = run(tmp_path, "mlflow")
    uri, experiment, start, params = calls[:4]
    assert uri == ("uri", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert (experiment, start) == (("experiment", "fedapp"), ("start", "r"))
    assert params[1]["method"] == "fedavg"
    assert params[1]["method-params/weighting"] == "samples"
    check_logs(calls, recorder)


def test_mlflow_keeps_to_the_server_of_the_environment(tmp_path, mlflow, calls, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    run(tmp_path, "mlflow", rounds=1)
    assert calls[0] == ("experiment", "mine")


def test_trackio_gets_settings_rounds_and_summary(tmp_path, trackio, calls):
    recorder = run(tmp_path, "trackio")
    assert calls[0][:3] == ("init", "fedapp", "r")
    assert calls[0][3]["method"] == "fedavg"
    check_logs(calls, recorder)


def test_tensorboard_event_files_hold_the_numbers_of_the_run(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorder = run(tmp_path, "tensorboard")
    events = EventAccumulator(str(recorder.folder / "tensorboard"))
    events.Reload()
    for number in (1, 2):
        for name, value in expected(recorder, number).items():
            (event,) = [event for event in events.Scalars(name) if event.step == number]
            assert event.value == pytest.approx(value, rel=1e-6), name
    (best,) = events.Scalars("summary/accuracy/best")
    assert best.value == pytest.approx(recorder.summary["accuracy"]["best"])
    (text,) = events.Tensors("settings/text_summary")
    assert b"| learning-rate | 0.01 |" in text.tensor_proto.string_val[0]


def test_several_trackers_get_the_same_numbers(tmp_path, wandb, trackio, calls):
    run(tmp_path, "wandb, trackio,wandb", rounds=1)
    logged = [call[1] for call in calls if call[0] == "log"]
    assert len(logged) == 4
    assert logged[0] == logged[1]


# ---- trouble ---------------------------------------------------------------------------------------


def test_no_setting_means_no_observer(tmp_path):
    assert tracking.observers(Recorder(RunConfig(out=str(tmp_path), run_name="r"))) == []


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio", "tensorboard"])
def test_a_missing_package_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingError, match=f"track = {name} needs the package {name}, .*; pip install {name}"):
        tracking.check(name)


def test_a_broken_package_says_what_to_install(tmp_path, wandb, monkeypatch):
    def broken(name):
        raise ImportError("libfoo is missing")

    monkeypatch.setattr(tracking.importlib, "import_module", broken)
    recorder = Recorder(RunConfig(out=str(tmp_path), run_name="r", track="wandb"))
    with pytest.raises(SettingError, match="track = wandb: libfoo is missing; pip install --upgrade wandb"):
        tracking.observers(recorder)


def test_an_unknown_tracker_lists_the_known_ones():
    with pytest.raises(SettingError, match=r"unknown tracker 'wandbb'; valid names: .*did you mean wandb"):
        tracking.check("tensorboard,wandbb")


def test_nothing_is_imported_unless_asked_for(tmp_path, monkeypatch):
    imported = []
    monkeypatch.setattr(tracking.importlib, "import_module", lambda name: imported.append(name))
    tracking.observers(Recorder(RunConfig(out=str(tmp_path), run_name="r")))
    assert imported == []


@pytest.mark.parametrize("moment", ["init", "log", "finish"])
def test_a_tracker_that_raises_is_logged_once_and_the_run_goes_on(tmp_path, trackio, monkeypatch, caplog, moment):
    tries = []

    def fails(*args, **options):
        tries.append(1)
        raise ConnectionError("no route to host")

    monkeypatch.setattr(sys.modules["trackio"], moment, fails)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with caplog.at_level("WARNING", logger="flwr"):
        recorder = run(tmp_path, "trackio", rounds=3)
    assert [line["round"] for line in recorder.rounds] == [1, 2, 3]
    assert (recorder.folder / "summary.json").is_file()
    assert len(tries) == 1
    said = [r.getMessage() for r in caplog.records if "track = trackio" in r.getMessage()]
    assert said == ["track = trackio stops here, the run goes on: ConnectionError: no route to host"]


def test_one_tracker_that_raises_does_not_stop_another(tmp_path, wandb, trackio, calls, monkeypatch):
    monkeypatch.delattr(sys.modules["trackio"], "log")
    recorder = run(tmp_path, "trackio,wandb")
    check_logs([call for call in calls if call[:2] != ("init", "fedapp") or len(call) == 5], recorder)


# ---- the app ---------------------------------------------------------------------------------------


def test_the_app_tracks_and_applies_device_tiers(tmp_path, monkeypatch, wandb, calls):
    monkeypatch.chdir(tmp_path)
    settings = {"method": "local", "models": "mlp", "feature-dim": 32, "samples-per-client": 20, "local-epochs": 1}
    tiers = {"device-tiers": "fast; off drop-out=1", "track": "wandb"}
    folder = runner.run_local(parse(RunConfig, {**settings, **tiers, "num-server-rounds": 1}), clients=2)
    assert calls[0][3]["device-tiers"] == tiers["device-tiers"]
    assert [call[2] for call in calls if call[0] == "log"] == [1, 1]
    line = json.loads((folder / "rounds.jsonl").read_text())
    assert line["trained"] == ["0"]
    assert [(failure["client"], failure["kind"]) for failure in line["failed"]] == [("1", "DroppedOutError")]
    assert line["client_seconds"]["tier-fast"] == line["client_seconds"]["train"]


@pytest.mark.parametrize("wrong", [{"track": "wandbb"}, {"device-tiers": "pi slowdown=0"}])
def test_a_wrong_tracker_or_tier_is_told_before_anything_starts(wrong):
    with pytest.raises(SettingError):
        server_app.check(parse(RunConfig, wrong))
