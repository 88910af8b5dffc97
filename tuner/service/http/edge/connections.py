"""HTTP/1.1 with deadlines: Uvicorn's protocol, which by itself waits for a slow client for as long as it likes.

The open connections of a process are counted: how many may be open, and which one ends when there are too many. A
connection that waits for its client, for the head of a request or for its body, can be ended for a new one. A client
that sends its request at once is therefore answered while others hold connections open.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

import h11
import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tuner.service.http.edge.rates import HEALTH
from tuner.service.http.problems import Problem


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


TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
CLOSE_S = 2.0
"""Seconds that a client has to take the end of a connection."""

AGAIN_S = 5
"""Seconds after which a client without a free connection may try again."""


class DoorConfig(uvicorn.Config):
    """Uvicorn's configuration, with the connections of the process."""

    def __init__(self, app: ASGIApp, connections: Connections, **more: Any) -> None:
        super().__init__(app, http=DoorProtocol, ws="none", **more)
        self.connections = connections

    def get_loop_factory(self) -> type[asyncio.AbstractEventLoop]:
        """Return a loop whose TLS handshakes have a deadline; Uvicorn starts to count connections after them."""
        head_s = self.connections.limits.head_s

        class Loop(asyncio.SelectorEventLoop):
            async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
                if options.get("ssl") is not None:
                    options |= {"ssl_handshake_timeout": head_s, "ssl_shutdown_timeout": CLOSE_S}
                return await super().create_server(*arguments, **options)

        return Loop


class DoorProtocol(H11Protocol):
    """A connection that ends when its client is too slow, or when it is one too many.

    The deadline of a head runs from the start of the connection or from the last answer, so it bounds the time of an
    idle connection as well. An answer has no deadline: a stream of events is one.
    """

    def __init__(self, config: DoorConfig, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self._connections, self._limits = config.connections, config.connections.limits
        self._phase: tuple[bool, object] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and wait for a head."""
        super().connection_made(transport)
        if not self._connections.add(self, self.client[0] if self.client else ""):
            self.app = _only_health(self.app)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next head."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._deadline)
        _cancel(self._unread)
        self._connections.remove(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._limits.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._unread)

    def end(self) -> None:
        """Close the connection; a client that does not take its end is not waited for."""
        self.transport.close()
        _cancel(self._deadline)
        self._deadline = self.loop.call_later(CLOSE_S, self.transport.abort)

    def _watch(self) -> None:
        """Start the deadline of what the connection waits for now, unless it waits for that already."""
        is_body = self.conn.their_state is h11.SEND_BODY
        is_answering = self.cycle is not None and not self.cycle.response_complete
        phase = None if is_answering and not is_body else (is_body, self.cycle)
        if phase is not None and phase == self._phase:
            return
        self._phase = phase
        _cancel(self._deadline)
        if phase is None:
            self._connections.answers(self)
            return
        self._connections.waits(self)
        seconds = self._limits.body_s if is_body else self._limits.head_s
        self._deadline = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        """Tell a client that has sent a part of a request that it is too slow, and close."""
        is_part = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        is_answered = self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        if is_part and not is_answered and not self.transport.is_closing():
            self.transport.write(TOO_SLOW)
        self.end()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _only_health(app: ASGIApp) -> ASGIApp:
    """Return an application that answers health checks only, for a connection that is one too many."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        rule = "no more connections are free, here or for your address"
        headers = {"Retry-After": str(AGAIN_S)}
        full = Problem(503, f"{rule}; close some, or try again in {AGAIN_S} s", rule=rule, headers=headers)
        await (app if scope["path"] in HEALTH else full.response())(scope, receive, send_and_close)

    return answer
