"""Clients that were left out of training: who they are, what answers for them, and how each of them fares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedapp.report.markup import NOTHING, Html, details, join, note, number, plain, table, tag
from fedapp.report.records import Line, Records
from fedapp.report.sections import BARS, share

LEFT_OUT = "left-out"
MEANINGS = {
    LEFT_OUT: (
        "A newcomer that trained on nothing: the method's one model for everybody answers if it has one (as fedavg, "
        "fml and fedsap do), else the first, untrained weights of the client's own model with what the server sends (a "
        "head, or nothing at all). With untrained weights this is near chance: a baseline, not what the method gives."
    ),
    f"{LEFT_OUT}-recalibrated": (
        "The same, but BatchNorm's statistics are measured anew on the inputs of the newcomer's own training samples; "
        "it trains on none of them."
    ),
    f"{LEFT_OUT}-prototype": (
        "The same untrained weights, but the nearest global prototype answers instead of the head."
    ),
    f"{LEFT_OUT}-adapted": (
        "A newcomer that joins: from its own first weights and what the server sends, it trained as the method's "
        "clients do in a round, for {} over its own training samples, and then answered by its head. Every "
        "evaluation starts afresh; nothing of it is kept, and the clients that take part train as without it."
    ),
    f"{LEFT_OUT}-adapted-prototype": (
        "The same trained weights, but the nearest global prototype answers instead of the head."
    ),
}
"""What every named evaluation of newcomers is, in the order in which they are shown."""


def about(records: Records, found: Mapping[str, Line]) -> Html:
    """Say who was left out, what answers for it, and why there is nothing to say of some."""
    clients, domains = list(records.newcomers), sorted(filter(None, set(records.left_out.values())))
    where = f" of domain{'s' * (len(domains) > 1)} {', '.join(domains)}" if domains else ""
    epochs = records.settings.get("newcomer-epochs")
    passes = "one pass" if epochs == 1 else f"{epochs} passes"
    passes += " (more where min-local-steps asks for it)" if records.settings.get("min-local-steps") else ""
    meanings = [tag("dt", name) + tag("dd", words.format(passes)) for name, words in MEANINGS.items() if name in found]
    told = " How many of their test samples a newcomer answers correctly:" if meanings else ""
    who = note(f"{_named(records, clients)}{where} took no part in training.{told}")
    terms = tag("dl", *meanings, class_="terms") if meanings else Html("")
    return join([who, terms, *map(note, _missing(records))])


def own_figures(records: Records) -> Html:
    """Return what each newcomer measured in the last round in which it did; nothing if none ever did."""
    last = _last(records)
    if not last:
        return Html("")
    every = dict.fromkeys(metric for _, found in last.values() for metric in found)
    metrics = sorted(every, key=lambda metric: "accuracy" not in metric)  # stable: accuracies first, else as recorded
    header = ["newcomer", "domain", "test samples", "round", *(metric.replace("-", " ") for metric in metrics)]
    shown = table(header, [_row(records, client, last.get(client), metrics) for client in records.newcomers], words=1)
    words = "Their own figures in the last round in which each was evaluated."
    if any(metric.startswith("adapted-") for metric in metrics):
        words += ' Those that begin with "adapted" were measured after the newcomer had trained, the others before.'
    body = details(f"All {len(records.newcomers)} newcomers", shown) if len(records.newcomers) > BARS else shown
    return join([tag("h3", "Each newcomer by itself"), body, note(words)])


def _row(records: Records, client: str, found: tuple[int, Line] | None, metrics: Sequence[str]) -> tuple[object, ...]:
    info = records.newcomers[client]
    start = (records.called(client), info.get("domain") or NOTHING, plain(info.get("test-examples")))
    if not found:
        return *start, *[NOTHING] * (1 + len(metrics))
    at, values = found
    cells = []
    for metric in metrics:
        key, value = f"round.{at}.left_out.{client}.{metric}", values.get(metric)
        cells.append(share(key, value) if "accuracy" in metric else number(key, value, plain(value)))
    return *start, plain(at), *cells


def _last(records: Records) -> dict[str, tuple[int, Line]]:
    """Return for every newcomer that ever measured something the last such round, and what it measured."""
    measured = [(line["round"], line.get("left_out") or {}) for line in records.rounds]
    return {client: (at, values) for at, found in measured for client, values in found.items() if values}


def _missing(records: Records) -> list[str]:
    """Say of the newcomers without any figure why they have none."""
    last = _last(records)
    silent = [client for client in records.newcomers if client not in last]
    untested = [client for client in silent if records.newcomers[client].get("test-examples") == 0]
    others = [client for client in silent if client not in untested]
    words = []
    if untested:
        lack = "holds no test samples" if len(untested) == 1 else "hold no test samples"
        words.append(f"{_named(records, untested)} {lack}: how well a newcomer does there was not measured.")
    if others and not any(line.get("evaluated") or line.get("left_out") for line in records.rounds):
        why = " (fraction-evaluate = 0)" if records.settings.get("fraction-evaluate") == 0 else ""
        words.append(f"Newcomers were not evaluated, as nobody was in this run{why}.")
    elif others:
        was = "was" if len(others) == 1 else "were"
        words.append(f"{_named(records, others)} {was} not evaluated in any round.")
    return words


def _named(records: Records, clients: Sequence[str]) -> str:
    return f"Client{'s' * (len(clients) > 1)} {', '.join(map(records.called, clients))}"
