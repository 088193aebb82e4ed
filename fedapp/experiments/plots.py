"""Which figures a folder of runs gives: panels, lines and maps from its settings. Reads records only, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedapp.config import SettingError, lookup
from fedapp.experiments import figures, results
from fedapp.experiments.grid import HeatMap, matches
from fedapp.experiments.records import METRICS, PARAMS, curve
from fedapp.experiments.results import Group, Results
from fedapp.experiments.statistics import spread
from fedapp.experiments.tables import short, shown

FOLDER = "figures"
MOST_PANELS = 12


def plot(found: Results, by: Sequence[str] = (), metric: str = "best") -> list[Path]:
    """Draw the figures of a folder into its ``figures/`` and return the files.

    These are the curves and the numbers beside the expected ones; or the heat map, if the grid asks for one.

    Args:
        found: The runs.
        by: Settings with a line each; the method and its own settings, or the first that varies, if empty.
        metric: A name of ``METRICS``, for the figure of numbers and the heat map.

    Raises:
        SettingError: For an unknown name, if nothing is done yet, or if there would be too many panels.
    """
    lookup(METRICS, metric, "metric")
    if not any(entry.run for entry in found.entries):
        raise SettingError(f"no run in {found.folder} is done yet; there is nothing to draw")
    lines = tuple(by) or line_keys(found.varied)
    panels = tuple(key for key in found.varied if key not in lines)
    groups = results.group(found, (*panels, *lines))
    sheets = dict.fromkeys(group.key[: len(panels)] for group in groups)
    if len(sheets) > MOST_PANELS and not found.heat_map:
        raise SettingError(f"{len(sheets)} panels are too many to read; name the settings of the lines with --by")
    folder, written = found.folder / FOLDER, []
    if not found.heat_map:
        keys = (panels, lines)
        written += figures.save(figures.draw_curves(_curves(groups, *keys)), folder / "curves")
        written += figures.save(figures.draw_points(_points(found, groups, *keys, metric), metric), folder / metric)
    if found.heat_map:
        written += figures.save(_heat_map(found, found.heat_map, metric), folder / f"heat-map-{metric}")
    return written


def line_keys(varied: Sequence[str]) -> tuple[str, ...]:
    """Return the settings that tell lines apart when nobody says: the method's, or else the first that varies.

    Example:
        >>> line_keys(["dataset", "method", "method-params.alignment"])
        ('method', 'method-params.alignment')
        >>> line_keys(["local-epochs", "dataset"]), line_keys([])
        (('local-epochs',), ('method',))
    """
    own = tuple(key for key in varied if key == "method" or key.startswith(f"{PARAMS}."))
    return own or tuple(varied[:1]) or ("method",)


def label(keys: Sequence[str], values: Sequence[Any]) -> str:
    """Return what a line or panel is called: texts as they are, numbers with their setting's name.

    Example:
        >>> label(["method", "method-params.alignment", "dirichlet-alpha"], ["fedsaf", "gcsa", 0.1])
        'fedsaf gcsa, dirichlet-alpha 0.1'
    """
    texts = [str(value) for value in values if isinstance(value, str) and value]
    numbers = [
        f"{short(key)} {shown(value)}" for key, value in zip(keys, values, strict=True) if not isinstance(value, str)
    ]
    return ", ".join(filter(None, [" ".join(texts), *numbers]))


# ---- parts ---------------------------------------------------------------------------------------


def _curves(groups: Sequence[Group], panels: Sequence[str], lines: Sequence[str]) -> dict[str, list[figures.Line]]:
    drawn: dict[str, list[figures.Line]] = {}
    for group in groups:
        curves = [curve(entry.run) for entry in group.entries if entry.run]
        one = figures.line(_line_label(group, lines), curves)
        drawn.setdefault(label(panels, group.key[: len(panels)]), []).extend([one] if one.rounds else [])
    return drawn


def _points(
    found: Results, groups: Sequence[Group], panels: Sequence[str], lines: Sequence[str], metric: str
) -> dict[str, list[figures.Point]]:
    drawn: dict[str, list[figures.Point]] = {}
    for group in groups:
        theirs = results.expected_of(found, group, metric)
        point = figures.Point(
            _line_label(group, lines), spread(group.numbers(metric)), theirs.value if theirs else None
        )
        drawn.setdefault(label(panels, group.key[: len(panels)]), []).append(point)
    return drawn


def _line_label(group: Group, lines: Sequence[str]) -> str:
    return label(lines, group.key[-len(lines) :]) or "all"


def _heat_map(found: Results, wanted: HeatMap, metric: str) -> Any:
    cells: dict[tuple[str, Any, Any], list[float | None]] = {}
    for entry in found.entries:
        panel = str(entry.value(wanted.panels)) if wanted.panels else ""
        number = METRICS[metric].value(entry.run) if entry.run else None
        cells.setdefault((panel, entry.value(wanted.y), entry.value(wanted.x)), []).append(number)
    means = {key: value.mean if (value := spread(numbers)) else math.nan for key, numbers in cells.items()}
    base = _baseline(found, wanted, metric)
    x, y = _ordered(key[2] for key in means), _ordered(key[1] for key in means)
    maps = []
    for panel in _ordered(key[0] for key in means) or [""]:
        shared = {key[1:]: value for key, value in means.items() if key[0] == ""}  # a cell that belongs to every panel
        own = shared | {key[1:]: value for key, value in means.items() if key[0] == panel}
        values = tuple(tuple(own.get((row, column), math.nan) - base for column in x) for row in y)
        maps.append(figures.Map(panel, tuple(map(shown, x)), tuple(map(shown, y)), values))
    return figures.draw_maps(maps, short(wanted.x), short(wanted.y), metric, bool(wanted.baseline))


def _baseline(found: Results, wanted: HeatMap, metric: str) -> float:
    """Return the number to subtract: the baseline's mean, NaN until it is done, 0 if there is none."""
    if not wanted.baseline:
        return 0.0
    values = [
        METRICS[metric].value(entry.run)
        for entry in found.entries
        if entry.run and matches({key: entry.value(key) for key in wanted.baseline}, wanted.baseline)
    ]
    mean = spread(values)
    return mean.mean if mean else math.nan


def _ordered(values: Any) -> list[Any]:
    """Return the values once each, numbers in order; what a cell does not have is left out."""
    once = [value for value in dict.fromkeys(values) if value != ""]
    return sorted(once, key=lambda value: (isinstance(value, str), value))
