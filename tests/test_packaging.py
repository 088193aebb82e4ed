"""What pyproject.toml promises."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from fedapp.config import RunConfig, defaults

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))


def name(requirement: str) -> str:
    return re.split(r"[\[<>=;! ]", requirement, maxsplit=1)[0]


def test_every_dependency_and_extra_is_overridden_for_the_superlinks_own_installation() -> None:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(word for extra in extras for word in extra)]
    overridden = PYPROJECT["tool"]["uv"]["override-dependencies"]
    assert {name(word) for word in overridden} == {name(word) for word in wanted}
    assert all(word.endswith("; python_version < '3'") for word in overridden)


def test_the_declared_run_config_holds_every_setting_with_its_default() -> None:
    assert PYPROJECT["tool"]["flwr"]["app"]["config"] == defaults(RunConfig)
