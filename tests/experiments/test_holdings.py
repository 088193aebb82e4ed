"""``fedapp partition``: tables and picture of who holds what."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.config import DataSettings, OwnDataSettings, ServerSettings
from fedapp.datasets import DATASETS, Pool, Source
from fedapp.experiments import holdings


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [("a", "town", "cat")] * 4 + [("b", "land", "dog")] * 6 + [("c", "land", "cat"), ("c", "land", "dog")] * 2
    with (tmp_path / "pets.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("age", "who", "place", "label"), *((n, *row) for n, row in enumerate(rows))])
    return tmp_path


def settings(table: Path) -> DataSettings:
    own = OwnDataSettings(client_column="who", domain_column="place")
    return DataSettings(dataset="csv", data_root=str(table), own=own)


def test_counts_are_those_of_the_data(table: Path) -> None:
    held = holdings.holdings(settings(table), 3)
    assert held.class_names == ("cat", "dog")
    assert held.classes.tolist() == [[4, 0], [0, 6], [2, 2]]
    assert held.domain_names == ("land", "town")
    assert held.domains.tolist() == [[0, 4], [6, 0], [4, 0]]
    assert held.parts.tolist() == [[3, 0, 1], [4, 0, 2], [3, 0, 1]]


def test_tables_show_every_client_and_leave_zeros_out(table: Path) -> None:
    classes, domains = holdings.tables(holdings.holdings(settings(table), 3))
    assert classes.header == ("client", "train", "validation", "test", "cat", "dog")
    assert classes.body == (
        ("0 (a)", "3", "0", "1", "4", ""),
        ("1 (b)", "4", "0", "2", "", "6"),
        ("2 (c)", "3", "0", "1", "2", "2"),
    )
    assert classes.notes == ("a client holds 1 to 2 of 2 classes, its test samples included",)
    assert [row[4:] for row in domains.body] == [("", "4"), ("6", ""), ("4", "")]


def test_many_classes_are_summed_up() -> None:
    names = tuple(f"class{number}" for number in range(40))
    classes = np.zeros((1, 40), dtype=np.int64)
    classes[0, [3, 7, 9, 30]] = [5, 1, 8, 2]
    none = np.zeros((1, 0), dtype=np.int64)
    held = holdings.Holdings("many", np.array([[16, 0, 0]]), classes, names, none, (), ("0",), (classes, none))
    (shown,) = holdings.tables(held)
    assert shown.body == (("0", "16", "0", "0", "4", "class9 8, class3 5, class30 2"),)


def test_command_prints_and_draws(table: Path) -> None:
    words = ["partition", "--clients", "3", "--set", "dataset=csv", "--set", f"data-root={table}"]
    words += ["--set", "client-column=who", "--set", "domain-column=place"]
    done = CliRunner().invoke(app, [*words, "--plot", str(table / "who.svg")])
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert "clients by class" in words
    assert "clients by domain" in words
    assert f"Written: {table / 'who.svg'}" in done.output
    assert "<svg" in (table / "who.svg").read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--plot", "who.txt"], "the name must end in .svg"),
        (["--plot", "absent/who.png"], "--plot absent/who.png: there is no folder absent; make it, or name another"),
        (["--set", "leave-clients=Z,0"], "leave-clients = 'Z': there is no such client; valid names: 0, 1,"),
        (["--set", "leave-domain=nist"], "leave-domain = 'nist'"),
        (["--set", "partition=flwr-exponential", "--clients", "50"], "use at most"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(words: list[str], why: str) -> None:
    done = CliRunner().invoke(app, ["partition", *words])
    assert done.exit_code == 2
    assert why in done.output
    assert "clients by class" not in done.output


@pytest.mark.parametrize(
    ("server", "who"),
    [({"leave_clients": "b"}, [1]), ({"leave_clients": "2,a"}, [0, 2]), ({"leave_domain": "town"}, [0])],
)
def test_clients_that_take_no_part_are_marked(table: Path, server: dict[str, str], who: list[int]) -> None:
    held = holdings.holdings(settings(table), 3, ServerSettings(**server))
    for shown in holdings.tables(held):
        marked = [number for number, row in enumerate(shown.body) if row[0].endswith(", left out")]
        assert marked == who
        assert shown.notes[1] == "left out of training: " + ", ".join(held.clients[client] for client in who)


# ---- the picture -------------------------------------------------------------------------------------


def areas(panel: Any) -> dict[tuple[int, int], float]:
    """The area of every disc by client and column, the largest 1."""
    (discs,) = panel.collections
    sizes = discs.get_sizes() / discs.get_sizes().max()
    return {(int(y), int(x)): float(size) for (x, y), size in zip(discs.get_offsets(), sizes, strict=True)}


def test_discs_are_training_samples_alone_where_tests_are_shared() -> None:
    rng = np.random.default_rng(0)
    domains = np.repeat([0, 1], [40, 30])
    pool = Pool(
        inputs=np.zeros((70, 1), dtype=np.float32),
        labels=rng.integers(0, 3, 70),
        class_names=("x", "y", "z"),
        domains=domains,
        domain_names=("near", "far"),
        is_test=np.arange(70) % 2 == 1,
        native_split_only=True,
    )
    source = Source("pets", lambda _: pool, "", 3, (1,), True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "pets", source)
        chosen = DataSettings(
            dataset="pets", test_split="shared", samples_per_domain="near=20,far=5", validation_fraction=0.2
        )
        held = holdings.holdings(chosen, 2)
    assert held.parts.tolist() == [[16, 4, 20], [4, 1, 15]]
    figure = holdings.draw(held)
    assert areas(figure.axes[1]) == {(0, 0): 1.0, (1, 1): pytest.approx(5 / 20)}
    near = np.bincount(pool.labels[(domains == 0) & ~pool.is_test], minlength=3)
    assert [areas(figure.axes[0])[0, label] for label in range(3)] == pytest.approx(near / near.max())
    assert figure.texts[0].get_text() == (
        "pets over 2 clients, partition auto: training samples, those for validation included"
    )
    assert [text.get_text() for text in figure.axes[1].get_legend().texts] == ["20", "5", "1"]


def drawn_of(names: tuple[str, ...], clients: tuple[str, ...]) -> Any:
    """A figure of clients that all hold as much of every class."""
    counts = np.full((len(clients), len(names)), 9)
    none = np.zeros((len(clients), 0), dtype=np.int64)
    parts = np.full((len(clients), 3), 9)
    return holdings.draw(holdings.Holdings("$a_ of $", parts, counts, names, none, (), clients, (counts, none)))


def test_names_with_dollars_are_no_formulas_and_long_ones_are_cut(tmp_path: Path) -> None:
    figure = drawn_of(("cost $5_$6", "a$^$", "x" * 99, "two\nlines"), ("0 ($_$)", "1"))
    figure.savefig(tmp_path / "who.svg")
    panel = figure.axes[0]
    shown = [label.get_text() for label in panel.get_xticklabels()]
    assert shown == [r"cost \$5_\$6", r"a\$^\$", "x" * 29 + "…", "two lines"]
    assert [label.get_text() for label in panel.get_yticklabels()] == [r"0 (\$_\$)", "1"]


@pytest.mark.parametrize(("classes", "clients"), [(2, 3), (10, 20), (100, 4), (400, 3), (10, 300)])
def test_discs_never_overlap_and_nothing_leaves_the_picture(classes: int, clients: int) -> None:
    names = tuple(f"the class of number {number}" for number in range(classes))
    figure = drawn_of(names, tuple(f"{number} (somebody)" for number in range(clients)))
    (panel,) = figure.axes
    box = panel.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    across, down = np.ptp(panel.get_xlim()), np.ptp(panel.get_ylim())
    cell = min(box.width / across, box.height / down)
    assert math.sqrt(panel.collections[0].get_sizes().max()) / 72 <= cell
    assert across >= classes
    width, height = figure.get_size_inches()
    assert max(width, height) < 45
    tight = figure.get_tightbbox()
    assert (tight.x0, tight.y0) >= (0, 0)
    assert tight.x1 <= width
    assert tight.y1 <= height
