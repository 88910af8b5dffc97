"""Speculative decoding: what is drafted, what the model accepts, and a scheduler in which tokens a step differ.

An answer is free text at first. From some token on it repeats itself (`loop_at`): that is what small models do when
they decode greedily, and what a repetitive prompt invites; sampling at higher temperatures puts it off, by a factor of
e^(8 T). In free text drafts are short and mostly wrong; within a loop they are as long as the method allows, and right.
"""

from __future__ import annotations

import math
import random

from tuner.engines.simulator.config import ServeConfig
from tuner.engines.simulator.parameters import Parameters
from tuner.engines.simulator.scheduler import Scheduler
from tuner.engines.simulator.sequence import Sequence
from tuner.engines.simulator.speculative_config import Speculation
from tuner.engines.simulator.step_time import Step

_ONSET_GROWTH = 8.0
_REPETITIVE = 0.25
"""Share of the usual onset after which the answer to a repetitive prompt repeats itself."""
_SEEN_BEFORE = (0.5, 0.2, 0.05, 0.02, 0.01)
"""Share of places in free text at which the last 1, 2, … 5 tokens stood somewhere before in the answer. Counted in
English prose of 512 words: 0.5 to 0.6, 0.09 to 0.22, 0.02 to 0.1, 0.01 to 0.07, 0.004 to 0.045."""
_RARE = 0.3
"""Frequency above which suffix decoding drafts nothing in free text: its matches there are of single tokens."""


class Text:
    """How predictable answers are, drawn from one seed."""

    def __init__(self, speculation: Speculation, temperature: float, known: Parameters, seed: int) -> None:
        self._random = random.Random(f"text {seed}")
        self._onset = known.loop_onset_tokens * math.exp(_ONSET_GROWTH * temperature)
        self._free = known.free_acceptance
        self._loop = known.loop_acceptance
        self._most, self._factor, self._from = speculation.tokens, speculation.factor, speculation.lookup_min
        self._ngram = speculation.method == "ngram"
        self._guess, self._seen = 1, _SEEN_BEFORE[0] if speculation.min_probability < _RARE else 0.0
        if self._ngram:
            self._guess, self._seen = self._most, _SEEN_BEFORE[min(self._from, len(_SEEN_BEFORE)) - 1]

    def onset(self, sequence: Sequence) -> int:
        """Return the token of its answer from which a sequence repeats itself."""
        mean = self._onset * (_REPETITIVE if sequence.repetitive else 1.0)
        return int(self._random.expovariate(1.0 / mean))

    def draft(self, sequence: Sequence) -> int:
        """Return how many tokens are drafted for a sequence's next step."""
        since = sequence.generated - (sequence.loop_at or 0)
        if since <= 0:
            return self._guess if self._seen and self._random.random() < self._seen else 0
        if self._ngram:
            return self._most if since >= self._from else 0
        return min(self._most, int(self._factor * since))

    def accepted(self, sequence: Sequence) -> int:
        """Return how many of a sequence's drafted tokens the model would have said itself."""
        chance = self._loop if sequence.generated > (sequence.loop_at or 0) else self._free
        count = 0
        while count < sequence.draft and self._random.random() < chance:
            count += 1
        return count


class Drafting:
    """The decoding sequences, each with its own number of tokens a step; see `Decoding`."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.clock = 0
        self.context = 0
        self.members: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self.members)

    def join(self, sequence: Sequence) -> None:
        """Let a sequence decode."""
        self.members[sequence.order] = sequence
        sequence.draft = 0
        sequence.segments.append((self.clock - 1, 1))

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out."""
        del self.members[sequence.order]

    def needs_block(self, sequence: Sequence) -> bool:
        """Return False: blocks are taken by `Sequence.grow` here, which keeps their number."""
        return False


class SpeculativeScheduler(Scheduler):
    """The scheduler with drafts: a decode asks for one token and its draft, as far as the budget goes."""

    def __init__(self, config: ServeConfig, blocks: int, text: Text) -> None:
        super().__init__(config, blocks)
        self.drafting = Drafting(config.block_size)
        self._text = text
        self._planned: list[tuple[Sequence, int]] = []
        self._decode_tokens = 0

    @property
    def steady(self) -> bool:
        """False: every step is planned."""
        return False

    def add(self, sequence: Sequence, late: bool = False) -> None:
        """Queue a request, and decide how predictable its answer is; see `Scheduler.add`."""
        sequence.loop_at = self._text.onset(sequence)
        super().add(sequence, late)

    def _members(self) -> Drafting:
        return self.drafting

    def _plan_decodes(self) -> int:
        planned: list[tuple[Sequence, int]] = []
        budget, size, running = self.config.max_num_batched_tokens, self.config.block_size, self.running
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
        if self._was_preempted:
            planned = [(sequence, wanted) for sequence, wanted in planned if sequence.order in running]
        self._planned, self._decode_tokens = planned, sum([wanted for _, wanted in planned])
        return self._decode_tokens

    def _step(self, pairs: float) -> Step:
        chunks = self.prefilling.values()
        ending = sum(sequence.computed + chunk == sequence.tokens for sequence, chunk in chunks)
        tokens = self._decode_tokens
        return Step(
            decode=tokens,
            prefill=sum(chunk for _, chunk in chunks),
            sequences=len(self._planned) + len(self.prefilling),
            sampled=tokens + ending,
            context=sum([sequence.prompt + sequence.generated for sequence, _ in self._planned]),
            pairs=pairs,
            admitted=self._admitted,
            drafting=len(self._planned),
            decodes_only=False,
        )

    def _finish_decodes(self) -> list[Sequence]:
        clock, text, counts = self.drafting.clock, self._text, self.counts
        self.drafting.clock += 1
        produced, draft = self.produced, text.draft
        ended = []
        for sequence, wanted in self._planned:
            gained = 1
            if wanted > 1:
                sequence.draft = wanted - 1
                accepted = text.accepted(sequence)
                counts.drafts += 1
                counts.drafted_tokens += wanted - 1
                counts.accepted_tokens += accepted
                gained += accepted
            generated = sequence.generated = sequence.generated + gained
            produced += gained
            sequence.segments.append((clock, gained))
            sequence.draft = draft(sequence)
            if generated >= sequence.output:
                self.drafting.leave(sequence)
                ended.append(sequence)
        self.produced = produced
        return ended
