"""What a run cost and what went wrong: bytes, time, failures, and all rounds in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedapp.report import markup
from fedapp.report.charts import Bar, Curve, bars, curves
from fedapp.report.markup import MIB, Html, details, figure, figures, note, number, plain, table, tag
from fedapp.report.records import Line, Records, totals
from fedapp.report.sections import failure_row, section, series, share

FLOWS = (("train, up", "", "up"), ("train, down", "", "down"), ("evaluate, up", "evaluate_", "up"),
         ("evaluate, down", "evaluate_", "down"))  # fmt: skip
ROUNDS = 500  # rows of the table of rounds


def traffic(records: Records) -> Html:
    """Return the bytes of each round and in all, up and down, of training and of evaluation."""
    title = "Bytes over the network"
    if not any(line.get("bytes") for line in records.rounds):
        return section("bytes", title, note("No bytes were recorded."))
    each = {name: _flow(records.rounds, phase, way) for name, phase, way in FLOWS}
    whole = {name: _cumulated(points) for name, points in each.items()}
    how_each = "What all clients together sent to the server (up) and received from it (down), payload and headers."
    how_all = "The same, added up from the first round on."
    drawn = [
        _curves_of_bytes("Bytes in each round", how_each, each, "a round"),
        _curves_of_bytes("Bytes in all", how_all, whole, "in all"),
    ]
    return section("bytes", title, _table_of_bytes(records.summary["bytes"]), figures(*drawn))


def _flow(lines: Sequence[Line], phase: str, way: str) -> list[tuple[float, float]]:
    names = (f"{phase}payload_{way}", f"{phase}header_{way}")
    return [(float(line["round"]), float(sum((line.get("bytes") or {}).get(n, 0) for n in names))) for line in lines]


def _cumulated(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    total, sums = 0.0, []
    for at, value in points:
        total += value
        sums.append((at, total))
    return sums


def _curves_of_bytes(title: str, how: str, flows: Mapping[str, Sequence[tuple[float, float]]], what: str) -> Html:
    divisor, unit = markup.size_unit(max(value for points in flows.values() for _, value in points))
    drawn = [Curve(name, [(at, value / divisor) for at, value in points]) for name, points in flows.items()]
    drawing = curves(drawn, ("round", f"{unit} {what}"), zero=True)
    return figure(title, how, drawing) if drawing else Html("")


def _table_of_bytes(sums: Line) -> Html:
    rows = []
    for name, phase, way in FLOWS:
        cells = []
        for kind in ("payload", "header"):
            key = f"{phase}{kind}_{way}"
            cells.append(number(f"bytes.{key}", sums.get(key, 0), markup.size(sums.get(key, 0))))
        rows.append((name, *cells))
    return table(["in all", "payload (array contents)", "headers (all the rest)"], rows)


def time_spent(records: Records) -> Html:
    """Return the wall clock by phase and the clients' own time by what they did."""
    title = "Where the time went"
    wall = {name: value for name, value in records.summary["seconds"].items() if name != "run"}
    if not wall:
        return section("time", title, note("No time was recorded."))
    run = records.summary["seconds"].get("run")
    drawn = [Bar(name, value, markup.seconds(value), f"seconds.{name}") for name, value in wall.items()]
    words = "The run's length is not known, because it has not finished."
    whole = note(words)
    if run is not None:
        rest = max(run - sum(wall.values()), 0.0)
        drawn.append(Bar("everything else", rest, markup.seconds(rest)))
        whole = note("The run took ", number("seconds.run", run, markup.seconds(run)), " in all.")
    own = totals(records.rounds, "client_seconds")
    kinds = [Bar(name, value, markup.seconds(value), f"client_seconds.{name}") for name, value in own.items()]
    phases = {name: series(records.rounds, "seconds", name) for name in wall}
    each = curves([Curve(name, points) for name, points in phases.items()], ("round", "seconds"), zero=True)
    shown = [
        ("Wall clock by phase", "How long the server waited in each phase, all rounds together.", bars(drawn, "time")),
        ("Wall clock of each round", "The same over the rounds; peaks are slow clients or waiting.", each),
        (
            "Clients' own time",
            "Seconds that clients measured themselves, summed over clients and rounds; they may run side by side. "
            "Cpu is the processor time of all of it.",
            bars(kinds, "clients' time"),
        ),
    ]
    return section("time", title, whole, figures(*(figure(*parts) for parts in shown if parts[2])))  # type: ignore[arg-type]


# ---- failures --------------------------------------------------------------------------------------


def failures(records: Records) -> Html:
    """Return every client that failed, and each of its failures."""
    found = records.summary["failures"]
    unchanged = [str(line["round"]) for line in records.rounds if line.get("aggregated") is False]
    words: list[object] = []
    if unchanged:
        words.append(note(f"Too few usable replies: round {', '.join(unchanged)} changed nothing.", kind="warning"))
    if not found:
        return section("failures", "Failures", note("No client failed in any round."), *words)
    counts = Counter(str(failure["client"]) for failure in found)
    named = ", ".join(f"{client} ({count} times)" if count > 1 else client for client, count in counts.items())
    total = number("failures", len(found), str(len(found)))
    words.append(
        note(total, " failure; " if len(found) == 1 else " failures; ", "failed: client ", tag("b", named), ".")
    )
    rows = [failure_row(failure) for failure in found[:ROUNDS]]
    if len(found) > ROUNDS:
        words.append(note(f"The first {ROUNDS} of them:"))
    return section("failures", "Failures", *words, table(["round", "client", "phase", "type", "cause"], rows, 4))


# ---- all rounds ------------------------------------------------------------------------------------


def all_rounds(records: Records) -> Html:
    """Return the rounds as a table, for those who want numbers rather than curves."""
    lines = records.rounds
    if not lines:
        return section("rounds", "All rounds in numbers", note("No round was recorded."))
    every = -(-len(lines) // ROUNDS)
    shown = [line for i, line in enumerate(lines) if i % every == 0 or i == len(lines) - 1]
    title = f"Open the table of {len(shown)} rounds" + (f" (every {every}th)" if every > 1 else "")
    header = ["round", "accuracy", "mean over clients", "std", "worst", "worst client", "train loss", "test loss"]
    header += ["MiB up", "MiB down", "seconds", "failures"]
    return section(
        "rounds", "All rounds in numbers", details(title, table(header, [_round_row(line) for line in shown]))
    )


def _round_row(line: Line) -> tuple[object, ...]:
    key = f"round.{line['round']}"
    losses = [(part, (line.get(part) or {}).get("loss")) for part in ("train", "evaluate")]
    flows = {
        way: sum(v for name, v in (line.get("bytes") or {}).items() if name.endswith(way)) for way in ("up", "down")
    }
    wall = sum((line.get("seconds") or {}).values())
    return (
        str(line["round"]),
        *(share(f"{key}.{name}", line.get(name)) for name in ("accuracy", "client_mean", "client_std", "client_worst")),
        line.get("worst_client") or markup.NOTHING,
        *(number(f"{key}.{part}.loss", value, plain(value)) for part, value in losses),
        *(f"{flows[way] / MIB:.3f}" for way in ("up", "down")),
        f"{wall:.3f}",
        number(f"{key}.failures", line.get("failures", 0), str(line.get("failures", 0))),
    )
