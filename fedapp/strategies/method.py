"""The row of the table of methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedapp.client_update import ClientUpdate
    from fedapp.strategies.base import PayloadStrategy


@dataclass(frozen=True)
class NoParams:
    """Parameters of a method that has none."""


@dataclass(frozen=True)
class Method:
    """One row of the table of methods.

    Attributes:
        strategy: The server's half.
        update: The client's half.
        paper: Where the method comes from.
        summary: The idea in one line.
        travels: What crosses the network, in words.
        models: The models that the setting ``models=auto`` stands for under this method.
    """

    strategy: type[PayloadStrategy]
    update: type[ClientUpdate]
    paper: str
    summary: str
    travels: str
    models: str = "small4"

    @property
    def name(self) -> str:
        """The method's name in settings."""
        return self.strategy.name
