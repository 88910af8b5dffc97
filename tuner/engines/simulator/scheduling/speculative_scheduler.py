"""vLLM V1's scheduler with speculative decoding: a decode gets one token and its draft, within the token budget."""

from __future__ import annotations

from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.scheduling.answer_text import AnswerText
from tuner.engines.simulator.scheduling.scheduler import Scheduler
from tuner.engines.simulator.scheduling.sequence import Sequence
from tuner.engines.simulator.scheduling.speculative_decodes import PlannedDecodes, SpeculativeDecodeSet
from tuner.engines.simulator.scheduling.step import Step


class SpeculativeScheduler(Scheduler):
    """A scheduler whose decodes have drafts.

    Most steps continue the step before, for which `AnswerText.advance` has prepared their decodes. With `fast_forward`,
    the scheduler reuses these; without, it plans each sequence in each step, with the same result.
    """

    def __init__(self, config: ServeConfig, blocks: int, text: AnswerText, fast_forward: bool = True) -> None:
        super().__init__(config, blocks)
        self.drafting = SpeculativeDecodeSet(config.block_size)
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

    def _members(self) -> SpeculativeDecodeSet:
        return self.drafting

    def _plan_decodes(self) -> int:
        """Reuse the decodes that the step before prepared, if they are valid and there is room; else plan each one."""
        following, drafting = self.drafting.following, self.drafting
        budget = self.config.max_num_batched_tokens
        valid = self._reuses_following and not drafting.changed
        if valid and following.tokens <= budget and following.missing_blocks <= self.pool.free:
            for sequence, blocks in following.growing:
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
        size, running = self.config.block_size, self.running
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
            decodes_only=False,
        )

    def _finish_decodes(self) -> list[Sequence]:
        drafting, counts, decodes = self.drafting, self.counts, self._decodes
        all_took_part = len(decodes.sequences) == len(drafting.members)
        drafting.following, ended = self._text.advance(decodes, drafting.clock, self.config.block_size)
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
