"""Markup as text that cannot be escaped twice or not at all, and how numbers are written."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

MIB = 2**20
VOID = frozenset({"meta", "br"})
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
NOTHING = "–"
SPACE = "\u00a0"  # between a number and its unit: they stay on one line


class Html(str):
    """Markup that goes into a page as it stands; every other text is escaped on its way in.

    Example:
        >>> Html("<b>") + "<", "<" + Html("<b>")
        ('<b>&lt;', '&lt;<b>')
    """

    def __add__(self, other: str) -> Html:
        """Return both as one piece of markup."""
        return Html(str.__add__(self, escape(other)))

    def __radd__(self, other: str) -> Html:
        """Return both as one piece of markup."""
        return escape(other) + self


def escape(text: object) -> Html:
    """Return text as markup that shows it, in an element or a quoted attribute.

    Two slashes are written so that no address stands in the page, not even one that nobody could load. Characters
    that no page may hold are shown as a replacement character.

    Example:
        >>> escape("<b> & https://x")
        '&lt;b&gt; &amp; https:/&#47;x'
        >>> escape(Html("<b>"))
        '<b>'
    """
    if isinstance(text, Html):
        return text
    clean = _CONTROL.sub("\ufffd", str(text)).encode("utf-8", "replace").decode("utf-8")
    return Html(html.escape(clean).replace("//", "/&#47;"))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element; ``class_`` is class, underscores become hyphens, attributes that are None are left out.

    Example:
        >>> tag("p", "a < b", tag("br"), class_="note", data_key="x", id=None)
        '<p class="note" data-key="x">a &lt; b<br></p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[object], between: str = "") -> Html:
    """Return the parts as one piece of markup.

    Example:
        >>> join(["a<", Html("<br>")], ", ")
        'a&lt;, <br>'
    """
    return Html(between.join(escape(part) for part in parts))


def percent(value: float | None) -> str:
    r"""Return a share as per cent with two digits.

    Example:
        >>> percent(0.71234), percent(None)
        ('71.23\xa0%', '–')
    """
    return NOTHING if value is None else f"{100 * value:.2f}{SPACE}%"


def plain(value: float | None) -> str:
    """Return a number with four significant digits, whole ones in full.

    Example:
        >>> plain(12345), plain(0.123456), plain(1234.5), plain(3.0), plain(None)
        ('12,345', '0.1235', '1,234', '3', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def size(value: float | None) -> str:
    r"""Return bytes in the largest unit that leaves at least one.

    Example:
        >>> size(0), size(2048), size(1_775_616)
        ('0\xa0B', '2.00\xa0KiB', '1.69\xa0MiB')
    """
    if value is None:
        return NOTHING
    divisor, unit = size_unit(value)
    return f"{value:.0f}{SPACE}B" if divisor == 1 else f"{value / divisor:.2f}{SPACE}{unit}"


def size_unit(largest: float) -> tuple[int, str]:
    """Return the unit to write bytes in, and how many bytes it is.

    Example:
        >>> size_unit(2048)
        (1024, 'KiB')
    """
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if largest >= 1024**power:
            return 1024**power, unit
    return 1, "B"


def seconds(value: float | None) -> str:
    r"""Return a duration.

    Example:
        >>> seconds(0.0123), seconds(75.25), seconds(7384)
        ('0.012\xa0s', '1\xa0min\xa015\xa0s', '2\xa0h\xa003\xa0min')
    """
    if value is None:
        return NOTHING
    if value < 60:
        return f"{value:.3f}{SPACE}s" if value < 1 else f"{value:.1f}{SPACE}s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s".replace(" ", SPACE)
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min".replace(" ", SPACE)


def number(key: str, value: float | None, text: str, element: str = "span", **attributes: object) -> Html:
    """Return a number with its place in the records and its exact value, for those who read the page by program.

    Example:
        >>> number("accuracy.best", 0.5, "50 %")
        '<span data-key="accuracy.best" data-value="0.5">50 %</span>'
    """
    exact = "null" if value is None else repr(value)
    return tag(element, text, data_key=key, data_value=exact, **attributes)


def table(header: Sequence[object], rows: Iterable[Sequence[object]], words: int = 0) -> Html:
    """Return a table whose first column names the row, in a box that scrolls sideways if it must.

    Args:
        header: Names of the columns.
        rows: The cells.
        words: How many columns after the first hold words, and start at the left.

    Example:
        >>> table(["client", "loss"], [["3", "0.5"]])[:44]
        '<div class="scroll" tabindex="0"><table><the'
    """
    kinds = [None] + ["w"] * words + [None] * len(header)
    head = tag("tr", *(tag("th", cell, scope="col", class_=kinds[i]) for i, cell in enumerate(header)))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", row[i], class_=kinds[i]) for i in range(1, len(row))))
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll", tabindex="0")


def note(*parts: object, kind: str = "note") -> Html:
    """Return a paragraph that says something about the figures.

    Example:
        >>> note("nothing was evaluated")
        '<p class="note">nothing was evaluated</p>'
    """
    return tag("p", *parts, class_=kind)


def details(title: str, *children: object) -> Html:
    """Return something to open.

    Example:
        >>> details("more", "text")
        '<details><summary>more</summary>text</details>'
    """
    return tag("details", tag("summary", title), *children)


def figure(title: str, how: str, drawing: Html, wide: bool = False) -> Html:
    """Return a drawing with its title and the sentence that says how to read it.

    Example:
        >>> figure("Losses", "Lower is better.", Html("<svg></svg>"))
        '<figure><figcaption><b>Losses</b> Lower is better.</figcaption><svg></svg></figure>'
    """
    words = tag("figcaption", tag("b", title), " ", how)
    return tag("figure", words, drawing, class_="wide" if wide else None)


def figures(*drawn: Html) -> Html:
    """Return figures side by side, as many as fit.

    Example:
        >>> figures(Html("<svg></svg>"))
        '<div class="figures"><svg></svg></div>'
    """
    return tag("div", *drawn, class_="figures")
