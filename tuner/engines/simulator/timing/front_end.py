"""The API servers between clients and engine: requests are parsed and tokenised, tokens turned to text and sent."""

from __future__ import annotations

import heapq
import math

from tuner.engines.simulator.clients.client import SimulatedRequest
from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.parameters import Parameters


class FrontEnd:
    """Takes requests in, all that came and are not done yet side by side, and sends tokens, a step's at a time.

    A server is one event loop, in which each request takes its turn again and again: of a burst hardly any reaches the
    engine before all have been read. That is processor sharing (Kleinrock, "Time-shared systems", JACM 1967): of n
    requests in work each gets 1/n of the time. Sending goes on beside it. With several servers all work is divided
    evenly.
    """

    def __init__(self, config: ServeConfig, known: Parameters) -> None:
        scale = 1e-6 / (config.card.host_speed or 1.0) / config.api_servers
        self._request = known.request_us * scale
        self._connect = known.connect_us * scale
        self._prompt_token = known.prompt_token_us * scale
        self._token = (known.token_us + known.chunk_us / config.stream_interval) * scale
        self._inside: list[tuple[float, int, SimulatedRequest]] = []
        self._count = 0
        self._served = self._at = 0.0
        self._out_free = 0.0
        self.next_s = math.inf
        """When the next request reaches the engine, if no other comes before."""

    def receive(self, job: SimulatedRequest, now: float, connects: bool) -> None:
        """Take a request in, over a connection of its own if it `connects`; never later than `next_s`."""
        if self._inside:
            self._served += (now - self._at) / len(self._inside)
        self._at = now
        self._count += 1
        work = self._request + self._prompt_token * job.prompt.tokens + self._connect * connects
        heapq.heappush(self._inside, (self._served + work, self._count, job))
        self._find_next()

    def pop(self) -> SimulatedRequest:
        """Return the request that reaches the engine at `next_s`."""
        self._at = self.next_s
        self._served, _, job = heapq.heappop(self._inside)
        self._find_next()
        return job

    def _find_next(self) -> None:
        if self._inside:
            self.next_s = self._at + max(0.0, self._inside[0][0] - self._served) * len(self._inside)
        else:
            self.next_s = math.inf

    def send(self, now: float, tokens: int) -> float:
        """Return when the clients have the tokens of a step that ended now."""
        self._out_free = max(self._out_free, now) + self._token * tokens
        return self._out_free
