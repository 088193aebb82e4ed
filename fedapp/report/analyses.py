"""What training pulled at, and the analyses of prototypes that the FedSAF paper makes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedapp.report.charts import Curve, curves
from fedapp.report.embedding import Embedding, embed
from fedapp.report.maps import COLUMNS, ROWS, Cells, cell_map, groups, scatter
from fedapp.report.markup import Html, details, figure, figures, note, number, plain, table
from fedapp.report.records import Line, Records
from fedapp.report.sections import section, series

DIMENSIONS = (
    ("effective_dimension", "effective dimension"),
    ("participation_ratio", "participation ratio"),
    ("entropy_rank", "entropy rank"),
)


def training(records: Records) -> Html:
    """Return losses and, where a method aligns, how often each of its terms pulled."""
    names = {name: None for line in records.rounds for name in line.get("train") or {}}
    active = [name for name in names if name.endswith("-active")]
    extra = [name for name in names if name.endswith("loss") and name != "loss"]
    losses = [
        Curve("training", series(records.rounds, "train", "loss")),
        Curve("test", series(records.rounds, "evaluate", "loss")),
    ]
    shown = [
        ("Losses", "Mean over samples, lower is better; the training loss holds all terms of the method.",
         curves(losses, ("round", "loss"), zero=True)),
        ("Terms of the loss", "Before they are weighted; a term at 0 pulls at nothing.",
         curves([_train(records, name) for name in extra], ("round", "loss"), zero=True)),
        ("Alignment activity", "Share of the batches in which a term carried a signal; at 0 % it did nothing at all.",
         curves([_train(records, name, 100) for name in active], ("round", "% of batches"), zero=True)),
    ]  # fmt: skip
    drawn = [figure(title, how, drawing) for title, how, drawing in shown if drawing]
    words = [] if drawn else [note("No loss was recorded.")]
    if not active:
        words.append(note("This method recorded no alignment term."))
    return section("training", "Losses and alignment", figures(*drawn), *words)


def _train(records: Records, name: str, factor: float = 1.0) -> Curve:
    return Curve(name, series(records.rounds, "train", name, factor=factor))


def prototypes(records: Records) -> Html:
    """Return effective dimension, shape and rigid parts, and the prototypes in the plane."""
    title = "The clients' prototypes"
    if not records.analysed and records.prototypes is None:
        return section(
            "prototypes", title, note("There are none: this run recorded neither prototypes nor an analysis.")
        )
    words = (
        "A prototype is the mean of a client's features over one class. Below: how varied they are, how far they agree."
    )
    parts: list[object] = [note(words)]
    parts += _recorded(records) if records.analysed else [note("No analysis over rounds was recorded.")]
    parts.append(_plane(records))
    return section("prototypes", title, *parts)


def _recorded(records: Records) -> list[Html]:
    lines = records.analysed
    dimensions = [Curve(name, series(lines, "analysis", key)) for key, name in DIMENSIONS]
    agreement = [Curve("CKA", series(lines, "analysis", "cka"))]
    shown = [
        ("Effective dimension (FedSAF, Fig. 1)",
         "In how many directions the clients' prototypes differ (90 % of their variance; the two other curves count "
         "more smoothly): few means one common subspace, many means that each client has its own.",
         curves(dimensions, ("round", "directions"), zero=True)),
        ("Agreement between clients",
         "Linear CKA of two clients' prototypes, averaged over pairs: at 1 all clients arrange the classes alike, at 0 "
         "nothing is shared.", curves(agreement, ("round", "CKA"), most=1)),
        ("Shape and rigid part (FedSAF, Prop. 1)",
         "Distance from the global prototypes, mean over clients with their range: shape is what no rotation removes, "
         "rigid is only a different basis.", _mean_split(lines)),
    ]  # fmt: skip
    drawn = [figure(title, how, drawing) for title, how, drawing in shown if drawing]
    drawn += [_map(records, part) for part in ("shape", "rigid")]
    return [figures(*drawn), _last(lines[-1])]


def _split(line: Line, part: str) -> list[float]:
    found = (line["analysis"].get("clients") or {}).values()
    return [float(own[part]) for own in found if own.get(part) is not None]


def _mean_split(lines: Sequence[Line]) -> Html | None:
    drawn = []
    for part in ("shape", "rigid"):
        known = [(float(line["round"]), values) for line in lines if (values := _split(line, part))]
        points = [(at, float(np.mean(values))) for at, values in known]
        drawn.append(Curve(part, points, [(at, min(values), max(values)) for at, values in known]))
    return curves(drawn, ("round", "squared distance"), zero=True)


def _map(records: Records, part: str) -> Html:
    """Return one part of every client over the rounds."""
    every = -(-len(records.analysed) // COLUMNS)
    lines = records.analysed[::every]
    held = {client for line in lines for client in line["analysis"].get("clients") or {}}
    shown = [client for client in records.clients if client in held][:ROWS]
    found = [line["analysis"].get("clients") or {} for line in lines]
    values = [[own.get(client, {}).get(part) for own in found] for client in shown]
    cells = Cells(
        list(map(records.called, shown)),
        [str(line["round"]) for line in lines],
        values,
        ("client", "round"),
        "squared distance",
    )
    drawing = cell_map(cells)
    how = "Each row is a client, each column a round; darker is farther from the global prototypes."
    how += f" Every {every}th round is shown." if every > 1 else ""
    how += f" The first {ROWS} clients are shown." if len(held) > ROWS else ""
    return figure(f"{part.capitalize()} part of each client", how, drawing) if drawing else Html("")


def _last(line: Line) -> Html:
    """Return the last analysis in numbers."""
    key, found = f"round.{line['round']}.analysis", line["analysis"]
    names = (*DIMENSIONS, ("cka", "CKA between clients"))
    rows = [(name, number(f"{key}.{part}", found.get(part), plain(found.get(part)))) for part, name in names]
    own = found.get("clients") or {}
    parts = ("shape", "rigid")
    split = [
        (client, *(number(f"{key}.clients.{client}.{part}", v.get(part), plain(v.get(part))) for part in parts))
        for client, v in own.items()
    ]
    return table([f"round {line['round']}", "value"], rows) + details(
        f"Shape and rigid part of {len(own)} clients in round {line['round']}", table(["client", *parts], split)
    )


# ---- in the plane ----------------------------------------------------------------------------------


def _plane(records: Records) -> Html:
    if records.prototypes is None:
        return note("The prototypes themselves were not kept, so they are not drawn.")
    found = embed(records.prototypes)
    if found is None:
        return note(f"{len(records.prototypes.rows)} prototypes are too few, or too much alike, to be drawn.")
    names = list(map(records.called, records.clients))
    names += [f"#{i}" for i in range(len(names), int(found.client.max()) + 1)]
    labels = [records.class_name(label) for label in range(int(found.label.max()) + 1)]
    by_client = scatter(found.points, groups(names, found.client), "prototypes by client")
    by_class = scatter(found.points, groups(labels, found.label), "prototypes by class")
    how = "Near points are similar prototypes; each stands as its {}. Only neighbourhoods mean something, not axes."
    drawn = [
        figure("t-SNE by client (FedSAF, Fig. 7)", how.format("client"), by_client),
        figure("The same by class", how.format("class"), by_class),
    ]
    return figures(*drawn) + _scores(found, records)


def _scores(found: Embedding, records: Records) -> Html:
    rows = [
        ("silhouette by client", number("silhouette.client", found.by_client, plain(found.by_client))),
        ("silhouette by class", number("silhouette.class", found.by_class, plain(found.by_class))),
    ]
    if records.analysed:
        line = records.analysed[-1]
        cka = line["analysis"].get("cka")
        rows.append(("CKA between clients", number(f"round.{line['round']}.analysis.cka", cka, plain(cka))))
    words = "Silhouettes are of the raw prototypes: near 1 they gather by client (or by class), near 0 they mix."
    if found.total > len(found.points):
        words += f" {len(found.points)} of {found.total} prototypes were drawn by lot and measured."
    return table(["last round with uploads", "value"], rows) + note(words)
