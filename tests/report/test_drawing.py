import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.manifold import TSNE

from fedapp.report import svg
from fedapp.report.charts import Bar, Curve, Star, bars, curves, decimate
from fedapp.report.embedding import embed, silhouette
from fedapp.report.maps import Cells, cell_map
from fedapp.report.records import Prototypes
from tests.report.reading import Page

finite = st.floats(-1e6, 1e6)


@given(finite, finite)
def test_ticks_are_few_even_and_reach_around_the_values(a, b):
    low, high = min(a, b), max(a, b)
    found = svg.ticks(low, high)
    steps = np.diff(found)
    assert 2 <= len(found) <= 10
    slack = 1e-6 * max(steps[0], 1e-12)
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert steps == pytest.approx(steps[0], rel=1e-3)


@given(st.lists(st.floats(0, 190), max_size=12))
def test_names_at_the_ends_of_curves_never_cover_one_another(wanted):
    placed = svg.dodge(wanted, 14, 0, 190)
    assert all(b - a >= 14 - 1e-9 for a, b in pairwise(sorted(placed)))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    assert [placed[i] for i in order] == sorted(placed)


@given(st.lists(st.one_of(st.none(), finite), min_size=1, max_size=300), st.integers(4, 60))
def test_a_thinned_curve_keeps_its_ends_and_its_extremes(values, limit):
    points = list(enumerate(values))
    kept = decimate(points, limit)
    assert kept == sorted(set(kept), key=lambda point: point[0])
    assert len(kept) <= limit + 4
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    known = [value for value in values if value is not None]
    if known:
        assert max(known) in [value for _, value in kept]
        assert min(known) in [value for _, value in kept]


def test_twenty_curves_differ_without_colour():
    styles = {(svg.dash_of(i), svg.marker_of(i)) for i in range(20)}
    assert len(styles) == 20


def test_shades_get_darker_step_by_step():
    def luminance(colour):
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    levels = [luminance(colour) for colour in svg.SHADES]
    assert all(a - b > 10 for a, b in pairwise(levels))


def test_a_curve_has_a_gap_where_nothing_was_measured():
    drawn = curves([Curve("a", [(1, 1.0), (2, 2.0), (3, None), (4, 1.0), (5, 3.0)])], ("round", "y"))
    line = re.search(r'd="([^"]*)" stroke="#0072b2" stroke-width="1.8"', drawn).group(1)
    assert re.sub(r"[\d. ]", "", line) == "MLML"


def test_nothing_measured_is_no_drawing():
    assert curves([Curve("a", [(1, None)])], ("round", "y")) is None
    assert curves([], ("round", "y")) is None
    assert bars([], "nothing") is None
    assert cell_map(Cells([], [], [], ("a", "b"), "c")) is None


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [5.0], [1e-12, 2e-12], [1e12, -1e12]])
def test_any_values_can_be_drawn(values):
    drawn = curves([Curve("a", list(enumerate(values)))], ("round", "y"), zero=min(values) >= 0)
    assert not re.search("nan|inf", drawn)
    Page(drawn)


def test_an_axis_ends_where_values_must_end():
    star = Star(2, 99.5, "best")
    drawn = curves([Curve("a", [(1, 20.0), (2, 99.5)])], ("round", "accuracy, %"), stars=[star], most=100)
    assert ">100</text>" in drawn
    assert not re.search(r">1[1-9]\d</text>", drawn)


@pytest.mark.parametrize("value", [85.0, 99.9, 100.0, 100.00000000000001])
def test_an_axis_ends_there_too_where_all_values_are_equal(value):
    drawn = curves([Curve("a", [(1, value), (2, value)])], ("round", "accuracy, %"), most=100)
    assert max(float(words) for words in re.findall(r'text-anchor="end">([\d.]+)</text>', drawn)) == 100


@given(st.floats(0, 100), st.floats(0, 100))
def test_no_share_in_per_cent_has_ticks_beyond_one_hundred(a, b):
    found = svg.ticks(min(a, b), max(a, b), most=100)
    assert found[-1] <= 100
    assert found[-1] >= max(a, b) - 1e-4


def test_long_names_stand_in_two_lines_that_follow_one_another():
    names = ["left-out-adapted", "left-out-adapted-prototype", "b"]
    drawn = curves([Curve(name, [(1, 5.0), (2, 5.0)]) for name in names], ("round", "y"))
    heights = {words: float(y) for y, words in re.findall(r'y="([\d.]+)">([^<]*)<', drawn)}
    lines = ["left-out-adapted", "left-out-adapted-", "prototype", "b"]
    assert np.diff([heights[line] for line in lines]) == pytest.approx(14, abs=0.11)


def test_long_names_of_many_curves_are_cut_rather_than_drawn_below_the_chart():
    names = [f"a method with a long name, {i}" for i in range(12)]
    drawn = curves([Curve(name, [(1, 1.0), (2, 2.0)]) for name in names], ("round", "y"))
    assert drawn.count(">a method with a lon…</text>") == 12
    heights = [float(y) for y in re.findall(r'y="([\d.]+)">a method', drawn)]
    assert max(heights) <= 24 + 190 + 4


def test_a_long_name_of_a_bar_is_whole_where_there_is_room():
    name = "left-out-adapted-prototype"
    assert f">{name}</text>" in bars([Bar(name, 0.5, "50.00 %")], "accuracy", 1.0)
    drawn = bars([Bar(name, 0.5, "50.00 % (round 1000)", remark="worst")], "accuracy", 1.0)
    assert f">{name}</text>" not in drawn
    assert ">left-out-adapted-pr…</text>" in drawn


def test_bars_are_as_long_as_their_values():
    drawn = bars([Bar("a", 0.5, "x"), Bar("b", 1.0, "x"), Bar("c", None, "not measured")], "y", 1.0)
    lengths = [float(width) for width in re.findall(r"M[\d.]+ [\d.]+h([\d.]+)v13", drawn)]
    assert lengths[0] == pytest.approx(lengths[1] / 2, abs=0.1)
    assert lengths[2] == 0


def test_everything_stays_inside_the_drawing():
    names = ["a name that is much too long to be shown in full", "b"]
    drawn = curves([Curve(name, [(1, 1e9), (300, 2e9)]) for name in names], ("round", "y"))
    for x, anchor, words in re.findall(r'<text x="([\d.]+)" y="[\d.]+"(?: text-anchor="(\w+)")?[^>]*>([^<]*)<', drawn):
        width = 7.2 * len(words)
        left = float(x) - {"": 0, "middle": width / 2, "end": width}[anchor]
        assert left >= -2
        assert left + width <= 404


def test_names_of_columns_are_all_there_cut_to_their_width_and_numbers_as_many_as_have_room():
    names = [f"a very long class name {i}" for i in range(10)]
    drawn = cell_map(Cells(["a"], names, [range(10)], ("client", "class"), "samples"))
    assert drawn.count("a very") == 10
    many = cell_map(Cells(["a"], [str(i) for i in range(100)], [range(100)], ("client", "class"), "samples"))
    assert ">10<" in many
    assert ">11<" not in many


def test_cells_without_a_value_stay_white():
    drawn = cell_map(Cells(["a"], ["0", "1", "2"], [[0, 5, None]], ("client", "class"), "samples"))
    filled = re.findall(r'd="([^"]*)" fill="#\w{6}" stroke="#fff"', drawn)
    assert len(filled) == 1
    assert filled[0].count("M") == 1


def clouds():
    rng = np.random.default_rng(3)
    rows = np.concatenate([rng.normal(size=(6, 5)), rng.normal(size=(6, 5)) + 8]).astype(np.float32)
    return Prototypes(rows, np.repeat([0, 1], 6), np.tile(np.arange(6), 2))


def test_the_plane_is_scikit_learn_s_tsne_of_the_raw_prototypes():
    found = clouds()
    expected = TSNE(perplexity=11, init="pca", random_state=42).fit_transform(found.rows)
    assert np.allclose(embed(found).points, expected, rtol=1e-5)


def test_silhouettes_follow_their_formula():
    found = clouds()
    distance = np.linalg.norm(found.rows[:, None].astype(float) - found.rows[None], axis=2)
    for member, shown in ((found.client, embed(found).by_client), (found.label, embed(found).by_class)):
        scores = []
        for i in range(len(found.rows)):
            own = [distance[i, j] for j in range(len(member)) if j != i and member[j] == member[i]]
            others = [distance[i, member == k].mean() for k in set(member.tolist()) - {member[i]}]
            inner, outer = np.mean(own), min(others)
            scores.append((outer - inner) / max(inner, outer))
        assert shown == pytest.approx(np.mean(scores), abs=1e-5)


def test_a_silhouette_needs_two_groups_that_are_not_all_single():
    rows = np.eye(4, dtype=np.float32)
    assert silhouette(rows, np.arange(4)) is None
    assert silhouette(rows, np.zeros(4, dtype=np.int64)) is None
