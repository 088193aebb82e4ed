"""What ran, how to run it again, how well it went, and who took part."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.config import RunConfig, defaults
from fedapp.datasets.presets import habits_of
from fedapp.report import markup
from fedapp.report.charts import Bar, Curve, Star, bars, curves
from fedapp.report.maps import COLUMNS, ROWS, Cells, cell_map
from fedapp.report.markup import NOTHING, Html, details, figure, figures, join, note, number, percent, plain, table, tag
from fedapp.report.records import Line, Records

PLACES = ("out", "run-name", "preset", "resume")
"""Settings that say where a run is kept or what it is called, and change nothing about it."""
STATISTICS = (("best", "best round"), ("last", "last round"), ("last_ten", "mean of the last ten"))
BARS = 60  # clients that are all shown; of more, the worst forty
WORST_BARS = 40
FEW = 12  # parameters of a method that are shown at once


def section(name: str, title: str, *body: object) -> Html:
    """Return a section of the page.

    Example:
        >>> section("a", "A", "b")
        '<section id="a"><h2>A</h2>b</section>'
    """
    return tag("section", tag("h2", title), *body, id=name)


def share(key: str, value: float | None, element: str = "span") -> Html:
    """Return an accuracy as per cent, with its place in the records."""
    return number(key, value, percent(value), element)


# ---- what ran --------------------------------------------------------------------------------------


def command(records: Records, program: str = "fedapp run") -> str:
    """Return the command that runs the same again: the number of clients, and the settings that are not defaults."""
    usual = defaults(RunConfig)
    words = [program, f"--clients {num_clients(records)}"]
    for key, value in records.settings.items():
        if key not in PLACES and (key not in usual or usual[key] != value):
            written = str(value).lower() if isinstance(value, bool) else str(value)
            words.append(f"--set {shlex.quote(f'{key}={written}')}")
    return " ".join(words)


def num_clients(records: Records) -> int:
    """Return how many clients there were, those included that could not start or were left out of training."""
    absent = {f["client"] for f in records.summary["failures"] if f.get("phase") == "start" and f["round"] == 0}
    outside = absent | set(records.left_out)
    return max(len(set(records.clients) | outside), (records.summary.get("num_clients") or 0) + len(records.left_out))


def state(records: Records) -> Html:
    """Return what is not as it should be with the records, in words."""
    words = [note(text, kind="warning") for text in records.damage]
    if not records.finished:
        asked = records.settings.get("num-server-rounds", "?")
        done = f"{len(records.rounds)} of {asked} rounds are recorded"
        words.insert(0, note(f"This run has not finished: {done}. The totals are those so far.", kind="warning"))
    return join(words)


def headline(records: Records, *more: object) -> Html:
    """Return the outcome in one sentence for somebody who does not know the method, and ``more`` behind it."""
    summary = records.summary
    rounds = number("rounds", summary["rounds"], plain(summary["rounds"]))
    clients = number("num_clients", summary["num_clients"], plain(summary["num_clients"]))
    who = tag("b", summary["method"])
    if not records.evaluated:
        outcome = "no accuracy was measured"
        return note(clients, " clients trained for ", rounds, " rounds with ", who, f"; {outcome}.", kind="headline")
    last = records.evaluated[-1]
    accuracy = summary["accuracy"]
    words: list[object] = ["After ", rounds, " rounds of ", who, ", the models of ", clients, " clients classify "]
    words += [tag("b", share("accuracy.last", accuracy["last"])), " of their test samples correctly"]
    best = number("best_round", records.best_round, plain(records.best_round))
    words += [" (at best ", share("accuracy.best", accuracy["best"]), ", in round ", best, ")"]
    rows = [row for row in records.latest.values() if int(row["round"]) == last["round"]]
    if len(rows) > 1:
        top = max(rows, key=lambda row: float(row["accuracy"]))
        words += [", from ", share(f"client.{top['client']}.accuracy", float(top["accuracy"]))]
        words += [
            " at client ",
            tag("b", records.called(top["client"])),
            " down to ",
            share("clients.worst", summary["clients"]["worst"]),
        ]
        words += [" at client ", tag("b", records.called(str(summary["clients"]["worst_client"])))]
    return note(*words, ".", *more, kind="headline")


def what_ran(records: Records) -> Html:
    """Return the run in words, the command that repeats it, its versions and all its settings."""
    settings, summary = records.settings, records.summary
    absent = num_clients(records) - summary["num_clients"] - len(records.left_out)
    models = sorted({str(info.get("model")) for info in records.clients.values()})
    facts = [
        ("method", summary["method"]),
        ("method's parameters", _parameters(records.config.get("method-params") or {})),
        ("data set", settings.get("dataset", NOTHING)),
        *([("preset", habits_of(settings["preset"]) or settings["preset"])] if settings.get("preset") else []),
        ("models", f"{settings.get('models', NOTHING)} ({', '.join(models)})"),
        (
            "clients",
            number("num_clients", summary["num_clients"], plain(summary["num_clients"]))
            + (f" (and {absent} that could not start)" if absent > 0 else ""),
        ),
        *([("left out of training", ", ".join(map(records.called, records.newcomers)))] if records.newcomers else []),
        ("rounds", number("rounds", summary["rounds"], plain(summary["rounds"]))),
        ("seed", number("seed", summary["seed"], str(summary["seed"]))),
        ("seed of the partition", settings.get("partition-seed", NOTHING)),
        ("versions", pairs(records.config.get("versions") or {}, " ")),
    ]
    digests = summary.get("model_sha256") or {}
    return section(
        "what",
        "What ran, and how to run it again",
        tag("dl", *(tag("dt", name) + tag("dd", value) for name, value in facts)),
        tag("p", "To run it again:"),
        tag("pre", tag("code", command(records)), class_="command"),
        details(
            "All settings",
            table(["setting", "value"], [(key, str(value)) for key, value in settings.items() if key not in PLACES], 1),
        ),
        details(
            "Digests of the final models (SHA-256): equal digests are equal models, bit by bit",
            table(["client", "SHA-256"], [(client, tag("code", digest)) for client, digest in digests.items()], 1),
        )
        if digests
        else "",
    )


def _parameters(values: Mapping[str, Any]) -> object:
    words = pairs(values)
    return words if len(values) <= FEW else details(f"{len(values)} of them", words)


def pairs(values: Mapping[str, Any], between: str = " = ") -> str:
    """Return a mapping in one line.

    Example:
        >>> pairs({"alignment": "gcsa", "proto-weight": 10.0}), pairs({})
        ('alignment = gcsa, proto-weight = 10.0', 'none')
    """
    return ", ".join(f"{key}{between}{value}" for key, value in values.items()) or "none"


def failure_row(failure: Line) -> tuple[str, str, str, str, str]:
    """Return round, client, phase, type and the first line of the cause.

    Example:
        >>> failure_row({"round": 0, "client": "3", "phase": "start", "kind": "NoReply", "reason": "late"})
        ('start', '3', 'start', 'NoReply', 'late')
    """
    when = "start" if failure["round"] == 0 else str(failure["round"])
    cause = (str(failure["reason"]).splitlines() or [""])[0]
    return when, str(failure["client"]), failure.get("phase") or NOTHING, str(failure["kind"]), cause


# ---- how well it went ------------------------------------------------------------------------------


def accuracy(records: Records) -> Html:
    """Return the accuracy over rounds, over clients and over domains."""
    if not records.evaluated:
        return section("accuracy", "Accuracy", note("No accuracy was measured in this run."))
    drawn = figures(*(part for part in (_over_rounds(records), _domains(records), _per_client(records)) if part))
    return section("accuracy", "Accuracy", _statistics(records), drawn)


def _statistics(records: Records) -> Html:
    summary = records.summary
    rows = [("by samples", "accuracy", summary["accuracy"]), ("mean over clients", "client_mean_accuracy",
            summary["client_mean_accuracy"])]  # fmt: skip
    rows += [(f"domain {name}", f"domains.{name}", values) for name, values in summary["domains"].items()]
    cells = [(name, *(share(f"{key}.{s}", values[s]) for s, _ in STATISTICS)) for name, key, values in rows]
    spread = summary["clients"]
    words: list[object] = ["At the last evaluation the clients had ", share("clients.mean", spread["mean"])]
    words += [
        " on average, with a standard deviation of ",
        share("clients.std", spread["std"]),
        "; the worst was client ",
    ]
    worst = records.called(str(spread["worst_client"]))
    words += [tag("b", worst), " with ", share("clients.worst", spread["worst"]), "."]
    chosen = summary["accuracy"].get("by_validation")
    if chosen is not None:
        words += [
            " The round that was best on the validation samples reached ",
            share("accuracy.by_validation", chosen),
        ]
        words += [" on the test samples."]
    return table(["accuracy", *(title for _, title in STATISTICS)], cells) + note(*words)


def series(lines: Sequence[Line], *keys: str, factor: float = 1.0) -> list[tuple[float, float | None]]:
    """Return a value over rounds, found under nested keys; None where it is missing.

    Example:
        >>> series([{"round": 1, "train": {"loss": 2.0}}, {"round": 2, "train": {}}], "train", "loss")
        [(1.0, 2.0), (2.0, None)]
    """
    points: list[tuple[float, float | None]] = []
    for line in lines:
        value: Any = line
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        points.append((float(line["round"]), None if value is None else factor * float(value)))
    return points


def _over_rounds(records: Records) -> Html:
    lines = records.evaluated
    drawn = [
        Curve("by samples", series(lines, "accuracy", factor=100)),
        Curve("mean over clients", series(lines, "client_mean", factor=100)),
        Curve("worst client", series(lines, "client_worst", factor=100)),
        Curve("validation", series(lines, "evaluate", "validation-accuracy", factor=100)),
    ]
    best = max(lines, key=lambda line: line["accuracy"])
    words = f"best {percent(best['accuracy'])}, round {best['round']}"
    star = Star(best["round"], 100 * best["accuracy"], words)
    how = (
        "Higher is better; the star marks the best round. By samples every test sample counts the same, in the mean "
        "over clients every client does."
    )
    return _drawn("Accuracy over rounds", how, curves(drawn, ("round", "accuracy, %"), stars=[star], most=100))


def _domains(records: Records) -> Html | None:
    domains = records.summary["domains"]
    if len(domains) < 2:
        return None
    known = {name: values["last"] for name, values in domains.items() if values["last"] is not None}
    worst = min(known, key=lambda name: known[name], default="")
    drawn = [
        Bar(name, values["last"], percent(values["last"]), f"domains.{name}.last",
            remark="worst" if name == worst and len(known) > 1 else "")
        for name, values in domains.items()
    ]  # fmt: skip
    how = f"Accuracy over the test samples of each domain in the last evaluated round; the worst is {worst}."
    return _drawn("Accuracy by domain", how, bars(drawn, "accuracy by domain", 1.0))


def _per_client(records: Records) -> Html:
    last = records.evaluated[-1]["round"]
    worst = records.summary["clients"]["worst_client"]
    drawn = []
    for client in records.clients:
        row = records.latest.get(client)
        value = float(row["accuracy"]) if row else None
        shown = percent(value) if row else "never evaluated"
        if row and int(row["round"]) != last:
            shown += f" (round {row['round']})"
        key = f"client.{client}.accuracy"
        drawn.append(Bar(records.called(client), value, shown, key, remark="worst" if client == worst else ""))
    how = "Accuracy of each client on its own test samples in the last evaluated round; "
    how += f"the worst is client {records.called(worst)}."
    if len(drawn) > BARS:
        how += f" Of {len(drawn)} clients the {WORST_BARS} worst are shown; the table of clients has all."
        drawn = sorted(drawn, key=lambda bar: 2.0 if bar.value is None else bar.value)[:WORST_BARS]
    return _drawn("Accuracy by client", how, bars(drawn, "accuracy by client", 1.0))


def _drawn(title: str, how: str, drawing: Html | None) -> Html:
    return figure(title, how, drawing) if drawing else Html("")


# ---- who took part ---------------------------------------------------------------------------------


def clients(records: Records) -> Html:
    """Return the label map of the partition and the table of clients, those last that were left out of training."""
    inside = [client for client in records.clients if client not in records.newcomers]
    rows = [_client_row(records, client) for client in inside]
    rows += [_newcomer_row(records, client) for client in records.newcomers]
    header = ["client", "model", "domain", "trains on", "tested on", "accuracy", "rounds trained", "up", "down"]
    table_of = table([*header, "own time"], rows, words=2)
    if len(rows) > BARS:
        table_of = details(f"All {len(rows)} clients", table_of)
    words: list[object] = [
        'What is marked "left out" took no part in training; how it fares as a newcomer stands under '
    ]
    words += [tag("a", "Models, evaluated by name", href="#evaluations"), "."]
    body = [_label_map(records, inside), table_of, note(*words) if records.newcomers else ""]
    return section("clients", "Clients and their data", *body)


def _label_map(records: Records, inside: Sequence[str]) -> Html:
    about = {**records.clients, **records.newcomers}
    counts = {client: info["label-counts"] for client, info in about.items() if info.get("label-counts")}
    if not counts:
        return note("How many samples of each class a client holds was not recorded.")
    trained = [client for client in inside if client in counts]
    outside = [client for client in records.newcomers if client in counts]
    last = outside[: max(ROWS - len(trained), ROWS // 2)]
    first = trained[: ROWS - len(last)]
    apart = [("left out ↓", ())] if last else []  # a row of its own, without cells
    rows = [(records.called(client), counts[client]) for client in first]
    rows += [*apart, *((records.called(client), counts[client]) for client in last)]
    cells = Cells(
        [name for name, _ in rows],
        [records.class_name(label) for label in range(max(len(values) for _, values in rows))],
        [values for _, values in rows],
        ("client", "class"),
        "training samples",
    )
    how = "Each row is a client, each column a class; darker is more training samples, white is none."
    how += f" The first {len(first)} of {len(trained)} clients are shown." if len(first) < len(trained) else ""
    if last:
        few = f" the first {len(last)} of {len(outside)}" if len(last) < len(outside) else ""
        how += f' Below "left out" stand{few or " those"} that took no part in training.'
    drawing = cell_map(cells) or Html("")
    return figures(figure("Who holds which classes", how, drawing, wide=len(cells.columns) > COLUMNS))


def _newcomer_row(records: Records, client: str) -> tuple[object, ...]:
    info = records.newcomers[client]
    name = join([records.called(client), " ", tag("b", f"left{markup.SPACE}out")])
    known = (info.get("model") or NOTHING, info.get("domain") or NOTHING)
    return name, *known, plain(info.get("train-examples")), plain(info.get("test-examples")), *[NOTHING] * 5


def _client_row(records: Records, client: str) -> tuple[object, ...]:
    info, rows, latest = records.clients[client], records.rows_of(client), records.latest.get(client)

    def total(*columns: str) -> float:
        return sum(float(row.get(column) or 0) for row in rows for column in columns)

    key = f"client.{client}"
    up = int(total("payload_up", "header_up", "evaluate_payload_up"))
    down = int(total("payload_down", "header_down", "evaluate_payload_down"))
    own = total("load_seconds", "train_seconds", "save_seconds", "evaluate_seconds")
    trained = sum(row["trained"] == "1" for row in rows)
    return (
        records.called(client),
        info.get("model") or NOTHING,
        info.get("domain") or NOTHING,
        plain(info.get("train-examples")),
        plain(info.get("test-examples")),
        share(f"{key}.accuracy", float(latest["accuracy"])) if latest else NOTHING,
        number(f"{key}.trained", trained, str(trained)),
        number(f"{key}.bytes_up", up, markup.size(up)),
        number(f"{key}.bytes_down", down, markup.size(down)),
        number(f"{key}.seconds", own, markup.seconds(own)),
    )
