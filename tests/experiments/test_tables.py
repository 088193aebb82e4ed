"""Tables and figures from records alone: ours beside the expected, what is missing named, nothing heavy imported."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.config import SettingError
from fedapp.experiments import figures, grid, plots, records, results, tables

from .conftest import plan
from .records_by_hand import write_run, write_sweep

EXPECTED = [{"match": {"method": "fedproto"}, "value": 85.81, "std": 0.06, "source": "FedSAF Table I"}]
CURVES = {
    "fedproto 0": [0.5, 0.84, 0.80],
    "fedproto 1": [0.5, 0.86, 0.80],
    "local 0": [0.25, 0.75],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sweep = grid.build(plan(seeds=[0, 1], expected=EXPECTED, title="By hand"), "s")
    write_sweep(tmp_path / "s", sweep, CURVES)
    return tmp_path / "s"


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_the_expected_number_and_the_difference_stand_beside_ours(folder: Path) -> None:
    first, second = tables.rows(results.load(folder))
    # 84 and 86: mean 85, sample standard deviation sqrt(2)
    assert first.ours is not None
    assert (first.ours.mean, first.ours.std) == pytest.approx((85.0, 2**0.5), rel=1e-12)
    assert (first.theirs, first.theirs_std, first.source) == (85.81, 0.06, "FedSAF Table I")
    assert first.difference == pytest.approx(-0.81, rel=1e-12)
    assert (second.key, second.done, second.planned, second.theirs) == (("local",), 1, 2, None)
    lines = tables.markdown(tables.long_table(results.load(folder))).splitlines()
    assert "| fedproto | 2/2 | best | 85.00 ± 1.41 | 85.81 ± 0.06 | -0.81 | FedSAF Table I |" in lines
    assert "| local | 1/2 | best | 75.00 |  |  |  |" in lines
    assert "- 1 of 4 runs are not done yet" in lines


def test_the_command_writes_markdown_and_csv_with_every_digit(folder: Path) -> None:
    code, output = call("table", str(folder), "--metric", "best", "--metric", "last")
    assert code == 0, output
    assert "85.00 ± 1.41" in output
    assert "85.00 ± 1.41" in (folder / "table.md").read_text()
    lines = list(csv.DictReader(io.StringIO((folder / "table.csv").read_text())))
    assert [(line["method"], line["metric"]) for line in lines] == [
        ("fedproto", "best"), ("local", "best"), ("fedproto", "last"), ("local", "last"),
    ]  # fmt: skip
    assert float(lines[0]["difference"]) == pytest.approx(-0.81, rel=1e-12)
    assert (lines[1]["n"], lines[1]["planned"], lines[1]["std"], lines[1]["expected"]) == ("1", "2", "", "")


def test_a_pivot_has_settings_for_columns_and_expected_numbers_in_brackets(folder: Path) -> None:
    table = tables.pivot(results.load(folder), ["seed"], ["method"])
    assert table.header == ("seed", "method fedproto", "method local")
    assert table.body == (("0", "84.00 [85.81 ± 0.06]", "75.00"), ("1", "86.00 [85.81 ± 0.06]", "-"))


def test_averaging_over_a_setting_is_said_and_gets_no_expected_number(tmp_path: Path) -> None:
    expected = [{"match": {"method": "local", "dirichlet-alpha": 0.1}, "value": 1.0}]
    described = plan(grid={"dirichlet-alpha": [0.1, 0.5], "method": "local"}, expected=expected)
    write_sweep(tmp_path / "s", grid.build(described, "s"), {"local 0": [0.5]})
    found = results.load(tmp_path / "s")
    table = tables.long_table(found, ["method"])
    assert table.header == ("method", "seeds", "metric", "ours")
    assert any("dirichlet-alpha: tell them apart with --by" in note for note in table.notes)
    assert [row.theirs for row in tables.rows(found)] == [1.0, None]


def test_settings_in_place_of_the_files_are_said(tmp_path: Path) -> None:
    sweep = grid.build(plan(), "s", {"num-server-rounds": "1"})
    write_sweep(tmp_path / "s", sweep, {"local 0": [0.5]})
    assert "run with settings other than the file's: num-server-rounds=1" in results.warnings(
        results.load(tmp_path / "s")
    )


def test_a_folder_of_runs_without_a_plan_is_grouped_by_what_varies(tmp_path: Path) -> None:
    for name, method, seed, best in [("a", "fedproto", 0, 0.5), ("b", "fedproto", 1, 0.75), ("c", "local", 0, 0.25)]:
        write_run(tmp_path / name, {"method": method, "seed": seed, "out": name, "run-name": name}, [best])
    found = results.load(tmp_path)
    assert found.varied == ("method",)
    assert [(row.key, row.ours.mean) for row in tables.rows(found) if row.ours] == [
        (("fedproto",), 62.5), (("local",), 25.0),
    ]  # fmt: skip


def test_numbers_of_a_run(tmp_path: Path) -> None:
    run = records.read(write_run(tmp_path / "a", {"method": "local", "seed": 0}, [0.25, 0.75, 0.5]))
    assert records.measure(run) == {
        "best": 75.0, "last": 50.0, "last_ten": 50.0, "by_validation": None, "client_mean": 50.0, "client_std": 12.5,
        "global_mean": None, "global_mean_last_ten": None,
        "client_worst": 25.0, "mib_up": 3.5, "mib_down": 1.0, "mib_up_round": 1.0, "mib_down_round": 2.0,
        "cpu_seconds": 4.5, "train_seconds": 4.5, "run_seconds": 9.0, "failures": 0.0,
    }  # fmt: skip
    assert records.curve(run) == {1: 25.0, 2: 75.0, 3: 50.0}


def test_unequal_data_of_clients_is_found_in_the_records(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, {"method": name, "seed": 0}, [0.5]) for name in ("local", "fedproto")]
    assert records.data_differences([records.read(folder) for folder in runs]) == []
    text = (runs[1] / "config.yaml").read_text()
    (runs[1] / "config.yaml").write_text(text.replace("train-examples: 20", "train-examples: 21"))
    (line,) = records.data_differences([records.read(folder) for folder in runs])
    assert line.startswith("fedproto: client 1 is {")
    assert any("clients held other data: " in note for note in results.warnings(results.load(tmp_path)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table", "s", "--metric", "bets"], "did you mean best?"),
        (["table", "s", "--by", "methd"], "did you mean method?"),
        (["table", "s", "--by", "method", "--columns", "method"], "cannot make rows and columns at once"),
        (["table", "nowhere"], "nowhere is no folder"),
        (["table", "."], "holds neither sweep.json nor a finished run"),
        (["plot", "s", "--metric", "bets"], "did you mean best?"),
    ],
)
def test_a_wrong_word_ends_with_code_2_and_a_way_out(folder: Path, words: list[str], message: str) -> None:
    code, output = call(*words)
    assert code == 2, output
    assert message in output


def test_table_and_plot_import_neither_torch_nor_flower(folder: Path) -> None:
    code = (
        "import sys\nfrom fedapp.cli import app\n"
        "for words in (['table', 's'], ['plot', 's']):\n"
        "    try:\n        app(words)\n    except SystemExit as end:\n        assert not end.code\n"
        "assert not {'torch', 'flwr', 'ray', 'datasets', 'matplotlib.pyplot'} & set(sys.modules), 'heavy import'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("curves.svg", "curves.png", "best.svg", "best.png"):
        assert (folder / "figures" / name).stat().st_size > 1000


def test_the_figures_name_every_line_and_are_the_same_twice(folder: Path) -> None:
    plots.plot(results.load(folder))
    first = (folder / "figures" / "curves.svg").read_bytes()
    words = "".join(ElementTree.fromstring(first).itertext())
    assert all(word in words for word in ("fedproto", "local", "round", "accuracy (%)"))
    plots.plot(results.load(folder))
    assert (folder / "figures" / "curves.svg").read_bytes() == first


def test_no_two_of_the_first_sixty_four_lines_look_alike_without_colour() -> None:
    lines = [figures.Line(str(index), (1, 2), (1.0, 2.0), None) for index in range(64)]
    drawn = figures.draw_curves({"": lines}).axes[0].get_lines()
    looks = {(str(line._unscaled_dash_pattern), line.get_marker()) for line in drawn if line.get_marker() != "*"}
    assert len(looks) == 64


def test_the_heat_map_subtracts_the_corner_that_all_panels_share(tmp_path: Path) -> None:
    weights = ["method-params.proto-weight", "method-params.inst-weight"]
    points = [
        dict.fromkeys(weights, 0),
        {"method-params.alignment": ["mse", "gcsa"], weights[0]: 1, weights[1]: 0},
        {"method-params.alignment": "gcsa", weights[0]: 1, weights[1]: 1},
    ]
    heat = {"x": weights[0], "y": weights[1], "panels": "method-params.alignment"}
    described = plan(base={"method": "fedsaf"}, grid=points, **{"heat-map": {**heat, "baseline": points[0]}})
    write_sweep(tmp_path / "s", grid.build(described, "s"), {})
    sweep = grid.build(described, "s")
    for cell, best in zip(sweep.cells, (0.5, 0.25, 0.75, 1.0), strict=True):
        write_run(tmp_path / "s" / cell.name, {**cell.settings, "seed": 0}, [best])
    text = (tmp_path / "s" / "sweep.json").read_text()
    (tmp_path / "s" / "sweep.json").write_text(text.replace('"waiting"', '"done"'))
    svg, _ = plots.plot(results.load(tmp_path / "s"))
    words = [text.strip() for text in ElementTree.fromstring(svg.read_bytes()).itertext()]
    # gcsa: corner 0, then 75 - 50 and 100 - 50; mse: the same corner and 25 - 50
    assert sorted(word for word in words if word[:1] in "+-" and word[1:2].isdigit()) == [
        "+0.00", "+0.00", "+25.00", "+50.00", "-25.00",
    ]  # fmt: skip


def test_nothing_done_is_nothing_to_draw(tmp_path: Path) -> None:
    write_sweep(tmp_path / "s", grid.build(plan(), "s"), {})
    with pytest.raises(SettingError, match="nothing to draw"):
        plots.plot(results.load(tmp_path / "s"))
    assert tables.rows(results.load(tmp_path / "s"))[0].ours is None


def test_the_mean_over_domains_is_the_consensus_where_there_is_one_else_that_of_the_clients() -> None:
    lines = [{"domains": {"a": 0.25, "b": 0.75}}, {"domains": {"a": 0.5, "b": 1.0}}, {"domains": {}}]
    single = records.Run(Path(), {"method": "fedavg"}, {}, lines, {})
    assert records.METRICS["global_mean"].value(single) == 75.0
    assert records.METRICS["global_mean_last_ten"].value(single) == 62.5
    means = {"consensus": {"global_mean": {"best": 0.5}}, "consensus-recalibrated": {"global_mean": {"best": 0.625}}}
    for again, expected in ((False, 50.0), (True, 62.5)):
        run = records.Run(Path(), {"method-params.bn.recalibrate": again}, {}, lines, {"evaluations": means})
        assert records.METRICS["global_mean"].value(run) == expected
