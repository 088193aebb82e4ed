"""A user's own code: modules that the server and every client import, where models, data and methods register."""

from __future__ import annotations

import importlib
from functools import lru_cache

from fedapp.config import SettingError


@lru_cache(maxsize=64)
def load(names: str) -> None:
    """Import the modules named in the setting ``plugins``, separated by commas, once in this process.

    Raises:
        SettingError: If a module cannot be imported; names the module and the cause.
    """
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name.startswith("."):
            raise SettingError(f"plugin {name!r} is a relative name; give the module's full name")
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SettingError(
                f"plugin {name!r} cannot be imported: {error}; install it where the app runs, or put its folder on "
                "PYTHONPATH before the SuperLink or SuperNode starts"
            ) from error
