"""What config.yaml says of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fedapp.config import SettingError


def described_run(folder: Path) -> dict[str, Any]:
    """Return what config.yaml says of a run.

    Raises:
        SettingError: If the folder holds no run.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise SettingError(f"{folder} holds no run (no config.yaml); give the folder that a run printed as its results")
    try:
        loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {**loaded, "settings": dict(loaded["settings"]), "clients": dict(loaded["clients"])}
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise SettingError(f"{path} is damaged: {error}; without it the run cannot be read") from error
