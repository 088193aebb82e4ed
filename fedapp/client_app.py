"""The ClientApp: a Flower context -> this node's data, model and settings. The rest is ``node``."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from flwr.app import Context

from fedapp import environment

environment.require()

from torch import nn  # noqa: E402

from fedapp import datasets, models, node, plugins  # noqa: E402
from fedapp.config import RunConfig, SettingError, lookup, parse  # noqa: E402
from fedapp.datasets import own  # noqa: E402
from fedapp.paths import existing  # noqa: E402
from fedapp.strategies import models_of  # noqa: E402


@lru_cache(maxsize=32)
def _config(items: tuple[tuple[str, Any], ...]) -> RunConfig:
    return parse(RunConfig, dict(items))


def load(context: Context) -> node.Setup:
    """Return the data and the model of the node that ``context`` describes.

    The run config says what everybody gets; ``partition-id`` and ``num-partitions`` of the node config say which part
    this node holds; ``model`` in the node config overrides the assignment. Where the data set is the user's own,
    ``data-path`` of the node config says where this node's data lie; it holds all of them.
    """
    config = _config(tuple(sorted(context.run_config.items())))
    plugins.load(config.plugins)
    alone = "data-path" in context.node_config
    if alone and not lookup(datasets.DATASETS, config.data.dataset, "data set").own:
        raise SettingError(
            f"data-path in the node-config is for data of the user's own, and dataset is {config.data.dataset}; set "
            f"dataset to one of {', '.join(own.SOURCES)}, or leave data-path out"
        )
    index, count = (0, 1) if alone and "partition-id" not in context.node_config else _position(context)
    data, announced = _alone(config, context) if alone else (_shared(config, index, count), "")
    group = group_of(config, data.input_shape, data.vocabulary)
    name = str(context.node_config.get("model") or models.assign(group, config.model_assignment, index, count))

    def build(architecture: str = name) -> nn.Module:
        shapes: Any = {key: getattr(data, key) for key in ("num_classes", "input_shape", "vocabulary")}
        return models.prepare(architecture, config, **shapes)

    return node.Setup(
        client=node.client_id(context),
        model=build,
        train=data.train,
        test=data.test,
        validation=data.validation,
        num_classes=data.num_classes,
        model_name=name,
        model_key=(
            *(name, data.num_classes, data.input_shape, data.vocabulary),
            *(config.feature_dim, config.init_from, config.freeze),
        ),
        companion=build,
        training=config.training,
        domain=data.domain or "",
        owner=data.owner or "",
        shared_init=config.shared_init,
        vocabulary=data.vocabulary,
        announced=announced,
    )


def group_of(config: RunConfig, input_shape: tuple[int, ...], vocabulary: int) -> str:
    """Return the models that clients take turns in: with ``models = auto`` what suits the method and the data.

    Args:
        config: The run's settings.
        input_shape: Shape of one sample.
        vocabulary: Number of token ids, 0 for what is no text.
    """
    group = models_of(config.method, config.models)
    if config.models != "auto":
        return group
    source = lookup(datasets.DATASETS, config.data.dataset, "data set")
    return models.suited(group, input_shape, vocabulary, source.models)


def _shared(config: RunConfig, index: int, count: int) -> datasets.NodeData:
    """Return the node's part of data that every node could read."""
    settings = replace(config.data, data_root=existing(config.data.data_root, "data-root"))
    return datasets.load_node(settings, index, count)


def _alone(config: RunConfig, context: Context) -> tuple[datasets.NodeData, str]:
    """Return the data that lie on this node only, all of them, and what must be agreed with the other nodes."""
    path = existing(str(context.node_config["data-path"]), "data-path")
    settings = replace(config.data, data_root=path, partition="iid")
    return datasets.load_node(settings, 0, 1), own.announce(datasets.load_pool(settings), settings.own)


def _position(context: Context) -> tuple[int, int]:
    try:
        index, count = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    except KeyError as missing:
        raise SettingError(
            f"node-config lacks {missing}: start the SuperNode with --node-config 'partition-id=0 num-partitions=2'"
        ) from None
    if not 0 <= index < count:
        raise SettingError(f"partition-id must be in [0, num-partitions), got {index} of {count}")
    return index, count


app = node.client_app(load)
