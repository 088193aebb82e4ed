"""A YAML file of settings to vary, made into the cells of a sweep: one run each, checked before anything starts.

::

    base: {dataset: cifar10, method: fedsaf}     # what all cells share
    grid:                                        # every combination of
      dirichlet-alpha: [0.1, 0.5]                #   the values of a setting
      method-params.alignment: [gcsa, rcsa]      #   one of the method's own settings
      size: [{models: htfe2}, {models: htm4, feature-dim: 256}]   # settings that change together
    seeds: [0, 1, 2]
    clients: 20

A list of mappings stands for the union of what each spans, at the top as well as inside; a single value counts as a
list of one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedapp.config import RunConfig, SettingError, closest, flatten, join_pairs, keys, lookup, parse, split_pairs
from fedapp.experiments.records import METRICS, PARAMS

CLIENTS = "clients"
ELSEWHERE = {
    "seed": "list the seeds under `seeds:`",
    "out": "give the folder with --out",
    "run-name": "a cell's name is made of its settings",
    "resume": "a sweep goes on by itself when it is started again",
}
PLACES = ("data-root", "track", "preset")
"""Settings that say where things are or what they are called, not what is computed: no part of a cell's identity."""
SECTIONS = ("title", "base", "grid", "seeds", "clients", "engine", "expected", "heat-map")
ENGINES = {"flower": "flower", "local": "local"}
CONFIGS = Path(__file__).parent / "configs"

Settings = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: Name of its folder: what varies, a hash of all it was given, the seed.
        group: The name without the seed.
        settings: What the file gives, flat; the method's own as "method-params.KEY"; and "clients".
        config: Every setting of the run, but for ``out``.
    """

    name: str
    group: str
    settings: Settings
    config: RunConfig

    @property
    def clients(self) -> int:
        """The number of clients."""
        return int(self.settings[CLIENTS])


@dataclass(frozen=True)
class Expected:
    """A number that somebody else reports for some cells.

    Attributes:
        match: Settings that a cell must have.
        metric: A name of ``METRICS``.
        value: The number, in the metric's unit.
        std: Its spread, if reported.
        source: Where it stands.
    """

    match: Settings
    metric: str
    value: float
    std: float | None
    source: str


@dataclass(frozen=True)
class HeatMap:
    """A figure of one number over two settings.

    Attributes:
        x: Setting along the horizontal axis.
        y: Setting along the vertical axis.
        panels: Setting with a map for each value; empty for one map.
        baseline: Settings of the cell whose number is subtracted; empty to show numbers as they are.
    """

    x: str
    y: str
    panels: str = ""
    baseline: Settings | None = None


@dataclass(frozen=True)
class Sweep:
    """All cells of a file, and what belongs to them.

    Attributes:
        name: Name of the sweep's folder.
        title: One line for headings.
        engine: "flower" or "local".
        varied: The keys that the grid gives, in order.
        cells: The runs, seed by seed.
        expected: Numbers to stand beside ours.
        heat_map: The figure over two settings, if the file asks for one.
        overridden: Settings that were given in place of the file's.
    """

    name: str
    title: str
    engine: str
    varied: tuple[str, ...]
    cells: tuple[Cell, ...]
    expected: tuple[Expected, ...] = ()
    heat_map: HeatMap | None = None
    overridden: Settings | None = None


def find(name: str) -> Path:
    """Return the file that ``name`` means: a path, or the name of a file of ``configs/``.

    Raises:
        SettingError: If there is neither.
    """
    shipped = {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}
    if Path(name).is_file():
        return Path(name)
    if Path(name).suffix in (".yaml", ".yml"):
        raise SettingError(f"{name} does not exist; shipped with fedapp: {', '.join(shipped)}")
    return lookup(shipped, name, "sweep (neither a file nor one of ours)")


def load(path: Path, override: Mapping[str, Any] | None = None, seeds: Sequence[int] | None = None) -> Sweep:
    """Read a file and return its cells, all checked.

    Args:
        path: The YAML file.
        override: Settings in place of those under ``base``.
        seeds: Seeds in place of the file's.

    Raises:
        SettingError: For an unknown key, a bad value, or an expected number that belongs to no cell.
    """
    try:
        described = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingError(f"{path} cannot be read: {error}") from error
    try:
        return build(described, path.stem, override or {}, seeds)
    except SettingError as error:
        raise SettingError(f"{path.name}: {error}") from error


def build(
    described: Any, name: str, override: Mapping[str, Any] | None = None, seeds: Sequence[int] | None = None
) -> Sweep:
    """Return the sweep that a mapping of ``SECTIONS`` describes.

    Raises:
        SettingError: As :func:`load`.
    """
    _known(described, SECTIONS, "section")
    override, base = dict(override or {}), {CLIENTS: described.get(CLIENTS, 10), **(described.get("base") or {})}
    points = [merge(point) for point in expand(described.get("grid") or {})]
    varied = tuple(dict.fromkeys(key for point in points for key in point))
    for key in override:
        if key in varied:
            raise SettingError(f"{key} varies in the grid and cannot be set for all; edit a copy of the file")
    chosen = seeds if seeds is not None else _list(described.get("seeds", [0]))
    given = [_checked(merge(base, override, point)) for point in points]
    cells = [_cell(settings, varied, seed) for seed in chosen for settings in given]
    sweep = Sweep(
        name,
        str(described.get("title", name)),
        lookup(ENGINES, str(described.get("engine", "flower")), "engine"),
        varied,
        tuple({cell.name: cell for cell in cells}.values()),
        tuple(_expected(entry) for entry in described.get("expected") or []),
        _heat_map(described.get("heat-map")),
        override or None,
    )
    _check_matches(sweep)
    return sweep


def expand(grid: Any) -> list[Settings]:
    """Return every combination that a grid spans.

    Example:
        >>> expand({"seed": [1, 2], "pair": [{"a": 1, "b": 1}, {"a": 2, "b": [3, 4]}]})[2:4]
        [{'seed': 1, 'a': 2, 'b': 4}, {'seed': 2, 'a': 1, 'b': 1}]
        >>> expand([{"a": 1}, {"b": [2, 3]}])
        [{'a': 1}, {'b': 2}, {'b': 3}]
    """
    if isinstance(grid, list):
        return [point for part in grid for point in expand(part)]
    if not isinstance(grid, Mapping):
        raise SettingError(f"a grid is a mapping of settings to lists, or a list of such mappings, got {grid!r}")
    axes = [_axis(str(key), values) for key, values in grid.items()]
    return [{key: value for part in parts for key, value in part.items()} for parts in itertools.product(*axes)]


def merge(*layers: Mapping[str, Any]) -> Settings:
    """Return one flat mapping of settings; a later layer wins over an earlier one.

    A layer that gives "method-params" as a whole, as text or mapping, replaces all of the method's own settings;
    "method-params.KEY" changes one.

    Example:
        >>> merge({"method-params": "alignment=gcsa proto-weight=1"}, {"method-params.proto-weight": 5})
        {'method-params.alignment': 'gcsa', 'method-params.proto-weight': 5}
    """
    merged: Settings = {}
    for layer in layers:
        pairs: Mapping[str, Any] = {}
        if PARAMS in layer:
            merged = {key: value for key, value in merged.items() if not key.startswith(f"{PARAMS}.")}
            whole = layer[PARAMS]
            pairs = whole if isinstance(whole, Mapping) else split_pairs(str(whole or ""))
        single = {str(key): value for key, value in layer.items() if key != PARAMS}
        merged = {**merged, **single, **{f"{PARAMS}.{key}": value for key, value in pairs.items()}, **single}
    return merged


def matches(settings: Mapping[str, Any], match: Mapping[str, Any]) -> bool:
    """Return whether settings hold all that ``match`` gives; numbers are compared as numbers.

    Example:
        >>> matches({"alpha": 0.1, "method": "fedsaf"}, {"alpha": "0.10"}), matches({}, {"alpha": 1})
        (True, False)
    """
    return all(key in settings and same(settings[key], value) for key, value in match.items())


def same(a: Any, b: Any) -> bool:
    """Return whether two values of a setting are equal, be they given as text or not.

    Example:
        >>> same("1e-2", 0.01), same(True, "true"), same("a", "b")
        (True, True, False)
    """
    try:
        return float(a) == float(b) and isinstance(a, bool) == isinstance(b, bool)
    except (TypeError, ValueError):
        return str(a).lower() == str(b).lower()


# ---- parts ---------------------------------------------------------------------------------------


def _axis(key: str, values: Any) -> list[Settings]:
    """Return the alternatives of one entry of a grid: values of a setting, or mappings of settings."""
    if key == PARAMS:
        return [{key: value} for value in _list(values)]
    mappings = [isinstance(value, Mapping) for value in _list(values)]
    if not all(mappings):
        if any(mappings):
            raise SettingError(f"grid {key!r} mixes values with mappings; give one or the other")
        return [{key: value} for value in _list(values)]
    if key in keys(RunConfig):
        raise SettingError(f"grid {key!r} is a setting and takes values; name a list of mappings otherwise")
    return expand(_list(values))


def _list(values: Any) -> list[Any]:
    if values == []:
        raise SettingError("a list of values is empty; give one at least, or leave the key out")
    return values if isinstance(values, list) else [values]


def _known(described: Any, names: Sequence[str], kind: str) -> None:
    if not isinstance(described, Mapping):
        raise SettingError(f"expected a mapping of {', '.join(names)}; got {described!r}")
    for key in described:
        if key not in names:
            raise SettingError(f"unknown {kind} {key!r}; {closest(str(key), names)}")


def _checked(given: Settings) -> tuple[Settings, RunConfig]:
    """Return what was given in its own types, and every setting of the run."""
    from fedapp import server_app

    for key in given:
        if key in ELSEWHERE:
            raise SettingError(f"{key} cannot be set here; {ELSEWHERE[key]}")
    if not isinstance(given[CLIENTS], int) or given[CLIENTS] < 1:
        raise SettingError(f"clients must be a whole number of at least 1, got {given[CLIENTS]!r}")
    params = {key.removeprefix(f"{PARAMS}."): value for key, value in given.items() if key.startswith(f"{PARAMS}.")}
    own = {key: value for key, value in given.items() if key != CLIENTS and not key.startswith(f"{PARAMS}.")}
    config = parse(RunConfig, {**own, PARAMS: join_pairs(params)})
    resolved = flatten(server_app.check(config)[1])
    typed = {f"{PARAMS}.{key}": resolved[key] for key in params}
    return {CLIENTS: given[CLIENTS], **{key: flatten(config)[key] for key in own}, **typed}, config


def _cell(checked: tuple[Settings, RunConfig], varied: Iterable[str], seed: Any) -> Cell:
    settings, config = checked
    identity = {key: value for key, value in sorted(settings.items()) if key not in PLACES}
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    words = [_word(key, settings[key]) for key in varied if key in settings and key not in PLACES]
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words))[:80].strip("-.")
    group = f"{readable}-{digest}" if readable else f"{config.method}-{digest}"
    name = f"{group}-s{seed}"
    return Cell(name, group, settings, parse(RunConfig, {**flatten(config), "seed": seed, "run-name": name}))


def _word(key: str, value: Any) -> str:
    text = isinstance(value, str) and value
    return str(value) if text else f"{key.removeprefix(f'{PARAMS}.')}{value}"


def _expected(entry: Any) -> Expected:
    _known(entry, ("match", "metric", "value", "std", "source"), "key under expected")
    if not isinstance(entry.get("match"), Mapping) or not isinstance(entry.get("value"), int | float):
        raise SettingError(f"an expected number needs `match:` (a mapping) and `value:` (a number), got {entry!r}")
    metric = str(entry.get("metric", "best"))
    lookup(METRICS, metric, "metric")
    std = None if entry.get("std") is None else float(entry["std"])
    return Expected(merge(entry["match"]), metric, float(entry["value"]), std, str(entry.get("source", "")))


def _heat_map(entry: Any) -> HeatMap | None:
    if entry is None:
        return None
    _known(entry, ("x", "y", "panels", "baseline"), "key under heat-map")
    if not entry.get("x") or not entry.get("y"):
        raise SettingError(f"heat-map needs two settings, `x:` and `y:`, got {entry!r}")
    baseline = merge(entry["baseline"]) if entry.get("baseline") else None
    return HeatMap(str(entry["x"]), str(entry["y"]), str(entry.get("panels", "")), baseline)


def _check_matches(sweep: Sweep) -> None:
    """Check that every expected number and the baseline belong to a cell: a slip of the pen must not hide one."""
    asked = [entry.match for entry in sweep.expected]
    if sweep.heat_map:
        asked.append(sweep.heat_map.baseline or {})
    for match in asked:
        if not any(matches(cell.settings, match) for cell in sweep.cells):
            raise SettingError(f"no cell has {match}, which a number of the file is for; check `match:`")
