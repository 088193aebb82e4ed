"""Drawing by hand: shapes, styles that differ without colour, ticks, and the frame of a chart with two axes.

A drawing is 400 units wide and grows to the width it gets, so that its text can be read on a phone and on a desk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.report.markup import Html, join, tag

WIDTH = 400.0
INK, MUTED, GRID = "#1a1a1a", "#595959", "#d9d9d9"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#a3478a", "#8a6d00", "#3b3b3b", "#3d8fc9")
"""Okabe and Ito's colours for colour-blind readers, the two palest darkened for white paper."""
WORST = "#d55e00"
DASHES = (None, "7 3", "2 2.5", "9 3 2 3", "1.5 4", "12 4", "5 2 1.5 2 1.5 2")
SHADES = ("#e3eef9", "#c8ddf0", "#a6cbe6", "#7bb2d9", "#5295c8", "#3074b2", "#175592", "#083370")
CHARACTER = 7.2
"""Width of a character of the charts' text in a wide font, in units."""

MARKERS = (
    "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",  # circle
    "m-2.8 -2.8h5.6v5.6h-5.6z",  # square
    "m0 -3.6l3.4 6.2h-6.8z",  # triangle
    "m0 -3.8l3.8 3.8l-3.8 3.8l-3.8 -3.8z",  # diamond
    "m-3 -1h2v-2h2v2h2v2h-2v2h-2v-2h-2z",  # plus
    "m0 3.6l3.4 -6.2h-6.8z",  # triangle down
    "m-3.4 -1.2h6.8v2.4h-6.8z",  # bar
)
STAR = "m0 -7l2 4.8l5.2 .4l-4 3.4l1.3 5.1l-4.5 -2.8l-4.5 2.8l1.3 -5.1l-4 -3.4l5.2 -.4z"


@dataclass(frozen=True)
class Scale:
    """A straight map from values to units of the drawing.

    Example:
        >>> Scale(0, 10, 100, 200)(2.5)
        125.0
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return where a value lies."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def colour_of(style: int) -> str:
    """Return the colour of a style.

    Example:
        >>> colour_of(0) == colour_of(7)
        True
    """
    return PALETTE[style % len(PALETTE)]


def dash_of(style: int) -> str | None:
    """Return the dashes of a style; styles of one colour differ in theirs.

    Example:
        >>> dash_of(0) == dash_of(7)
        False
    """
    return DASHES[(style + 2 * (style // len(PALETTE))) % len(DASHES)]


def marker_of(style: int) -> str:
    """Return the marker of a style, a path from its middle; styles of one colour differ in theirs.

    Example:
        >>> marker_of(0) == marker_of(7)
        False
    """
    return MARKERS[(style + style // len(PALETTE)) % len(MARKERS)]


def xy(value: float) -> str:
    """Return a coordinate with one digit, without what is not needed.

    Example:
        >>> xy(12.34), xy(3.0), xy(-0.01)
        ('12.3', '3', '0')
    """
    text = f"{value:.1f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def ticks(low: float, high: float, count: int = 5, whole: bool = False, most: float = math.inf) -> list[float]:
    """Return about ``count`` round numbers, from at most ``low`` to at least ``high``.

    A range without an extent is widened, but never beyond ``most``, a round number that no value can exceed.

    Example:
        >>> ticks(0.12, 0.87)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        >>> ticks(1, 4, whole=True)
        [1.0, 2.0, 3.0, 4.0]
        >>> ticks(3, 3)
        [2.0, 2.5, 3.0, 3.5, 4.0]
        >>> ticks(100, 100, most=100)
        [60.0, 70.0, 80.0, 90.0, 100.0]
    """
    largest = max(abs(low), abs(high))
    if largest < 1e-12:
        low, high = 0.0, 1.0
    elif high - low < 1e-5 * largest:
        low, high = low - largest / 3, min(high + largest / 3, most)
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((factor * power for factor in (1, 2, 2.5, 5, 10)), key=lambda size: abs(math.log(size / raw)))
    if whole:
        step = max(1.0, float(math.ceil(step - 1e-9)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.10g}") for index in range(first, last + 1)]


def shade_level(share: float) -> int:
    """Return the step of the ramp for a share in [0, 1].

    Example:
        >>> shade_level(0.5), shade_level(1.0)
        (4, 7)
    """
    return min(int(share * len(SHADES)), len(SHADES) - 1)


def dodge(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions apart until neighbours are ``gap`` apart, within [low, high] as long as they fit.

    Example:
        >>> dodge([10.0, 11.0, 50.0], 6, 0, 100)
        [7.5, 13.5, 50.0]
        >>> dodge([0.0, 1.0], 6, 0, 100)
        [0.0, 6.0]
    """
    clusters: list[tuple[float, list[int]]] = []  # (top, members from top to bottom)
    for index in sorted(range(len(wanted)), key=lambda index: wanted[index]):
        members = [index]
        while True:
            middle = sum(wanted[member] for member in members) / len(members)
            length = gap * (len(members) - 1)
            top = max(float(low), min(middle - length / 2, high - length))
            if not clusters or clusters[-1][0] + gap * len(clusters[-1][1]) <= top:
                break
            members = clusters.pop()[1] + members
        clusters.append((top, members))
    placed = [0.0] * len(wanted)
    for top, members in clusters:
        for position, member in enumerate(members):
            placed[member] = top + gap * position
    return placed


def text(x: float, y: float, words: object, anchor: str = "start", **attributes: object) -> Html:
    """Return a text.

    Example:
        >>> text(1, 2, "a<b", "end")
        '<text x="1" y="2" text-anchor="end">a&lt;b</text>'
    """
    where = None if anchor == "start" else anchor
    return tag("text", words, x=xy(x), y=xy(y), text_anchor=where, **attributes)


def path(d: str, **attributes: object) -> Html:
    """Return a path.

    Example:
        >>> path("M0 0h5", fill="none")
        '<path d="M0 0h5" fill="none"></path>'
    """
    return tag("path", d=d, **attributes)


def box(x: float, y: float, width: float, height: float) -> str:
    """Return the path of a rectangle.

    Example:
        >>> box(1, 2, 3, 4)
        'M1 2h3v4h-3z'
    """
    return f"M{xy(x)} {xy(y)}h{xy(width)}v{xy(height)}h{xy(-width)}z"


def shorten(words: str, longest: int) -> str:
    """Return a name cut to at most ``longest`` characters.

    Example:
        >>> shorten("hospital-north", 9)
        'hospital…'
    """
    return words if len(words) <= longest else words[: max(longest - 1, 1)] + "…"


def wrap(words: str, longest: int) -> list[str]:
    """Return a name in one line, or in two of at most ``longest`` characters, broken after a space or a hyphen.

    Example:
        >>> wrap("left-out-adapted-prototype", 20), wrap("hospital", 20), wrap("northernhospital", 9)
        (['left-out-adapted-', 'prototype'], ['hospital'], ['northern…'])
    """
    cut = max(words.rfind(mark, 0, longest) for mark in " -") + 1
    if len(words) <= longest or not cut:
        return [shorten(words, longest)]
    return [words[:cut].rstrip(), shorten(words[cut:], longest)]


def drawing(height: float, label: str, *parts: object, width: float = WIDTH) -> Html:
    """Return a whole drawing; ``label`` says what it shows to those who cannot see it.

    Example:
        >>> drawing(50, "nothing")
        '<svg viewBox="0 0 400 50" role="img" aria-label="nothing"></svg>'
    """
    return tag("svg", *parts, viewBox=f"0 0 {xy(width)} {xy(height)}", role="img", aria_label=label)


def frame(x: Scale, y: Scale, x_ticks: Sequence[float], y_ticks: Sequence[float], labels: tuple[str, str]) -> Html:
    """Return grid, ticks and the names of both axes; the name of the upright one stands above it, not sideways."""
    lines = "".join(f"M{xy(x.start)} {xy(y(value))}H{xy(x.end)}" for value in y_ticks)
    marks = "".join(f"M{xy(x(value))} {xy(y.start)}v4" for value in x_ticks)
    return join(
        [
            path(lines, stroke=GRID),
            path(f"M{xy(x.start)} {xy(y.start)}H{xy(x.end)}{marks}", stroke=MUTED, fill="none"),
            *(text(x.start - 6, y(value) + 4, f"{value:,.6g}", "end") for value in y_ticks),
            *(text(x(value), y.start + 17, f"{value:,.6g}", "middle") for value in x_ticks),
            text(2, 12, labels[1], class_="axis"),
            text((x.start + x.end) / 2, y.start + 33, labels[0], "middle", class_="axis"),
        ]
    )
