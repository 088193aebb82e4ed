"""Devices with data of their own agree on labels and categories before any training."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context

from fedapp import agreement, client_app, node, server_app
from fedapp.agreement import announce, settled, unite
from fedapp.config import RunConfig, ServerSettings, SettingError, parse
from fedapp.local_grid import LocalGrid
from fedapp.strategies import METHODS
from fedapp.strategies.roster import NodesMissingError

DEVICES = {  # age, colour, label; the third lacks a class and a colour
    "kitchen": [(1, "red", "cat"), (2, "blue", "dog")] * 4,
    "garden": [(3, "green", "fox"), (5, "red", "cat")] * 4,
    "attic": [(4, "red", "cat"), (9, "red", "cat")] * 4,
}


def federation(folder: Path, devices: dict[str, list[Any]], header: dict[str, Any], **settings: Any) -> LocalGrid:
    """Simulated devices, each with a CSV file of its own at its data-path."""
    for name, rows in devices.items():
        (folder / name).mkdir(exist_ok=True)
        with (folder / name / "pets.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header.get(name, ("age", "colour", "label")), *rows])

    def load(context: Context) -> node.Setup:
        name = list(devices)[int(context.node_config["partition-id"])]
        own = {"client-id": name, "data-path": str(folder / name), "state-dir": str(folder / "state")}
        chosen = {"dataset": "csv", "models": "mlp", "feature-dim": 8, "local-epochs": 1, **settings}
        return client_app.load(replace(context, node_config=own, run_config={**chosen, **context.run_config}))

    return LocalGrid(node.client_app(load), len(devices), serialise=True)


def start(grid: LocalGrid, method: str = "fedproto") -> Any:
    strategy = METHODS[method].strategy(None, ServerSettings(node_timeout=10))
    strategy.start(grid, num_rounds=1)
    return strategy


@pytest.mark.parametrize("method", ["local", "fedproto"])
def test_devices_lay_out_the_union_of_their_labels_and_categories(tmp_path: Path, method: str) -> None:
    strategy = start(federation(tmp_path, DEVICES, {}), method)
    assert list(strategy.clients) == ["attic", "garden", "kitchen"]
    infos = strategy.clients.values()
    assert {info.num_classes for info in infos} == {3}
    assert {info.input_shape for info in infos} == {(4,)}  # age, blue, green, red
    assert [sum(info.label_counts) for info in infos] == [6, 6, 6]
    assert next(iter(infos)).label_counts[1:] == (0, 0)  # the attic has cats only
    assert len(strategy.record.trained) == 3
    assert settled(strategy.roster.agreed)["label-names"] == '["cat", "dog", "fox"]'
    assert not strategy.roster.failures


def test_a_continued_run_keeps_what_was_agreed_whoever_comes_back(tmp_path: Path) -> None:
    """Without the garden, and its fox, the others would number their classes anew, against the weights they have."""
    chosen: dict[str, Any] = {"method": "fedavg", "dataset": "csv", "models": "mlp", "feature-dim": 8}
    chosen["out"] = str(tmp_path)
    whole = federation(tmp_path, DEVICES, {})
    first = server_app.run(whole, parse(RunConfig, {**chosen, "run-name": "one", "num-server-rounds": 1}))
    fewer = federation(tmp_path, {name: DEVICES[name] for name in ("kitchen", "attic")}, {})
    again = {**chosen, "resume": str(first.folder), "run-name": "one", "num-server-rounds": 2}
    second = server_app.run(fewer, parse(RunConfig, again))
    assert list(second.clients) == ["attic", "kitchen"]
    assert {info.num_classes for info in second.clients.values()} == {3}
    assert [line["round"] for line in second.rounds] == [1, 2]


def test_names_that_the_user_gives_need_no_agreement(tmp_path: Path) -> None:
    given = {"label-names": "fox,dog,cat", "categories": json.dumps({"colour": ["red", "blue", "green"]})}
    strategy = start(federation(tmp_path, DEVICES, {}, **given))
    assert strategy.roster.agreed == ""
    assert {info.num_classes for info in strategy.clients.values()} == {3}


def test_other_input_columns_end_the_run_before_it_begins(tmp_path: Path) -> None:
    grid = federation(tmp_path, DEVICES, {"attic": ("weight", "colour", "label")})
    with pytest.raises(
        SettingError, match=r"clients attic and garden have other input columns \(colour, weight; age, c"
    ):
        start(grid)


def test_a_data_path_beside_a_data_set_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodesMissingError, match="dataset is digits4; set dataset to one of folder, csv"):
        start(federation(tmp_path, DEVICES, {}, dataset="digits4"))


def test_scaling_by_rows_that_no_device_sees_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodesMissingError, match="a device sees its own only; set client or none"):
        start(federation(tmp_path, DEVICES, {}, scaling="global"))


def test_union_does_not_depend_on_the_order_and_a_second_round_has_nothing_to_say() -> None:
    said = {"a": announce(["10", "9"], {"x": ["b"]}, ["x"]), "b": announce(["cat", "9"], {"x": ["a"]}, ["x"])}
    united = unite(said)
    assert united == unite(dict(reversed(said.items())))
    assert settled(united) == {"label-names": '["9", "10", "cat"]', "categories": '{"x": ["a", "b"]}'}
    assert announce([], {}, ["x"]) == ""
    assert unite({"a": "", "b": ""}) == ""


@pytest.mark.parametrize("text", ["{", "[1]", '{"label-names": [1]}', '{"categories": {"x": 3}}'])
def test_announcement_that_cannot_be_read_names_the_client(text: str) -> None:
    with pytest.raises(SettingError, match="client evil announces what cannot be read"):
        agreement.unite({"evil": text})
