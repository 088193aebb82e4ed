import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedapp.config import RunConfig, SettingError, flatten, parse
from fedapp.local_grid import LocalGrid
from fedapp.node import client_app
from fedapp.report import write_report
from fedapp.report.records import load, summarise
from tests import test_recorder
from tests.report.folders import make
from tests.report.reading import Page, flat

HOSTILE = '<script>alert("1")</script>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run in which clients fail, with everything a folder may hold."""
    made = make(6, 12, failing=[(0, "99"), (3, "2"), (4, "2"), (5, "4")])
    made.rounds[4]["aggregated"] = False
    return made.write(tmp_path_factory.mktemp("runs") / "full")


@pytest.fixture(scope="module")
def text(folder):
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def read(made, path):
    return Page(write_report(made.write(path)).read_text(encoding="utf-8"))


def exact(value):
    return "null" if value is None else repr(value)


# ---- numbers -----------------------------------------------------------------------------------------


def test_every_number_of_summary_json_is_shown_as_it_is(folder, page):
    expected = flat(json.loads((folder / "summary.json").read_text()))
    shown = page.values()
    assert set(expected) - set(shown) == set()
    assert {key: shown[key] for key in expected} == {key: exact(value) for key, value in expected.items()}


def test_every_other_number_is_in_the_rounds_or_the_table(folder, page):
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    with (folder / "clients.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    expected = flat(json.loads((folder / "summary.json").read_text()))
    expected |= {key: value for line in rounds for key, value in flat(line, f"round.{line['round']}").items()}
    for kind in rounds[0]["client_seconds"]:
        expected[f"client_seconds.{kind}"] = sum(line["client_seconds"][kind] for line in rounds)
    for client in {row["client"] for row in table}:
        own = [row for row in table if row["client"] == client]
        expected[f"client.{client}.accuracy"] = float(own[-1]["accuracy"])
        expected[f"client.{client}.trained"] = sum(int(row["trained"]) for row in own)
        for way in ("up", "down"):
            columns = (f"payload_{way}", f"header_{way}", f"evaluate_payload_{way}")
            expected[f"client.{client}.bytes_{way}"] = sum(int(row[column] or 0) for row in own for column in columns)
    expected["best_round"] = max(rounds, key=lambda line: line["accuracy"])["round"]
    expected["failures"] = 4
    free = re.compile(r"silhouette\.|client\.\d+\.seconds")  # tested on their own
    shown = {key: value for key, value in page.values().items() if not free.match(key)}
    assert shown == {key: exact(expected[key]) for key in shown}
    assert len(shown) > 150


def test_what_is_written_is_the_number_rounded(page):
    checked = 0
    for _, value, words in page.numbers:
        if match := re.fullmatch(r"(-?[\d.]+)\xa0%(?: \(round \d+\))?", words):
            assert float(match[1]) == pytest.approx(100 * float(value), abs=0.00501)
            checked += 1
    assert checked > 60


def test_a_client_s_seconds_are_the_sum_of_its_rows(folder, page):
    with (folder / "clients.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    for client in "01":
        kinds = ("load", "train", "save", "evaluate")
        total = sum(float(row[f"{kind}_seconds"] or 0) for row in table if row["client"] == client for kind in kinds)
        assert float(page.values()[f"client.{client}.seconds"]) == pytest.approx(total, rel=1e-12)


def test_best_and_worst_are_named(folder, page):
    summary = json.loads((folder / "summary.json").read_text())
    worst = summary["clients"]["worst_client"]
    assert f"the worst is client {worst}" in page.text
    assert f"best {100 * summary['accuracy']['best']:.2f}\xa0%, round " in page.text
    lowest = min(summary["domains"], key=lambda name: summary["domains"][name]["last"])
    assert f"the worst is {lowest}" in page.text


def test_the_choice_by_validation_is_shown(tmp_path):
    made = make(3, 4)
    for line in made.rounds:
        line["evaluate"]["validation-accuracy"] = 0.5
    made.summary["accuracy"]["by_validation"] = 0.4321
    page = read(made, tmp_path)
    assert page.values()["accuracy.by_validation"] == "0.4321"
    assert "43.21\xa0%" in page.text


def test_the_command_runs_the_same_settings_again(tmp_path):
    changed = {"method-params": "alignment=rcsa proto-weight=5", "learning-rate": 0.05, "shared-init": True, "seed": 7}
    made = make(5, 2, settings={**changed, "method": "fedsaf"}, failing=[(0, "node-9")])
    page = read(made, tmp_path)
    command = next(line for line in page.text.split("To run it again:") if line.startswith("fedapp run"))
    words = shlex.split(command.split("All settings")[0])
    assert words[:4] == ["fedapp", "run", "--clients", "6"]
    pairs = dict(word.partition("=")[::2] for word in words[5::2])
    assert set(words[4::2]) == {"--set"}
    assert set(pairs) == {*changed, "num-server-rounds"}
    again = flatten(parse(RunConfig, pairs))
    assert {k: v for k, v in made.config["settings"].items() if again[k] != v}.keys() == {"out", "run-name"}


def test_where_the_run_was_kept_stays_private(tmp_path):
    made = make(3, 2)
    made.config["settings"]["out"] = "/home/somebody/runs"
    assert "somebody" not in read(made, tmp_path).text


# ---- failures ----------------------------------------------------------------------------------------


def test_every_failed_client_is_named_with_round_type_and_first_line(page):
    section = page.text.split("Failures")[-1]
    assert "failed: client 99, 2 (2 times), 4" in section
    for number in (3, 4):
        assert f"{number}2trainNoReplyno reply within 60 s (round {number})" in section
    assert "start99startNoReply" in section
    assert "a second line" not in page.text


def test_a_round_that_changed_nothing_is_named(page):
    assert "round 5 changed nothing" in page.text


def test_a_run_without_failures_says_so(tmp_path):
    assert "No client failed in any round." in read(make(3, 2), tmp_path).text


# ---- one file that loads nothing -----------------------------------------------------------------------


def test_nothing_is_loaded_from_outside(text):
    for word in ("http", "//", "url(", "@import", "src=", "<link", "<script", "<iframe", "<object", "javascript:"):
        assert word not in text.lower()


def test_tags_match_and_ids_are_unique(page):
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids)) == 9
    assert {a["href"] for a in page.of("a")} == {f"#{name}" for name in ids}


@pytest.mark.parametrize("evil", [HOSTILE, '" onload="x', "a&amp;b", "https://x.y/<link rel=z>", "\x1bü\x7f", "a.b"])
def test_every_text_is_escaped(tmp_path, evil):
    made = make(4, 3, names=[evil, "1", "2", "3"], domains=(evil, "b"), method="fedsaf", failing=[(2, evil)])
    made.config["settings"]["method"] = made.summary["method"] = evil
    made.config["method-params"][evil] = evil
    made.failures[0]["reason"] = evil
    page = read(made, tmp_path)
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "img", "object", "embed"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count(re.sub(r"[\x1b\x7f]", "\ufffd", evil)) >= 5


def test_a_cause_that_is_no_text_is_still_written(tmp_path):
    made = make(3, 2, failing=[(1, "0")])
    made.failures[0]["reason"] = "half a \ud800 pair, and \x00"
    assert "half a ? pair, and \ufffd" in read(made, tmp_path).text


def test_an_address_in_a_cause_cannot_be_taken_for_one_of_the_page(tmp_path):
    made = make(3, 2, failing=[(1, "0")])
    made.failures[0]["reason"] = "cannot reach https://somewhere"
    text = write_report(made.write(tmp_path)).read_text()
    assert "//" not in text
    assert "cannot reach https://somewhere" in Page(text).text


def test_it_fits_a_phone_and_paper(text, page):
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.of("meta")
    drawings = page.of("svg")
    assert len(drawings) >= 14
    assert all("viewBox" in svg or "viewbox" in svg for svg in drawings)
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in drawings)
    assert not any("width" in svg for svg in drawings)
    assert "@media print" in text


def test_no_colour_stands_alone(text):
    for drawing in re.findall(r"<svg.*?</svg>", text):
        lines = re.findall(
            r'<path d="[^"]*" stroke="(#\w+)" stroke-width="1.8"(?: stroke-dasharray="([^"]*)")?', drawing
        )
        assert len({dash for _, dash in lines}) == len(lines)


# ---- what is not there ---------------------------------------------------------------------------------


def test_an_unfinished_run_shows_the_same_numbers_and_says_so(tmp_path):
    finished = read(make(5, 6, failing=[(2, "1")]), tmp_path / "a")
    page = read(make(5, 6, failing=[(2, "1")], finished=False), tmp_path / "b")
    assert "This run has not finished: 6 of 6 rounds" in page.text
    assert "failed: client 1" in page.text
    whole = {key: value for key, value in finished.values().items() if key != "seconds.run"}
    assert page.values() == whole


def test_a_run_without_evaluation_says_so(tmp_path):
    page = read(make(4, 3, evaluated=False), tmp_path)
    assert "No accuracy was measured in this run." in page.text
    assert "no accuracy was measured" in page.text
    assert "round.1.train.loss" in page.values()


def test_a_run_without_prototypes_says_so(tmp_path):
    page = read(make(4, 3, analysed=False), tmp_path)
    assert "this run recorded neither prototypes nor an analysis" in page.text


def test_an_analysis_without_prototypes_and_prototypes_without_an_analysis(tmp_path):
    made = make(4, 3)
    made.prototypes = None
    assert "The prototypes themselves were not kept" in read(made, tmp_path / "a").text
    made = make(4, 3)
    for line in made.rounds:
        del line["analysis"]
    page = read(made, tmp_path / "b")
    assert "No analysis over rounds was recorded." in page.text
    assert "silhouette.client" in page.values()


def test_label_counts_are_optional(tmp_path):
    made = make(4, 3)
    for info in made.config["clients"].values():
        del info["label-counts"]
    assert "was not recorded" in read(made, tmp_path).text


def test_a_method_without_alignment_says_so(tmp_path):
    made = make(4, 3)
    for line in made.rounds:
        line["train"] = {"loss": line["train"]["loss"]}
    page = read(made, tmp_path)
    assert "This method recorded no alignment term." in page.text
    assert "Alignment activity" not in page.text


def test_a_folder_with_settings_alone_gives_a_page(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"run": "r", "settings": {"method": "fedsaf"}}))
    page = Page(write_report(tmp_path).read_text())
    for words in ("has not finished", "No bytes were recorded", "No time was recorded", "No round was recorded"):
        assert words in page.text


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(SettingError, match="is no run's folder"):
        write_report(tmp_path)
    (tmp_path / "config.yaml").write_text("[1, 2]")
    with pytest.raises(SettingError, match="holds no settings"):
        write_report(tmp_path)


def test_cut_files_are_read_as_far_as_they_go_and_named(tmp_path):
    folder = make(4, 5).write(tmp_path)
    for name in ("rounds.jsonl", "clients.csv", "summary.json", "prototypes.safetensors"):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-20])
    page = Page(write_report(folder).read_text())
    assert "rounds.jsonl is cut off after 4 rounds" in page.text
    assert "summary.json cannot be read" in page.text
    assert "prototypes.safetensors cannot be read" in page.text
    assert page.values()["rounds"] == "4"


@pytest.mark.parametrize(
    "rows", [np.zeros((0, 4)), np.ones((30, 4)), np.eye(3), np.arange(9.0)[:, None], np.full((9, 4), np.nan)]
)
def test_prototypes_that_cannot_be_drawn_are_said_to_be(tmp_path, rows):
    made = make(4, 2)
    ids = np.arange(len(rows)) % 4
    made.prototypes = {"rows": rows.astype(np.float32), "client": ids, "class": ids, "counts": ids + 1}
    assert "too few, or too much alike" in read(made, tmp_path).text


def test_unmeasured_values_are_not_zero(tmp_path):
    made = make(4, 4)
    for line in made.rounds[1:3]:
        line["train"]["loss"] = line["accuracy"] = line["client_mean"] = None
        line["client_std"] = line["client_worst"] = line["worst_client"] = None
    page = read(made, tmp_path)
    assert ("round.2.train.loss", "null", "–") in page.numbers
    assert ("round.2.accuracy", "null", "–") in page.numbers


def test_a_client_that_was_not_evaluated_last_shows_its_own_last_round(tmp_path):
    made = make(4, 4)
    for row in made.table:
        if row["client"] == "1" and row["round"] > 2:
            row["accuracy"] = ""
        if row["client"] == "3":
            row["accuracy"] = ""
    page = read(made, tmp_path)
    assert "(round 2)" in page.text
    assert "never evaluated" in page.text


@pytest.mark.parametrize("damage", [lambda kept: b"", lambda kept: kept[:50], lambda kept: kept[:61] + b"\xff" * 200])
def test_a_damaged_partition_leaves_classes_without_names_and_says_so(tmp_path, damage):
    folder = make(3, 2).write(tmp_path)
    path = folder / "partition.npz"
    np.savez_compressed(path, classes=[f"class {number}" for number in range(99)])
    assert len(load(folder).class_names) == 99
    kept = path.read_bytes()
    broken = damage(kept)
    path.write_bytes(broken if len(broken) < 61 else broken + kept[len(broken) :])
    records = load(folder)
    assert records.class_names == []
    assert "the names of the classes cannot be read" in records.damage[0]


# ---- real runs and large ones ----------------------------------------------------------------------------


def test_a_real_run_is_reported_and_summed_up_as_the_recorder_does(tmp_path):
    grid = LocalGrid(client_app(test_recorder.load), 3, {})
    recorder, _ = test_recorder.run(tmp_path, grid, rounds=3)
    found = load(recorder.folder)
    made = summarise(found.config, found.rounds, found.summary["failures"])
    seconds = dict(found.summary["seconds"])
    seconds.pop("run")
    assert made | {"model_sha256": None} == found.summary | {"seconds": seconds, "model_sha256": None}
    page = Page(write_report(recorder.folder).read_text())
    expected = flat(json.loads((recorder.folder / "summary.json").read_text()))
    assert {key: page.values()[key] for key in expected} == {key: exact(value) for key, value in expected.items()}


def test_a_large_run_stays_small(tmp_path):
    path = write_report(make(20, 300, 4, feature_dim=8).write(tmp_path / "long"))
    assert path.stat().st_size < 1.5e6
    made = make(70, 2, 100, feature_dim=8, analysed=False)
    path = write_report(made.write(tmp_path / "wide"))
    assert path.stat().st_size < 1.5e6
    page = Page(path.read_text())
    assert "Of 70 clients the 40 worst are shown" in page.text
    assert "The first 60 of 70 clients are shown" in page.text
    assert f"the worst is client {made.summary['clients']['worst_client']}" in page.text


def test_the_same_records_give_the_same_page(folder, text):
    assert write_report(Path(folder)).read_text(encoding="utf-8") == text


def test_a_report_needs_no_torch(tmp_path):
    folder = make(4, 3, analysed=False).write(tmp_path)
    code = (
        "import sys; from pathlib import Path; from fedapp.report import write_report; write_report(Path(sys.argv[1]))"
    )
    code += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
