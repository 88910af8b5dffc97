"""The time from a server's launch to its first passed health check, and its API servers' time for each request.

The time from the launch to the first passed check is

    start-up = (processes + compilation + capture_s × graphs) / host speed + weights / load_gibs

`processes` is `start_s`, less two imports (2 × import_s) if the server is forked from a process that has vLLM imported.
The parts were measured on H200s with one model (docs/reports/2026-11-22-server-starts.md).

An API server is one event loop in which all requests in work take turns. This is processor sharing (Kleinrock,
"Time-shared systems", JACM 1967): of n requests in work, each gets 1/n of the time. A burst of requests therefore
reaches the engine late and almost at once, in the order of arrival: one thread tokenizes the prompts, so that a short
one does not overtake. Answers are sent at the same time. Several API servers share all work
evenly.

    work of a request = request_us + prompt_token_us × prompt tokens (+ connect_us for a new connection)
    work of a step's tokens = tokens × (token_us + chunk_us / stream_interval)

Both are divided by the host's speed and the number of API servers. With data parallelism, each copy of the model has
its share of them.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterable

from tuner.engines.simulator.client import SimulatedRequest
from tuner.engines.simulator.memory import MemoryBudget
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.serve_config import ServeConfig


class CompileCache:
    """The compilations of the servers of one host so far.

    A server finds its whole compilation in the cache, only its kernels, or nothing.
    """

    def __init__(self) -> None:
        self._compiled: set[Hashable] = set()

    def seconds(self, config: ServeConfig, parameters: Parameters) -> float:
        """Return the seconds that a server compiles, on a host of speed 1."""
        if not config.graphs.compiled:
            return 0.0
        if compile_key(config) in self._compiled:
            return parameters.compile_warm_s
        return parameters.compile_new_s if kernel_key(config) in self._compiled else parameters.compile_cold_s

    def add(self, config: ServeConfig) -> None:
        """Add the compilation of a server."""
        self._compiled |= {compile_key(config), kernel_key(config)}


def startup_s(
    config: ServeConfig, budget: MemoryBudget, parameters: Parameters, compile_s: float, forked: bool
) -> float:
    """Return the seconds of a start-up; the module's docstring has the equation.

    Args:
        config: the server's configuration.
        budget: the division of the card's memory, for the size of the weights.
        parameters: the simulator's parameters.
        compile_s: seconds of compilation, from `CompileCache`.
        forked: whether the server is forked from a process that has vLLM imported.
    """
    host = processes_s(parameters, forked) + compile_s + parameters.capture_s * config.graphs.captured
    loading = budget.weights_gib / parameters.load_gibs + config.host_cache_gib / parameters.pin_gibs
    return host / (config.card.host_speed or 1.0) + loading


def processes_s(parameters: Parameters, forked: bool) -> float:
    """Return the seconds of a start-up without model loading, compilation and capture, on a host of speed 1.

    A forked server imports nothing, and neither do its engine and its further API servers
    (`tuner.engines.vllm.resident_client`).
    """
    return parameters.start_s - (2 * parameters.import_s if forked else 0.0)


def compile_key(config: ServeConfig) -> Hashable:
    """Return the key of a compilation: servers with equal keys share it (vLLM's `VllmConfig.compute_hash`)."""
    return (
        *kernel_key(config),
        *(config.max_model_len, config.max_num_seqs, config.max_num_batched_tokens, config.block_size),
        *(config.graphs, config.speculation, config.async_scheduling),
    )


def kernel_key(config: ServeConfig) -> tuple[Hashable, ...]:
    """Return the key of the compiled kernels: servers with equal keys share Triton's and Inductor's caches."""
    formats = (config.dtype, config.quantization, config.kv_element_bytes, config.backend)
    return (config.version, config.model, config.parallel, *formats)


class FrontEnd:
    """The processor of the API servers, which reads requests and sends tokens.

    Tokens have priority: an API server sends those of a step without a pause, and those of the next step after them.
    Requests are read while no tokens are sent. They share this time equally, because reading a request takes several
    turns of the event loop.

    Internally, time is measured in attained service: the seconds of work that each request in work has had since the
    start. A request leaves when the attained service reaches the value at some request's arrival plus that one's work:
    the times are those of processor sharing, and the requests take them in the order of arrival.

    Attributes:
        next_s: when the next request reaches the engine, unless another arrives or a step ends before that; infinity if
            none is in work.
    """

    def __init__(self, config: ServeConfig, parameters: Parameters) -> None:
        scale = 1e-6 / (config.card.host_speed or 1.0) / config.api_servers * config.parallel.data
        self._request_work = parameters.request_us * scale
        self._connect_work = parameters.connect_us * scale
        self._prompt_token_work = parameters.prompt_token_us * scale
        self._token_work = (parameters.token_us + parameters.chunk_us / config.stream_interval) * scale
        self._in_work: list[float] = []
        self._requests: deque[SimulatedRequest] = deque()
        self._attained = self._now = 0.0
        self._sending: deque[tuple[float, float]] = deque()
        """Begin and end of each stretch of sending after `_now`, in order and without overlap."""
        self._sending_until = 0.0
        self.next_s = math.inf

    def receive(self, request: SimulatedRequest, now: float, connects: bool) -> None:
        """Start the work on a request at time `now`, which must not be later than `next_s`.

        Args:
            request: the request.
            now: time in seconds.
            connects: whether the request opens a connection.
        """
        self._advance(now)
        work = self._request_work + self._prompt_token_work * request.prompt.tokens + self._connect_work * connects
        heapq.heappush(self._in_work, self._attained + work)
        self._requests.append(request)
        self._update_next()

    def pop(self) -> SimulatedRequest:
        """Return the request that reaches the engine at `next_s`."""
        self._advance(self.next_s)
        self._attained = heapq.heappop(self._in_work)
        self._update_next()
        return self._requests.popleft()

    def _advance(self, until: float) -> None:
        """Add the service up to a time. A stretch of sending that has begun by then is passed to its end."""
        share = 1 / len(self._in_work) if self._in_work else 0.0
        while self._sending and self._sending[0][0] < until:
            begin, end = self._sending.popleft()
            self._attained += share * max(0.0, begin - self._now)
            self._now = end
        if until > self._now:
            self._attained += share * (until - self._now)
            self._now = until

    def _update_next(self) -> None:
        if not self._in_work:
            self.next_s = math.inf
            return
        self.next_s = self._now + max(0.0, self._in_work[0] - self._attained) * len(self._in_work)
        for begin, end in self._sending:
            if self.next_s <= begin:
                break
            self.next_s += end - begin

    def send(self, ends: Iterable[float], tokens: int) -> list[float]:
        """Return when the clients receive the tokens of steps with so many of them each, in seconds.

        Args:
            ends: when the steps end, in seconds.
            tokens: of each step.
        """
        sending, until, work, received = self._sending, self._sending_until, self._token_work * tokens, []
        for end in ends:
            if end <= until and sending:
                begin, _ = sending.pop()
                until += work
            else:
                begin = end if end > until else until
                until = begin + work
            sending.append((begin, until))
            received.append(until)
        self._sending_until = until
        if self._in_work:
            self._update_next()
        else:
            while len(sending) > 2:  # a request can arrive during the last step, and not before
                sending.popleft()
        return received
