"""Sweeps and comparisons that take seconds: two or three clients, tiny samples, this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

QUICK: dict[str, Any] = {
    "num-server-rounds": 2,
    "local-epochs": 1,
    "batch-size": 16,
    "samples-per-client": 40,
    "feature-dim": 16,
    "models": "mlp",
}


def plan(**values: Any) -> dict[str, Any]:
    """The description of a sweep over two methods."""
    whole = {"base": QUICK, "grid": {"method": ["fedproto", "local"]}, "seeds": [0], "clients": 2, "engine": "local"}
    return {**whole, **values}


@pytest.fixture(autouse=True)
def users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
