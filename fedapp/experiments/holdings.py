"""Who holds what, before any training: clients by classes and by domains, as tables and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp import datasets, paths, plugins
from fedapp.config import DataSettings, RunConfig, parse
from fedapp.experiments.tables import Table
from fedapp.summaries import called

Counts = NDArray[np.int64]
MOST_COLUMNS = 16
SUFFIXES = (".svg", ".png", ".pdf")


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
    """

    title: str
    parts: Counts
    classes: Counts
    class_names: tuple[str, ...]
    domains: Counts
    domain_names: tuple[str, ...]
    clients: tuple[str, ...]


def holdings(settings: DataSettings, clients: int) -> Holdings:
    """Share the data out as a run would, and count.

    Args:
        settings: The data settings.
        clients: K.

    Raises:
        SettingError: If there are no such data, or they cannot be shared out so.
    """
    pool, shares = datasets.load_pool(settings), datasets.load_shares(settings, clients)
    held = [np.concatenate([share.train, share.validation, share.test]) for share in shares]
    parts = [[len(share.train), len(share.validation), len(share.test)] for share in shares]
    owners = pool.domains if pool.domains is not None else np.zeros(len(pool), dtype=np.int64)
    return Holdings(
        title=f"{settings.dataset} over {clients} clients, partition {settings.partition}",
        parts=np.asarray(parts, dtype=np.int64),
        classes=_counted(pool.labels, held, len(pool.class_names)),
        class_names=pool.class_names,
        domains=_counted(owners, held, len(pool.domain_names))[:, : len(pool.domain_names)],
        domain_names=pool.domain_names,
        clients=tuple(called(str(client), pool.owner_of(rows)) for client, rows in enumerate(held)),
    )


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
    body = tuple((held.clients[client], *sizes[client], *row) for client, row in enumerate(columns))
    kinds = (counts > 0).sum(axis=1)
    note = f"a client holds {kinds.min()} to {kinds.max()} of {len(names)} {_plural(unit)}"
    return Table(f"{held.title}: clients by {unit}", ("client", "train", "validation", "test", *header), body, (note,))


def _summary(row: Counts, names: Sequence[str]) -> list[str]:
    largest = [number for number in np.argsort(-row, kind="stable")[:3] if row[number]]
    return [str((row > 0).sum()), ", ".join(f"{names[number]} {row[number]}" for number in largest)]


def _plural(unit: str) -> str:
    return {"class": "classes", "domain": "domains"}[unit]


def draw(held: Holdings) -> Any:
    """Return a figure: a disc for what a client holds of a class, and of a domain, its area the samples."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = [("class", held.classes, held.class_names)]
    if held.domain_names:
        panels.append(("domain", held.domains, held.domain_names))
    widths = [max(2.5, 0.28 * len(names)) for _, _, names in panels]
    figure = Figure(
        figsize=(min(sum(widths) + 1.5, 30), min(max(2.5, 0.28 * len(held.parts)), 40)), layout="constrained"
    )
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=widths)[0]
    for panel, (unit, counts, names) in zip(axes, panels, strict=True):
        rows, columns = np.nonzero(counts)
        panel.scatter(columns, rows, s=160 * counts[rows, columns] / counts.max(), color="#0072B2", linewidths=0)
        panel.set(xlabel=unit, ylabel="client", xlim=(-0.7, len(names) - 0.3), ylim=(len(counts) - 0.3, -0.7))
        panel.yaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
        panel.yaxis.set_major_formatter(lambda y, _: held.clients[int(y)] if 0 <= y < len(held.clients) else "")
        if len(names) <= 2 * MOST_COLUMNS:
            panel.set_xticks(range(len(names)), names, rotation=90)
        panel.set_title(f"largest: {counts.max()} samples", fontsize=8)
    figure.suptitle(held.title, fontsize=9)
    return figure


def show(values: Mapping[str, Any], clients: int, plot: str | None, say: Callable[[str], Any]) -> None:
    """Print the tables of settings and, if asked, write the picture.

    Args:
        values: Settings by key.
        clients: Number of clients.
        plot: File of the picture, .svg, .png or .pdf; none if None.
        say: Prints a line.

    Raises:
        SettingError: As :func:`holdings`, or for a picture of another kind.
    """
    from fedapp.config import SettingError
    from fedapp.experiments import commands

    if plot and Path(plot).suffix not in SUFFIXES:
        raise SettingError(f"--plot {plot}: the name must end in {', '.join(SUFFIXES)}")
    config = parse(RunConfig, values)
    plugins.load(config.plugins)
    settings = replace(config.data, data_root=paths.existing(config.data.data_root, "data-root"))
    held = holdings(settings, clients)
    for table in tables(held):
        commands.show(table)
    if plot:
        draw(held).savefig(plot, dpi=150)
        say(f"Written: {plot}")
