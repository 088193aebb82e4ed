"""Check: do the settings name things that exist?"""

from __future__ import annotations

from fedapp import augment, plugins, tiers, tracking
from fedapp.config import lookup, parse, split_pairs
from fedapp.doctor.base import Case
from fedapp.strategies import METHODS


def look(case: Case) -> str:
    """Check plugins, method, its parameters, trackers and device tiers; models and data have checks of their own."""
    config = case.config
    plugins.load(config.plugins)
    case.method = method = lookup(METHODS, config.method, "method")
    parse(method.strategy.params_type, split_pairs(config.method_params), what=f"{config.method} parameter")
    augment.parse(config.training.augment)
    tiers.read(config.device_tiers)
    tracking.check(config.track)
    return f"method {config.method}, {config.num_server_rounds} rounds, {case.clients} clients"
