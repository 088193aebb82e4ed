"""Pictures of submodels: which group a client was in over the rounds, and the roles of its channels in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from fedapp.report import svg
from fedapp.report.markup import Html, join, number, tag
from fedapp.report.svg import INK, MUTED, WIDTH, Scale, xy

ROW, BAR = 18.0, 12.0
GLOBAL, PRIVATE = "#175592", "#f7d2b5"  # far apart in grey as well; Private is hatched besides
HATCH = 3.5
SLANT = 0.72  # of the length of a name that is written upwards at 45 degrees


def stretches(values: Sequence[int | None]) -> list[tuple[int, int, int | None]]:
    """Return (first position, length, value) of every run of equal values.

    Example:
        >>> stretches([0, 0, 2, None])
        [(0, 2, 0), (2, 1, 2), (3, 1, None)]
    """
    found, start = [], 0
    for value, run in groupby(values):
        length = len(list(run))
        found.append((start, length, value))
        start += length
    return found


@dataclass(frozen=True)
class GroupRow:
    """A client's group over the rounds.

    Attributes:
        client: The client.
        domain: Its true domain, empty if it is not known.
        groups: One a round; None = the client was not known yet.
    """

    client: str
    domain: str
    groups: Sequence[int | None]


def group_map(rows: Sequence[GroupRow], rounds: Sequence[int]) -> Html:
    """Return a row a client and a column a round, the number of the client's group in each stretch that it lasted.

    Args:
        rows: The clients.
        rounds: Numbers of the rounds.
    """
    shown = [svg.shorten(f"{row.client} {row.domain}".strip(), 22) for row in rows]
    left = 10 + svg.CHARACTER * max(map(len, (*shown, "client ↓")))
    cell, top = (WIDTH - left - 2) / len(rounds), 34.0
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 10**9) if step * cell >= 28)
    parts = [
        svg.text(left - 6, 12, "client ↓", "end", class_="axis"),
        svg.text(left, 12, "round →", class_="axis"),
        *(svg.text(left + cell * (i + 0.5), top - 5, str(at), "middle") for i, at in enumerate(rounds)
          if i % every == 0),
    ]  # fmt: skip
    for i, name in enumerate(shown):
        parts.append(svg.text(left - 6, top + ROW * i + 13, name, "end"))
        for start, length, group in stretches(rows[i].groups):
            if group is not None:
                key = f"round.{rounds[start]}.analysis.submodels.clients.{rows[i].client}.group"
                words = number(key, group, str(group), "tspan")
                parts.append(_stretch((left + cell * start, top + ROW * i, cell * length), group, words))
    return svg.drawing(top + ROW * len(rows) + 2, "group of each client over the rounds", *parts)


def _stretch(place: tuple[float, float, float], group: int, words: Html) -> Html:
    x, y, width = place
    shape = svg.path(svg.box(x + 0.5, y + 1, width - 1, ROW - 2), fill=svg.colour_of(group))
    if width < 4 + svg.CHARACTER * len(str(group)):
        return shape
    return shape + svg.text(x + width / 2, y + 13, words, "middle", fill="#fff")


# ---- roles -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoleRow:
    """A client's channels.

    Attributes:
        name: The client and its budget.
        counts: (Global, Private) channels of every layer.
        key: Place of the client in the records.
        heading: Stands in a line of its own above the row.
    """

    name: str
    counts: Sequence[tuple[int, int]]
    key: str
    heading: str = ""


def role_map(rows: Sequence[RoleRow], layers: Sequence[tuple[str, int]]) -> Html:
    """Return a row a client and a column a layer; a bar of Global, Private and Dropped, and the first two in numbers.

    Args:
        rows: The clients.
        layers: Name and channels of every layer.
    """
    names = [svg.shorten(row.name, 22) for row in rows]
    left = 10 + svg.CHARACTER * max(map(len, names))
    longest = max(len(f"{a}+{b}") for row in rows for a, b in row.counts)
    cell = max(34.0, 8 + svg.CHARACTER * longest)
    heads = [svg.shorten(name, 24) for name, _ in layers]
    rise = svg.CHARACTER * SLANT * max(map(len, heads))
    top = rise + 14
    parts = [_legend(left), *(_slanted(left + cell * (j + 0.4), top + 18, name) for j, name in enumerate(heads))]
    y = top + 26
    for row, name in zip(rows, names, strict=True):
        if row.heading:
            parts.append(svg.text(0, y + 14, row.heading, class_="axis"))
            y += 22
        parts.append(svg.text(left - 6, y + 11, name, "end"))
        parts += [_cell(row, j, (left + cell * j, y, cell - 5), layers[j][1]) for j in range(len(layers))]
        y += BAR + 22
    width = left + cell * len(layers) + max(rise + 10 - 0.6 * cell, 4)
    image = svg.drawing(y, "channel roles by client and layer", *parts, width=max(width, WIDTH))
    size = f"min-width:{round(width * 0.85)}px;max-width:{round(max(width, WIDTH) * 1.3)}px"
    return tag("div", tag("div", image, style=size), class_="scroll", tabindex="0")


def _slanted(x: float, y: float, words: str) -> Html:
    return svg.text(x, y, words, transform=f"rotate(-45 {xy(x)} {xy(y)})")


def _cell(row: RoleRow, layer: int, place: tuple[float, float, float], channels: int) -> Html:
    x, y, width = place
    held, own = row.counts[layer]
    scale = Scale(0, channels, x, x + width)
    words = [
        number(f"{row.key}.global.{layer}", held, str(held), "tspan"),
        "+",
        number(f"{row.key}.private.{layer}", own, str(own), "tspan"),
    ]
    return _bar(x, y, (scale(held) - x, scale(held + own) - scale(held), width)) + svg.text(
        x + width / 2, y + BAR + 12, join(words), "middle"
    )


def _bar(x: float, y: float, widths: tuple[float, float, float]) -> Html:
    """Return a bar whose parts are as wide as said: Global, Private, and the whole."""
    first, second, whole = widths
    parts = [svg.path(svg.box(x, y, first, BAR), fill=GLOBAL)] if first else []
    if second:
        parts.append(svg.path(svg.box(x + first, y, second, BAR), fill=PRIVATE))
        parts.append(svg.path(_hatch(x + first, y, second), stroke=INK, stroke_width="0.9"))
    return join([*parts, svg.path(svg.box(x, y, whole, BAR), fill="none", stroke=MUTED, stroke_width="0.8")])


def _hatch(x: float, y: float, width: float) -> str:
    """Return slanted lines within a box of a bar's height."""
    lines, start = "", -BAR + HATCH / 2
    while start < width:
        low, high = max(0.0, -start), min(BAR, width - start)
        if high > low:
            lines += f"M{xy(x + start + low)} {xy(y + BAR - low)}l{xy(high - low)} {xy(low - high)}"
        start += HATCH
    return lines


def _legend(left: float) -> Html:
    """Return what the three parts of a bar are."""
    samples = (("Global", (22.0, 0.0, 22.0)), ("Private", (0.0, 22.0, 22.0)), ("Dropped", (0.0, 0.0, 22.0)))
    parts = []
    for i, (name, widths) in enumerate(samples):
        x = left + 92 * i
        parts += [_bar(x, 1, widths), svg.text(x + 28, 11, name)]
    return join(parts)
