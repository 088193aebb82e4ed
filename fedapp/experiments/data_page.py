"""Makes results/data.md: every data set that is here, trained on briefly by FedSAF, `local` and, in domains, FedSAP.

::

    python -m fedapp.experiments.data_page --data-root DIR [--seeds 0,1] [--out DIR] [--page FILE] [--grid FILE]

It runs the shipped grid ``data`` without the sets that are neither in the data root nor in the hub's cache (started
again, it goes on where it was; what was absent or broke is tried again), and writes the page from what is done; a file
of remarks beside the page, ``data.notes.md``, is put below its head.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedapp import datasets, models
from fedapp.config import DataSettings, SettingError
from fedapp.experiments import commands, execution, grid, pages, results
from fedapp.experiments.records import Run
from fedapp.experiments.results import Entry

GRID = "data"
COMPARED = ("local", "fedsaf", "fedsap")
LEAST_GAIN = 0.1
"""Points; a smaller difference counts as none."""
HEAD = """# Every data set, briefly

Made by `python -m fedapp.experiments.data_page` from the grid `data` (`fedapp/experiments/configs/data.yaml`: all
settings are there), on {machine}; page made at commit {commit}.

How to read it:

- Runs are short and slices small: {rounds} rounds, at most {samples} samples of a client, training and test together.
  They show that data, models and methods work together, **not which method is better**; that takes full data, more
  rounds and several seeds. Local copies may hold a part of a set ("samples here").
- Accuracies are per cent, of each client's own model on its own test samples, weighted by their number:
  best / last / mean of the last {tail} evaluations. The best is a choice made on the test samples. `local` trains each
  client alone. FedSAP (profile `edge`) deploys each client's own submodel, BatchNorm re-estimated.
- `local` and `fedsaf` train several architectures, dealt out in turn; FedSAP needs one network for all, so its column
  compares with theirs in cost and in that it runs, not in accuracy. It prunes convolutions:
  texts and bags of words have no such run.
- "majority" is what always answering each client's most frequent class would score, by its training labels. An
  accuracy near it means that nothing was learnt but the class shares.
- Seconds are wall clock on a machine that other work shared; CPU seconds are those of the clients' training.
"""


@dataclass(frozen=True)
class Facts:
    """What a data set that is here holds, in numbers."""

    samples: int
    classes: int
    domains: int
    owners: int


def survey(names: Sequence[str], data_root: str) -> tuple[dict[str, Facts], dict[str, str]]:
    """Return the facts of the data sets that can be loaded, and why the others cannot.

    Args:
        names: The data sets.
        data_root: Folder with local copies; the reasons call it DATA-ROOT.
    """
    present, absent = {}, {}
    for name in names:
        try:
            pool = datasets.load_pool(DataSettings(dataset=name, data_root=data_root))
        except SettingError as error:
            reason = str(error).partition("; ")[0].splitlines()[0]
            absent[name] = reason.replace(str(Path(data_root).expanduser()), "DATA-ROOT").replace("<", "\\<")
        else:
            present[name] = Facts(
                len(pool), len(pool.class_names), max(1, len(pool.domain_names)), len(pool.client_names)
            )
    return present, absent


def left_out(names: Sequence[str]) -> dict[str, str]:
    """Return the registered data sets that are not among some names, but for the user's own, with a word on each."""
    others = {name: source for name, source in datasets.DATASETS.items() if not source.own and name not in names}
    return {name: f"not in the grid: {source.summary}" for name, source in others.items()}


def holdings(runs: Sequence[Run], present: Mapping[str, Facts]) -> str:
    """Return the table of what there is, and how much of it the runs used."""
    rows = []
    for name, found in _by_set(runs).items():
        run, facts, source = found[0], present[name], datasets.DATASETS[name]
        used = [sum(client[f"{part}-examples"] for client in run.clients.values()) for part in ("train", "test")]
        kind = models.kind_of(source.shape, source.vocabulary)
        shared = f"{facts.owners} natural clients" if facts.owners else f"{facts.domains} domains"
        sizes = [str(facts.classes), shared if facts.owners or facts.domains > 1 else "", f"{facts.samples:,}"]
        rows.append([name, kind, *sizes, str(run.settings["clients"]), *map(str, used)])
    head = ["data set", "kind", "classes", "", "samples here", "clients", "training samples", "test samples"]
    return pages.table(head, rows)


def accuracies(runs: Sequence[Run]) -> str:
    """Return the table of accuracies, a row for each data set and seed."""
    rows = []
    for name, found in _by_set(runs).items():
        for seed in sorted({run.seed for run in found}):
            by_method = {run.settings["method"]: run for run in found if run.seed == seed}
            cells = [pages.summed_up(_curve(by_method[key])) if key in by_method else "" for key in COMPARED]
            rows.append([name, str(seed), f"{100 * majority(found[0]):.1f}", *cells])
    return pages.table(["data set", "seed", "majority", *COMPARED], rows)


def verdict(runs: Sequence[Run]) -> str:
    """Return in words who ended ahead of ``local``, who behind, and who learnt no more than the class shares."""
    below = [f"{name} {method}" for name, found in _by_set(runs).items() for method in COMPARED
             if (own := _of(found, method)) and _tail(own) <= majority(own[0])]  # fmt: skip
    lines = [
        f"By the mean of the last {pages.TAIL} evaluations, over the seeds, in points:\n",
        f"FedSAF against `local`: {against_local(runs, 'fedsaf')}.",
        f"FedSAP, with another network, against `local`: {against_local(runs, 'fedsap')}.",
        f"No better than the majority: {', '.join(below) or 'none'}.",
        "An accuracy over a hundred test samples has a standard error of up to 5 points, and the seeds share their "
        "samples: a difference of a few points on one set is noise.",
    ]
    return "\n- ".join(lines)


def against_local(runs: Sequence[Run], method: str) -> str:
    """Return on which data sets a method ended ahead of ``local`` and where behind, in points.

    Example:
        >>> against_local([], "fedsaf")
        'ahead on 0, behind on 0, level on 0'
    """
    pairs = {name: (_of(found, "local"), _of(found, method)) for name, found in _by_set(runs).items()}
    gains = {name: 100 * (_tail(own) - _tail(local)) for name, (local, own) in pairs.items() if local and own}
    sides = {
        "ahead": [name for name, gain in gains.items() if gain >= LEAST_GAIN],
        "behind": [name for name, gain in gains.items() if gain <= -LEAST_GAIN],
        "level": [name for name, gain in gains.items() if abs(gain) < LEAST_GAIN],
    }
    named = {side: ", ".join(f"{name} {gains[name]:+.1f}" for name in names) for side, names in sides.items()}
    return ", ".join(f"{side} on {len(sides[side])}" + (f" ({text})" if text else "") for side, text in named.items())


def costs(runs: Sequence[Run]) -> str:
    """Return the table of seconds and bytes, a row for each run."""
    rows = []
    for name, found in _by_set(runs).items():
        for run in found:
            rounds, seconds = run.summary["rounds"], run.summary["seconds"]["run"]
            cpu = sum(line["client_seconds"].get("cpu", 0.0) for line in run.rounds)
            traffic = [f"{run.summary['bytes'][f'payload_{way}'] / rounds:,.0f}" for way in ("down", "up")]
            nets = ", ".join(dict.fromkeys(str(client["model"]) for client in run.clients.values()))
            rows.append([name, run.settings["method"], str(run.seed), nets, f"{seconds:.1f}", f"{cpu:.1f}", *traffic])
    head = ["data set", "method", "seed", "models", "seconds", "CPU seconds", "bytes down a round", "bytes up a round"]
    return pages.table(head, rows)


def majority(run: Run) -> float:
    """Return what answering each client's most frequent class scores, over the clients by their test samples."""
    counts = [(client["test-examples"], client["label-counts"]) for client in run.clients.values()]
    total = sum(tests for tests, _ in counts)
    return float(sum(tests * max(labels) / sum(labels) for tests, labels in counts) / total)


def page_of(entries: Sequence[Entry], present: Mapping[str, Facts], absent: Mapping[str, str], notes: str = "") -> str:
    """Return the page.

    Args:
        entries: The runs, done or not.
        present: The facts of the data sets that are here.
        absent: Why other data sets are not on the page.
        notes: Remarks, put below the head.
    """
    runs = [entry.run for entry in entries if entry.run and entry.run.settings["dataset"] in present]
    undone = [f"{entry.name}: {entry.status} {entry.cause.partition(chr(10))[0]}" for entry in entries if not entry.run]
    settings = {key: _values(runs, key) for key in ("num-server-rounds", "samples-per-client")}
    head = HEAD.format(machine=pages.machine(), commit=pages.commit(), tail=pages.TAIL,
                       rounds=settings["num-server-rounds"], samples=settings["samples-per-client"])  # fmt: skip
    sections = [
        ("Who is ahead", verdict(runs)),
        ("Accuracy", accuracies(runs)),
        ("Seconds and bytes", costs(runs)),
        ("The data", holdings(runs, present)),
        ("Not here", pages.table(["data set", "why"], [[name, why] for name, why in absent.items()])),
        ("Not done", "\n".join(f"- {line}" for line in undone)),
    ]
    wanted = sections[:-1] if not undone else sections
    return "\n".join([head, *filter(None, [notes]), *(f"## {title}\n\n{text}\n" for title, text in wanted)])


def make(plan: grid.Sweep, data_root: str, out: Path, page: Path) -> dict[str, str]:
    """Run what is not done of a plan, write the page, and return the causes of what broke.

    Args:
        plan: The runs; those on data sets that are absent are left out.
        data_root: Folder with local copies.
        out: Folder of the runs.
        page: The page to write.
    """
    names = list(dict.fromkeys(cell.config.data.dataset for cell in plan.cells))
    present, absent = survey(names, data_root)
    plan = replace(plan, cells=tuple(cell for cell in plan.cells if cell.config.data.dataset in present))
    outcomes = execution.execute(plan, out / plan.name, print)
    page.parent.mkdir(parents=True, exist_ok=True)
    entries = results.load(out / plan.name).entries
    text = page_of(entries, present, {**absent, **left_out(names)}, pages.notes(page))
    page.write_text(text, encoding="utf-8")
    print(f"Written: {page}")
    return execution.broken(outcomes)


# ---- parts ---------------------------------------------------------------------------------------


def _by_set(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by data set, in the order of the registry, each set's by method."""
    found = {name: [run for run in runs if run.settings["dataset"] == name] for name in datasets.DATASETS}
    return {
        name: sorted(of_set, key=lambda run: (COMPARED.index(run.settings["method"]), run.seed))
        for name, of_set in found.items()
        if of_set
    }


def _curve(run: Run) -> list[float]:
    return [line["accuracy"] for line in run.rounds if line["accuracy"] is not None]


def _of(runs: Sequence[Run], method: str) -> list[Run]:
    return [run for run in runs if run.settings["method"] == method]


def _tail(runs: Sequence[Run]) -> float:
    """Return the mean of the last evaluations, over runs that differ in their seed."""
    return statistics.mean(statistics.mean(_curve(run)[-pages.TAIL :]) for run in runs)


def _values(runs: Sequence[Run], key: str) -> str:
    return " or ".join(map(str, sorted({run.settings[key] for run in runs})))


def main(words: Sequence[str] | None = None) -> None:
    """Run the grid on the data sets that are here and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True, help="folder with local copies of data sets")
    parser.add_argument("--seeds", default="0", help="training seeds, as 0,1,2")
    parser.add_argument("--out", default="fedapp-runs", help="folder of the runs")
    parser.add_argument("--page", default="results/data.md", help="the page to write")
    parser.add_argument("--grid", default=GRID, help="the runs: a file, or a grid of fedapp's")
    given = parser.parse_args(words)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # gigabytes would be fetched otherwise
    seeds = commands.seeds_of(given.seeds)
    plan = grid.load(grid.find(given.grid), {"data-root": given.data_root}, seeds)
    if causes := make(plan, given.data_root, Path(given.out).expanduser().resolve(), Path(given.page)):
        raise SystemExit(f"{len(causes)} runs broke, as the page says; started again, they are tried again")


if __name__ == "__main__":
    main()
