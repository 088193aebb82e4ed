"""Clients that take no part in training, and what a newcomer among them reaches: leave a domain, or clients, out.

They keep their part of the data, so that a run without them shares the data out as a run with them does. They are
evaluated in every evaluated round; their results stand apart from all others. Each is evaluated as it comes, and once
more after it has trained a model of its own from the start, as a client would that joins; nothing of that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedapp.config import ServerSettings, SettingError, closest, listed_names
from fedapp.payload import ClientInfo, Downlink, Uplink, order
from fedapp.strategies.records import HEADLINE, Failure, by_domain

LEFT_OUT, ADAPTED = "left-out", "adapted-"
"""A named evaluation, and what the metrics of a newcomer that has trained begin with."""
NEWCOMER = "newcomer"
"""The scalar of a downlink that tells a client that it is evaluated as one that never took part."""
NEWCOMER_METRICS: Mapping[str, str] = {
    LEFT_OUT: HEADLINE,
    "left-out-prototype": "prototype-accuracy",
    "left-out-adapted": f"{ADAPTED}{HEADLINE}",
    "left-out-adapted-prototype": f"{ADAPTED}prototype-accuracy",
}
"""Named evaluation -> metric of a newcomer that makes it, where the method does not say otherwise."""


class HeldOut:
    """The clients that the settings ``leave-domain`` and ``leave-clients`` name.

    Args:
        settings: The server's settings.

    Attributes:
        clients: Those of them that are there, in the order of the ids.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.domains = _names(settings.leave_domain, "leave-domain")
        self.ids = _names(settings.leave_clients, "leave-clients")
        self._owners: set[str] = set()
        self.clients: dict[str, ClientInfo] = {}

    def claims(self, client: ClientInfo) -> bool:
        """Return whether a client takes no part in training."""
        named = client.owner in self._owners or client.client in {*self.ids} - self._owners
        return named or client.client in self.clients or client.domain in self.domains

    def check(self, clients: Mapping[str, ClientInfo], failures: Sequence[Failure] = ()) -> None:
        """Check the settings against the clients that came, and those that could not start, if they have a name.

        What ``leave-clients`` lists is a client's name in the data, if one has it, else a client's id.

        Raises:
            SettingError: If they name a domain or a client that is not there, or leave nobody in.
        """
        known = dict.fromkeys(sorted({info.domain for info in clients.values()} - {""}))
        for domain in self.domains:
            if not known:
                raise SettingError(f"leave-domain = {domain!r}: the clients have no domains; use leave-clients")
            _check_known("leave-domain", domain, known, "no client holds this domain")
        self._owners = {info.owner for info in clients.values()} & {*self.ids}
        known_as = dict.fromkeys([*clients, *filter(None, (info.owner for info in clients.values()))])
        failed = {failure.client for failure in failures}
        for client in (client for client in self.ids if client not in failed):
            _check_known("leave-clients", client, known_as, "there is no such client")
        if all(self.claims(info) for info in clients.values()):
            raise SettingError(
                f"leave-domain = {', '.join(self.domains)!r} and leave-clients = {', '.join(self.ids)!r} leave out all "
                f"of the clients {', '.join(clients)} (domains: {', '.join(known) or 'none'}); leave somebody in"
            )

    def forget(self, client: str) -> None:
        """Go on without a client."""
        self.clients.pop(client, None)

    def take(self, clients: dict[str, ClientInfo]) -> None:
        """Move the clients that take no part from ``clients`` to here."""
        for client in [client for client, info in clients.items() if self.claims(info)]:
            self.clients[client] = clients.pop(client)
        self.clients = dict(sorted(self.clients.items(), key=lambda item: order(item[0])))

    def parted(self, uplinks: Sequence[Uplink]) -> tuple[list[Uplink], list[Uplink]]:
        """Return the uplinks of the clients that take part, and those of the others."""
        inside = [uplink for uplink in uplinks if uplink.client not in self.clients]
        return inside, [uplink for uplink in uplinks if uplink.client in self.clients]

    def evaluations(self, uplinks: Sequence[Uplink], metrics: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """Return accuracies by domain of the held-out clients.

        Args:
            uplinks: Their evaluations of this round.
            metrics: Named evaluation -> metric that makes it.
        """
        found = {name: by_domain(uplinks, metric, self.clients) for name, metric in metrics.items()}
        return {name: accuracies for name, accuracies in found.items() if accuracies}

    def in_words(self) -> str:
        """Name the clients, with what the data call them and their domains; "" if nobody is held out."""
        about = {client: ", ".join(filter(None, (info.owner, info.domain))) for client, info in self.clients.items()}
        return ", ".join(f"{client} ({words})" if words else client for client, words in about.items())


def as_newcomer(downlink: Downlink) -> Downlink:
    """Return a downlink that tells the client that it is evaluated as one that never took part."""
    return replace(downlink, settings={**downlink.settings, NEWCOMER: True})


def is_newcomer(downlink: Downlink) -> bool:
    """Return whether the client is evaluated as one that never took part."""
    return bool(downlink.settings.get(NEWCOMER))


def _names(text: str, key: str) -> list[str]:
    return list(dict.fromkeys(listed_names(text, key)))


def _check_known(key: str, name: str, known: Mapping[str, object], fault: str) -> None:
    if name not in known:
        commas = any("," in one for one in known)
        listed = '; a name with a comma goes into a JSON list, as ["Smith, John"]' if commas else ""
        late = "(for a node that comes late, wait with min-nodes)"
        raise SettingError(f"{key} = {name!r}: {fault}; {closest(name, known)} {late}{listed}")
