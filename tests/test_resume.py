"""A run that was cut goes on and ends bit-equal to the run that was never cut: every method, half participation."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedapp import client_app, runner, server_app
from fedapp.checkpoints import Checkpointer, newest
from fedapp.client_update import ClientUpdate
from fedapp.config import RunConfig, SettingError, flatten, parse
from fedapp.environment import RunFailedError
from fedapp.local_grid import LocalGrid
from fedapp.recorder import COLUMNS, Recorder
from fedapp.strategies import METHODS, Local

CLIENTS, ROUNDS = 4, 4
MODELS = {"fedavg": "separable-cnn", "fedsap": "small-cnn"}
"""Methods that need equal models."""
PARAMS = {"fedsap": "warmup.rounds=1 dga.every=2 dga.min-spread=0 dga.min-group=1 sgp.global-target=0.3"}
"""Settings under which a method uses all of its state within the rounds of these tests."""


class PowerCutError(BaseException):
    """Ends a run where it stands, as a kill would."""


def config(out: Path, method: str, name: str, **values: Any) -> RunConfig:
    quick = {"num-server-rounds": ROUNDS, "local-epochs": 1, "batch-size": 8, "samples-per-client": 24, "report": False}
    models = {"models": MODELS.get(method, "small-cnn,separable-cnn"), "feature-dim": 16}
    models["method-params"] = PARAMS.get(method, "")
    more = {"method": method, "run-name": name, "out": str(out), "fraction-train": 0.5, "schedule": "cosine"}
    return parse(RunConfig, {**quick, **models, **more, **values})


def outcome(folder: Path) -> tuple[Any, ...]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    plain = [{key: value for key, value in line.items() if not key.endswith("seconds")} for line in lines]
    whole = runner.summary(folder)
    summary = {key: whole[key] for key in whole if key not in ("seconds", "run")}
    rows = [line.split(",")[:16] for line in (folder / "clients.csv").read_text().splitlines()]
    return plain, summary, rows


def cut_in_training(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the power when the second client of round ``at`` is about to train."""
    seen: list[int] = []
    answer = LocalGrid._answer

    def _answer(self: LocalGrid, message: Any) -> Any:
        about = message.content.config_records["about"]
        if message.metadata.message_type == "train" and about["round"] == at:
            seen.append(at)
            if len(seen) == 2:
                raise PowerCutError
        return answer(self, message)

    monkeypatch.setattr(LocalGrid, "_answer", _answer)


def cut_after_recording(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the power after aggregation, when the round is recorded but not yet checkpointed."""
    on_round = Checkpointer.on_round

    def cut(self: Checkpointer, strategy: Any, record: Any) -> Any:
        if record.round == at:
            raise PowerCutError
        return on_round(self, strategy, record)

    monkeypatch.setattr(Checkpointer, "on_round", cut)


def cut_in_mid_checkpoint(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the power when half of the checkpoint stands in its scratch file."""

    def cut(target: Path, data: bytes) -> None:
        if target.name.startswith(f"round-{at:08d}"):
            target.with_name(f".{target.name}.1.tmp").write_bytes(data[: len(data) // 2])
            raise PowerCutError
        target.write_bytes(data)

    monkeypatch.setattr("fedapp.checkpoints.write_atomically", cut)


def run(settings: RunConfig) -> Path:
    return server_app.run(LocalGrid(client_app.app, CLIENTS, flatten(settings)), settings).folder


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("uncut")
    return {method: run(config(out / method, method, "run")) for method in METHODS}


CUTS = {"training": cut_in_training, "recorded": cut_after_recording, "checkpoint": cut_in_mid_checkpoint}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("method", METHODS)
def test_a_cut_run_ends_bit_equal(
    method: str, cut: str, uncut: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as power:
        CUTS[cut](3, power)
        with pytest.raises(PowerCutError):
            run(config(tmp_path, method, "run"))
    assert not (tmp_path / "run" / "summary.json").exists()
    assert newest(tmp_path / "run")[0] == 2
    folder = runner.resume(tmp_path / "run", engine="local")
    assert outcome(folder) == outcome(uncut[method])


def test_a_cut_run_of_the_literal_fedsap_ends_bit_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    literal = {"method-params": f"profile=paper {PARAMS['fedsap']}"}
    whole = run(config(tmp_path / "whole", "fedsap", "run", **literal))
    with monkeypatch.context() as power:
        cut_after_recording(3, power)
        with pytest.raises(PowerCutError):
            run(config(tmp_path / "cut", "fedsap", "run", **literal))
    assert outcome(runner.resume(tmp_path / "cut" / "run", engine="local")) == outcome(whole)


def test_a_broken_newest_checkpoint_gives_way_to_the_one_before(
    uncut: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as power:
        cut_in_training(4, power)
        with pytest.raises(PowerCutError):
            run(config(tmp_path, "fedsaf", "run"))
    latest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    latest.write_bytes(latest.read_bytes()[:-1] + b"?")
    assert newest(tmp_path / "run")[0] == 2
    assert outcome(runner.resume(tmp_path / "run", engine="local")) == outcome(uncut["fedsaf"])


def test_a_run_cut_in_its_first_round_begins_again(
    uncut: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as power:
        cut_in_training(1, power)
        with pytest.raises(PowerCutError):
            run(config(tmp_path, "fedproto", "run"))
    assert outcome(runner.resume(tmp_path / "run", engine="local")) == outcome(uncut["fedproto"])


def test_rows_from_before_a_column_existed_are_as_long_as_the_header(tmp_path: Path) -> None:
    first = Recorder(config(tmp_path, "local", "r"))
    old = COLUMNS[:-1]
    rows = [[number, "0", *[""] * (len(old) - 2)] for number in (1, 2, 3)]
    rows[0][old.index("failure")] = 'NoReply: late, or "lost"'
    with (first.folder / "clients.csv").open("w", newline="") as file:
        csv.writer(file).writerows([old, *rows])
    Recorder(replace(first.config, resume=str(first.folder)), completed=2)
    with (first.folder / "clients.csv").open(newline="") as file:
        table = list(csv.reader(file))
    assert table == [list(COLUMNS), *([str(row[0]), *row[1:], ""] for row in rows[:2])]


def test_a_half_written_line_is_dropped(
    uncut: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as power:
        cut_in_training(3, power)
        with pytest.raises(PowerCutError):
            run(config(tmp_path, "local", "run"))
    for name in ("rounds.jsonl", "clients.csv"):
        with (tmp_path / "run" / name).open("a") as file:
            file.write('{"round": 3, "accu')
    assert outcome(runner.resume(tmp_path / "run", engine="local")) == outcome(uncut["local"])


def test_a_finished_run_can_only_be_prolonged_and_equals_the_longer_run(tmp_path: Path) -> None:
    brief = config(tmp_path, "fedsaf", "brief", **{"num-server-rounds": 2, "schedule": "constant"})
    whole = replace(brief, num_server_rounds=3, run_name="whole")
    for settings in (brief, whole):
        run(settings)
    with pytest.raises(SettingError, match="finished after 2 rounds; to prolong it"):
        runner.resume(tmp_path / "brief", engine="local")
    assert outcome(runner.resume(tmp_path / "brief", engine="local", rounds=3)) == outcome(tmp_path / "whole")


class BoomUpdate(ClientUpdate):
    """Raises in every round at every client."""

    def begin(self) -> None:
        raise RuntimeError("boom")


class Doomed(Local):
    name = "doomed"


@pytest.fixture
def doomed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "doomed", replace(METHODS["local"], strategy=Doomed, update=BoomUpdate))


@pytest.mark.usefixtures("doomed")
@pytest.mark.parametrize("rounds", [1, 5])
def test_a_run_in_which_nobody_trains_fails_and_fails_again_when_resumed(rounds: int, tmp_path: Path) -> None:
    settings = config(tmp_path, "doomed", "run", **{"num-server-rounds": rounds})
    with pytest.raises(RunFailedError, match=r"no client trained in the last .* boom"):
        run(settings)
    for _ in range(3):
        with pytest.raises(RunFailedError, match=r"no client trained"):
            runner.resume(tmp_path / "run", engine="local")
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_run_that_failed_before_any_round_says_where_it_is_and_promises_no_checkpoint(tmp_path: Path) -> None:
    settings = config(tmp_path, "local", "short", **{"min-nodes": CLIENTS + 1, "node-timeout": 0.1})
    with pytest.raises(RunFailedError, match="lower min-nodes") as failed:
        runner.run_local(settings, CLIENTS)
    assert str(failed.value).endswith(f"\nWhat there is of the run is in {tmp_path / 'short'}")


def test_a_run_that_failed_after_a_round_says_how_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_round = Checkpointer.on_round

    def fail(self: Checkpointer, strategy: Any, record: Any) -> None:
        on_round(self, strategy, record)
        raise RunFailedError("no more")

    monkeypatch.setattr(Checkpointer, "on_round", fail)
    with pytest.raises(RunFailedError, match="no more") as failed:
        runner.run_local(config(tmp_path, "local", "run"), CLIENTS)
    way_on = f"; `fedapp run --resume {tmp_path / 'run'}` goes on from its last checkpoint"
    assert str(failed.value).endswith(f"\nWhat there is of the run is in {tmp_path / 'run'}{way_on}")


@pytest.mark.usefixtures("doomed")
def test_a_failed_run_has_a_report_that_names_the_failures(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError):
        run(config(tmp_path, "doomed", "run", **{"report": True}))
    assert "boom" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.usefixtures("doomed")
def test_max_failures_ends_a_run_and_can_be_lifted_when_it_is_resumed(tmp_path: Path) -> None:
    settings = config(tmp_path, "doomed", "run", **{"max-failures": 3, "fraction-train": 1.0})
    with pytest.raises(RunFailedError, match=r"4 client failures by round 1, max-failures is 3; the last: client 3"):
        run(settings)
    with pytest.raises(RunFailedError, match="no client trained"):
        runner.resume(tmp_path / "run", engine="local", values={"max-failures": 0})
    with pytest.raises(SettingError, match="learning-rate cannot be changed"):
        runner.resume(tmp_path / "run", engine="local", values={"learning-rate": 3})


def test_no_rounds_evaluate_the_first_weights(tmp_path: Path) -> None:
    folder = run(config(tmp_path, "fedsaf", "run", **{"num-server-rounds": 0}))
    assert runner.summary(folder)["rounds"] == 0
    assert 0 <= runner.summary(folder)["accuracy"]["last"] <= 1


def test_a_run_continued_with_other_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as power:
        cut_in_training(3, power)
        with pytest.raises(PowerCutError):
            run(config(tmp_path, "local", "run"))
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    other = config(tmp_path, "local", "run", **{"learning-rate": 0.5, "resume": str(tmp_path / "run")})
    with pytest.raises(SettingError, match=r"other settings than that run has \(learning-rate\)"):
        run(other)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_seconds_go_on_over_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as power:
        cut_in_training(4, power)
        with pytest.raises(PowerCutError):
            run(config(tmp_path, "local", "run"))
    path = tmp_path / "run" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-1]["run_seconds"] = 1000.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert 1000 < runner.summary(runner.resume(tmp_path / "run", engine="local"))["seconds"]["run"] < 1100


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("7")
    with pytest.raises(SettingError, match=r"config.yaml is damaged"):
        runner.resume(tmp_path, engine="local")


def test_resuming_by_setting_where_no_run_is_says_so(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no run"):
        run(config(tmp_path, "local", "run", resume=str(tmp_path / "nowhere")))


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no run"):
        runner.resume(tmp_path, engine="local")


def test_a_run_that_is_still_going_on_is_not_continued_beside_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    on_round = Recorder.on_round

    def meddle(self: Recorder, strategy: Any, record: Any) -> None:
        if not tried:
            with pytest.raises(SettingError, match="still going on") as error:
                runner.resume(self.folder, engine="local", clients=CLIENTS)
            tried.append(str(error.value))
        on_round(self, strategy, record)

    monkeypatch.setattr(Recorder, "on_round", meddle)
    run(config(tmp_path, "local", "run", **{"num-server-rounds": 1}))
    assert len(tried) == 1


def test_early_stop_and_failure_limit_and_kept_models(tmp_path: Path) -> None:
    values = {"patience": 1, "num-server-rounds": 20, "learning-rate": 1e-9, "fraction-train": 1.0}
    stopped = run(config(tmp_path, "local", "stopped", **values))
    assert runner.summary(stopped)["rounds"] == 2
    kept = run(config(tmp_path, "local", "kept", **{"save-client-models": 2, "fraction-train": 1.0}))
    lines = [json.loads(line) for line in (kept / "rounds.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda line: line["accuracy"])["round"]
    folders = {path.name for path in (kept / "models").iterdir()}
    assert folders == {"round-00000002", "round-00000004", "best"}
    names = {path.name for path in (kept / "models/best").iterdir()}
    assert names == {"_server.safetensors", *(f"{index}.safetensors" for index in range(4))}
    if best in (2, 4):
        same = kept / "models" / f"round-{best:08d}" / "0.safetensors"
        assert (kept / "models/best/0.safetensors").read_bytes() == same.read_bytes()
    shutil.rmtree(kept / "clients")
    assert (kept / "models/best/0.safetensors").stat().st_size > 1000
