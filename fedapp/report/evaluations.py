"""Models that are nobody's own, and clients' submodels, evaluated by name: how well each fares over the domains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from statistics import fmean

from fedapp.report import newcomers
from fedapp.report.charts import Bar, Curve, bars, curves
from fedapp.report.markup import Html, details, figure, figures, join, note, percent, table, tag
from fedapp.report.records import Line, Records
from fedapp.report.sections import STATISTICS, section, share

Accuracies = Mapping[str, float]  # by domain
Over = Sequence[tuple[float, Accuracies]]  # of each round
AGAIN = "-recalibrated"
SHORT = (("best", "best"), ("last", "last"), ("last_ten", "last ten"))
MODELS = (
    ("consensus", "One full model for everybody: the number to compare with methods that train a single model."),
    ("group", "The full model of each group of clients, on the domains whose clients are mostly in that group."),
    ("deployed", "Every client's own small model, on the test samples of its own domain."),
)
ABSENT = {
    "consensus": "Outside a simulation the server has no test data, and no client that keeps the full model (keep "
    "ratio 1) evaluated it on its own.",
    "group": "It takes the test data of whole domains on the server, which only a simulation has.",
    "deployed": "No client evaluated its own model.",
}


def found_in(records: Records) -> Mapping[str, Line]:
    """Return what every named evaluation came to over the rounds, the known ones in order and then all others."""
    held = records.summary.get("evaluations") or {}
    known = [name for model, _ in MODELS for name in (model, model + AGAIN)] + list(newcomers.MEANINGS)
    return {name: held[name] for name in (*known, *sorted(held)) if name in held}


def headline_of(records: Records, model: str) -> str | None:
    """Return the name under which a model's headline was evaluated: the way the profile says, or the only way."""
    again = bool((records.config.get("method-params") or {}).get("bn.recalibrate"))
    names = (model + AGAIN, model) if again else (model, model + AGAIN)
    return next((name for name in names if name in found_in(records)), None)


def in_a_sentence(records: Records) -> Html:
    """Return how well one model for everybody does, for the top of the page; nothing if there is none."""
    name = headline_of(records, "consensus")
    if name is None:
        return Html("")
    mean, worst = (found_in(records)[name][part]["last"] for part in ("global_mean", "worst_domain"))
    return join(
        [
            " One model for everybody (consensus) reaches ",
            tag("b", share(f"evaluations.{name}.global_mean.last", mean)),
            " on average over the domains and ",
            share(f"evaluations.{name}.worst_domain.last", worst),
            " in the worst of them.",
        ]
    )


def named(records: Records) -> Html:
    """Return the named evaluations; nothing for a method that has none."""
    found = found_in(records)
    if not found and not records.submodels and not records.newcomers:
        return Html("")
    meanings = [tag("dt", model) + tag("dd", _meaning(records, model, words)) for model, words in MODELS]
    parts: list[object] = [tag("dl", *meanings, class_="terms")] if records.submodels else []
    parts += [newcomers.about(records, found)] if records.newcomers else []
    if found:
        parts += [_about_statistics(records) if records.submodels else "", _table(records, found), _drawings(records)]
        parts.append(details("The same for every domain", _domains(found)))
    elif records.submodels:
        parts.append(note("Nothing was evaluated in this run."))
    return section("evaluations", "Models, evaluated by name", *parts, newcomers.own_figures(records))


def _meaning(records: Records, model: str, words: str) -> Html:
    if headline_of(records, model) is not None:
        return Html("") + words
    return join([words, " ", tag("b", "Not evaluated."), " ", ABSENT[model]])


def _about_statistics(records: Records) -> Html:
    params = records.config.get("method-params") or {}
    chosen = "re-estimated" if params.get("bn.recalibrate") else "averaged"
    return note(
        f'Each with BatchNorm statistics as averaged over clients, and re-estimated ("{AGAIN[1:]}"): measured anew in '
        "one pass over training samples, which changes no weight. The headline of this run is ",
        tag("b", chosen),
        f" (bn.recalibrate = {str(params.get('bn.recalibrate')).lower()}).",
    )


# ---- numbers -----------------------------------------------------------------------------------------


def _label(records: Records, name: str) -> Html:
    chosen = _headlines(records) if records.submodels else []
    return tag("b", f"{name} (headline)") if name in chosen else Html("") + name


def _table(records: Records, found: Mapping[str, Line]) -> Html:
    rows = []
    for name, values in found.items():
        cells: list[Html] = []
        for part in ("global_mean", "worst_domain"):
            cells += [share(f"evaluations.{name}.{part}.{key}", values[part][key]) for key, _ in SHORT]
        rows.append((_label(records, name), *cells, worst_of(values)))
    header = ["model", *(f"mean: {title}" for _, title in SHORT), *(f"worst: {title}" for _, title in SHORT)]
    words = "Mean and worst are over the domains, every domain counting the same; best, last round, mean of last ten."
    return table([*header, "worst domain"], rows) + note(words)


def worst_of(values: Line) -> str:
    """Return the domain on which a model ended lowest.

    Example:
        >>> worst_of({"domains": {"a": {"last": 0.5}, "b": {"last": 0.25}}})
        'b'
    """
    domains: Mapping[str, Line] = values["domains"]
    return min(domains, key=lambda domain: (domains[domain]["last"], domain))


def _domains(found: Mapping[str, Line]) -> Html:
    rows = [
        (name, domain, *(share(f"evaluations.{name}.domains.{domain}.{key}", own[key]) for key, _ in STATISTICS))
        for name, values in found.items()
        for domain, own in values["domains"].items()
    ]
    return table(["model", "domain", *(title for _, title in STATISTICS)], rows, 1)


# ---- drawings ----------------------------------------------------------------------------------------


def _drawings(records: Records) -> Html:
    found = found_in(records)
    first = _headlines(records)
    rest = [name for name in found if name not in first]
    lines = [line for line in records.rounds if line.get("evaluations")]
    shown = [
        (
            f"Mean over domains{_way(found, first)}",
            "Every domain counts the same. Higher is better.",
            _means(lines, first),
        ),
        (
            f"Worst domain{_way(found, first)}",
            "The domain on which a model fares worst in a round.",
            _worst(lines, first),
        ),
        (
            f"Mean over domains{_way(found, rest)}",
            "The same models, but for BatchNorm's statistics.",
            _means(lines, rest),
        ),
        (f"{first[0]} by domain", "How it fares on each of them.", _by_domain(lines, first[0])),
        ("Every domain in the last round", f"The models side by side{_way(found, first)}.", _bars(found, first)),
    ]
    return figures(*(figure(title, how, drawing) for title, how, drawing in shown if drawing))


def _headlines(records: Records) -> list[str]:
    """Return of every model that was evaluated the name under which its headline was."""
    models = dict.fromkeys(name.removesuffix(AGAIN) for name in found_in(records))
    return [name for model in models if (name := headline_of(records, model))]


def _way(found: Mapping[str, Line], names: Sequence[str]) -> str:
    """Return how the statistics of all these models were taken, in words for a title.

    Nothing if it differs among them, or if nothing in this run was evaluated with statistics taken anew.
    """
    if not any(name.endswith(AGAIN) for name in found):
        return ""
    if all(name.endswith(AGAIN) for name in names):
        return ", re-estimated"
    return ", as averaged" if not any(name.endswith(AGAIN) for name in names) else ""


def _short(name: str, names: Sequence[str]) -> str:
    """Return a name without what all of them end with, as the title says it."""
    return name.removesuffix(AGAIN) if all(other.endswith(AGAIN) for other in names) else name


def _means(lines: Sequence[Line], names: Sequence[str]) -> Html | None:
    return _curves([(_short(name, names), lambda v: fmean(v.values()), _over(lines, name)) for name in names])


def _worst(lines: Sequence[Line], names: Sequence[str]) -> Html | None:
    return _curves([(_short(name, names), lambda v: min(v.values()), _over(lines, name)) for name in names])


def _by_domain(lines: Sequence[Line], name: str) -> Html | None:
    over = _over(lines, name)
    domains = dict.fromkeys(domain for _, values in over for domain in values)
    return _curves([(domain, itemgetter(domain), [one for one in over if domain in one[1]]) for domain in domains])


def _curves(drawn: Sequence[tuple[str, Callable[[Accuracies], float], Over]]) -> Html | None:
    lines = [Curve(name, [(at, 100 * read(values)) for at, values in over]) for name, read, over in drawn]
    return curves(lines, ("round", "accuracy, %"), most=100)


def _over(lines: Sequence[Line], name: str) -> Over:
    """Return the accuracies by domain of one evaluation, over the rounds that have it."""
    return [(float(line["round"]), line["evaluations"][name]) for line in lines if line["evaluations"].get(name)]


def _bars(found: Mapping[str, Line], names: Sequence[str]) -> Html | None:
    domains = dict.fromkeys(domain for name in names for domain in found[name]["domains"])
    drawn = []
    for domain in domains:
        own = [(i, name) for i, name in enumerate(names) if domain in found[name]["domains"]]
        for place, (style, name) in enumerate(own):
            value = found[name]["domains"][domain]["last"]
            key = f"evaluations.{name}.domains.{domain}.last"
            heading = domain if place == 0 else ""
            drawn.append(Bar(_short(name, names), value, percent(value), key, style=style, heading=heading))
    return bars(drawn, "accuracy by domain and model", 1.0)
