"""What a node does with a message: say who it is, train, evaluate. Used by our ClientApp and by other people's.

A project of one's own writes one function ``load(context) -> Setup`` (its data and its model) and gets a complete
Flower ClientApp from :func:`client_app`; every method of fedapp then runs on it.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedapp import agreement, fitting, paths, tiers
from fedapp.client_update import ClientUpdate, DivergedError, LabelledSamples, Local, arrays_of
from fedapp.config import SettingError, TrainingSettings, lookup, parse, split_pairs
from fedapp.memory import ClientMemory, digest
from fedapp.payload import ClientInfo, Instruction, Uplink, layout
from fedapp.seeds import derive, seeded
from fedapp.strategies import METHODS
from fedapp.strategies.held_out import ADAPTED, is_newcomer
from fedapp.wire import pack_info, pack_uplink, unpack_instruction

MODEL, STATE = "model/", "state/"
_CACHE_SIZE = 16
_skeletons: dict[Hashable, Any] = {}
_resident: dict[Hashable, tuple[str, int]] = {}
"""The memory file, and its time, whose weights a skeleton holds untouched since they were saved from it."""


@dataclass(frozen=True)
class Setup:
    """What a node brings: who it is, its data and its model.

    Attributes:
        client: Stable id; letters, digits, '.', '_' and '-'.
        model: Builds the model, an ``nn.Module`` with ``features(x) -> (B, D)`` and ``head(z) -> (B, C)``.
        train: Training samples, with tensors ``x`` (N, ...) and ``y`` (N,).
        test: Test samples, likewise; may be empty.
        validation: Samples set aside from training, likewise; evaluated beside the test samples if given.
        num_classes: Classes of the task, C: of all clients together, not only of this one.
        model_name: Name of the architecture.
        model_key: If not None, the built model is kept in this process under this key and reused for other clients
            with the same key, their weights loaded into it.
        companion: Builds an auxiliary model by name, for methods that need one.
        training: The common training settings.
        domain: Name of the domain, "" if there is none.
        owner: The name that the data give this client, "" if none; only a simulation tells the server.
        shared_init: True if clients of one architecture start from the same weights.
        memory: Folder for what this node keeps between rounds; ``~/.fedapp`` if None.
        tier: The simulated device; by default the machine itself.
        keep_ratio: Share of a model's channels that this node can hold (methods with submodels), in (0, 1]; 0 leaves
            that to the server.
        vocabulary: Number of token ids if samples are texts (int64, 0 = padding), else 0.
        announced: Names that all clients must agree on, as :func:`fedapp.agreement.announce` writes them; once they
            are agreed, ``load`` finds them in the run config of its context.
    """

    client: str
    model: Callable[[], nn.Module]
    train: LabelledSamples
    test: LabelledSamples
    num_classes: int
    validation: LabelledSamples | None = None
    model_name: str = "model"
    model_key: Hashable = None
    companion: Callable[[str], nn.Module] | None = None
    training: TrainingSettings = field(default_factory=TrainingSettings)
    domain: str = ""
    owner: str = ""
    shared_init: bool = False
    memory: Path | None = None
    tier: tiers.Tier = field(default_factory=tiers.Tier)
    keep_ratio: float = 0.0
    vocabulary: int = 0
    announced: str = ""


def client_app(load: Callable[[Context], Setup]) -> ClientApp:
    """Return a Flower ClientApp on which every method of fedapp runs.

    Args:
        load: Returns the node's data and model for a Flower context; called for every message, so let it cache.
    """
    app = ClientApp()

    def ready(message: Message, context: Context) -> tuple[Instruction, Setup]:
        instruction = unpack_instruction(message.content)
        if simulated(context):
            paths.set_base(instruction.base)
        agreed = agreement.settled(instruction.agreed)
        setup = load(replace(context, run_config={**context.run_config, **agreed}) if agreed else context)
        setup = replace(
            setup,
            tier=tiers.of_node(context.run_config, context.node_config) or setup.tier,
            keep_ratio=keep_ratio_of(context.node_config, setup.keep_ratio),
        )
        return instruction, _placed(setup, instruction, context)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        try:
            instruction, setup = ready(message, context)
            info = introduce(instruction, setup)
            if simulated(context):
                counts = torch.bincount(setup.train.y, minlength=setup.num_classes)
                info = replace(info, label_counts=tuple(counts.tolist()), owner=setup.owner)
        except Exception as error:  # the server reports it under this client's name
            info = ClientInfo(client_id(context), error=f"{type(error).__name__}: {error}")
        announced = int(context.node_config.get("num-partitions", 0))
        return Message(pack_info(replace(info, num_clients=announced)), reply_to=message)

    @app.train()
    def train_message(message: Message, context: Context) -> Message:
        started = time.perf_counter()
        instruction, setup = ready(message, context)
        uplink = train(instruction, setup, load_seconds=time.perf_counter() - started)
        return Message(pack_uplink(uplink), reply_to=message)

    @app.evaluate()
    def evaluate_message(message: Message, context: Context) -> Message:
        return Message(pack_uplink(evaluate(*ready(message, context))), reply_to=message)

    return app


def client_id(context: Context) -> str:
    """Return the stable id of the node of a context: node-config "client-id", else "partition-id".

    Raises:
        ValueError: If the node has neither: Flower's node id changes from run to run and cannot serve.
    """
    for key in ("client-id", "partition-id"):
        if key in context.node_config:
            return str(context.node_config[key])
    raise ValueError(
        "this node has no stable name; start it with --node-config 'client-id=\"my-device\"' (or partition-id=0)"
    )


def keep_ratio_of(node_config: Mapping[str, Any], otherwise: float) -> float:
    """Return the node's "keep-ratio", or ``otherwise`` if its node-config does not name one.

    Raises:
        SettingError: If it is not a number in (0, 1].

    Example:
        >>> keep_ratio_of({"keep-ratio": "0.4"}, 0.0)
        0.4
        >>> keep_ratio_of({"keep-ratio": 1.5}, 0.0)
        Traceback (most recent call last):
        fedapp.settings.SettingError: keep-ratio must be in (0, 1], got 1.5; set it in this node's node-config
    """
    given = node_config.get("keep-ratio", otherwise)
    try:
        ratio = float(given)
    except (TypeError, ValueError):
        ratio = math.nan
    if not 0 <= ratio <= 1 or (ratio == 0 and "keep-ratio" in node_config):
        raise SettingError(f"keep-ratio must be in (0, 1], got {given}; set it in this node's node-config")
    return ratio


def train(instruction: Instruction, setup: Setup, load_seconds: float = 0.0) -> Uplink:
    """Train one round, keep the result in the client's memory, and return the uplink."""
    started, processor = time.perf_counter(), time.process_time()
    setup.tier.drop(instruction.seed, instruction.round, setup.client)
    with _random_streams(instruction, setup, "train"):
        update, memory = _update(instruction, setup, before=instruction.round)
        known = memory.rounds()
        loaded = time.perf_counter()
        uplink = update.train(instruction.downlink, setup.train, lambda: _fits(update, setup))
        trained = time.perf_counter()
        memory.refuse_overtaken(known, instruction.round)
        memory.save(instruction.round, _kept(update))
        if _skeletons.get(setup.model_key) is update.model and not update.local.state:
            _resident[setup.model_key] = _stamp(memory.path(before=instruction.round + 1))
    seconds = {
        "load-seconds": load_seconds + loaded - started,
        "train-seconds": trained - loaded,
        "save-seconds": time.perf_counter() - trained,
        "cpu-seconds": time.process_time() - processor,
    }
    return replace(uplink, metrics={**uplink.metrics, **seconds, **setup.tier.wait(seconds["train-seconds"])})


def evaluate(instruction: Instruction, setup: Setup) -> Uplink:
    """Evaluate the client's model, as of this round, on its test samples."""
    started, processor = time.perf_counter(), time.process_time()
    with _random_streams(instruction, setup, "evaluate"):
        update, _ = _update(instruction, setup, before=instruction.round + 1)
        held_out: dict[str, float] = {}
        if setup.validation is not None and len(setup.validation.y):
            metrics = update.evaluate(instruction.downlink, setup.validation).metrics
            held_out = {f"validation-{name}": value for name, value in metrics.items()}
            update.metrics = {}
        uplink = update.evaluate(instruction.downlink, setup.test)
        uplink = replace(uplink, metrics={**uplink.metrics, **held_out})
    seconds = {"evaluate-seconds": time.perf_counter() - started, "cpu-seconds": time.process_time() - processor}
    evaluated = time.perf_counter()
    adapted = _adapted(instruction, setup) if update.adapts and is_newcomer(instruction.downlink) else {}
    if adapted:
        seconds["newcomer-seconds"] = time.perf_counter() - evaluated
    return replace(uplink, metrics={**uplink.metrics, **adapted, **seconds})


def _adapted(instruction: Instruction, setup: Setup) -> dict[str, float]:
    """Train as a client does that joins in this round, from its first weights, and measure that; nothing is kept."""
    epochs = setup.training.newcomer_epochs
    if not epochs or not len(setup.test.y):
        return {}
    setup = replace(setup, training=replace(setup.training, local_epochs=epochs))
    with _random_streams(instruction, setup, "train"):
        update, _ = _update(instruction, setup, before=0)
        try:
            update.train(instruction.downlink, setup.train, lambda: _fits(update, setup))
        except (DivergedError, tiers.MemoryCapError) as error:  # the federation goes on, whatever becomes of a guest
            logging.getLogger("flwr").warning(
                "client %s is not evaluated as a newcomer that trains: %s", setup.client, error
            )
            return {}
        found = update.measure(update.model, setup.test)
    return {f"{ADAPTED}{name}": value for name, value in found.items()}


def _fits(update: ClientUpdate, setup: Setup) -> None:
    """Refuse training that the simulated device has no memory for."""
    key = setup.model_key if update.own_shapes else None
    setup.tier.fit(update, setup.train, setup.model_name, key)


def introduce(instruction: Instruction, setup: Setup) -> ClientInfo:
    """Say who this client is: sizes, layouts of its model and head, and its model's digest where asked for."""
    fitting.check_tokens(setup)
    with _random_streams(instruction, setup, "introduce"):
        update, memory = _update(instruction, setup, before=instruction.round + 1)
        model = update.model
        model.eval()
        asked = bool(instruction.downlink.settings.get("digest"))
        kept = memory.load(before=instruction.round + 1) if asked and not update.own_shapes else None
        features, scores = fitting.try_out(model, setup, update.local.device)
    fitting.check_fit(setup, features, scores)
    return ClientInfo(
        client=setup.client,
        model=setup.model_name,
        num_classes=setup.num_classes,
        feature_dim=int(features.shape[1]),
        input_shape=tuple(setup.train.x.shape[1:]),
        num_examples=len(setup.train.y),
        num_test=len(setup.test.y),
        domain=setup.domain,
        vocabulary=setup.vocabulary,
        announced=setup.announced,
        tier=setup.tier.name,
        keep_ratio=setup.keep_ratio,
        model_layout=layout(arrays_of(model)),
        head_layout=layout(arrays_of(model.head)) if isinstance(model.head, nn.Module) else "",
        digest=digest(part_of(kept or {}, MODEL) or model.state_dict()) if asked else "",
    )


def _update(instruction: Instruction, setup: Setup, before: int) -> tuple[ClientUpdate, ClientMemory]:
    """Build the client's half of the method on the model as it was kept before round ``before``; 0 = on a new one."""
    torch.set_num_threads(setup.training.torch_threads)
    method = lookup(METHODS, instruction.method, "method")
    params = parse(method.strategy.params_type, split_pairs(instruction.params), what=f"{method.name} parameter")
    memory = ClientMemory(setup.memory or Path.home() / ".fedapp", instruction.run, setup.client)
    resident = _resident.pop(setup.model_key, None)  # whatever comes may change the weights
    if resident is not None and resident == _stamp(memory.path(before=before)):
        kept: dict[str, Tensor] | None = None
        model = _skeletons[setup.model_key]
        model.zero_grad(set_to_none=True)
    else:
        kept = memory.load(before=before) if before else None
        model = _model(setup, instruction.seed, kept if method.update.own_shapes or kept is None else {})
    local = Local(
        client=setup.client,
        model=model,
        num_classes=setup.num_classes,
        training=setup.training,
        round=instruction.round,
        num_rounds=instruction.num_rounds,
        seed=instruction.seed,
        build=setup.companion,
        samples=lambda: setup.train,
        state=part_of(kept or {}, STATE),
    )
    return method.update(params, local), memory


def _stamp(path: Path | None) -> tuple[str, int]:
    return (str(path), path.stat().st_mtime_ns) if path else ("", 0)


def _model(setup: Setup, seed: int, kept: dict[str, Tensor] | None) -> Any:
    """Return the client's model with the weights kept, or with the client's own first weights.

    Nothing kept that could be loaded (an empty mapping) means that whatever weights stand in the model do.
    """
    model = _skeletons.get(setup.model_key) if kept is not None and setup.model_key is not None else None
    if model is None:
        # the round's own stream must not depend on whether a model was built
        with seeded(derive(seed, "init", setup.model_name if setup.shared_init else setup.client)):
            model = setup.model()
        if setup.model_key is not None:
            while len(_skeletons) >= _CACHE_SIZE and setup.model_key not in _skeletons:
                _skeletons.pop(next(iter(_skeletons)))
            _skeletons[setup.model_key] = model
    if kept:
        _load(model, part_of(kept, MODEL), setup)
        model.zero_grad(set_to_none=True)
    return model


def _load(model: Any, weights: dict[str, Tensor], setup: Setup) -> None:
    """Load what the client kept.

    Raises:
        ValueError: If it is no longer the same model.
    """
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        why = str(error).strip().splitlines()[-1].strip()
        raise ValueError(
            f"what client {setup.client!r} kept does not fit model {setup.model_name!r} as it is now ({why}); its data "
            "or its model have changed since: restore them, or start a new run"
        ) from error


def part_of(kept: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the tensors of one part of a client's memory, ``MODEL`` or ``STATE``, by their own names."""
    return {name.removeprefix(part): tensor for name, tensor in kept.items() if name.startswith(part)}


def _kept(update: ClientUpdate) -> dict[str, Tensor]:
    model = {MODEL + name: tensor for name, tensor in update.model.state_dict().items()}
    return {**model, **{STATE + name: tensor for name, tensor in update.local.state.items()}}


@contextmanager
def _random_streams(instruction: Instruction, setup: Setup, purpose: str) -> Iterator[None]:
    """Seed torch for one message from (seed, round, client, purpose), and give the process its stream back."""
    with seeded(derive(instruction.seed, instruction.round, setup.client, purpose)):
        yield


def _placed(setup: Setup, instruction: Instruction, context: Context) -> Setup:
    """Decide where the client keeps its memory: node-config, the setup, the simulation's folder, the home folder."""
    if "state-dir" in context.node_config:
        return replace(setup, memory=Path(str(context.node_config["state-dir"])))
    if setup.memory is None and instruction.memory and simulated(context):
        return replace(setup, memory=Path(instruction.memory))
    return setup


def simulated(context: Context) -> bool:
    """Return whether this client runs in a simulation on the server's own machine."""
    if context.node_config.get("local-engine"):
        return True
    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized())
