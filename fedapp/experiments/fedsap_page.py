"""Makes results/fedsap.md: FedSAP in both profiles beside FedAvg, and what groups its clients.

::

    python -m fedapp.experiments.fedsap_page --data-root DIR [--seeds 0,1] [--out DIR] [--page FILE]

It runs the shipped grids of ``GRIDS`` (started again, they go on where they were) and writes the page from what is
done; a file of remarks beside the page, ``fedsap.notes.md``, is put below its head.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedapp.experiments import commands, pages, results
from fedapp.experiments.records import PARAMS, Run
from fedapp.experiments.results import Entry

GRIDS = ("fedsap-grouping", "fedsap-choices", "fedsap-digits-offline", "fedsap-digits-dense")
CHOSEN = (
    *(f"{PARAMS}.{key}" for key in ("util.scope", "agg.weight", "sgp.global-target", "mask.coupling", "sgp.tri-state")),
    "min-local-steps",
)
EVALUATIONS = (
    "consensus",
    "consensus-recalibrated",
    "group",
    "group-recalibrated",
    "deployed",
    "deployed-recalibrated",
)
AT_ROUNDS = (1, 2, 3, 5, 8, 10, 15)
HEAD = """# FedSAP, measured

Made by `python -m fedapp.experiments.fedsap_page` from the grids `fedsap-digits-offline`, `fedsap-digits-dense`,
`fedsap-grouping` and `fedsap-choices` (`fedapp/experiments/configs/`), on {processors}; page made at commit {commit}.
These are not the paper's data: MNIST-M and rendered digits stand in for SVHN and SYN, and the network has a quarter of
ResNet-10's width, so no number here can be held against the paper's tables. Accuracies are per cent. `consensus` is one
model for everybody; `group` serves each domain with its pseudo-domain's Private channels; `deployed` is each client's
own submodel on its own domain. "re-estimated" means that BatchNorm's statistics were measured anew in one pass over
training samples before the evaluation. "tail" is the mean of the last {tail} evaluations; best-over-rounds is a choice
made on the test set. Grouping and choices ran on the built-in digits (200 images a client; 72 to 300) with
`small-resnet`.
"""


def accuracies(run: Run, name: str) -> list[Mapping[str, float]]:
    """Return the accuracies by domain of every evaluation under one of ``EVALUATIONS``; FedAvg has one model."""
    if run.settings["method"] == "fedavg":
        found = [line["domains"] for line in run.rounds if line.get("domains")]
        return found if name == "consensus" else []
    return [line["evaluations"][name] for line in run.rounds if name in (line.get("evaluations") or {})]


def label(run: Run) -> str:
    """Return what a run is called."""
    profile = run.settings.get("method-params.profile")
    words = run.settings["method"] + (f" `{profile}`" if profile else "")
    single = run.settings.get("method-params.sgp.tri-state") in (False, "false")
    if single and str(run.settings.get("method-params.budget.keep-ratios")) == "1":
        return "dense averaging (FedAvg by `fedsap`)"
    return f"{words}, one path, nested (width-scaled)" if single else words


def over_rounds(runs: Sequence[Run]) -> str:
    """Return the table of global means and worst domains."""
    rows = []
    for run in runs:
        for name in EVALUATIONS:
            if found := accuracies(run, name):
                means = [statistics.mean(one.values()) for one in found]
                worst = [min(one.values()) for one in found]
                title = name.replace("-recalibrated", ", re-estimated")
                rows.append([label(run), str(run.seed), title, pages.summed_up(means), pages.summed_up(worst)])
    head = ["method", "seed", "model", "mean over domains: best / last / tail", "worst domain: best / last / tail"]
    return pages.table(head, rows)


def by_domain(runs: Sequence[Run]) -> str:
    """Return the table of single domains."""
    domains = sorted({domain for run in runs for one in accuracies(run, "consensus") for domain in one})
    rows = []
    for run in runs:
        for name in EVALUATIONS:
            if found := accuracies(run, name):
                cells = [pages.summed_up([one[domain] for one in found]) for domain in domains]
                rows.append([label(run), str(run.seed), name.replace("-recalibrated", ", re-estimated"), *cells])
    return pages.table(["method", "seed", "model", *domains], rows)


def costs(runs: Sequence[Run]) -> str:
    """Return the table of bytes and processor time."""
    rows = []
    for run in runs:
        rounds = run.summary["rounds"]
        traffic = [run.summary["bytes"][f"payload_{way}"] / 2**20 / rounds for way in ("down", "up")]
        processor = sum(line["client_seconds"].get("cpu", 0.0) for line in run.rounds) / rounds
        cells = [f"{value:.2f}" for value in (*traffic, processor)]
        rows.append([label(run), str(run.seed), str(rounds), *cells])
    head = ["method", "seed", "rounds", "MiB down a round", "MiB up a round", "CPU s a round, all clients"]
    return pages.table(head, rows)


def choices(entries: Sequence[Entry]) -> str:
    """Return what changing one choice at a time comes to: mean over domains, tail, of the re-estimated models."""
    rows = []
    for entry in entries:
        run = entry.run
        if run is None:
            continue
        changed = [
            f"`{key.removeprefix(f'{PARAMS}.')}={entry.settings[key]}`" for key in CHOSEN if key in entry.settings
        ]
        kinds = ("consensus",) if run.settings["method"] == "fedavg" else EVALUATIONS[1::2]
        tails = [[statistics.mean(one.values()) for one in accuracies(run, kind)][-pages.TAIL :] for kind in kinds]
        cells = [f"{100 * statistics.mean(tail):.1f}" for tail in tails]
        rows.append([label(run), ", ".join(changed) or "as it is", str(run.seed), *cells, *["-"] * (3 - len(cells))])
    return pages.table(["method", "changed", "seed", "consensus", "group", "deployed"], rows)


def grouping(runs: Sequence[Run]) -> str:
    """Return the adjusted Rand index by round."""
    rows = []
    for run in runs:
        found = {line["round"]: line["analysis"]["submodels"] for line in run.rounds if line.get("analysis")}
        indices = [one["adjusted_rand"] for one in found.values()]
        words = [run.settings[f"method-params.dga.{key}"] for key in ("signal", "at")]
        centred = "centred" if run.settings["method-params.dga.center"] in (True, "true") else "raw"
        at = [f"{found[number]['adjusted_rand']:.2f}" for number in AT_ROUNDS if number in found]
        groups = found[max(found)]["num_groups"]
        rows.append([*words, centred, str(run.seed), *at, f"{statistics.mean(indices):.2f}", str(groups)])
    head = ["signal", "taken at", "", "seed", *(f"round {number}" for number in AT_ROUNDS), "mean", "groups at the end"]
    return pages.table(head, rows)


def write(page: Path, out: Path, notes: str = "") -> None:
    """Write the page from what the sweeps have done so far."""
    entries = [results.load(out / name).entries for name in GRIDS]
    signals, changed, methods, dense = ([entry.run for entry in found if entry.run] for found in entries)
    methods += dense
    sections: list[tuple[str, Callable[[Sequence[Run]], str], Sequence[Run]]] = [
        ("Accuracy over the rounds", over_rounds, methods),
        ("Single domains", by_domain, methods),
        ("Bytes and seconds", costs, methods),
        ("What groups clients: adjusted Rand index against the true domains", grouping, signals),
    ]
    head = HEAD.format(processors=pages.machine(), commit=pages.commit(), tail=pages.TAIL)
    body = [f"## {title}\n\n{made(runs)}\n" for title, made, runs in sections if runs]
    if changed:
        body.append(f"## One choice changed at a time, tail of the re-estimated models\n\n{choices(entries[1])}\n")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join([head, notes, *body]), encoding="utf-8")


def main() -> None:
    """Run both grids and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True, help="folder with MNIST, USPS and MNIST-M")
    parser.add_argument("--seeds", default=None, help="training seeds of the comparison, as 0,1,2")
    parser.add_argument("--out", default="fedapp-runs", help="folder of the runs")
    parser.add_argument("--page", default="results/fedsap.md", help="the page to write")
    given = parser.parse_args()
    seeds, words = commands.seeds_of(given.seeds), [f"data-root={given.data_root}"]
    for name in GRIDS[:2]:
        commands.sweep(name, out=given.out)
    for name in GRIDS[2:]:
        commands.sweep(name, words=words, seeds=seeds, out=given.out)
    write(Path(given.page), Path(given.out), pages.notes(Path(given.page)))


if __name__ == "__main__":
    main()
