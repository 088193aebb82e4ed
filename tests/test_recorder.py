import csv
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from flwr.app import Message

from fedapp import recorder as recording
from fedapp.config import RunConfig, SettingError, parse
from fedapp.local_grid import LocalGrid
from fedapp.memory import ClientMemory, digest
from fedapp.node import client_app, client_id
from fedapp.payload import ClientInfo
from fedapp.recorder import COLUMNS, Recorder
from fedapp.strategies import FedAvg, Local
from fedapp.strategies.records import Failure, Reply, RoundRecord, Traffic
from tests.conftest import TinyModel, setup, tiny

MODEL_BYTES = 4 * (5 * 4 + 5 + 3 * 5 + 3)  # float32: body and head of the tiny model
TESTS = {"0": 7, "1": 4, "2": 0}
DOMAINS = {"0": "photo", "1": "sketch", "2": "sketch"}
TRAINS = {"0": 9, "1": 5, "2": 6}


def load(context):
    client = client_id(context)
    return setup(client, train=TRAINS[client], test=TESTS[client], domain=DOMAINS[client])


class Watch:
    """Keep the global model of every round."""

    def __init__(self):
        self.models = {}

    def on_start(self, strategy):
        pass

    def on_round(self, strategy, record):
        self.models[record.round] = {name: torch.tensor(array) for name, array in strategy.state().items()}

    def on_end(self, strategy, digests):
        pass


def run(folder, grid, *, rounds=2, strategy=FedAvg, **settings):
    config = RunConfig(method=strategy.name, out=str(folder), run_name="r", num_server_rounds=rounds, **settings)
    watch, recorder = Watch(), Recorder(config)
    server = strategy(
        None, config.server, run=recorder.name, memory=config.out, build=lambda client, name: tiny(),
        observers=[watch, recorder],
    )  # fmt: skip
    server.start(grid, num_rounds=rounds)
    return recorder, watch


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def lines_of(folder):
    return [strict(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def table_of(folder):
    with (folder / "clients.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def right(model, client):
    """How many test samples of a client a model gets right."""
    tester = TinyModel()
    tester.load_state_dict(model)
    test = setup(client, test=TESTS[client]).test
    with torch.no_grad():
        return int((tester.head(tester.features(test.x)).argmax(1) == test.y).sum())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run that the tests only read."""
    return run(tmp_path_factory.mktemp("out"), LocalGrid(client_app(load), 3))


# ---- a run of two rounds, recomputed ---------------------------------------------------------------


def test_rounds_tell_accuracy_by_samples_by_clients_and_by_domains(finished):
    recorder, watch = finished
    lines = lines_of(recorder.folder)
    assert [line["round"] for line in lines] == [1, 2]
    for line in lines:
        hits = {client: right(watch.models[line["round"]], client) for client in ("0", "1")}
        photo, sketch = hits["0"] / 7, hits["1"] / 4
        assert line["accuracy"] == pytest.approx((hits["0"] + hits["1"]) / 11, abs=1e-12)
        assert line["client_mean"] == pytest.approx((photo + sketch) / 2, abs=1e-12)
        assert line["client_std"] == pytest.approx(abs(photo - sketch) / 2, abs=1e-12)
        assert line["client_worst"] == pytest.approx(min(photo, sketch), abs=1e-12)
        assert line["worst_client"] == ("0" if photo <= sketch else "1")
        assert line["domains"] == pytest.approx({"photo": photo, "sketch": sketch}, abs=1e-12)
        assert line["trained"] == line["evaluated"] == ["0", "1", "2"]
        assert line["aggregated"] is True
        assert line["failures"] == 0


def test_rounds_tell_losses_weighted_by_samples(finished):
    folder = finished[0].folder
    for line in lines_of(folder):
        rows = [row for row in table_of(folder) if int(row["round"]) == line["round"]]
        total = sum(int(row["train_examples"]) * float(row["train_loss"]) for row in rows)
        assert line["train"] == pytest.approx({"loss": total / (9 + 5 + 6)}, abs=1e-9)
        tested = [row for row in rows if row["test_examples"] != "0"]
        loss = sum(int(row["test_examples"]) * float(row["test_loss"]) for row in tested) / 11
        assert line["evaluate"] == pytest.approx({"accuracy": line["accuracy"], "loss": loss}, abs=1e-9)


def test_rounds_count_every_byte_that_travelled(finished):
    for line in lines_of(finished[0].folder):
        counted = line["bytes"]
        assert counted["payload_down"] == counted["payload_up"] == 3 * MODEL_BYTES
        assert counted["evaluate_payload_down"] == 3 * MODEL_BYTES
        assert counted["evaluate_payload_up"] == 0
        assert all(counted[name] > 0 for name in ("header_down", "header_up", "evaluate_header_down"))


def test_rounds_tell_where_the_seconds_went(finished):
    for line in lines_of(finished[0].folder):
        assert set(line["seconds"]) == {"train", "analyse", "aggregate", "evaluate"}
        assert set(line["client_seconds"]) == {"load", "train", "save", "evaluate", "cpu"}
        spent = line["client_seconds"]
        assert spent["load"] + spent["train"] + spent["save"] <= line["seconds"]["train"]


def test_the_table_has_one_row_a_client_and_round(finished):
    recorder, watch = finished
    rows = table_of(recorder.folder)
    assert tuple(rows[0]) == COLUMNS
    assert [(row["round"], row["client"]) for row in rows] == [(r, c) for r in "12" for c in "012"]
    for row in rows:
        client = row["client"]
        assert (row["domain"], row["model"], row["trained"]) == (DOMAINS[client], "tiny", "1")
        assert (int(row["train_examples"]), int(row["test_examples"])) == (TRAINS[client], TESTS[client])
        assert [int(row[name]) for name in ("payload_down", "payload_up")] == [MODEL_BYTES] * 2
        assert [int(row[f"evaluate_{name}"]) for name in ("payload_down", "payload_up")] == [MODEL_BYTES, 0]
        assert min(float(row[f"{name}_seconds"]) for name in ("load", "train", "save", "evaluate")) >= 0
        assert row["failure"] == ""
        if TESTS[client]:
            hits = right(watch.models[int(row["round"])], client)
            assert float(row["accuracy"]) == pytest.approx(hits / TESTS[client], abs=1e-12)


def test_a_client_without_test_samples_has_no_accuracy_and_is_nobodys_worst(finished):
    rows = [row for row in table_of(finished[0].folder) if row["client"] == "2"]
    assert [(row["accuracy"], row["test_loss"]) for row in rows] == [("", ""), ("", "")]
    assert finished[0].summary["clients"]["worst_client"] in ("0", "1")


def test_the_summary_gives_best_last_and_tail(finished):
    recorder, _ = finished
    summary = strict((recorder.folder / "summary.json").read_text())
    lines = lines_of(recorder.folder)
    for key, name in (("accuracy", "accuracy"), ("client_mean_accuracy", "client_mean")):
        first, last = (line[name] for line in lines)
        assert summary[key] == {"best": max(first, last), "last": last, "last_ten": pytest.approx((first + last) / 2)}
    assert summary["clients"] == {
        "mean": lines[1]["client_mean"],
        "std": lines[1]["client_std"],
        "worst": lines[1]["client_worst"],
        "worst_client": lines[1]["worst_client"],
    }
    first, last = (line["domains"]["photo"] for line in lines)
    assert summary["domains"]["photo"] == {
        "best": max(first, last), "last": last, "last_ten": pytest.approx((first + last) / 2)
    }  # fmt: skip
    assert summary["bytes"] == {name: count + lines[1]["bytes"][name] for name, count in lines[0]["bytes"].items()}
    assert summary["seconds"]["train"] == pytest.approx(sum(line["seconds"]["train"] for line in lines))
    assert {key: summary[key] for key in ("run", "method", "seed", "rounds", "num_clients", "failures")} == {
        "run": "r", "method": "fedavg", "seed": 0, "rounds": 2, "num_clients": 3, "failures": []
    }  # fmt: skip
    assert summary == strict(json.dumps(recorder.summary))


def test_the_summary_holds_the_digest_of_every_clients_kept_model(finished):
    for client, sha in finished[0].summary["model_sha256"].items():
        kept = ClientMemory(finished[0].folder.parent, "r", client).load(before=3)
        assert sha == digest({name.removeprefix("model/"): tensor for name, tensor in kept.items()})
    assert list(finished[0].summary["model_sha256"]) == ["0", "1", "2"]


def test_the_settings_on_disk_are_the_settings_of_the_run(finished):
    recorder, _ = finished
    written = yaml.safe_load((recorder.folder / "config.yaml").read_text())
    assert parse(RunConfig, written["settings"]) == recorder.config
    assert written["method-params"] == {"bn": "aggregate", "weighting": "samples"}
    assert written["clients"]["1"] == {
        "model": "tiny", "domain": "sketch", "train-examples": 5, "test-examples": 4, "feature-dim": 5,
        "num-classes": 3, "input-shape": [4], "label-counts": [1, 2, 2],
    }  # fmt: skip
    assert {"python", "fedapp", "flwr", "torch", "numpy"} <= set(written["versions"])


def test_the_headline_is_the_summary_in_words(finished):
    recorder, _ = finished
    summary, text = recorder.summary, recorder.headline()
    assert f"best {summary['accuracy']['best']:.4f}" in text
    assert f"worst {summary['clients']['worst']:.4f} (client {summary['clients']['worst_client']})" in text
    assert "failures" not in text


# ---- failures --------------------------------------------------------------------------------------


def failing(kind, client, number, error):
    app = client_app(load)

    def wrapped(message: Message, context):
        here = (message.metadata.message_type, client_id(context), message.metadata.group_id)
        if here == (kind, client, str(number)):
            raise error
        return app(message, context)

    return wrapped


def test_a_failure_is_listed_with_client_type_and_first_line(tmp_path, grid_of):
    grid = grid_of(3, load)
    grid.app = failing("train", "1", 2, ValueError("boom\nand a long story"))
    recorder, _ = run(tmp_path, grid)
    expected = {"round": 2, "client": "1", "phase": "train", "kind": "ValueError", "reason": "boom"}
    assert strict((recorder.folder / "summary.json").read_text())["failures"] == [expected]
    assert [line["failures"] for line in lines_of(recorder.folder)] == [0, 1]
    assert lines_of(recorder.folder)[1]["trained"] == ["0", "2"]
    row = [row for row in table_of(recorder.folder) if row["client"] == "1"][1]
    assert (row["trained"], row["train_loss"], row["payload_up"], row["failure"]) == ("0", "", "0", "ValueError: boom")
    assert row["accuracy"] != ""  # it was evaluated all the same
    assert "1 failures; first: client 1, round 2: ValueError: boom" in recorder.headline()


def test_a_client_that_cannot_start_is_listed_under_round_zero(tmp_path, grid_of):
    def broken(context):
        if client_id(context) == "1":
            raise FileNotFoundError("no data here")
        return load(context)

    recorder, _ = run(tmp_path, grid_of(3, broken))
    (failure,) = recorder.summary["failures"]
    assert failure == {
        "round": 0, "client": "1", "phase": "start", "kind": "FileNotFoundError", "reason": "no data here"
    }  # fmt: skip
    assert recorder.summary["num_clients"] == 2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_foreign_accuracy_that_is_no_number_costs_a_reply_and_not_the_run(tmp_path, grid_of, value):
    app = client_app(load)

    def odd(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "evaluate" and client_id(context) == "0":
            reply.content.metric_records["metrics"]["accuracy"] = value
        return reply

    grid = grid_of(3, load)
    grid.app = odd
    recorder, watch = run(tmp_path, grid)
    assert [failure["client"] for failure in recorder.failures] == ["0", "0"]
    assert lines_of(recorder.folder)[1]["accuracy"] == right(watch.models[2], "1") / 4


# ---- by hand ---------------------------------------------------------------------------------------


def started(tmp_path, clients):
    recorder = Recorder(RunConfig(method="local", out=str(tmp_path), run_name="hand"))
    strategy = Local(run="hand")
    strategy.roster.clients = {info.client: info for info in clients}
    recorder.on_start(strategy)
    return recorder, strategy


def evaluated(number, **accuracies):
    replies = [Reply(client, 4, {} if value is None else {"accuracy": value}) for client, value in accuracies.items()]
    traffic = {("evaluate", reply.client): Traffic() for reply in replies}
    return RoundRecord(number, evaluated=replies, traffic=traffic)


A, B = ClientInfo("a", domain="photo"), ClientInfo("b", domain="sketch")


def test_a_reply_without_an_accuracy_is_not_measured_rather_than_wrong(tmp_path):
    recorder, strategy = started(tmp_path, [A, B])
    recorder.on_round(strategy, evaluated(1, a=0.75, b=None))
    (line,) = lines_of(recorder.folder)
    assert (line["accuracy"], line["client_worst"], line["worst_client"]) == (0.75, 0.75, "a")
    assert line["domains"] == {"photo": 0.75, "sketch": None}


def test_a_domain_that_was_not_sampled_last_keeps_its_line_in_the_summary(tmp_path):
    recorder, strategy = started(tmp_path, [A, B])
    recorder.on_round(strategy, evaluated(1, a=0.25, b=0.5))
    recorder.on_round(strategy, evaluated(2, a=0.75))
    recorder.on_end(strategy, {})
    assert recorder.summary["domains"] == {
        "photo": {"best": 0.75, "last": 0.75, "last_ten": 0.5},
        "sketch": {"best": 0.5, "last": 0.5, "last_ten": 0.5},
    }


def test_a_client_that_fails_twice_in_a_round_shows_both_causes(tmp_path):
    recorder, strategy = started(tmp_path, [A, B])
    record = evaluated(1, b=0.5)
    record.traffic["train", "a"] = Traffic(payload_down=3)
    record.failures = [Failure("a", "train", "ValueError", "boom"), Failure("a", "evaluate", "NoReply", "silence")]
    recorder.on_round(strategy, record)
    assert [row["failure"] for row in table_of(recorder.folder)] == ["ValueError: boom; NoReply: silence", ""]


def test_a_node_that_fails_to_join_later_is_listed_with_that_round(tmp_path):
    recorder, strategy = started(tmp_path, [A])
    strategy.roster.failures.append(Failure("late", "start", "ValueError", "boom"))
    recorder.on_round(strategy, evaluated(3, a=0.5))
    recorder.on_round(strategy, evaluated(4, a=0.5))
    assert recorder.failures == [
        {"round": 3, "client": "late", "phase": "start", "kind": "ValueError", "reason": "boom"}
    ]


def test_a_round_without_evaluation_has_no_accuracy_and_does_not_count_for_the_last(tmp_path):
    recorder, strategy = started(tmp_path, [A, B])
    recorder.on_round(strategy, evaluated(1, a=0.5, b=0.25))
    recorder.on_round(strategy, RoundRecord(2))
    recorder.on_end(strategy, {})
    assert [line["accuracy"] for line in lines_of(recorder.folder)] == [0.375, None]
    assert recorder.summary["accuracy"] == {"best": 0.375, "last": 0.375, "last_ten": 0.375}
    assert recorder.summary["rounds"] == 2


def test_a_run_that_measured_nothing_is_strict_json_too(tmp_path):
    recorder, strategy = started(tmp_path, [A])
    recorder.on_round(strategy, RoundRecord(1))
    recorder.on_end(strategy, {})
    summary = strict((recorder.folder / "summary.json").read_text())
    assert summary["accuracy"] == {"best": None, "last": None, "last_ten": None}
    assert (summary["domains"], summary["clients"]["worst_client"]) == ({}, None)
    assert recorder.headline() == "local: nothing was evaluated"


def test_the_tail_is_the_mean_of_the_last_ten_evaluations(tmp_path):
    recorder, strategy = started(tmp_path, [A])
    shares = [0.0, 1.0, *[0.5] * 5, *[0.25] * 5]
    for number, share in enumerate(shares, 1):
        recorder.on_round(strategy, evaluated(number, a=share))
    recorder.on_end(strategy, {})
    assert recorder.summary["accuracy"] == {"best": 1.0, "last": 0.25, "last_ten": 0.375}


def test_what_a_client_measures_beyond_the_usual_is_reported_and_what_is_not_finite_is_null():
    assert recording._plain({"loss": math.nan, "share": np.float64(0.5), "train-seconds": 3.0}) == {
        "loss": None, "share": 0.5
    }  # fmt: skip


# ---- folders ---------------------------------------------------------------------------------------


def test_a_given_run_name_that_exists_is_not_overwritten(tmp_path):
    (tmp_path / "r").mkdir()
    with pytest.raises(SettingError, match="exists already and is not overwritten; choose another run-name"):
        Recorder(RunConfig(out=str(tmp_path), run_name="r"))
    assert list((tmp_path / "r").iterdir()) == []


def test_automatic_names_never_collide(tmp_path, monkeypatch):
    fixed = SimpleNamespace(strftime=lambda _: "20260102-030405", perf_counter=lambda: 0.0)
    monkeypatch.setattr(recording, "time", fixed)
    names = [Recorder(RunConfig(out=str(tmp_path / "out"), seed=3)).name for _ in range(3)]
    base = "fedsaf-digits4-s3-20260102-030405"
    assert names == [base, f"{base}-2", f"{base}-3"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "x" * 200])
def test_a_run_name_that_is_no_folder_is_a_setting_error(tmp_path, name):
    with pytest.raises(SettingError, match="run-name"):
        Recorder(RunConfig(out=str(tmp_path / "out"), run_name=name))
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_says_which_setting_to_change(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"results cannot be written to .*set another folder with `out`"):
        Recorder(RunConfig(out=str(tmp_path / "file")))


def test_a_changed_run_name_gives_another_folder_beside_the_first(tmp_path):
    first = Recorder(RunConfig(out=str(tmp_path), run_name="a"))
    second = Recorder(replace(first.config, run_name="b"))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    assert second.folder.parent == first.folder.parent
