"""The server's half of every method: a Flower ``Strategy`` whose subclasses say only what they send and how they join.

A method overrides ``begin``, ``downlink``, ``uplink_specs``, ``aggregate`` and ``state``/``load_state``. Who takes
part, thresholds, deadlines, checks, bytes and records are here, once. The classes also answer to Flower's own
``configure_*``/``aggregate_*``, so they run under any code that drives a Flower strategy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapp.config import ServerSettings, SettingError, flatten, join_pairs
from fedapp.payload import Arrays, ArraySpec, ClientInfo, Downlink, Instruction, Uplink
from fedapp.strategies.exchange import EVALUATE, TRAIN, Exchange, check_accuracy
from fedapp.strategies.held_out import NEWCOMER_METRICS, HeldOut, as_newcomer
from fedapp.strategies.method import Method, NoParams
from fedapp.strategies.records import Failure, Observer, RoundRecord, in_words, metric_record, replies_of
from fedapp.strategies.roster import Roster, misfits

__all__ = ["Method", "NoParams", "PayloadStrategy", "require_model"]


class PayloadStrategy(Strategy):
    """Base of all methods; by itself it coordinates clients that exchange nothing.

    Args:
        params: The method's parameters; its defaults if None.
        settings: Participation, thresholds and deadlines.
        run: Name of the run, which keys what clients keep; drawn at random if empty.
        seed: Seed of the run.
        base: The user's directory, for clients of a simulation that are given relative paths.
        memory: Folder where clients of a simulation keep their memory; devices choose their own.
        build: Builds a model on the server from a client's description and an architecture's name ("" = the
            client's own); needed by methods with a server model unless ``initial_arrays`` are given to `start`.
        observers: Called at the start, after every round and at the end.
        held: Returns what a simulated client holds (``train``, ``test``), for methods that evaluate models of their
            own on the server; None on devices, whose data the server never sees.
    """

    name: ClassVar[str] = ""
    params_type: ClassVar[type[Any]] = NoParams
    requires: ClassVar[tuple[str, ...]] = ("equal-classes",)
    newcomer_metrics: ClassVar[Mapping[str, str]] = NEWCOMER_METRICS

    def __init__(
        self,
        params: Any = None,
        settings: ServerSettings | None = None,
        *,
        run: str = "",
        seed: int = 0,
        base: str = "",
        memory: str = "",
        build: Callable[[ClientInfo, str], Any] | None = None,
        observers: Sequence[Observer] = (),
        held: Callable[[ClientInfo], Any] | None = None,
    ) -> None:
        self.params = self.params_type() if params is None else params
        self.settings = settings or ServerSettings()
        self.run = run or f"{self.name}-{uuid4().hex[:12]}"
        self.seed = seed
        self.base = base
        self.memory = memory
        self.build = build
        self.observers = list(observers)
        self.held = held
        self.roster = Roster()
        self.held_out = HeldOut(self.settings)
        self.num_rounds = 0
        self.completed = 0
        self.record = RoundRecord(0)
        self._began = False
        self._exchange = Exchange(TRAIN, self.record, self.settings.round_timeout)

    # ---- what a method changes -------------------------------------------------------------------

    def begin(self) -> None:
        """Allocate the server's state; the clients are known now."""

    def refuse(self, client: ClientInfo) -> str:
        """Return why a client that came late cannot take part; "" if it can."""
        return ""

    def downlink(self, client: ClientInfo) -> Downlink:
        """Return what ``client`` is sent before it trains."""
        return Downlink()

    def evaluate_downlink(self, client: ClientInfo) -> Downlink:
        """Return what ``client`` is sent before it is evaluated; by default what it would train on."""
        return self.downlink(client)

    def newcomer_downlink(self, client: ClientInfo) -> Downlink:
        """Return what a ``client`` that takes no part is evaluated on, as it comes and after it trained on that."""
        return self.downlink(client)

    def uplink_specs(self, client: ClientInfo) -> Mapping[str, ArraySpec]:
        """Return what the arrays that ``client`` uploads must look like."""
        return {}

    def check_uplink(self, uplink: Uplink) -> None:
        """Check what a specification cannot say; raise ``ValueError`` to reject the uplink."""

    def aggregate(self, uplinks: Sequence[Uplink]) -> None:
        """Join checked uplinks, in the order of the client ids, into the server's state."""

    def analyse(self, uplinks: Sequence[Uplink]) -> tuple[dict[str, Any], Arrays]:
        """Return numbers and arrays worth reporting of checked uplinks, before they are joined."""
        return {}, {}

    def describe(self) -> dict[str, Any]:
        """Return numbers worth reporting of the server's state, after uplinks were joined into it."""
        return {}

    def evaluations(self, uplinks: Sequence[Uplink]) -> dict[str, dict[str, float]]:
        """Return accuracies by domain of models that are nobody's own, by their names.

        Args:
            uplinks: The clients' evaluations of this round.
        """
        return {}

    def state(self) -> Arrays:
        """Return the server's state as named arrays."""
        return {}

    def load_state(self, arrays: Arrays) -> None:
        """Take over what :meth:`state` returned."""

    # ---- the loop --------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the method: Flower's own signature, with every argument but ``grid`` optional.

        Args:
            grid: Flower's grid.
            initial_arrays: Server state to start from, e.g. a model's ``state_dict``.
            num_rounds: Rounds; 0 only evaluates what is there.
            timeout: Seconds to wait in each phase; the setting ``round-timeout`` if None.
            train_config: Scalars added to every downlink before training.
            evaluate_config: Scalars added to every downlink before evaluation.
            evaluate_fn: Called with the round (from 0) and the server's state after every round.

        Raises:
            NodesMissingError: If too few nodes come, or none can take part.
            SettingError: If the clients do not fit the method.
            WorkerLostError: If a worker process of the simulation dies.
        """
        if self._began:
            raise RuntimeError(f"start was called before on this {self.name} strategy; make a new one for another run")
        if num_rounds < 0:
            raise SettingError(f"num-server-rounds must be at least 0, got {num_rounds}")
        self.num_rounds = num_rounds
        if timeout is not None:
            self.settings = replace(self.settings, round_timeout=timeout)
        self._take(initial_arrays)
        self._meet(grid)
        self.summary()
        for observer in self.observers:
            observer.on_start(self)
        result = Result()
        configs = (train_config or ConfigRecord(), evaluate_config or ConfigRecord())
        for number in range(self.completed, num_rounds + 1):
            stop = ""
            if number > self.completed or num_rounds == 0:
                stop = self._round(grid, number, configs, result)
            if evaluate_fn and (metrics := evaluate_fn(number, self._state_record())) is not None:
                result.evaluate_metrics_serverapp[number] = metrics
            if stop:
                log(INFO, "stopped after round %s: %s", number, stop)
                break
        result.arrays = self._state_record()
        digests = self.roster.digests(grid, self._hello(digest=True), self.settings.round_timeout)
        for observer in self.observers:
            observer.on_end(self, digests)
        return result

    def continue_after(self, completed: int, arrays: Arrays) -> None:
        """Continue a run: take over the server's state as it was after round ``completed``."""
        self.completed = completed
        self.load_state(arrays)

    def _round(self, grid: Grid, number: int, configs: tuple[ConfigRecord, ConfigRecord], result: Result) -> str:
        self.record = RoundRecord(number)
        arrays = ArrayRecord()
        timeout = self.settings.round_timeout
        clock = time.perf_counter()
        if number:
            replies = list(
                grid.send_and_receive(self.configure_train(number, arrays, configs[0], grid), timeout=timeout)
            )
            clock = self._lap("train", clock)
            if self._join(number, replies):
                result.train_metrics_clientapp[number] = metric_record(self.record.trained)
            clock = self._lap("aggregate", clock + self.record.seconds.get("analyse", 0.0))
        if messages := self.configure_evaluate(number, arrays, configs[1], grid):
            metrics = self.aggregate_evaluate(number, list(grid.send_and_receive(messages, timeout=timeout)))
            self._lap("evaluate", clock)
            if metrics is not None:
                result.evaluate_metrics_clientapp[number] = metrics
        log(INFO, "%s", in_words(self.record, self.num_rounds))
        reasons = [observer.on_round(self, self.record) for observer in self.observers]
        return "; ".join(reason for reason in reasons if reason)

    def _lap(self, phase: str, since: float) -> float:
        now = time.perf_counter()
        self.record.seconds[phase] = now - since
        return now

    # ---- Flower's own interface ------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one message for each client that trains this round; ``arrays`` are the state to begin with."""
        if not self._began:
            self._take(arrays)
        self._meet(grid)
        if self.record.round != server_round:
            self.record = RoundRecord(server_round)
        chosen = self.roster.sample(self.settings.fraction_train, self.seed, server_round, TRAIN)
        return self._messages([self.clients[client] for client in chosen], server_round, TRAIN, config)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return one message for each client that is evaluated this round; none if no evaluation is due."""
        self._meet(grid)
        due = server_round % self.settings.evaluate_every == 0 or server_round == self.num_rounds
        fraction = self.settings.fraction_evaluate if due else 0.0
        infos = [self.clients[client] for client in self.roster.sample(fraction, self.seed, server_round, EVALUATE)]
        newcomers = list(self.held_out.clients.values()) if infos else []
        return self._messages(infos + newcomers, server_round, EVALUATE, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and join the usable ones; too few change nothing."""
        if not self._join(server_round, replies):
            return None, None
        return self._state_record(), metric_record(self.record.trained)

    def _join(self, server_round: int, replies: Iterable[Message]) -> bool:
        uplinks = self._exchange.collect(
            replies, lambda client: self.uplink_specs(self.clients[client]), self.check_uplink
        )
        self.record.trained = replies_of(uplinks)
        self.record.aggregated = len(uplinks) >= self.settings.min_replies
        if self.record.aggregated:
            if self.observers:
                clock = time.perf_counter()
                self.record.analysis, artifacts = self.analyse(uplinks)
                self.record.artifacts = dict(artifacts)
                self._lap("analyse", clock)
            self.aggregate(uplinks)
            if self.observers:
                self.record.analysis = {**self.record.analysis, **self.describe()}
        else:
            text = "round %s: %s usable replies, min-replies is %s: nothing changes"
            log(WARNING, text, server_round, len(uplinks), self.settings.min_replies)
        return self.record.aggregated

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Check the replies and average their metrics, weighted by samples."""
        uplinks, newcomers = self.held_out.parted(self._exchange.collect(replies, lambda client: {}, check_accuracy))
        self.record.evaluated, self.record.left_out = replies_of(uplinks), replies_of(newcomers)
        left_out = self.held_out.evaluations(newcomers, self.newcomer_metrics)
        self.record.evaluations = {**self.evaluations(uplinks), **left_out}
        return metric_record(self.record.evaluated) if uplinks else None

    def summary(self) -> None:
        """Log what runs."""
        log(INFO, "%s: %s clients, %s rounds, run %s", self.name, len(self.clients), self.num_rounds, self.run)
        if text := join_pairs(flatten(self.params)):
            log(INFO, "\tparameters: %s", text)
        holders: dict[str, list[str]] = {}
        for client, info in self.clients.items():
            holders.setdefault(info.model, []).append(client)
        for model, who in holders.items():
            log(INFO, "\t%s: clients %s", model, ", ".join(who[:12] + ["..."] * (len(who) > 12)))
        if self.held_out.clients:
            log(INFO, "\tleft out of training: clients %s", self.held_out.in_words())

    # ---- parts -----------------------------------------------------------------------------------

    @property
    def clients(self) -> dict[str, ClientInfo]:
        """Every client that can take part, in the order of the ids."""
        return self.roster.clients

    @property
    def first_client(self) -> ClientInfo:
        """The client whose id comes first."""
        return next(iter(self.clients.values()))

    def _hello(self, *, digest: bool = False) -> Instruction:
        params, downlink = join_pairs(flatten(self.params)), Downlink(settings={"digest": digest})
        about = (self.name, params, self.run, self.num_rounds, self.num_rounds, self.seed, self.base, self.memory)
        return Instruction(*about, downlink, self.roster.agreed)

    def _take(self, initial_arrays: ArrayRecord | None) -> None:
        if not initial_arrays:
            return
        try:
            self.load_state({name: array.numpy() for name, array in initial_arrays.items()})
        except KeyError as missing:
            raise SettingError(
                f"initial_arrays lack {missing}, which is part of the state of {self.name}; pass what an earlier run "
                "returned as result.arrays, or an empty ArrayRecord()"
            ) from None

    def _meet(self, grid: Grid) -> None:
        if self._began:
            before = {**self.clients, **self.held_out.clients}
            self.roster.refresh(grid, self._hello(), self.settings.node_timeout)
            self._leave_out_misfits(before)
            self.held_out.take(self.clients)
            return
        self.roster.gather(grid, self._hello(), self.settings)
        if misfit := misfits(self.name, self.requires, self.clients):
            raise SettingError(misfit)
        self.held_out.check(self.clients, self.roster.failures)
        self.held_out.take(self.clients)
        trains = len(self.roster.sample(self.settings.fraction_train, self.seed, 1, TRAIN))
        if self.settings.min_replies > trains:
            raise SettingError(
                f"min-replies = {self.settings.min_replies} can never be reached: {trains} of {len(self.clients)} "
                "clients train in a round; lower it, or raise fraction-train"
            )
        self._began = True
        self.begin()

    def _leave_out_misfits(self, before: Mapping[str, ClientInfo]) -> None:
        """Leave out clients that came late and do not fit; the run goes on without them."""
        for client, info in list(self.clients.items()):
            if before.get(client) == info:
                continue
            takes_part = not self.held_out.claims(info)
            misfit = misfits(self.name, self.requires, {**before, client: info})
            if reason := misfit or (self.refuse(info) if takes_part else ""):
                self.roster.leave_out(client, Failure(client, "start", "SettingError", reason))
                self.held_out.forget(client)

    def _evaluation_downlink(self, client: ClientInfo) -> Downlink:
        takes_part = client.client not in self.held_out.clients
        return self.evaluate_downlink(client) if takes_part else as_newcomer(self.newcomer_downlink(client))

    def _messages(
        self, infos: Iterable[ClientInfo], server_round: int, phase: str, config: ConfigRecord
    ) -> list[Message]:
        make = self.downlink if phase == TRAIN else self._evaluation_downlink
        # Flower's own loop does not say how many rounds there will be; schedules need at least the current one.
        about = replace(self._hello(), round=server_round, num_rounds=max(self.num_rounds, server_round))
        self._exchange = Exchange(phase, self.record, self.settings.round_timeout)
        for info in infos:
            downlink = make(info)
            if config:
                added: dict[str, Any] = dict(config.items())
                downlink = replace(downlink, settings={**downlink.settings, **added})
            self._exchange.send(info, self.roster.nodes[info.client], replace(about, downlink=downlink))
        return list(self._exchange.sent.values())

    def _state_record(self) -> ArrayRecord:
        return ArrayRecord({name: Array(np.asarray(array)) for name, array in self.state().items()})


def require_model(strategy: PayloadStrategy, name: str) -> Any:
    """Build a server model for ``strategy``, like the first client's or by architecture name.

    Raises:
        SettingError: If the strategy was given neither initial arrays nor a way to build models.
    """
    if strategy.build is None:
        raise SettingError(
            f"{strategy.name} needs a model on the server: pass start(initial_arrays=ArrayRecord(model.state_dict())), "
            "or give the strategy a `build` function"
        )
    return strategy.build(strategy.first_client, name)
