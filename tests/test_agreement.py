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
from fedapp.config import DataSettings, OwnDataSettings, RunConfig, ServerSettings, SettingError, parse
from fedapp.datasets import load_pool
from fedapp.datasets.own import announce as announce_pool
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


def test_a_device_whose_numbers_are_all_missing_takes_part(tmp_path: Path) -> None:
    numbers = {name: [(age, 2 * age, label) for age, _, label in rows] for name, rows in DEVICES.items()}
    numbers["attic"] = [(age, "", label) for age, _, label in numbers["attic"]]
    strategy = start(federation(tmp_path, numbers, {}))
    assert {info.input_shape for info in strategy.clients.values()} == {(2,)}
    assert len(strategy.record.trained) == 3
    assert "categories" not in settled(strategy.roster.agreed)


@pytest.mark.parametrize("labels", ["", "cat,dog,fox"])
def test_a_device_whose_categories_are_all_missing_lays_out_those_of_the_others(tmp_path: Path, labels: str) -> None:
    devices = {**DEVICES, "attic": [(age, "", label) for age, _, label in DEVICES["attic"]]}
    strategy = start(federation(tmp_path, devices, {}, **{"label-names": labels}))
    assert {info.input_shape for info in strategy.clients.values()} == {(4,)}  # age, blue, green, red
    assert len(strategy.record.trained) == 3
    assert settled(strategy.roster.agreed)["categories"] == '{"colour": ["blue", "green", "red"]}'


def test_whole_numbers_are_one_name_on_all_devices(tmp_path: Path) -> None:
    devices = {"a": [(1, "red", "1"), (2, "red", "0")] * 4, "b": [(1, "red", "1.0"), (2, "red", "2.0")] * 4}
    strategy = start(federation(tmp_path, devices, {}))
    assert settled(strategy.roster.agreed)["label-names"] == '["0", "1", "2"]'
    assert {info.num_classes for info in strategy.clients.values()} == {3}


def test_categories_given_for_one_column_hold_beside_those_agreed_for_another(tmp_path: Path) -> None:
    wards = {name: [(number, colour, label) for number, (_, colour, label) in enumerate(rows)]
             for name, rows in DEVICES.items()}  # fmt: skip
    wards = {name: [("north" if number else name, *row) for number, *row in rows] for name, rows in wards.items()}
    given = {"categories": json.dumps({"colour": ["red", "blue", "green", "grey"]})}
    strategy = start(federation(tmp_path, wards, {}, **given))
    agreed = json.loads(settled(strategy.roster.agreed)["categories"])
    assert agreed == {"age": ["attic", "garden", "kitchen", "north"], "colour": ["blue", "green", "grey", "red"]}
    assert {info.input_shape for info in strategy.clients.values()} == {(8,)}


def test_a_label_in_the_test_rows_of_one_device_is_a_class_of_all(tmp_path: Path) -> None:
    grid = federation(tmp_path, DEVICES, {})
    with (tmp_path / "attic" / "test.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("age", "colour", "label"), (4, "red", "owl"), (5, "red", "cat")])
    strategy = start(grid)
    assert {info.num_classes for info in strategy.clients.values()} == {4}
    assert strategy.clients["attic"].label_counts == (8, 0, 0, 0)
    assert strategy.clients["attic"].num_test == 2
    assert settled(strategy.roster.agreed)["label-names"] == '["cat", "dog", "fox", "owl"]'
    assert len(strategy.record.trained) == 3
    assert not strategy.roster.failures


@pytest.mark.parametrize("method", ["fedproto", "fedsaf"])
def test_a_class_that_is_named_and_held_by_nobody_does_no_harm(tmp_path: Path, method: str) -> None:
    strategy = start(federation(tmp_path, DEVICES, {}, **{"label-names": "owl,cat,dog,fox"}), method)
    assert {info.num_classes for info in strategy.clients.values()} == {4}
    assert [info.label_counts[0] for info in strategy.clients.values()] == [0, 0, 0]
    assert len(strategy.record.trained) == 3
    assert not strategy.record.failures


def test_other_input_columns_end_the_run_before_it_begins(tmp_path: Path) -> None:
    grid = federation(tmp_path, DEVICES, {"attic": ("weight", "colour", "label")})
    with pytest.raises(
        SettingError, match=r"clients attic and garden have other input columns \(colour, weight; age, c"
    ):
        start(grid)


@pytest.mark.parametrize("given", [{}, {"label-names": "cat,dog"}, {"label-names": "cat,dog", "bad-rows": "skip"}])
def test_columns_have_to_agree_whatever_names_the_user_gives(tmp_path: Path, given: dict[str, str]) -> None:
    numbers = [(1, 2, "cat"), (3, 4, "dog")]
    grid = federation(tmp_path, {"a": numbers, "b": numbers}, {"b": ("age", "weight", "label")}, **given)
    with pytest.raises(SettingError, match="clients a and b have other input columns"):
        start(grid)


def test_a_column_of_numbers_here_and_words_there_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    devices = {"kitchen": [(1, "red", "cat"), (2, "blue", "dog")], "garden": [(3, 4, "cat"), (5, 6, "dog")]}
    grid = federation(tmp_path, devices, {})
    with pytest.raises(SettingError, match="column 'colour' holds numbers on client garden and words on client kitch"):
        start(grid)


def test_kinds_are_compared_although_the_words_are_given(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("good\nbad\n")
    devices = {"a": [("good wine", "cat"), ("bad", "dog")], "b": [(1, "cat"), (2, "dog")]}
    header = dict.fromkeys(devices, ("text", "label"))
    grid = federation(tmp_path, devices, header, vocabulary=str(tmp_path / "words.txt"), models="auto")
    with pytest.raises(SettingError, match="column 'text' holds numbers on client b and words on client a"):
        start(grid)


def test_who_fails_before_the_agreement_is_reported_with_that_cause(tmp_path: Path) -> None:
    """The attic's fox is unknown; that its colour is then missing from the agreed ones is only what follows."""
    devices = {**DEVICES, "attic": [(1, "mauve", "fox")] * 4, "garden": DEVICES["kitchen"]}
    strategy = start(federation(tmp_path, devices, {}, **{"label-names": "cat,dog"}))
    assert list(strategy.clients) == ["garden", "kitchen"]
    (failure,) = strategy.roster.failures
    assert failure.client == "2"
    assert "label 'fox' is not among cat, dog" in failure.reason


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
    assert unite({"a": announce([], {}, ["x"]), "b": announce([], {}, ["x"])}) == ""
    assert unite({"a": "", "b": ""}) == ""


@pytest.mark.parametrize("colours", [["red", "blue"], ["2.0", "1"]])
def test_missing_cells_become_what_the_others_announce(tmp_path: Path, colours: list[str]) -> None:
    given = "" if colours[0] == "red" else '{"colour": []}'
    own = OwnDataSettings(categories=given)
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, cells in zip(paths, (colours, ["", ""]), strict=True):
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(
                [("age", "colour", "label"), *((n, cell, "cat") for n, cell in enumerate(cells))]
            )
    a, b = (load_pool(DataSettings("csv", str(path), own=own)) for path in paths)
    agreed = settled(unite({"a": announce_pool(a, own), "b": announce_pool(b, own)}))
    own = replace(own, categories=agreed["categories"], label_names=agreed["label-names"])
    a, b = (load_pool(DataSettings("csv", str(path), own=own)) for path in paths)
    assert dict(a.categories) == dict(b.categories) == {"colour": ("1", "2") if given else ("blue", "red")}
    assert a.inputs.tolist() == [[0, 0, 1], [1, 1, 0]]
    assert b.inputs.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert unite({"a": announce_pool(a, own), "b": announce_pool(b, own)}) == ""


def test_names_of_thousands_of_digits_are_united_as_texts() -> None:
    names = ["9" * 5000, "10", "9"]
    assert json.loads(settled(unite({"a": announce(names, {}, [])}))["label-names"]) == ["9", "10", "9" * 5000]


@pytest.mark.parametrize("text", ["{", "[1]", '{"label-names": [1]}', '{"categories": {"x": 3}}'])
def test_announcement_that_cannot_be_read_names_the_client(text: str) -> None:
    with pytest.raises(SettingError, match="client evil announces what cannot be read"):
        agreement.unite({"evil": text})
