"""What a client's submodel costs against the full model: parameters, bytes, computation and memory."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from fedapp.report import markup
from fedapp.report.charts import Bar, bars
from fedapp.report.markup import NOTHING, Html, figure, figures, join, note, number, percent, plain, table, tag
from fedapp.report.records import Line
from fedapp.report.submodel_state import Last

SHOWN = (("parameters", "parameters"), ("macs", "multiply-accumulates"), ("memory", "training memory (estimate)"))


def memory(last: Last, cost: Line) -> int | None:
    """Return an estimate of the peak bytes of training: weights, gradients, the optimiser's state, one batch.

    All in float32; None if the run did not count activations.

    Args:
        last: The submodels, for the run's batch size and optimiser.
        cost: Parameters, and activations of one sample.
    """
    if not cost["activations"]:
        return None
    batch = int(last.records.settings.get("batch-size", 1))
    return 4 * int(cost["parameters"] * (2 + optimiser_state(last)) + cost["activations"] * batch)


def optimiser_state(last: Last) -> int:
    """Return how many numbers the optimiser keeps for each weight."""
    settings = last.records.settings
    return 2 if settings.get("optimizer") in ("adam", "adamw") else int(bool(settings.get("momentum")))


def relative(last: Last, client: str) -> dict[str, float | None]:
    """Return parameters, MACs, memory and measured payload of a client as shares of the full model's."""
    own, full = last.state["clients"][client], last.state["full"]
    mine, whole = memory(last, own), memory(last, full)
    traffic = {way: payload(last, client, way) for way in ("down", "up")}
    return {
        "parameters": own["parameters"] / full["parameters"],
        "macs": own["macs"] / full["macs"],
        "memory": mine / whole if mine and whole else None,
        **{way: None if count is None else count / full["bytes"] for way, count in traffic.items()},
    }


def payload(last: Last, client: str, way: str) -> float | None:
    """Return the mean payload of a client's training rounds, as measured; None if it never trained."""
    counts = [float(row[f"payload_{way}"]) for row in last.records.rows_of(client) if row["trained"] == "1"]
    return fmean(counts) if counts else None


def saved(last: Last, client: str) -> list[object]:
    """Return the end of a client's sentence: what it saves against the full model."""
    shares = relative(last, client)
    if shares["parameters"] == 1:
        return ["; as it trains the full model, it saves nothing"]

    def told(name: str) -> Html:
        saving = 1 - (shares[name] or 0.0)
        return number(f"submodel.{client}.{name}_saved", saving, f"{100 * saving:.0f}\u00a0%")

    words: list[object] = ["; so it saves ", told("macs"), " of the computation"]
    if shares["memory"] is not None:
        words += [", about ", told("memory"), " of the training memory"]
    return [*words, " and ", told("parameters" if shares["up"] is None else "up"), " of the upload"]


def costs(last: Last) -> Html:
    """Return every client's costs against the full model, as a table and by budget."""
    state = last.state
    header = ["client", "budget", "parameters", "multiply-accumulates a sample", "training memory (estimate)"]
    header += ["down a round", "up a round"]
    rows = [_full(last, state["full"]), *(_row(last, client) for client in state["clients"])]
    words = (
        "Bytes are the payload of a training round as measured, mean over the client's rounds: weights, BatchNorm "
        "statistics, roles and what clients measure; their shares are of the full model's weights alone. "
    )
    if state["full"]["activations"]:
        kept = "the optimiser's state, " if optimiser_state(last) else ""
        words += f"Memory is an estimate in float32: weights, gradients, {kept}and the activations of one batch of "
        words += f"{last.records.settings.get('batch-size', 'unknown size')}."
    else:
        words += "This run did not count activations, so its memory is not estimated."
    return tag("h3", "What it costs") + figures(_by_budget(last)) + table(header, rows) + note(words)


def _full(last: Last, full: Line) -> tuple[object, ...]:
    key = f"{last.key}.full"
    whole = memory(last, full)
    weights = number(f"{key}.bytes", full["bytes"], markup.size(full["bytes"]))
    return (
        tag("b", "full model"),
        NOTHING,
        number(f"{key}.parameters", full["parameters"], plain(full["parameters"])),
        number(f"{key}.macs", full["macs"], plain(full["macs"])),
        number("submodel.full.memory", whole, markup.size(whole)),
        weights,
        weights,
    )


def _row(last: Last, client: str) -> tuple[object, ...]:
    own, key = last.state["clients"][client], f"submodel.{client}"
    place = f"{last.key}.clients.{client}"
    shares = relative(last, client)
    held = memory(last, own)
    cells = [
        ("parameters", number(f"{place}.parameters", own["parameters"], plain(own["parameters"]))),
        ("macs", number(f"{place}.macs", own["macs"], plain(own["macs"]))),
        ("memory", number(f"{key}.memory", held, markup.size(held))),
    ]
    for way in ("down", "up"):
        count = payload(last, client, way)
        cells.append((way, number(f"{key}.{way}", count, markup.size(count))))
    budget = number(f"{place}.keep_ratio", own["keep_ratio"], f"{100 * own['keep_ratio']:.4g}\u00a0%")
    return (client, budget, *(_with_share(cell, f"{key}.{name}_share", shares[name]) for name, cell in cells))


def _with_share(cell: Html, key: str, value: float | None) -> Html:
    return cell if value is None else join([cell, " (", number(key, value, f"{100 * value:.1f}\u00a0%"), ")"])


def _by_budget(last: Last) -> Html:
    """Return bars of what each budget costs, mean over its clients."""
    clients: Mapping[str, Line] = last.state["clients"]
    ratios = sorted({own["keep_ratio"] for own in clients.values()}, reverse=True)
    drawn = []
    for style, (name, title) in enumerate(SHOWN):
        for i, ratio in enumerate(ratios):
            known = [relative(last, c)[name] for c, own in clients.items() if own["keep_ratio"] == ratio]
            values = [value for value in known if value is not None]
            if values:
                mean = fmean(values)
                heading = title if i == 0 else ""
                label = f"{100 * ratio:.4g} %"
                drawn.append(Bar(label, mean, percent(mean), f"budget.{ratio}.{name}", style=style, heading=heading))
    drawing = bars(drawn, "costs by budget as shares of the full model", 1.0)
    how = "Each bar is a budget, as a share of what the full model costs; mean over the clients of that budget."
    return figure("Costs by budget", how, drawing) if drawing else Html("")
