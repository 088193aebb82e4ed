import csv
import json
import re
from statistics import fmean

import pytest

from fedapp.experiments.single import told
from fedapp.report import write_comparison, write_report
from fedapp.report.channel_maps import RoleRow, role_map
from fedapp.report.records import load
from fedapp.strategies.fedsap.params import FedSAPParams
from tests.report.fedsap_runs import RESNET18, make_fedsap
from tests.report.folders import make
from tests.report.reading import Page, flat


@pytest.fixture(scope="module")
def made():
    return make_fedsap(6, 5, settings={"momentum": 0.9, "batch-size": 20})


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    return made.write(tmp_path_factory.mktemp("runs") / "fedsap")


@pytest.fixture(scope="module")
def text(folder):
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def read(made, path):
    return Page(write_report(made.write(path)).read_text(encoding="utf-8"))


def nested(value, key):
    """Return the numbers of nested mappings and lists by dotted key."""
    if isinstance(value, list):
        value = {str(i): inner for i, inner in enumerate(value)}
    if isinstance(value, dict):
        return {k: v for name, inner in value.items() for k, v in nested(inner, f"{key}.{name}").items()}
    return flat(value, key)


# ---- numbers -----------------------------------------------------------------------------------------


def test_every_number_of_the_summary_is_shown_the_evaluations_included(folder, page):
    expected = flat(json.loads((folder / "summary.json").read_text()))
    assert len([key for key in expected if key.startswith("evaluations.")]) == 6 * (3 + 3 + 4 * 3)
    assert {key: page.values()[key] for key in expected} == {key: repr(value) for key, value in expected.items()}


def test_every_number_of_the_submodels_is_in_the_records_or_follows_from_them(made, folder, page):
    state = made.rounds[-1]["analysis"]["submodels"]
    expected = {}
    for line in made.rounds:
        expected |= nested(line["analysis"]["submodels"], f"round.{line['round']}.analysis.submodels")
    expected |= derived(made, state, folder)
    shown = {
        k: v for k, v in page.values().items() if re.match(r"submodels?\.|budget\.|move\.|round\.\d+\.analysis", k)
    }
    assert {key: float(value) for key, value in shown.items()} == pytest.approx({key: expected[key] for key in shown})
    assert len(shown) > 150


def derived(made, state, folder):
    """Return what the page works out, by another way."""
    sizes = [layer["channels"] for layer in state["layers"]]
    found = {"submodels.round": 5, "submodel.channels": sum(sizes)}
    found["submodel.full.memory"] = memory(state["full"])
    for client, own in state["clients"].items():
        kept = [a + b for a, b in zip(own["global"], own["private"], strict=True)]
        shares = [a / b for a, b in zip(kept, sizes, strict=True)]
        costs = {"parameters": own["parameters"] / state["full"]["parameters"]}
        costs |= {"macs": own["macs"] / state["full"]["macs"], "memory": memory(own) / memory(state["full"])}
        values = {"kept": sum(kept), "global": sum(own["global"]), "private": sum(own["private"])}
        values |= {"most": max(shares), "least": min(shares), "memory": memory(own)}
        for way in ("down", "up"):
            values[way] = measured(folder, client, way)
            costs[way] = values[way] / state["full"]["bytes"]
        values |= {f"{name}_share": share for name, share in costs.items()}
        values |= {f"{name}_saved": 1 - share for name, share in costs.items()}
        found |= {f"submodel.{client}.{name}": value for name, value in values.items()}
        ratio = own["keep_ratio"]  # all clients of a budget hold the same here
        found |= {f"budget.{ratio}.layer.{i}": share for i, share in enumerate(shares)}
        found |= {f"budget.{ratio}.{name}": costs[name] for name in ("parameters", "macs", "memory")}
    return found | moved(made)


def memory(cost):
    """Weights, gradients and momentum in float32, and the activations of a batch of twenty."""
    return 12 * cost["parameters"] + 80 * cost["activations"]


def measured(folder, client, way):
    with (folder / "clients.csv").open(newline="") as file:
        return fmean(float(row[f"payload_{way}"]) for row in csv.DictReader(file) if row["client"] == client)


def moved(made):
    """Return the largest change of a layer's share from the first round to the last."""
    first, last = (made.rounds[i]["analysis"]["submodels"] for i in (0, -1))
    changes = []
    for client, own in last["clients"].items():
        for i, layer in enumerate(last["layers"]):
            before, after = (
                (s["clients"][client]["global"][i] + s["clients"][client]["private"][i]) / layer["channels"]
                for s in (first, last)
            )
            changes.append((abs(after - before), i, own["keep_ratio"], before, after))
    return dict(zip(("move.before", "move.after"), max(changes)[3:], strict=True))


def test_what_is_written_is_the_number_rounded(page):
    checked = 0
    for key, value, words in page.numbers:
        if (match := re.fullmatch(r"(-?[\d.]+)\xa0%", words)) and not key.startswith("client"):
            digits = len(match[1].partition(".")[2])
            assert float(match[1]) == pytest.approx(100 * float(value), abs=0.501 * 10**-digits)
            checked += 1
    assert checked > 200


def test_an_unfinished_run_shows_the_same(made, page, tmp_path):
    again = make_fedsap(6, 5, settings={"momentum": 0.9, "batch-size": 20}, finished=False)
    whole = {key: value for key, value in page.values().items() if key != "seconds.run"}
    assert read(again, tmp_path).values() == whole


# ---- in words ----------------------------------------------------------------------------------------


def test_each_client_has_one_sentence_worked_by_hand(tmp_path):
    made = make_fedsap(3, 3)
    cost = {"macs": 50, "parameters": 25, "bytes": 100, "activations": 10}
    full = {"macs": 100, "parameters": 100, "bytes": 400, "activations": 20}
    made.rounds[-1]["analysis"]["submodels"] |= {
        "layers": [{"name": "net.stem", "channels": 4}, {"name": "net.deep.conv", "channels": 8}],
        "importance": [0.5, 0.5],
        "dispersed": [0.0, 0.0],
        "full": full,
        "clients": {
            "0": {"keep_ratio": 0.5, "group": 1, "global": [1, 4], "private": [0, 1], **cost},
            "1": {"keep_ratio": 0.5, "group": 1, "global": [2, 4], "private": [0, 0], **cost},
            "2": {"keep_ratio": 1.0, "group": 0, "global": [3, 8], "private": [1, 0], **full},
        },
    }
    del made.rounds[:-1]
    for row in made.table:
        row["payload_up"] = 80
    words = read(made, tmp_path).text.replace("\xa0", " ")
    # memory: 1 - (2 x 25 + 100 x 10) / (2 x 100 + 100 x 20) = 0.523; upload: 1 - 80 / 400
    assert (
        "Client 0 (optical) may keep 50 % of the channels: it holds 6 of 12, most in deep.conv (62 %) and least in "
        "stem (25 %); it shares 5 of them with all and 1 only with client 1 of group 1; so it saves 50 % of the "
        "computation, about 52 % of the training memory and 80 % of the upload." in words
    )
    assert (
        "Client 1 (mnist) may keep 50 % of the channels: it holds 6 of 12, the same share of every layer; it shares 6 "
        "of them with all and has none of its own group; so it saves" in words
    )
    assert (
        "Client 2 (mnistm) may keep 100 % of the channels: it holds all 12; it shares 11 of them with all and 1 with "
        "nobody, being alone in group 0; as it trains the full model, it saves nothing." in words
    )


def test_the_top_of_the_page_names_the_consensus(made, page):
    words = page.text.split("What ran")[0].replace("\xa0", " ")
    found = made.summary["evaluations"]["consensus-recalibrated"]
    mean, worst = (f"{100 * found[part]['last']:.2f} %" for part in ("global_mean", "worst_domain"))
    expected = (
        f"One model for everybody (consensus) reaches {mean} on average over the domains and {worst} in the worst"
    )
    assert expected in words


@pytest.mark.parametrize(("profile", "headline"), [("edge", "re-estimated"), ("paper", "averaged")])
def test_the_profile_says_which_way_of_batch_norm_is_the_headline(tmp_path, profile, headline):
    page = read(make_fedsap(4, 2, params=FedSAPParams(profile)), tmp_path)
    assert f"The headline of this run is {headline} (bn.recalibrate = " in page.text
    name = "consensus-recalibrated" if profile == "edge" else "consensus"
    assert page.text.count(f"{name} (headline)") == 1
    assert page.text.count(" (headline)") == 3


def test_a_deployment_says_why_there_is_no_consensus(tmp_path):
    page = read(make_fedsap(4, 3, simulated=False), tmp_path)
    assert "Not evaluated. Outside a simulation the server has no test data, and no client that keeps" in page.text
    assert page.text.count("Not evaluated.") == 2
    assert "One model for everybody (consensus)" not in page.text
    assert {key.split(".")[1] for key in page.values() if key.startswith("evaluations.")} == {
        "deployed", "deployed-recalibrated",
    }  # fmt: skip


def test_a_consensus_of_full_devices_is_the_headline_as_averaged(tmp_path):
    made = make_fedsap(4, 3, simulated=False, finished=False)
    for line in made.rounds:
        line["evaluations"]["consensus"] = {"optical": 0.5, "mnist": 0.25}
    page = read(made, tmp_path)
    assert page.values()["evaluations.consensus.global_mean.last"] == "0.375"
    assert "consensus (headline)" in page.text
    assert page.text.count("Not evaluated.") == 1


def test_a_run_without_evaluation_says_so(tmp_path):
    page = read(make_fedsap(4, 3, evaluated=False), tmp_path)
    assert "Nothing was evaluated in this run." in page.text
    assert "Each client in a sentence" in page.text


def test_warnings_stand_at_the_top_and_in_the_section_with_their_rounds(tmp_path):
    made = make_fedsap(4, 5)
    for line in made.rounds[1:3]:
        line["analysis"]["submodels"]["warnings"] = ["only then"]
    for line in made.rounds[2:]:
        line["analysis"]["submodels"]["warnings"] = [*line["analysis"]["submodels"]["warnings"], "to the end"]
    page = read(made, tmp_path)
    top, rest = page.text.split("What ran, and how", 1)
    assert "to the end" in top
    assert "only then" not in top
    assert "In 3 of 5 rounds: to the end" in rest
    assert "In 2 of 5 rounds: only then" in rest


def test_settings_that_differ_from_their_profile_are_named(tmp_path):
    page = read(make_fedsap(4, 2, params=FedSAPParams("paper", tau=0.1, adaptive=False)), tmp_path / "a")
    assert "This run used the profile paper, the most literal reading of the paper." in page.text
    assert "Set otherwise: budget.adaptive = false, sgp.tau = 0.1." in page.text
    assert "sgp.tau0.1 (profile: 0.05)" in page.text
    assert "budget.roundingceil" in page.text
    assert "All layers keep alike (budget.adaptive = false)." in page.text
    usual = read(make_fedsap(4, 2), tmp_path / "b")
    assert "profile edge, what was measured to work on edge devices. Every setting is the profile's own." in usual.text


def test_settings_of_another_version_are_shown_without_a_comparison(tmp_path):
    made = make_fedsap(4, 2)
    made.config["method-params"]["sgp.of-tomorrow"] = 3
    page = read(made, tmp_path)
    assert "Its settings are not those of this version of fedapp" in page.text
    assert "sgp.of-tomorrow3" in page.text


def test_memory_is_not_estimated_where_activations_were_not_counted(tmp_path):
    made = make_fedsap(4, 2)
    for line in made.rounds:
        for cost in (line["analysis"]["submodels"]["full"], *line["analysis"]["submodels"]["clients"].values()):
            cost["activations"] = 0
    page = read(made, tmp_path)
    assert page.values()["submodel.1.memory"] == "null"
    assert "did not count activations" in page.text
    assert "training memory and" not in page.text


@pytest.mark.parametrize(("settings", "numbers"), [({}, 2), ({"momentum": 0.9}, 3), ({"optimizer": "adamw"}, 4)])
def test_memory_counts_what_the_optimiser_keeps(tmp_path, settings, numbers):
    made = make_fedsap(4, 2, settings={"batch-size": 10, **settings})
    full = made.rounds[-1]["analysis"]["submodels"]["full"]
    expected = 4 * (numbers * full["parameters"] + 10 * full["activations"])
    assert read(made, tmp_path).values()["submodel.full.memory"] == str(expected)


# ---- pictures ----------------------------------------------------------------------------------------


def test_a_group_s_number_stands_once_in_every_stretch(page):
    shown = [key for key, _, _ in page.numbers if key.endswith(".group")]
    assert sorted(shown) == sorted(
        f"round.{at}.analysis.submodels.clients.{client}.group"
        for client in range(6)
        for at in ([1] if client in (1, 5) else [1, 3])  # mnist is group 0 from the start, the others from round 3
    )


def test_a_bar_is_divided_as_the_channels_are_and_private_is_hatched():
    layers = [("a", 8), ("b", 8)]
    drawing = str(role_map([RoleRow("client", [(4, 2), (8, 0)], "key")], layers))
    body = drawing[drawing.index("client</text>") :]
    widths = [float(width) for width in re.findall(r'<path d="M[\d.]+ [\d.]+h([\d.]+)v12', body)]
    assert widths == pytest.approx([29 / 2, 29 / 4, 29, 29, 29], abs=0.06)
    assert body.count('stroke-width="0.9"') == 1
    assert [text for *_, text in Page(drawing).numbers] == ["4", "2", "8", "0"]


def test_twenty_clients_and_layers_stay_small_load_nothing_and_scroll(tmp_path):
    path = write_report(make_fedsap(20, 30, RESNET18, failing=[(2, "3")]).write(tmp_path))
    text = path.read_text()
    assert path.stat().st_size < 1e6
    page = Page(text)
    assert not any("width" in svg for svg in page.of("svg"))
    assert "layer4.0.downsample.0" in page.text
    for word in ("http", "//", "url(", "src=", "<script"):
        assert word not in text.lower()
    drawing = next(d for d in re.findall(r"<svg.*?</svg>", text) if "channel roles" in d)
    assert len(Page(drawing).numbers) == 20 * 20 * 2


def test_many_clients_are_cut_and_folded(tmp_path):
    page = read(make_fedsap(70, 2), tmp_path)
    assert page.text.count("The first 60 of 70 clients are shown.") == 3
    assert "Each of 70 clients in a sentence" in page.text


@pytest.mark.parametrize("evil", ['<script>alert("1")</script>', '" onload="x', "https://x.y/<link rel=z>"])
def test_every_text_is_escaped(tmp_path, evil):
    made = make_fedsap(4, 3, ((evil, 4), ("b", 8)), names=[evil, "1", "2", "3"], domains=(evil, "b"))
    made.config["method-params"]["profile"] = evil
    made.rounds[-1]["analysis"]["submodels"]["warnings"] = [evil]
    page = read(made, tmp_path)
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "img", "link"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count(evil) >= 8


def test_without_domains_there_is_no_agreement(tmp_path):
    page = read(make_fedsap(4, 3, domains=()), tmp_path)
    assert "true domains are not known, or all the same" in page.text
    assert "Groups against true domains" not in page.text


# ---- other methods, and lines elsewhere --------------------------------------------------------------


def test_other_methods_have_no_such_section(tmp_path):
    page = read(make(4, 3, method="fedavg", analysed=False), tmp_path)
    ids = {value for name, value in page.attributes if name == "id"}
    assert not ids & {"submodels", "evaluations"}
    assert "#submodels" not in [a["href"] for a in page.of("a")]
    assert "What each client kept" not in page.text


def test_submodels_are_not_taken_for_prototypes(folder, page):
    assert load(folder).analysed == []
    assert len(load(folder).submodels) == 5
    assert "this run recorded neither prototypes nor an analysis" in page.text


def test_a_comparison_sets_named_evaluations_beside_the_models_of_other_methods(tmp_path):
    sap = [make_fedsap(4, 3, seed=seed) for seed in (0, 1)]
    avg = make(4, 3, method="fedavg", analysed=False)
    folders = [one.write(tmp_path / str(i)) for i, one in enumerate([*sap, avg])]
    shown = Page(write_comparison(folders, tmp_path).read_text()).values()
    means = [one.summary["evaluations"]["consensus"]["global_mean"]["best"] for one in sap]
    key = "method.fedsap.evaluations.consensus.global_mean.best"
    assert float(shown[f"{key}.mean"]) == pytest.approx(fmean(means), rel=1e-12)
    assert float(shown[f"{key}.std"]) == pytest.approx(abs(means[0] - means[1]) / 2**0.5, rel=1e-9)
    own = max(fmean(line["domains"].values()) for line in avg.rounds)
    assert float(shown["method.fedavg.evaluations.clients' own models.global_mean.best.mean"]) == pytest.approx(own)
    alone = Page(write_comparison(folders[2:], tmp_path / "alone.html").read_text())
    assert "evaluated by name" not in alone.text


def test_the_closing_lines_name_every_evaluation(made):
    lines = told(made.summary)
    for name, found in made.summary["evaluations"].items():
        worst = min(found["domains"], key=lambda domain: found["domains"][domain]["last"])
        numbers = [f"{found['global_mean'][key]:.4f}" for key in ("best", "last", "last_ten")]
        expected = "  {}: mean over domains best {}, last {}, mean of the last ten {}; worst domain {} {:.4f}"
        assert expected.format(name, *numbers, worst, found["worst_domain"]["last"]) in lines
