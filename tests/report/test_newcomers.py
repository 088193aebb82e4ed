"""What the page of a run says of the clients that were left out of training."""

import re

import pytest

from fedapp.report import write_report
from fedapp.report.records import load, summarise
from tests.report.folders import make
from tests.report.reading import Page

FIGURES = {
    "4": {"accuracy": 0.25, "prototype-accuracy": 0.125, "loss": 2.345678, "adapted-accuracy": 1.0},
    "5": {"accuracy": 0.5, "prototype-accuracy": None, "loss": 1.25, "adapted-accuracy": 0.75},
}
NAMED = {"left-out": "accuracy", "left-out-adapted": "adapted-accuracy"}


def leave_out(made, *clients, figures=FIGURES, names=True, domain=""):
    """Turn clients of a made run into ones that took no part, with the same figures in every evaluated round."""
    made.config["left-out"] = {}
    for client in clients:
        about = made.config["clients"].pop(client)
        named = {"name": f"ward-{client}"} if names else {}
        made.config["left-out"][client] = {**about, "domain": domain, **named}
    made.table = [row for row in made.table if row["client"] not in clients]
    for line in made.rounds:
        for part in ("trained", "evaluated"):
            line[part] = [client for client in line[part] if client not in clients]
        measured = {client: dict(figures.get(client, {})) for client in clients}
        if not line["evaluated"]:
            continue
        line["left_out"] = measured
        means = {
            name: [found[metric] for found in measured.values() if metric in found] for name, metric in NAMED.items()
        }
        line["evaluations"] = {name: {"all": sum(v) / len(v)} for name, v in means.items() if v}
    made.summary = summarise(made.config, made.rounds, [])
    return made


def text_of(made, path):
    return write_report(made.write(path)).read_text(encoding="utf-8")


def part(text, name):
    return re.search(rf'<section id="{name}">.*?</section>', text, re.DOTALL)[0]


def rows_of(section):
    """Return the rows of all tables of a section, as texts."""
    rows = re.findall(r"<tr>(.*?)</tr>", section, re.DOTALL)
    return [[Page(cell).text for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return text_of(leave_out(make(6, 3), "4", "5"), tmp_path_factory.mktemp("runs"))


# ---- among the clients -------------------------------------------------------------------------------


def test_those_left_out_stand_after_the_others_in_the_table_of_clients_in_words(text):
    rows = rows_of(part(text, "clients"))[1:]
    names = [row[0] for row in rows]
    assert names == ["0", "1", "2", "3", "4 (ward-4) left\xa0out", "5 (ward-5) left\xa0out"]
    about = make(6, 3).config["clients"]["4"]
    assert rows[4][1:5] == [about["model"], "–", f"{about['train-examples']:,}", str(about["test-examples"])]
    assert rows[4][5:] == ["–"] * 5  # nothing of it is kept by client


def test_those_left_out_stand_below_the_others_in_the_map_of_classes(text):
    section = part(text, "clients")
    drawing = re.search(r"<svg.*?</svg>", section, re.DOTALL)[0]
    heights = {words: float(y) for y, words in re.findall(r'y="([\d.]+)" text-anchor="end">([^<]*)<', drawing)}
    order = sorted(("0", "3", "left out ↓", "4 (ward-4)", "5 (ward-5)"), key=lambda words: heights[words])
    assert order == ["0", "3", "left out ↓", "4 (ward-4)", "5 (ward-5)"]
    assert 'Below "left out" stand those that took no part in training.' in Page(section).text
    made = make(6, 3)
    filled = sum(count > 0 for about in made.config["clients"].values() for count in about["label-counts"])
    shades = re.findall(r'd="([^"]*)" fill="#\w{6}" stroke="#fff"', drawing)
    assert sum(shade.count("M") for shade in shades) == filled


def test_of_many_clients_those_left_out_are_still_shown(tmp_path):
    made = leave_out(make(70, 1, feature_dim=4, analysed=False), "68", "69", names=False)
    section = part(text_of(made, tmp_path), "clients")
    assert "The first 58 of 68 clients are shown." in Page(section).text
    assert all(f">{client}</text>" in section for client in ("57", "68", "69"))
    assert ">58</text>" not in section


def test_without_label_counts_of_anybody_left_out_the_map_shows_the_others(tmp_path):
    made = leave_out(make(4, 2), "3", figures={})
    del made.config["left-out"]["3"]["label-counts"]
    assert "left out ↓" not in text_of(made, tmp_path)


def test_a_run_in_which_all_took_part_mentions_nobody_left_out(tmp_path):
    assert not re.search(r"left\sout", Page(text_of(make(4, 2), tmp_path)).text)


def test_what_ran_names_those_left_out(text):
    assert "left out of training4 (ward-4), 5 (ward-5)" in Page(part(text, "what")).text


def test_one_that_only_the_summary_knows_is_shown_with_what_is_known(tmp_path):
    made = make(4, 2)
    made.summary["left_out"] = {"9": "north"}
    records = load(made.write(tmp_path))
    assert records.newcomers == {"9": {"domain": "north"}}
    rows = rows_of(part(write_report(tmp_path).read_text(encoding="utf-8"), "clients"))
    assert rows[-1] == ["9 left\xa0out", "–", "north", *["–"] * 7]


# ---- how they fare -----------------------------------------------------------------------------------


def test_every_newcomer_s_own_figures_are_those_of_the_records(text):
    values = Page(part(text, "evaluations")).values()
    shown = {key: value for key, value in values.items() if key.startswith("round.3.left_out.")}
    assert shown == {
        f"round.3.left_out.{client}.{metric}": "null" if value is None else repr(value)
        for client, found in FIGURES.items()
        for metric, value in found.items()
    }
    rows = rows_of(part(text, "evaluations"))
    header = ["newcomer", "domain", "test samples", "round", "accuracy", "prototype accuracy", "adapted accuracy"]
    assert [*header, "loss"] in rows
    expected = ["4 (ward-4)", "–", "44", "3", "25.00\xa0%", "12.50\xa0%", "100.00\xa0%", "2.346"]
    assert expected in rows
    assert ["5 (ward-5)", "–", "45", "3", "50.00\xa0%", "–", "75.00\xa0%", "1.25"] in rows


def test_a_newcomer_that_was_not_evaluated_last_shows_its_own_last_round(tmp_path):
    made = leave_out(make(6, 3), "4", "5", names=False)
    del made.rounds[2]["left_out"]["5"]
    rows = rows_of(part(text_of(made, tmp_path), "evaluations"))
    assert [row[3] for row in rows if row[0] in ("4", "5")] == ["3", "2"]


def test_many_newcomers_are_folded(tmp_path):
    clients = [str(i) for i in range(3, 65)]
    made = leave_out(make(65, 1, feature_dim=4, analysed=False), *clients, figures=dict.fromkeys(clients, FIGURES["4"]))
    page = Page(part(text_of(made, tmp_path), "evaluations"))
    assert "All 62 newcomers" in page.text


def test_an_accuracy_axis_ends_at_one_hundred_where_all_newcomers_are_right(tmp_path):
    made = leave_out(make(4, 3), "3", figures={"3": {"accuracy": 1.0, "adapted-accuracy": 1.0}})
    section = part(text_of(made, tmp_path), "evaluations")
    ticks = [float(words) for words in re.findall(r'text-anchor="end">([\d.]+)</text>', section)]
    assert max(ticks) == 100


def test_without_statistics_taken_anew_no_title_speaks_of_them(text):
    assert "as averaged" not in Page(part(text, "evaluations")).text


# ---- why there is nothing to say -----------------------------------------------------------------------


def test_newcomers_without_test_samples_are_said_to_have_none(tmp_path):
    made = leave_out(make(4, 2), "2", "3", figures={})
    for about in made.config["left-out"].values():
        about["test-examples"] = 0
    words = Page(part(text_of(made, tmp_path), "evaluations")).text
    assert "Clients 2 (ward-2), 3 (ward-3) hold no test samples" in words
    assert "Nothing was evaluated" not in words
    assert "Each newcomer by itself" not in words


def test_of_two_newcomers_the_one_without_test_samples_is_named(tmp_path):
    made = leave_out(make(6, 2), "3", "4")
    made.config["left-out"]["3"]["test-examples"] = 0
    section = part(text_of(made, tmp_path), "evaluations")
    assert "Client 3 (ward-3) holds no test samples" in Page(section).text
    assert ["3 (ward-3)", "–", "0", *["–"] * 5] in rows_of(section)


def test_where_nobody_was_evaluated_newcomers_were_not_either(tmp_path):
    made = leave_out(make(4, 2, evaluated=False, settings={"fraction-evaluate": 0.0}), "3", figures={})
    words = Page(part(text_of(made, tmp_path), "evaluations")).text
    assert "Newcomers were not evaluated, as nobody was in this run (fraction-evaluate = 0)." in words
    assert "Nothing was evaluated" not in words


def test_a_newcomer_that_never_answered_is_said_not_to_have_been_evaluated(tmp_path):
    made = leave_out(make(4, 2), "3", figures={})
    for line in made.rounds:
        del line["left_out"]
    words = Page(part(text_of(made, tmp_path), "evaluations")).text
    assert "Client 3 (ward-3) was not evaluated in any round." in words
