"""What each client's submodel kept, with whom it shares it, what it saved, and why: for a method that sends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedapp.report.channel_maps import GroupRow, RoleRow, group_map, role_map
from fedapp.report.charts import Curve, curves
from fedapp.report.maps import COLUMNS, ROWS, Cells, cell_map
from fedapp.report.markup import Html, details, figure, figures, join, note, number, percent, plain, table, tag
from fedapp.report.records import Records
from fedapp.report.sections import section, series
from fedapp.report.submodel_costs import costs, saved
from fedapp.report.submodel_settings import settings
from fedapp.report.submodel_state import Last, kept_shares

NAMED = 6  # clients that a sentence names


def warnings(records: Records) -> Html:
    """Return where the method has degenerated, in a frame; nothing if it has not."""
    found = records.submodels[-1]["analysis"]["submodels"]["warnings"] if records.submodels else []
    return join(note(text, kind="warning") for text in found)


def submodels(records: Records) -> Html:
    """Return what every client kept and why; nothing for a method that sends no submodels."""
    if not records.submodels:
        return Html("")
    last = Last(records)
    return section(
        "submodels",
        "What each client kept, and why",
        _introduction(last),
        _warned(records),
        _sentences(last),
        _roles(last),
        _budgets(last),
        _groups(last),
        costs(last),
        settings(last.params),
    )


def _introduction(last: Last) -> Html:
    """Return in words what a submodel is, and where the run stood at its end."""
    stages = {
        "warm-up": "The run ended in its warm-up, in which every channel that is kept is Global.",
        "frozen": "Masks and roles are frozen by now (mask.freeze-after).",
    }
    return note(
        "Every client trains a smaller network of its own: as many channels of each layer as its budget allows. A "
        "channel that it keeps is ",
        tag("b", "Global"),
        " (averaged over all clients that hold it) or ",
        tag("b", "Private"),
        " (averaged within its group, clients whose data look alike); the others are ",
        tag("b", "Dropped"),
        ". The pictures show round ",
        number("submodels.round", last.round, str(last.round)),
        ". ",
        stages.get(last.state["stage"], ""),
    )


def _warned(records: Records) -> Html:
    """Return every warning of the run with how many rounds it held."""
    counts = Counter(text for line in records.submodels for text in line["analysis"]["submodels"]["warnings"])
    total = len(records.submodels)
    return join(
        note("In ", number(f"warning.{i}", count, str(count)), f" of {total} rounds: ", text, kind="warning")
        for i, (text, count) in enumerate(counts.items())
    )


# ---- a sentence a client -----------------------------------------------------------------------------


def _sentences(last: Last) -> Html:
    items = [tag("li", *_sentence(last, client)) for client in last.state["clients"]]
    if len(items) > ROWS:
        return details(f"Each of {len(items)} clients in a sentence", tag("ul", *items))
    return tag("h3", "Each client in a sentence") + tag("ul", *items)


def _sentence(last: Last, client: str) -> list[object]:
    own, key = last.state["clients"][client], f"{last.key}.clients.{client}"
    ratio, metric = own["keep_ratio"], last.params.get("budget.metric")
    what = {"macs": "multiply-accumulates", "params": "parameters", "train-bytes": "training bytes"}.get(str(metric))
    domain = f" ({last.domain(client)})" if last.domain(client) else ""
    budget = number(f"{key}.keep_ratio", ratio, f"{100 * ratio:.4g}\u00a0%")
    words: list[object] = [
        tag("b", f"Client {last.records.called(client)}"),
        f"{domain} may keep ",
        budget,
        f" of the {what or 'channels'}",
    ]
    words += [*_kept(last, client), *_shared(last, client)]
    return [*words, *saved(last, client), "."]


def _kept(last: Last, client: str) -> list[object]:
    """Return what a client kept, and where most and least of it."""
    own, key = last.state["clients"][client], f"submodel.{client}"
    kept = [a + b for a, b in zip(own["global"], own["private"], strict=True)]
    shares = [n / size for n, size in zip(kept, last.channels, strict=True)]
    total = sum(kept)
    whole = number("submodel.channels", sum(last.channels), plain(sum(last.channels)))
    if min(shares) == 1:
        return [": it holds all ", whole]
    words: list[object] = [": it holds ", number(f"{key}.kept", total, plain(total)), " of ", whole]
    if max(shares) - min(shares) < 0.005:
        return [*words, ", the same share of every layer"]
    for how, layer in (("most", shares.index(max(shares))), ("least", shares.index(min(shares)))):
        words += [", " if how == "most" else " and ", f"{how} in {last.names[layer]} ("]
        words += [number(f"{key}.{how}", shares[layer], f"{100 * shares[layer]:.0f}\u00a0%"), ")"]
    return words


def _shared(last: Last, client: str) -> list[object]:
    """Return with whom a client shares what it kept."""
    own, key = last.state["clients"][client], f"submodel.{client}"
    public, private = sum(own["global"]), sum(own["private"])
    words: list[object] = ["; it shares ", number(f"{key}.global", public, plain(public)), " of them with all"]
    if not private:
        return [*words, " and has none of its own group"]
    mates = [c for c, other in last.state["clients"].items() if other["group"] == own["group"] and c != client]
    words += [" and ", number(f"{key}.private", private, plain(private))]
    if not mates:
        return [*words, f" with nobody, being alone in group {own['group']}"]
    return [*words, f" only with {listed(mates)} of group {own['group']}"]


def listed(clients: Sequence[str]) -> str:
    """Return clients in words.

    Example:
        >>> listed(["4"]), listed(["0", "4", "8"])
        ('client 4', 'clients 0, 4 and 8')
    """
    if len(clients) == 1:
        return f"client {clients[0]}"
    shown = list(clients[:NAMED])
    rest = f"{len(clients) - NAMED} more" if len(clients) > NAMED else shown.pop()
    return f"clients {', '.join(shown)} and {rest}"


# ---- roles and budgets -------------------------------------------------------------------------------


def _roles(last: Last) -> Html:
    rows, before = [], None
    for client in last.clients[:ROWS]:
        own = last.state["clients"][client]
        heading = "" if own["group"] == before else f"group {own['group']}"
        before = own["group"]
        name = f"{client} {last.domain(client)}".strip() + f", {100 * own['keep_ratio']:.4g} %"
        counts = list(zip(own["global"], own["private"], strict=True))
        rows.append(RoleRow(name, counts, f"{last.key}.clients.{client}", heading))
    drawing = role_map(rows, list(zip(last.names, last.channels, strict=True)))
    how = (
        "Each row is a client with its budget, each column a layer; the bar is the layer's channels, the numbers are "
        f"Global + Private. {_why_private(last)}"
    )
    if len(last.clients) > ROWS:
        how += f" The first {ROWS} of {len(last.clients)} clients are shown."
    return figures(figure("Roles of the channels", how, drawing, wide=True))


def _why_private(last: Last) -> str:
    params = last.params
    if params.get("sgp.tri-state") is False:
        return "This run has no Private channels (sgp.tri-state = false)."
    words = f"A channel may be Private if groups respond to it differently (dispersion above {params.get('sgp.tau')})"
    if params.get("sgp.enabled"):
        words += f"; at least {100 * float(params.get('sgp.global-target', 0)):.4g} % of a layer are to stay Global"
    return f"{words}."


def _budgets(last: Last) -> Html:
    """Return the kept share of each layer for each budget, and how it moved."""
    ratios = sorted({own["keep_ratio"] for own in last.state["clients"].values()}, reverse=True)
    shares = [kept_shares(last.state, ratio) for ratio in ratios]
    drawn = [
        Curve(f"{100 * ratio:.4g} %", [(i + 1.0, 100 * share) for i, share in enumerate(own)])
        for ratio, own in zip(ratios, shares, strict=True)
    ]
    how = "Share of each layer's channels that clients of a budget keep. "
    if last.params.get("budget.adaptive") is False:
        how += "All layers keep alike (budget.adaptive = false)."
    else:
        how += "Layers whose channels are more useful (larger activations and gradients) get more of it."
    chart = curves(drawn, ("layer", "% kept"), zero=True, most=100)
    pictures = figures(figure("Layer budgets", how, chart)) if chart else Html("")
    return tag("h3", "Where the budgets went") + pictures + _layers(last, ratios, shares) + _moves(last, ratios)


def _layers(last: Last, ratios: Sequence[float], shares: Sequence[Sequence[float]]) -> Html:
    importance = last.state.get("importance")
    rows = []
    for i, (name, channels) in enumerate(zip(last.names, last.channels, strict=True)):
        cells = [number(f"{last.key}.layers.{i}.channels", channels, str(channels))]
        if importance:
            cells.append(number(f"{last.key}.importance.{i}", importance[i], plain(importance[i])))
        dispersed = last.state["dispersed"][i]
        cells.append(number(f"{last.key}.dispersed.{i}", dispersed, percent(dispersed)))
        for ratio, own in zip(ratios, shares, strict=True):
            cells.append(number(f"budget.{ratio}.layer.{i}", own[i], f"{100 * own[i]:.1f}\u00a0%"))
        rows.append((f"{i + 1} {name}", *cells))
    header = ["layer", "channels", *(["importance"] if importance else []), "groups differ in"]
    header += [f"kept at {100 * ratio:.4g} %" for ratio in ratios]
    words = "Groups differ in: share of a layer's channels whose dispersion is above the limit, whether kept or not."
    if importance:
        words = "Importance: mean utility of a layer's channels, by which budgets are spread over layers. " + words
    return table(header, rows) + note(words)


def _moves(last: Last, ratios: Sequence[float]) -> Html:
    """Return how far the layers' shares moved over the rounds: the largest move in words, all of them as maps."""
    lines, drawn = last.records.submodels, []
    states = [line["analysis"]["submodels"] for line in lines]
    largest: tuple[float, int, float, float, float] | None = None
    for ratio in ratios:
        known = [state for state in states if any(own["keep_ratio"] == ratio for own in state["clients"].values())]
        first, final = kept_shares(known[0], ratio), kept_shares(known[-1], ratio)
        moves = [(abs(b - a), i, ratio, a, b) for i, (a, b) in enumerate(zip(first, final, strict=True))]
        largest = max(moves + ([largest] if largest else []))
        if any(kept_shares(state, ratio) != first for state in known):
            drawn.append(_over_rounds(last, ratio))
    if not drawn or largest is None:
        return note("The layers' shares did not move over the rounds.")
    _, layer, ratio, before, after = largest
    words = note(
        f"From the first round to the last, {last.names[layer]} moved most: at a budget of {100 * ratio:.4g} % from ",
        number("move.before", before, f"{100 * before:.1f}\u00a0%"),
        " to ",
        number("move.after", after, f"{100 * after:.1f}\u00a0%"),
        ".",
    )
    return words + details("Layer budgets over the rounds", figures(*drawn))


def _over_rounds(last: Last, ratio: float) -> Html:
    every = -(-len(last.records.submodels) // COLUMNS)
    lines = [
        line
        for line in last.records.submodels[::every]
        if any(own["keep_ratio"] == ratio for own in line["analysis"]["submodels"]["clients"].values())
    ]
    shares = [kept_shares(line["analysis"]["submodels"], ratio) for line in lines]
    values = [[100 * own[i] for own in shares] for i in range(len(last.names))]
    cells = Cells(last.names, [str(line["round"]) for line in lines], values, ("layer", "round"), "% kept")
    how = "Each row is a layer, each column a round; darker is a larger share."
    return figure(f"Budget {100 * ratio:.4g} %", how, cell_map(cells) or Html(""))


# ---- groups ------------------------------------------------------------------------------------------


def _groups(last: Last) -> Html:
    """Return the groups over the rounds beside the true domains."""
    lines = last.records.submodels
    clients = sorted(last.clients, key=last.domain)[:ROWS]
    held = [line["analysis"]["submodels"]["clients"] for line in lines]
    rows = [GroupRow(c, last.domain(c), [own[c]["group"] if c in own else None for own in held]) for c in clients]
    how = "Each row is a client with its true domain, each column a round; the number and colour are its group's."
    if len(last.clients) > ROWS:
        how += f" The first {ROWS} of {len(last.clients)} clients are shown."
    drawn = [figure("Groups over the rounds", how, group_map(rows, [line["round"] for line in lines]))]
    points = series(lines, "analysis", "submodels", "adjusted_rand")
    zero = all(value is None or value >= 0 for _, value in points)
    agreement = curves([Curve("agreement", points)], ("round", "adjusted Rand index"), zero=zero, most=1)
    if agreement:
        drawn.append(figure("Groups against true domains", "1 = the same, 0 = as by chance.", agreement))
    return tag("h3", "Who was grouped with whom") + _agreement(last) + figures(*drawn)


def _agreement(last: Last) -> Html:
    count, index = last.state["num_groups"], last.state["adjusted_rand"]
    words: list[object] = ["The server puts clients whose data look alike into groups without knowing their domains. "]
    words += [
        "In the end there ",
        "was " if count == 1 else "were ",
        number(f"{last.key}.num_groups", count, str(count)),
    ]
    if index is None:
        return note(*words, "; the clients' true domains are not known, or all the same.")
    words += [", and the agreement with the true domains (adjusted Rand index) was "]
    words += [number(f"{last.key}.adjusted_rand", index, plain(index)), ": 1 is the same groups, 0 is chance."]
    return note(*words)
