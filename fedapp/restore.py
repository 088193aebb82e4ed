"""Puts a client of a finished run together again: its own weights, and what the server sent for evaluation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from fedapp import models, node, plugins
from fedapp.checkpoints import newest
from fedapp.client_update import ClientUpdate, Local, arrays_of
from fedapp.config import RunConfig, SettingError, lookup, parse, split_pairs
from fedapp.memory import ClientMemory
from fedapp.payload import ClientInfo, layout
from fedapp.strategies import METHODS


def client_infos(described: Mapping[str, Mapping[str, Any]]) -> dict[str, ClientInfo]:
    """Return the clients that config.yaml describes."""
    return {
        client: ClientInfo(
            client=client,
            model=about["model"],
            num_classes=about["num-classes"],
            feature_dim=about["feature-dim"],
            input_shape=tuple(about["input-shape"]),
            domain=about["domain"],
        )
        for client, about in described.items()
    }


def client_update(
    folder: Path, config: RunConfig, infos: Mapping[str, ClientInfo], client: str, weights: str
) -> ClientUpdate:
    """Return a client's half of the method as it stood in the last evaluation.

    Args:
        folder: The run's folder.
        config: The run's settings.
        infos: The run's clients.
        client: The client's id.
        weights: "last", or "best" for the models that ``save-client-models`` kept (then without what the server
            sent, which is only kept for the last round).

    Raises:
        SettingError: If the run kept no such weights.
    """
    plugins.load(config.plugins)
    info = infos[client]
    model: Any = models.build(
        info.model, num_classes=info.num_classes, input_shape=_image(info), feature_dim=config.feature_dim
    )
    kept = _kept(folder, client, weights)
    model.load_state_dict(node.part_of(kept, node.MODEL))
    method = lookup(METHODS, config.method, "method")
    params = parse(method.strategy.params_type, split_pairs(config.method_params))
    local = Local(client, model, info.num_classes, config.training, state=node.part_of(kept, node.STATE))
    update = method.update(params, local)
    if weights == "last":
        update.receive(_sent(folder, config, infos, client, params))
    return update


def _sent(folder: Path, config: RunConfig, infos: Mapping[str, ClientInfo], client: str, params: Any) -> Any:
    """Return what the server would send this client for evaluation, from the last checkpoint."""

    def build(about: ClientInfo, name: str) -> Any:
        return models.build(
            name or about.model,
            num_classes=about.num_classes,
            input_shape=_image(about),
            feature_dim=config.feature_dim,
        )

    strategy = METHODS[config.method].strategy(params, config.server, seed=config.seed, build=build)
    first = next(iter(infos.values()))
    example = build(first, "")
    described = {
        "model_layout": layout(arrays_of(example)),
        "head_layout": layout(arrays_of(example.head)),
    }
    strategy.roster.clients = {name: ClientInfo(**{**vars(info), **described}) for name, info in infos.items()}
    _, state = newest(folder)
    strategy.load_state(state)
    strategy.begin()
    return strategy.evaluate_downlink(strategy.clients[client])


def _kept(folder: Path, client: str, weights: str) -> dict[str, Any]:
    if weights == "last":
        kept = ClientMemory(folder.parent, folder.name, client).load(before=sys.maxsize)
        if kept is None:
            raise SettingError(
                f"{folder} holds no weights of client {client!r}; it never trained, or kept them elsewhere"
            )
        return kept
    path = folder / "models" / weights / f"{client}.safetensors"
    if not path.is_file():
        raise SettingError(f"{path} does not exist; set save-client-models=1 in the run to keep its best models")
    return dict(load_file(path))


def _image(info: ClientInfo) -> Any:
    return info.input_shape
