"""One copy of the model with its queue, its API servers and its clock; a plain server is one of them."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tuner.engines.simulator.block_pool import Chain
from tuner.engines.simulator.client import SimulatedRequest
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.scheduler import Scheduler, StepsAhead
from tuner.engines.simulator.sequence import Prompt, Sequence
from tuner.engines.simulator.serve_config import ServeConfig
from tuner.engines.simulator.startup import FrontEnd
from tuner.engines.simulator.step_time import StepTime

STATE_PERIOD_S = 0.5
"""Virtual seconds between two samples of the server's state."""

_FIRST_PERIOD_S = 0.01
"""Assumed length of a step before the first one, to choose how many to take at once."""

Segments = list[tuple[int, int]]


@dataclass
class SimulationTrace:
    """What a simulation records besides the requests.

    Attributes:
        received_s: when clients received the tokens of each step, in seconds.
        states: samples of (seconds, running, waiting, share of blocks in use, preemptions).
        busy_s: seconds in which the engine ran steps.
        steps: number of steps.
    """

    received_s: array[float] = field(default_factory=lambda: array("d"))
    states: list[tuple[float, int, int, float, int]] = field(default_factory=list)
    busy_s: float = 0.0
    steps: int = 0


class Replica:
    """A copy of the model that gets a part of the requests.

    Attributes:
        gpu: the number of its first GPU; replicas with the same one share it.
        scheduler: plans its steps.
        time: the time of its steps.
        front_end: its API servers.
        trace: what it records.
        now: when its next step can begin, in seconds.
        outstanding: its requests that are sent and have not ended.
        ended: its requests that reached the engine and have ended.
    """

    def __init__(
        self, config: ServeConfig, parameters: Parameters, scheduler: Scheduler, time: StepTime, gpu: int = 0
    ) -> None:
        self.gpu = gpu
        self.scheduler = scheduler
        self.time = time
        self.front_end = FrontEnd(config, parameters)
        self.trace = SimulationTrace()
        self.now = 0.0
        self.outstanding = 0
        self.ended: list[SimulatedRequest] = []
        self._connections = 0
        self._block_size = config.kv_cache.block_size
        self._max_model_len = config.max_model_len
        self._plans_ahead = config.async_scheduling
        self._requests: dict[int, SimulatedRequest] = {}
        self._sequences: dict[int, Sequence] = {}
        self._sampled_at = -math.inf
        self._period_s = _FIRST_PERIOD_S
        self._own_chains: dict[Chain, Chain] = {}

    def receive(self, request: SimulatedRequest, at_s: float) -> None:
        """Start the API server's work on a request."""
        self.outstanding += 1
        connects = self.outstanding > self._connections
        self._connections += connects
        self.front_end.receive(request, at_s, connects)

    def queue(self, request: SimulatedRequest, at_s: float, copies_chains: bool) -> bool:
        """Queue a request that reaches the engine; return False if it is refused.

        Args:
            request: the request.
            at_s: when it does, in seconds.
            copies_chains: whether other replicas hold blocks of the same prefixes, too.
        """
        prompt = request.prompt
        if prompt.tokens + prompt.output > self._max_model_len:
            return False
        sequence = Sequence(self._with_own_chains(prompt) if copies_chains else prompt, self._block_size, at_s)
        if not self.scheduler.accepts(sequence):
            return False
        self._requests[prompt.index] = request
        self._sequences[prompt.index] = sequence
        idle = self.scheduler.idle
        if idle:
            self.now = max(self.now, at_s) if self.scheduler.next_load_s is None else at_s
        self.scheduler.add(sequence, late=self._plans_ahead and not idle)
        return True

    def _with_own_chains(self, prompt: Prompt) -> Prompt:
        """Return a prompt whose shared prefixes are cached in this replica's memory, not in another's."""
        chains = tuple((self._own_chains.setdefault(chain, Chain()), tokens) for chain, tokens in prompt.shared)
        kept = prompt.continued
        own = None if kept is None else self._own_chains.setdefault(kept, Chain())
        return replace(prompt, shared=chains, continued=own)

    def release(self, request: SimulatedRequest, completed: bool) -> None:
        """Forget a request that ends, and free its blocks unless it completed."""
        self.outstanding -= request.in_flight
        sequence = self._sequences.pop(request.prompt.index, None)
        if sequence is not None:
            if not completed:
                self.scheduler.abort(sequence)
            request.segments = sequence.segments
            self.ended.append(request)

    def moved(self, segments: Segments, steps: int) -> Segments:
        """Return the segments of one of its requests with later steps; see `Sequence.segments`."""
        is_speculative = self.time.config.speculation is not None
        return [(first + steps, last if is_speculative else last + steps) for first, last in segments]

    def fast_forward(self, until_s: float) -> None:
        """Take steps that only decode, until another event can happen or a step has to be planned."""
        scheduler, trace, begun_s = self.scheduler, self.trace, self.now
        steps_before = len(trace.received_s)
        while self.now < until_s:
            ahead = scheduler.steps_ahead((until_s - self.now) / self._period_s)
            if ahead is not None:
                self._skip(ahead, until_s)
            elif (step := scheduler.fast_forward()) is not None:
                self._period_s = self.time.advance(step)
                self.now += self._period_s
                trace.received_s.extend(self.front_end.send([self.now], step.decode))
                self.sample_if_due()
            else:
                break
        trace.busy_s += self.now - begun_s
        trace.steps += len(trace.received_s) - steps_before

    def _skip(self, ahead: StepsAhead, until_s: float) -> None:
        """Take those steps at once that begin before `until_s`."""
        ends = self.time.advance_until(ahead.work, self.now, until_s)
        self._sample_states(ends, self.scheduler.pool.used + ahead.taken - ahead.left)
        self.scheduler.skip(ahead, len(ends))
        self.trace.received_s.extend(self.front_end.send(ends.tolist(), ahead.work.decode))
        self.now, self._period_s = float(ends[-1]), float(ends[-1] - self.now) / len(ends)

    def step(self) -> tuple[list[SimulatedRequest], float]:
        """Take one step; return the requests that got their last token, and when clients received it in seconds."""
        step = self.scheduler.plan(self.now)
        if not step.sequences:
            if self.scheduler.next_load_s is None:
                raise RuntimeError("the scheduler has requests and can run none of them")
            self.now = self.scheduler.next_load_s
            return [], self.now
        seconds = self.time.advance(step)
        self.now += seconds
        self.trace.busy_s += seconds
        self.trace.steps += 1
        begun, ended = self.scheduler.finish()
        (received_s,) = self.front_end.send([self.now], self.scheduler.produced)
        self.trace.received_s.append(received_s)
        for sequence in begun:
            request = self._requests[sequence.index]
            request.first_s = received_s if request.first_s is None else request.first_s
        return [self._requests[sequence.index] for sequence in ended], received_s

    def sample_if_due(self) -> None:
        """Record the state if the last sample is old enough."""
        if self.now - self._sampled_at >= STATE_PERIOD_S:
            self._sample_state(self.now, self.scheduler.pool.used)

    def _sample_states(self, ends: NDArray[np.float64], used: NDArray[np.int64]) -> None:
        """Record the states that are due at the ends of steps, after each of which so many pages are used."""
        place = 0
        while (due := ends[place:] - self._sampled_at >= STATE_PERIOD_S).any():
            place += int(due.argmax())
            self._sample_state(float(ends[place]), int(used[place]))

    def _sample_state(self, now: float, used: int) -> None:
        self._sampled_at = now
        scheduler = self.scheduler
        usage = used / scheduler.pool.total
        state = (now, len(scheduler.running), len(scheduler.waiting), usage, scheduler.counts.preemptions)
        self.trace.states.append(state)
