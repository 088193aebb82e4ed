"""Where FedSAP's masks begin: layers that no mask touches, and what ranks channels before anything was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapp.config import SettingError, closest
from fedapp.functional.channels import ChannelGraph
from fedapp.seeds import derive
from fedapp.strategies.fedsap.params import FedSAPParams

Floats = npt.NDArray[np.float64]


def exempt_layers(text: str, graph: ChannelGraph) -> frozenset[int]:
    """Return the layers that ``mask.exempt`` names, by number; a short name means the outermost layer so called.

    Raises:
        SettingError: If no layer, or more than one, is called so.
    """
    names = [layer.name for layer in graph.layers]
    found = set()
    for word in filter(None, (word.strip() for word in text.split(","))):
        matching = [name for name in names if f".{name}".endswith(f".{word}")]
        outermost = [name for name in matching if name.count(".") == min(n.count(".") for n in matching)]
        if not matching:
            raise SettingError(f"mask.exempt: no convolution is called {word!r}; {closest(word, names)}")
        if len(outermost) > 1:
            raise SettingError(f"mask.exempt: {word!r} may be any of {', '.join(outermost)}; write the whole name")
        found.add(names.index(outermost[0]))
    return frozenset(found)


def first_utilities(params: FedSAPParams, graph: ChannelGraph, weights: Mapping[str, Any], seed: int) -> Floats:
    """Return what ranks channels before anything was measured: l1 norms of the start's rows, or a random order."""
    if params.warmup_init == "random":
        return np.random.default_rng(derive(seed, "first masks")).permutation(graph.total).astype(np.float64)
    norms = [np.abs(weights[f"{layer.name}.weight"]).reshape(layer.channels, -1).sum(axis=1) for layer in graph.layers]
    return np.concatenate(norms).astype(np.float64)
