"""Charts of many small things: shaded cells in rows and columns, and points named by what they belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.report import svg
from fedapp.report.markup import Html, join, plain, tag
from fedapp.report.svg import GRID, MUTED, WIDTH, Scale, xy

ROWS, COLUMNS = 60, 40  # rows shown at most; more columns scroll
SIDE = 400.0
LONGEST_NAME = 14  # characters
NARROWEST = 9.0  # a column that an upright name fits on


@dataclass(frozen=True)
class Cells:
    """Rows and columns of shaded cells.

    Attributes:
        rows: Names of the rows.
        columns: Names of the columns.
        values: One sequence a row; None or 0 leaves a cell white.
        labels: What the rows and the columns are.
        unit: What a value counts.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    labels: tuple[str, str]
    unit: str


def cell_map(cells: Cells) -> Html | None:
    """Return the map, darker for more; None without rows or columns. Many columns scroll on a phone."""
    if not cells.rows or not cells.columns:
        return None
    names = [svg.shorten(name, LONGEST_NAME) for name in cells.rows]
    columns = [svg.shorten(name, LONGEST_NAME) for name in cells.columns]
    left = 10 + svg.CHARACTER * max(map(len, (*names, f"{cells.labels[0]} ↓")))
    count = len(cells.columns)
    cell = max((WIDTH - left - 2) / count, 9.0 if count > COLUMNS else 0.0)
    row = 18.0 if len(cells.rows) <= 30 else 12.0
    known = [value for line in cells.values for value in line if value]
    low, high = min(known, default=0.0), max(known, default=1.0)
    top = 27.0 + svg.CHARACTER * max(map(len, columns)) if _upright(columns, cell) else 34.0
    height = top + row * len(cells.rows)
    parts = [
        svg.text(left - 6, 12, f"{cells.labels[0]} ↓", "end", class_="axis"),
        svg.text(left, 12, f"{cells.labels[1]} →", class_="axis"),
        _column_names(columns, left, cell, top - 5),
        *(svg.text(left - 6, top + row * i + row / 2 + 4, name, "end") for i, name in enumerate(names)),
        *_filled(cells, left, top, cell, row, (low, high)),
        svg.path(svg.box(left, top, cell * count, row * len(cells.rows)), fill="none", stroke=MUTED),
        _legend(left, height + 10, low, high, cells.unit),
    ]
    spoken = f"{cells.unit}, {cells.labels[0]} by {cells.labels[1]}"
    width = left + cell * count + 2
    image = svg.drawing(height + 34, spoken, *parts, width=max(width, WIDTH))
    if width <= WIDTH + 1:
        return image
    return tag("div", tag("div", image, style=f"min-width:{round(width)}px"), class_="scroll", tabindex="0")


def _upright(columns: Sequence[str], cell: float) -> bool:
    """Return whether columns are called by words, not all of which have room side by side."""
    wide = cell < 5 + svg.CHARACTER * max(map(len, columns))
    return wide and cell >= NARROWEST and not all(name.isdigit() for name in columns)


def _column_names(columns: Sequence[str], left: float, cell: float, y: float) -> Html:
    """Write the names above their columns: upright if they have to be, else as many as have room."""
    if _upright(columns, cell):
        places = [(left + cell * (i + 0.5) + 4, name) for i, name in enumerate(columns)]
        return join(svg.text(x, y, name, transform=f"rotate(-90 {xy(x)} {xy(y)})") for x, name in places)
    every = next(
        step
        for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9)
        if step * cell >= 5 + svg.CHARACTER * max(map(len, columns))
    )
    return join(
        svg.text(left + cell * (i + 0.5), y, name, "middle") for i, name in enumerate(columns) if i % every == 0
    )


def _filled(cells: Cells, left: float, top: float, cell: float, row: float, span: tuple[float, float]) -> list[Html]:
    """Return one path a shade, and the values in the cells where they have room."""
    shapes: dict[int, list[str]] = defaultdict(list)
    words = []
    low, high = span
    longest = max((len(plain(value)) for line in cells.values for value in line if value), default=0)
    for i, line in enumerate(cells.values):
        for j, value in enumerate(line):
            if not value:
                continue
            level = svg.shade_level((value - low) / (high - low) if high > low else 0.5)
            shapes[level].append(svg.box(left + cell * j, top + row * i, cell, row))
            if cell >= 3 + svg.CHARACTER * longest and row >= 15:
                colour = "#fff" if level >= 4 else None
                middle = left + cell * (j + 0.5)
                words.append(svg.text(middle, top + row * i + row / 2 + 4, plain(value), "middle", fill=colour))
    edge = "#fff" if cell > 5 else None
    return [svg.path("".join(d), fill=svg.SHADES[level], stroke=edge) for level, d in sorted(shapes.items())] + words


def _legend(left: float, top: float, low: float, high: float, unit: str) -> Html:
    """Return the ramp between its lowest and its highest value."""
    start = left + 6 + svg.CHARACTER * len(plain(low))
    shapes = [svg.path(svg.box(start + 11 * i, top, 11, 12), fill=colour) for i, colour in enumerate(svg.SHADES)]
    end = start + 11 * len(svg.SHADES)
    return join(
        [
            svg.text(start - 6, top + 10, plain(low), "end"),
            *shapes,
            svg.path(svg.box(start, top, end - start, 12), fill="none", stroke=MUTED),
            svg.text(end + 6, top + 10, f"{plain(high)} {unit}"),
        ]
    )


@dataclass(frozen=True)
class Groups:
    """What the points belong to: a short sign for each group, drawn in the place of its points.

    Attributes:
        signs: One a group, at most three characters.
        names: One a group, for the legend.
        member: (M,), the group of each point.
    """

    signs: Sequence[str]
    names: Sequence[str]
    member: NDArray[np.int64]


def groups(names: Sequence[str], member: NDArray[np.int64]) -> Groups:
    """Give every group its name as its sign, or its number from 1 on if the names are too long to be drawn.

    Example:
        >>> groups(["north-hospital", "x"], np.array([0, 1])).signs
        ['1', '2']
    """
    short = all(0 < len(name) <= 3 for name in names)
    signs = list(names) if short else [str(i + 1) for i in range(len(names))]
    return Groups(signs, names, member)


def scatter(points: NDArray[np.float64], drawn: Groups, what: str) -> Html:
    """Return points in the plane, each drawn as its group's sign in its group's colour; without axes.

    Args:
        points: (M, 2).
        drawn: What they belong to.
        what: What the points are, for those who cannot see them.
    """
    low, high = points.min(axis=0), points.max(axis=0)
    spread = max(float((high - low).max()), 1e-9)
    middle = (low + high) / 2
    x = Scale(float(middle[0]) - spread / 2, float(middle[0]) + spread / 2, 12, SIDE - 12)
    y = Scale(float(middle[1]) - spread / 2, float(middle[1]) + spread / 2, SIDE - 10, 14)
    em = 12 if len(points) <= 150 else 10 if len(points) <= 400 else 8
    parts = [svg.path(svg.box(0.5, 0.5, SIDE - 1, SIDE - 1), fill="none", stroke=GRID)]
    for index, sign in enumerate(drawn.signs):
        own = points[drawn.member == index]
        if len(own):
            marks = (tag("text", sign, x=xy(x(a)), y=xy(y(b) + em / 3)) for a, b in own.tolist())
            colour = svg.colour_of(index)
            parts.append(tag("g", *marks, fill=colour, class_=f"sign s{em}"))
            parts += [_over(own, sign, x, y, spread)] if em < 12 else []
    legend = Html("")
    if list(drawn.signs) != list(drawn.names):
        pairs = (f"{sign} = {name}" for sign, name in zip(drawn.signs, drawn.names, strict=True))
        legend = tag("p", "; ".join(pairs), class_="note")
    image = svg.drawing(SIDE, f"{what}, {len(points)} points", *parts)
    return join([image, legend])


def _over(own: NDArray[np.float64], sign: str, x: Scale, y: Scale, spread: float) -> Html:
    """Return a group's sign above its points if they are so close together that theirs cannot be read."""
    centre = np.median(own, axis=0)
    if len(own) < 3 or np.median(np.abs(own - centre).max(axis=1)) > 0.04 * spread:
        return Html("")
    top = max(y(float(own[:, 1].max())) - 7, 12.0)
    return svg.text(x(float(centre[0])), top, sign, "middle", class_="halo")
