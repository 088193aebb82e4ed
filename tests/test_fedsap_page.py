"""docs/fedsap.md holds: the table of profiles is the code's, and the page of results is made of what runs left."""

import dataclasses
import re
from pathlib import Path

from fedapp.config import key_of
from fedapp.experiments import fedsap_page
from fedapp.experiments.records import Run
from fedapp.experiments.results import Entry
from fedapp.strategies.fedsap import FedSAPParams

PAGE = (Path(__file__).parents[1] / "docs" / "fedsap.md").read_text(encoding="utf-8")


def test_the_table_of_profiles_names_every_difference_and_no_other():
    edge, paper = FedSAPParams("edge"), FedSAPParams("paper")
    fields = [field for field in dataclasses.fields(edge) if field.name != "profile"]
    values = {key_of(field): (str(getattr(edge, field.name)), str(getattr(paper, field.name))) for field in fields}
    expected = {key: pair for key, pair in values.items() if pair[0] != pair[1]}
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|", PAGE, flags=re.MULTILINE)
    assert {key: (first, second) for key, first, second in rows} == expected
    assert len(rows) == len(expected)


def test_every_key_on_the_page_is_a_setting():
    known = {key_of(field) for field in dataclasses.fields(FedSAPParams())}
    named = {word.split("=")[0] for word in re.findall(r"`([a-z-]+\.[a-z-]+(?:=[\w-]+)?)`", PAGE)}
    assert named - {"docs/settings.md"} <= known


def line(number, accuracies, fedsap):
    shared = {"round": number, "seconds": {"aggregate": 0.5}, "client_seconds": {"cpu": 4.0}}
    if not fedsap:
        return {**shared, "domains": accuracies}
    submodels = {"adjusted_rand": number / 4, "num_groups": number}
    evaluations = {"consensus": accuracies, "deployed-recalibrated": dict.fromkeys(accuracies, 0.5)}
    return {**shared, "evaluations": evaluations, "analysis": {"submodels": submodels}}


def made(method, seed=0, **params):
    accuracies = [{"a": 0.25, "b": 0.75}, {"a": 0.5, "b": 0.25}]
    settings = {"method": method, "seed": seed, **{f"method-params.{key}": value for key, value in params.items()}}
    rounds = [line(number, found, method == "fedsap") for number, found in enumerate(accuracies, start=1)]
    traffic = {"payload_down": 2 * 2**20, "payload_up": 2**20}
    return Run(Path(), settings, {}, rounds, {"rounds": 2, "bytes": traffic})


def test_the_page_of_results_counts_fedavgs_one_model_as_a_consensus_and_names_every_evaluation():
    runs = [made("fedavg"), made("fedsap", profile="edge")]
    rows = fedsap_page.over_rounds(runs).splitlines()[2:]
    assert rows == [
        "| fedavg | 0 | consensus | 50.0 / 37.5 / 43.8 | 25.0 / 25.0 / 25.0 |",
        "| fedsap `edge` | 0 | consensus | 50.0 / 37.5 / 43.8 | 25.0 / 25.0 / 25.0 |",
        "| fedsap `edge` | 0 | deployed, re-estimated | 50.0 / 50.0 / 50.0 | 50.0 / 50.0 / 50.0 |",
    ]
    assert fedsap_page.by_domain(runs).splitlines()[2].endswith("| 50.0 / 50.0 / 37.5 | 75.0 / 25.0 / 50.0 |")
    assert fedsap_page.costs(runs[:1]).splitlines()[2] == "| fedavg | 0 | 2 | 1.00 | 0.50 | 4.00 |"


def test_the_page_of_results_shows_the_rand_index_by_round():
    run = made("fedsap", **{"dga.signal": "bn_stats", "dga.at": "after-local", "dga.center": True})
    row = fedsap_page.grouping([run]).splitlines()[2]
    assert row == "| bn_stats | after-local | centred | 0 | 0.25 | 0.50 | 0.38 | 2 |"


def test_the_page_of_results_names_the_choice_that_was_changed():
    run = made("fedsap", **{"profile": "edge", "util.scope": "client"})
    given = {"method-params.profile": "edge", "method-params.util.scope": "client"}
    entries = [Entry("a", 0, given, "done", "", run), Entry("b", 0, {}, "waiting", "", None)]
    for one in run.rounds:
        one["evaluations"] |= {name: {"a": 0.5, "b": 1.0} for name in fedsap_page.EVALUATIONS[1::2]}
    assert fedsap_page.choices(entries).splitlines()[2:] == [
        "| fedsap `edge` | `util.scope=client` | 0 | 75.0 | 75.0 | 75.0 |"
    ]


def test_the_dense_reference_is_called_what_it_is():
    dense = {"budget.keep-ratios": "1", "sgp.tri-state": False}
    assert fedsap_page.label(made("fedsap", profile="edge", **dense)) == "dense averaging (FedAvg by `fedsap`)"
    assert "width-scaled" in fedsap_page.label(made("fedsap", **{"sgp.tri-state": False}))
