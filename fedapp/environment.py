"""Errors that a user can mend are shown as one line, not as a stack trace, also where Flower prints them."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

NEEDED = ("torch", "torchvision")


class OneLineError(Exception):
    """An error whose message is all that a user needs; logging finds no stack trace to print."""

    @property
    def __traceback__(self) -> Any:
        """Nothing: the message says it all."""
        return None

    @__traceback__.setter
    def __traceback__(self, value: Any) -> None:
        """Keep none."""


class MissingPackageError(OneLineError, ImportError):
    """A package that every run needs is not installed."""


class RunFailedError(RuntimeError):
    """A run did not end well; the message is the cause."""


class CannotRunError(OneLineError):
    """A setting is wrong, or the clients do not fit the method."""


def require() -> None:
    """Check that the packages which every run needs are installed.

    Raises:
        MissingPackageError: Naming the package, the interpreter and the command that installs it.
    """
    for package in NEEDED:
        try:
            missing = importlib.util.find_spec(package) is None
        except ModuleNotFoundError:
            missing = True
        if missing:
            raise MissingPackageError(
                f"{package} is not installed for {sys.executable}; install it with `pip install .` in the clone; with "
                "uv use `uv pip install --no-config .`, because the clone's [tool.uv] table empties the dependencies "
                "for Flower's sake"
            )
