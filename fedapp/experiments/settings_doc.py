"""Writes docs/settings.md from the code: ``python -m fedapp.experiments.settings_doc > docs/settings.md``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, get_type_hints

from fedapp.config import Scalar, defaults, keys

HEADER = ("key", "default", "values", "meaning")
INTRODUCTION = """\
# Settings

Written by `python -m fedapp.experiments.settings_doc > docs/settings.md`; a test holds the two together. Do not edit.

Settings are flat `key = value` pairs: `fedapp run --set key=value`, a YAML file with `--config`, plain Flower's
`--run-config "key=value"`, or `[tool.flwr.app.config]` in `pyproject.toml`. An unknown key or a bad value ends the run
before it starts, with the rule and the closest valid name.
"""
PARAMETERS = """\
## Parameters of the methods

They travel in one setting: `--set method-params="alignment=rcsa proto-weight=5"`, or a mapping in YAML. The paper's
symbol stands in parentheses.
"""


def document() -> str:
    """Return the page: the settings by group, then the parameters of every method."""
    from fedapp.config import RunConfig
    from fedapp.strategies import METHODS

    hints = get_type_hints(RunConfig)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    inner = {key for group in groups.values() for key in keys(group)}
    parts = [INTRODUCTION, f"## The run\n\n{_table(RunConfig, [key for key in keys(RunConfig) if key not in inner])}"]
    for name, group in groups.items():
        parts.append(f"## {name.capitalize()}\n\n{group.__doc__}\n\n{_table(group, keys(group))}")
    parts.append(PARAMETERS)
    for method in METHODS.values():
        params: Any = method.strategy.params_type
        body = _table(params, keys(params)) if keys(params) else "No parameters.\n"
        about = f"{method.paper}: {method.summary}."
        parts.append(f"### `{method.name}`\n\n{about[0].upper()}{about[1:]}\n\n{body}")
    return "\n".join(parts)


def _table(cls: type[Any], wanted: Iterable[str]) -> str:
    fields, values = keys(cls), defaults(cls)
    rows = [HEADER, ("---",) * len(HEADER)]
    rows += [
        (f"`{key}`", _shown(values[key]), allowed(fields[key]), fields[key].metadata["doc"].replace("|", "\\|"))
        for key in wanted
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def allowed(field: dataclasses.Field[Any]) -> str:
    """Return what a setting may be, in a few words.

    Example:
        >>> from fedapp.config import DataSettings
        >>> allowed(keys(DataSettings)["train-fraction"]), allowed(keys(DataSettings)["test-split"])
        ('> 0, <= 1', '`auto`, `native`, `shared`, `client`')
    """
    rules = field.metadata
    if rules["choices"]:
        return ", ".join(f"`{choice}`" for choice in rules["choices"])
    bounds = {">=": rules["low"], ">": rules["above"], "<=": rules["high"]}
    texts = [f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None and bound < 2**53]
    texts += ["or a per cent"] if rules["per_cent"] else []
    if texts:
        return ", ".join(texts)
    return {bool: "`true`, `false`", str: "text"}.get(type(field.default), "number")


def _shown(value: Scalar) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value != "" else "empty"


if __name__ == "__main__":
    print(document(), end="")
