"""The open connections of a process: how many may be open, and which one ends when there are too many.

A connection that waits for its client, for the head of a request or for its body, can be ended for a new one. A client
that sends its request at once is therefore answered while others hold connections open.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Limits:
    """What clients may hold of a process.

    Attributes:
        most: open connections.
        per_address: open connections of one address; of IPv6, of one /64 network.
        head_s: seconds until a request's head has to be complete, from the start of the connection or the last answer.
        body_s: seconds from the head until the body has to be complete.
        unread_s: seconds that an answer may wait for a client that does not read.
    """

    most: int = 1000
    per_address: int = 500
    head_s: float = 10.0
    body_s: float = 30.0
    unread_s: float = 60.0


class Connection(Protocol):
    """An open connection."""

    def end(self) -> None:
        """Close it."""


class Connections:
    """The open connections of a process; they belong to one thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._networks: dict[Connection, str] = {}
        self._of: dict[str, dict[Connection, None]] = defaultdict(dict)
        # Dictionaries keep their order, so the first one is the one that has waited longest.
        self._waiting: dict[Connection, None] = {}
        self._waiting_of: dict[str, dict[Connection, None]] = defaultdict(dict)

    def add(self, connection: Connection, address: str) -> bool:
        """Count a connection; return False if it is one too many and none of the others can be ended for it."""
        network = network_of(address)
        if len(self._of[network]) >= self.limits.per_address:
            self._end_first(self._waiting_of[network])
        if len(self._networks) >= self.limits.most:
            self._end_first(self._waiting)
        has_room = len(self._of[network]) < self.limits.per_address and len(self._networks) < self.limits.most
        self._networks[connection] = network
        self._of[network][connection] = None
        return has_room

    def waits(self, connection: Connection) -> None:
        """Note that a connection waits for its client from now on."""
        self.answers(connection)
        if (network := self._networks.get(connection)) is not None:
            self._waiting[connection] = self._waiting_of[network][connection] = None

    def answers(self, connection: Connection) -> None:
        """Note that a connection no longer waits for its client."""
        if connection in self._waiting:
            del self._waiting[connection]
            _discard(self._waiting_of, self._networks[connection], connection)

    def remove(self, connection: Connection) -> None:
        """Count a connection no more."""
        self.answers(connection)
        if (network := self._networks.pop(connection, None)) is not None:
            _discard(self._of, network, connection)

    def _end_first(self, waiting: dict[Connection, None]) -> None:
        """End the connection that has waited longest, if one waits."""
        if (first := next(iter(waiting), None)) is not None:
            self.remove(first)
            first.end()


def _discard(groups: dict[str, dict[Connection, None]], network: str, connection: Connection) -> None:
    del groups[network][connection]
    if not groups[network]:
        del groups[network]


def network_of(address: str) -> str:
    """Return what counts as one address: a host of IPv6 has a whole /64 network of them."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a name, or nothing for a socket without an address
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False))
