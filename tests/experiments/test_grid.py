"""Grids: what they span, what is refused before anything runs, and the files that are shipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedapp import server_app
from fedapp.config import RunConfig, SettingError, flatten, parse
from fedapp.datasets.presets import settings_of
from fedapp.experiments import execution, grid

SHIPPED = sorted(grid.CONFIGS.glob("*.yaml"))


def described(**values: Any) -> dict[str, Any]:
    return {"base": {"method": "fedsaf"}, "grid": {"dirichlet-alpha": [0.1, 0.5]}, "seeds": [0, 1], **values}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_cell_of_a_shipped_file_is_a_valid_run(path: Path) -> None:
    sweep = grid.load(path)
    assert sweep.cells
    for cell in sweep.cells:
        assert parse(RunConfig, flatten(cell.config)) == cell.config
    for cell in {cell.group: cell for cell in sweep.cells}.values():
        server_app.check(cell.config)
    for expected in sweep.expected:  # beside each number stand the seeds of exactly one cell
        groups = {cell.group for cell in sweep.cells if grid.matches(cell.settings, expected.match)}
        assert len(groups) == 1, expected


def test_the_papers_tables_are_shipped_with_its_settings() -> None:
    assert {f"fedsaf-table-{number}" for number in (1, 2, 3, 6, 7, 8, 9)} <= {path.stem for path in SHIPPED}
    table = grid.load(grid.find("fedsaf-table-1"))
    config = table.cells[0].config
    assert (config.num_server_rounds, config.training.batch_size, config.training.local_epochs) == (300, 100, 5)
    assert (config.models, config.data.partition, table.cells[0].clients) == ("htfe9", "dirichlet", 20)
    gcsa = {"method": "fedsaf", "method-params.alignment": "gcsa", "dataset": "cifar100", "dirichlet-alpha": 0.5}
    (number,) = [entry for entry in table.expected if entry.match == gcsa]
    assert (number.value, number.std, number.metric, number.source) == (26.83, 0.35, "best", "FedSAF Table I")


def test_the_gain_map_has_one_corner_for_all_alignments() -> None:
    sweep = grid.load(grid.find("fedsaf-figure-5"), seeds=[0])
    corner = {"method-params.proto-weight": 0, "method-params.inst-weight": 0}
    assert sum(grid.matches(cell.settings, corner) for cell in sweep.cells) == 1
    assert len(sweep.cells) == 1 + 4 * 24


def test_seeds_come_one_after_the_other_and_share_the_partition() -> None:
    sweep = grid.build(described(), "s")
    assert [cell.config.seed for cell in sweep.cells] == [0, 0, 1, 1]
    assert {cell.config.data.partition_seed for cell in sweep.cells} == {1}
    assert len({cell.name for cell in sweep.cells}) == 4
    assert len({cell.group for cell in sweep.cells}) == 2


def test_a_name_depends_on_settings_and_not_on_how_they_are_written() -> None:
    base = {"method": "fedsaf", "local-epochs": 2}
    plain = grid.build(described(base={**base, "method-params": "alignment=rcsa proto-weight=5"}), "s")
    written = grid.build(
        described(
            base={"local-epochs": "2", "method-params": {"proto-weight": 5.0, "alignment": "rcsa"}, "method": "fedsaf"},
            grid={"dirichlet-alpha": ["0.10", 0.5]},
        ),
        "s",
    )
    other = grid.build(described(base={**base, "local-epochs": 3}), "s")
    elsewhere = grid.build(described(), "s", {"data-root": str(Path.cwd())})
    assert [cell.name for cell in plain.cells] == [cell.name for cell in written.cells]
    assert not {cell.name for cell in plain.cells} & {cell.name for cell in other.cells}
    assert [cell.name for cell in elsewhere.cells] == [cell.name for cell in grid.build(described(), "s").cells]


def test_the_same_cell_given_twice_runs_once() -> None:
    sweep = grid.build({"grid": [{"method": ["local", "fedsaf"]}, {"method": "local"}]}, "s")
    assert [cell.config.method for cell in sweep.cells] == ["local", "fedsaf"]


def test_settings_of_a_method_as_text_as_a_mapping_and_one_by_one() -> None:
    points: list[Any] = [
        {"method-params": "alignment=rcsa proto-weight=5"},
        {"method-params": {"alignment": "rcsa", "proto-weight": 5}},
        {"method-params.alignment": "rcsa", "method-params.proto-weight": 5},
    ]
    sweeps = [grid.build({"base": {"method": "fedsaf", **point}}, "s") for point in points]
    assert len({sweep.cells[0].name for sweep in sweeps}) == 1
    _, params = server_app.check(sweeps[0].cells[0].config)
    assert (params.alignment, params.proto_weight) == ("rcsa", 5.0)


def test_an_override_wins_over_the_base_but_not_over_the_grid() -> None:
    sweep = grid.build(described(), "s", {"num-server-rounds": "2"})
    assert {cell.config.num_server_rounds for cell in sweep.cells} == {2}
    assert sweep.overridden == {"num-server-rounds": "2"}
    with pytest.raises(SettingError, match="dirichlet-alpha varies in the grid"):
        grid.build(described(), "s", {"dirichlet-alpha": "1"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sedes": [0]}, "unknown section 'sedes'.*did you mean seeds"),
        ({"base": {"methd": "local"}}, "unknown setting 'methd'"),
        ({"base": {"method": "fedsaff"}}, "did you mean fedsaf"),
        ({"base": {"method": "fedsaf", "method-params": {"alignmnt": "gcsa"}}}, "unknown fedsaf parameter"),
        ({"base": {"seed": 3}}, "seeds under `seeds:`"),
        ({"base": {"out": "x"}}, "--out"),
        ({"grid": {"dirichlet-alpha": []}}, "list of values is empty"),
        ({"grid": {"dirichlet-alpha": [{"models": "mlp"}]}}, "is a setting and takes values"),
        ({"grid": {"size": [{"models": "mlp"}, 3]}}, "mixes values with mappings"),
        ({"grid": {"dirichlet-alpha": [0.1, -1]}}, "dirichlet-alpha must be greater than 0"),
        ({"grid": {"clients": [2, 0]}}, "clients must be a whole number"),
        ({"engine": "locl"}, "unknown engine"),
        ({"expected": [{"match": {"dirichlet-alpha": 0.2}, "value": 1}]}, "no cell has"),
        ({"expected": [{"match": {"dirichlet-alpha": 0.1}, "value": 1, "metric": "bets"}]}, "did you mean best"),
        ({"expected": [{"match": {"dirichlet-alpha": 0.1}, "valu": 1}]}, "did you mean value"),
        ({"heat-map": {"x": "dirichlet-alpha"}}, "needs two settings"),
    ],
)
def test_a_slip_is_an_error_before_anything_runs(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        grid.build(described(**change), "s")


def test_an_unknown_file_is_answered_with_the_shipped_ones() -> None:
    with pytest.raises(SettingError, match="did you mean fedsaf-table-1"):
        grid.find("fedsaf-tabel-1")
    with pytest.raises(SettingError, match=r"no-such\.yaml does not exist; shipped"):
        grid.find("no-such.yaml")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("grid: [unclosed")
    with pytest.raises(SettingError, match=r"bad\.yaml cannot be read"):
        grid.load(tmp_path / "bad.yaml")


def test_a_match_compares_numbers_as_numbers() -> None:
    cell = replace(grid.build(described(), "s").cells[0])
    assert grid.matches(cell.settings, {"dirichlet-alpha": "1e-1", "method": "fedsaf"})
    assert not grid.matches(cell.settings, {"dirichlet-alpha": 0.5})
    assert not grid.matches(cell.settings, {"method-params.alignment": "gcsa"})


def test_the_name_of_a_preset_is_no_part_of_a_cells_identity() -> None:
    named, plain = (
        grid.build({"base": {**settings_of("pacs-clean"), **more}, "seeds": [0]}, "x").cells[0]
        for more in ({}, {"preset": ""})
    )
    assert named.name == plain.name
    assert named.config.preset == "pacs-clean"
    assert execution.other_settings({**flatten(plain.config), "clients": 10}, named) == []
