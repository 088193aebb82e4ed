"""Several runs side by side: methods, and the seeds of each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.config import SettingError
from fedapp.report import markup, sections
from fedapp.report.charts import NAME as LONGEST
from fedapp.report.charts import Bar, Curve, Star, bars, curves
from fedapp.report.evaluations import SHORT
from fedapp.report.markup import (
    MIB,
    NOTHING,
    SPACE,
    Html,
    details,
    figure,
    figures,
    join,
    note,
    number,
    percent,
    table,
    tag,
)
from fedapp.report.page import NAME, contents, page
from fedapp.report.records import Line, Records, load
from fedapp.report.sections import PLACES, STATISTICS, section, series
from fedapp.summaries import over_evaluations

Value = Callable[[Records], float | None]
OWN_MODELS = "clients' own models"
OWN = (*PLACES, "seed", "track")
"""Settings in which runs of one method may differ and still be repetitions of one another."""


@dataclass(frozen=True)
class Group:
    """The runs of one method with the same settings but for the seed.

    Attributes:
        label: What it is called on the page.
        full: The same with every setting in which it differs from others of its method.
        runs: One a seed.
    """

    label: str
    full: str
    runs: Sequence[Records]

    def spread(self, value: Value) -> tuple[float, float] | None:
        """Return mean and sample standard deviation over the seeds (0 for one), None if nothing was measured."""
        known = [found for run in self.runs if (found := value(run)) is not None]
        if not known:
            return None
        return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write one page that compares runs, from their records alone, and return its path.

    Args:
        folders: The runs' folders; runs that differ in nothing but the seed are repetitions of one another.
        out: The file to write, or a folder that exists: then ``report.html`` in it.

    Raises:
        SettingError: If there are no folders, or one is no run's folder.
    """
    if not folders:
        raise SettingError("nothing to compare; give the folders of at least one run")
    runs = [load(Path(folder)) for folder in folders]
    path = Path(out) / NAME if Path(out).is_dir() else Path(out)
    path.write_text(render(runs), encoding="utf-8")
    return path


def render(runs: Sequence[Records]) -> str:
    """Return the page that compares ``runs``."""
    found = grouped(runs)
    data = sorted({str(run.settings.get("dataset", "unknown data")) for run in runs})
    by_name = any(run.summary.get("evaluations") for run in runs)
    names = [("summary", "Methods"), ("curves", "Over rounds"), *[("evaluations", "Evaluations")] * by_name,
             ("domains", "Domains"), ("costs", "Costs"), ("runs", "Runs"), ("failures", "Failures")]  # fmt: skip
    parts = [
        tag("h1", f"{_count(found)} on {', '.join(data)}"),
        join(
            note(f"{run.name}: not finished, {len(run.rounds)} rounds are recorded", kind="warning")
            for run in runs
            if not run.finished
        ),
        join(note(f"{run.name}: {text}", kind="warning") for run in runs for text in run.damage),
        _headline(found),
        contents(names),
        section("summary", "Methods side by side", _methods(found)),
        section("curves", "Over rounds", _curves(found)),
        section("evaluations", "Models, evaluated by name", _evaluations(found)) if by_name else Html(""),
        section("domains", "Accuracy by domain", _domains(found)),
        section("costs", "What it cost", _costs(found)),
        section("runs", "Every run, and how to run it again", _runs(runs), _commands(runs)),
        section("failures", "Failures", _failures(runs)),
    ]
    return page(f"Comparison on {', '.join(data)}", parts)


def _count(found: Sequence[Group]) -> str:
    """Return how many methods there are, or variants if some differ in their settings alone."""
    methods = {str(group.runs[0].summary["method"]) for group in found}
    noun = "method" if len(methods) == len(found) else "variant"
    return f"{len(found)} {noun}{'s' * (len(found) != 1)}"


def grouped(runs: Sequence[Records]) -> list[Group]:
    """Return the runs by method and settings, in the order in which they came."""
    sorts: dict[tuple[str, str], list[Records]] = {}
    for run in runs:
        settings = {key: value for key, value in run.settings.items() if key not in OWN}
        kind = str(run.summary["method"]), repr((settings, run.config.get("method-params")))
        sorts.setdefault(kind, []).append(run)
    methods = [method for method, _ in sorts]
    full = [
        " ".join([method, *_differing(own[0], [other[0] for (name, _), other in sorts.items() if name == method])])
        for (method, _), own in sorts.items()
    ]
    clear = max(map(len, full)) <= LONGEST and len(set(full)) == len(full)
    ranks = [methods[:i].count(method) + 1 for i, method in enumerate(methods)]
    short = [f"{m} {rank}" if methods.count(m) > 1 else m for m, rank in zip(methods, ranks, strict=True)]
    labels = full if clear else short
    return [Group(label, name, own) for label, name, own in zip(labels, full, sorts.values(), strict=True)]


def _differing(run: Records, others: Sequence[Records]) -> list[str]:
    """Return the settings in which a run differs from other runs of its method."""

    def everything(records: Records) -> dict[str, Any]:
        return {**records.settings, **(records.config.get("method-params") or {})}

    mine, words = everything(run), []
    for key, value in mine.items():
        if key not in (*OWN, "method-params") and any(everything(other).get(key) != value for other in others):
            words.append(f"{key}={value}")
    return words


# ---- numbers -----------------------------------------------------------------------------------------


def _found(*keys: str) -> Value:
    """Return what reads a number of summary.json, None where it is missing."""

    def read(run: Records) -> float | None:
        value: Any = run.summary
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value  # type: ignore[no-any-return]

    return read


def _payload(way: str) -> Value:
    """Return what reads the payload of both phases, one way."""

    def read(run: Records) -> float:
        traffic: Line = run.summary["bytes"]
        total: float = traffic.get(f"payload_{way}", 0) + traffic.get(f"evaluate_payload_{way}", 0)
        return total

    return read


COLUMNS: tuple[tuple[str, str, Value, Callable[[float | None], str]], ...] = (
    *((key, title, _found("accuracy", key), percent) for key, title in STATISTICS),
    ("client_mean", "mean over clients", _found("clients", "mean"), percent),
    ("client_std", "std over clients", _found("clients", "std"), percent),
    ("worst", "worst client", _found("clients", "worst"), percent),
    ("up", "payload up", _payload("up"), markup.size),
    ("down", "payload down", _payload("down"), markup.size),
    ("seconds", "time", _found("seconds", "run"), markup.seconds),
)


def _mean(group: Group, key: str, value: Value, written: Callable[[float | None], str]) -> Html:
    found = group.spread(value)
    if found is None:
        return markup.escape(NOTHING)
    mean, deviation = found
    place, shown = f"method.{group.full}.{key}", written(mean)
    if not deviation:
        return number(f"{place}.mean", mean, shown)
    if written is percent:
        shown = shown.removesuffix(f"{SPACE}%")  # one sign is enough for both
    words = number(f"{place}.mean", mean, shown) + f"{SPACE}±{SPACE}"
    return words + number(f"{place}.std", deviation, written(deviation))


def _headline(found: Sequence[Group]) -> Html:
    """Return the outcome in one sentence for somebody who does not know the methods."""
    last = _found("accuracy", "last")
    known = [(group, spread) for group in found if (spread := group.spread(last))]
    if not known:
        return note("No accuracy was measured in any of these runs.", kind="headline")
    ranked = sorted(known, key=lambda pair: -pair[1][0])
    words: list[object] = ["After the last round, the models trained with ", tag("b", ranked[0][0].label)]
    words += [" classify ", tag("b", _mean(ranked[0][0], "last", last, percent)), " of their test samples correctly"]
    for index, (group, _) in enumerate(ranked[1:4]):
        words += [", ahead of " if index == 0 else ", ", tag("b", group.label), " with "]
        words.append(_mean(group, "last", last, percent))
    words.append(" and others." if len(ranked) > 4 else ".")
    return note(*words, kind="headline")


def _methods(found: Sequence[Group]) -> Html:
    rows = [
        (group.label, str(len(group.runs)), *(_mean(group, key, value, written) for key, _, value, written in COLUMNS))
        for group in found
    ]
    words = "Accuracies are by samples unless a column says otherwise; those over clients are of the last evaluation."
    if any(len(group.runs) > 1 for group in found):
        words += " Mean ± sample standard deviation over the seeds, if there is any."
    long = [tag("li", tag("b", group.label), f": {group.full}") for group in found if group.full != group.label]
    header = ["method", "seeds", *(title for _, title, _, _ in COLUMNS)]
    return table(header, rows) + note(words) + (tag("ul", *long) if long else Html(""))


# ---- drawings ----------------------------------------------------------------------------------------


def _curve(group: Group, style: int, *keys: str, factor: float = 1.0) -> Curve:
    """Return the mean over the seeds, and one standard deviation around it, of rounds that every seed has."""
    each = [dict(series(run.rounds, *keys, factor=factor)) for run in group.runs]
    each = [values for values in each if any(value is not None for value in values.values())]
    points, band = [], []
    for at in sorted(set.intersection(*(set(values) for values in each)) if each else ()):
        known = [value for values in each if (value := values[at]) is not None]
        if len(known) < len(each):
            continue
        mean = statistics.fmean(known)
        points.append((at, mean))
        if len(known) > 1:
            spread = statistics.stdev(known)
            band.append((at, mean - spread, mean + spread))
    return Curve(group.label, points, band, style)


def _curves(found: Sequence[Group]) -> Html:
    """Return the methods' curves of everything that at least one of them recorded."""
    shown = (
        ("Accuracy by samples", "Higher is better; the star marks the best.", ("accuracy",), "accuracy, %", 100.0),
        ("Accuracy, mean over clients", "Every client counts the same, however many test samples it has.",
         ("client_mean",), "accuracy, %", 100.0),
        ("Accuracy of the worst client", "What the client that fares worst in a round gets.",
         ("client_worst",), "accuracy, %", 100.0),
        ("Effective dimension (FedSAF, Fig. 1)", "Directions in which the clients' prototypes differ; few means one "
         "common subspace.", ("analysis", "effective_dimension"), "directions", 1.0),
        ("Agreement between clients", "CKA of two clients' prototypes, averaged over pairs; 1 means they arrange the "
         "classes alike.", ("analysis", "cka"), "CKA", 1.0),
    )  # fmt: skip
    drawn = []
    for title, how, keys, label, factor in shown:
        lines = [_curve(group, i, *keys, factor=factor) for i, group in enumerate(found)]
        stars = _highest(lines) if keys == ("accuracy",) else []
        how += " The band is one standard deviation over the seeds." if any(line.band for line in lines) else ""
        drawing = curves(lines, ("round", label), stars=stars, most=100 if factor == 100 else math.inf)
        if drawing:
            drawn.append(figure(title, how, drawing))
    return figures(*drawn) if drawn else note("No accuracy was measured in any of these runs.")


def _highest(lines: Sequence[Curve]) -> list[Star]:
    known = [(value, -at, line.name) for line in lines for at, value in line.points if value is not None]
    if not known:
        return []
    value, at, name = max(known)
    return [Star(-at, value, f"best {percent(value / 100)}, {name}, round {-at:g}")]


def _evaluations(found: Sequence[Group]) -> Html:
    """Return every named evaluation of every method, below the clients' own models, which all of them have."""
    names = [
        OWN_MODELS,
        *sorted({name for group in found for run in group.runs for name in _named(run)} - {OWN_MODELS}),
    ]
    rows = []
    for name in names:
        for group in found:
            cells = [
                _mean(group, f"evaluations.{name}.{part}.{key}", _of_named(name, part, key), percent)
                for part in ("global_mean", "worst_domain")
                for key, _ in SHORT
            ]
            if any(name in _named(run) for run in group.runs):
                rows.append((name, group.label, *cells))
    header = ["model", "method", *(f"{part}: {title}" for part in ("mean", "worst") for _, title in SHORT)]
    words = (
        "Mean and worst are over the domains, every domain counting the same. A method that trains one model for all "
        "has it at every client: its clients' own models compare with the consensus of the others."
    )
    return table(header, rows, 1) + note(words)


def _named(run: Records) -> dict[str, Any]:
    """Return what the clients' own models come to over the domains, and every named evaluation."""
    own = over_evaluations([{"evaluations": {OWN_MODELS: line.get("domains")}} for line in run.evaluated])
    return {**own.get("evaluations", {}), **(run.summary.get("evaluations") or {})}


def _of_named(name: str, part: str, key: str) -> Value:
    """Return what reads a number of a named evaluation, None where there is none."""

    def read(run: Records) -> float | None:
        value: float | None = _named(run).get(name, {}).get(part, {}).get(key)
        return value

    return read


def _domains(found: Sequence[Group]) -> Html:
    domains = sorted({name for group in found for run in group.runs for name in run.summary["domains"]})
    if len(domains) < 2:
        return note("The data have no domains, or nothing was evaluated.")
    drawn = []
    for name in domains:
        bars_of = _bars(found, _found("domains", name, "last"), f"domains.{name}.last", percent, heading=name)
        drawn += bars_of
    drawing = bars(drawn, "accuracy by domain and method", 1.0)
    places = [name for name in domains for _ in found]
    known = [(bar.value, bar, name) for bar, name in zip(drawn, places, strict=True) if bar.value is not None]
    lowest = min(known, key=lambda one: one[0])
    worst = f" The lowest is {lowest[1].name} on {lowest[2]} with {lowest[1].shown}."
    how = f"Accuracy over each domain's test samples at the last evaluation, mean over seeds.{worst}"
    return figures(figure("Domains", how, drawing)) if drawing else Html("")


def _bars(
    found: Sequence[Group], value: Value, key: str, written: Callable[[float | None], str], heading: str
) -> list[Bar]:
    """Return a bar for each method under one heading."""
    drawn = []
    for i, group in enumerate(found):
        mean, spread = group.spread(value) or (None, 0.0)
        place = f"method.{group.full}.{key}.mean" if mean is not None else ""
        shown = written(mean) if mean is not None else "not measured"
        drawn.append(Bar(group.label, mean, shown, place, spread, i, heading=heading if i == 0 else ""))
    return drawn


def _costs(found: Sequence[Group]) -> Html:
    traffic = [bar for way in ("up", "down") for bar in _bars(found, _payload(way), way, markup.size, f"payload {way}")]
    time = _bars(found, _found("seconds", "run"), "seconds", markup.seconds, "")
    shown = [
        ("Bytes", "Array contents that crossed the network in the whole run, training and evaluation together.",
         bars(traffic, "payload by method", max((bar.value or 0.0 for bar in traffic), default=0.0) or float(MIB))),
        ("Time", "Wall clock of the whole run.", bars(time, "seconds by method")),
    ]  # fmt: skip
    return figures(*(figure(title, how, drawing) for title, how, drawing in shown if drawing))


# ---- single runs -------------------------------------------------------------------------------------


def _runs(runs: Sequence[Records]) -> Html:
    rows = []
    for i, run in enumerate(runs):
        spread, cells = run.summary["clients"], []
        for key, _, value, written in COLUMNS:
            found = value(run)
            cell: Html = number(f"run.{i}.{key}", found, written(found))
            if key == "worst" and spread["worst_client"] is not None:
                cell += f" (client {spread['worst_client']})"
            cells.append(cell)
        rows.append((run.name, str(run.summary["method"]), str(run.summary["seed"]), *cells))
    return table(["run", "method", "seed", *(title for _, title, _, _ in COLUMNS)], rows, 1)


def _commands(runs: Sequence[Records]) -> Html:
    written = [tag("pre", tag("code", sections.command(run)), class_="command") for run in runs]
    versions = sorted({sections.pairs(run.config.get("versions") or {}, " ") for run in runs})
    return details("The commands", *written) + note(f"Versions: {'; '.join(versions)}.")


def _failures(runs: Sequence[Records]) -> Html:
    rows = [(run.name, *sections.failure_row(failure)) for run in runs for failure in run.summary["failures"]]
    if not rows:
        return note("No client failed in any run.")
    return table(["run", "round", "client", "phase", "type", "cause"], rows, 5)
