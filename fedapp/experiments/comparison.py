"""Several methods on the same seeds, data and partition, side by side: one folder, one table, one figure.

A comparison is a sweep over methods and seeds, so it survives a broken run and can be continued under its name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedapp.config import RunConfig, SettingError, flatten, lookup, split_pairs
from fedapp.experiments import execution, grid, records, results
from fedapp.experiments.records import METRICS, PARAMS, Run
from fedapp.experiments.statistics import LEAST_PAIRS, Paired, paired, spread
from fedapp.experiments.tables import PLUS_MINUS, Table, markdown, with_spread
from fedapp.memory import safe_name

SHOWN = (
    "best", "last", "last_ten", "client_std", "client_worst", "mib_up", "mib_down", "cpu_seconds", "failures"
)  # fmt: skip
COMPARED = ("best", "last", "last_ten", "client_std", "client_worst")
FORMAT = 1
NO_INTERVAL = f"fewer than {LEAST_PAIRS} seeds: no interval of confidence is given"


@dataclass(frozen=True)
class Comparison:
    """A finished comparison.

    Attributes:
        folder: Where its runs, tables and figures are.
        labels: The methods as given, in order; differences are to the first.
        sweep: What was planned.
        runs: The finished runs of each method by seed.
        seeds: All seeds.
        broken: The cause of every broken run, by its name.
        warnings: What a reader must know; includes unequal client data.
    """

    folder: Path
    labels: tuple[str, ...]
    sweep: grid.Sweep
    runs: dict[str, dict[int, Run]]
    seeds: tuple[int, ...]
    broken: dict[str, str]
    warnings: tuple[str, ...]

    @property
    def same_data(self) -> bool:
        """Whether the clients of all runs held the same data, as their records tell."""
        return not records.data_differences([run for seeds in self.runs.values() for run in seeds.values()])

    @property
    def shared(self) -> dict[str, Any]:
        """The settings that all runs were given, other than the defaults."""
        own = ("method", f"{PARAMS}.", grid.CLIENTS)
        return {key: value for key, value in self.sweep.cells[0].settings.items() if not key.startswith(own)}

    def numbers(self, label: str, metric: str) -> dict[int, float | None]:
        """Return one number of a method by seed."""
        return {seed: METRICS[metric].value(run) for seed, run in self.runs[label].items()}

    def difference(self, label: str, metric: str) -> Paired | None:
        """Return the difference of a method to the first, paired by seed."""
        return paired(self.numbers(label, metric), self.numbers(self.labels[0], metric))


def compare(
    methods: Sequence[str],
    config: RunConfig,
    clients: int,
    *,
    seeds: Sequence[int] = (0,),
    engine: str = "flower",
    name: str = "",
    say: execution.Say = print,
) -> Comparison:
    """Run every method with every seed on the same data and write its table, numbers, figure and report.

    Args:
        methods: Names of methods, each with settings of its own if need be: "fedsaf alignment=rcsa proto-weight=5".
        config: Everything else; ``method-params`` belong to ``config.method``.
        clients: Number of simulated clients.
        seeds: Training seeds; the partition has a seed of its own and stays the same.
        engine: "flower" or "local".
        name: Name of the comparison's folder in ``config.out``; made of methods and time if empty. An unfinished
            comparison of this name is continued.
        say: Called with one line of progress after another.

    Raises:
        SettingError: If a setting is wrong, or a finished or other comparison has this name.
    """
    labels = tuple(" ".join(method.split()) for method in methods)
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise SettingError(f"{', '.join(sorted(twice))} given twice; give each method once")
    seeds = tuple(dict.fromkeys(seeds))
    points = [_point(label, labels, config) for label in labels]
    plan = {"base": _shared(config), "grid": points, "seeds": list(seeds), "clients": clients, "engine": engine}
    sweep = grid.build(plan, name or _name(labels, config))
    if len(sweep.cells) < len(labels) * len(seeds):
        raise SettingError(f"two of {', '.join(labels)} mean the same settings; give each method once")
    folder = _folder(Path(config.out).expanduser().resolve(), sweep, named=bool(name))
    outcomes = _execute(sweep, folder, say)
    found = _collect(folder, labels, seeds, sweep, outcomes)
    write(found)
    return found


def write(found: Comparison) -> list[Path]:
    """Write comparison.json, comparison.md, comparison.svg, comparison.png and report.html."""
    from fedapp.experiments import figures
    from fedapp.report import write_comparison

    paths = [found.folder / "comparison.json", found.folder / "comparison.md"]
    text = "\n".join(markdown(table) for table in (table(found), differences(found)) if table.body)
    execution.replace_text(paths[1], text)
    lines = [
        figures.line(label, [records.curve(run) for run in found.runs[label].values()])
        for label in found.labels
        if found.runs[label]
    ]
    if lines:
        paths += figures.save(figures.draw_curves({_what(found): lines}), found.folder / "comparison")
    execution.replace_text(paths[0], json.dumps(described(found), indent=1, allow_nan=False) + "\n")
    folders = [run.folder for seeds in found.runs.values() for run in seeds.values()]
    return [*paths, write_comparison(folders, found.folder)] if folders else paths


def table(found: Comparison) -> Table:
    """Return a line for each method: accuracies in per cent, mean ± standard deviation over seeds."""
    header = ("method", "seeds", *(METRICS[metric].label for metric in SHOWN))
    body = []
    for label in found.labels:
        cells = [
            with_spread(spread(list(found.numbers(label, metric).values())), METRICS[metric].digits) for metric in SHOWN
        ]
        body.append((label, f"{len(found.runs[label])}/{len(found.seeds)}", *cells))
    notes: tuple[str, ...] = (PLUS_MINUS if len(found.seeds) > 1 else "one seed: nothing is known about its spread",)
    given = " ".join(f"{key}={value}" for key, value in found.shared.items())
    notes += (f"settings other than the defaults: {given or 'none'}",)
    return Table(f"Comparison: {_what(found)}", header, tuple(body), (*notes, *found.warnings))


def differences(found: Comparison) -> Table:
    """Return every other method minus the first, paired by seed, with an interval where there are enough seeds."""
    first = found.labels[0]
    body = []
    for label in found.labels[1:]:
        cells = [_interval(found.difference(label, metric)) for metric in COMPARED]
        body.append((label, *cells))
    enough = len(found.seeds) >= LEAST_PAIRS
    note = "95 % confidence, Student's t, not corrected for the number of comparisons" if enough else NO_INTERVAL
    header = (f"minus {first}", *(METRICS[metric].label for metric in COMPARED))
    return Table(f"Paired differences to {first}", header, tuple(body), (note,))


def described(found: Comparison) -> dict[str, Any]:
    """Return every number of a comparison as comparison.json holds it."""
    methods = {
        label: {
            metric: asdict(value) if (value := spread(list(found.numbers(label, metric).values()))) else None
            for metric in METRICS
        }
        for label in found.labels
    }
    pairs = [(label, metric, found.difference(label, metric)) for label in found.labels[1:] for metric in COMPARED]
    return {
        "format": FORMAT,
        "name": found.folder.name,
        "methods": methods,
        "seeds": list(found.seeds),
        "clients": found.sweep.cells[0].clients,
        "engine": found.sweep.engine,
        "settings": found.shared,
        "differences": [
            {"method": label, "to": found.labels[0], "metric": metric, **asdict(value)}
            for label, metric, value in pairs
            if value
        ],
        "same_client_data": found.same_data,
        "warnings": list(found.warnings),
        "broken": found.broken,
        "runs": [
            {"method": label, "seed": seed, "folder": run.folder.name, **records.measure(run)}
            for label, seeds in found.runs.items()
            for seed, run in seeds.items()
        ],
    }


# ---- parts ---------------------------------------------------------------------------------------


def _shared(config: RunConfig) -> dict[str, Any]:
    """Return the settings that all methods have and that are not the defaults."""
    default = flatten(RunConfig())
    apart = ("method", PARAMS, *grid.ELSEWHERE)
    return {key: value for key, value in flatten(config).items() if key not in apart and value != default[key]}


def _point(label: str, labels: Sequence[str], config: RunConfig) -> dict[str, Any]:
    """Return a method and its own settings, checked by name."""
    from fedapp import plugins
    from fedapp.strategies import METHODS

    plugins.load(config.plugins)
    name, _, own = label.partition(" ")
    lookup(METHODS, name, "method")
    if config.method_params and config.method not in labels:
        raise SettingError(
            f"method-params belong to {config.method} (set with method=...), which is not compared without settings "
            f'of its own; give each method its own, as in fedapp compare "{name} {config.method_params}"'
        )
    params = config.method_params if name == config.method and not own else own
    return {"method": name, PARAMS: split_pairs(params)}


def _name(labels: Sequence[str], config: RunConfig) -> str:
    methods = "-".join(dict.fromkeys(label.split()[0] for label in labels))
    return f"compare-{methods[:60]}-{config.data.dataset}-{time.strftime('%Y%m%d-%H%M%S')}"


def _folder(out: Path, sweep: grid.Sweep, named: bool) -> Path:
    """Return the comparison's folder: a new one, or that of the same comparison left unfinished."""
    try:
        folder = out / safe_name(sweep.name, "name")
    except ValueError as error:
        raise SettingError(str(error)) from None
    if not folder.exists():
        return folder
    if not named:
        return next(path for n in range(2, 1000) if not (path := out / f"{sweep.name}-{n}").exists())
    if _is_complete(folder):
        raise SettingError(f"{folder} exists already and is not overwritten; choose another --name, or move it away")
    planned = {cell.name for cell in sweep.cells}
    if {cell["name"] for cell in execution.read_state(folder)["cells"]} != planned:
        raise SettingError(f"{folder} holds another comparison; choose another --name, or move it away")
    return folder


def _execute(sweep: grid.Sweep, folder: Path, say: execution.Say) -> dict[str, execution.Outcome]:
    try:
        return execution.execute(sweep, folder, say)
    except KeyboardInterrupt:
        say(f"interrupted; the same command with --name {folder.name} goes on from here")
        raise


def _is_complete(folder: Path) -> bool:
    """Return whether a comparison ended here with every run done."""
    path = folder / "comparison.json"
    return path.exists() and not json.loads(path.read_text(encoding="utf-8"))["broken"]


def _collect(
    folder: Path,
    labels: Sequence[str],
    seeds: Sequence[int],
    sweep: grid.Sweep,
    outcomes: Mapping[str, execution.Outcome],
) -> Comparison:
    runs: dict[str, dict[int, Run]] = {label: {} for label in labels}
    cells = iter(sweep.cells)  # seed by seed, methods in order
    for seed in seeds:
        for label in labels:
            cell = next(cells)
            if outcomes[cell.name].status == "done":
                runs[label][seed] = records.read(folder / cell.name)
    warnings = results.warnings(results.load(folder))
    return Comparison(folder, tuple(labels), sweep, runs, tuple(seeds), execution.broken(outcomes), tuple(warnings))


def _what(found: Comparison) -> str:
    config, clients = found.sweep.cells[0].config, found.sweep.cells[0].clients
    seeds = f"seeds {', '.join(map(str, found.seeds))}" if len(found.seeds) > 1 else f"seed {found.seeds[0]}"
    return f"{config.data.dataset}, {clients} clients, {config.num_server_rounds} rounds, {seeds}"


def _interval(value: Paired | None) -> str:
    if value is None:
        return "-"
    if value.low is None or value.high is None:
        return f"{value.mean:+.2f}"
    return f"{value.mean:+.2f} [{value.low:+.2f}, {value.high:+.2f}]"
