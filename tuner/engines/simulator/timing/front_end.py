"""The API servers: they parse and tokenise requests, and turn tokens into text and send it.

An API server is one event loop in which all requests in work take turns. This is processor sharing (Kleinrock,
"Time-shared systems", JACM 1967): of n requests in work, each gets 1/n of the time. A burst of requests therefore
reaches the engine late and almost at once. Answers are sent at the same time. Several API servers share all work
evenly.

    work of a request = request_us + prompt_token_us × prompt tokens (+ connect_us for a new connection)
    work of a step's tokens = tokens × (token_us + chunk_us / stream_interval)

Both are divided by the host's speed and the number of API servers. With data parallelism, each copy of the model has
its share of them.
"""

from __future__ import annotations

import heapq
import math

from tuner.engines.simulator.clients.client import SimulatedRequest
from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.parameters import Parameters


class FrontEnd:
    """The queue of requests in work, and the time at which clients receive tokens.

    Internally, time is measured in attained service: the seconds of work that each request in work has had since the
    start. A request leaves when the attained service reaches the value at its arrival plus its work.

    Attributes:
        next_s: when the next request reaches the engine, if no other arrives before; infinity if none is in work.
    """

    def __init__(self, config: ServeConfig, parameters: Parameters) -> None:
        scale = 1e-6 / (config.card.host_speed or 1.0) / config.api_servers * config.parallel.data
        self._request_work = parameters.request_us * scale
        self._connect_work = parameters.connect_us * scale
        self._prompt_token_work = parameters.prompt_token_us * scale
        self._token_work = (parameters.token_us + parameters.chunk_us / config.stream_interval) * scale
        self._in_work: list[tuple[float, int, SimulatedRequest]] = []
        self._count = 0
        self._attained = self._now = 0.0
        self._sending_until = 0.0
        self.next_s = math.inf

    def receive(self, request: SimulatedRequest, now: float, connects: bool) -> None:
        """Start the work on a request at time `now`, which must not be later than `next_s`.

        Args:
            request: the request.
            now: time in seconds.
            connects: whether the request opens a connection.
        """
        if self._in_work:
            self._attained += (now - self._now) / len(self._in_work)
        self._now = now
        self._count += 1
        work = self._request_work + self._prompt_token_work * request.prompt.tokens + self._connect_work * connects
        heapq.heappush(self._in_work, (self._attained + work, self._count, request))
        self._update_next()

    def pop(self) -> SimulatedRequest:
        """Return the request that reaches the engine at `next_s`."""
        self._now = self.next_s
        self._attained, _, request = heapq.heappop(self._in_work)
        self._update_next()
        return request

    def _update_next(self) -> None:
        if self._in_work:
            self.next_s = self._now + max(0.0, self._in_work[0][0] - self._attained) * len(self._in_work)
        else:
            self.next_s = math.inf

    def send(self, now: float, tokens: int) -> float:
        """Return when the clients receive the tokens of a step that ended at `now`, in seconds."""
        self._sending_until = max(self._sending_until, now) + self._token_work * tokens
        return self._sending_until
