"""vLLM V1's scheduler: what each step holds (v1/core/sched/scheduler.py).

Running requests come first, then waiting ones, first come first served, until the token budget, max_num_seqs or the
blocks are used up. Who lacks a block preempts the request that was admitted last; its cache is dropped and computed
again when its turn comes. Without priorities in the requests, the priority policy does the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.memory.block_pool import BlockPool
from tuner.engines.simulator.scheduling.decode_set import DecodeSet
from tuner.engines.simulator.scheduling.sequence import Sequence
from tuner.engines.simulator.scheduling.step import Step


@dataclass
class SchedulerCounts:
    """What happened since the start, as the server's own metrics count it. Tokens, and how often."""

    preemptions: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    queued_s: list[float] = field(default_factory=list)
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class DecodingSequences(Protocol):
    """The sequences that decode."""

    members: dict[int, Sequence]

    def join(self, sequence: Sequence) -> None:
        """Let a sequence decode."""

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out."""

    def needs_block(self, sequence: Sequence) -> bool:
        """Return whether the next step gives a member a block that it does not know of."""


class Scheduler:
    """The queue, the running requests and their blocks; one call of `plan` and one of `finish` a step.

    `late` are requests that came after the next step was planned: they take part in the one after. `produced` is the
    tokens that the last step gave to its requests.
    """

    def __init__(self, config: ServeConfig, blocks: int) -> None:
        self.config = config
        self.pool = BlockPool(blocks, config.prefix_caching)
        self.waiting: deque[Sequence] = deque()
        self.late: list[Sequence] = []
        self.running: dict[int, Sequence] = {}
        self.prefilling: dict[int, tuple[Sequence, int]] = {}
        self.decoding = DecodeSet(config.block_size)
        self.counts = SchedulerCounts()
        self.produced = 0
        self._orders = 0
        self._partial: list[Sequence] = []
        self._secured = self._was_preempted = False
        self._admitted = 0
        self._watermark = int(config.watermark * blocks)
        self._most_running = min(config.max_num_seqs, config.max_active or config.max_num_seqs)

    def admits(self, sequence: Sequence) -> bool:
        """Return whether the server takes a request in, or refuses it at once (vLLM 0.32's admission control)."""
        requests, tokens = self.config.max_queued_requests, self.config.max_queued_tokens
        queued = (*self.waiting, *self.late)
        if requests is not None and len(queued) >= requests:
            return False
        return tokens is None or sum(each.tokens for each in queued) + sequence.tokens <= tokens

    def add(self, sequence: Sequence, late: bool = False) -> None:
        """Queue a request; a `late` one misses the next step, unless there is nothing else to compute."""
        if late:
            self.late.append(sequence)
        else:
            self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Drop a request wherever it is."""
        if sequence.order in self.running:
            self._remove(sequence)
            sequence.free(self.pool)
        elif sequence in self.waiting or sequence in self.late:
            (self.late if sequence in self.late else self.waiting).remove(sequence)
            self.pool.reclaim(sequence.own, 0)

    @property
    def busy(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.running or self.waiting or self.late)

    @property
    def steady(self) -> bool:
        """Whether the next step is one of decodes alone, whatever else waits: nobody can be let in before one ends.

        It stays so until a sequence ends, a block is lacking, or a request arrives where there was none waiting.
        """
        if self._partial or self.late or not self.decoding.members:
            return False
        return not self.waiting or len(self.running) >= self._most_running

    def plan(self, now: float) -> Step:
        """Decide what the next step holds, and take the blocks for it."""
        self.prefilling.clear()
        self._was_preempted = False
        self._admitted = 0
        if not self.running and not self.waiting:
            self._take_late()
        budget = self.config.max_num_batched_tokens - self._plan_decodes()
        pairs = 0.0
        for sequence in list(self._partial):
            chunk = self._chunk(sequence, budget)
            if chunk and sequence.order in self.running and self._secure(sequence, chunk):
                budget -= chunk
                pairs += self._schedule(sequence, chunk)
        while not self._was_preempted and self.waiting and budget > 0 and len(self.running) < self._most_running:
            chunk = self._admit(budget, now)
            if not chunk:
                break
            budget -= chunk
            self._admitted += 1
            pairs += self._schedule(self.waiting.popleft(), chunk)
        self._take_late()
        return self._step(pairs)

    def _take_late(self) -> None:
        self.waiting.extend(self.late)
        self.late.clear()

    def _plan_decodes(self) -> int:
        """Take the blocks that this step's decodes need, preempting whom it takes; return their tokens."""
        self._secured = False
        while (needed := self.decoding.blocks_needed()) > self.pool.free:
            self._preempt()
        self.pool.take(needed)
        self._secured = True
        return len(self.decoding)

    def _step(self, pairs: float) -> Step:
        chunks = self.prefilling.values()
        ending = sum(sequence.computed + chunk == sequence.tokens for sequence, chunk in chunks)
        decodes = len(self.decoding)
        return Step(
            decode=decodes,
            prefill=sum(chunk for _, chunk in chunks),
            sequences=decodes + len(self.prefilling),
            sampled=decodes + ending,
            context=self.decoding.context,
            pairs=pairs,
            admitted=self._admitted,
            decodes_only=not self.prefilling,
        )

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        chunk = sequence.tokens - sequence.computed
        threshold = self.config.long_prefill_threshold
        if 0 < threshold < chunk:
            chunk = threshold
        return min(chunk, budget)

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _secure(self, sequence: Sequence, chunk: int) -> bool:
        """Make room for a running request's chunk; False if it was itself the one to give way."""
        wanted = self._blocks_of(sequence.computed + chunk) - sequence.blocks
        while wanted > self.pool.free:
            if self._preempt() is sequence:
                return False
        return True

    def _admit(self, budget: int, now: float) -> int:
        """Return the tokens that the first waiting request gets now, its known blocks held; 0 if it has to wait."""
        sequence, size = self.waiting[0], self.config.block_size
        known = sequence.known_blocks(size) if self.config.prefix_caching else 0
        missing = sequence.tokens - known * size
        threshold = self.config.long_prefill_threshold
        chunk = threshold if 0 < threshold < missing else missing
        if chunk > budget and not self.config.chunked_prefill:
            return 0
        chunk = min(chunk, budget)
        upto = sequence.tokens if self.config.reserve_full else known * size + chunk
        if self._blocks_of(upto) - known + self._woken(sequence, known) > self.pool.free - self._watermark:
            return 0
        self._orders += 1
        sequence.order = self._orders
        sequence.start(self.pool, known, size)
        self.running[sequence.order] = sequence
        if sequence.scheduled_s is None:
            sequence.scheduled_s = now
            self.counts.queued_s.append(now - sequence.arrived_s)
        if self.config.prefix_caching:
            self.counts.queried_tokens += sequence.tokens
            self.counts.hit_tokens += known * size
        return chunk

    def _woken(self, sequence: Sequence, known: int) -> int:
        """Return how many of its known blocks are idle: they count as free until it holds them."""
        idle = 0
        for chain, span in sequence.chains:
            depth = min(known, span)
            known -= depth
            idle += max(0, depth - chain.held)
        return idle + known

    def _schedule(self, sequence: Sequence, chunk: int) -> float:
        """Give a request its chunk and the blocks for it; return the pairs of tokens that attention compares."""
        self.prefilling[sequence.order] = (sequence, chunk)
        sequence.grow(self.pool, self._blocks_of(sequence.computed + chunk))
        return chunk * (sequence.computed + (chunk + 1) / 2)

    def _preempt(self) -> Sequence:
        """Take the request out that was admitted last; it waits in front of all others."""
        self._was_preempted = True
        self.counts.preemptions += 1
        victim = next(reversed(self.running.values()))
        self._remove(victim)
        victim.preempt(self.pool, self.config.block_size)
        self.waiting.appendleft(victim)
        return victim

    def _members(self) -> DecodingSequences:
        return self.decoding

    def _remove(self, sequence: Sequence) -> None:
        del self.running[sequence.order]
        self.prefilling.pop(sequence.order, None)
        decoding = self._members()
        if sequence.order in decoding.members:
            if self._secured and decoding.needs_block(sequence):
                self.pool.discard(1)
            decoding.leave(sequence)
        elif sequence in self._partial:
            self._partial.remove(sequence)

    def finish(self) -> tuple[list[Sequence], list[Sequence]]:
        """End the step: every decode has one more token, prefills what they computed.

        Returns:
            The sequences that got their first token since they were (re)admitted, and those that have their last.
        """
        self._secured = False
        self.produced = 0
        ended = self._finish_decodes()
        begun = []
        for sequence, chunk in self.prefilling.values():
            sequence.computed += chunk
            if sequence.computed < sequence.tokens:
                if sequence not in self._partial:
                    self._partial.append(sequence)
                continue
            if sequence in self._partial:
                self._partial.remove(sequence)
            sequence.generated += 1
            begun.append(sequence)
            self.produced += 1
            self._members().join(sequence)
            if sequence.generated >= sequence.output:
                self._members().leave(sequence)
                ended.append(sequence)
        self.prefilling.clear()
        for sequence in ended:
            del self.running[sequence.order]
            sequence.free(self.pool)
        return begun, ended

    def _finish_decodes(self) -> list[Sequence]:
        """Count the decodes' tokens; return the sequences that have their last."""
        self.produced = len(self.decoding)
        self.decoding.step()
        return self.decoding.ended()

    def decode_alone(self) -> Step | None:
        """Take the next step if it is one of decodes alone and nobody ends or lacks a block before it; see `steady`.

        Returns:
            The step, whose tokens are counted at once; None if it has to be planned.
        """
        decoding = self.decoding
        if decoding.steps_to_end() <= 1 or decoding.blocks_needed() > self.pool.free:
            return None
        self.pool.take(decoding.blocks_needed())
        count = len(decoding)
        step = Step(count, 0, count, count, decoding.context, 0.0)
        decoding.step()
        return step
