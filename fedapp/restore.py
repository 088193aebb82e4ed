"""Puts a client of a finished run together again: its own weights, and what the server sent for evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file

from fedapp import models, node, plugins
from fedapp.checkpoints import SERVER, newest
from fedapp.client_update import ClientUpdate, LabelledSamples, Local, arrays_of
from fedapp.config import RunConfig, SettingError, lookup, parse, split_pairs
from fedapp.memory import ClientMemory
from fedapp.models import start
from fedapp.payload import ClientInfo, Downlink, layout
from fedapp.seeds import derive, seeded
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
            num_examples=about.get("train-examples", 0),
            domain=about["domain"],
            keep_ratio=about.get("keep-ratio", 0.0),
            vocabulary=about.get("vocabulary", 0),
        )
        for client, about in described.items()
    }


def client_update(
    folder: Path,
    config: RunConfig,
    infos: Mapping[str, ClientInfo],
    client: str,
    weights: str,
    samples: Callable[[], LabelledSamples] | None = None,
) -> ClientUpdate:
    """Return a client's half of the method as it stood in the last evaluation.

    Args:
        folder: The run's folder.
        config: The run's settings.
        infos: The run's clients.
        client: The client's id.
        weights: "last", or "best" for the models that ``save-client-models`` kept.
        samples: Returns the client's training samples, for methods that measure on them before evaluation.

    Raises:
        SettingError: If the run kept no such weights.
    """
    plugins.load(config.plugins)
    info = infos[client]
    build = builder(config)
    model = build(info, "")
    kept = _kept(folder, client, weights)
    method = lookup(METHODS, config.method, "method")
    if kept is None:  # the client never trained: the run evaluated it on its first weights
        with seeded(derive(config.seed, "init", info.model if config.shared_init else client)):
            model = build(info, "")
            if config.init_from:
                start.initialise(model, config.init_from, info.model)
        kept = {}
    elif method.update.own_shapes:
        model.load_state_dict(node.part_of(kept, node.MODEL))
    params = parse(method.strategy.params_type, split_pairs(config.method_params))
    state = node.part_of(kept, node.STATE)
    local = Local(client, model, info.num_classes, config.training, samples=samples, state=state)
    update = method.update(params, local)
    update.receive(_sent(config, infos, client, params, build, _server_state(folder, weights)))
    return update


def builder(config: RunConfig) -> Callable[[ClientInfo, str], Any]:
    """Return what builds a model for a client's description and an architecture's name ("" = the client's own)."""

    def build(info: ClientInfo, name: str) -> Any:
        shapes: Any = {key: getattr(info, key) for key in ("num_classes", "input_shape", "vocabulary")}
        return models.build(name or info.model, feature_dim=config.feature_dim, **shapes)

    return build


def _server_state(folder: Path, weights: str) -> Mapping[str, Any]:
    return newest(folder)[1] if weights == "last" else load_numpy(folder / "models" / weights / SERVER)


def _sent(
    config: RunConfig,
    infos: Mapping[str, ClientInfo],
    client: str,
    params: Any,
    build: Callable[[ClientInfo, str], Any],
    state: Mapping[str, Any],
) -> Downlink:
    """Return what a server in this state would send the client for evaluation."""
    strategy = METHODS[config.method].strategy(params, config.server, seed=config.seed, build=build)
    first = next(iter(infos.values()))
    example = build(first, "")
    described = {
        "model_layout": layout(arrays_of(example)),
        "head_layout": layout(arrays_of(example.head)),
    }
    strategy.roster.clients = {name: ClientInfo(**{**vars(info), **described}) for name, info in infos.items()}
    strategy.load_state(state)
    strategy.begin()
    return strategy.evaluate_downlink(strategy.clients[client])


def _kept(folder: Path, client: str, weights: str) -> dict[str, Any] | None:
    """Return what a client kept, None if it never trained."""
    if weights == "last":
        return ClientMemory(folder.parent, folder.name, client).load(before=sys.maxsize)
    kept = folder / "models" / weights
    if not kept.is_dir():
        raise SettingError(f"{kept} does not exist; set save-client-models=1 in the run to keep its best models")
    path = kept / f"{client}.safetensors"
    return dict(load_file(path)) if path.is_file() else None
