"""The four kinds of chart: curves over rounds, bars, maps of shaded cells, and points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.report import svg
from fedapp.report.markup import Html, join, number, tag
from fedapp.report.svg import INK, MUTED, WIDTH, WORST, Scale, xy

Points = Sequence[tuple[float, float | None]]
POINTS = 400  # of a curve; more could not be told apart
TOP, PLOT, BOTTOM = 24.0, 190.0, 40.0
ROW = 19.0
BARS = 120.0  # width that bars keep beside names of more than NAME characters
NAME = 20  # characters of a name that are shown in a line
LINE = 14.0  # height of a line of a name


@dataclass(frozen=True)
class Curve:
    """A curve over rounds.

    Attributes:
        name: Stands at its end.
        points: (round, value), None where there is none: the curve has a gap there.
        band: (round, low, high), shaded.
        style: Position in the palettes; curves that belong together may share it.
    """

    name: str
    points: Points
    band: Sequence[tuple[float, float, float]] = ()
    style: int | None = None


@dataclass(frozen=True)
class Star:
    """A point to mark with a star, and what to write beside it."""

    x: float
    y: float
    words: str


def decimate(points: Points, limit: int = POINTS) -> Points:
    """Return at most about ``limit`` of the points: the ends and each stretch's lowest and highest.

    Example:
        >>> decimate([(x, float(x == 7)) for x in range(10)], 4)
        [(0, 0.0), (1, 0.0), (6, 0.0), (7, 1.0), (9, 0.0)]
    """
    if len(points) <= limit:
        return points
    stretch = -(-2 * len(points) // limit)
    kept = {0, len(points) - 1}
    for start in range(1, len(points) - 1, stretch):
        known = [i for i in range(start, min(start + stretch, len(points) - 1)) if points[i][1] is not None]
        if not known:
            kept.add(start)
            continue
        kept.add(min(known, key=lambda i: (points[i][1] or 0.0, i)))
        kept.add(max(known, key=lambda i: (points[i][1] or 0.0, -i)))
    return [points[i] for i in sorted(kept)]


def curves(
    drawn: Sequence[Curve],
    labels: tuple[str, str],
    zero: bool = False,
    stars: Sequence[Star] = (),
    most: float = math.inf,
) -> Html | None:
    """Return curves over rounds, each with its own dashes and marker and its name at its end; None without a value.

    Args:
        drawn: The curves.
        labels: What stands at the axes.
        zero: Whether the upright axis starts at 0.
        stars: Points to mark.
        most: The largest value there can be; the axis ends there.
    """
    kept = [curve for curve in drawn if any(y is not None for _, y in curve.points)]
    if not kept:
        return None
    names = _wrapped([curve.name for curve in kept])
    x, y, grid = _axes(kept, labels, zero, (bool(stars), most), max(len(line) for lines in names for line in lines))
    lasts = [[(at, value) for at, value in curve.points if value is not None][-1] for curve in kept]
    wanted = [y(value) for (_, value), lines in zip(lasts, names, strict=True) for _ in lines]
    heights = iter(svg.dodge(wanted, LINE, y.end, y.start))  # lines that want the same stay together, in order
    parts = [grid, *(_band(curve, i, x, y) for i, curve in enumerate(kept) if curve.band)]
    for i, curve in enumerate(kept):
        lines = [(line, next(heights)) for line in names[i]]
        parts += [_curve(curve, i, x, y), _name(lines, curve, i, (x(lasts[i][0]), y(lasts[i][1]), x.end))]
    parts += [_star(star, x, y) for star in stars]
    spoken = f"{labels[1]} over {labels[0]}: " + ", ".join(curve.name for curve in kept)
    return svg.drawing(y.start + BOTTOM, spoken, *parts)


def _wrapped(names: Sequence[str]) -> list[list[str]]:
    """Return the lines of every name: one each if two were more than the height of the chart has room for."""
    lines = [svg.wrap(name, NAME) for name in names]
    if LINE * (sum(map(len, lines)) - 1) <= PLOT:
        return lines
    return [[svg.shorten(name, NAME)] for name in names]


def _axes(
    kept: Sequence[Curve], labels: tuple[str, str], zero: bool, above: tuple[bool, float], longest: int
) -> tuple[Scale, Scale, Html]:
    """Return both scales, and the grid.

    Args:
        kept: The curves.
        labels: What the axes show.
        zero: Whether the upright axis starts at 0.
        above: Whether a star needs room, and the largest possible value.
        longest: Characters of the longest line at the curves' ends.
    """
    starred, most = above
    xs = [x for curve in kept for x, _ in curve.points]
    ys = [y for curve in kept for _, y in curve.points if y is not None]
    ys += [edge for curve in kept for _, *edges in curve.band for edge in edges]
    low, high = 0.0 if zero else min(ys), max(ys)
    high = min(high + 0.12 * (high - low) * starred, most)
    y_ticks = svg.ticks(low, high if high > low or not zero else 1.0, most=most)
    x_ticks = [value for value in svg.ticks(min(xs), max(xs), 6, whole=True) if min(xs) <= value <= max(xs)]
    left = 16 + svg.CHARACTER * max(len(f"{value:,.6g}") for value in y_ticks)
    right = 20 + svg.CHARACTER * longest
    ends = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 1, max(xs) + 1)
    top = TOP + 13 * starred  # the words of a star at the very top stand above the plot
    x, y = Scale(*ends, left, WIDTH - right), Scale(y_ticks[0], y_ticks[-1], top + PLOT, top)
    return x, y, svg.frame(x, y, x_ticks, y_ticks, labels)


def _style(curve: Curve, position: int) -> int:
    return position if curve.style is None else curve.style


def _curve(curve: Curve, position: int, x: Scale, y: Scale) -> Html:
    """Return the line, broken where a value is missing, and markers on some of its points."""
    style = _style(curve, position)
    colour = svg.colour_of(style)
    steps, pen = [], "M"
    points = decimate(curve.points)
    for at, value in points:
        if value is None:
            pen = "M"
            continue
        steps.append(f"{pen}{xy(x(at))} {xy(y(value))}")
        pen = "L"
    known = [(at, value) for at, value in points if value is not None]
    every = max(1, len(known) // 8)
    offset = style * every // 3 % every
    spots = known if len(known) <= 12 else [*known[offset:-1:every], known[-1]]
    marks = "".join(f"M{xy(x(at))} {xy(y(value))}{svg.marker_of(style)}" for at, value in spots)
    dash = svg.dash_of(style)
    line = svg.path("".join(steps), stroke=colour, stroke_width="1.8", stroke_dasharray=dash, fill="none")
    faint = svg.path("".join(steps), stroke=colour, stroke_opacity="0.3", fill="none") if dash else ""
    return line + faint + svg.path(marks, fill=colour)


def _band(curve: Curve, position: int, x: Scale, y: Scale) -> Html:
    edges = list(curve.band)
    edges = edges[:: max(1, len(edges) // POINTS)] + edges[-1:]
    upper = [f"{xy(x(at))} {xy(y(high))}" for at, _, high in edges]
    lower = [f"{xy(x(at))} {xy(y(low))}" for at, low, _ in reversed(edges)]
    colour = svg.colour_of(_style(curve, position))
    return svg.path("M" + "L".join(upper + lower) + "z", fill=colour, fill_opacity="0.15")


def _name(lines: Sequence[tuple[str, float]], curve: Curve, position: int, where: tuple[float, float, float]) -> Html:
    """Return a curve's name, each line at its height, and a thin line to it from the curve's last point."""
    x, y, end = where
    height = (lines[0][1] + lines[-1][1]) / 2
    colour = svg.colour_of(_style(curve, position))
    lead = f"M{xy(x + 5)} {xy(y)}L{xy(max(end, x) + 5)} {xy(y)}L{xy(end + 15)} {xy(height)}"
    words = join(svg.text(end + 18, at + 4, line) for line, at in lines)
    return svg.path(lead, stroke=colour, stroke_width="0.8", fill="none") + words


def _star(star: Star, x: Scale, y: Scale) -> Html:
    left, middle = x(star.x), y(star.y)
    half = svg.CHARACTER * len(star.words) / 2
    centre = min(max(left, x.start + half), x.end - half)
    mark = svg.path(f"M{xy(left)} {xy(middle)}{svg.STAR}", fill="#fff", stroke=INK, stroke_width="1.3")
    return mark + svg.text(centre, middle - 11, star.words, "middle", class_="halo")


# ---- bars ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """A bar with its name on the left and its value at its end.

    Attributes:
        name: What it is.
        value: Its length; None = not measured.
        shown: The value in words.
        key: Its place in the records, empty if it has none.
        spread: Half the length of the whisker.
        style: Position in the palette.
        remark: Stands after the value; a bar with a remark is drawn to be found.
        heading: Stands in a line of its own above the bar.
    """

    name: str
    value: float | None
    shown: str
    key: str = ""
    spread: float = 0.0
    style: int = 0
    remark: str = ""
    heading: str = ""


def bars(drawn: Sequence[Bar], what: str, highest: float = 0.0) -> Html | None:
    """Return horizontal bars from 0, one below the other; None without a bar.

    Args:
        drawn: The bars.
        what: What they show, for those who cannot see them.
        highest: Value at the right end; 0 = the largest.
    """
    if not drawn:
        return None
    right = 12 + svg.CHARACTER * max(len(bar.shown) + len(bar.remark) + 1 for bar in drawn)
    longest = max(NAME, int((WIDTH - right - BARS - 10) / svg.CHARACTER))
    names = [svg.shorten(bar.name, longest) for bar in drawn]
    left = 10 + svg.CHARACTER * max(map(len, names))
    top = highest or max((bar.value or 0.0) + bar.spread for bar in drawn) or 1.0
    x = Scale(0, top, left, max(WIDTH - right, left + 60))
    parts, height = [], 2.0
    for bar, name in zip(drawn, names, strict=True):
        if bar.heading:
            height += 5
            parts.append(svg.text(0, height + 13, svg.shorten(bar.heading, 50), class_="axis"))
            height += ROW
        parts.append(_bar(bar, name, height, x))
        height += ROW
    return svg.drawing(height + 2, f"{what}: {len(drawn)} bars", *parts)


def _bar(bar: Bar, name: str, top: float, x: Scale) -> Html:
    end = x(bar.value or 0.0)
    colour = WORST if bar.remark else svg.colour_of(bar.style)
    outline = INK if bar.remark else None
    full = tag("title", bar.name) if name != bar.name else ""
    label = tag("text", full, name, x=xy(x.start - 6), y=xy(top + 13), text_anchor="end")
    whisker = Html("")
    if bar.spread:
        low, high = x(max((bar.value or 0.0) - bar.spread, 0.0)), x((bar.value or 0.0) + bar.spread)
        whisker = svg.path(f"M{xy(low)} {xy(top + 8.5)}H{xy(high)}m0 -3v6M{xy(low)} {xy(top + 5.5)}v6", stroke=INK)
        end = max(end, high)
    words: object = bar.shown
    if bar.key:
        words = number(bar.key, bar.value, bar.shown, "tspan")
    remark = tag("tspan", f" {bar.remark}", font_weight="bold") if bar.remark else ""
    shape = svg.path(svg.box(x.start, top + 2, x(bar.value or 0.0) - x.start, ROW - 6), fill=colour, stroke=outline)
    axis = svg.path(f"M{xy(x.start)} {xy(top)}v{xy(ROW)}", stroke=MUTED)
    return join([label, shape, axis, whisker, tag("text", words, remark, x=xy(end + 6), y=xy(top + 13))])
