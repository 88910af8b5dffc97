"""The scheduler with speculative decoding."""

from __future__ import annotations

from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.scheduling.answer_text import AnswerText
from tuner.engines.simulator.scheduling.scheduler import Scheduler
from tuner.engines.simulator.scheduling.sequence import Sequence
from tuner.engines.simulator.scheduling.speculative_decodes import PlannedDecodes, SpeculativeDecodeSet
from tuner.engines.simulator.scheduling.step import Step


class SpeculativeScheduler(Scheduler):
    """The scheduler with drafts: a decode asks for one token and its draft, as far as the budget goes."""

    def __init__(self, config: ServeConfig, blocks: int, text: AnswerText, together: bool = True) -> None:
        """Make a scheduler; without `together` each sequence is asked in each step, which comes to the same."""
        super().__init__(config, blocks)
        self.drafting = SpeculativeDecodeSet(config.block_size)
        self._text = text
        self._together = together
        self._decodes = PlannedDecodes()
        self._followed = False

    @property
    def steady(self) -> bool:
        """False: every step is planned."""
        return False

    def add(self, sequence: Sequence, late: bool = False) -> None:
        """Queue a request, and decide how predictable its answer is; see `Scheduler.add`."""
        sequence.loop_at = self._text.onset(sequence)
        super().add(sequence, late)

    def _members(self) -> SpeculativeDecodeSet:
        return self.drafting

    def _plan_decodes(self) -> int:
        """Take what the step before found, if it still holds and there is room for it; else ask each sequence."""
        following, drafting = self.drafting.following, self.drafting
        room = self.config.max_num_batched_tokens
        holds = self._together and not drafting.changed
        if holds and following.tokens <= room and following.missing <= self.pool.free:
            for sequence, blocks in following.growing:
                sequence.grow(self.pool, blocks)
            self._decodes, self._followed = following, True
        else:
            self._recall()
            self._decodes = self._plan_each(room)
        return self._decodes.tokens

    def _recall(self) -> None:
        """Note what each sequence had computed when the last step was planned, where nobody looked at each."""
        if self._followed:
            for sequence in self._decodes.sequences:
                sequence.computed = sequence.tokens - sequence.segments[-1][1] - 1
        self._followed = False

    def _plan_each(self, budget: int) -> PlannedDecodes:
        planned: list[tuple[Sequence, int]] = []
        size, running = self.config.block_size, self.running
        for sequence in list(self.drafting.members.values()):
            generated = sequence.generated
            wanted, left = 1 + sequence.draft, sequence.output - generated
            if wanted > left:
                wanted = left
            if wanted > budget:
                wanted = budget
            if wanted < 1 or (self._was_preempted and sequence.order not in running):
                continue
            computed = sequence.computed = sequence.prompt + generated - 1
            if computed + wanted > sequence.blocks * size:
                if not self._secure(sequence, wanted):
                    continue
                sequence.grow(self.pool, self._blocks_of(computed + wanted))
            planned.append((sequence, wanted))
            budget -= wanted
        decodes = PlannedDecodes()
        for sequence, wanted in planned:
            if not self._was_preempted or sequence.order in running:
                decodes.add(sequence, wanted)
        return decodes

    def _remove(self, sequence: Sequence) -> None:
        if self._followed and sequence.order in self.drafting.members:
            sequence.computed = sequence.tokens - 1
        super()._remove(sequence)
        self._decodes.drop(sequence)

    def _step(self, pairs: float) -> Step:
        chunks = self.prefilling.values()
        ending = sum(sequence.computed + chunk == sequence.tokens for sequence, chunk in chunks)
        decodes = self._decodes
        return Step(
            decode=decodes.tokens,
            prefill=sum(chunk for _, chunk in chunks),
            sequences=len(decodes.sequences) + len(self.prefilling),
            sampled=decodes.tokens + ending,
            context=decodes.context,
            pairs=pairs,
            admitted=self._admitted,
            drafting=len(decodes.sequences),
            decodes_only=False,
        )

    def _finish_decodes(self) -> list[Sequence]:
        drafting, counts, decodes = self.drafting, self.counts, self._decodes
        everyone = len(decodes.sequences) == len(drafting.members)
        drafting.following, ended = self._text.advance(decodes, drafting.clock, self.config.block_size)
        drafting.clock += 1
        for sequence in ended:
            drafting.leave(sequence)
        drafting.changed = not everyone
        count = len(decodes.sequences)
        self.produced = decodes.produced
        counts.drafts += count - decodes.wants.count(1)
        counts.drafted_tokens += decodes.tokens - count
        counts.accepted_tokens += self.produced - count
        return ended
