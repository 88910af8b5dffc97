"""vLLM V1's scheduler (`v1/core/sched/scheduler.py`), also with drafts: it plans the work of each step.

A step serves running requests first, then waiting ones, first come, first served. It ends when the token budget
(`max_num_batched_tokens`), `max_num_seqs` or the free KV cache blocks are used up. A request that lacks a block
preempts the request that was admitted last. The preempted request loses its cache and computes it again when it is
readmitted. With the policy `priority`, a lower (priority, arrival) is admitted first and the highest one is preempted.

A chunk of c tokens after k computed ones compares c × (k + (c + 1) / 2) pairs of tokens in attention.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.engines.simulator.block_pool import BlockPool
from tuner.engines.simulator.host_cache import HostCache
from tuner.engines.simulator.sequence import AnswerText, DecodeSet, PlannedDecodes, Sequence, SpeculativeDecodeSet, Step
from tuner.engines.simulator.serve_config import ServeConfig


@dataclass
class SchedulerCounts:
    """Counters since the start, as in the server's own metrics; `queued_s` has each request's seconds in the queue."""

    preemptions: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    queued_s: list[float] = field(default_factory=list)
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def prefix_hit_rate(self) -> float | None:
        """The share of prompt tokens that the prefix cache had; None without such a cache."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None


_LEAST_AHEAD = 8
"""Fewer steps are faster one by one."""
_MOST_AHEAD = 512


class StepsAhead(NamedTuple):
    """Steps that only decode.

    Attributes:
        work: of each step; `context` has the tokens of KV cache that each of them reads.
        taken: pages that they take, up to each step.
        left: pages that the windows of their sequences leave, up to each step.
    """

    work: Step
    taken: NDArray[np.int64]
    left: NDArray[np.int64]


class Scheduler:
    """The queue, the running requests and their blocks. Each step calls `plan` once and `finish` once.

    Attributes:
        waiting: requests in the queue, the next one first.
        late: requests that arrived after the next step was planned; they take part in the step after that.
        running: admitted requests in the order of their admission.
        prefilling: the requests of this step that compute a part of their prompt, with the number of tokens.
        produced: tokens that the last step gave to its requests.
        host: the KV cache in the host's memory; None without.
    """

    def __init__(self, config: ServeConfig, blocks: int, host: HostCache | None = None) -> None:
        self.config = config
        self.host = host
        cache = config.kv_cache
        self._rule, self._block_size = cache.rule, cache.block_size
        if len(cache.tables) > 1:  # so that rounding, and vLLM's start before 0.25, never leave a request waiting
            blocks = max(blocks, self._rule.of_sequence(config.max_model_len, cache.in_flight))
        self._in_flight = cache.in_flight
        self.pool = BlockPool(blocks, config.prefix_caching, self._rule)
        self.waiting: deque[Sequence] = deque()
        self.late: list[Sequence] = []
        self.running: dict[int, Sequence] = {}
        self.prefilling: dict[int, tuple[Sequence, int]] = {}
        self.decoding = DecodeSet(self._rule)
        self._decoders: DecodeSet | SpeculativeDecodeSet = self.decoding
        self.counts = SchedulerCounts()
        self.produced = 0
        self._orders = 0
        self._partial: list[Sequence] = []
        self._has_decode_blocks = self._has_preempted = False
        self._admitted = 0
        self._watermark = int(config.watermark * blocks)
        threshold = config.long_prefill_threshold
        self._longest_chunk = min(config.scheduled_tokens, threshold or config.scheduled_tokens)
        self._drops_block = config.speculation is not None and config.speculation.follows_states
        self._max_running = min(config.max_num_seqs, config.max_active or config.max_num_seqs)

    def accepts(self, sequence: Sequence) -> bool:
        """Return whether the server queues a request or refuses it at once (vLLM 0.32's admission control)."""
        max_requests, max_tokens = self.config.max_queued_requests, self.config.max_queued_tokens
        queued = (*self.waiting, *self.late)
        if max_requests is not None and len(queued) >= max_requests:
            return False
        return max_tokens is None or sum(each.tokens for each in queued) + sequence.tokens <= max_tokens

    def add(self, sequence: Sequence, late: bool = False) -> None:
        """Queue a request. A `late` one misses the next step, unless there is nothing else to compute."""
        if late:
            self.late.append(sequence)
        else:
            self._queue([sequence])

    def abort(self, sequence: Sequence) -> None:
        """Drop a request, running or queued."""
        if sequence.order in self.running:
            self._remove(sequence)
            sequence.free(self.pool)
        elif sequence in self.waiting or sequence in self.late:
            (self.late if sequence in self.late else self.waiting).remove(sequence)
            if sequence.blocks:  # it has its blocks from the host and waits for its first step
                sequence.free(self.pool)
            else:
                self.pool.reclaim(sequence.own, 0)
        elif self.host is not None and self.host.abort(sequence):
            sequence.free(self.pool)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute now."""
        return not (self.running or self.waiting or self.late)

    @property
    def busy(self) -> bool:
        """Whether there is anything to compute, now or when its blocks are copied from the host."""
        return not self.idle or self.next_load_s is not None

    @property
    def next_load_s(self) -> float | None:
        """When the next request has its blocks from the host, in seconds; None if none waits for them."""
        return self.host.loading[0][0] if self.host is not None and self.host.loading else None

    @property
    def can_fast_forward(self) -> bool:
        """Whether the next step only decodes, and no waiting request can be admitted before a running one ends.

        This holds until a sequence ends, a block is lacking, or a request arrives at an empty queue.
        """
        if self._partial or self.late or not self.decoding.members or self.next_load_s is not None:
            return False
        return not self.waiting or len(self.running) >= self._max_running

    def plan(self, now: float) -> Step:
        """Plan the next step and take the blocks for it."""
        self.prefilling.clear()
        self._has_preempted = False
        self._admitted = 0
        if self.host is not None:
            self.waiting.extendleft(reversed(self.host.loaded(now)))
        if not self.running and not self.waiting:
            self._queue_late()
        budget = self.config.scheduled_tokens - self._plan_decodes()
        pairs = 0.0
        for sequence in list(self._partial):
            chunk = self._chunk(sequence, budget)
            if chunk and sequence.order in self.running and self._make_room(sequence, chunk):
                budget -= chunk
                pairs += self._schedule(sequence, chunk)
        while not self._has_preempted and self.waiting and budget > 0 and len(self.running) < self._max_running:
            if self.host is not None and self._starts_load(self.host, now):
                continue
            chunk = self._admit(budget, now)
            if not chunk:
                break
            budget -= chunk
            self._admitted += 1
            pairs += self._schedule(self.waiting.popleft(), chunk)
        self._queue_late()
        return self._step(pairs)

    def _queue_late(self) -> None:
        self._queue(self.late)
        self.late.clear()

    def _queue(self, sequences: list[Sequence]) -> None:
        self.waiting.extend(sequences)
        if self.config.priority_scheduling:
            self.waiting = deque(sorted(self.waiting, key=Sequence.rank))

    def _plan_decodes(self) -> int:
        """Take the blocks that this step's decodes need, with preemptions if necessary; return their tokens."""
        self._has_decode_blocks = False
        while not self._take_decode_pages():
            self._preempt()
        self._has_decode_blocks = True
        return len(self.decoding)

    def _take_decode_pages(self) -> bool:
        """Take the pages that the next step's decodes need; return False, and take none, if too few are free."""
        taken = self.decoding.pages_taken()
        left = self.decoding.pages_left() if self._rule.windowed else 0
        if self.pool.lacks(taken - left):
            return False
        if left:
            self.pool.discard(left)
        if taken:
            self.pool.take(taken)
        return True

    def _step(self, pairs: float) -> Step:
        decodes = len(self.decoding)
        return Step(
            decode=decodes,
            prefill=sum(chunk for _, chunk in self.prefilling.values()),
            sequences=decodes + len(self.prefilling),
            sampled=decodes + self._completed_prefills(),
            context=self.decoding.context,
            pairs=pairs,
            admitted=self._admitted,
            decodes_only=not self.prefilling,
        )

    def _completed_prefills(self) -> int:
        """Return how many prefills end with this step and sample a token."""
        return sum(sequence.computed + chunk == sequence.tokens for sequence, chunk in self.prefilling.values())

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        """Return the number of prompt tokens that a running sequence computes in this step."""
        chunk = sequence.tokens - sequence.computed
        threshold = self.config.long_prefill_threshold
        if 0 < threshold < chunk:
            chunk = threshold
        return self._aligned(sequence, sequence.computed, min(chunk, budget))

    def _aligned(self, sequence: Sequence, start: int, chunk: int, shared: int = 0) -> int:
        """Return the tokens of a chunk of a prompt from `start` on, which ends where the state of layers is kept.

        Without such layers, these are all. With them, a chunk ends with a block, and the last whole block of a prompt,
        and the place until which its first `shared` tokens are cached, end a chunk, too
        (`_mamba_block_aligned_split`). The result is 0 if the rest of the budget has no whole block.
        """
        if not self._rule.reuses_states:
            return chunk
        size, tokens, end = self._block_size, sequence.tokens, start + chunk
        is_newer = self.config.version >= (0, 32)
        last = (tokens - is_newer) // size * size - size * self._drops_block
        if end < (tokens if is_newer else last):
            whole = end // size * size
            end = whole if whole > start or size <= self._longest_chunk else end
        next_block = -(-start // size) * size
        return min((stop for stop in (next_block, shared, last) if start < stop < end), default=end) - start

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _make_room(self, sequence: Sequence, chunk: int) -> bool:
        """Preempt until a running request has blocks for its chunk; return False if it was preempted itself."""
        missing = sequence.missing_pages(self._rule, self._blocks_of(sequence.computed + chunk))
        while self.pool.lacks(missing):
            if self._preempt() is sequence:
                return False
        return True

    def _starts_load(self, host: HostCache, now: float) -> bool:
        """Let the first waiting request wait for blocks that only the host has; return False if there are none.

        It gets all blocks of its prompt at once.
        """
        sequence, size = self.waiting[0], self._block_size
        cached, found = sequence.cached_blocks(size), host.found_blocks(sequence, size)
        required = self._admission_pages(sequence, cached, sequence.tokens)
        if sequence.blocks or found <= cached or self.pool.lacks(required + self._watermark):
            return False
        self.waiting.popleft()
        sequence.start(self.pool, cached, size)
        sequence.grow(self.pool, self._blocks_of(sequence.tokens))
        sequence.computed = found * size
        self.counts.queried_tokens += sequence.tokens
        self.counts.hit_tokens += cached * size
        host.load(sequence, found - cached, now)
        return True

    def _admit(self, budget: int, now: float) -> int:
        """Admit the first waiting request with its cached blocks.

        Returns:
            The tokens that it computes in this step; 0 if it has to wait.
        """
        sequence, size, reuses_states = self.waiting[0], self._block_size, self._rule.reuses_states
        is_loaded = sequence.blocks > 0
        computed = sequence.cached_blocks(size) if self.config.prefix_caching and not is_loaded else 0
        cached = sequence.blocks_with_state(computed) if reuses_states else computed
        if is_loaded:
            cached = sequence.computed // size
        missing = sequence.tokens - cached * size
        threshold = self.config.long_prefill_threshold
        chunk = threshold if 0 < threshold < missing else missing
        if chunk > budget and not self.config.chunked_prefill:
            return 0
        chunk = self._aligned(sequence, cached * size, min(chunk, budget), computed * size)
        required = sequence.tokens if self.config.reserve_full else cached * size + chunk
        is_short = not is_loaded and self.pool.lacks(
            self._admission_pages(sequence, cached, required) + self._watermark
        )
        if is_short or not chunk:
            return 0
        self._orders += 1
        sequence.order = self._orders
        if not is_loaded:
            sequence.start(self.pool, cached, size)
        if reuses_states:
            sequence.keep_states(computed if self.config.version >= (0, 25) else 0, size)
        self.running[sequence.order] = sequence
        if sequence.scheduled_s is None:
            sequence.scheduled_s = now
            self.counts.queued_s.append(now - sequence.arrived_s)
        if self.config.prefix_caching and not is_loaded:
            self.counts.queried_tokens += sequence.tokens
            self.counts.hit_tokens += cached * size
        return chunk

    def _admission_pages(self, sequence: Sequence, cached: int, tokens: int) -> int:
        """Return the free pages that a sequence needs for `tokens` tokens, `cached` blocks of which are cached."""
        rule, blocks = self._rule, self._blocks_of(tokens)
        pages = rule.full * (blocks - cached + self._idle_blocks(sequence, cached)) + rule.states
        if not rule.windowed:
            return pages
        most = rule.window + 1 + self._blocks_of(self._in_flight)
        return pages + rule.windowed * min(blocks - rule.passed(cached * self._block_size), most)

    def _idle_blocks(self, sequence: Sequence, cached: int) -> int:
        """Return how many cached blocks of a sequence are idle; they count as free until the sequence uses them."""
        idle = 0
        for chain, span in sequence.chains:
            depth = min(cached, span)
            cached -= depth
            idle += max(0, depth - chain.held)
        return idle + cached

    def _schedule(self, sequence: Sequence, chunk: int) -> float:
        """Give a request its chunk and the blocks for it; return the pairs of tokens that attention compares."""
        self.prefilling[sequence.order] = (sequence, chunk)
        sequence.grow(self.pool, max(sequence.blocks, self._blocks_of(sequence.computed + chunk)))
        return chunk * (sequence.computed + (chunk + 1) / 2)

    def _preempt(self) -> Sequence:
        """Preempt the request that was admitted last, or has the highest rank; it is the first in the queue again."""
        self._has_preempted = True
        self.counts.preemptions += 1
        running = self.running.values()
        victim = max(running, key=Sequence.rank) if self.config.priority_scheduling else next(reversed(running))
        self._remove(victim)
        victim.preempt(self.pool, self._block_size)
        self.waiting.appendleft(victim)
        if self.config.priority_scheduling:
            self._queue([])
        return victim

    def _remove(self, sequence: Sequence) -> None:
        del self.running[sequence.order]
        self.prefilling.pop(sequence.order, None)
        if sequence.order in self._decoders.members:
            if self._has_decode_blocks:
                self.pool.discard(self._decoders.new_pages(sequence))
            self._decoders.leave(sequence)
        elif sequence in self._partial:
            self._partial.remove(sequence)

    def finish(self) -> tuple[list[Sequence], list[Sequence]]:
        """End the step: add one token to each decode, and the computed chunk to each prefill.

        Returns:
            The sequences with their first token since their (re)admission, and the sequences with their last token.
        """
        self._has_decode_blocks = False
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
            if self._rule.windowed:
                sequence.slide(self.pool, sequence.blocks - self._rule.window - 1)
            self._decoders.join(sequence)
            if sequence.generated >= sequence.output:
                self._decoders.leave(sequence)
                ended.append(sequence)
        self.prefilling.clear()
        if self.host is not None:
            for sequence in (*begun, *ended):
                self.host.store(sequence)
        for sequence in ended:
            del self.running[sequence.order]
            sequence.complete(self.pool, self._block_size)
        return begun, ended

    def _finish_decodes(self) -> list[Sequence]:
        """Add the decodes' tokens; return the sequences that have their last one."""
        self.produced = len(self.decoding)
        self.decoding.step()
        return self.decoding.pop_ended()

    def fast_forward(self) -> Step | None:
        """Take the next step without `plan` and `finish`, while `can_fast_forward` holds.

        Returns:
            The step, whose tokens are counted at once; None if a sequence ends with it or a block is lacking, so that
            it has to be planned.
        """
        decoding = self.decoding
        if decoding.steps_to_end() <= 1 or not self._take_decode_pages():
            return None
        count = len(decoding)
        step = Step(count, 0, count, count, decoding.context, 0.0)
        decoding.step()
        return step

    def steps_ahead(self, most: float) -> StepsAhead | None:
        """Return about as many of the next steps as wanted that `fast_forward` would take, without taking them.

        If they are few, the result is None, because `fast_forward` is faster.
        """
        decoding = self.decoding
        steps = math.ceil(min(decoding.steps_to_end() - 1, most, _MOST_AHEAD))
        if steps < _LEAST_AHEAD:
            return None
        taken, left = decoding.pages_ahead(steps)
        more = taken - left
        lacking = more > self.pool.free
        steps = int(lacking.argmax()) if lacking.any() else len(taken)
        if steps < _LEAST_AHEAD:
            return None
        self.pool.require(int(more[:steps].max()))
        count = len(decoding)
        contexts = decoding.context + count * np.arange(steps, dtype=np.float64)
        return StepsAhead(Step(count, 0, count, count, contexts, 0.0), taken, left)

    def skip(self, ahead: StepsAhead, steps: int) -> None:
        """Take the first of the steps ahead, as `fast_forward` does."""
        self.pool.discard(int(ahead.left[steps - 1]))
        self.pool.take(int(ahead.taken[steps - 1]))
        self.decoding.step(steps)


class SpeculativeScheduler(Scheduler):
    """A scheduler whose decodes have drafts.

    Most steps continue the step before, for which `AnswerText.advance` has prepared their decodes. With `fast_forward`,
    the scheduler reuses these; without, it plans each sequence in each step, with the same result.
    """

    def __init__(
        self,
        config: ServeConfig,
        blocks: int,
        text: AnswerText,
        fast_forward: bool = True,
        host: HostCache | None = None,
    ) -> None:
        super().__init__(config, blocks, host)
        made = config.speculation
        self._is_computed = made is not None and not made.is_looked_up
        first = made.tokens if made is not None and self._is_computed else 0
        self._decoders = self.drafting = SpeculativeDecodeSet(first)
        self._text = text
        self._reuses_following = fast_forward
        self._decodes = PlannedDecodes()
        self._reused = False

    @property
    def can_fast_forward(self) -> bool:
        """False: every step is planned."""
        return False

    def add(self, sequence: Sequence, late: bool = False) -> None:
        """Queue a request and draw how predictable its answer is; see `Scheduler.add`."""
        sequence.loop_at = self._text.draw_onset(sequence)
        super().add(sequence, late)

    def _plan_decodes(self) -> int:
        """Reuse the decodes that the step before prepared, if they are valid and there is room; else plan each one."""
        following, drafting = self.drafting.following, self.drafting
        budget = self.config.scheduled_tokens
        valid = self._reuses_following and not drafting.changed
        of_block = self._rule.full + self._rule.windowed
        if valid and following.tokens <= budget and not self.pool.lacks(following.missing_blocks * of_block):
            for sequence, blocks in following.growing:
                if self._rule.windowed:
                    sequence.computed = sequence.tokens - 1
                sequence.grow(self.pool, blocks)
            self._decodes, self._reused = following, True
        else:
            self._restore_computed()
            self._decodes = self._plan_each(budget)
        return self._decodes.tokens

    def _restore_computed(self) -> None:
        """Set `Sequence.computed` as of the last plan, which a reused plan leaves out of date."""
        if self._reused:
            for sequence in self._decodes.sequences:
                sequence.computed = sequence.tokens - sequence.segments[-1][1] - 1
        self._reused = False

    def _plan_each(self, budget: int) -> PlannedDecodes:
        planned: list[tuple[Sequence, int]] = []
        size, running = self._block_size, self.running
        for sequence in list(self.drafting.members.values()):
            generated = sequence.generated
            token_count, left = 1 + sequence.draft, sequence.output - generated
            if token_count > left:
                token_count = left
            if token_count > budget:
                token_count = budget
            if token_count < 1 or (self._has_preempted and sequence.order not in running):
                continue
            computed = sequence.computed = sequence.prompt + generated - 1
            if computed + token_count > sequence.blocks * size:
                if not self._make_room(sequence, token_count):
                    continue
                sequence.grow(self.pool, self._blocks_of(computed + token_count))
            planned.append((sequence, token_count))
            budget -= token_count
        decodes = PlannedDecodes()
        for sequence, token_count in planned:
            if not self._has_preempted or sequence.order in running:
                decodes.add(sequence, token_count)
        return decodes

    def _remove(self, sequence: Sequence) -> None:
        if self._reused and sequence.order in self.drafting.members:
            sequence.computed = sequence.tokens - 1
        super()._remove(sequence)
        self._decodes.drop(sequence)

    def _step(self, pairs: float) -> Step:
        decodes = self._decodes
        return Step(
            decode=decodes.tokens,
            prefill=sum(chunk for _, chunk in self.prefilling.values()),
            sequences=len(decodes.sequences) + len(self.prefilling),
            sampled=decodes.tokens + self._completed_prefills(),
            context=decodes.context,
            pairs=pairs,
            admitted=self._admitted,
            drafting=len(decodes.sequences),
            decodes_only=self._is_computed and not self.prefilling,
        )

    def _finish_decodes(self) -> list[Sequence]:
        drafting, counts, decodes = self.drafting, self.counts, self._decodes
        all_took_part = len(decodes.sequences) == len(drafting.members)
        drafting.following, ended = self._text.advance(decodes, drafting.clock, self._block_size)
        drafting.clock += 1
        for sequence in ended:
            drafting.leave(sequence)
        drafting.changed = not all_took_part
        count = len(decodes.sequences)
        self.produced = decodes.produced
        counts.drafts += count - decodes.token_counts.count(1)
        counts.drafted_tokens += decodes.tokens - count
        counts.accepted_tokens += self.produced - count
        return ended
