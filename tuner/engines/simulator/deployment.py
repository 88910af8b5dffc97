"""One deployment under a workload: its memory, its replicas and their clients.

The clock jumps from one event to the next. Events are a send, a deadline, a request that reaches an engine, and the
end of an engine step. With asynchronous scheduling, vLLM plans a step when the step before it begins
(`EngineCore.step_with_batch_queue`): a request that arrives during a step misses the next step and takes part in the
step after that.

Each request goes to the replica with the fewest requests in work, the first of them if several have as few. vLLM's own
balancer for data parallelism (`DPLBAsyncMPClient`) and routers for several servers do so. The replica that is behind
the others in time takes the next step. Replicas on one GPU share it: `StepTime.sharing` is the number of those with
work when a step begins.

A deployment is one server, or several equal ones behind a router. A server has one or several replicas of the model
(data parallelism). Each replica has its own queue, KV cache and steps.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Sequence
from dataclasses import fields, replace
from enum import IntEnum

import numpy as np

from records.trials import FailureKind
from search_spaces.units import GIB
from tuner.engines.simulator.client import ScheduledSend, SimulatedClient, SimulatedRequest
from tuner.engines.simulator.host_cache import HostCache
from tuner.engines.simulator.limits import uneven_part
from tuner.engines.simulator.memory import MemoryBudget, StartFailed, find_budget
from tuner.engines.simulator.metrics import SimulatedRun, merged_run
from tuner.engines.simulator.parameters import ErrorBands, Parameters, find_error_bands
from tuner.engines.simulator.precision import is_hopper
from tuner.engines.simulator.replica import Replica
from tuner.engines.simulator.scheduler import Scheduler, SpeculativeScheduler
from tuner.engines.simulator.sequence import AnswerText
from tuner.engines.simulator.serve_config import ServeConfig
from tuner.engines.simulator.step_time import StepTime
from tuner.workloads.results import RequestStatus


class _EventKind(IntEnum):
    SEND = 0
    GIVE_UP = 1


class BenchmarkSimulation:
    """Runs one workload to its end; the module's docstring has the model."""

    def __init__(self, replicas: Sequence[Replica], client: SimulatedClient) -> None:
        self._replicas = replicas
        self._front_ends = [replica.front_end for replica in replicas]
        self._client = client
        self._events: list[tuple[float, int, _EventKind, SimulatedRequest]] = []
        self._event_count = 0
        self._replica_of: dict[int, Replica] = {}

    def run(self, limit_s: float = math.inf, fast_forward: bool = True) -> None:
        """Simulate until every request has ended or `limit_s` is over; requests that still run then time out.

        Args:
            limit_s: virtual seconds.
            fast_forward: take steps that only decode without planning each one. The results are the same to the last
                bit.
        """
        for send in self._client.initial_sends():
            self._plan_send(send)
        now = 0.0
        while now < limit_s:
            self._process_events(now)
            replica = self._earliest()
            if replica is not None and replica.now <= now:
                self._advance(replica, limit_s, fast_forward)
                replica = self._earliest()
            now = self._next_event_s() if replica is None else replica.now
            if now == math.inf:
                break
        for request in [request for request in self._client.requests if request.in_flight]:
            self._release(request, RequestStatus.TIMED_OUT, now)

    def _earliest(self) -> Replica | None:
        """Return the replica with work whose next step begins first."""
        found = None
        for replica in self._replicas:
            if replica.scheduler.busy and (found is None or replica.now < found.now):
                found = replica
        return found

    def _advance(self, replica: Replica, limit_s: float, fast_forward: bool) -> None:
        """Take the next step of a replica, or several until another replica or an event is due."""
        others = math.inf
        if len(self._replicas) > 1:
            busy = [each for each in self._replicas if each.scheduler.busy]
            others = min((each.now for each in busy if each is not replica), default=math.inf)
            replica.time.sharing = sum(each.gpu == replica.gpu for each in busy)
        if fast_forward and replica.scheduler.can_fast_forward:
            replica.fast_forward(min(limit_s, self._next_event_s(), others))
            if self._next_event_s() <= replica.now or others < replica.now:
                return
        ended, received_s = replica.step()
        for request in ended:
            self._complete(request, received_s)
        replica.sample_if_due()

    def _plan_send(self, send: ScheduledSend) -> None:
        self._push(send.at_s, _EventKind.SEND, send.request)
        if send.request.deadline_s is not None:
            self._push(send.request.deadline_s, _EventKind.GIVE_UP, send.request)

    def _push(self, at_s: float, kind: _EventKind, request: SimulatedRequest) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (at_s, self._event_count, kind, request))

    def _next_event_s(self) -> float:
        """Return the time of the next event that is not the end of a step."""
        next_s = self._events[0][0] if self._events else math.inf
        for front_end in self._front_ends:
            if front_end.next_s < next_s:
                next_s = front_end.next_s
        return next_s

    def _process_events(self, until_s: float) -> None:
        """Process all events up to `until_s`, or up to the one with which an idle replica gets work."""
        while (at_s := self._next_event_s()) <= until_s:
            for replica in self._replicas:
                if replica.front_end.next_s == at_s:
                    is_idle = replica.scheduler.idle
                    self._arrive(replica, replica.front_end.pop(), at_s)
                    until_s = at_s if is_idle and not replica.scheduler.idle else until_s
                    break
            else:
                _, _, kind, request = heapq.heappop(self._events)
                if kind is _EventKind.SEND:
                    self._send(request, at_s)
                elif request.status is RequestStatus.NOT_SENT:
                    self._end(request, RequestStatus.TIMED_OUT, at_s)

    def _send(self, request: SimulatedRequest, at_s: float) -> None:
        if request.status is not RequestStatus.NOT_SENT or not self._client.try_send(request, at_s):
            return
        if request.due_s is None and request.deadline_s is not None:
            self._push(request.deadline_s, _EventKind.GIVE_UP, request)
        replica = self._replicas[0]
        if len(self._replicas) > 1:
            replica = min(self._replicas, key=lambda each: each.outstanding)
        self._replica_of[request.prompt.index] = replica
        replica.receive(request, at_s)

    def _arrive(self, replica: Replica, request: SimulatedRequest, at_s: float) -> None:
        """Queue a request that reaches the engine, or refuse it."""
        if request.in_flight and not replica.queue(request, at_s, copies_chains=len(self._replicas) > 1):
            self._end(request, RequestStatus.REFUSED, at_s)

    def _complete(self, request: SimulatedRequest, received_s: float) -> None:
        """End a request with its last token; it timed out if its client gave it up before it received that token."""
        if request.deadline_s is not None and received_s > request.deadline_s:
            self._end(request, RequestStatus.TIMED_OUT, request.deadline_s)
        else:
            self._end(request, RequestStatus.COMPLETED, received_s)

    def _end(self, request: SimulatedRequest, status: RequestStatus, at_s: float) -> None:
        """End a request, and plan what its client sends then."""
        self._release(request, status, at_s)
        waiting = self._client.end(request, at_s)
        if waiting is not None:
            self._push(waiting.at_s, _EventKind.SEND, waiting.request)
        for send in self._client.next_sends(request, at_s):
            self._plan_send(send)

    def _release(self, request: SimulatedRequest, status: RequestStatus, at_s: float) -> None:
        replica = self._replica_of.get(request.prompt.index)
        if replica is not None:
            replica.release(request, status is RequestStatus.COMPLETED)
        request.status = status
        request.end_s = at_s


_FIELDS_BESIDE_RUNS = ("card", "dtype", "max_num_seqs", "gpu_memory_utilization", "kv_cache_bytes", "fits_length")
_FIELDS_OF_RUNS = tuple(each.name for each in fields(ServeConfig) if each.name not in _FIELDS_BESIDE_RUNS)
_NOISE_STREAM = 0x51
_REPLICA_STREAM = 7907
"""Between the seeds of the answers' texts of two replicas."""


class ConfiguredServer:
    """One server, or `instances` equal ones; `work` is what their tokens need.

    Raises:
        StartFailed: at construction, if the configuration does not fit into memory or its first step fails.
    """

    def __init__(
        self, config: ServeConfig, parameters: Parameters, marlin_input: str | None = None, instances: int = 1
    ) -> None:
        self.instances = instances
        self.parameters = parameters
        self._marlin_input = marlin_input
        _require_even_parts(config)
        _require_output_format(config)
        time = StepTime(config, parameters, marlin_input)
        self.work = time.work
        self.budget: MemoryBudget = find_budget(config, time.weights, parameters)
        length = self.budget.longest if config.fits_length else config.max_model_len
        self.config = replace(config, max_model_len=length)

    @property
    def gpus(self) -> int:
        """The GPUs that work for it."""
        return -(-self.instances * self.config.parallel.gpus // self.config.servers_per_gpu)

    def run_key(self, most_in_flight: int | None) -> Hashable:
        """Return what a run depends on besides its workload, its seed and the blocks of the KV cache, on one card.

        Of the 16-bit format, the speed matters alone. More sequences than are ever in flight change nothing. The other
        fields left out decide about memory.

        Args:
            most_in_flight: requests that the workload has in flight at most; None for no limit.
        """
        config = self.config
        values = tuple(getattr(config, name) for name in _FIELDS_OF_RUNS)
        sequences = min(config.max_num_seqs, most_in_flight or config.max_num_seqs)
        speed = config.card.tflops.get(config.dtype)
        return values, sequences, config.scheduled_tokens, speed, self._marlin_input, self.instances, self.parameters

    @property
    def error_bands(self) -> ErrorBands:
        """The errors of predictions of its kind."""
        return find_error_bands(self.config, instances=self.instances)

    def run(
        self,
        client: SimulatedClient,
        seed: int,
        *,
        noise: bool = True,
        warm: bool = True,
        limit_s: float = math.inf,
        fast_forward: bool = True,
    ) -> SimulatedRun:
        """Run a workload with an empty prefix cache.

        Args:
            client: sends the workload.
            seed: of the noise and of the answers' text.
            noise: whether all step times get a common random factor, exp(noise_share × standard normal).
            warm: whether the server has run a prefill before.
            limit_s: virtual seconds after which the run is cut off.
            fast_forward: see `BenchmarkSimulation.run` and `SpeculativeScheduler`.
        """
        factor = np.random.default_rng([seed, _NOISE_STREAM]).standard_normal() if noise else 0.0
        scale = float(np.exp(self.parameters.noise_share * factor))
        replicas = []
        for number in range(self.instances * self.config.parallel.data):
            time = StepTime(self.config, self.parameters, self._marlin_input, scale, warm)
            scheduler = self._scheduler(seed + _REPLICA_STREAM * number, fast_forward)
            first_gpu = number * self.config.parallel.replica_gpus % self.gpus
            replicas.append(Replica(self.config, self.parameters, scheduler, time, first_gpu))
        BenchmarkSimulation(replicas, client).run(limit_s, fast_forward)
        return merged_run(list(client.requests), replicas, self.config)

    def _scheduler(self, seed: int, fast_forward: bool) -> Scheduler:
        config, blocks, host = self.config, self.budget.blocks, None
        if config.host_cache_gib:
            block_bytes = config.kv_cache.block_bytes
            most = int(config.host_cache_gib * GIB / config.parallel.replica_gpus / block_bytes)
            host = HostCache(most, block_bytes / (self.parameters.offload_gbs * 1e9))
        if config.speculation is None:
            return Scheduler(config, blocks, host)
        text = AnswerText(config.speculation, config.temperature, self.parameters, seed)
        return SpeculativeScheduler(config, blocks, text, fast_forward, host)


def _require_even_parts(config: ServeConfig) -> None:
    """Fail if the model's MLP or key-value heads cannot be split over the GPUs, as vLLM's workers do."""
    for each in (config, config.draft):
        line = None if each is None else uneven_part(each.model, each.parallel)
        if line is not None:
            raise StartFailed(line, FailureKind.ENGINE_CRASH)


def _require_output_format(config: ServeConfig) -> None:
    """Fail for an FP8 KV cache with FlashAttention 3 in float16.

    vLLM passes FP8 queries beside an FP8 cache, and FlashAttention 3 (`hopper/flash_api.cpp`) then writes bfloat16
    only. Three measured trials failed so (docs/reports/2026-11-24-h200-qwen-7b.md). The search space has the same rule,
    `flash-attn-3-fp8-kv-float16`; a test compares the two.
    """
    is_flash_attn_3 = config.backend == "FLASH_ATTN" and is_hopper(config.card)
    if is_flash_attn_3 and config.kv_element_bytes == 1.0 and config.dtype == "float16":
        raise StartFailed(
            "RuntimeError: For FP16/BF16 input, output must have the same dtype as inputs. For FP8 input, output must "
            "have dtype BF16",
            FailureKind.ENGINE_CRASH,
        )
