"""Every group of models on every data set of its kind, one round each, for a night.

``python -m fedapp.experiments.product data-root=DIR`` says whether all that is offered works together; its accuracies
mean nothing. ``product.jsonl`` gets one line a pair; called again with the same settings, pairs that have theirs are
skipped, broken ones and sets that were absent are tried again.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedapp import datasets, models, paths, plugins, runner
from fedapp.config import RunConfig, SettingError, lookup, parse
from fedapp.experiments.commands import settings_of
from fedapp.experiments.execution import Say

FILE = "product.jsonl"
DONE, MISFIT, BROKEN, ABSENT = "done", "misfit", "broken", "absent"
STANDARD = {
    **{"method": "fedsaf", "num-server-rounds": 1, "local-epochs": 1, "batch-size": 10, "samples-per-client": 24},
    **{"partition": "iid", "report": False, "out": "product"},
}
"""One round on tiny slices; a pair has as many clients as the group has models."""


@dataclass(frozen=True)
class Pair:
    """A group of models and a data set of the kind that all of them take."""

    group: str
    dataset: str


def pairs(groups: Sequence[str] = (), names: Sequence[str] = ()) -> list[Pair]:
    """Return every pair that fits in kind, data set by data set; data sets of the user's own are left out.

    Args:
        groups: The groups; all if empty.
        names: The data sets; all if empty.

    Raises:
        SettingError: If a name is unknown.

    Example:
        >>> pairs(["small4", "htfe6-txt"], ["digits4"])
        [Pair(group='small4', dataset='digits4')]
    """
    found = []
    for name in names or datasets.DATASETS:
        source = lookup(datasets.DATASETS, name, "data set")
        if source.own or not source.shape:
            continue
        kind = models.kind_of(source.shape, source.vocabulary)
        for group in groups or models.GROUPS:
            members = lookup(models.GROUPS, group, "model group")
            if all(kind in models.MODELS[member].takes for member in members):
                found.append(Pair(group, name))
    return found


def run(settings: Mapping[str, Any], chosen: Sequence[Pair], say: Say = print) -> list[dict[str, Any]]:
    """Run the pairs that have no line yet, and return the new lines.

    Args:
        settings: Settings by key, over ``STANDARD``; ``out`` is the folder of the file.
        chosen: The pairs.
        say: Called with one line of text a pair.

    Raises:
        SettingError: If a setting is wrong.
    """
    config = runner.absolute(parse(RunConfig, {**STANDARD, **settings}))
    plugins.load(config.plugins)
    folder = Path(config.out)
    folder.mkdir(parents=True, exist_ok=True)
    told = {key: str(value) for key, value in settings.items() if key != "out"}
    had = {Pair(line["group"], line["dataset"]) for line in _lines(folder / FILE) if _settled(line, told)}
    new = []
    for pair in chosen:
        if pair in had:
            continue
        line = {"group": pair.group, "dataset": pair.dataset, **_outcome(pair, config), "settings": told}
        with (folder / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        say(_text(line))
        new.append(line)
    return new


def _settled(line: Mapping[str, Any], settings: Mapping[str, str]) -> bool:
    return line["status"] in (DONE, MISFIT) and line["settings"] == settings


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Return the lines written so far; one that was cut short counts for nothing."""
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            continue


def _outcome(pair: Pair, config: RunConfig) -> dict[str, Any]:
    """Run one pair and return what became of it; whatever goes wrong is part of the answer."""
    data_root = paths.existing(config.data.data_root, "data-root")
    data = replace(config.data, dataset=pair.dataset, data_root=data_root)
    try:
        datasets.load_pool(data)
    except SettingError as error:
        return {"status": ABSENT, "why": str(error)}
    if why := _misfit(pair, config):
        return {"status": MISFIT, "why": why}
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(dir=config.out) as folder:  # hundreds of MiB of weights
            one = replace(config, data=data, models=pair.group, out=folder, run_name="run")
            clients = len(models.GROUPS[pair.group])
            summary = runner.summary(runner.run_local(one, clients, lambda line: None))
    except Exception as error:  # the next pair may go well
        return {"status": BROKEN, "why": f"{type(error).__name__}: {error}"}
    if failures := summary["failures"]:
        first = failures[0]
        why = f"{len(failures)} failures, first: client {first['client']}: {first['kind']}: {first['reason']}"
        return {"status": BROKEN, "why": why}
    return {
        "status": DONE,
        "accuracy": summary["accuracy"]["last"],
        "seconds": round(time.monotonic() - started, 1),
        "bytes": sum(summary["bytes"].values()),
    }


def _misfit(pair: Pair, config: RunConfig) -> str:
    """Return why a model of the group cannot take such samples, as images too small for it; "" if all can."""
    import torch

    source = datasets.DATASETS[pair.dataset]
    shapes: Any = {"input_shape": source.shape, "vocabulary": source.vocabulary, "num_classes": source.classes}
    for name in models.GROUPS[pair.group]:
        try:
            with torch.device("meta"):
                models.build(name, feature_dim=config.feature_dim, **shapes)
        except SettingError as error:
            return str(error)
    return ""


def _text(line: Mapping[str, Any]) -> str:
    pair = f"{line['dataset']:20} {line['group']:18} {line['status']:7}"
    if line["status"] != DONE:
        return f"{pair} {line['why'].splitlines()[0]}"
    accuracy = "nothing tested" if line["accuracy"] is None else f"accuracy {line['accuracy']:.3f}"
    return f"{pair} {accuracy}, {line['bytes']:,} bytes, {line['seconds']} s"


def main(words: Sequence[str]) -> int:
    """Run the product with settings key=value; ``groups=a,b`` and ``datasets=c,d`` choose. Return 1 if any broke."""
    settings = settings_of(words)
    chosen = [[name for name in str(settings.pop(key, "")).split(",") if name] for key in ("groups", "datasets")]
    for key, instead in (("models", "groups"), ("dataset", "datasets")):
        if key in settings:
            raise SettingError(f"{key} = {settings[key]}: a product has many; choose with {instead}={settings[key]}")
    plugins.load(str(settings.get("plugins", "")))
    lines = run(settings, pairs(*chosen))
    return int(any(line["status"] == BROKEN for line in lines))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SettingError as error:
        sys.exit(str(error))
