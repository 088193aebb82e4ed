"""Federated learning on devices that are not alike: a Flower app and a Python library."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["load_run", "run"]


def __getattr__(name: str) -> Any:
    """Import the Python interface only when it is asked for: ``fedapp --help`` must not wait for torch."""
    if name in __all__:
        from fedapp import api

        return getattr(api, name)
    raise AttributeError(f"module 'fedapp' has no attribute {name!r}")
