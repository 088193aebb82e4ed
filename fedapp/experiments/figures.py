"""Figures over seeds, as SVG and PNG: curves, numbers beside the expected ones, heat maps. No torch, no pyplot.

They read in black and white: every line has its own dashes and marker, every cell of a map its number.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedapp.experiments.records import METRICS
from fedapp.experiments.statistics import Spread, spread

STYLES = (
    ("#000000", "-", "o"), ("#D55E00", (0, (5, 2)), "s"), ("#0072B2", (0, (1, 1.5)), "^"),
    ("#009E73", (0, (5, 2, 1, 2)), "D"), ("#CC79A7", (0, (8, 3)), "v"), ("#E69F00", (0, (3, 1, 1, 1, 1, 1)), "P"),
    ("#56B4E9", (0, (2, 2)), "X"), ("#7F7F7F", (0, (1, 4)), "p"),
)  # fmt: skip
"""Colour (Okabe and Ito's, told apart by the colour-blind), dashes and marker of each line."""
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "fedapp", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False}
SETTINGS |= {"axes.spines.right": False, "legend.frameon": False}
MARKERS = 8
COLUMNS = 3


@dataclass(frozen=True)
class Line:
    """Accuracy over rounds, of several seeds.

    Attributes:
        label: Its name in the legend.
        rounds: Rounds that every seed evaluated.
        mean: Mean over seeds by round, in per cent.
        std: Sample standard deviation by round; None with one seed.
    """

    label: str
    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...] | None


@dataclass(frozen=True)
class Point:
    """One number of one group, beside the expected one."""

    label: str
    ours: Spread | None
    theirs: float | None


@dataclass(frozen=True)
class Map:
    """Numbers over two settings; NaN where there is none."""

    title: str
    x: tuple[str, ...]
    y: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


def line(label: str, curves: Sequence[Mapping[int, float]]) -> Line:
    """Return mean and band over the rounds that all seeds share.

    Example:
        >>> line("a", [{1: 10.0, 2: 20.0}, {1: 20.0, 2: 20.0, 3: 9.0}])
        Line(label='a', rounds=(1, 2), mean=(15.0, 20.0), std=(7.0710678118654755, 0.0))
    """
    shared = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    spreads = [found for number in shared if (found := spread([curve[number] for curve in curves]))]
    std = tuple(found.std for found in spreads if found.std is not None)
    return Line(label, tuple(shared), tuple(found.mean for found in spreads), std if len(curves) > 1 else None)


def draw_curves(panels: Mapping[str, Sequence[Line]]) -> Figure:
    """Return a panel for each entry, with its lines; the best round of each line is a star."""
    figure, axes = _panels(len(panels), width=5.2, height=3.6)
    for axis, (title, lines) in zip(axes, panels.items(), strict=False):
        for index, one in enumerate(lines):
            _draw_line(axis, one, index)
        axis.set(xlabel="round", ylabel="accuracy (%), by samples", title=title)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(fontsize=8, loc="best", handlelength=4)
        axis.grid(alpha=0.25, linewidth=0.5)
    bands = any(one.std for lines in panels.values() for one in lines)
    _foot(
        figure,
        "star: best round of the mean" + ("; band: ± one standard deviation over seeds" if bands else "; one seed"),
    )
    return figure


def draw_points(panels: Mapping[str, Sequence[Point]], metric: str) -> Figure:
    """Return a panel for each entry: our numbers as dots with their spread, expected ones as open diamonds."""
    tallest = max((len(points) for points in panels.values()), default=1)
    figure, axes = _panels(len(panels), width=5.2, height=1.1 + 0.32 * tallest)
    for axis, (title, points) in zip(axes, panels.items(), strict=False):
        places = np.arange(len(points))
        ours = [point.ours.mean if point.ours else math.nan for point in points]
        spreads = [(point.ours.std or 0.0) if point.ours else 0.0 for point in points]
        theirs = [math.nan if point.theirs is None else point.theirs for point in points]
        axis.errorbar(ours, places, xerr=spreads, fmt="o", color="black", capsize=3, label="ours")
        if not np.isnan(theirs).all():
            axis.plot(theirs, places, "D", markerfacecolor="white", markeredgecolor="#D55E00", label="expected")
            axis.legend(fontsize=8)
        axis.set_yticks(places, [point.label for point in points])
        axis.set(xlabel=_with_unit(metric), title=title, ylim=(len(points) - 0.4, -0.6))
        axis.grid(axis="x", alpha=0.25, linewidth=0.5)
    return figure


def draw_maps(maps: Sequence[Map], x: str, y: str, metric: str, difference: bool) -> Figure:
    """Return heat maps on one scale, every cell with its number."""
    figure, axes = _panels(len(maps), width=1.8 + 0.75 * len(maps[0].x), height=1.5 + 0.55 * len(maps[0].y))
    everything = np.array([value for one in maps for row in one.values for value in row], dtype=np.float64)
    finite = everything[~np.isnan(everything)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if difference:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    darkest = high + 0.4 * (high - low)
    for axis, one in zip(axes, maps, strict=False):
        values = np.array(one.values, dtype=np.float64)
        axis.imshow(values, cmap="Greys", vmin=low, vmax=darkest, origin="lower", aspect="auto")
        for row, column in np.ndindex(values.shape):
            if not math.isnan(values[row, column]):
                shown = f"{values[row, column]:+.2f}" if difference else f"{values[row, column]:.2f}"
                dark = values[row, column] - low > 0.55 * (darkest - low)
                axis.text(column, row, shown, ha="center", va="center", color="white" if dark else "black")
        axis.set_xticks(range(len(one.x)), one.x)
        axis.set_yticks(range(len(one.y)), one.y)
        axis.set(xlabel=x, ylabel=y, title=one.title)
    _foot(figure, _with_unit(metric) + (", minus the baseline's" if difference else "") + "; empty: not run")
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as SVG and PNG in place of earlier ones; the same figure gives the same SVG.

    Args:
        figure: The figure.
        stem: The path without its suffix.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, metadata in ((".svg", {"Date": None}), (".png", None)):
        sink = io.BytesIO()
        with mpl.rc_context(SETTINGS):
            figure.savefig(sink, format=suffix[1:], metadata=metadata, dpi=150, bbox_inches="tight")
        part = stem.with_name(f".{stem.name}{suffix}.{os.getpid()}")
        part.write_bytes(sink.getvalue())
        paths.append(part.replace(stem.with_name(stem.name + suffix)))
    return paths


# ---- parts ---------------------------------------------------------------------------------------


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Any]]:
    columns = min(max(count, 1), COLUMNS)
    lines = math.ceil(max(count, 1) / columns)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, axes[: max(count, 1)]


def _draw_line(axis: Any, one: Line, index: int) -> None:
    colour, _, marker = STYLES[index % len(STYLES)]
    _, dashes, _ = STYLES[(index + index // len(STYLES)) % len(STYLES)]  # beyond eight lines: new pairs
    every = max(1, len(one.rounds) // MARKERS)
    start = index % every
    style = {"color": colour, "linestyle": dashes, "marker": marker, "markevery": (start, every), "markersize": 5}
    axis.plot(one.rounds, one.mean, label=one.label, linewidth=1.4, markerfacecolor="white", **style)
    if one.std:
        low, high = np.subtract(one.mean, one.std), np.add(one.mean, one.std)
        axis.fill_between(one.rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    if one.mean:
        best = int(np.argmax(one.mean))
        axis.plot(one.rounds[best], one.mean[best], "*", color=colour, markersize=11, markeredgecolor="white")


def _foot(figure: Figure, text: str) -> None:
    figure.supxlabel(text, fontsize=7.5, x=0.99, ha="right")


def _with_unit(metric: str) -> str:
    label = METRICS[metric].label
    bare = "MiB" in label or label.endswith(" s") or metric == "failures"
    return label if bare else f"accuracy (%), {label}"
