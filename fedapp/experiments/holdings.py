"""Who holds what, before any training: clients by classes and by domains, as tables and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp import datasets, paths, plugins
from fedapp.config import DataSettings, RunConfig, ServerSettings, SettingError, parse
from fedapp.experiments.tables import Table
from fedapp.summaries import called

Counts = NDArray[np.int64]
MOST_COLUMNS = 16
SUFFIXES = (".svg", ".png", ".pdf")
CELL, LEAST_CELL, CHARACTER, LEGEND = 0.28, 0.12, 0.075, 1.1  # inches: of a disc's cell, of a letter, beside a panel
LONGEST = 30  # letters of a name in the picture
BLUE = "#0072B2"


@dataclass(frozen=True)
class Holdings:
    """What K clients hold.

    Attributes:
        title: Data set and partition.
        parts: Samples that train, validate and test, int (K, 3).
        classes: Samples of every class in all parts, int (K, C).
        class_names: The name of every class.
        domains: Samples of every domain, int (K, D); D is 0 for a data set without domains.
        domain_names: The name of every domain.
        clients: What every client is called: its id, with its name in the data if it has one.
        training: Samples of every class, and of every domain, in the training and validation parts: as ``classes`` and
            ``domains``.
        left_out: The clients that take no part in training.
    """

    title: str
    parts: Counts
    classes: Counts
    class_names: tuple[str, ...]
    domains: Counts
    domain_names: tuple[str, ...]
    clients: tuple[str, ...]
    training: tuple[Counts, Counts]
    left_out: tuple[int, ...] = ()


def holdings(settings: DataSettings, clients: int, server: ServerSettings | None = None) -> Holdings:
    """Share the data out as a run would, and count.

    Args:
        settings: The data settings.
        clients: K.
        server: Who is left out of training; nobody if None.

    Raises:
        SettingError: If there are no such data, they cannot be shared out so, or somebody is left out who is not there.
    """
    pool, shares = datasets.load_pool(settings), datasets.load_shares(settings, clients)
    held = [np.concatenate([share.train, share.validation, share.test]) for share in shares]
    parts = [[len(share.train), len(share.validation), len(share.test)] for share in shares]
    trained = [np.concatenate([share.train, share.validation]) for share in shares]
    owners = pool.domains if pool.domains is not None else np.zeros(len(pool), dtype=np.int64)
    domains = len(pool.domain_names)
    return Holdings(
        title=f"{settings.dataset} over {clients} clients, partition {settings.partition}",
        parts=np.asarray(parts, dtype=np.int64),
        classes=_counted(pool.labels, held, len(pool.class_names)),
        class_names=pool.class_names,
        domains=_counted(owners, held, domains)[:, :domains],
        domain_names=pool.domain_names,
        clients=tuple(called(str(client), pool.owner_of(rows)) for client, rows in enumerate(held)),
        training=(
            _counted(pool.labels, trained, len(pool.class_names)),
            _counted(owners, trained, domains)[:, :domains],
        ),
        left_out=_left_out(server, pool, held) if server else (),
    )


def _left_out(server: ServerSettings, pool: datasets.Pool, held: Sequence[Counts]) -> tuple[int, ...]:
    """Return who takes no part in training, by the rule of a run."""
    if not server.leave_domain and not server.leave_clients:
        return ()
    from fedapp.payload import ClientInfo
    from fedapp.strategies.held_out import HeldOut

    infos = {
        str(client): ClientInfo(str(client), domain=pool.domain_of(rows) or "", owner=pool.owner_of(rows) or "")
        for client, rows in enumerate(held)
    }
    held_out = HeldOut(server)
    held_out.check(infos)
    return tuple(client for client, info in enumerate(infos.values()) if held_out.claims(info))


def _counted(numbers: Counts, held: Sequence[Counts], count: int) -> Counts:
    return np.stack([np.bincount(numbers[rows], minlength=count) for rows in held]).astype(np.int64)


def tables(held: Holdings) -> list[Table]:
    """Return the tables of clients by classes and, if there are domains, of clients by domains."""
    shown = [_table(held, "class", held.classes, held.class_names)]
    if held.domain_names:
        shown.append(_table(held, "domain", held.domains, held.domain_names))
    return shown


def _table(held: Holdings, unit: str, counts: Counts, names: Sequence[str]) -> Table:
    """Return counts of every client; of many classes only how many it holds and the three most frequent."""
    sizes = [list(map(str, parts)) for parts in held.parts.tolist()]
    if len(names) <= MOST_COLUMNS:
        header, columns = tuple(names), [[str(count or "") for count in row] for row in counts.tolist()]
    else:
        header, columns = (f"{unit} held", "most of"), [_summary(row, names) for row in counts]
    body = tuple((_called(held, client), *sizes[client], *row) for client, row in enumerate(columns))
    kinds = (counts > 0).sum(axis=1)
    notes = [
        f"a client holds {kinds.min()} to {kinds.max()} of {len(names)} {_plural(unit)}, its test samples included"
    ]
    if held.left_out:
        notes.append(f"left out of training: {', '.join(held.clients[client] for client in held.left_out)}")
    title, parts = f"{held.title}: clients by {unit}", ("client", "train", "validation", "test")
    return Table(title, (*parts, *header), body, tuple(notes))


def _called(held: Holdings, client: int, name: Callable[[str], str] = str) -> str:
    return name(held.clients[client]) + (", left out" if client in held.left_out else "")


def _summary(row: Counts, names: Sequence[str]) -> list[str]:
    largest = [number for number in np.argsort(-row, kind="stable")[:3] if row[number]]
    return [str((row > 0).sum()), ", ".join(f"{names[number]} {row[number]}" for number in largest)]


def _plural(unit: str) -> str:
    return {"class": "classes", "domain": "domains"}[unit]


def draw(held: Holdings) -> Any:
    """Return a figure: a disc for what a client trains on of a class, and of a domain, its area the samples."""
    from matplotlib.figure import Figure

    kinds = (("class", held.class_names), ("domain", held.domain_names))
    panels = [(unit, names, counts) for (unit, names), counts in zip(kinds, held.training, strict=True) if names]
    rows = [_called(held, client, _shown) for client in range(len(held.clients))]
    columns = [[_shown(name) for name in names] for _, names, _ in panels]
    count = sum(map(len, columns))
    wide = min(CELL, max(LEAST_CELL, 12 / count), 30 / count)
    high = min(CELL, 36 / len(rows))
    left, below = _room(rows), _room([name for names in columns for name in names])
    widths = [max(1.0, wide * len(names)) for names in columns]
    width = max(left + sum(widths) + LEGEND * len(panels), CHARACTER * len(_title(held)) + 0.3)
    height = below + high * len(rows) + 0.7
    figure = Figure(figsize=(width, height))
    for number, ((unit, _, counts), names) in enumerate(zip(panels, columns, strict=True)):
        start = left + sum(widths[:number]) + LEGEND * number
        place = (start / width, below / height, widths[number] / width, high * len(rows) / height)
        panel = figure.add_axes(place)
        _discs(panel, counts, 0.9 * 72 * min(wide, high))
        half = widths[number] / wide / 2  # in cells: a panel of few columns keeps them together
        middle = (len(names) - 1) / 2
        panel.set_xlabel(unit, fontsize=9)
        panel.set_ylabel("" if number else "client", fontsize=9)
        panel.set(xlim=(middle - half, middle + half), ylim=(len(rows) - 0.5, -0.5))
        _ticks(panel.set_xticks, names, wide, rotation=90)
        _ticks(panel.set_yticks, [] if number else rows, high)
        panel.set_title(f"by {unit}", fontsize=8, loc="left")
    figure.text(0.1 / width, 1 - 0.1 / height, _title(held), fontsize=9, va="top")
    return figure


def _title(held: Holdings) -> str:
    what = "training samples, those for validation included" if held.parts[:, 1].any() else "training samples"
    return f"{_escaped(held.title)}: {what}"


def _discs(panel: Any, counts: Counts, largest: float) -> None:
    """Draw a disc for every count, the largest so many points wide, and a legend of sizes beside the panel."""
    from matplotlib.lines import Line2D

    rows, columns = np.nonzero(counts)
    most = int(counts.max())
    panel.scatter(columns, rows, s=largest**2 * counts[rows, columns] / most, color=BLUE, linewidths=0)
    sizes = dict.fromkeys(max(1, round(most / part)) for part in (1, 4, 16))
    discs = [
        Line2D([], [], marker="o", ls="", mew=0, color=BLUE, ms=largest * math.sqrt(size / most), label=str(size))
        for size in sizes
    ]
    beside = {"loc": "upper left", "bbox_to_anchor": (1, 1), "frameon": False, "labelspacing": 1}
    panel.legend(handles=discs, title="samples", fontsize=8, title_fontsize=8, **beside)


def _ticks(place: Callable[..., Any], names: Sequence[str], cell: float, **more: Any) -> None:
    """Name cells so many inches wide, as many as have room."""
    shown = range(0, len(names), math.ceil(LEAST_CELL / cell - 1e-9))
    place(list(shown), [names[number] for number in shown], fontsize=8, **more)


def _room(names: Sequence[str]) -> float:
    """Return the inches that names take beside a panel, with its own name."""
    return CHARACTER * max(map(len, names)) + 0.5


def _shown(name: str) -> str:
    """Return a name for the picture: on one line, not too long, and never read as a formula."""
    words = " ".join(name.split())
    return _escaped(words if len(words) <= LONGEST else words[: LONGEST - 1] + "…")


def _escaped(text: str) -> str:
    return text.replace("$", r"\$")


def show(values: Mapping[str, Any], clients: int, plot: str | None, say: Callable[[str], Any]) -> None:
    """Print the tables of settings and, if asked, write the picture.

    Args:
        values: Settings by key.
        clients: Number of clients.
        plot: File of the picture, .svg, .png or .pdf; none if None.
        say: Prints a line.

    Raises:
        SettingError: As :func:`holdings`, or for a picture of another kind or where none can be written.
    """
    from fedapp.experiments import commands

    if plot and Path(plot).suffix not in SUFFIXES:
        raise SettingError(f"--plot {plot}: the name must end in {', '.join(SUFFIXES)}")
    if plot and not Path(plot).parent.is_dir():
        raise SettingError(f"--plot {plot}: there is no folder {Path(plot).parent}; make it, or name another")
    config = parse(RunConfig, values)
    plugins.load(config.plugins)
    settings = replace(config.data, data_root=paths.existing(config.data.data_root, "data-root"))
    held = holdings(settings, clients, config.server)
    for table in tables(held):
        commands.show(table)
    if plot:
        try:
            draw(held).savefig(plot, dpi=150, bbox_inches="tight")
        except OSError as error:
            raise SettingError(f"--plot {plot} cannot be written: {error}; name another file") from error
        say(f"Written: {plot}")
